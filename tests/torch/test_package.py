# SPDX-License-Identifier: MIT OR Apache-2.0
"""The package of the hook: how its modules are imported, and what they import."""

import ast
import os
import shutil
import subprocess
import sys

import pytest
from conftest import HOOK

PACKAGE = HOOK / "tonnage_hook"
FILES = sorted(PACKAGE.rglob("*.py"))
SCRIPT = """
import pkgutil, sys

scope = {"__name__": "loader"}
exec(open("tonnage_hook/loader.py").read(), scope)
scope["install"](".")
sys.path[:] = [path for path in sys.path if path not in ("", sys.argv[1])]
import tonnage_hook
from tonnage_hook.libraries import is_library

module = sys.modules["tonnage_hook.libraries"]
assert is_library.__code__.co_filename == "<tonnage>"
assert not hasattr(module, "__file__") and list(tonnage_hook.__path__) == []
assert "tonnage_hook" not in [found.name for found in pkgutil.iter_modules()]
try:
    import tonnage_hook.absent
except ModuleNotFoundError as error:
    print(error.name, is_library(sys.argv[1]))
"""


@pytest.fixture
def run(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tonnage_hook")
    (tmp_path / "script.py").write_text(SCRIPT)

    def run():
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        line = [sys.executable, "script.py", str(tmp_path)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=variables, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_modules_are_hidden_and_compiled_once(run, tmp_path):
    assert run() == "tonnage_hook.absent False\n"
    (kept,) = tmp_path.glob("tonnage_hook/libraries.py.*")
    # The file that the next process reads.
    (tmp_path / "tonnage_hook" / "libraries.py").write_text("is_library = None\n")
    assert run() == "tonnage_hook.absent False\n"
    kept.write_bytes(b"")
    shutil.copy(PACKAGE / "libraries.py", tmp_path / "tonnage_hook")
    assert run() == "tonnage_hook.absent False\n"
    assert kept.stat().st_size > 0


def imports(tree):
    """The names that a file imports from the package, with the module of each, and whether it is imported at once."""
    first = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tonnage_hook":
            for alias in node.names:
                yield node.module, alias.name, id(node) in first
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.partition(".")[0] != "tonnage_hook", ast.unparse(node)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_names_and_no_framework_at_once(file):
    is_shared = file.parent == PACKAGE
    for module, name, at_once in imports(ast.parse(file.read_text())):
        # Python empties a module that another one refers to, before it frees what calls its functions.
        path = HOOK.joinpath(*module.split("."), name)
        assert not path.is_dir() and not path.with_suffix(".py").exists(), f"{module}.{name} is a module"
        assert not (is_shared and at_once and module.startswith("tonnage_hook.torch")), module
