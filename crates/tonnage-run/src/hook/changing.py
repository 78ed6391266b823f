# SPDX-License-Identifier: MIT OR Apache-2.0
"""Changes to the program that are made inside the running process; no file is touched.

Each change is one file of the folder `changes`: a class `Change` whose base is
here. It is installed when torch has been imported, changes what it finds, and
says at the end what it did, where, and which lines do the same by hand. Where
it does not apply, the program goes on as it is and the note says why.

A function of torch that a change replaces keeps its file and its line, so a
traceback of the script shows torch and nothing else. No tensor is ever kept.
"""

import ast
import functools
import gc
import linecache
import os
import sys
import sysconfig
import weakref

# How many models are looked at: a program that makes them without end has another trouble.
_MOST_MODELS = 64

_REPLACEMENT = """
def make(before):
    def NAME(*args, **kwargs):
        call, args, kwargs = before(args, kwargs)
        return call(*args, **kwargs)
    return NAME
"""


def replace(owner, name, before):
    """Calls `before` with the arguments of a function of Python; it returns what is called instead, with which."""
    old = getattr(owner, name)
    code = getattr(old, "__code__", None)
    tree = ast.parse(_REPLACEMENT.replace("NAME", getattr(old, "__name__", name)))
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = code.co_firstlineno if code else 1
            node.col_offset, node.end_col_offset = 0, 1
    scope = {}
    exec(compile(tree, code.co_filename if code else "<torch>", "exec"), scope)
    new = functools.update_wrapper(scope["make"](lambda args, kwargs: before(old, args, kwargs)), old)
    setattr(owner, name, new)
    return old


def _is_users(name):
    """Whether a file is the user's own: not Python's, not that of an installed package."""
    if name.startswith("<") or f"{os.sep}site-packages{os.sep}" in name or f"{os.sep}dist-packages{os.sep}" in name:
        return False
    return not name.startswith(tuple(_libraries()))


@functools.lru_cache(1)
def _libraries():
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib"))


def users_frame():
    """The innermost frame of the user's own code; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place(frame):
    """`train.py:41`, named from the folder the job runs in."""
    name = frame.f_code.co_filename
    near = os.path.relpath(name) if os.path.isabs(name) else name
    return f"{os.path.basename(name) if near.startswith('..') else near}:{frame.f_lineno}"


def _call_of(frame, name):
    """The call of `name` that a frame is in the midst of, as syntax, with the text; None where that is not certain."""
    text = "".join(linecache.getlines(frame.f_code.co_filename))
    if not text:
        return None
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None:
        here = list(positions())[frame.f_lasti // 2]
        found = [node for node in calls if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == here]
    else:
        found = [node for node in calls if node.lineno <= frame.f_lineno <= node.end_lineno]
    named = [node for node in found if getattr(node.func, "attr", getattr(node.func, "id", None)) == name]
    return (tree, named[0], text) if len(named) == 1 else None


def edit_of_call(frame, name, keyword, value):
    """The edit that gives a call of the script a keyword; None where it is not certain that it does just that."""
    if frame is None:
        return None
    try:
        found = _call_of(frame, name)
        if found is None:
            return None
        tree, call, text = found
        lines = text.splitlines(keepends=True)
        if any(one.arg is None for one in call.keywords):
            return None
        given = [one for one in call.keywords if one.arg == keyword]
        arguments = [*call.args, *(one.value for one in call.keywords)]
        if given:
            node = given[0].value
            if node.lineno != node.end_lineno:
                return None
            number, start, end, new = node.lineno, node.col_offset, node.end_col_offset, value
            given[0].value = ast.parse(value, mode="eval").body
        elif arguments:
            node = max(arguments, key=lambda one: (one.end_lineno, one.end_col_offset))
            number, start, end, new = (
                node.end_lineno,
                node.end_col_offset,
                node.end_col_offset,
                f", {keyword}={value}",
            )
            call.keywords.append(ast.keyword(keyword, ast.parse(value, mode="eval").body))
        else:
            return None
        line = lines[number - 1].encode()
        changed = (line[:start] + new.encode() + line[end:]).decode()
        lines_after = [*lines[: number - 1], changed, *lines[number:]]
        # Certain only if the text now means just what was meant.
        if ast.dump(ast.parse("".join(lines_after))) != ast.dump(tree):
            return None
        return {
            "file": os.path.abspath(frame.f_code.co_filename),
            "line": number,
            "old": lines[number - 1].rstrip("\n"),
            "new": changed.rstrip("\n"),
        }
    except Exception:
        return None


def name_of(thing, fallback):
    """What a global variable of the script calls it."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            for name, value in list(frame.f_globals.items()):
                if value is thing and not name.startswith("_"):
                    return name
        frame = frame.f_back
    return fallback


