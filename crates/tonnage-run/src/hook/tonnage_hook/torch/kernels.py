# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes small Triton kernels when they are launched, on the simulated memory.

The stand-in reports each launch of a kernel that was registered here, with the
addresses of its arguments as the driver gets them. The data that the kernel reads and
writes is memory of the simulated devices, at the same addresses, or pinned memory
of the host. A kernel that cannot be computed is left undone, as all others.
"""

import ctypes
import functools

from tonnage_hook.failures import swallow
from tonnage_hook.torch.ttir import Kernel, Refused, dtype_of, is_float, width_of, written_pointers
from tonnage_hook.wire import bind

_UNKNOWN, _DRAWN, _KNOWN = range(3)
# Pieces of memory whose state is queried one by one.
_MAX_PIECES = 64


class _Memory:
    """The simulated memory, as arrays of NumPy."""

    def __init__(self, np, values):
        self.np = np
        self.values = values
        self.buffers = []
        self.drawn = None
        # Places that were written, in case the kernel is given up, and whether anything of that is known.
        self.written = []
        self.wrote_known = False

    def _buffer(self, first, last):
        """The range of memory with these addresses, as bytes, where it begins, and whether it is a device's."""
        for start, end, array, device in self.buffers:
            if start <= first and last <= end:
                return start, array, device
        size = ctypes.c_uint64()
        start = self.values.range(first, ctypes.byref(size))
        device = start != 0
        if not device:
            start = self.values.pinned(first, ctypes.byref(size))
        if start == 0 or last > start + size.value:
            raise Refused("an address that is not memory")
        array = self.np.frombuffer((ctypes.c_char * size.value).from_address(start), self.np.uint8)
        if device:
            # Pinned memory may be freed.
            self.buffers.append((start, start + size.value, array, device))
        return start, array, device

    def _typed(self, addresses, element):
        """An array over the memory of some addresses, their indices in it, and whether it is a device's."""
        np = self.np
        width = width_of(element)
        first, last = int(addresses.min()), int(addresses.max()) + width
        start, array, device = self._buffer(first, last)
        # From the first address on, so that the indices are whole.
        part = array[first - start : last - start]
        offsets = addresses - first
        if (offsets % width).any():
            raise Refused("addresses that are not aligned")
        kind = np.uint16 if element == "bf16" else np.dtype(dtype_of(element))
        return part.view(kind), offsets // width, device

    def _pieces(self, addresses, width):
        """Contiguous pieces that cover some addresses."""
        np = self.np
        first, last = int(addresses.min()), int(addresses.max()) + width
        if last - first == addresses.size * width or addresses.size == 1:
            return ((first, last - first),)
        places = np.unique(addresses)
        breaks = np.flatnonzero(np.diff(places) != width) + 1
        if len(breaks) >= _MAX_PIECES:
            return None
        return [(int(one[0]), int(one[-1]) + width - int(one[0])) for one in np.split(places, breaks)]

    def _find_level(self, addresses, width):
        """The least that is known of any of these."""
        pieces = self._pieces(addresses, width)
        if pieces is None:
            first, last = int(addresses.min()), int(addresses.max()) + width
            pieces = ((first, last - first),)
        least = _KNOWN
        for address, size in pieces:
            state = self.values.state_of(address, size)
            if state > _KNOWN:
                raise Refused("a graph is being captured")
            least = min(least, state)
        return least

    def _read(self, addresses, element):
        np = self.np
        if addresses.size == 0:
            return np.zeros(addresses.shape, dtype_of(element)), True
        # Queried first: data that another rank sends may have to arrive.
        array, indices, device = self._typed(addresses, element)
        state = self._find_level(addresses, width_of(element)) if device else _KNOWN
        if state == _UNKNOWN and is_float(element):
            # Finite, and no two of them the same.
            if self.drawn is None:
                self.drawn = np.random.default_rng(7).uniform(0.05, 0.95, 4096).astype(np.float32)
            return self.drawn[np.arange(addresses.size) % 4096].reshape(addresses.shape), False
        values = array[indices]
        if element == "bf16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values, state == _KNOWN

    def load(self, pointers, element, mask, other):
        np = self.np
        kind = dtype_of(element)
        if mask is None or np.all(mask):
            values, known = self._read(np.asarray(pointers), element)
            return values.astype(kind)[()], known
        mask = np.broadcast_to(mask, np.shape(pointers))
        result = np.zeros(mask.shape, kind)
        if other is not None:
            result[...] = other
        values, known = self._read(np.asarray(pointers)[mask], element)
        result[mask] = values
        return result[()], known

    def store(self, pointers, element, value, mask, known):
        np = self.np
        addresses = np.asarray(pointers)
        values = np.broadcast_to(value, addresses.shape)
        if mask is not None:
            mask = np.broadcast_to(mask, addresses.shape)
            addresses, values = addresses[mask], values[mask]
        if addresses.size == 0:
            return
        array, indices, device = self._typed(addresses, element)
        if element == "bf16":
            values = (np.asarray(values, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        array[indices] = values
        self.wrote_known |= bool(known)
        if device:
            self._mark(addresses, width_of(element), _KNOWN if known else _DRAWN)

    def _mark(self, addresses, width, state):
        pieces = self._pieces(addresses, width)
        if pieces is None:
            pieces = [(int(one), width) for one in addresses.reshape(-1)]
        for address, size in pieces:
            self.values.mark_range(address, size, state)
            self.written.append((address, size))

    def change(self, pointers, element, value, mask, update, known):
        """Atomic operations, one after another."""
        np = self.np
        addresses = np.asarray(pointers)
        values = np.broadcast_to(value, addresses.shape).reshape(-1)
        chosen = np.broadcast_to(True if mask is None else mask, addresses.shape).reshape(-1)
        old = np.zeros(addresses.size, dtype_of(element))
        for at, address in enumerate(addresses.reshape(-1)):
            if chosen[at]:
                place = np.asarray(address)
                before, of = self._read(place, element)
                known = known & of
                old[at] = before
                self.store(place, element, update(old[at], values[at]), None, known)
        return old.reshape(addresses.shape)[()], known

    def give_up(self):
        """Marks the memory that was written as unknown."""
        for address, size in self.written:
            self.values.mark_range(address, size, 0)


class Kernels:
    def __init__(self, library, values):
        self.library = library
        self.values = values
        self.kernels = {}
        # Where those that were not computed may write, by function; and whether the last launch was computed.
        self.written = {}
        self.computed = False
        self.memory = None
        bind(library, "tonnage_kernel_launched", "tonnage_kernel_watch")
        # Kept here because the stand-in holds only its address.
        numbers = [ctypes.c_uint64, *[ctypes.c_uint32] * 3, ctypes.c_uint64]
        self.callback = ctypes.CFUNCTYPE(None, *numbers)(self._launched)

    def modules(self):
        """The actions after the import of each module."""
        return {"triton.compiler.compiler": self._change_triton, "triton.runtime.jit": self._watch_launches}

    def _watch_launches(self, module):
        """Memory that a kernel writes without its values being computed is unknown. The driver gets addresses only;
        here are the
        tensors."""
        kind = module.JITFunction
        run = kind.__dict__.get("run")
        if run is None:
            # Triton of torch 2.1 makes one for each kernel.
            return

        @functools.wraps(run)
        def run_and_forget(this, *arguments, **options):
            self.computed = False
            kernel = run(this, *arguments, **options)
            if not self.computed and not options.get("warmup"):
                self._forget(kernel, this.arg_names, arguments, options)
            return kernel

        kind.run = run_and_forget

    def _forget(self, kernel, names, arguments, options):
        try:
            given = dict(zip(names, arguments)) | options
            tensors = [given[name] for name in names if hasattr(given.get(name), "untyped_storage")]
            if not tensors:
                return
            places = self.written.get(kernel.function)
            if places is None:
                places = self.written[kernel.function] = written_pointers(kernel.asm["ttir"])
            count, written = places
            for at, tensor in enumerate(tensors):
                if count != len(tensors) or at in written:
                    self.values.forget(tensor)
        except Exception as error:
            swallow("Kernels._forget", error)

    def _change_triton(self, module):
        import numpy

        self.memory = _Memory(numpy, self.values)
        kind = module.CompiledKernel
        initialize = kind._init_handles

        def initialize_and_register(this):
            initialize(this)
            self._register(this.function, this.asm)

        kind._init_handles = initialize_and_register
        self.library.tonnage_kernel_launched(self.callback)

    def _register(self, function, asm):
        if function is None or function in self.kernels:
            return
        try:
            kernel = Kernel(asm["ttir"], self.memory.np)
        except Refused:
            # It needs no values, or has something that is not understood: a kernel like all others.
            self.kernels[function] = None
            return
        except Exception as error:
            swallow("Kernels._register", error)
            self.kernels[function] = None
            return
        self.kernels[function] = kernel
        self.library.tonnage_kernel_watch(function)

    def _launched(self, function, x, y, z, parameters):
        """A kernel is launched; its arguments are where the driver gets them from."""
        try:
            if self.values.on:
                self._compute(self.kernels[function], (x, y, z), parameters)
        except Refused:
            pass  # the kernel writes unknown values
        except Exception as error:
            swallow("Kernels._launched", error)

    def _compute(self, kernel, grid, parameters):
        np, memory = self.memory.np, self.memory
        places = (ctypes.c_uint64 * len(kernel.arguments)).from_address(parameters)
        arguments = []
        for place, kind in zip(places, kernel.arguments):
            width = width_of(kind.element)
            data = ctypes.string_at(place, width)
            if kind.element == "bf16":
                raise Refused("a scalar bfloat16")
            arguments.append(np.frombuffer(data, dtype_of(kind.element))[0])
        memory.written.clear()
        memory.wrote_known = False
        try:
            kernel.run(arguments, grid, memory)
            self.computed = True
        except Exception as error:
            memory.give_up()
            if not isinstance(error, Refused):
                swallow("Kernels._compute", error)
