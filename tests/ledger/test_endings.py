# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processes that fail decide the verdict, whatever the launcher returns; those that the job itself ended do not."""

import os
import signal
import subprocess
import sys
import time

import pytest

# A job that begins with Python is to have torch, which is not needed here.
PYTHON = ["sh", "-c", 'exec "$@"', "sh", sys.executable]
# A process that takes a GiB, and ends as its first argument specifies.
WORKER = """
import ctypes, os, signal, sys, time
how = sys.argv[1]
if how != "early":
    assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 30)) == 0
if how in ("exit", "early"):
    sys.exit(3)
if how == "at_once":
    os._exit(3)
if how == "raise":
    raise ValueError("bad shard 17")
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "fault":
    ctypes.string_at(0)
if how == "wait":
    print("ready", flush=True)
    time.sleep(60)
"""
SHELL = """
for r in 0 1; do
    how=well; if [ $r = 1 ]; then how=$1; fi
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 {python} worker.py $how &
done
wait
exit 0
"""
POPEN = """
import os, subprocess, sys
ranks = []
for rank in range(2):
    how = sys.argv[1] if rank else "well"
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2")
    ranks.append(subprocess.Popen([sys.executable, "worker.py", how], env=environment))
for rank in ranks:
    rank.wait()
"""
FORK = """
import os, sys
done, used = os.pipe()
for rank in range(2):
    if os.fork() == 0:
        # The other one has used its GPU by then: a later process of the same program would be another try.
        rank and os.read(done, 1)
        sys.argv[1] = sys.argv[1] if rank else "well"
        try:
            exec(open("worker.py").read())
        except SystemExit as end:
            os._exit(end.code)
        os.write(used, b"x")
        os._exit(0)
for rank in range(2):
    os.wait()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


def launch(here, name, text):
    (here / name).write_text(text.format(python=sys.executable) if name.endswith(".sh") else text)
    return ["sh", name] if name.endswith(".sh") else [*PYTHON, name]


@pytest.mark.parametrize(("name", "text"), [("launch.sh", SHELL), ("popen.py", POPEN)])
@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("exit", "exit 3"),
        ("early", "exit 3"),
        ("at_once", "exit 3"),
        ("raise", "exit 1"),
        ("kill", "signal 9"),
        ("fault", "signal 11"),
    ],
)
def test_a_failed_rank_decides_though_its_launcher_returns_0(run, here, name, text, how, ending):
    ran = run(*launch(here, name, text), how)
    assert ran.verdict["ending"] == "exit 0"
    assert (ran.status, ran.verdict["outcome"]) == (2, "failed")
    (failed,) = ran.verdict["failed_processes"]
    assert (failed["rank"], failed["ending"]) == (1, ending)
    if how == "raise":
        (raised,) = ran.verdict["exceptions"]
        assert raised["message"] == "bad shard 17"


@pytest.mark.parametrize(("how", "ending"), [("exit", "exit 3"), ("kill", "signal 9")])
def test_a_rank_that_was_forked_decides_as_well(run, here, how, ending):
    ran = run(*launch(here, "fork.py", FORK), how)
    assert (ran.verdict["ending"], ran.status) == ("exit 0", 2)
    (failed,) = ran.verdict["failed_processes"]
    assert failed["ending"] == ending


def test_ranks_that_end_well_fit(run, here):
    ran = run(*launch(here, "launch.sh", SHELL), "well")
    assert (ran.status, ran.verdict["outcome"], ran.verdict["failed_processes"]) == (0, "fits", [])


@pytest.mark.parametrize("name", ["terminate", "kill"])
def test_a_process_that_its_job_ends_has_not_failed(run, here, name):
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, 'worker.py', 'wait'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        f"child.{name}()\n"
        "child.wait()\n"
    )
    ran = run(*launch(here, "server.py", script))
    assert (ran.status, ran.verdict["outcome"], ran.verdict["failed_processes"]) == (0, "fits", [])


def test_a_signal_to_another_group_excuses_no_rank(run, here):
    """A job ends the group of a helper; later a rank fails, and the launcher drops its exit code."""
    helper = (
        "import os, signal, subprocess\n"
        "helper = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "os.killpg(helper.pid, signal.SIGTERM)\n"
        "helper.wait()\n"
    )
    ran = run(*launch(here, "popen.py", helper + POPEN), "exit")
    assert (ran.status, ran.verdict["outcome"], ran.verdict["ending"]) == (2, "failed", "exit 0")


def test_a_process_that_does_not_end_in_time_has_failed(run, here):
    script = f"timeout 6 {sys.executable} worker.py wait\nexit 0\n"
    ran = run(*launch(here, "bounded.sh", script))
    assert (ran.status, ran.verdict["outcome"], ran.verdict["ending"]) == (2, "failed", "exit 0")
    (failed,) = ran.verdict["failed_processes"]
    assert failed["ending"] == "signal 15"


def test_a_process_that_is_tried_again_has_not_failed(run, here):
    script = (
        "import subprocess, sys\n"
        "for how in ('exit', 'well'):\n"
        "    if subprocess.run([sys.executable, 'worker.py', how]).returncode == 0:\n"
        "        break\n"
    )
    ran = run(*launch(here, "tries.py", script))
    assert (ran.status, ran.verdict["outcome"]) == (0, "fits")
    # Without the second try it has.
    ran = run(*launch(here, "tries.py", script.replace(", 'well'", ",")))
    assert (ran.status, ran.verdict["outcome"]) == (2, "failed")


# Takes so many GiB as its argument specifies, or as the file that it names.
TAKE = """
import ctypes, os, sys
size = sys.argv[1] if sys.argv[1].isdigit() else open(sys.argv[1]).read()
if ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(size) << 30)):
    raise RuntimeError("CUDA error: out of memory") if len(sys.argv) == 2 else SystemExit(1)
