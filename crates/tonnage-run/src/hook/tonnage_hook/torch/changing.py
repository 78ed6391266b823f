# SPDX-License-Identifier: MIT OR Apache-2.0
"""Changes to the program that are made inside the running process; no file is touched.

Each change is one file of the folder `changes`: a class `Change` whose base is
here. It is installed when torch has been imported, changes what it finds, and
reports at the end what it did, where, and which lines do the same by hand. Where
it does not apply, the program goes on as it is and the note has the reason.

A function of torch that a change replaces keeps its file and its line, so a
traceback of the script shows torch and nothing else. No tensor is ever kept.
"""

import ast
import functools
import gc
import importlib
import inspect
import linecache
import os
import sys
import types
import weakref

from tonnage_hook.failures import swallow
from tonnage_hook.libraries import is_library

# How many models are looked at: a program that makes them without end has another trouble.
_MOST_MODELS = 64

# A function that takes the place of one of torch. `before` gives what is called, with which arguments, and what is
# done with the result.
_REPLACEMENT = """
def make(before):
    def NAME(*args, **kwargs):
        call, args, kwargs, after = before(args, kwargs)
        result = call(*args, **kwargs)
        return result if after is None else after(result)
    return NAME
"""


def _replacement(old, before):
    """A function with the name, the file and the line of `old`, so that tracebacks look as they do without us."""
    code = getattr(old, "__code__", None)
    tree = ast.parse(_REPLACEMENT.replace("NAME", old.__name__))
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = code.co_firstlineno if code else 1
            node.col_offset, node.end_col_offset = 0, 1
    scope = {}
    exec(compile(tree, code.co_filename if code else "<torch>", "exec"), scope)
    return functools.update_wrapper(scope["make"](before), old)


def _is_users(name):
    """Whether a file is the user's own: not Python's, not that of an installed package."""
    return not name.startswith("<") and not is_library(name)


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
    except (SyntaxError, ValueError, IndexError):
        return None  # the text is not that of the code that runs
    except Exception as error:
        swallow("edit_of_call", error)
        return None


def edit_of_class(frame, name, new, package, keywords):
    """The edit that makes a call of the script one of another class; None where it is not certain what it means."""
    if frame is None:
        return None
    try:
        found = _call_of(frame, name)
        if found is None:
            return None
        tree, call, text = found
        lines = text.splitlines(keepends=True)
        # The line on which the statement begins, which the import comes before.
        first = [one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno == call.func.lineno]
        keyed = all(one.arg in keywords for one in call.keywords)
        if not first or not keyed or len(call.args) > 1 or call.func.lineno != call.func.end_lineno:
            return None
        line = lines[call.func.lineno - 1].encode()
        changed = line[: call.func.col_offset] + new.encode() + line[call.func.end_col_offset :]
        indent = " " * min(one.col_offset for one in first)
        root = package.split(".")[0]
        before = f"{indent}import {root}\n" if new.startswith(f"{root}.") and root != "torch" else ""
        after = before + changed.decode()
        ast.parse("".join([*lines[: call.func.lineno - 1], after, *lines[call.func.lineno :]]))
        return {
            "file": os.path.abspath(frame.f_code.co_filename),
            "line": call.func.lineno,
            "old": line.decode().rstrip("\n"),
            "new": after.rstrip("\n"),
        }
    except (SyntaxError, ValueError, IndexError):
        return None  # the text is not that of the code that runs
    except Exception as error:
        swallow("edit_of_class", error)
        return None


def edit_of_statement(frame, header):
    """The edit that puts the statement that a frame is in under a `with`; None where that is not certain."""
    if frame is None:
        return None
    try:
        text = "".join(linecache.getlines(frame.f_code.co_filename))
        simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)
        lines = text.splitlines(keepends=True)
        found = [
            one
            for one in ast.walk(ast.parse(text))
            if isinstance(one, simple) and one.lineno == frame.f_lineno == one.end_lineno
        ]
        line = lines[frame.f_lineno - 1]
        if len(found) != 1 or line[: found[0].col_offset].strip():
            return None
        indent = line[: found[0].col_offset]
        new = f"{indent}{header}\n{indent}    {line.strip()}"
        ast.parse("".join([*lines[: frame.f_lineno - 1], new + "\n", *lines[frame.f_lineno :]]))
        file = os.path.abspath(frame.f_code.co_filename)
        return {"file": file, "line": frame.f_lineno, "old": line.rstrip("\n"), "new": new}
    except (SyntaxError, ValueError, IndexError):
        return None  # the text is not that of the code that runs
    except Exception as error:
        swallow("edit_of_statement", error)
        return None


