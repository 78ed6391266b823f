# SPDX-License-Identifier: MIT OR Apache-2.0
"""The calls of a script and their results, compared with the command, which prints the same."""

import gc
import inspect
import json
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
import tonnage


def run_command(*words, code=0):
    """The output of the command, in its own process."""
    done = subprocess.run([sys.executable, "-m", "tonnage", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_dry_run_is_true_if_it_fits(verdict):
    assert verdict
    assert verdict.fits
    assert verdict.outcome == "fits"
    assert verdict.output == "trained 1024\n"
    assert verdict.capacity > 39 << 30
    # Weights, gradients and two moments of four tensors, and what a step needs beside them.
    weights = 4 * 2 * (1024 * 1024 + 1024)
    assert verdict.to_dict()["devices"][0]["peak_allocated"] > 4 * weights
    assert verdict.peak > verdict.to_dict()["context"]["bytes"] + 4 * weights
    assert str(verdict).startswith("fits on NVIDIA A100-SXM4-40GB")


def test_a_dry_run_that_does_not_fit_is_an_answer(short):
    assert not short
    assert short.outcome == "does_not_fit"
    assert "OutOfMemoryError" in short.output
    explained = short.explain()
    assert not explained
    assert explained.outcome == "out_of_memory"
    assert explained.findings[-1].code == "TN101"
    assert explained.holders[0].place.file.endswith("train.py")


def test_a_temporary_recording_goes_with_its_object(job):
    verdict = tonnage.dry_run(["train.py", "64"], gpu="rtx4090", capture=True, cwd=job)
    path = verdict.recording.path
    assert path.is_file()
    del verdict
    gc.collect()
    assert not path.exists()


def test_a_command_that_cannot_be_started_raises(job):
    with pytest.raises(tonnage.Error, match='no GPU in the catalogue is called "a1000"') as caught:
        tonnage.dry_run(["train.py"], gpu="a1000", cwd=job)
    assert "tonnage gpus" in caught.value.hint
    with pytest.raises(tonnage.Error, match="cannot find the command nothing-of-this-name"):
        tonnage.dry_run(["nothing-of-this-name"], cwd=job)
    with pytest.raises(tonnage.Error):
        tonnage.dry_run([])


def test_an_interrupt_ends_the_job_and_then_raises(tmp_path):
    # The script drives a dry run of a job that goes on forever, and reports how that ended.
    (tmp_path / "job.sh").write_text(
        "trap 'echo cleaned > cleaned; exit 3' INT TERM\necho $$ > pid\nwhile :; do sleep 0.1; done\n"
    )
    (tmp_path / "drive.py").write_text(
        "import signal, tonnage\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    tonnage.dry_run(['sh', 'job.sh'], capture=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    driver = subprocess.Popen([sys.executable, "drive.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").is_file():
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.05)
    # To the driver alone, as a supervisor does; at a terminal the job would get it, too.
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=60)
    assert out == "interrupted\n"
    assert (tmp_path / "cleaned").is_file()


@pytest.mark.parametrize("question", ["explain", "replay", "tune", "info"])
def test_answers_are_those_of_the_command(verdict, question):
    path = verdict.recording.path
    answer = getattr(verdict.recording, question)()
    assert answer.to_dict() == json.loads(run_command(question, path, "--json"))
    assert str(answer) + "\n" == run_command(question, path)


def test_replays_and_tuning(verdict):
    recording = verdict.recording
    replay = recording.replay(alloc=["torch", "torch:expandable_segments:True"], smallest=False)
    assert replay
    assert [one.allocator for one in replay.allocators] == ["torch", "torch:expandable_segments:True"]
    assert replay.allocators[0].recorded
    assert replay.allocators[0].peak_reserved == verdict.to_dict()["devices"][0]["peak_reserved"]
    assert not recording.replay(capacity="64MiB", context="8MiB", smallest=False)
    tuning = recording.tune(progress=False)
    assert tuning.tried > 200
    assert tuning.best.peak_reserved <= tuning.baseline.peak_reserved
    assert tuning.own_allocator.completes
    assert tuning.own_allocator.smallest <= tuning.best.smallest


def test_differences(job, verdict):
    wider = tonnage.dry_run(["train.py", "1536"], gpu="a100-40gb", capture=True, cwd=job)
    diff = verdict.recording.diff(wider.recording)
    peak = next(change for change in diff.totals if change.what == "peak allocated")
    assert peak.delta == peak.after - peak.before > 0
    assert verdict.recording.diff(verdict.recording).lines == []


def test_plans_meet_their_bound(verdict):
    plan = verdict.recording.plan(deadline=5, progress=False)
    assert plan.peak == plan.lower_bound == verdict.to_dict()["devices"][0]["peak_allocated"]


def test_tables_of_arrow(verdict):
    import pyarrow.compute as compute

    recording = verdict.recording
    events = recording.to_arrow()
    assert events.num_rows >= recording.info().to_dict()["recordings"][0]["events"]
    assert compute.max(recording.timeline().to_arrow()["allocated"]).as_py() == recording.timeline().peak_allocated
    assert recording.replay(smallest=False).to_arrow()["peak_reserved"][0].as_py() > 0
    assert recording.explain().to_arrow().num_rows > 0


def test_a_notebook_shows_the_colours_of_the_page_and_round_ticks(verdict):
    from tonnage import _picture

    timeline = verdict.recording.timeline()
    picture = timeline._repr_html_()
    assert timeline.to_dict()["colours"]["weights"] in picture
    gib = 1 << 30
    assert _picture.ticks(24 * gib) == [level * gib for level in (0, 5, 10, 15, 20)]
    assert _picture.ticks(0) == [0]


def test_what_is_no_command_says_what_to_do(job):
    with pytest.raises(tonnage.Error, match=r"there is no file called 'python train\.py 64'") as caught:
        tonnage.dry_run("python train.py 64", cwd=job)
    assert caught.value.hint == 'use a list of words: dry_run(["python", "train.py", "64"])'

    def train():
        pass

    for command, message in [(train, "train is a function"), (7, "7 is not a command"), ([], "there is no command")]:
        with pytest.raises(tonnage.Error, match=message) as caught:
            tonnage.dry_run(command, cwd=job)
        assert "dry_run([" in caught.value.hint


def test_a_cell_on_a_gpu_that_is_not_there_is_told_without_a_traceback(capsys):
    class Shell:
        def __init__(self):
            self.user_ns = {}

        def register_magic_function(self, magic, kind, name):
            self.magic = magic

    shell = Shell()
    tonnage.load_ipython_extension(shell)
    assert shell.magic("--gpu nope", "print(1)") is None
    told = capsys.readouterr().err
    assert told.startswith('error: no GPU in the catalogue is called "nope"')
    assert "hint: " in told


def test_a_cell_leaves_the_files_of_its_directory_as_they_were(tmp_path, monkeypatch):
    class Shell:
        def __init__(self):
            self.user_ns = {}

        def register_magic_function(self, magic, kind, name):
            self.magic = magic

    # Other tests read the files of their jobs.
    monkeypatch.delenv("TONNAGE_PASS_THROUGH")
    monkeypatch.chdir(tmp_path)
    best = tmp_path / "best.pt"
    best.write_bytes(b"weights of a week")
    before = best.stat()
    shell = Shell()
    tonnage.load_ipython_extension(shell)
    cell = """import os, torch
weights = torch.zeros(1 << 20, device="cuda")
torch.save(weights, "best.pt")
torch.save(weights, "last.pt")
assert torch.load("best.pt").shape == weights.shape
os.remove("last.pt")
"""
    shell.magic(f"--gpu t4 --name verdict -o {tmp_path / 'cell.tonnage'}", cell)
    assert shell.user_ns["verdict"].outcome == "fits"
    after = best.stat()
    assert best.read_bytes() == b"weights of a week"
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (before.st_mtime_ns, before.st_mode, before.st_ino)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "cell.tonnage"]


