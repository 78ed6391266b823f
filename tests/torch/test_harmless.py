# SPDX-License-Identifier: MIT OR Apache-2.0
"""A dry run leaves the user's files as they were, and the job sees its own writes.

The checker reads the directory itself: names, contents, modes, times. It shares no code with tonnage.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import PYTHON, TONNAGE

PROGRAMS = Path(__file__).parent / "harmless"
BY = ["overlay", "preload"]
OVERWRITE = "open('best.txt', 'w').write('ruined'); import torch; torch.zeros(1, device='cuda')\n"
#: Does what vLLM does before it takes requests.
SERVER = """#!{python}
import time, torch
open("best.txt", "w").write("ruined")
print("INFO Initializing a V1 LLM engine (v9.9) with config: model", flush=True)
cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("INFO GPU KV cache size: 8,192 tokens, "
      "Maximum concurrency for 1,024 tokens per request: 8.00x", flush=True)
print("INFO:     Application startup complete.", flush=True)
time.sleep(600)
"""
BUDGET = """
[[budget]]
name = "train"
run = {run}
gpu = "rtx3090"
peak_allocated = "1 GiB"
"""


def state_of(folder):
    """Everything of a directory that a user would miss."""
    state = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        state[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, status.st_size, content)
    return state


def make_project(folder):
    """A directory with checkpoints, logs and an existing best.pt."""
    for name in ["checkpoints", "old/deep", "runs/first", "out/checkpoint-2", "final", "lightning", "dcp"]:
        (folder / name).mkdir(parents=True)
    torch.save({"weight": torch.ones(64, 64), "bias": torch.ones(64)}, folder / "best.pt")
    torch.save(torch.ones(4), folder / "rank.pt")
    texts = ["checkpoints/step-0.pt", "old/deep/a.bin", "runs/first/events", "out/checkpoint-2/keep", "readonly.pt"]
    for name in texts:
        (folder / name).write_text(name)
    (folder / "final/config.json").write_text("{}")
    (folder / "lightning/last.ckpt").write_text("precious")
    (folder / "dcp/.metadata").write_text("precious")
    (folder / "dcp/__0_0.distcp").write_text("precious")
    (folder / "weights.safetensors").write_bytes(b"precious")
    (folder / "train.log").write_text("first line\n")
    (folder / "config.json").write_text('{"lr": 1}')
    (folder / "shared.log").write_text("")
    (folder / "native.bin").write_text("before")
    (folder / "mapped.bin").write_bytes(bytes(16))
    (folder / "raw.bin").write_bytes(b"12345678")
    (folder / "runs.db").write_bytes(b"")
    (folder / "readonly.pt").chmod(0o444)
    (folder / "link.pt").symlink_to("best.pt")
    for path in folder.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1_600_000_000, 1_600_000_000))


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "TONNAGE_PASS_THROUGH"}
    return {**kept, **more}


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    library = tmp_path_factory.mktemp("extension") / "extension.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, PROGRAMS / "extension.c"], check=True)
    return library


def run(folder, recording, program, *options, **variables):
    line = [TONNAGE, "run", "--gpu", "rtx3090", "-o", recording, *options, "--", PYTHON, program]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=300, cwd=folder, env=environment(**variables)
    )


def need(by):
    if by == "overlay" and not can_mount():
        pytest.skip("this user may not mount")


def verdict_line(text, name):
    return [line.split(None, 1)[1] for line in text.splitlines() if line.strip().startswith(name + " ")]


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("program", ["plain.py", "trainer.py", "fabric.py"])
def test_files_are_as_before_and_the_job_sees_its_writes(tmp_path, extension, program, by):
    need(by)
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    make_project(project)
    shutil.copytree(project, other, symlinks=True)
    before = state_of(project)
    program = PROGRAMS / program
    variables = {"EXTENSION": str(extension)}
    plain = run(other, tmp_path / "plain.tonnage", program, "--side-effects", **variables)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert state_of(other) != before, "the program changes nothing, so this test shows nothing"
    kept = tmp_path / "kept"
    protected = run(
        project, tmp_path / "protected.tonnage", program, "--keep-files", kept, TONNAGE_FILES_BY=by, **variables
    )
    assert protected.returncode == 0, protected.stdout + protected.stderr
    assert state_of(project) == before
    own = lambda text: text[: text.index("fits ")]  # noqa: E731
    assert own(protected.stdout) == own(plain.stdout)
    [files] = verdict_line(protected.stdout, "files")
    assert f"copied to {kept}" in files
    assert ("unchanged" in files) == (program.name != "fabric.py"), "Lightning gives its files new names"
    assert verdict_line(plain.stdout, "files") == []
    # The files of the job are those that it leaves without protection.
    for path in sorted(kept.rglob("*")):
        twin = other / path.relative_to(kept)
        if path.is_file() and twin.is_file() and path.suffix in (".txt", ".log", ".json", ".npy"):
            assert path.read_bytes() == twin.read_bytes(), path


def fit(folder, by, *words, **variables):
    line = [TONNAGE, "fit", "--gpu", "rtx3060", "--json", "--", PYTHON, "train.py", *words]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=600, cwd=folder, env=environment(TONNAGE_FILES_BY=by, **variables)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    return answer, [trial for row in answer["rows"] for trial in row["trials"]]


@pytest.mark.parametrize("by", BY)
def test_fit_leaves_the_directory_of_a_script_that_rotates_checkpoints(tmp_path, by):
    need(by)
    project = tmp_path / "project"
    project.mkdir()
    make_project(project)
    script = project / "train.py"
    script.write_text(
        "import glob, os, sys, torch\n"
        "x = torch.zeros(int(sys.argv[1]), 1 << 20, device='cuda')\n"
        "names = sorted(glob.glob('checkpoints/*'))\n"
        "assert names == ['checkpoints/step-0.pt'], names\n"
        "assert open(names[0]).read() == 'checkpoints/step-0.pt'\n"
        "for step in range(4):\n"
        "    torch.save(x[:1], f'checkpoints/step-{step}.pt')\n"
        "    for old in sorted(glob.glob('checkpoints/*'))[:-2]:\n"
        "        os.remove(old)\n"
        "torch.save(x, 'best.pt')\n"
    )
    before = state_of(project)
    answer, trials = fit(project, by, "{n=1,2,3,4,5,6}")
    assert state_of(project) == before
    assert answer["not_forked"] is None
    assert [trial["forked"] for trial in trials] == [False] + [True] * 5
    assert [trial["outcome"] for trial in trials] == ["fits"] * 6


@pytest.mark.parametrize("by", BY)
def test_fit_leaves_the_files_that_an_import_writes(tmp_path, by):
    """Each variant sees what its own import wrote, once, and nothing of the others."""
    need(by)
    project, packages = tmp_path / "project", tmp_path / "site-packages"
    project.mkdir()
    packages.mkdir()
    make_project(project)
    (packages / "writer.py").write_text(
        "import os\n"
        "with open('train.log', 'a') as log:\n"
        "    log.write('imported\\n')\n"
        "open('best.pt', 'w').write('of the import')\n"
        "os.remove('config.json')\n"
    )
    (project / "train.py").write_text(
        "import os, sys, torch, writer\n"
        "assert open('train.log').read() == 'first line\\nimported\\n'\n"
        "assert open('best.pt').read() == 'of the import' and not os.path.exists('config.json')\n"
        "open('best.pt', 'w').write(sys.argv[1])\n"
        "torch.zeros(int(sys.argv[1]), 1 << 20, device='cuda')\n"
    )
    before = state_of(project)
    answer, trials = fit(project, by, "{n=1,2,3,4}", PYTHONPATH=str(packages))
    assert state_of(project) == before
    assert [trial["outcome"] for trial in trials] == ["fits"] * 4, trials
    assert "an import writes to" in answer["not_forked"]


def said_by_mcp(folder, tool, **arguments):
    """The answer of one tool of the server for coding assistants."""
    server = subprocess.Popen(
        [TONNAGE, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment()
    )
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    messages = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}},
    ]
    with server:
        for message in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        answers = map(json.loads, server.stdout)
        answer = next(answer for answer in answers if answer.get("id") == 2)
        server.stdin.close()
    return answer["result"]


@pytest.mark.parametrize("way", ["check", "serve-fit", "forecast", "mcp"])
def test_files_are_as_before_whichever_way_a_job_is_run_dry(tmp_path, way):
    project = tmp_path / "project"
    project.mkdir()
    job = [PYTHON, "train.py"]
    (project / "best.txt").write_text("precious")
    (project / "train.py").write_text(OVERWRITE)
    (project / "vllm").write_text(SERVER.format(python=PYTHON))
    (project / "vllm").chmod(0o755)
    (project / "tonnage.toml").write_text(BUDGET.format(run=json.dumps(job)))
    before = state_of(project)
    words = {
        "check": ["check", "--update"],
        "serve-fit": ["serve-fit", "--gpu", "rtx3090", "--no-check", "--", "./vllm", "serve"],
        "forecast": ["forecast", "make", "--gpu", "rtx3090", "--store", tmp_path / "store", "--", *job],
    }
    if way == "mcp":
        answer = said_by_mcp(project, "run", command=job, gpu="rtx3090", output=str(tmp_path / "x.tonnage"))
        assert answer["structuredContent"]["files"]["changed"] == 1, answer
    else:
        done = subprocess.run(
            [TONNAGE, *words[way]], capture_output=True, text=True, timeout=300, cwd=project, env=environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr
    after = state_of(project)
    # The figures that `check` accepts are written by the command itself.
    for name in (".", "tonnage.lock"):
        before.pop(name, None), after.pop(name, None)
    assert after == before


def test_only_the_files_of_the_first_run_are_kept(tmp_path):
    """A job that runs out of memory is run again without a limit."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "open('begun.txt', 'w').write('begun')\n"
        "torch.empty(30 << 30, dtype=torch.uint8, device='cuda')\n"
        "open('ended.txt', 'w').write('ended')\n"
    )
    kept = tmp_path / "kept"
    done = run(tmp_path, tmp_path / "x.tonnage", script, "--keep-files", kept)
    assert done.returncode == 1 and "needs" in done.stdout, done.stdout + done.stderr
    assert [path.name for path in sorted(kept.iterdir())] == ["begun.txt"]


