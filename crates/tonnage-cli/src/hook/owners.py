# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tells the stand-in whose the bytes are, by asking torch and not by guessing.

Parameters, buffers, gradients and optimizer state are named at moments when
torch knows them: after a forward pass, a backward pass, an optimizer's step, at
an out-of-memory, at the end. A block named once is known for all of its life.
Phases and modules are told as they begin and end.

No tensor is ever kept: modules and optimizers are held weakly, of tensors only
addresses are read. No tensor is made, and no hook is put on one.
"""

import functools
import gc
import importlib
import threading
import weakref

_START, _END, _MOMENT, _OWNER = range(4)


class Owners:
    def __init__(self, torch, library, holders):
        import ctypes

        self.torch = torch
        self.holders = holders
        self.tell = library.tonnage_note
        self.tell.argtypes = [ctypes.c_uint8, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
        self.tell.restype = None
        # The path of every module in its model, and the models.
        self.paths = weakref.WeakKeyDictionary()
        self.roots = weakref.WeakSet()
        self.optimizers = weakref.WeakSet()
        # Modules that keep tensors called a cache among their plain attributes.
        self.cache_keepers = weakref.WeakKeyDictionary()
        self.local = threading.local()
        self.backwards = 0
        self.steps = 0
        self.compiled = False
        self.handles = []
        self.installed = False
        torch.compile = self._without_hooks(torch.compile)

    def install(self):
        """Called when CUDA is first used."""
        if self.installed:
            return
        self.installed = True
        torch = self.torch
        if not self.compiled:
            module = torch.nn.modules.module
            self.handles = [
                module.register_module_forward_pre_hook(self._enter),
                module.register_module_forward_hook(self._leave, always_call=True),
            ]
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        for owner, name, phase in (
            (torch.autograd, "backward", "backward"),
            (torch.autograd, "grad", "backward"),
            (torch, "save", "save"),
            (torch, "load", "save"),
        ):
            setattr(owner, name, self._in_phase(getattr(owner, name), phase))

    def _note(self, kind, text, address=0):
        data = text.encode("utf-8", "replace")
        self.tell(kind, address, data, len(data))

    def own(self, category, name, tensor):
        """Says that the block of a tensor is in this category."""
        try:
            # A part of a distributed tensor is what this process holds of it.
            tensor = getattr(tensor, "_local_tensor", tensor)
            if not tensor.is_cuda:
                return
            address = tensor.untyped_storage().data_ptr()
            kind = str(tensor.dtype).removeprefix("torch.")
            shape = list(tensor.shape)
        except Exception:
            return  # not a tensor with memory of its own
        if address:
            self._note(_OWNER, f"{category}\t{name}\t{kind}{shape}", address)

    def ask_module(self, root):
        for name, parameter in root.named_parameters():
            self.own("weights", name, parameter)
            if parameter.grad is not None:
                self.own("gradients", name, parameter.grad)
        for name, buffer in root.named_buffers():
            self.own("kv_cache" if "cache" in name else "buffers", name, buffer)

    def ask_optimizer(self, optimizer):
        names = {}
        for root in self.roots:
            for name, parameter in root.named_parameters():
                names[id(parameter)] = name
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                name = names.get(id(parameter))
                if name is None:
                    # Of no model seen so far: a copy that the optimizer works on, or a bare tensor.
                    name = f"group {number} parameter {index}"
                    self.own("weights", name, parameter)
                if parameter.grad is not None:
                    self.own("gradients", name, parameter.grad)
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, self.torch.Tensor):
                        self.own("optimizer_state", f"{name} {key}", value)

    def ask_all(self):
        """Asks everything there is, known or not."""
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
        for optimizer in list(self.optimizers):
            self.ask_optimizer(optimizer)

    def _meet(self, root):
        if root in self.roots:
            return
        self.roots.add(root)
        for name, module in root.named_modules():
            self.paths[module] = name or type(root).__name__
        keepers = []
        for module in root.modules():
            names = [name for name in vars(module) if "cache" in name]
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
            self.own("kv_cache", name, cache)
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

    def _enter(self, module, _arguments):
        depth = getattr(self.local, "depth", 0)
        self.local.depth = depth + 1
        if depth == 0:
            self._meet(module)
            # What is computed again in a backward pass belongs to that.
            if not self.backwards:
                phase = "forward" if self.torch.is_grad_enabled() else "eval"
                self._note(_START, f"phase\t{phase}")
                self.local.phase = phase
        self._note(_START, f"module\t{self.paths.get(module) or type(module).__name__}")

    def _leave(self, module, _arguments, result):
        self._note(_END, f"module\t{self.paths.get(module) or type(module).__name__}")
        depth = self.local.depth = max(0, getattr(self.local, "depth", 1) - 1)
        if depth == 0 and not self.backwards:
            phase, self.local.phase = getattr(self.local, "phase", None), None
            if phase:
                self.ask_module(module)
                if phase == "eval":
                    self._ask_caches(module)
                    self._own_cache("past_key_values", getattr(result, "past_key_values", None))
                self._note(_END, f"phase\t{phase}")

    def in_backward(self):
        """Whether the engine may be at work: then it frees what graphs have saved."""
        return self.backwards > 0 or threading.get_ident() != threading.main_thread().ident

    def _ask_holders(self):
        """A pass or a step begins: asks what holds the memory, if there is more of it than before."""
        if self.holders.due():
            self.holders.take("peak", self.in_backward())

    def _before_step(self, optimizer, _arguments, _options):
        self._ask_holders()
        self.optimizers.add(optimizer)
        self._note(_START, "phase\tstep")

    def _after_step(self, optimizer, _arguments, _options):
        self.ask_optimizer(optimizer)
        self._note(_END, "phase\tstep")
        self._note(_MOMENT, f"step\t{self.steps}")
        self.steps += 1

    def _in_phase(self, function, phase):
        @functools.wraps(function)
        def told(*arguments, **options):
            inner = phase == "backward"
            if inner:
                self._ask_holders()
            self._note(_START, f"phase\t{phase}")
            self.backwards += inner
            try:
                return function(*arguments, **options)
            finally:
                self.backwards -= inner
                if inner and not self.backwards:
                    for root in list(self.roots):
                        self.ask_module(root)
                self._note(_END, f"phase\t{phase}")

        return told

    def _without_hooks(self, compile_):
        """Compiled code must not meet hooks: they would change how it is cut and fused."""

        @functools.wraps(compile_)
        def told(*arguments, **options):
            self.compiled = True
            for handle in self.handles:
                handle.remove()
            self.handles = []
            return compile_(*arguments, **options)

        return told