def test_reports_are_pages_that_fetch_nothing(verdict, tmp_path):
    report = verdict.recording.report(tmp_path / "page.html", compare_allocators=False)
    page = (tmp_path / "page.html").read_text()
    assert report.path == str(tmp_path / "page.html")
    assert page.startswith("<!doctype html>")
    assert "<iframe srcdoc=" in report._repr_html_()
    with pytest.raises(tonnage.Error, match="already exists"):
        verdict.recording.report(tmp_path / "page.html")


def test_a_notebook_shows_an_error_without_a_traceback():
    with pytest.raises(tonnage.Error) as raised:
        tonnage.dry_run(["train.py"], gpu="nope")
    shown = raised.value._render_traceback_()
    assert shown[0].startswith('error: no GPU in the catalogue is called "nope"\nhint: ')


def test_notebooks_get_pictures(verdict, short):
    shown = verdict._repr_html_()
    assert shown.count("<svg") == 1
    assert "optimizer state" in shown
    assert "all of the GPU but its context" in short.recording._repr_html_()
    assert "<script" not in shown
    assert "<table>" in verdict.recording.replay(smallest=False)._repr_html_()


def test_snapshots_are_read_from_files_and_from_memory(verdict, tmp_path):
    path = verdict.recording.export(tmp_path / "snapshot.pickle", format="snapshot")
    from_file = tonnage.load(path).explain()
    from_memory = tonnage.load(pickle.loads(path.read_bytes())).explain()
    assert from_file.allocated == from_memory.allocated == verdict.explain().allocated


