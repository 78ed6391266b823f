# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pytest plugin: a session of pytest inside of this one, with tests that are planted to fail."""

import subprocess
import sys

import pytest
import tonnage

TESTS = """
import pytest
import torch


def train(width):
    model = torch.nn.Linear(width, width, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(64, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def width():
    assert torch.cuda.is_available()
    return 4096


@pytest.mark.tonnage(gpu="a100-40gb", peak_used="2 GiB", reserved="1 GiB")
def test_fits(width):
    train(width)


@pytest.mark.tonnage(gpu="a100-40gb", peak_used="512 MiB")
def test_over_budget(width):
    train(width)


@pytest.mark.tonnage(gpu="rtx4090", capacity="1GiB")
def test_does_not_fit():
    train(16384)


@pytest.mark.tonnage(gpu="rtx4090")
def test_fails():
    torch.zeros(3, device="cuda")
    assert "one" == "other"


@pytest.mark.tonnage(gpu="rtx4090")
def test_uses_no_gpu():
    pass


@pytest.mark.tonnage(gpu="rtx4090")
def test_skips():
    pytest.skip("not today")


@pytest.mark.tonnage(peak_used="1 GiB")
def test_without_a_name():
    pass


def test_without_a_mark():
    assert not torch.cuda.is_available()
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One session for all of the assertions below: each dry run takes seconds."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "test_planted.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tonnage-recordings", "kept"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_fits", "PASSED"),
        ("test_over_budget", "FAILED"),
        ("test_does_not_fit", "FAILED"),
        ("test_fails", "FAILED"),
        ("test_uses_no_gpu", "FAILED"),
        ("test_skips", "SKIPPED"),
        ("test_without_a_name", "FAILED"),
        ("test_without_a_mark", "PASSED"),
    ],
)
def test_each_planted_test_ends_as_it_should(session, name, outcome):
    assert f"test_planted.py::{name} {outcome}" in session[1]


def test_failures_explain_themselves(session):
    _, output = session
    assert "above the limit of 512.00 MiB" in output
    assert "the optimizer makes the peak (TN204)" in output
    assert "does not fit on NVIDIA GeForce RTX 4090 (1.00 GiB)" in output
    assert "more than the GPU has" in output
    assert "assert 'one' == 'other'" in output
    assert "the test did not use CUDA" in output
    assert "needs a GPU, by name" in output


def test_recordings_are_kept_where_asked(session):
    folder, _ = session
    kept = folder / "kept" / "test-planted.py-test-over-budget.tonnage"
    assert tonnage.load(kept).explain().used > 512 << 20


WRITES = """
import pytest
import torch


def write():
    torch.zeros(3, device="cuda")
    with open("best.txt", "w") as file:
        file.write("ruined")


@pytest.mark.tonnage(gpu="rtx4090")
def test_writes():
    write()


@pytest.mark.tonnage(gpu="rtx4090", side_effects=True)
def test_writes_for_real():
    write()
"""


@pytest.mark.parametrize(("name", "text"), [("test_writes", "precious"), ("test_writes_for_real", "ruined")])
def test_a_marked_test_changes_files_only_where_that_is_asked_for(tmp_path, monkeypatch, name, text):
    monkeypatch.delenv("TONNAGE_PASS_THROUGH")
    (tmp_path / "test_planted.py").write_text(WRITES)
    (tmp_path / "best.txt").write_text("precious")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"test_planted.py::{name}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "best.txt").read_text() == text
