# SPDX-License-Identifier: MIT OR Apache-2.0
"""Installs a wheel into an empty environment, uses it as a newcomer would, and takes it out again.

    python3 .ci/installed.py VENV WHEEL

Nothing but the wheel is installed: no torch, no pyarrow, no network. Nothing may be left when it is gone.
"""

import subprocess
import sys
from pathlib import Path

#: Runs in the environment.
SESSION = """
import sys
import tonnage
from tonnage import examples

recording = tonnage.load(examples.path("oom"))
explained = recording.explain()
assert explained.outcome == "out_of_memory" and explained.fixes, explained
assert "<svg" in recording._repr_html_()
assert recording.replay(smallest=False).allocators
try:
    recording.to_arrow()
except ImportError as error:
    assert "tonnage[arrow]" in str(error)
else:
    raise AssertionError("pyarrow is not here")
try:
    # A script that exists, because a missing one is another error.
    tonnage.dry_run([examples.__file__], gpu="rtx4090")
except tonnage.Error as error:
    assert "has no torch" in error.message, error
else:
    raise AssertionError("torch is not here")
print("Python", sys.version.split()[0], "tonnage", tonnage.__version__, repr(explained))
"""


def main(venv: Path, wheel: Path) -> int:
    python = venv / "bin" / "python"

    def run(*words: object, code: int = 0) -> str:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode != code:
            print(done.stdout, done.stderr, file=sys.stderr)
            raise SystemExit(f"{words} ended with {done.returncode}")
        return done.stdout

    before = files(venv)
    run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
    assert run(venv / "bin" / "tonnage", "--version").startswith("tonnage ")
    assert "a100-40gb" in run(python, "-m", "tonnage", "gpus")
    run(venv / "bin" / "tonnage", "explain", "nothing", code=2)
    print(run(python, "-c", SESSION), end="")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "tonnage")
    left = files(venv) - before
    if left:
        print(f"left behind: {sorted(left)[:5]}", file=sys.stderr)
    return 1 if left else 0


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "pip" not in path.parts and path.suffix != ".pyc"}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