def test_what_is_no_recording_says_what_to_do(tmp_path):
    with pytest.raises(tonnage.Error, match="is not there"):
        tonnage.load(tmp_path / "nothing")
    with pytest.raises(tonnage.Error, match="is a folder"):
        tonnage.load(tmp_path)
    (tmp_path / "prose").write_text("no recording")
    with pytest.raises(tonnage.Error, match="is not recognised") as caught:
        tonnage.load(tmp_path / "prose").info()
    assert caught.value.hint


def test_other_threads_go_on_during_long_questions(verdict):
    ticks = 0
    done = threading.Event()

    def tick():
        nonlocal ticks
        while not done.wait(0.005):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    verdict.recording.tune(progress=False)
    took = time.monotonic() - began
    done.set()
    thread.join()
    # A quarter of what an idle machine would do: enough to distinguish it from a thread that waits.
    assert ticks > took / 0.005 / 4 - 2


def test_options_are_given_by_name():
    for function in (tonnage.dry_run, tonnage.Recording.replay, tonnage.Recording.tune, tonnage.Recording.plan):
        options = [one for one in inspect.signature(function).parameters.values() if one.default is not one.empty]
        assert all(one.kind is one.KEYWORD_ONLY for one in options), function


def test_the_command_ends_with_its_codes(verdict, short, tmp_path):
    run_command("explain", verdict.recording.path)
    run_command("explain", short.recording.path, code=1)
    run_command("explain", tmp_path / "nothing", code=2)
    run_command("no-such-command", code=2)
    assert run_command("--version") == f"tonnage {tonnage.__version__}\n"


def test_fit_finds_the_largest_value_of_a_range(job):
    fit = tonnage.fit(["train.py", "{batch}"], gpu="rtx4090", capacity="4GiB", cwd=job, batch=range(1024, 16385, 1024))
    assert fit and fit.is_found and fit.to_dict()["rows"][0]["bound"] == "proved"
    assert 1024 <= fit.largest < 16384 and fit.command.endswith(f"train.py {fit.largest}")
    assert fit.picture.startswith("<svg") and fit.picture in fit._repr_html_()
    # A mark for each dry run, and what is kept free.
    assert fit.picture.count("</title>") == len(fit.to_dict()["rows"][0]["trials"]) + 1
    assert "largest of the range that does" in str(fit)
    with pytest.raises(tonnage.Error, match="one value"):
        tonnage.fit(["train.py", "{batch}"], cwd=job, batch="7")
    with pytest.raises(tonnage.Error, match="does not grow"):
        tonnage.fit(["train.py", "{batch}"], cwd=job, batch=range(9, 1))


@pytest.mark.parametrize("side_effects", [False, True])
def test_a_dry_run_changes_files_only_where_that_is_asked_for(tmp_path, monkeypatch, side_effects):
    monkeypatch.delenv("TONNAGE_PASS_THROUGH")
    (tmp_path / "best.txt").write_text("precious")
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.zeros(1, device='cuda')\nopen('best.txt', 'w').write('ruined')\n"
    )
    verdict = tonnage.dry_run(["train.py"], gpu="rtx4090", capture=True, cwd=tmp_path, side_effects=side_effects)
    assert verdict.fits
    assert (tmp_path / "best.txt").read_text() == ("ruined" if side_effects else "precious")
    assert (verdict.to_dict()["files"] is None) == side_effects
    fit = tonnage.fit(["train.py", "{n}"], gpu="rtx4090", n=[1, 2], cwd=tmp_path, side_effects=side_effects)
    assert fit
    assert (tmp_path / "best.txt").read_text() == ("ruined" if side_effects else "precious")