"""


@pytest.mark.parametrize("how", ["", "quietly"])
@pytest.mark.parametrize("sizes", ["1 40 2", "40 1", "1 40"])
def test_a_sweep_does_not_fit_if_one_of_its_runs_does_not(run, here, sizes, how):
    (here / "take.py").write_text(TAKE)
    script = f"for gib in {sizes}; do {sys.executable} take.py $gib {how} || true; done\n"
    ran = run(*launch(here, "sweep.sh", script))
    assert (ran.verdict["ending"], ran.verdict["outcome"], ran.status) == ("exit 0", "does_not_fit", 1)
    (failed,) = ran.verdict["failed_processes"]
    assert failed["command"].split()[1:3] == ["take.py", "40"]
    assert failed["out_of_memory"] is True
    words = sizes.split()
    assert (failed["run"], failed["runs"]) == (words.index("40") + 1, len(words))


def test_the_verdict_on_a_sweep_names_the_run_that_ran_out_of_memory(here):
    (here / "take.py").write_text(TAKE)
    script = f"for gib in 1 40 2; do {sys.executable} take.py $gib || true; done\n"
    tonnage = [os.environ["TONNAGE"], "run", "--gpu", "rtx3090", "--no-progress", "--"]
    done = subprocess.run([*tonnage, *launch(here, "sweep.sh", script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "run 2 of 3 of take.py ran out of GPU memory" in done.stdout
    assert "take.py 40)" in done.stdout


@pytest.mark.parametrize("ranks", ["", "RANK=0 "])
def test_the_same_command_that_is_tried_again_after_an_out_of_memory_fits(run, here, ranks):
    (here / "take.py").write_text(TAKE)
    script = f"for gib in 40 1; do echo $gib > size; {ranks}{sys.executable} take.py size || true; done\n"
    ran = run(*launch(here, "again.sh", script))
    assert (ran.status, ran.verdict["outcome"], ran.verdict["failed_processes"]) == (0, "fits", [])
    # Other arguments are another job.
    script = f"for gib in 40 1; do {ranks}{sys.executable} take.py $gib || true; done\n"
    ran = run(*launch(here, "again.sh", script))
    assert (ran.status, ran.verdict["outcome"]) == (1, "does_not_fit")


def test_one_process_that_searches_for_a_size_fits(run, here):
    search = TAKE.replace("raise ", "print('too large') #").replace("open(sys.argv[1]).read()", "0")
    lines = ["import sys", "for size in ('40', '1'):", "    sys.argv[1:] = [size]", f"    exec({search!r})"]
    (here / "search.py").write_text("\n".join(lines))
    ran = run(*launch(here, "search.sh", f"{sys.executable} search.py\n"))
    assert (ran.status, ran.verdict["outcome"], ran.verdict["failed_processes"]) == (0, "fits", [])


def test_a_rank_that_is_started_again_has_not_failed(run, here):
    script = f"RANK=0 {sys.executable} worker.py exit; RANK=0 {sys.executable} worker.py well; exit 0\n"
    assert run(*launch(here, "again.sh", script)).status == 0
    script = f"RANK=0 {sys.executable} worker.py exit; RANK=1 {sys.executable} worker.py well; exit 0\n"
    assert run(*launch(here, "again.sh", script)).status == 2


def test_what_a_rank_starts_is_not_that_rank(run, here):
    script = f"RANK=0 {sys.executable} -c 'import subprocess; subprocess.run([\"false\"])'; exit 0\n"
    assert run(*launch(here, "helper.sh", script)).verdict["failed_processes"] == []


def test_a_rank_that_tonnage_starts_is_named(here):
    """The other ranks, which are ended, neither fail nor print a traceback."""
    (here / "rank.py").write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)\n")
    tonnage = [os.environ["TONNAGE"], "run", "--gpu", "h100-80gb", "--world-size", "2", "--ranks", "0,1", "--"]
    done = subprocess.run([*tonnage, *PYTHON, "rank.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "rank 1 of 2 ended with exit code 3" in done.stdout
    assert "interrupted" not in done.stdout
    assert "to spare" not in done.stdout
    assert "KeyboardInterrupt" not in done.stderr


@pytest.mark.parametrize(("uses", "outcome"), [("", "no_device"), ("{python} worker.py well\n", "fits")])
def test_a_process_that_a_job_leaves_in_the_background_is_named(run, here, uses, outcome):
    """It would have used a GPU later, maybe: the size is unknown."""
    script = uses + "{python} -c 'import time; time.sleep(60)' &\nexit 0\n"
    ran = run(*launch(here, "leaves.sh", script))
    assert (ran.status, ran.verdict["outcome"]) == (0, outcome)
    assert "import time; time.sleep(60)` would have used in the background: it was ended" in ran.unknown
    # One that the job waits for is followed to its end.
    ran = run(*launch(here, "waits.sh", script.replace("(60)", "(0)").replace("exit 0", "wait")))
    assert "in the background" not in ran.unknown


SLEEPERS = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        time.sleep(45)
        os._exit(0)
print("ready", flush=True)
time.sleep(45)
"""


def sleeping(script):
    """The processes that run this script. A protected job has another view of its directory, so only names compare."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as line:
                found += [entry] if script.encode() in line.read().split(b"\0") else []
        except OSError:
            pass
    # The command itself has the name among its arguments, too.
    return [entry for entry in found if os.readlink(f"/proc/{entry}/exe") != os.path.realpath(os.environ["TONNAGE"])]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_outlives_the_command(here, name):
    temporary = here / "temporary"
    temporary.mkdir()
    script = f"sleepers-{name}-{os.getpid()}.py"
    (here / script).write_text(SLEEPERS)
    line = [os.environ["TONNAGE"], "run", "--gpu", "h100-80gb", "--no-progress", "--", *PYTHON, script]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(temporary)}
    ) as tonnage:
        assert tonnage.stdout.readline() == b"ready\n"
        assert len(sleeping(script)) >= 3
        tonnage.send_signal(getattr(signal, name))
        assert tonnage.wait(timeout=40) == (-9 if name == "SIGKILL" else 2)
        deadline = time.monotonic() + 20
        while (sleeping(script) or os.listdir(temporary)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sleeping(script) == []
        assert os.listdir(temporary) == []
