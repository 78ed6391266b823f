# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks a wheel: its size, its name, what is in it, and which symbols it brings into a Python process."""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BUDGET = 15 << 20
MODULE = "tonnage/_tonnage.abi3.so"
NEEDED = [
    MODULE,
    "tonnage/__init__.py",
    "tonnage/_tonnage.pyi",
    "tonnage/py.typed",
    "tonnage/pytest_plugin.py",
    "tonnage/torch.py",
    "tonnage/examples/oom.tonnage",
    "tonnage/examples/train.tonnage",
]


def main(path: Path) -> int:
    faults = []
    version = re.search(r'^version = "(.*)"$', Path("Cargo.toml").read_text(), re.MULTILINE)[1]
    name = re.fullmatch(r"tonnage-(.*)-cp310-abi3-(manylinux_(\d+)_(\d+))_x86_64\.whl", path.name)
    if name is None or name[1] != version:
        faults.append(f"the name is not that of an abi3 wheel of {version} for manylinux")
    size = path.stat().st_size
    if size > BUDGET:
        faults.append(f"{size} bytes are above the budget of {BUDGET}")
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        files = wheel.namelist()
        faults += [f"{needed} is missing" for needed in NEEDED if needed not in files]
        strays = [file for file in files if "__pycache__" in file or file.endswith(".rs")]
        faults += [f"{file} is no business of a wheel" for file in strays]
        if not any(file.endswith("licenses/LICENSE-MIT") for file in files):
            faults.append("the licence is missing")
        if not any(file.endswith("licenses/LICENSE-THIRD-PARTY") for file in files):
            faults.append("the licenses of the crates in it are missing; run .ci/licenses.py before the build")
        libraries = [file for file in files if file.endswith(".so")]
        if libraries != [MODULE]:
            faults.append(f"one shared object was expected, not {libraries}")
        wheel.extract(MODULE, folder)
        symbols = exported(Path(folder) / MODULE)
    # A module that brought CUDA's names along would stand before the real libraries of the process.
    expected = sorted(["PyInit__tonnage", *allocator()])
    if symbols != expected:
        faults.append(f"the module exports {sorted(set(symbols) ^ set(expected))[:5]} too much or too little")
    for fault in faults:
        print(f"{path.name}: {fault}", file=sys.stderr)
    platform = f"glibc {name[3]}.{name[4]} or later" if name else "?"
    print(f"{path.name}: {size / 2**20:.2f} MiB of {BUDGET >> 20} MiB, {len(files)} files, {platform}")
    return 1 if faults else 0


def allocator() -> list[str]:
    """The functions that PyTorch calls of a plugged allocator."""
    source = Path("crates/tonnage-torch/src/exports.rs").read_text()
    return re.findall(r'^pub (?:unsafe )?extern "C(?:-unwind)?" fn (tonnage_\w+)', source, re.MULTILINE)


def exported(library: Path) -> list[str]:
    """The functions and variables that a library offers to a process."""
    table = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[-1] for line in table.splitlines())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