def called_from(package):
    """Whether a file of a package is nearer on the stack than the user's own code."""
    frame = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        if f"{os.sep}{package}{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def indexed(path):
    """`layers.0.blocks` as Python writes it."""
    parts = path.split(".")
    return parts[0] + "".join(f"[{one}]" if one.isdigit() else f".{one}" for one in parts[1:])


def model_of_transformers(module):
    """The outermost model of transformers in a module that is called; None if there is none."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if kind is None:
        return None
    return next((one for one in module.modules() if isinstance(one, kind)), None)


def name_of(thing, fallback):
    """The global variable of the script that refers to it."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            for name, value in list(frame.f_globals.items()):
                if value is thing and not name.startswith("_"):
                    return name
        frame = frame.f_back
    return fallback


class Base:
    """The part that all changes have in common: `install` is called once, `finish` at the end."""

    # The reason where nothing was found to change.
    nothing = "nothing in the program was found that it could change"

    def __init__(self, torch, note):
        self.torch = torch
        self._note = note
        self.done = False
        self.already = False
        self.why = None
        self.where = []
        self.lines = []
        # The pieces that the lines are made of: a model that is made twice needs them once.
        self.pieces = []
        self.edits = []
        # Models that were looked at, by identity; a model that is gone makes no difference.
        self.seen = weakref.WeakSet()

    def install(self):
        """Called when torch has been imported."""

    def replace(self, owner, name, before):
        """Calls `before` with a function and its arguments, each time that function is called. It returns what is to be
        called with which arguments, and maybe what is done with the result; None leaves the call as it is."""
        old = getattr(owner, name)

        def guarded(args, kwargs):
            try:
                call, args, kwargs, *after = before(old, args, kwargs) or (old, args, kwargs)
                return call, args, kwargs, self._guarded(after[0]) if after else None
            except Exception as error:
                swallow("Base.replace", error)
                self.failed(error)
                return old, args, kwargs, None

        new = _replacement(old, guarded)
        setattr(owner, name, staticmethod(new) if name == "__new__" else new)

    def _guarded(self, after):
        def done(result):
            try:
                after(result)
            except Exception as error:
                swallow("Base._guarded", error)
                self.failed(error)
            return result

        return done

    def failed(self, error):
        """Nothing that goes wrong here may reach the script."""
        self.refused(f"it failed: {type(error).__name__}: {error}")

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
        if lines and lines not in self.pieces:
            self.pieces.append(lines)
            self.lines.extend(lines)
        if edit is not None and edit not in self.edits:
            self.edits.append(edit)
        self.done = True
        self.tell()

    def refused(self, why, already=False):
        """It does not apply, for this reason; the first reason is reported."""
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


class OfOptimizers(Base):
    """A change to optimizers of torch.optim as they are made."""

    nothing = "no optimizer of torch.optim was made"
    # The kinds that it is made for; None is all.
    kinds: tuple[str, ...] | None = None

    def install(self):
        self.made = weakref.WeakSet()
        optim = self.torch.optim
        for name in sorted(vars(optim)):
            kind = getattr(optim, name)
            if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer:
                self.replace(kind, "__init__", self._construct)

    def _construct(self, call, args, kwargs):
        if not args or args[0] in self.made:
            return None  # an optimizer calls that of its base
        self.made.add(args[0])
        options = dict(inspect.signature(call).bind(*args, **kwargs).arguments)
        options.update(options.pop("kwargs", {}))
        optimizer = options.pop("self", args[0])
        # A generator can be read once.
        options["params"] = list(options["params"])
        kind = type(optimizer).__name__
        if self.kinds is not None and kind not in self.kinds:
            self.refused(f"it is not for {kind}")
            return call, (optimizer,), options
        try:
            after = self.change(optimizer, kind, options)
        except Exception as error:
            swallow("OfOptimizers._construct", error)
            self.failed(error)
            after = None
        return (call, (optimizer,), options) if after is None else (call, (optimizer,), options, after)

    def change(self, optimizer, kind, options):
        """Changes the options of an optimizer that is about to be made; may return what is to be done with it then."""

    def tensors(self, options):
        """The parameters, without their groups and names."""
        groups = [one["params"] if isinstance(one, dict) else [one] for one in options["params"]]
        every = [one for group in groups for one in ([group] if isinstance(group, self.torch.Tensor) else group)]
        return [one[1] if isinstance(one, tuple) else one for one in every]

    def of_trainer(self):
        """Whether the Trainer of transformers makes the optimizer."""
        return called_from("transformers")

    def option(self, kind, keyword, value, trainers):
        """An option of the optimizer was changed."""
        frame = users_frame()
        edit = edit_of_call(frame, kind, keyword, value)
        if edit is not None and kind in edit["new"]:
            line = edit["new"].strip()
        elif self.of_trainer() and trainers:
            line = f"TrainingArguments(..., optim={trainers!r})"
        else:
            line = f"optimizer = {kind}(..., {keyword}={value})"
        self.applied([line], frame, edit)


