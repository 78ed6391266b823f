# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hook names every private name that it uses, and reports each that is missing."""

import ast
import json
import os
import re
import subprocess

import pytest
from conftest import HOOK, PYTHON, environment
from tonnage_hook.needs import NEEDS, PARTS

#: Private by their spelling, documented by Python.
DOCUMENTED = {"_getframe", "_current_frames", "_exit", "_replace"}
#: Names of the hook's own classes, and modules on the way to a name of the table.
OWN = {"_look_up", "_state", "_view", "_tonnage", "_tonnage_chosen_for", "_tonnage_host", "_write_values"}
#: Names that the hook reads only where they exist, and what it does without them.
WITHOUT_LOSS = {
    "_attn_implementation": "the change is refused with a reason",
    "_create_internal": "FakeProcessGroup has a constructor instead",
    "_forward_cls": "the cycle of a function in Python is named without its line",
    "_is_in_bad_fork": "assigned, never read",
    "_real_url": "assigned: a suppressed request of aiohttp shows an address of this machine without it",
    "_url": "assigned, as _real_url",
    "_lazy_initialize_dsl": "older releases of CuTe prepare a function instead",
    "_saved_sparse": "an attribute that autograd's nodes of embeddings have had since torch 1",
}


def private_names(tree):
    """Private names that a file reads from other objects than its own, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "this")
            names = [] if own else [node.attr]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("getattr", "hasattr", "setattr"):
            names = [node.args[1].value] if isinstance(node.args[1], ast.Constant) else []
        elif isinstance(node, ast.ImportFrom):
            names = [part for part in (node.module or "").split(".")] + [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"torch(\.\w+)+", node.value)
        ):
            names = node.value.split(".")
        else:
            continue
        for name in names:
            if name.startswith("_") and not name.startswith("__"):
                yield name, node.lineno


def test_every_private_name_is_in_the_table():
    listed = set(re.findall(r"\w+", " ".join(name for _, name, _ in NEEDS)))
    # Where the search of holders does not go, and modules that are watched and changed by public names.
    not_names = {"_dynamo", "_inductor", "_internal"}
    known = listed | DOCUMENTED | OWN | not_names | set(WITHOUT_LOSS)
    unknown = [
        f"{file.relative_to(HOOK)}:{line}: {name}"
        for file in sorted(HOOK.rglob("*.py"))
        if file.name != "needs.py"
        for name, line in private_names(ast.parse(file.read_text()))
        if name not in known
    ]
    assert not unknown, unknown


def test_every_name_of_the_table_is_used():
    text = "".join(file.read_text() for file in HOOK.rglob("*.py") if file.name != "needs.py")
    unused = [one for _, name, _ in NEEDS for one in name.split("|") if re.split(r"[.:>]", one.strip())[-1] not in text]
    assert not unused, unused


def test_codes_are_unique():
    codes = [part.code for part in PARTS.values()]
    assert len(set(codes)) == len(codes)
    assert {part for part, _, _ in NEEDS} == set(PARTS)


# Deletes each name, with its alternatives, before the hook looks; one process for all.
DELETED = r"""
import importlib, json, sys, types

sys.path.append(sys.argv[1])
from tonnage_hook.needs import NEEDS, Needs, modules_of


def owner_of(path, module):
    thing = sys.modules[module]
    *way, last = path.split(".")
    for part in way:
        thing = getattr(thing, part)
    return thing, last


def import_or_fake(module):
    try:
        importlib.import_module(module)
    except ImportError:
        assert not module.startswith("torch"), module
        # A package that is not installed here: a module that has the names of the table.
        fake = sys.modules[module] = types.ModuleType(module)
        for _, name, _ in NEEDS:
            for one in name.split("|"):
                where, _, path = one.strip().partition(":")
                thing = fake
                for part in path.split(".") if where == module else ():
                    if not hasattr(thing, part):
                        setattr(thing, part, type(part, (), {}))
                    thing = getattr(thing, part)


def delete(name):
    undo = []
    for one in name.split("|"):
        module, _, path = one.strip().partition(":")
        path, _, attribute = path.partition(">")
        try:
            owner, last = owner_of(path, module)
        except AttributeError:
            continue
        if not hasattr(owner, last):
            continue
        if isinstance(owner, type) and last not in vars(owner):
            # The class inherits it, maybe from C: another class takes its place.
            owner, last = owner_of(path.rpartition(".")[0], module)
            undo.append((owner, last, getattr(owner, last)))
            setattr(owner, last, type(last, (), {}))
            continue
        old = vars(owner)[last] if isinstance(owner, type) else getattr(owner, last)
        if attribute:
            setattr(owner, last, lambda *_, **__: None)
        else:
            delattr(owner, last)
        undo.append((owner, last, old))
    return undo