def test_a_change_that_is_refused_is_in_the_verdict(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\n"
        "torch.zeros(1, device='cuda')\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        os.chmod('pipe', 0o600)\n"
        "    except OSError as error:\n"
        "        print('refused', error.errno)\n"
    )
    os.mkfifo(tmp_path / "pipe", 0o644)
    before = os.lstat(tmp_path / "pipe")
    shown = run(tmp_path, tmp_path / "x.tonnage", script, TONNAGE_FILES_BY="preload")
    assert os.lstat(tmp_path / "pipe") == before
    assert shown.stdout.count("refused 30\n") == 2, shown.stdout + shown.stderr
    [line] = [line for line in verdict_line(shown.stdout, "refused") if "pipe" in line]
    assert line == "changes of pipe: the preloaded library cannot redirect them"
    data = run(tmp_path, tmp_path / "y.tonnage", script, "--json", TONNAGE_FILES_BY="preload")
    files = json.loads(data.stdout[data.stdout.index("{") :])["files"]
    assert (files["refused"], files["refused_at"]) == (1, ["pipe"])


def test_the_directory_of_a_run_is_for_its_user_alone(tmp_path):
    script = "stat -c %a $TONNAGE_RUN"
    line = [TONNAGE, "run", "--gpu", "rtx3090", "-o", tmp_path / "x.tonnage", "--", "sh", "-c", script]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=60, env=environment(), cwd=tmp_path,
        preexec_fn=lambda: os.umask(0o002),
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "700", done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [["run", "-o", "x.tonnage"], ["fit", "--stop-after", "1steps"], ["forecast", "make", "--store", "store"]],
    ids=lambda words: words[0],
)
def test_folders_of_a_command_are_for_its_user_alone(tmp_path, words):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "train.py").write_text(
        "import os, stat, sys, tempfile, torch\n"
        "torch.zeros(1, device='cuda')\n"
        "entries = os.scandir(os.environ['TMPDIR'])\n"
        "modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in entries if entry.is_dir()}\n"
        "with open('modes', 'a') as file:\n"
        "    for name, mode in modes.items():\n"
        "        print(name, oct(mode), file=file)\n"
    )
    more = ["{n=1,2}"] if words[0] == "fit" else []
    line = [TONNAGE, *words, "--gpu", "rtx3090", "--side-effects", "--", PYTHON, "train.py", *more]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment(TMPDIR=str(scratch)),
        preexec_fn=lambda: os.umask(0o002),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split() for line in (tmp_path / "modes").read_text().splitlines())
    assert any(name.startswith(f"tonnage-{words[0]}-") for name in found), found
    assert {mode for name, mode in found.items() if name.startswith("tonnage-")} == {"0o700"}, found