class AnotherOptimizer(Base):
    """Another class of optimizer in the place of Adam and AdamW."""

    nothing = "no Adam or AdamW of torch.optim was made"
    # The class that is replaced, the package, the new class, and how it is written.
    others: tuple[tuple[str, str, str, str], ...] = ()
    # Options that mean the same for both.
    same: tuple[str, ...] = ("lr", "betas", "eps", "weight_decay", "amsgrad")
    # The name of it in the Trainer of transformers.
    trainers: str | None = None

    def install(self):
        for kind, *other in self.others:
            owner = getattr(self.torch.optim, kind)
            signature = inspect.signature(owner.__init__)
            self.replace(owner, "__new__", functools.partial(self._make, owner, signature, other))

    def _make(self, owner, signature, other, _old, args, kwargs):
        plain = object.__new__, (args[0],), {}
        if args[0] is not owner:
            return plain  # a class of the script's own
        kind = owner.__name__
        package, name, written = other
        try:
            made = getattr(importlib.import_module(package), name)
        except Exception as error:
            if not isinstance(error, ImportError):
                swallow("AnotherOptimizer._make", error)
            self.refused(f"{package} cannot be imported: {error}")
            return plain
        options = dict(signature.bind(*args, **kwargs).arguments)
        options.pop("self", None)
        options["params"] = parameters = list(options["params"])
        if options.get("maximize") or options.get("differentiable"):
            self.refused(f"{name} has no option maximize or differentiable")
            return plain
        options = {key: value for key, value in options.items() if key in self.same}
        frame = users_frame()
        edit = edit_of_class(frame, kind, written, package, [*self.same, "params"])
        if edit is not None:
            line = edit["new"].strip()
        elif called_from("transformers") and self.trainers:
            line = f"TrainingArguments(..., optim={self.trainers!r})"
        else:
            line = f"optimizer = {written}(..., {', '.join(f'{key}={value!r}' for key, value in options.items())})"
        self.applied(line.splitlines(), frame, edit)
        return made, (parameters,), options


class Accumulated(OfOptimizers):
    """Batches of a part of the size; the optimizer steps when the gradients of all parts have been added up."""

    nothing = "no model was trained on batches of a DataLoader"
    parts = 2

    def install(self):
        super().install()
        self.data = importlib.import_module("torch.utils.data")
        # Passes since the last step of each optimizer, and whether a loader has given smaller batches.
        self.passes = weakref.WeakKeyDictionary()
        self.is_divided = False
        self.replace(self.data.DataLoader, "__iter__", self._iterate)
        self.replace(self.torch.Tensor, "backward", self._backward)

    def before_pass(self, module):
        nn = self.torch.nn
        batch_norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
        if self.why is None and self.is_model(module) and module.training and self.is_new(module):
            if any(isinstance(one, batch_norm) and one.training for one in module.modules()):
                self.done, self.where, self.lines, self.pieces = False, [], [], []
                self.refused("batch normalization would see a smaller batch")
                self.tell()

    def _iterate(self, call, args, kwargs):
        loader = args[0]
        plain = type(getattr(loader, "batch_sampler", None)) is self.data.BatchSampler
        # Evaluation goes on as it is.
        if self.why is not None or not self.torch.is_grad_enabled() or not plain:
            return None
        sampler = loader.batch_sampler
        size = sampler.batch_size
        if size % self.parts:
            self.refused(f"the batch of {size} cannot be divided into {self.parts} equal parts")
            return None
        part = size // self.parts
        # A DataLoader refuses this by its own attribute; it reads the sampler when it begins.
        vars(loader)["batch_sampler"] = self.data.BatchSampler(sampler.sampler, part, sampler.drop_last)
        self.is_divided = True
        if called_from("transformers"):
            lines = [
                f"TrainingArguments(..., per_device_train_batch_size={part}, gradient_accumulation_steps={self.parts})",
            ]
        else:
            lines = [
                f"DataLoader(..., batch_size={part})",
                f"(loss / {self.parts}).backward()",
                f"if (step + 1) % {self.parts} == 0:",
                "    optimizer.step()",
                "    optimizer.zero_grad()",
            ]
        self.applied(lines)
        return call, args, kwargs, lambda _: vars(loader).update(batch_sampler=sampler)

    def _backward(self, call, args, kwargs):
        if not self.is_divided or self.why is not None:
            return None
        for optimizer in list(self.passes):
            self.passes[optimizer] += 1
        return call, (args[0] / self.parts, *args[1:]), kwargs

    def change(self, optimizer, kind, options):
        if kind == "LBFGS":
            self.refused("LBFGS computes its gradients by itself")
            return None
        step, zero_grad = type(optimizer).step, type(optimizer).zero_grad

        def is_whole(optimizer):
            return not self.is_divided or self.why is not None or self.passes.get(optimizer, 0) >= self.parts

        # A schedule of the learning rate wraps the function of a bound method.
        def step_if_whole(optimizer, *args, **kwargs):
            if not is_whole(optimizer):
                return None
            result = step(optimizer, *args, **kwargs)
            self.passes[optimizer] = 0
            return result

        def zero_if_stepped(optimizer, *args, **kwargs):
            if not self.is_divided or self.why is not None or self.passes.get(optimizer, 0) == 0:
                zero_grad(optimizer, *args, **kwargs)

        def after(_):
            self.passes[optimizer] = 0
            optimizer.step = types.MethodType(step_if_whole, optimizer)
            optimizer.zero_grad = types.MethodType(zero_if_stepped, optimizer)

        return after


