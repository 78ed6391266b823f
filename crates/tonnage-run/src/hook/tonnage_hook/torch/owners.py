# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reports the owners of bytes to the stand-in, by queries of torch and not by guessing.

Parameters, buffers, gradients and optimizer state are named at moments when
torch knows them: after a forward pass, a backward pass, an optimizer's step, at
an out-of-memory, at the end. A block named once is known for all of its life.
Phases and modules are reported as they begin and end.

No tensor is ever kept: modules and optimizers are held weakly, of tensors only
addresses are read. No tensor is made, and no hook is put on one.

Modules are not watched by hooks: torch.compile would trace those, cut graphs at
them and warn of them. Instead the code of the function that every call of a
module goes through is replaced, and the function stays the same object, which
is what torch.compile looks at. Under torch.compile the new code does what the
old one did; elsewhere it reports the beginning and the end besides. It keeps the
file and the lines of the old one, so stacks look as they do without us.
"""

import ast
import collections.abc
import dis
import functools
import gc
import importlib
import itertools
import sys
import threading
import weakref

from tonnage_hook.failures import swallow
from tonnage_hook.torch.graphs import keeps_gradient, node_of
from tonnage_hook.wire import END, MOMENT, OWNER, START, bind

# On a real GPU torch is queried after this many steps, and then after one of so many.
_FIRST_TURNS, _TURNS = 20, 16

# The new code of `torch.nn.Module._wrapped_call_impl`. `_tonnage` is a
# global variable of its module. The compiler's hold on frames is taken off
# while our own functions run, else it would try to compile them.
_CALL = """
if True:
    def _wrapped_call_impl(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        calls = _tonnage
        hold = calls.set_eval_frame(None)
        calls.enter(self, args, kwargs)
        calls.set_eval_frame(hold)
        result = None
        try:
            if self._compiled_call_impl is not None:
                result = self._compiled_call_impl(*args, **kwargs)
            else:
                result = self._call_impl(*args, **kwargs)
            return result
        finally:
            hold = calls.set_eval_frame(None)
            calls.leave(self, result)
            calls.set_eval_frame(hold)
"""
_CALLED = ("_compiled_call_impl", "_call_impl")
# Where `self.` of a call stands in torch's text, after `return`.
_COLUMN = 19


def _code_of_calls(torch, old):
    """The code that takes the place of `old`, with its file and its lines."""
    if set(old.co_names) != set(_CALLED) or old.co_freevars:
        raise RuntimeError("torch calls modules in a way that is not known here")
    lines, line = {}, old.co_firstlineno
    for instruction in dis.get_instructions(old):
        number = getattr(instruction, "line_number", None) or instruction.starts_line
        if type(number) is int:
            line = number
        if instruction.argval in _CALLED:
            lines[instruction.argval] = line
    text = _CALL
    if not hasattr(torch.compiler, "is_compiling"):
        # Before torch 2.3 there is no function for this query: a trace of torch.compile is then broken up where modules
        # are called.
        text = text.replace("torch.compiler.is_compiling()", "False")
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = old.co_firstlineno
    for node in ast.walk(tree):
        if type(node) in (ast.Return, ast.Assign) and type(node.value) is ast.Call:
            name = getattr(node.value.func, "attr", None)
            # The columns too, which tracebacks underline.
            shift = node.value.col_offset - _COLUMN
            for part in ast.walk(node) if name in lines else ():
                if hasattr(part, "lineno"):
                    part.lineno = part.end_lineno = lines[name]
                    part.col_offset = max(0, part.col_offset - shift)
                    part.end_col_offset = max(0, part.end_col_offset - shift)
    scope = {}
    exec(compile(tree, old.co_filename, "exec"), scope)
    return scope["_wrapped_call_impl"].__code__


def _roots(arguments, options):
    """The tensors a backward pass begins with, among the arguments of `backward` and `grad`."""
    return arguments[0] if arguments else options.get("tensors", options.get("outputs", ()))


def _hide_frame(error):
    """Takes the frame that caught an error off its traceback, so that the script sees only its own and torch's."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _plain(name):
    """A dotted name without what torch.compile puts around a module."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _gradient(parameter):
    """Its gradient. FSDP puts views in the place of parameters, which have none, and torch warns of that query."""
    return parameter.grad if keeps_gradient(parameter) else None


def _gradients_to_sum(module):
    """The sums of FSDP between two reductions over the ranks: gradients of whole parameters, which no module
    shows."""
    ask = getattr(type(module), "_get_fsdp_state", None)
    if ask is None:
        return
    state = ask(module)
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        for one in getattr(group, "fsdp_params", ()):
            whole = getattr(one, "_unsharded_param", None)
            for gradient in (getattr(one, "unsharded_accumulated_grad", None), getattr(whole, "grad", None)):
                if gradient is not None:
                    yield getattr(one, "_param_fqn", None) or "", gradient


def _tensors_in(value, tensor, depth=3):
    """The tensors of a state, also in lists and dictionaries: L-BFGS keeps its directions in a list."""
    if isinstance(value, tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for one in list(value.values()) if isinstance(value, dict) else list(value):
            yield from _tensors_in(one, tensor, depth - 1)


def _may_carry_gradients(value, torch, depth=3):
    """Whether an argument of a model may lead autograd on to what it was computed from."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return False
    if depth and isinstance(value, (list, tuple, collections.abc.Mapping)):
        parts = list(value.values()) if isinstance(value, collections.abc.Mapping) else list(value)
        return any(_may_carry_gradients(part, torch, depth - 1) for part in parts)
    return True


def _has_graph(value, torch, depth=3):
    """Whether an argument of a model is the result of another one, with its graph."""
    if isinstance(value, torch.Tensor):
        return node_of(value) is not None
    if depth and isinstance(value, (list, tuple, collections.abc.Mapping)):
        parts = list(value.values()) if isinstance(value, collections.abc.Mapping) else list(value)
        return any(_has_graph(part, torch, depth - 1) for part in parts)
    return False


_KEYS_AND_VALUES = {"k", "v", "kv", "kvs", "kvcache", "key", "keys", "value", "values", "past", "attn", "attention"}


def _is_cache(name, owner=""):
    """Whether a name is that of keys and values kept from token to token, and not of what else is kept for reuse:
    angles of rotary embeddings, masks, results. One that is only called a cache is one of keys and values in a module
    for attention."""
    path, _, last = name.rpartition(".")
    if "cache" not in last or any(word in last for word in ("cos", "sin", "rope", "rotary", "freq", "mask")):
        return False
    inside = f"{path}.{owner}".lower()
    return not _KEYS_AND_VALUES.isdisjoint(last.lower().split("_")) or "attn" in inside or "attention" in inside


def _is_cache_class(kind):
    """Whether objects of a class keep keys and values, by its name or that of one it is made from: SGLang's pools."""
    return any("kvcache" in name or "kvpool" in name for name in (one.__name__.lower() for one in kind.__mro__))


class _Calls:
    """The functions of ours that the code above calls."""

    def __init__(self, torch):
        self.set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
        self.enter = self.leave = lambda *_: None


class Owners:
    def __init__(self, torch, library, holders, values):
        self.torch = torch
        # Before torch 2.3 there is no such function, and `bool()` is false.
        self.is_compiling = getattr(torch.compiler, "is_compiling", bool)
        self.holders = holders
        if holders is not None:
            # A server that is killed is not queried at its end.
            holders.before_census = self.ask_pools
            holders.called_models = self._called_models
        self.values = values
        bind(library, "tonnage_note")
        self.write_note = library.tonnage_note
        # The path of every module in its model, and the models.
        self.paths = weakref.WeakKeyDictionary()
        # In the order in which they were met: that of a set would differ from run to run.
        self.roots = weakref.WeakKeyDictionary()
        self.optimizers = weakref.WeakSet()
        # Models that were called with gradients on and got nothing that leads to another: what they keep is for their
        # own parameters. The number and class of each, and whether an optimizer has any of those, as was reported last.
        self.own_graphs = weakref.WeakKeyDictionary()
        self.trained = {}
        # Names of parameters with gradients that no optimizer uses, and the state at the time of that report.
        self.unstepped = set()
        self.judged = None
        # Modules that keep tensors called a cache among their plain attributes.
        self.cache_keepers = weakref.WeakKeyDictionary()
        self.local = threading.local()
        self.backwards = 0
        # Whether optimizers were called inside the backward pass that runs, which counts as one step; and whether the
        # last thing that ran was such a pass.
        self.stepped_in_backward = self.counted_in_backward = False
        self.steps = 0
        self.passes = 0
        # The ids of the modules that the script has called in this pass, one on results of the others.
        self.parts = set()
        # Whether a census was taken at a pass. An earlier one may have found names of a constructor's frame.
        self.holders_asked = False
        # The phase that began last, if it is not the pass of a module that learns nothing.
        self.last_phase = None
        # Whether a real GPU waits while torch is queried: then it is queried after the first passes and some later
        # ones.
        self.sparing = False
        # Called with the number of steps that are done.
        self.after_step = lambda steps: None
        # Called with a model before and after it is called, outside of backward passes: changes are made there.
        self.before_pass = self.after_pass = lambda module: None
        # Called once or more, outside of operators and backward passes; returns whether it is to be called again.
        self.before_first_pass = None
        self.installed = False
        # Now, before anything is compiled; it reports nothing before CUDA is used.
        self.calls = torch.nn.modules.module._tonnage = _Calls(torch)
        called = torch.nn.Module._wrapped_call_impl
        called.__code__ = _code_of_calls(self.torch, called.__code__)

    def install(self):
        """Called when CUDA is first used."""
        if self.installed:
            return
        self.installed = True
        torch = self.torch
        self.calls.leave = self._leave
        self.calls.enter = self._enter
        optimizer = importlib.import_module("torch.optim.optimizer")
        self.stepper = optimizer.__file__
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        for owner, name, phase in (
            (torch.autograd, "backward", "backward"),
            (torch.autograd, "grad", "backward"),
            (torch, "save", "save"),
            (torch, "load", "save"),
        ):
            setattr(owner, name, self._in_phase(getattr(owner, name), phase))
        if self.values is not None:
            functions = torch.autograd.function.BackwardCFunction
            functions.apply = self._with_values(functions.apply)

    def _with_values(self, apply):
        """The backward pass of a function that is written in Python may read values."""

        @functools.wraps(apply)
        def apply_with_values(node, *gradients):
            entered = self._enter_values()
            try:
                return apply(node, *gradients)
            except BaseException as error:
                _hide_frame(error)
                raise
            finally:
                if entered:
                    self.values.pause()

        return apply_with_values

    def _note(self, kind, text, address=0):
        data = text.encode("utf-8", "replace")
        self.write_note(kind, address, data, len(data))

    def report_owner(self, category, name, tensor):
        """Reports that the block of a tensor is in this category."""
        try:
            # A part of a distributed tensor is what this process holds of it.
            tensor = getattr(tensor, "_local_tensor", tensor)
            if not tensor.is_cuda:
                return
            address = tensor.untyped_storage().data_ptr()
            kind = str(tensor.dtype).removeprefix("torch.")
            shape = list(tensor.shape)
        except RuntimeError:
            return  # not a tensor with its own memory
        except Exception as error:
            swallow("Owners.report_owner", error)
            return
        if address:
            self._note(OWNER, f"{category}\t{name}\t{kind}{shape}", address)

    def ask_module(self, root):
        for name, parameter in root.named_parameters():
            name = _plain(name)
            self.report_owner("weights", name, parameter)
            gradient = _gradient(parameter)
            if gradient is not None:
                self.report_owner("gradients", name, gradient)
        for module in root.modules():
            for name, gradient in _gradients_to_sum(module):
                self.report_owner("gradients", _plain(name), gradient)
        for name, buffer in root.named_buffers():
            name = _plain(name)
            self.report_owner("kv_cache" if _is_cache(name) else "buffers", name, buffer)

    def _forget_gradients(self, root):
        """A backward pass has changed them, and nothing was computed there."""
        if self.values is not None:
            for parameter in root.parameters():
                self.values.forget(_gradient(parameter))

    def ask_optimizer(self, optimizer):
        names = {}
        for root in self.roots:
            for name, parameter in root.named_parameters():
                names[id(parameter)] = _plain(name)
        # One whose construction failed has none.
        for number, group in enumerate(getattr(optimizer, "param_groups", ())):
            for index, parameter in enumerate(group["params"]):
                name = names.get(id(parameter))
                if name is None:
                    # A parameter of no model seen so far: a copy that the optimizer works on, or a bare tensor.
                    name = f"group {number} parameter {index}"
                    self.report_owner("weights", name, parameter)
                if parameter.grad is not None:
                    self.report_owner("gradients", name, parameter.grad)
                for key, value in optimizer.state.get(parameter, {}).items():
                    for tensor in _tensors_in(value, self.torch.Tensor):
                        self.report_owner("optimizer_state", f"{name} {key}", tensor)

    def ask_all(self):
        """Queries all objects, known or not."""
        modules, inside = [], set()
        for thing in gc.get_objects():
            # Not `isinstance`, which would run code of objects that only pretend.
            kind = type(thing)
            if issubclass(kind, self.torch.optim.Optimizer):
                self.optimizers.add(thing)
            elif issubclass(kind, self.torch.nn.Module) and "_modules" in vars(thing):
                modules.append(thing)
                inside.update(map(id, thing.children()))
        for module in modules:
            if id(module) not in inside:
                self._meet(module)
        del modules
        for root in list(self.roots):
            self.ask_module(root)
            self._ask_caches(root)
        self.ask_pools()
        for optimizer in list(self.optimizers):
            self.ask_optimizer(optimizer)
        self._judge_models()

    def ask_pools(self):
        """Queries objects that keep keys and values outside of any model."""
        objects = gc.get_objects()
        kinds = list(map(type, objects))
        pools = {kind for kind in set(kinds) if _is_cache_class(kind)}
        for thing in itertools.compress(objects, map(pools.__contains__, kinds)):
            for name, value in list(getattr(thing, "__dict__", {}).items()):
                if not _KEYS_AND_VALUES.isdisjoint(name.lower().split("_")):
                    self._own_cache(f"{type(thing).__name__}.{name}", value)

    def _meet(self, root):
        if root in self.roots:
            return
        self.roots[root] = None
        for name, module in root.named_modules():
            self.paths[module] = _plain(name) or type(module).__name__
        keepers = []
        for module in root.modules():
            path = self.paths.get(module, "")
            names = [name for name in vars(module) if _is_cache(f"{path}.{name}", type(module).__name__)]
            keepers.extend((weakref.ref(module), name) for name in names)
        self.cache_keepers[root] = keepers

    def _ask_caches(self, root):
        for keeper, name in self.cache_keepers.get(root, ()):
            module = keeper()
            if module is not None:
                path = self.paths.get(module, "")
                self._own_cache(f"{path}.{name}", getattr(module, name, None))

    def _own_cache(self, name, cache, depth=0):
        """Names the tensors of a cache, which may be a list, a dictionary or an object of layers."""
        if cache is None or depth > 3:
            return
        if isinstance(cache, self.torch.Tensor):
            self.report_owner("kv_cache", name, cache)
        elif isinstance(cache, (list, tuple)):
            for index, part in enumerate(cache):
                self._own_cache(f"{name}.{index}", part, depth + 1)
        elif isinstance(cache, dict):
            for key, part in cache.items():
                self._own_cache(f"{name}.{key}", part, depth + 1)
        else:
            for key in ("layers", "keys", "values", "key_cache", "value_cache", "self_attention_cache"):
                part = getattr(cache, key, None)
                if part is not None and not callable(part):
                    self._own_cache(f"{name}.{key}", part, depth + 1)

    def _enter(self, module, arguments, options):
        """A module is called. Nothing that goes wrong here may reach the script."""
        try:
            depth = getattr(self.local, "depth", 0)
            self.local.depth = depth + 1
            if depth == 0:
                if self.before_first_pass is not None and not self.backwards and not self.before_first_pass():
                    self.before_first_pass = None
                self._begin_pass(module, (arguments, options))
                self.local.entered = self._enter_values()
                self.local.outermost = None if self.backwards else module
                if not self.backwards:
                    self.before_pass(module)
            self._note(START, f"module\t{self.paths.get(module) or type(module).__name__}")
        except Exception as error:
            swallow("Owners._enter", error)

    def _enter_values(self):
        """Enters the mode for a forward pass inside a backward pass or a step. Whether it was not there before."""
        values = self.values
        if values is None or values.is_active() or not (self.backwards or getattr(self.local, "stepping", 0)):
            return False
        values.resume()
        return True

    def _is_asked(self):
        """Whether torch is queried for owners after this pass or step."""
        turn = self.steps or self.passes
        return not self.sparing or turn < _FIRST_TURNS or turn % _TURNS == 0

    def _begin_pass(self, module, given):
        self._end_failed_step()
        self._meet(module)
        self.passes += 1
        self.counted_in_backward = False
        # Activations computed again in a backward pass belong to that pass.
        if self.backwards:
            return
        gradients = self.torch.is_grad_enabled() and not self._turns_gradients_off(module)
        learns = next(module.parameters(), None) is not None
        # A loss, or what else has nothing to learn, belongs to the pass before it.
        if gradients and not learns and self.last_phase == "forward":
            self.local.phase = None
            return
        # A layer that the script calls on results of the layers before is a part of the same pass.
        goes_on = gradients and self.last_phase == "forward" and id(module) not in self.parts
        if goes_on and _has_graph(given, self.torch):
            self.parts.add(id(module))
            self.local.phase = "part"
            return
        self.parts = {id(module)}
        phase = self.local.phase = "forward" if gradients else "eval"
        self.last_phase = phase if learns else None
        self._note(START, f"phase\t{phase}")
        if not gradients or not any(one.requires_grad for one in module.parameters()):
            return
        if not module.training:
            self._note(MOMENT, f"grad_in_eval\t{type(module).__name__}")
        if not _may_carry_gradients(given, self.torch):
            name = self.own_graphs.setdefault(module, f"{len(self.trained)} {type(module).__name__}")
            self.trained.setdefault(name)
            self._note(MOMENT, f"own_graph\t{name}")

    def _judge_models(self):
        """Reports which models no optimizer has a parameter of, although one has parameters of another model; and which
        parameters have gradients that none uses."""
        # An optimizer is known to us from its first step on; others may be there already.
        if self.judged != self._known_models():
            known = (one for one in gc.get_objects() if issubclass(type(one), self.torch.optim.Optimizer))
            self.optimizers.update(known)
            self.judged = self._known_models()
            self._tell_models(self._stepped())

    def _called_models(self):
        """The name of each model that has its own graphs, by its id: the censuses have the variable."""
        return {id(model): name for model, name in self.own_graphs.items()}

    def _known_models(self):
        groups = (group for one in self.optimizers for group in getattr(one, "param_groups", ()))
        return (len(self.own_graphs), len(self.roots), len(self.optimizers), sum(len(one["params"]) for one in groups))

    def _stepped(self):
        groups = (group for one in self.optimizers for group in getattr(one, "param_groups", ()))
        return {id(parameter) for group in groups for parameter in group["params"]}

    def _tell_models(self, stepped):
        named = [[(name, one) for name, one in root.named_parameters()] for root in list(self.roots)]
        trained = {_plain(name) for parameters in named for name, one in parameters if id(one) in stepped}
        if not trained:
            return  # optimizers work on copies
        for model, name in list(self.own_graphs.items()):
            is_trained = any(id(parameter) in stepped for parameter in model.parameters())
            if self.trained[name] != is_trained:
                self.trained[name] = is_trained
                self._note(MOMENT, f"{'trained' if is_trained else 'untrained'}_model\t{name}")
        unused = set()
        for parameters in named:
            if any(id(one) in stepped for _, one in parameters):
                unused.update(
                    _plain(name) for name, one in parameters if id(one) not in stepped and _gradient(one) is not None
                )
        for name in sorted(unused - trained - self.unstepped):
            self._note(MOMENT, f"unstepped\t{name}")
        for name in sorted(self.unstepped & trained):
            self._note(MOMENT, f"stepped\t{name}")
        self.unstepped = (self.unstepped | unused) - trained

    def _turns_gradients_off(self, module):
        """Whether the forward function is decorated with `torch.no_grad()` or `torch.inference_mode()`."""
        function = getattr(module.forward, "__func__", module.forward)
        while function is not None:
            if getattr(function, "__name__", "") == "decorate_context" or hasattr(function, "__wrapped__"):
                for cell in getattr(function, "__closure__", None) or ():
                    context = getattr(cell.cell_contents, "__self__", None)
                    if isinstance(context, self.torch.no_grad) or (
                        isinstance(context, self.torch.inference_mode) and context.mode
                    ):
                        return True
            function = getattr(function, "__wrapped__", None)
        return False

    def _leave(self, module, result):
        """A call of a module ends, also by an exception."""
        try:
            self._note(END, f"module\t{self.paths.get(module) or type(module).__name__}")
            depth = self.local.depth = max(0, getattr(self.local, "depth", 1) - 1)
            if depth == 0 and getattr(self.local, "outermost", None) is module:
                self.local.outermost = None
                self.after_pass(module)
            if depth == 0 and self.local.entered:
                self.local.entered = False
                self.values.pause()
            if depth == 0 and not self.backwards:
                phase, self.local.phase = getattr(self.local, "phase", None), None
                if phase:
                    self._end_pass(module, phase, result)
        except Exception as error:
            swallow("Owners._leave", error)

    def _end_pass(self, module, phase, result):
        try:
            if not self._is_asked():
                return
            self.ask_module(module)
            if phase == "eval":
                self._ask_caches(module)
                self._own_cache("past_key_values", getattr(result, "past_key_values", None))
        finally:
            if phase == "part":
                self._note(MOMENT, f"pass_end\t{type(module).__name__}")
            else:
                self._note(END, f"phase\t{phase}")

    def _end_failed_step(self):
        """Ends a step that an exception ended: torch does not report it."""
        if not getattr(self.local, "stepping", 0):
            return
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            # A step may call a function of the script that computes the loss anew.
            if code.co_name == "wrapper" and code.co_filename == self.stepper:
                return
            frame = frame.f_back
        while self.local.stepping:
            self.local.stepping -= 1
            self._note(END, "phase\tstep")
        self._resume_after_step()

    def in_backward(self):
        """Whether the engine may be at work: then it frees what graphs have saved."""
        return self.backwards > 0 or threading.get_ident() != threading.main_thread().ident

    def _ask_holders(self):
        """A pass or a step begins: queries the holders of the memory, if there is more of it than before."""
        if self.holders is None:
            return
        percent = None if self.holders_asked else 100
        self.holders_asked = True
        if self.holders.due(percent):
            self.holders.take("peak", self.in_backward())

    def _before_step(self, optimizer, _arguments, _options):
        if self.is_compiling():
            return
        if self.backwards:
            # An optimizer of one parameter, called when its gradient is there: a part of the backward pass.
            self.optimizers.add(optimizer)
            return
        self._end_failed_step()
        self._ask_holders()
        self.optimizers.add(optimizer)
        self.local.stepping = getattr(self.local, "stepping", 0) + 1
        if self.values is not None and not self._steps_by_values(optimizer) and self.values.pause():
            self.local.paused = True
        self.last_phase = "step"
        self._note(START, "phase\tstep")

    def _steps_by_values(self, optimizer):
        """Whether a step may read values: one that is not torch's, one with a line search, one of sparse gradients."""
        module = getattr(type(optimizer).step, "__module__", None) or ""
        if not module.startswith("torch.optim.") or module.endswith((".lbfgs", ".sparse_adam")):
            return True
        dense = self.torch.strided
        gradients = (one.grad for group in optimizer.param_groups for one in group["params"])
        return any(one is not None and one.layout is not dense for one in gradients)

    def _resume_after_step(self):
        if getattr(self.local, "paused", False):
            self.local.paused = False
            self.values.resume()
            self.values.note_unseen()

    def _after_step(self, optimizer, _arguments, _options):
        stepping = getattr(self.local, "stepping", 0)
        if self.is_compiling() or not (stepping or self.backwards):
            return
        if self._is_asked():
            self.ask_optimizer(optimizer)
        if stepping:
            self.local.stepping -= 1
        if self.values is not None:
            self._resume_after_step()
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self.values.forget(parameter)
        if not stepping:
            self.stepped_in_backward = True
            return
        self._note(END, "phase\tstep")
        if self.counted_in_backward:
            # The program's own step after that, which finds no gradients.
            self.counted_in_backward = False
        else:
            self._count_step()

    def _count_step(self):
        self._note(MOMENT, f"step\t{self.steps}")
        self.steps += 1
        self._judge_models()
        self.after_step(self.steps)

    def _in_phase(self, function, phase):
        @functools.wraps(function)
        def run_phase(*arguments, **options):
            inner = phase == "backward"
            self._end_failed_step()
            if inner:
                self.counted_in_backward = False
                self._ask_holders()
            self._note(START, f"phase\t{phase}")
            self.last_phase = phase
            self.backwards += inner
            paused, handles = False, ()
            if inner and self.values is not None:
                handles = self.values.before_backward(_roots(arguments, options))
                paused = self.values.pause()
            try:
                return function(*arguments, **options)
            except BaseException as error:
                _hide_frame(error)
                raise
            finally:
                for handle in handles:
                    handle.remove()
                self.backwards -= inner
                if inner and self.values is not None and not self.backwards:
                    self.values.after_backward()
                if paused:
                    self.values.resume()
                    self.values.note_unseen()
                if inner and not self.backwards and self._is_asked():
                    for root in list(self.roots):
                        self.ask_module(root)
                        self._forget_gradients(root)
                self._note(END, f"phase\t{phase}")
                if self.stepped_in_backward and not self.backwards:
                    self.stepped_in_backward, self.counted_in_backward = False, True
                    self._count_step()

        return run_phase
