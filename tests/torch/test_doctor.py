# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage doctor` reports what it found, and a remedy for each problem."""

import json
import subprocess
import sys

import pytest
from conftest import PYTHON, TONNAGE, environment

# Takes a name of a module of torch away between its import and the hook.
WITHOUT_NAME = """
import importlib.abc, importlib.machinery, sys


class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        delattr(module, NAME)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
"""


def doctor(*options, **variables):
    return subprocess.run(
        [TONNAGE, "doctor", *options], capture_output=True, text=True, timeout=300, env=environment(**variables)
    )


@pytest.fixture
def bare_python(tmp_path):
    """An interpreter without torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    return tmp_path / "bare" / "bin" / "python"


def about(python, expression):
    done = subprocess.run([python, "-c", f"import sys, torch; print({expression})"], capture_output=True, text=True)
    return done.stdout.strip()


def test_a_working_environment():
    done = doctor("--json", "--python", PYTHON)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["healthy"] and found["problems"] == []
    assert found["found"]["torch"] == about(PYTHON, "torch.__version__")
    assert found["found"]["cuda"] == about(PYTHON, "torch.version.cuda")
    assert found["found"]["python"] == about(PYTHON, "sys.version.split()[0]")
    assert {check["code"]: check["passed"] for check in found["handshake"]} == dict.fromkeys(
        ("TN301", "TN302", "TN303"), True
    )
    replaced = {one["name"] for one in found["found"]["libraries"] if one["replaced"]}
    assert {"CUDA driver", "CUDA runtime", "cuBLAS", "NVML"} <= replaced
    text = doctor("--python", PYTHON)
    assert text.returncode == 0
    assert text.stdout.startswith("everything works: torch ")


def test_an_environment_without_torch(bare_python):
    done = doctor("--python", str(bare_python))
    assert done.returncode == 1, done.stdout + done.stderr
    first, problem, remedy = done.stdout.splitlines()[:3]
    assert first == "1 problem"
    assert "has no torch" in problem
    assert "install torch" in remedy
    # Nothing that did not run has a result.
    assert done.stdout.count("not checked") == 3
    assert "not modelled" not in done.stdout


@pytest.mark.parametrize(
    ("module", "name", "passed"),
    [("torch.cuda.memory", "_snapshot", [True, True, True]), ("torch.cuda", "_lazy_call", [None, None, None])],
)
def test_a_torch_that_lacks_a_name(tmp_path, module, name, passed):
    changed = f"MODULE, NAME = {module!r}, {name!r}\n" + WITHOUT_NAME
    (tmp_path / "sitecustomize.py").write_text(changed)
    done = doctor("--json", "--python", PYTHON, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert not found["healthy"]
    (problem,) = (one for one in found["problems"] if f"has no {module}:{name}" in one["message"])
    assert problem["remedy"]
    assert [check["passed"] for check in found["handshake"]] == passed


def test_a_torch_that_cannot_be_imported(tmp_path, bare_python):
    package = next((bare_python.parents[1] / "lib").glob("python*")) / "site-packages" / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libfoo.so: cannot open shared object file')\n")
    done = doctor("--python", str(bare_python))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "everything works" not in done.stdout
    first, problem, remedy = done.stdout.splitlines()[:3]
    assert first == "1 problem"
    assert "ImportError: libfoo.so" in problem or "incomplete" in problem
    assert remedy.strip().startswith("remedy")


def test_a_python_that_does_not_start():
    done = doctor("--python", PYTHON, PYTHONHOME="/nonexistent")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "does not work" in done.stdout
    assert "has no torch" not in done.stdout


def test_every_error_before_the_script_starts_names_the_command(tmp_path, bare_python):
    script = tmp_path / "script.py"
    script.write_text("import torch\n")
    done = subprocess.run(
        [TONNAGE, "run", "--", str(bare_python), str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "tonnage doctor" in done.stderr
    assert not list(tmp_path.glob("*.tonnage"))
