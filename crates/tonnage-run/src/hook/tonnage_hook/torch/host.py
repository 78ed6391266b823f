# SPDX-License-Identifier: MIT OR Apache-2.0
"""Large parameters on the host cost no memory until the program reads them.

Many scripts build a model on the CPU and move it to the GPU. The values never
matter to a dry run, but filling them in costs as much host memory as the model
has parameters. Here operators that only fill, scale, cast or copy a large
parameter are put off: they are kept in a list, and carried out when an operator
reads the values on the CPU. Then the values are the same, bit for bit: a random
fill remembers the state of its generator. The generator itself moves on at
once, so whatever the script draws next is what it would be on any machine.

A parameter that is copied to the GPU is not read, so it is never filled in. Reads that do
not pass through torch's dispatcher (`numpy()`, `tolist()`, shared memory) are
wrapped. A file that `torch.save` writes holds zeros for values that were never filled in
or computed, and zeros take no space on the disk.
"""

import functools
import os
import threading

from tonnage_hook.torch.frames import skip_compiler

# Smaller tensors are filled at once: they are most of the operators and little of the memory.
_LARGE = 1 << 20
# A list of operators that grows beyond this is carried out.
_MAX_PUT_OFF = 64
# Elements that are drawn at a time to move a generator on; a multiple of 16, in which torch draws normal numbers.
_DRAWN_AT_ONCE = 1 << 16

# Functions of torch.nn.init that fill a tensor; the others call these.
_INITIALIZERS = (
    "_no_grad_uniform_",
    "_no_grad_normal_",
    "_no_grad_trunc_normal_",
    "_no_grad_fill_",
    "_no_grad_zero_",
    "kaiming_uniform_",
    "kaiming_normal_",
)

_RANDOM = {"normal_", "uniform_"}
_FILLING = {"zero_", "fill_"}
# In place, element by element, with numbers as their only other arguments.
_SCALING = {
    "mul_",
    "add_",
    "sub_",
    "div_",
    "neg_",
    "abs_",
    "pow_",
    "exp_",
    "log_",
    "sqrt_",
    "rsqrt_",
    "erfinv_",
    "clamp_",
    "clamp_min_",
    "clamp_max_",
}
_COPYING = {"copy_", "_to_copy", "clone", "_pin_memory"}
_READING = {"everything else"}
# They look at the shape of their input, not at its values.
_SHAPE_ONLY = {
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "new_empty",
    "new_empty_strided",
    "new_zeros",
    "new_ones",
    "new_full",
    "detach",
    "alias",
    "lift_fresh",
    "is_same_size",
    "is_pinned",
    "set_",
}


class _PutOff:
    """The operators that fill one storage, in order."""

    __slots__ = ("alive", "operators")

    def __init__(self, alive, operators):
        self.alive = alive
        self.operators = operators


class _View:
    """Where in its storage a tensor is."""

    __slots__ = ("dtype", "offset", "shape", "stride")

    def __init__(self, tensor):
        self.dtype = tensor.dtype
        self.shape = tuple(tensor.shape)
        self.stride = tuple(tensor.stride())
        self.offset = tensor.storage_offset()

    def make_tensor(self, torch, storage):
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.stride)


class _Change:
    """An operator that changes a tensor in place."""

    __slots__ = ("args", "function", "kwargs", "state", "view")

    def __init__(self, function, tensor, args, kwargs, state):
        self.function = function
        self.view = _View(tensor)
        self.args = args
        self.kwargs = kwargs
        # The state of the generator before a random operator.
        self.state = state

    def carry_out(self, torch, storage):
        tensor = self.view.make_tensor(torch, storage)
        if self.state is None:
            self.function(tensor, *self.args, **self.kwargs)
            return
        generator = self.kwargs["generator"]
        now = generator.get_state()
        generator.set_state(self.state)
        try:
            self.function(tensor, *self.args, **self.kwargs)
        finally:
            generator.set_state(now)


