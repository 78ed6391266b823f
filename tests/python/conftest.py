# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tests of the Python package: the installed wheel with the real torch, one recording for many of them."""

import os
import tempfile
import textwrap

import pytest
import tonnage

#: The GPU of tests that do not name one.
os.environ.setdefault("TONNAGE_GPU", "h100-80gb")

pytest_plugins = ["pytester"]

# Tests read what their jobs write.
os.environ["TONNAGE_PASS_THROUGH"] = tempfile.gettempdir()

TRAIN = textwrap.dedent(
    """
    import sys
    import torch
    from torch import nn

    width = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        model(torch.randn(64, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", width)
    """
)


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """A folder with a script that trains."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="session")
def verdict(job):
    return tonnage.dry_run(["train.py"], gpu="a100-40gb", output=job / "train.tonnage", capture=True, cwd=job)


@pytest.fixture(scope="session")
def short(job):
    """The same where it does not fit."""
    return tonnage.dry_run(["train.py", "16384"], gpu="rtx4090", capacity="4GiB", capture=True, cwd=job)
