# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hooks, whatever the command does that they start, and whatever users write."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from cluster import PATIENCE, SHARDS

#: Reports what it was started with.
RECORDER = """#!{python} -IS
import json, os, sys
script = next((word.partition("=")[2] for word in sys.argv if word.startswith("--script=")), None)
seen = {{"words": sys.argv[1:], "folder": os.getcwd(), "script": script and open(script).read()}}
seen["allocator"] = os.environ.get("PYTORCH_ALLOC_CONF")
with open({log!r}, "a") as log:
    log.write(json.dumps(seen) + "\\n")
print("action=none\\ntasks=1")
"""

HOSTILE = [
    "a b",
    "",
    "'",
    "''\"\\",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned;",
    "x\ny",
    "-x",
    "--",
    "%s%n",
    "*",
    "~",
    "ä\x1b[2J",
]


@pytest.fixture
def record(site, tmp_path):
    """Replaces the command by one that reports how it was called."""
    log = tmp_path / "log"
    double = tmp_path / "recorder"
    double.write_text(RECORDER.format(python=sys.executable, log=str(log)))
    double.chmod(0o755)
    site.use(double)
    return lambda: [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def double(site, folder: Path, text: str) -> None:
    program = folder / "double"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    site.use(program)


def words_after(seen: dict) -> list[str]:
    return seen["words"][seen["words"].index("--") + 1 :]


def test_words_of_srun_arrive_as_they_were_typed(site, record, tmp_path):
    words = ["printf", "%s|", *HOSTILE]
    answer = site.run("srun", "--gres=shard:10", *words, folder=tmp_path)
    assert answer.code == 0, answer
    assert answer.out == "".join(f"{word}|" for word in HOSTILE)
    (seen,) = record()
    assert words_after(seen) == words
    assert seen["folder"] == str(tmp_path)
    assert not list(tmp_path.glob("pwned"))
    separator = "/" if site.cluster.shards_per_task else ":"
    assert f"--asked=gres=gres{separator}shard:10" in seen["words"]
    # One task, which was not requested, is what srun starts.
    assert "--tasks=1" in seen["words"]


def test_scripts_arrive_with_their_arguments(site, record, tmp_path):
    folder = tmp_path / "a 'folder' $(touch pwned)"
    folder.mkdir()
    script = folder / "my; job\n.sh"
    script.write_text("#!/bin/sh\n#SBATCH --ntasks=2\ntrue\n")
    for run in [site.run, site.other_client]:
        answer = run("sbatch", script.name, *HOSTILE, folder=folder, PYTORCH_ALLOC_CONF="expandable_segments:True")
        assert (answer.code, answer.err) == (0, "")
    client, controller = record()
    for seen in [client, controller]:
        assert words_after(seen) == HOSTILE
        assert seen["folder"] == str(folder)
        assert seen["script"] == script.read_text()
        assert seen["allocator"] == "expandable_segments:True"
        assert "--tasks=2" in seen["words"]
    assert not list(tmp_path.rglob("pwned"))


def test_commands_that_are_wrapped_and_scripts_from_standard_input_are_seen(site, record):
    for answer in [
        site.run("sbatch", "--wrap", "echo 'a b'"),
        site.run("sbatch", "--exclusive", stdin="#!/bin/sh\necho piped\n"),
    ]:
        assert (answer.code, answer.err) == (0, "")
    wrapped, piped = record()
    assert wrapped["script"] == "echo 'a b'"
    assert piped["script"] == "#!/bin/sh\necho piped\n"
    assert "--tasks" not in " ".join(wrapped["words"] + piped["words"])


def test_steps_of_a_job_are_not_asked_about(site, record, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nsrun --ntasks=1 true\ntouch done\n")
    assert site.run("sbatch", str(script), folder=tmp_path).code == 0
    site.cluster.wait((tmp_path / "done").exists, "the job does not end")
    assert len(record()) == 1


def test_tasks_are_counted_by_nodes(site, record):
    assert site.run("sbatch", "--nodes=2", "--ntasks-per-node=3", "--wrap", "true").code == 0
    (seen,) = record()
    assert "--tasks=6" in seen["words"]


def test_a_comment_stays_the_users(site, record):
    answer = site.run("sbatch", "--hold", "--comment=of mine [tonnage fill 1x1 x]", "--wrap", "true")
    shown = site.cluster.shown(answer.job)
    comments = [line.strip() for line in shown.splitlines() if "Comment=" in line]
    assert comments == ["Comment=of mine [tonnage fill 1x1 x]"]


FAILURES = {
    "fails": ("echo 'no settings' >&2; exit 2", "no settings"),
    "nonsense": ("echo hello", "the answer is not understood: hello"),
    "endless": ("yes", "it printed too much"),
    "killed": ("kill -9 $$", "Killed"),
    "hangs": ("sleep 1000", "no answer within"),
    "missing": (None, "not found|No such file"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(("mode", "client"), [("fill", "run"), ("enforce", "other_client")])
def test_a_command_that_fails_loses_no_job(site, tmp_path, mode, client, failure):
    program, reason = FAILURES[failure]
    hangs = failure == "hangs"
    site.set(mode, tmp_path, seconds=2 if hangs else PATIENCE)
    if program is None:
        site.use(None)
    else:
        double(site, tmp_path, program)
    began = time.monotonic()
    answer = getattr(site, client)("sbatch", "--gres=gpu:1", "--wrap", "sleep 60")
    # A program that hangs is waited for as long as the settings allow, with ample time for a busy machine.
    assert not hangs or time.monotonic() - began < PATIENCE / 2
    assert any(one in answer.err for one in reason.split("|")), answer
    if mode == "fill":
        assert answer.code == 0, answer
        assert "the job continues as requested" in answer.err
        site.cluster.wait_until_running(answer.job)
        assert list(site.cluster.read_holdings(answer.job).values()) == [SHARDS]
    else:
        assert answer.code == 1, answer
        assert "no job is accepted here without its answer" in answer.err
        assert not site.cluster.run("squeue", "-h").out


def test_more_words_than_a_shell_takes_lose_no_job(site, record, tmp_path):
    answer = site.run("srun", "true", *["x" * 1000] * 200)
    assert answer.code == 0, answer
    assert "too long" in answer.err
    assert record() == []


SITE_HOOK = """
dofile("{folder}/tonnage/job_submit.lua")
local tonnage_job_submit = slurm_job_submit

function slurm_job_submit(job, partitions, uid)
    local code = tonnage_job_submit(job, partitions, uid)
    if code ~= slurm.SUCCESS then
        return code
    end
    slurm.log_user("%s", "of the site")
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""


def test_a_site_calls_the_hook_from_its_own(site, record):
    """As docs/guides/slurm.md describes it."""
    folder = site.cluster.folder
    hook = folder / "job_submit.lua"
    ours = hook.read_text()
    (folder / "tonnage").mkdir()
    for name in ["job_submit.lua", "tonnage.lua"]:
        (folder / "tonnage" / name).write_text((folder / name).read_text())

    def install(text: str, seconds: int) -> None:
        hook.write_text(text)
        # Slurm reads a hook again if it is newer than what it has read.
        os.utime(hook, (time.time() + seconds,) * 2)

    try:
        install(SITE_HOOK.format(folder=folder), 2)
        answer = site.other_client("sbatch", "--wrap", "true")
        assert answer.code == 0, answer
        assert "of the site" in answer.err
        assert len(record()) == 1
    finally:
        install(ours, 4)
    answer = site.other_client("sbatch", "--wrap", "true")
    assert (answer.code, answer.err, len(record())) == (0, "", 2)


def test_a_script_that_names_a_large_file_thousands_of_times_is_answered_soon(site, tmp_path):
    (tmp_path / "big.bin").write_bytes(os.urandom(4 << 20))
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nexit\n" + "python train.py " + " ".join(["big.bin"] * 8000) + "\n")
    (tmp_path / "store").mkdir()
    site.set("enforce", tmp_path / "store", 10)
    began = time.monotonic()
    answer = site.other_client("sbatch", script.name, folder=tmp_path)
    took = time.monotonic() - began
    assert "no forecast of this job" in answer.err, answer
    assert took < 8, took


def test_jobs_that_take_long_to_read_are_not_read_all_the_time(site, tmp_path):
    double(site, tmp_path, f"sleep 0.7; echo action=none; echo asked >> {tmp_path}/asked")
    for mode in ["fill", "enforce"]:
        (tmp_path / "asked").unlink(missing_ok=True)
        # One user has half of these seconds.
        site.set(mode, tmp_path, seconds=2)
        # The costs of a window end with it.
        time.sleep(11)
        answers = [site.other_client("sbatch", "--wrap", "true", folder=tmp_path) for _ in range(6)]
        asked = (tmp_path / "asked").read_text().count("asked")
        # Two answers cost more than a second, on a busy machine one; where the window ended meanwhile, as many more.
        assert 1 <= asked <= 4, answers
        refused = [answer for answer in answers if "took too long to read" in answer.err]
        assert len(refused) == 6 - asked
        assert all((answer.code != 0) == (mode == "enforce") for answer in refused), refused