class _Copy:
    """A copy of a tensor as it was to be at that time."""

    __slots__ = ("count", "from_size", "from_view", "operators", "view")

    def __init__(self, target, source, size, operators):
        self.view = _View(target)
        self.from_view = _View(source)
        self.from_size = size
        self.operators = list(operators)
        # A copy of a copy of a copy is carried out at some time.
        self.count = 1 + sum(getattr(operator, "count", 1) for operator in operators)

    def carry_out(self, torch, storage):
        source = torch.UntypedStorage(self.from_size)
        for operator in self.operators:
            operator.carry_out(torch, source)
        self.view.make_tensor(torch, storage).copy_(self.from_view.make_tensor(torch, source))


class _CopyOfFile:
    """A copy of a tensor that is mapped from a file, such as a checkpoint's: it stays as it is."""

    __slots__ = ("source", "view")

    def __init__(self, target, source):
        self.view = _View(target)
        self.source = source.detach()

    def carry_out(self, torch, storage):
        self.view.make_tensor(torch, storage).copy_(self.source)


def _is_mapped_file(address):
    """Whether memory is mapped from a file."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            bounds, _, _, _, inode, *_ = line.split()
            start, _, end = bounds.partition("-")
            if int(start, 16) <= address < int(end, 16):
                return inode != "0"
    return False


class _SparseFile:
    """A file that is written from its beginning to its end. Long runs of zeros become holes."""

    _PIECE = 1 << 20

    def __init__(self, path):
        self.file = open(path, "wb", buffering=0)
        self.zeros = bytes(self._PIECE)
        self.end = 0

    def write(self, data):
        with memoryview(data).cast("B") as bytes_of:
            for at in range(0, len(bytes_of), self._PIECE):
                piece = bytes_of[at : at + self._PIECE]
                if len(piece) < self._PIECE or piece != self.zeros:
                    self.file.seek(self.end)
                    self._write_all(piece)
                self.end += len(piece)
            return len(bytes_of)

    def _write_all(self, piece):
        while len(piece):
            piece = piece[self.file.write(piece) :]

    def flush(self):
        self.file.truncate(self.end)

    def close(self):
        self.file.close()


class Host:
    """The fills that are put off in this process."""

    def __init__(self, torch):
        from torch.multiprocessing.reductions import StorageWeakRef

        self.torch = torch
        self.weak = StorageWeakRef
        # By the address of the storage.
        self.waiting = {}
        self.parameters = {}
        self.lock = threading.RLock()
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.floats = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
        self.registered = 0
        self._watch_parameters()
        self._watch_initializers()
        self._wrap_reads()
        self._save_sparsely()

    def _watch_parameters(self):
        from torch.nn.modules.module import register_module_parameter_registration_hook

        register_module_parameter_registration_hook(self._on_parameter)

    def _watch_initializers(self):
        """A tensor that torch.nn.init fills is a parameter, or becomes one:
        `nn.Parameter(nn.init.normal_(torch.empty(…)))`."""
        init = self.torch.nn.init

        def watch(fill):
            @functools.wraps(fill)
            def take_for_parameter(tensor, *arguments, **options):
                if type(tensor) in self.plain:
                    self._take_for_parameter(tensor)
                return fill(tensor, *arguments, **options)

            return take_for_parameter

        for name in _INITIALIZERS:
            if hasattr(init, name):
                setattr(init, name, watch(getattr(init, name)))

    def _on_parameter(self, module, name, parameter):
        # Others may have no storage yet, or none at all.
        if type(parameter) is self.torch.nn.Parameter:
            self._take_for_parameter(parameter)

    def _take_for_parameter(self, parameter):
        if parameter.layout is not self.torch.strided or not parameter.is_cpu or parameter.nbytes < _LARGE:
            return
        storage = parameter.untyped_storage()
        with self.lock:
            self.registered += 1
            if self.registered % 256 == 0:
                self._forget_dead()
            self.parameters[storage.data_ptr()] = self.weak(storage)

    def _forget_dead(self):
        self.parameters = {at: alive for at, alive in self.parameters.items() if not alive.expired()}
        self.waiting = {at: one for at, one in self.waiting.items() if not one.alive.expired()}

    def _wrap_reads(self):
        """Reads that no dispatch mode sees."""
        torch = self.torch

        def wrap(owner, name):
            read = getattr(owner, name)

            @functools.wraps(read)
            def fill_in_first(tensor, *arguments, **options):
                if self.waiting and type(tensor) in self.plain:
                    self.fill_in([tensor])
                return read(tensor, *arguments, **options)

            # Compiled code calls it for `numpy()`. Compiled itself, it would call compiled code again, and so on.
            skip_compiler(torch, fill_in_first)
            setattr(owner, name, fill_in_first)

        for name in ("numpy", "__array__", "tolist", "share_memory_", "__dlpack__"):
            wrap(torch.Tensor, name)

    def _save_sparsely(self):
        """Lets `torch.save` to a path leave holes where there are zeros."""
        serialization = self.torch.serialization
        open_writer = serialization._open_zipfile_writer

        class Writer(serialization._open_zipfile_writer_buffer):
            def __exit__(self, *error):
                try:
                    super().__exit__(*error)
                finally:
                    self.buffer.close()

        def open_sparse_writer(name_or_buffer):
            if isinstance(name_or_buffer, (str, os.PathLike)):
                try:
                    return Writer(_SparseFile(name_or_buffer))
                except OSError:
                    # torch raises for a file that cannot be written, below and not in the context of this exception.
                    pass
            return open_writer(name_or_buffer)

        serialization._open_zipfile_writer = open_sparse_writer

    # Operators.

    @staticmethod
    def kind(space, name, is_view):
        """The class of an operator for us: nothing, or one of the sets of names above."""
        if is_view or name in _SHAPE_ONLY:
            return None
        if space != "aten":
            return _READING
        return next((kind for kind in (_RANDOM, _FILLING, _SCALING, _COPYING) if name in kind), _READING)

    def handle(self, kind, name, function, args, kwargs):
        """Puts off an operator and gives its result; `NotImplemented` if it is to be called."""
        if kind is _READING and not self.waiting:
            return NotImplemented
        with self.lock:
            first = args[0] if args else None
            if kind is not _READING and type(first) in self.plain and first.is_cpu:
                if first.layout is self.torch.strided:
                    result = self._put_off(kind, name, function, first, args, kwargs)
                    if result is not None:
                        return result
            if self.waiting:
                self._fill_in_what_is_read(name, args, kwargs)
            return NotImplemented

    def _put_off(self, kind, name, function, first, args, kwargs):
        """The result of an operator that waits; none if it does not."""
        if kind is not _COPYING:
            return first if self._put_off_change(kind, function, first, args, kwargs) else None
        if name == "copy_":
            return first if self._put_off_copy(first, args[1]) else None
        return self._copy(name, first, kwargs) if first.nbytes >= _LARGE else None

    def _entry(self, tensor):
        """The fill that is put off for the storage of a tensor of the CPU."""
        if not tensor.is_cpu or tensor.layout is not self.torch.strided:
            return None
        at = tensor.untyped_storage().data_ptr()
        one = self.waiting.get(at)
        if one is not None and one.alive.expired():
            del self.waiting[at]
            return None
        return one

    def _is_whole(self, tensor):
        """Whether a tensor is all of its storage."""
        return tensor.is_contiguous() and tensor.storage_offset() == 0 and self._size(tensor) == tensor.nbytes

    @staticmethod
    def _size(tensor):
        return tensor.untyped_storage().nbytes()

    def _is_parameter(self, tensor):
        alive = self.parameters.get(tensor.untyped_storage().data_ptr())
        return alive is not None and not alive.expired()

    def _put_off_change(self, kind, function, tensor, args, kwargs):
        if not self.waiting and tensor.nbytes < _LARGE:
            return False
        if type(tensor) not in (self.torch.Tensor, self.torch.nn.Parameter) or tensor.dtype not in self.floats:
            return False
        generator = kwargs.get("generator")
        others = [*args[1:], *(value for key, value in kwargs.items() if key != "generator")]
        if any(not isinstance(other, (int, float, str, type(None))) for other in others):
            return False
        if generator is not None and generator.device.type != "cpu":
            return False
        one = self._entry(tensor) if self.waiting else None
        whole = self._is_whole(tensor)
        if one is None:
            # The first operator must leave nothing of what was there.
            if kind is _SCALING or not whole or tensor.nbytes < _LARGE or not self._is_parameter(tensor):
                return False
        elif len(one.operators) >= _MAX_PUT_OFF:
            return False
        state = None
        if kind is _RANDOM:
            if not tensor.is_contiguous() or tensor.numel() < 16:
                return False
            generator = self.torch.default_generator if generator is None else generator
            state = generator.get_state()
            kwargs = {**kwargs, "generator": generator}
            self._move_on(function, tensor, args, kwargs)
        operator = _Change(function, tensor, args[1:], kwargs, state)
        if one is None or (whole and kind is not _SCALING):
            self._wait(tensor, [operator])
        else:
            one.operators.append(operator)
        return True

    def _move_on(self, function, tensor, args, kwargs):
        """Draws as many numbers as the operator would, in the order in which it would."""
        left = tensor.numel()
        scratch = self.torch.empty(min(left, 2 * _DRAWN_AT_ONCE), dtype=tensor.dtype)
        while left:
            # The last piece has at least 16, so that it is drawn in the same way as all.
            piece = left if left < 2 * _DRAWN_AT_ONCE else _DRAWN_AT_ONCE
            function(scratch[:piece], *args[1:], **kwargs)
            left -= piece

    def _wait(self, tensor, operators):
        storage = tensor.untyped_storage()
        self.waiting[storage.data_ptr()] = _PutOff(self.weak(storage), operators)

    def _put_off_copy(self, target, source):
        """`copy_` on the host from what is put off."""
        if not isinstance(source, self.torch.Tensor) or source.shape != target.shape:
            return False
        if target.nbytes < _LARGE or target.dtype not in self.floats or not self._is_whole(target):
            return False
        if type(target) not in (self.torch.Tensor, self.torch.nn.Parameter):
            return False
        copy = self._copy_of(target, source)
        if copy is not None:
            self._wait(target, [copy])
        return copy is not None

    def _copy_of(self, target, source):
        """An operator that fills `target` with what `source` holds now; none if it can change unseen."""
        if not source.is_cpu or source.layout is not self.torch.strided:
            return None
        one = self._entry(source)
        if one is not None:
            copy = _Copy(target, source, self._size(source), one.operators)
            return copy if copy.count <= _MAX_PUT_OFF else None
        if source.dtype in self.floats and _is_mapped_file(source.data_ptr()):
            return _CopyOfFile(target, source)
        return None

    def _copy(self, name, source, kwargs):
        """A copy on the host of what is put off, perhaps of another type: it waits too."""
        torch = self.torch
        if not source.is_contiguous() or source.dtype not in self.floats:
            return None
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            return None
        if kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
            return None
        pinned = name == "_pin_memory" or bool(kwargs.get("pin_memory"))
        dtype = kwargs.get("dtype") or source.dtype
        if dtype not in self.floats or kwargs.get("layout") not in (None, torch.strided):
            return None
        result = torch.empty_strided(source.shape, source.stride(), dtype=dtype, pin_memory=pinned)
        copy = self._copy_of(result, source)
        if copy is None:
            return None
        self._wait(result, [copy])
        return result

    def _fill_in_what_is_read(self, name, args, kwargs):
        tensors = []
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, self.torch.Tensor):
                tensors.append(argument)
            elif isinstance(argument, (list, tuple)):
                tensors.extend(one for one in argument if isinstance(one, self.torch.Tensor))
        strided = all(one.layout is self.torch.strided for one in tensors)
        if name == "_to_copy" and strided and args[0].nbytes >= _LARGE:
            device = kwargs.get("device")
            if device is not None and device.type != "cpu":
                return  # to the GPU: the values are not read
        if name == "copy_" and strided:
            target, source = args[0], args[1]
            if not target.is_cpu and source.nbytes >= _LARGE:
                return  # to the GPU: the values are not read
            if target.is_cpu and self._is_whole(target):
                self.fill_in([source])
                # The fill that was put off for the target is overwritten.
                self.waiting.pop(target.untyped_storage().data_ptr(), None)
                return
        self.fill_in(tensors)

    # Filling in.

    def fill_in(self, tensors):
        """Carries out what was put off for these tensors."""
        with self.lock:
            for tensor in tensors:
                one = self._entry(tensor)
                if one is None:
                    continue
                storage = tensor.untyped_storage()
                del self.waiting[storage.data_ptr()]
                from torch.utils._python_dispatch import _disable_current_modes

                with _disable_current_modes(), self.torch.no_grad():
                    for operator in one.operators:
                        operator.carry_out(self.torch, storage)