results = []
for part, name, _ in NEEDS:
    for module in modules_of(name):
        import_or_fake(module)
    written = []
    undo = delete(name)
    needs = Needs(lambda *limitation: written.append(limitation))
    try:
        needs.want(part)
    finally:
        for owner, last, old in reversed(undo):
            setattr(owner, last, old)
    before = []
    Needs(lambda *limitation: before.append(limitation)).want(part)
    off = not needs.has(part)
    results.append({"name": name, "deleted": len(undo), "written": written, "before": before, "off": off})
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def deleted(tmp_path_factory):
    script = tmp_path_factory.mktemp("needs") / "script.py"
    script.write_text(DELETED)
    done = subprocess.run(
        [PYTHON, str(script), str(HOOK)], capture_output=True, text=True, timeout=300, env=environment()
    )
    assert done.returncode == 0, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, name, _ in NEEDS], ids=lambda one: one)
def test_a_missing_name_is_a_limitation(deleted, part, name):
    result = deleted[name]
    assert result["deleted"], "the name is not there to delete"
    assert result["off"]
    about = PARTS[part]
    mine = [one for one in result["written"] if one[1].endswith(f"has no {name}")]
    assert [one[0] for one in mine] == [about.code]
    assert mine[0][1].startswith(about.lost)
    assert not any(one[1].endswith(f"has no {name}") for one in result["before"]), "it is reported although it is there"


# The names of modules that `import torch` imports, each deleted in a fork between the import and the hook.
FORKED = r"""
import importlib, importlib.abc, importlib.machinery, os, sys


class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        for name in os.environ["DELETED_NAMES"].split(";"):
            child = os.fork()
            if child == 0:
                delete(name)
                os.environ["DELETED"] = name
                return
            assert os.waitpid(child, 0)[1] == 0, name
        os.environ["DELETED"] = ""


def delete(name):
    # Before anything is deleted, because a module may need a name of another.
    for one in name.split("|"):
        importlib.import_module(one.strip().partition(":")[0])
    for one in name.split("|"):
        module, _, path = one.strip().partition(":")
        thing = sys.modules[module]
        *way, last = path.split(".")
        try:
            for part in way:
                thing = getattr(thing, part)
            delattr(thing, last)
        except AttributeError:
            pass


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(spec.loader)
        return spec


if "DELETED_NAMES" in os.environ:
    sys.meta_path.append(Finder())
    # Before Python's own finder of files.
    sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), sys.meta_path.pop())
"""
SCRIPT = """
import os, traceback

import torch

try:
    x = torch.ones(4, device="cuda")
    torch.nn.Linear(4, 4, device="cuda")(x).sum().backward()
except Exception as error:
    # torch itself may need the name; the hook must not be where it is missed.
    frames = traceback.extract_tb(error.__traceback__)
    assert not any(frame.filename == "<tonnage>" for frame in frames), traceback.format_exc()
"""
# Their classes inherit these names from C, so that no class has them to delete.
OF_C = {f"torch:Tensor.{name}" for name in ("_grad", "_indices", "_values", "_neg_view")} | {
    "torch:UntypedStorage._share_cuda_"
}
IN_SCRIPT = ("start", "history", "owners", "holders", "values", "handshake")
OF_TORCH = {
    name: part
    for part, name, _ in NEEDS
    if part in IN_SCRIPT and ">" not in name and name.startswith("torch") and name not in OF_C
}
if os.environ.get("TORCH_TESTS") != "all":
    # The first and the last name of each part.
    FIRST = {part: name for name, part in reversed(OF_TORCH.items())}
    LAST = {part: name for name, part in OF_TORCH.items()}
    OF_TORCH = {name: part for name, part in OF_TORCH.items() if name in (FIRST[part], LAST[part])}


def test_the_job_goes_on_and_the_verdict_reports_each_name(tonnage, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FORKED)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = tonnage(
        None,
        command=[PYTHON, str(script)],
        hook_may_fail=True,
        PYTHONPATH=str(tmp_path / "site"),
        DELETED_NAMES=";".join(OF_TORCH),
    )
    assert run.code == 0, run.err
    messages = [one["message"] for one in run.verdict["limitations"]]
    unreported = [name for name in OF_TORCH if not any(message.endswith(f"has no {name}") for message in messages)]
    assert not unreported, unreported


WITHOUT_FRACTION = """
import importlib.abc, importlib.machinery, sys


class Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self.inner = inner

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        del module._C._cuda_setMemoryFraction


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = Loader(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
"""


def test_a_name_that_only_the_run_without_a_limit_needs_is_reported(tonnage, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_FRACTION)
    script = tmp_path / "script.py"
    script.write_text("import torch\n\nx = torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\n")
    run = tonnage(
        None,
        command=[PYTHON, str(script)],
        options=["--capacity", "2GiB"],
        hook_may_fail=True,
        PYTHONPATH=str(tmp_path / "site"),
    )
    assert run.code == 1, run.err
    (limitation,) = (one for one in run.verdict["limitations"] if one["code"] == "TN320")
    assert any(limitation["message"] in sentence for sentence in run.verdict["unknown"])