class OfBlocks(Base):
    """A change to the blocks of lists of repeated ones."""

    nothing = "no model with a list of repeated blocks was trained"

    def lists(self, module, path=""):
        """The outermost lists that have repeated blocks, with their paths."""
        if isinstance(module, (self.torch.nn.ModuleList, self.torch.nn.Sequential)) and self.repeated(module):
            yield path, module
            return
        for name, child in module.named_children():
            yield from self.lists(child, f"{path}.{name}" if path else name)

    def repeated(self, children):
        """Children of one type that are made of parts and have parameters, where there are two or more."""
        parts = [one for one in children if any(True for _ in one.children()) and self.is_model(one)]
        kinds = [type(one) for one in parts]
        return [one for one in parts if kinds.count(type(one)) > 1]

    def written(self, root, path, children, blocks, every=1):
        """The list as the script's own variables call it, and the blocks of it that are meant."""
        owner = indexed(f"{name_of(root, 'model')}.{path}") if path else name_of(root, "model")
        numbers = [number for number, one in enumerate(children) if any(one is block for block in blocks)]
        if numbers == list(range(0, len(children), every)):
            return owner, owner if every == 1 else f"{owner}[::{every}]"
        return owner, f"[{owner}[number] for number in {numbers}]"


class RepeatedBlocks(OfBlocks):
    """Checkpoints blocks of lists of repeated ones."""

    # One of so many blocks.
    every = 1

    def install(self):
        self.ours = weakref.WeakSet()
        self.checkpoint = importlib.import_module("torch.utils.checkpoint")
        # Every checkpoint goes through one of these two, the script's too.
        without = "_checkpoint_without_reentrant_generator"
        newer = "_checkpoint_without_reentrant_generator_impl"
        self.replace(self.checkpoint, newer if hasattr(self.checkpoint, newer) else without, self._notice)
        self.replace(self.checkpoint.CheckpointFunction, "apply", self._notice)

    def _notice(self, _call, args, _kwargs):
        """A checkpoint that is not ours: the program does it by itself, and ours are taken off again."""
        function = args[0] if args else None
        if self.already or getattr(function, "__self__", None) in self.ours:
            return
        for block in list(self.ours):
            vars(block).pop("forward", None)
        self.done, self.where, self.lines = False, [], []
        self.refused("the program uses torch.utils.checkpoint already", already=True)
        self.tell()

    def before_pass(self, module):
        if self.already or not self.torch.is_grad_enabled() or not self.is_model(module) or not self.is_new(module):
            return
        model = model_of_transformers(module)
        if model is not None and model.supports_gradient_checkpointing:
            # Its layers fill a cache as they run, which a second run would fill again.
            self.refused("a model of transformers has its own switch: use the change checkpointing")
            return
        for root in self.whole(module):
            for path, children in self.lists(root):
                self._change(root, path, children)

    def _change(self, root, path, children):
        blocks = self.repeated(children)[:: self.every]
        new = [block for block in blocks if block not in self.ours and "forward" not in vars(block)]
        if not new:
            return
        for block in new:
            forward = block.forward
            self.ours.add(block)
            block.forward = functools.partial(self.checkpoint.checkpoint, forward, use_reentrant=False)
        owner, chosen = self.written(root, path, children, new, self.every)
        lines = [
            "from functools import partial",
            "from torch.utils.checkpoint import checkpoint",
            f"for block in {chosen}:",
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
        ]
        self.lines.extend(lines[2:] if self.lines else lines)
        self.applied([], where=f"{owner}: {len(new)} × {type(new[0]).__name__}")