class Base:
    """What every change has: `install` is called once, `finish` at the end."""

    # What is said where nothing was found to change.
    nothing = "nothing in the program was found that it could change"

    def __init__(self, torch, note):
        self.torch = torch
        self._note = note
        self.done = False
        self.already = False
        self.why = None
        self.where = []
        self.lines = []
        self.edits = []
        # Models that were looked at, by identity; a model that is gone makes no difference.
        self.seen = weakref.WeakSet()

    def install(self):
        """Called when torch has been imported."""

    def before_pass(self, module):
        """A model is called, not from inside another one."""

    def after_pass(self, module):
        """That call ends, also by an exception."""

    def finish(self):
        return {
            "applied": self.done,
            "already": self.already and not self.done,
            "why": None if self.done else self.why or self.nothing,
            "where": self.where,
            "lines": self.lines,
            "edits": self.edits,
        }

    def tell(self):
        """Now and not only at the end, which a process that is killed does not reach."""
        self._note(self.finish())

    def applied(self, lines, frame=None, edit=None, where=None):
        """The change was made here; by hand it is these lines."""
        frame = frame or users_frame()
        spot = where or (place(frame) if frame is not None else None)
        if spot is not None and spot not in self.where and len(self.where) < 16:
            self.where.append(spot)
        for line in lines:
            if line not in self.lines:
                self.lines.append(line)
        if edit is not None and edit not in self.edits:
            self.edits.append(edit)
        self.done = True
        self.tell()

    def refused(self, why, already=False):
        """It does not apply, for this reason; the first reason is told."""
        self.why = self.why or why
        self.already = self.already or already

    def is_model(self, module):
        """Whether a module that is called has something to train; a loss function has not."""
        return any(one.requires_grad for one in module.parameters())

    def is_new(self, module):
        """Whether a model is met for the first time, and there are not too many."""
        if module in self.seen or len(self.seen) >= _MOST_MODELS:
            return False
        self.seen.add(module)
        return True

    def whole(self, module):
        """The models that a module is part of: a program may call the parts of a model one by one."""
        holders, inside = [], set()
        for thing in gc.get_objects():
            kind = type(thing)
            if issubclass(kind, self.torch.nn.Module) and "_modules" in vars(thing):
                holders.append(thing)
                inside.update(map(id, thing.children()))
        tops = [one for one in holders if id(one) not in inside]
        del holders
        return [one for one in tops if any(part is module for part in one.modules())] or [module]


class Changes:
    """The changes that were asked for, in their order."""

    def __init__(self, torch, names, load, note):
        self.changes = []
        for name in names:
            tell = functools.partial(self._tell, note, name)
            try:
                scope = load(f"changes{os.sep}{name}", TOOLS)
                change = scope["Change"](torch, tell)
                change.install()
                self.changes.append((tell, change))
            except Exception as error:
                # The program goes on as it is, and the verdict says so.
                tell({"applied": False, "why": f"it failed: {type(error).__name__}: {error}"})

    @staticmethod
    def _tell(note, name, facts):
        note(change={"name": name, **facts})

    def before_pass(self, module):
        for _, change in self.changes:
            self._call(change, change.before_pass, module)

    def after_pass(self, module):
        # The last one that began ends first.
        for _, change in reversed(self.changes):
            self._call(change, change.after_pass, module)

    def _call(self, change, function, module):
        try:
            function(module)
        except Exception as error:
            change.refused(f"it failed: {type(error).__name__}: {error}")

    def finish(self):
        for tell, change in self.changes:
            try:
                tell(change.finish())
            except Exception as error:
                tell({"applied": False, "why": f"it failed: {type(error).__name__}: {error}"})
        self.changes = []


# What the files of changes are given.
TOOLS = {name: globals()[name] for name in ("Base", "replace", "users_frame", "place", "edit_of_call", "name_of")}
