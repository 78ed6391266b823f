# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hook reports each exception that it keeps from the script."""

import ast

import pytest
from conftest import HOOK, PYTHON

FILES = sorted(HOOK.rglob("*.py"))

#: Broad handlers that count nothing, and the reason.
COUNTED_ELSEWHERE = {
    ("compilers.py", "Compilers._change_kernels"): "a candidate that does not compile; the last one raises",
    ("compilers.py", "Compilers._load_or_do_nothing"): "the note `undone_modules` names the module",
    ("failures.py", "Failures._write"): "the log cannot be written",
    ("failures.py", "_describe"): "the message of the exception becomes this one",
    ("fork_server.py", "_Server._prepare"): "each variant imports the module again, and raises",
    ("offline.py", "Offline._change"): "the note `unprotected` names the library",
    ("trackers.py", "Trackers._hub_repository"): "without the owner the name stays as the script gave it",
    ("recorder.py", "Recorder._between_two_steps"): "raised again in the main thread",
}


def is_broad(kind):
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return kind is None or any(getattr(one, "id", None) in ("Exception", "BaseException") for one in kinds)


def broad_handlers(tree):
    """Each broad `except`, with its class and its outermost function."""

    def visit(node, names):
        if isinstance(node, ast.ClassDef) and not any(kind == "function" for kind, _ in names):
            names = [*names, ("class", node.name)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not any(
            one[0] == "function" for one in names
        ):
            names = [*names, ("function", node.name)]
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
            yield ".".join(name for _, name in names), node
        for child in ast.iter_child_nodes(node):
            yield from visit(child, names)

    return list(visit(tree, []))


def counted(handler):
    """The function that a handler counts the exception for; None if it counts nothing."""
    for node in ast.walk(handler):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", None)) == "swallow":
            name = node.args[0]
            return name.value if isinstance(name, ast.Constant) else ast.unparse(name)
    return None


def raises(handler):
    return isinstance(handler.body[-1], ast.Raise)


def suppressions(tree):
    """Calls of `contextlib.suppress` with a broad exception."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    named = (call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", None)) == "suppress")
    return [call.lineno for call in named if any(is_broad(one) for one in call.args)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(HOOK)))
def test_no_broad_handler_is_silent(file):
    tree = ast.parse(file.read_text())
    assert not suppressions(tree)
    for function, handler in broad_handlers(tree):
        if raises(handler) or (file.name, function) in COUNTED_ELSEWHERE:
            continue
        # `harmless` counts for the function that it wraps.
        expected = "name" if (file.name, function) == ("failures.py", "Failures.harmless") else function
        assert counted(handler) == expected, f"{file.name}:{handler.lineno}: an exception is swallowed and not counted"


def test_every_exemption_is_needed():
    silent = {
        (file.name, function)
        for file in FILES
        for function, handler in broad_handlers(ast.parse(file.read_text()))
        if not raises(handler) and counted(handler) is None
    }
    assert silent == set(COUNTED_ELSEWHERE)


FAILING = """
import os, sys
import torch

model = torch.nn.Linear(4, 4, device="cuda")
# The handshake comes before the first call.
model(torch.ones(4, device="cuda"))
del torch._C._len_torch_dispatch_stack
for _ in range(5):
    model(torch.ones(4, device="cuda"))
print("the script goes on")
if "killed" in sys.argv:
    os.kill(os.getpid(), 9)
"""
MESSAGE = "module 'torch._C' has no attribute '_len_torch_dispatch_stack'"


def test_the_verdict_counts_failures_of_the_hook(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FAILING)
    run = tonnage(None, command=[PYTHON, str(script)], hook_may_fail=True)
    assert run.code == 0, run.err
    assert "the script goes on" in run.err
    failures = run.verdict["hook_failures"]
    assert failures[0] == {"function": "Owners._enter", "count": 5, "error": "AttributeError", "message": MESSAGE}
    text = tonnage(None, command=[PYTHON, str(script)], json=False)
    lines = [line.split(maxsplit=1)[1] for line in text.out.splitlines() if line.split()[:1] == ["hook"]]
    assert len(lines) == 1
    assert lines[0].endswith(f"(first: Owners._enter: AttributeError: {MESSAGE})")


def test_failures_of_a_killed_process_are_reported(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FAILING)
    run = tonnage(None, command=[PYTHON, str(script), "killed"], hook_may_fail=True)
    counts = {one["function"]: one["count"] for one in run.verdict["hook_failures"]}
    # Counts are written at powers of two.
    assert counts["Owners._enter"] == 4