class Sharded(OfBlocks):
    """Spreads a model over the GPUs of the machine by FSDP2. This process is rank 0; the collectives move nothing."""

    # Whether weights stay gathered from the forward pass to the backward pass.
    keeps_weights = False

    def install(self):
        module = self.torch.nn.Module
        # Before it is moved: a GPU never holds the whole model then.
        self.replace(module, "to", self._moved)
        self.replace(module, "cuda", self._moved)

    def _moved(self, call, args, kwargs):
        model = args[0]
        to_gpu = call.__name__ == "cuda" or any(
            one is not None and self._is_gpu(one) for one in (*args[1:2], kwargs.get("device"))
        )
        if to_gpu and self.is_model(model):
            self._shard(model)

    def _is_gpu(self, place):
        if isinstance(place, self.torch.Tensor):
            return place.is_cuda
        if isinstance(place, self.torch.dtype):
            return False
        return isinstance(place, int) or self.torch.device(place).type == "cuda"

    def before_pass(self, module):
        if self.torch.is_grad_enabled() and self.is_model(module):
            for root in self.whole(module):
                self._shard(root)

    def _shard(self, model):
        fsdp = importlib.import_module("torch.distributed.fsdp")
        if not self.is_new(model) or isinstance(model, fsdp.FSDPModule):
            return
        lists = list(self.lists(model))
        if not lists or not self._join():
            return
        names = {id(one): name for name, one in model.named_parameters()}
        options = {"reshard_after_forward": False} if self.keeps_weights else {}
        written = ", reshard_after_forward=False" if self.keeps_weights else ""
        lines = [
            "import os",
            "import torch.distributed",
            "from torch.distributed.fsdp import fully_shard",
            "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
            "torch.distributed.init_process_group('nccl')",
        ]
        owner = name_of(model, "model")
        count = 0
        for path, children in lists:
            blocks = self.repeated(children)
            _, chosen = self.written(model, path, children, blocks)
            lines += [f"for block in {chosen}:", f"    fully_shard(block{written})"]
            for block in blocks:
                fsdp.fully_shard(block, **options)
            count += len(blocks)
        fsdp.fully_shard(model, **options)
        self._exchange(names, dict(model.named_parameters()))
        ranks = self.torch.cuda.device_count()
        lines += [f"fully_shard({owner}{written})", f"# start it with: torchrun --nproc-per-node {ranks} ..."]
        self.applied(lines, where=f"{owner}: {count} blocks over {ranks} GPUs")

    def _join(self):
        """Makes this process rank 0 of one for each GPU; whether it is."""
        distributed = self.torch.distributed
        ranks = self.torch.cuda.device_count()
        if ranks < 2:
            self.refused("the machine has one GPU: --gpus sets how many")
        elif not distributed.is_available():
            self.refused("this torch has no torch.distributed")
        elif self.done:
            return True
        elif distributed.is_initialized():
            self.refused("the program uses torch.distributed already", already=True)
        else:
            store = importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
            distributed.init_process_group("fake", rank=0, world_size=ranks, store=store)
            return True
        return False

    def _exchange(self, names, new):
        """Gives the parts to optimizers that were made with the whole parameters."""
        for thing in gc.get_objects():
            if issubclass(type(thing), self.torch.optim.Optimizer):
                for group in thing.param_groups:
                    group["params"] = [new.get(names.get(id(one)), one) for one in group["params"]]


class Changes:
    """The changes that were requested, in their order."""

    def __init__(self, torch, names, note):
        self.changes = []
        for name in names:
            tell = functools.partial(self._tell, note, name)
            try:
                module = importlib.import_module(f"tonnage_hook.torch.changes.{name.replace('-', '_')}")
                change = module.Change(torch, tell)
                change.install()
                self.changes.append((tell, change))
                # In this order the verdict has them.
                change.tell()
            except Exception as error:
                # The program goes on as it is, and the verdict reports it.
                swallow("Changes.__init__", error)
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
            swallow("Changes._call", error)
            change.failed(error)

    def finish(self):
        for tell, change in self.changes:
            try:
                tell(change.finish())
            except Exception as error:
                swallow("Changes.finish", error)
                tell({"applied": False, "why": f"it failed: {type(error).__name__}: {error}"})
        self.changes = []
