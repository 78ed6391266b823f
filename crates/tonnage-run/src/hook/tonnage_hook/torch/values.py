# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes small operators for real, so that what a script reads back is true.

Kernels do nothing in a dry run, but programs request values: flags, counters,
token ids, masks, routing tables, sizes. Nearly all of them are small. This
dispatch mode sees each operator of torch on CUDA tensors. The CUDA operator
always runs, so torch's allocator sees exactly what it would see; beside it the
same operator is computed on the CPU where that is cheap, and the result is
written to the simulated device memory.

The stand-in keeps what is known of each range of memory: nothing, drawn, or
known. Known is what came from the host, was made by a factory, or was computed
from known values only. Everything else that has a value is drawn: an answer
that is finite, the same in every run and for every call, and not that of a GPU.
Drawn values depend on the shape only, so that what is computed again in a
backward pass has the sizes of the first time.

* Integers and booleans are computed up to tens of MiB, floating point numbers
  up to 128 KiB (more would be weights, which decide nothing), matrix products
  only where they are tiny.
* Operators that are cheap are computed from unknown inputs too, up to 64 KiB:
  `isfinite(loss)` is true, and a stop flag follows the side of it that is known.
* Where the size of a result depends on values (`nonzero`, masks, `unique`), the
  CUDA code reads a count back from the device. It gets the true count, and
  allocates what it would on a GPU. Where the mask is unknown, the user's
  assumption takes its place.
* Reads of values that are not known are counted, with the line of the script.

It is off during backward passes and steps of torch's optimizers, where values
rarely matter and a reference held a little longer would move the allocator's
blocks, except in Python code that is called there (modules, which compute a
forward pass again, functions with a backward pass of their own, optimizers that
are not torch's), in steps that go by values (LBFGS, sparse gradients), and in
torch's own functions of backward passes that do. Torch's backward of an indexing
by masks counts them once more; it gets the count of the forward pass. Memory that is
read in spite of that is counted by the stand-in, and named by the line of the
backward pass or the step.
"""

import collections
import ctypes
import functools
import os
import sys
import threading
import types
import warnings

from tonnage_hook.failures import harmless, swallow
from tonnage_hook.libraries import is_library
from tonnage_hook.torch.decisions import leads_to_decision, stored_as
from tonnage_hook.torch.frames import skip_compiler
from tonnage_hook.torch.graphs import node_of
from tonnage_hook.wire import bind

_UNKNOWN, _DRAWN, _KNOWN, _UNAVAILABLE = range(4)
_DOUBT, _ZERO = 0, 3  # further arguments of `mark` besides _DRAWN and _KNOWN

# Tensors of torch.compile, each of which goes with its own mode.
_OF_MODES = ("FakeTensor", "FunctionalTensor")

# Marks an answer for a read of one byte; as in the stand-in.
_FOR_A_BYTE = 1 << 63

_SMALL = 64 << 10
_MAX_FLOAT = 128 << 10
_MAX_INTEGER = 32 << 20
# Rows of bytes: Python objects that ranks send each other.
_MAX_BYTES = 256 << 20
# Sorting takes longer than reading.
_MAX_SORTED = 8 << 20
# Indices and masks that are drawn for an operator that is not computed.
_MAX_DRAWN = 8 << 20

_HEAVY = (
    "mm",
    "linear",
    "conv",
    "attention",
    "einsum",
    "_fft",
    "linalg",
    "grouped",
    "rnn",
    "lstm",
    "gru",
    "cdist",
    "grid_sampl",
)
_SORTING = (
    "sort",
    "topk",
    "unique",
    "cumsum",
    "kthvalue",
    "median",
    "mode",
    "searchsorted",
    "bucketize",
    "bincount",
    "histc",
)
# Passed on without a look: they neither make nor change values.
_PASSED = {
    "set_",
    "resize_",
    "resize_as_",
    "record_stream",
    "_pin_memory",
    "is_pinned",
    "detach",
    "alias",
    "lift_fresh",
    "lift",
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "_efficientzerotensor",
    "is_same_size",
}
# Results that hold one value throughout; the position of that value, or the value itself.
_FILLED = {
    "zeros": 0,
    "zeros_like": 0,
    "new_zeros": 0,
    "zero_": 0,
    "zero": 0,
    "ones": 1,
    "ones_like": 1,
    "new_ones": 1,
    "full": (1,),
    "full_like": (1,),
    "new_full": (2,),
    "scalar_tensor": (0,),
    "fill_": (1,),
    "fill": (1,),
}
# Nodes of autograd that count the masks of their forward pass again.
_COUNTING_NODES = {"IndexBackward0", "IndexPutBackward0"}
# Operators whose function in a backward pass reads values: whether a factor is zero, whether a phase matters, how many
# rows of a sparse gradient there are.
_READ_IN_BACKWARD = ("prod", "cumprod", "linalg_", "_linalg_", "embedding", "_embedding_bag")
# The same by the names of their nodes.
_READING_NODES = ("ProdBackward", "CumprodBackward", "Linalg", "EmbeddingB")
_MAX_COUNTED = 1 << 16
# They write all of `self` whatever was there before.
_OVERWRITING = {
    "copy_",
    "copy",
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "geometric_",
    "cauchy_",
    "log_normal_",
}
# Indices among as many as the input has along a dimension: the position of that dimension among the arguments.
_CHOSEN = {
    "argmax": 1,
    "argmin": 1,
    "max": 1,
    "min": 1,
    "topk": 2,
    "sort": 1,
    "multinomial": None,
    "argsort": 1,
    "kthvalue": 2,
    "median": 1,
    "mode": 1,
}
_COMPARED = {
    "gt": lambda other: 0.5 > other,
    "ge": lambda other: 0.5 >= other,
    "lt": lambda other: 0.5 < other,
    "le": lambda other: 0.5 <= other,
}
# Files that write tensors and decide nothing by what is in them.
_SAVERS = "/safetensors/"
# Values that torch's line search reads along its direction: the slope where it begins, a flatter one where it ends, and
# how much the gradient has changed. With these it goes on as it does before a minimum is reached.
_SEARCHED = {"gtd": -0.5, "gtd_new": -0.1, "ys": 0.5}
_SIZED = {
    "_coalesce",
    "nonzero",
    "masked_select",
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
}


class _Operator:
    """The properties of an operator that follow from its name and schema."""

    __slots__ = (
        "body",
        "call",
        "composite",
        "handle",
        "heavy",
        "host",
        "makes",
        "mutated",
        "name",
        "overwrites",
        "random",
        "seeded",
        "sorting",
        "writes_only",
    )


def _extent(tensor):
    """Bytes from the first to the last element."""
    size = tensor.nbytes
    if size == 0 or tensor.is_contiguous():
        return size
    elements = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return elements * tensor.itemsize


# Pieces of a tensor that is not contiguous; one with more is not looked into.
_MAX_PIECES = 1024


def _pieces(tensor):
    """Addresses and sizes of the contiguous pieces of a tensor; none if there are too many."""
    size, address = tensor.nbytes, tensor.data_ptr()
    if size == 0:
        return ()
    extent = _extent(tensor)
    if extent == size:
        return ((address, size),)
    steps = sorted(
        (stride, length) for stride, length in zip(tensor.stride(), tensor.shape) if length > 1 and stride > 0
    )
    run = 1
    while steps and steps[0][0] == run:
        run *= steps.pop(0)[1]
    pieces = [0]
    for stride, length in steps:
        if len(pieces) * length > _MAX_PIECES:
            return None
        pieces = [start + step * stride for step in range(length) for start in pieces]
    each = tensor.itemsize
    return [(address + start * each, run * each) for start in pieces]


class Values:
    """The mode's work; one for a process."""

    def __init__(self, torch, library, host, assumed_mask):
        self.torch = torch
        self.host = host
        self.assumed_mask = assumed_mask
        # Whether some ranks of the job are not run: the values that they would send are assumed.
        self.has_absent_ranks = False
        bind(
            library,
            "tonnage_values_state",
            "tonnage_values_mark",
            "tonnage_values_range",
            "tonnage_values_pinned",
            "tonnage_values_answer",
            "tonnage_values_share",
            "tonnage_values_unseen",
            "tonnage_kernel_launches",
            "tonnage_place",
            "tonnage_backward_place",
            "tonnage_finish_from",
            "tonnage_values_mode",
        )
        self.state_of = library.tonnage_values_state
        self.mark_range = library.tonnage_values_mark
        self.range = library.tonnage_values_range
        self.pinned = library.tonnage_values_pinned
        self.answer = library.tonnage_values_answer
        self.share_range = library.tonnage_values_share
        self.count_unseen = library.tonnage_values_unseen
        self.count_kernels = library.tonnage_kernel_launches
        self.calling_from = library.tonnage_place
        self.backward_from = library.tonnage_backward_place
        self.finish_from = library.tonnage_finish_from
        self.entered = library.tonnage_values_mode
        self.unseen = 0
        integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
        # Whether a tensor of this type counts as integers; other types are not computed.
        self.kinds = dict.fromkeys(integers, True)
        others = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
        # Older releases of torch have fewer of these.
        eighths = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
        for name in (*others, *eighths):
            if hasattr(torch, name):
                self.kinds[getattr(torch, name)] = False
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.subclasses = {}
        self.buffers = []
        self.operators = {}
        self.pool = None
        self.generator = None
        self.on = False
        self.reads = collections.Counter()
        self.sizes = collections.Counter()
        # The number of both that decide something, and the thread that reports it.
        self.decisions = 0
        self.tell = lambda summary: None
        # The counts of masks, by the number of autograd's node.
        self.counted = collections.OrderedDict()
        self.sequence = getattr(torch._C._autograd, "_get_sequence_nr", None)
        # Whether an operator was met whose function in a backward pass reads values.
        self.read_in_backward = False
        # How often a line search has read a loss.
        self.searches = 0
        # The line whose backward pass is running: autograd's own threads have no line.
        self.backward_place = None
        self.foreign = {}
        self.deciding = {}
        self.places = [os.path.dirname(torch.__file__) + os.sep, "<"]
        # Code of torch's that branches on values as a script does.
        self.deciders = os.path.join(os.path.dirname(torch.__file__), "optim") + os.sep
        self.mode = None

    # The mode and where it is on.

    def install(self):
        """Enters the mode; called when torch has been imported, before any other mode can be there."""
        from torch.utils import _python_dispatch as dispatch

        values, host = self, self.host

        class Mode(dispatch.TorchDispatchMode):
            supports_higher_order_operators = True

            @classmethod
            def is_infra_mode(cls):
                return True

            @classmethod
            def _should_skip_dynamo(cls):
                return False

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if types and any(values.unwraps(kind) for kind in types):
                    if any(kind.__name__ in _OF_MODES for kind in types):
                        # It has no values, and is made by a mode below this one, which must get its turn.
                        return function(*args, **kwargs) if kwargs else function(*args)
                    # The subclass unwraps itself first; its inner tensors come here afterwards.
                    return NotImplemented
                operator = values.operators.get(function)
                if operator is None:
                    operator = values._look_up(function)
                try:
                    if operator.composite is not None:
                        push(self)
                        try:
                            return operator.composite(*args, **kwargs) if kwargs else operator.composite(*args)
                        finally:
                            pop()
                    if operator.host is not None:
                        result = host.handle(operator.host, operator.name, function, args, kwargs or {})
                        if result is not NotImplemented:
                            return result
                    if operator.handle is None or not values.on:
                        return operator.call(*args, **kwargs) if kwargs else operator.call(*args)
                    return operator.handle(operator, args, kwargs or {})
                except BaseException as error:
                    # The objects that this frame refers to would live as long as the exception.
                    del args, kwargs, types
                    trace = error.__traceback__
                    while trace is not None and trace.tb_frame.f_code.co_filename == "<tonnage>":
                        trace = trace.tb_next
                    error.__traceback__ = trace
                    del trace
                    raise

        def push(mode):
            dispatch._push_mode(mode)
            entered(1)

        def pop():
            dispatch._pop_mode()
            entered(-1)

        entered = self.entered
        self.push, self.pop = push, pop
        self.mode = Mode()
        skip_compiler(self.torch, Mode.__torch_dispatch__)
        self.push(self.mode)
        bootstrap = threading.Thread._bootstrap_inner

        def bootstrap_inner(thread):
            if self.mode is not None:
                self.push(self.mode)
            bootstrap(thread)

        threading.Thread._bootstrap_inner = bootstrap_inner
        self._watch_sharing(self.torch.UntypedStorage)
        self._watch_warnings()
        if not hasattr(dispatch.TorchDispatchMode, "supports_higher_order_operators"):
            self._leave_before_higher_order()

    def _leave_before_higher_order(self):
        """In torch 2.6 an operator that calls functions refuses where a mode is on that it does not know."""
        kind = self.torch._ops.HigherOrderOperator
        kind.__call__ = self._without_mode(kind.__call__)

    def _without_mode(self, function):
        """A function that leaves the mode while it runs."""

        @functools.wraps(function)
        def call(*arguments, **options):
            paused = self.pause()
            try:
                return function(*arguments, **options)
            finally:
                if paused:
                    self.resume()

        return call

    def _watch_warnings(self):
        """Warnings of torch's C++ code name the innermost frame of Python, which is ours. They are issued again for the
        frame that called us, so that filters, and whether a line was warned of before, are those of the script."""
        show = warnings._showwarnmsg
        again = threading.local()

        @functools.wraps(show)
        def show_for_caller(message):
            frame = sys._getframe(1)
            beside = frame.f_code.co_name == "_called_on_cpu"
            while frame is not None and frame.f_code.co_filename == "<tonnage>":
                frame = frame.f_back
            if message.filename != "<tonnage>" or frame is None or getattr(again, "inside", False):
                return show(message)
            # Ours would keep a warning about another line from being shown.
            globals().get("__warningregistry__", {}).clear()
            warnings.onceregistry.pop((str(message.message), message.category), None)
            if beside:
                return None  # the operator of CUDA warns too
            again.inside = True
            try:
                warnings.warn_explicit(
                    message.message,
                    message.category,
                    frame.f_code.co_filename,
                    frame.f_lineno,
                    frame.f_globals.get("__name__") or "<string>",
                    frame.f_globals.setdefault("__warningregistry__", {}),
                    source=message.source,
                )
            finally:
                again.inside = False
            return None

        warnings._showwarnmsg = show_for_caller

    def _watch_sharing(self, storages):
        """A storage that goes to another process is written there unseen: nothing in it is known from then on."""
        share = storages._share_cuda_

        @functools.wraps(share)
        def share_and_doubt(storage, *arguments):
            shared = share(storage, *arguments)
            self._shared(storage)
            return shared

        storages._share_cuda_ = share_and_doubt

    @harmless(None)
    def _shared(self, storage):
        self.share_range(storage.data_ptr(), storage.nbytes())

    def unwraps(self, kind):
        """Whether a kind of tensor handles operators itself; a subclass that only adds attributes does not."""
        found = self.subclasses.get(kind)
        if found is None:
            plain = kind.__torch_dispatch__ is self.torch._C._disabled_torch_dispatch_impl
            found = self.subclasses[kind] = not plain
        return found

    def start(self):
        """Called by torch when CUDA is first used."""
        torch = self.torch
        self.generator = torch.Generator()
        self.pool = torch.rand(_SMALL, generator=self.generator.manual_seed(7)) * 0.9 + 0.05
        self.on = True

    def stop(self):
        """Computes nothing from here on: the end is near, or this is a forked child."""
        self.on = False
        self.mode = None

    def _is_top(self):
        count = self.torch._C._len_torch_dispatch_stack()
        return count > 0 and self.torch._C._get_dispatch_stack_at(count - 1) is self.mode

    def pause(self):
        """Leaves the mode until `resume`: a backward pass or a step of an optimizer begins."""
        if self.mode is None:
            return False
        if self._is_top():
            self.pop()
            return True
        return False

    def resume(self):
        if self.mode is not None:
            self.push(self.mode)

    @harmless(())
    def before_backward(self, roots):
        """Prepares nodes that read values. Handles, to be removed after the pass.

        Functions that count masks get the count of the forward pass; those of other functions are seen by the mode.
        """
        handles, seen = [], set()
        # Not the frame: what its function has made would live on with it.
        self.backward_place = self._place()[0]
        name = self.backward_place[0].encode()
        self.backward_from(name, len(name), self.backward_place[1])
        if not self.counted and not self.read_in_backward:
            return handles
        roots = (roots,) if isinstance(roots, self.torch.Tensor) else roots
        waiting = [node_of(root) for root in roots if isinstance(root, self.torch.Tensor)]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            waiting.extend(one for one, _ in node.next_functions)
            name = node.name()
            if name.startswith(_READING_NODES) and self._reads(name, node):
                watch = _Watched(self)
                handles.append(node.register_prehook(watch.enter))
                handles.append(node.register_hook(watch.leave))
            elif name in _COUNTING_NODES:
                counts = self.counted.get(node._sequence_nr())
                if counts:
                    handles.append(node.register_prehook(_Answers(self.answer, counts * 4).enter))
                    handles.append(node.register_hook(self._answered))
        return handles

    def after_backward(self):
        self.backward_from(b"", 0, 0)

    @staticmethod
    def _reads(name, node):
        """Whether the backward pass of an operator reads values: that of an embedding only for sparse gradients."""
        return not name.startswith("EmbeddingB") or node._saved_sparse

    def _answered(self, *_):
        self.answer(None, 0)

    @harmless(None)
    def note_unseen(self):
        """Counts the reads of torch that the mode did not see, at the line that called it."""
        before, self.unseen = self.unseen, self.count_unseen()
        if self.on and self.unseen > before:
            key = (*self._place()[0], True)
            self.reads[key] += self.unseen - before
            self.decisions += self.unseen - before - 1
            self._tell_now_and_then(True)

    def _remember(self, counts, *operands):
        """The selection of masks, for the backward pass. Autograd made its node just before it called the operator.

        It made none if no operand has a gradient: the last one is that of another operator.
        """
        has_node = self.torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)
        if self.sequence is not None and has_node:
            self.counted[self.sequence() - 1] = counts
            if len(self.counted) > _MAX_COUNTED:
                self.counted.popitem(last=False)

    def is_active(self):
        """Whether the mode is among those of this thread."""
        torch = self.torch._C
        return any(torch._get_dispatch_stack_at(at) is self.mode for at in range(torch._len_torch_dispatch_stack()))

    # Operators.

    def _look_up(self, function):
        operator = _Operator()
        operator.call = getattr(function, "_op", function)
        operator.composite = operator.handle = operator.host = None
        self.operators[function] = operator
        schema = getattr(function, "_schema", None)
        if schema is None:
            return operator
        space, _, name = schema.name.partition("::")
        operator.name = name
        if name.startswith(_READ_IN_BACKWARD):
            self.read_in_backward = True
        operator.mutated = [
            (at, argument.name, argument.kwarg_only)
            for at, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        operator.composite = self._composite(function)
        is_view = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        operator.host = self.host.kind(space, name, is_view)
        if name in _PASSED or is_view:
            return operator
        operator.writes_only = any(kwarg_only for _, _, kwarg_only in operator.mutated)
        operator.overwrites = name in _OVERWRITING
        operator.heavy = any(word in name for word in _HEAVY)
        operator.sorting = any(word in name for word in _SORTING)
        operator.random = self.torch.Tag.nondeterministic_seeded in function.tags
        operator.seeded = any(argument.name == "generator" for argument in schema.arguments)
        operator.makes = any(argument.name == "device" for argument in schema.arguments)
        if space == "torchvision" and name == "nms":
            operator.handle = self._select_boxes
        elif space in ("c10d", "_c10d_functional"):
            operator.handle = self._collective
        elif space != "aten":
            if any(str(result.type) == "List[Tensor]" for result in schema.returns):
                operator.call = self._without_undefined(operator.call)
            operator.body = self._body(function, space)
            operator.handle = (
                self._look_inside if operator.body is not None else self._pass if operator.mutated else None
            )
        elif name == "_local_scalar_dense":
            operator.handle = self._read
        elif name in ("_to_copy", "copy_"):
            operator.handle = self._copy
        elif name == "multinomial":
            operator.handle = self._sample
        elif name == "normal":
            operator.handle = self._normal
        elif name == "_linalg_check_errors":
            operator.handle = self._check_status
        elif name.startswith(("linalg_", "_linalg_")):
            operator.handle = self._solve
        elif name == "equal":
            operator.handle = self._equal
        elif name == "allclose":
            operator.handle = self._close
        elif name == "cat" and not operator.mutated:
            operator.handle = self._cat
        elif name == "dot":
            operator.handle = self._dot
        elif name == "convolution":
            operator.handle = self._convolve
        elif name in _SIZED and not operator.writes_only:
            operator.handle = getattr(self, f"_{name.strip('_')}")
        elif name in _FILLED:
            operator.handle = self._fill
        else:
            operator.handle = self._compute
        return operator

    def _without_undefined(self, call):
        """An operator whose list of results may have undefined tensors in it, as those of FlashAttention 3: they do not
        pass through a mode, and become empty ones."""

        def filled(*args, **kwargs):
            results = call(*args, **kwargs)
            return [self.torch.empty(0) if result is None else result for result in results]

        return filled

    def _composite(self, function):
        """The implementation of an operator that only calls others; none if it is not such a one.

        Autograd calls it before a mode is called, except under `inference_mode`, which leaves autograd out: the mode
        would see one operator and none of those inside.
        """
        has_kernel = self.torch._C._dispatch_has_kernel_for_dispatch_key
        key = self.torch._C.DispatchKey.CompositeImplicitAutograd
        if not has_kernel(function.name(), "CompositeImplicitAutograd") or has_kernel(function.name(), "CUDA"):
            return None
        return functools.partial(function._op_dk, key)

    def _body(self, function, space):
        """The function of Python that a script registered as its own operator; none if it is not such a one.

        DTensor's own operator is C++ that calls others: copies, and a collective that sends what they made.
        """
        name = function.name().partition("::")[2]
        if space == "_dtensor":
            has_kernel = self.torch._C._dispatch_has_kernel_for_dispatch_key
            keys = (key for key in ("CUDA", "CompositeExplicitAutograd") if has_kernel(function.name(), key))
            return next(
                (functools.partial(function._op_dk, getattr(self.torch._C.DispatchKey, key)) for key in keys), None
            )
        registered = getattr(self.torch.library, "_impls", ())
        for key in ("CUDA", "CompositeExplicitAutograd"):
            if f"{space}/{name}/{key}" in registered:
                return functools.partial(function._op_dk, getattr(self.torch._C.DispatchKey, key))
        return None

    @staticmethod
    def _call(operator, args, kwargs):
        return operator.call(*args, **kwargs) if kwargs else operator.call(*args)

    def _tensors(self, args, kwargs):
        kind = self.torch.Tensor
        found = []
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, kind):
                found.append(argument)
            elif isinstance(argument, (list, tuple)):
                found.extend(one for one in argument if isinstance(one, kind))
        return found

    def _most(self, tensor, whole):
        """Bytes up to which a tensor is computed."""
        if whole and tensor.dtype is self.torch.uint8 and tensor.dim() == 1:
            return _MAX_BYTES
        return _MAX_INTEGER if whole else _MAX_FLOAT

    @harmless(_UNKNOWN)
    def _level(self, tensors, heavy=False, sorting=False):
        """Whether to compute from these: not at all, with a drawn or with a known result."""
        kinds = self.kinds
        total = 0
        for tensor in tensors:
            whole = kinds.get(tensor.dtype)
            if whole is None or tensor.layout is not self.torch.strided:
                return _UNKNOWN
            size = tensor.nbytes
            if size > self._most(tensor, whole):
                return _UNKNOWN
            # Bytes are copied and sent, and nothing else.
            total += 0 if size > _MAX_INTEGER else size
        if total > (_SMALL if heavy else _MAX_SORTED if sorting else 2 * _MAX_INTEGER):
            return _UNKNOWN
        level = _KNOWN
        for tensor in tensors:
            size = tensor.nbytes
            if size == 0 or not tensor.is_cuda:
                continue
            state = self._state(tensor)
            if state == _UNAVAILABLE:
                return _UNKNOWN
            if state < _KNOWN:
                level = _DRAWN
                if size > _SMALL and (state == _UNKNOWN or not kinds[tensor.dtype]):
                    return _UNKNOWN
        return level

    # Device memory: what is known of it, and its bytes as tensors of the CPU.

    def _state(self, tensor):
        """The least that is known of any element."""
        if self.unwraps(type(tensor)):
            # Made by a mode below this one: it has no memory, or not its own.
            return _UNAVAILABLE
        pieces = _pieces(tensor)
        if pieces is None:
            # Too many to query each: what is known of all that lies between them too.
            state = self.state_of(tensor.data_ptr(), _extent(tensor))
            return _UNAVAILABLE if state == _UNKNOWN else state
        least = _KNOWN
        for address, size in pieces:
            state = self.state_of(address, size)
            if state == _UNAVAILABLE:
                return state
            least = min(least, state)
        return least

    def _mark(self, tensor, state):
        """Reports what is known of a tensor from now on."""
        if self.unwraps(type(tensor)):
            return
        pieces = _pieces(tensor)
        if pieces is None:
            address, extent = tensor.data_ptr(), _extent(tensor)
            if state != _DOUBT:
                # The memory between the pieces was not written: its state is as before.
                whole = self.state_of(address, extent) if extent <= _MAX_INTEGER else _UNKNOWN
                state = min(state, whole) if whole in (_DRAWN, _KNOWN) else _DOUBT
            pieces = ((address, extent),)
        for address, size in pieces:
            self.mark_range(address, size, state)

    def _flat(self, tensor):
        """The bytes of a device tensor as a flat tensor of the CPU, without a copy."""
        address = tensor.data_ptr()
        for start, end, buffer in self.buffers:
            if start <= address < end:
                break
        else:
            size = ctypes.c_uint64()
            start = self.range(address, ctypes.byref(size))
            is_device = start != 0
            if not is_device:
                start = self.pinned(address, ctypes.byref(size))
            buffer = (ctypes.c_char * size.value).from_address(start)
            if is_device:
                # Pinned memory may be freed.
                self.buffers.append((start, start + size.value, buffer))
        count = _extent(tensor) // tensor.itemsize
        return self.torch.frombuffer(buffer, dtype=tensor.dtype, count=count, offset=address - start)

    def _view(self, tensor):
        if tensor.nbytes == 0:
            return self.torch.empty(tensor.shape, dtype=tensor.dtype)
        view = self._flat(tensor).as_strided(tensor.shape, tensor.stride())
        # Both are lazy: the memory has the values without them.
        view = view.conj() if tensor.is_conj() else view
        return view._neg_view() if tensor.is_neg() else view

    def _pull(self, tensor):
        """The values of a device tensor; unknown floating point numbers are drawn."""
        if not tensor.is_cuda:
            return tensor
        view = self._view(tensor)
        if tensor.nbytes and not self.kinds[tensor.dtype] and self._state(tensor) == _UNKNOWN:
            # Elements of an expanded tensor share their memory: then the memory is filled, not the elements.
            into = view if _extent(tensor) >= tensor.nbytes else self._flat(tensor)
            into.copy_(self.pool[: into.numel()].reshape(into.shape))
            self._mark(tensor, _DRAWN)
        return view

    @harmless(None)
    def _pulled(self, tensor):
        """As `_pull`; nothing where that fails."""
        return self._pull(tensor)

    @harmless(None)
    def _write_values(self, tensor, values, level):
        """Writes the values of a device tensor."""
        if tensor.nbytes == 0:
            return
        if (
            tensor.dtype not in self.kinds
            or _extent(tensor) < tensor.nbytes  # expanded: its elements share their memory
            or self._state(tensor) == _UNAVAILABLE
        ):
            # The earlier contents do not determine the present ones.
            self._mark(tensor, _DOUBT)
            return
        self._view(tensor).copy_(values)
        self._mark(tensor, level)

    def _may_put(self, tensor):
        """Whether a result is so small that its values are kept."""
        whole = self.kinds.get(tensor.dtype)
        if whole is None or tensor.layout is not self.torch.strided:
            return False
        return tensor.nbytes <= self._most(tensor, whole)

    def _copied(self, argument, copies):
        """An argument with its device tensors on the CPU, each of them once."""
        if isinstance(argument, self.torch.Tensor):
            if not argument.is_cuda:
                return argument
            if id(argument) not in copies:
                copies[id(argument)] = self._pull(argument)
            return copies[id(argument)]
        if isinstance(argument, (list, tuple)):
            return [self._copied(one, copies) for one in argument]
        return argument

    def _on_cpu(self, operator, args, kwargs):
        """Calls an operator with copies on the CPU.

        The result, and the copies by the identity of their originals; nothing
        of both where the CPU cannot compute it.
        """
        try:
            return self._called_on_cpu(operator, args, kwargs)
        except (RuntimeError, IndexError, ValueError):
            return None, {}  # the CPU has no such operator, or refuses what was drawn
        except Exception as error:
            swallow("Values._on_cpu", error)
            return None, {}

    def _called_on_cpu(self, operator, args, kwargs):
        torch = self.torch
        copies = {}
        for one in self._mutated(operator, args, kwargs):
            copies[id(one)] = self._pull(one).clone(memory_format=torch.preserve_format)
        cpu_args = [self._copied(argument, copies) for argument in args]
        cpu_kwargs = {name: self._copied(argument, copies) for name, argument in kwargs.items()}
        if operator.makes:
            cpu_kwargs["device"] = torch.device("cpu")
            cpu_kwargs.pop("pin_memory", None)
        if not operator.random:
            return operator.call(*cpu_args, **cpu_kwargs), copies
        if operator.seeded:
            cpu_kwargs["generator"] = self.generator.manual_seed(11)
            return operator.call(*cpu_args, **cpu_kwargs), copies
        before = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(11)
            return operator.call(*cpu_args, **cpu_kwargs), copies
        finally:
            torch.set_rng_state(before)

    def _results(self, result):
        if isinstance(result, self.torch.Tensor):
            return (result,)
        if isinstance(result, (list, tuple)):
            return result
        return ()

    def _mutated(self, operator, args, kwargs):
        for at, name, _ in operator.mutated:
            changed = args[at] if at < len(args) else kwargs.get(name)
            for one in changed if isinstance(changed, (list, tuple)) else (changed,):
                if isinstance(one, self.torch.Tensor) and one.is_cuda and one.layout is self.torch.strided:
                    yield one

    @harmless(None)
    def _doubt(self, operator, args, kwargs):
        """The memory that an operator has changed is no longer known; the bytes stay as an answer."""
        for one in self._mutated(operator, args, kwargs):
            if one.nbytes:
                self._mark(one, _DOUBT)

    # Kinds of operators.

    def _pass(self, operator, args, kwargs):
        result = self._call(operator, args, kwargs)
        self._doubt(operator, args, kwargs)
        return result

    def _look_inside(self, operator, args, kwargs):
        """An operator of the script's own that is written in Python: the operators that it calls are computed."""
        if not any(tensor.is_cuda for tensor in self._tensors(args, kwargs)):
            return self._pass(operator, args, kwargs)
        before = self.count_kernels()
        self.push(self.mode)
        try:
            result = operator.body(*args, **kwargs)
        finally:
            self.pop()
        if self.count_kernels() > before:
            # Its own kernel may have changed what it was given.
            self._doubt(operator, args, kwargs)
        return result

    def _collective(self, operator, args, kwargs):
        """The stand-in exchanges what goes through NCCL, and gets the line; effects of another library are unknown."""
        before = self._tell_place()
        result = self._call(operator, args, kwargs)
        # The next call of this thread may come from another line.
        if self.calling_from(b"", 0, 0) == before:
            self._doubt(operator, args, kwargs)
        elif operator.name == "barrier" and (kwargs.get("async_op") is False or any(one is False for one in args)):
            # The host goes on when all ranks have come: they may read what one of them has written to a file.
            self.finish_from(before)
        return result

    @harmless(None)
    def _tell_place(self):
        file, line, _ = self._place()[0]
        name = file.encode()
        return self.calling_from(name, len(name), line)

    def _compute(self, operator, args, kwargs):
        tensors = self._tensors(args, kwargs)
        device = [tensor for tensor in tensors if tensor.is_cuda]
        if not device:
            wanted = kwargs.get("device") if operator.makes else None
            if wanted is None or wanted.type != "cuda":
                return self._call(operator, args, kwargs)
        if operator.mutated:
            return self._compute_in_place(operator, args, kwargs, device)
        level = self._level(tensors, operator.heavy, operator.sorting)
        result = self._call(operator, args, kwargs)
        if level == _UNKNOWN or not all(
            self._may_put(one) for one in self._results(result) if isinstance(one, self.torch.Tensor)
        ):
            self._guess(operator, args, kwargs, result)
            return result
        if operator.random:
            level = _DRAWN
            made = [one for one in self._results(result) if isinstance(one, self.torch.Tensor)]
            if any(one.nbytes > _SMALL and not self.kinds.get(one.dtype, True) for one in made):
                return result
        computed, _ = self._on_cpu(operator, args, kwargs)
        if computed is None:
            return result
        pairs = list(zip(self._results(result), self._results(computed)))
        if not pairs and not isinstance(result, (tuple, list)):
            return computed if result is not None else result
        for one, value in pairs:
            if (
                isinstance(one, self.torch.Tensor)
                and one.is_cuda
                and isinstance(value, self.torch.Tensor)
                and one.shape == value.shape
            ):
                self._write_values(one, value, level)
        return result

    def _convolve(self, operator, args, kwargs):
        """`torch.jit.trace` records an operator that this one calls; a mode leaves tracing out of the inside."""
        if not self.torch.jit.is_tracing():
            return self._compute(operator, args, kwargs)
        tracer = self.torch._C._dispatch_key_parse("Tracer")
        exclude = self.torch._C._dispatch_tls_set_dispatch_key_excluded
        exclude(tracer, False)
        try:
            return self._call(operator, args, kwargs)
        finally:
            exclude(tracer, True)

    def _cat(self, operator, args, kwargs):
        """Known values stay known beside unknown ones: synchronised batch norm sends counts behind means."""
        result = self._compute(operator, args, kwargs)
        self._keep_parts(result, args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0))
        return result

    @harmless(None)
    def _keep_parts(self, whole, parts, dim):
        if not whole.is_cuda or whole.dtype not in self.kinds or self._state(whole) != _DRAWN:
            return
        start = 0
        for part in parts:
            # An empty tensor of one dimension may stand for any.
            length = part.shape[dim] if part.numel() else 0
            if length and part.dtype == whole.dtype and self._state(part) == _KNOWN:
                self._mark(whole.narrow(dim, start, length), _KNOWN)
            start += length

    def _compute_in_place(self, operator, args, kwargs, device):
        changed = list(self._mutated(operator, args, kwargs))
        inputs = device
        if operator.overwrites or operator.writes_only:
            identities = {id(one) for one in changed}
            inputs = [tensor for tensor in device if id(tensor) not in identities]
        level = self._level(inputs, operator.heavy, operator.sorting)
        if level == _UNKNOWN or not all(self._may_put(one) for one in changed):
            result = self._call(operator, args, kwargs)
            self._doubt(operator, args, kwargs)
            return result
        if operator.random:
            level = _DRAWN
        _, copies = self._on_cpu(operator, args, kwargs)
        result = self._call(operator, args, kwargs)
        for one in changed:
            value = copies.get(id(one))
            if value is not None and value.shape == one.shape:
                self._write_values(one, value, level)
            elif one.nbytes:
                self._mark(one, _DOUBT)
        return result

    def _fill(self, operator, args, kwargs):
        result = self._call(operator, args, kwargs)
        self._filled(operator, args, kwargs, result)
        return result

    @harmless(None)
    def _filled(self, operator, args, kwargs, result):
        value = _FILLED[operator.name]
        if not isinstance(result, self.torch.Tensor) or not result.is_cuda or result.layout is not self.torch.strided:
            return result
        if isinstance(value, tuple):
            (at,) = value
            value = args[at] if at < len(args) else kwargs.get("value", kwargs.get("fill_value"))
        if isinstance(value, self.torch.Tensor):
            if value.is_cuda and self._level([value]) == _UNKNOWN:
                if result.nbytes:
                    self._mark(result, _DOUBT)
                return result
            level = self._level([value]) if value.is_cuda else _KNOWN
            if self._may_put(result):
                self._write_values(result, self._pull(value), level)
            return result
        if value is None or result.nbytes == 0 or result.dtype not in self.kinds:
            return result
        state = self._state(result)
        if value == 0 and state != _UNAVAILABLE and _pieces(result) is not None and self._is_on_device(result):
            self._mark(result, _ZERO)
        elif state != _UNAVAILABLE and self._may_put(result):
            self._view(result).fill_(value)
            self._mark(result, _KNOWN)
        else:
            self._mark(result, _DOUBT)
        return result

    def _is_on_device(self, tensor):
        return self.range(tensor.data_ptr(), ctypes.byref(ctypes.c_uint64())) != 0

    def _copy(self, operator, args, kwargs):
        target = args[0] if operator.name == "copy_" else None
        source = args[1] if operator.name == "copy_" else args[0]
        from_device = source.is_cuda
        if target is None:
            wanted = kwargs.get("device")
            to_device = from_device if wanted is None else wanted.type == "cuda"
        else:
            to_device = target.is_cuda
        if from_device and to_device:
            return self._compute(operator, args, kwargs)
        if not from_device and not to_device:
            return self._call(operator, args, kwargs)
        if to_device:
            result = self._call(operator, args, kwargs)
            if (
                source.device.type == "cpu"
                and source.layout is self.torch.strided
                and result.layout is self.torch.strided
            ):
                if self._may_put(result):
                    self._write_values(result, source, _KNOWN)
                elif target is not None and result.nbytes and not result.is_contiguous():
                    self._mark(result, _DOUBT)
            return result
        level = self._level([source])
        result = self._call(operator, args, kwargs)
        if level != _UNKNOWN:
            self._copy_values(result, source)
        if level != _KNOWN and result.nbytes and not self._is_carried(result, source):
            self._note_read(source, False, True)
        return result

    @harmless(False)
    def _is_carried(self, host, source):
        """Whether the copy itself brings what is known: of a type that is not computed."""
        same = source.dtype not in self.kinds and host.dtype is source.dtype and source.is_contiguous()
        return same and source.nbytes <= _SMALL and self._state(source) == _KNOWN

    @harmless(None)
    def _copy_values(self, host, source):
        """Values of a tensor that is not contiguous or changes its type: a kernel would rearrange them first."""
        host.copy_(self._pull(source))

    def _read(self, operator, args, kwargs):
        tensor = args[0]
        if tensor.is_cuda and tensor.dtype in self.kinds and tensor.layout is self.torch.strided:
            state = self._state(tensor)
            if state < _KNOWN:
                self._pulled(tensor)
                self._note_read(tensor)
                self._fall(tensor)
            elif state == _UNAVAILABLE:
                self._note_read(tensor)
        return self._call(operator, args, kwargs)

    def _searcher(self):
        """The frame of torch's line search that called the operator, if one did."""
        self._place()
        frame = self._decider()
        return frame if frame is not None and frame.f_code.co_filename.endswith("lbfgs.py") else None

    @harmless(None)
    def _fall(self, loss):
        """A line search reads an unknown loss: it is a little lower each time."""
        if not self.kinds[loss.dtype] and self._searcher() is not None:
            self.searches += 1
            self._write_values(loss, self.torch.full(loss.shape, 10_000 - 0.01 * self.searches), _DRAWN)

    def _dot(self, operator, args, kwargs):
        result = self._compute(operator, args, kwargs)
        self._put_slope(result)
        return result

    @harmless(None)
    def _put_slope(self, result):
        frame = self._searcher() if result.is_cuda and self._state(result) < _KNOWN else None
        slope = frame and _SEARCHED.get(stored_as(frame.f_code, frame.f_lasti))
        if slope is not None:
            self._write_values(result, self.torch.full(result.shape, slope), _DRAWN)

    def _equal(self, operator, args, kwargs):
        level = self._level([tensor for tensor in args[:2] if tensor.is_cuda])
        if not any(tensor.is_cuda for tensor in args[:2]):
            return self._call(operator, args, kwargs)
        if level == _UNKNOWN or args[0].shape != args[1].shape:
            with self._answers([1]):
                result = self._call(operator, args, kwargs)
            if args[0].shape == args[1].shape:
                self._note_read(args[0])
            return result
        result = self._call(operator, args, kwargs)
        if level == _DRAWN:
            self._note_read(args[0])
        computed, _ = self._on_cpu(operator, args, kwargs)
        return result if computed is None else computed

    def _close(self, operator, args, kwargs):
        """Unknown values are as close to their counterparts in a comparison as in a healthy program."""
        device = [tensor for tensor in args[:2] if tensor.is_cuda]
        if not device or self._level(device) == _KNOWN:
            return self._compute(operator, args, kwargs)
        self._call(operator, args, kwargs)
        self._note_read(device[0])
        return True

    def _watch_comparisons(self, module):
        """`torch.testing.assert_close`, in the same way."""
        pair = module.TensorLikePair
        compare = pair._compare_regular_values_close

        @functools.wraps(compare)
        def compare_unless_unknown(this, actual, expected, **options):
            if self.on and self._is_unknown_pair(actual, expected, options):
                return None
            return compare(this, actual, expected, **options)

        pair._compare_regular_values_close = compare_unless_unknown

    @harmless(False)
    def _is_unknown_pair(self, actual, expected, options):
        device = [tensor for tensor in (actual, expected) if tensor.is_cuda]
        if not device or self._level(device) == _KNOWN:
            return False
        tolerances = {name: options[name] for name in ("rtol", "atol", "equal_nan")}
        self.torch.all(self.torch.isclose(actual, expected, **tolerances))
        self._note_read(device[0], True)
        return True

    def modules(self):
        """The actions after the import of each module."""
        from torch.utils._python_dispatch import TorchDispatchMode

        changes = {"torch.testing._comparison": self._watch_comparisons}
        if not hasattr(TorchDispatchMode, "_should_skip_dynamo"):
            changes["torch._dynamo.eval_frame"] = self._leave_before_compiled
        return changes

    def _leave_before_compiled(self, module):
        """In torch 2.6 the guards of compiled code see that a mode is on, which was off when it was compiled: it would
        be compiled anew at each call, and run eagerly after eight of them. So the mode is left there. Later versions
        distinguish modes of this kind."""
        context = getattr(module, "_TorchDynamoContext", None)
        if context is None:
            return
        enter = context.__call__

        @functools.wraps(enter)
        def enter_and_leave(this, function):
            compiled = enter(this, function)
            if not isinstance(compiled, types.FunctionType):
                # A module, whose call comes by here, too.
                return compiled

            call = self._without_mode(compiled)
            skip_compiler(self.torch, call)
            return call

        context.__call__ = enter_and_leave

    def _solve(self, operator, args, kwargs):
        """Solvers read back whether they failed; that of eigenvalues first whether its input is finite."""
        finite = [_FOR_A_BYTE | 1] if "eig" in operator.name and "eigh" not in operator.name else []
        with self._answers([*finite, *[_FOR_A_BYTE] * 4]):
            return self._compute(operator, args, kwargs)

    def _sample(self, operator, args, kwargs):
        """Older torch reads back that probabilities are valid, and then that none of their sums is zero."""
        with self._answers([_FOR_A_BYTE | 1, *[_FOR_A_BYTE] * 2]):
            return self._compute(operator, args, kwargs)

    def _normal(self, operator, args, kwargs):
        """Older torch reads back that no deviation is negative; it is so unless it was computed that one is."""
        deviation, right = kwargs.get("std", args[1] if len(args) > 1 else None), 1
        if isinstance(deviation, self.torch.Tensor) and deviation.is_cuda and self._level([deviation]) == _KNOWN:
            values = self._pulled(deviation)
            right = int(values is None or not bool((values < 0).any()))
        # It is checked where the result is made and where it is filled.
        with self._answers([_FOR_A_BYTE | right] * 2):
            return self._compute(operator, args, kwargs)

    def _check_status(self, operator, args, kwargs):
        """The status of a solver: success, unless it was computed that it is not."""
        status = args[0]
        if status.is_cuda and self._level([status]) == _KNOWN:
            values = self._pulled(status)
            if values is not None and bool(values.any()):
                return operator.call(values, *args[1:], **kwargs)
        return self._call(operator, args, kwargs)

    # Sizes that depend on values.

    def _answers(self, answers):
        return _Answers(self.answer, answers)

    def _mask(self, mask):
        """A mask on the CPU, whether it is known, and where it comes from; by assumption if it is unknown."""
        level = self._level([mask])
        if level != _UNKNOWN:
            values = self._pulled(mask)
            # Where every flag of an unknown mask is true, that follows only from the assumption.
            if values is not None and (level == _KNOWN or mask.numel() == 1 or not bool(values.all())):
                return values, level, "drawn"
        torch = self.torch
        selected = round(self.assumed_mask / 100 * mask.numel())
        values = torch.zeros(mask.numel(), dtype=torch.bool)
        values[:selected] = True
        return values.reshape(mask.shape), _DRAWN, "mask"

    def _size_by(self, level, source):
        """A result has a size that depends on values; it is named if they are not known, with where they come from: a
        `mask` that was assumed, `drawn` values, or a `count` that was assumed."""
        if level != _KNOWN:
            key = (*self._place()[0], source)
            self.sizes[key] += 1
            self._tell_now_and_then(True)

    def _nonzero(self, operator, args, kwargs):
        mask = args[0]
        if not mask.is_cuda or mask.numel() == 0 or mask.layout is not self.torch.strided:
            return self._call(operator, args, kwargs)
        if mask.numel() > 8 * _MAX_INTEGER:
            return self._nonzero_of_large(operator, args, kwargs)
        values, level, source = self._mask(mask)
        places = values.nonzero()
        with self._answers([places.shape[0]] * 2):
            result = self._call(operator, args, kwargs)
        self._size_by(level, source)
        if result.shape == places.shape and self._may_put(result):
            self._write_values(result, places, level)
        return result

    def _nonzero_of_large(self, operator, args, kwargs):
        self._size_by(_DRAWN, "mask")
        with self._answers([round(self.assumed_mask / 100 * args[0].numel())] * 2):
            return self._call(operator, args, kwargs)

    def _masks(self, indices):
        """Counts of the boolean masks among indices, how they are known, and where they come from."""
        torch = self.torch
        counts, level, source = [], _KNOWN, "drawn"
        for index in indices:
            if index is not None and index.is_cuda and index.dtype in (torch.bool, torch.uint8):
                if index.numel() > 8 * _MAX_INTEGER:
                    counts.append(round(self.assumed_mask / 100 * index.numel()))
                    level, source = _DRAWN, "mask"
                    continue
                values, of, by = self._mask(index)
                counts.append(int(values.count_nonzero()))
                level = min(level, of)
                source = by if by == "mask" else source
        return counts, level, source

    def _index(self, operator, args, kwargs):
        tensor, indices = args[0], args[1]
        if not tensor.is_cuda:
            return self._call(operator, args, kwargs)
        counts, of, source = self._masks(indices)
        if not counts:
            return self._compute(operator, args, kwargs)
        self._remember(counts, tensor)
        given = [tensor, *(index for index in indices if index is not None)]
        level = self._level(given)
        with self._answers(counts):
            result = self._call(operator, args, kwargs)
        self._size_by(of, source)
        self._put_selected(operator, args, kwargs, result, level)
        return result

    def _put_selected(self, operator, args, kwargs, result, level):
        """Writes what a mask selects, where it is known how much that is."""
        if level != _UNKNOWN and self._may_put(result):
            computed, _ = self._on_cpu(operator, args, kwargs)
            if computed is not None and computed.shape == result.shape:
                self._write_values(result, computed, level)

    def _masked_select(self, operator, args, kwargs):
        tensor, mask = args[0], args[1]
        if not mask.is_cuda:
            return self._call(operator, args, kwargs)
        level = self._level([tensor, mask])
        values, of, source = self._mask(mask)
        count = int(values.expand(self.torch.broadcast_shapes(tensor.shape, mask.shape)).count_nonzero())
        with self._answers([count]):
            result = self._call(operator, args, kwargs)
        self._size_by(of, source)
        self._put_selected(operator, args, kwargs, result, level)
        return result

    def _index_put(self, operator, args, kwargs):
        if not args[0].is_cuda:
            return self._call(operator, args, kwargs)
        counts, of, source = self._masks(args[1])
        if not counts:
            return self._compute(operator, args, kwargs)
        self._remember(counts, args[0], args[2])
        device = [tensor for tensor in self._tensors(args, kwargs) if tensor.is_cuda]
        level = self._level(device)
        computed, copies = self._on_cpu(operator, args, kwargs) if level != _UNKNOWN else (None, {})
        with self._answers(counts):
            result = self._call(operator, args, kwargs)
        self._size_by(of, source)
        if not operator.mutated:
            if computed is not None and computed.shape == result.shape:
                self._write_values(result, computed, level)
        elif id(args[0]) in copies:
            self._write_values(args[0], copies[id(args[0])], level)
        else:
            self._doubt(operator, args, kwargs)
        return result

    _index_put_impl = _index_put

    def _counted(self, operator, args, kwargs, answers, most):
        """An operator that reads its count back: `answers` makes what is read of the result on the CPU."""
        tensor = args[0]
        if not tensor.is_cuda or tensor.numel() == 0:
            return self._call(operator, args, kwargs)
        level = self._level([tensor], False, True)
        computed, _ = self._on_cpu(operator, args, kwargs) if level != _UNKNOWN else (None, {})
        with self._answers(answers(computed) if computed is not None else most):
            result = self._call(operator, args, kwargs)
        self._size_by(*((level, "drawn") if computed is not None else (_DRAWN, "count")))
        for one, value in zip(self._results(result), self._results(computed)):
            if one.shape == value.shape and one.numel() and self._may_put(one):
                self._write_values(one, value, level)
        return result

    def _unique2(self, operator, args, kwargs):
        count = args[0].numel()
        return self._counted(operator, args, kwargs, lambda computed: [computed[0].numel()] * 4, [count] * 4)

    def _unique_dim(self, operator, args, kwargs):
        count = args[0].shape[args[1]] if args[0].dim() else 1
        return self._counted(operator, args, kwargs, lambda computed: [computed[0].shape[args[1]]] * 4, [count] * 4)

    def _unique_consecutive(self, operator, args, kwargs):
        count = args[0].numel()
        return self._counted(operator, args, kwargs, lambda computed: [computed[0].shape[0]] * 4, [count] * 4)

    def _repeat_interleave(self, operator, args, kwargs):
        count = args[0].numel()
        return self._counted(operator, args, kwargs, lambda computed: [computed.numel()], [count])

    def _bincount(self, operator, args, kwargs):
        return self._counted(operator, args, kwargs, lambda computed: [0, computed.numel() - 1], [0, 0])

    def _coalesce(self, operator, args, kwargs):
        """A sparse tensor without repeated places."""
        tensor = args[0]
        if not tensor.is_cuda:
            return self._call(operator, args, kwargs)
        indices = tensor._indices()
        level = self._level([indices], False, True)
        places = self._pulled(indices) if level != _UNKNOWN else None
        if places is None:
            count, level = indices.shape[1], _UNKNOWN
        else:
            once, which = self.torch.unique(places, dim=1, return_inverse=True)
            count = once.shape[1]
        with self._answers([count] * 2):
            result = self._call(operator, args, kwargs)
        self._size_by(level, "count" if places is None else "drawn")
        if places is not None and result._indices().shape == once.shape and self._may_put(result._indices()):
            self._write_values(result._indices(), once, level)
            self._put_sums(tensor._values(), result._values(), which, level)
        return result

    def _put_sums(self, values, result, which, level):
        """Writes the sums of values that have the same place in a sparse tensor."""
        level = min(level, self._level([values]))
        if level == _UNKNOWN or values.dtype is self.torch.bool or not self._may_put(result):
            return
        one_by_one = self._pulled(values)
        if one_by_one is not None:
            # Narrow types are summed in a wide one, as on a GPU.
            wide = values.dtype
            if values.is_floating_point():
                wide = self.torch.promote_types(wide, self.torch.float32)
            sums = self.torch.zeros(result.shape, dtype=wide)
            self._write_values(result, sums.index_add_(0, which, one_by_one.to(wide)).to(values.dtype), level)

    def _select_boxes(self, operator, args, kwargs):
        """Boxes that do not overlap others, by torchvision."""
        boxes = args[0]
        if not boxes.is_cuda:
            return self._call(operator, args, kwargs)
        level = self._level([boxes, args[1]])
        computed, _ = self._on_cpu(operator, args, kwargs) if level != _UNKNOWN else (None, {})
        count = boxes.shape[0] if computed is None else computed.shape[0]
        with self._answers([count] * 2):
            result = self._call(operator, args, kwargs)
        self._size_by(*((level, "drawn") if computed is not None else (_DRAWN, "count")))
        if computed is not None and computed.shape == result.shape:
            self._write_values(result, computed, level)
        return result

    # Answers for what is not computed.

    @harmless(None)
    def _guess(self, operator, args, kwargs, result):
        """Draws indices and flags for an operator that was not computed."""
        name = operator.name
        if name in _CHOSEN:
            self._choose(name, args, kwargs, result)
        elif (
            isinstance(result, self.torch.Tensor)
            and result.dtype is self.torch.bool
            and 0 < result.nbytes <= _MAX_INTEGER
        ):
            flag = self._flag(name, args)
            if flag is False and name in _COMPARED and result.numel() > 1:
                return  # a mask of which nothing is known: not one that selects nothing
            if flag is not None and self._state(result) != _UNAVAILABLE:
                self._view(result).fill_(flag)
                self._mark(result, _DRAWN)

    def _flag(self, name, args):
        """The result of a predicate for unknown values: finite numbers between 0 and 1, no two of them equal."""
        other = args[1] if len(args) > 1 else None
        if name in ("eq", "ne"):
            same = other is args[0]
            return same if name == "eq" else not same
        if name in _COMPARED:
            if isinstance(other, (int, float)):
                return _COMPARED[name](other)
            return True
        if name in ("isnan", "isinf", "isposinf", "isneginf", "any", "isin"):
            return False
        if name in ("isfinite", "all"):
            return True
        return None

    def _choose(self, name, args, kwargs, result):
        torch = self.torch
        indices = next((one for one in reversed(self._results(result)) if one.dtype is torch.int64), None)
        if indices is None or not 0 < indices.nbytes <= _MAX_DRAWN:
            return
        at = _CHOSEN[name]
        dim = (
            -1
            if at is None
            else (
                args[at]
                if len(args) > at
                else kwargs.get("dim", -1 if name in ("topk", "sort", "kthvalue", "median", "mode") else None)
            )
        )
        if dim is None:
            choices = args[0].numel()
        elif isinstance(dim, int) and args[0].dim():
            choices = args[0].shape[dim]
        else:
            return
        if self._state(indices) == _UNAVAILABLE or choices <= 0:
            return
        chosen = torch.randint(choices, indices.shape, generator=self.generator.manual_seed(indices.numel()))
        if name in ("topk", "sort", "multinomial") and indices.dim() and indices.shape[dim] > 1:
            # Different ones along the dimension.
            first = chosen.select(dim, 0).unsqueeze(dim)
            shape = [1] * indices.dim()
            shape[dim] = indices.shape[dim]
            chosen = (first + torch.arange(indices.shape[dim]).reshape(shape)) % choices
        self._write_values(indices, chosen, _DRAWN)

    # Reads of values that are not known.

    def _place(self):
        """The line of the script, and the innermost frame that is neither ours nor torch's."""
        frame = sys._getframe(1)
        nearest = None
        while frame is not None:
            name = frame.f_code.co_filename
            foreign = self.foreign.get(name)
            if foreign is None:
                # 0 ours or torch's, 1 a library's, 2 the script's.
                # The script of `python -c` has the name of generated code.
                is_script = name == "<stdin>" or (name == "<string>" and sys.argv[:1] == ["-c"])
                own = is_script or not name.startswith(tuple(self.places))
                foreign = self.foreign[name] = 0 if not own else 1 if is_library(name) else 2
            if foreign and nearest is None:
                nearest = frame
            if foreign == 2:
                return (name, frame.f_lineno, frame.f_code.co_name), nearest
            frame = frame.f_back
        if nearest is not None:
            return (nearest.f_code.co_filename, nearest.f_lineno, nearest.f_code.co_name), nearest
        if self.backward_place is not None:
            return self.backward_place, None
        return ("", 0, ""), None

    @harmless(None)
    def _note_read(self, tensor, decides=False, is_copy=False):
        if _reads_object(sys._getframe(2)):
            return
        place, frame = self._place()
        frame = self._decider() or frame
        # In a backward pass torch itself reads, to decide; what it copies to the host is for later.
        decides = decides or tensor.dtype is self.torch.bool or (frame is None and not is_copy)
        if frame is not None and _SAVERS in frame.f_code.co_filename:
            decides = False
        elif frame is not None and not decides:
            decides = self._reaches_decision(frame)
        key = (*place, decides)
        self.reads[key] += 1
        if self.has_absent_ranks and self._is_count(tensor):
            # A size may follow from it. The script computes with it out of sight.
            key = (*place, "absent")
            self.sizes[key] += 1
        self._tell_now_and_then(decides)

    def _is_count(self, tensor):
        """Whether the script itself reads integers that are assumed, as it reads how many rows a rank sends."""
        if not self.kinds.get(tensor.dtype) or tensor.dtype is self.torch.bool or self._state(tensor) != _DRAWN:
            return False
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith("<tonnage"):
            frame = frame.f_back
        # The first of them is the directory of torch.
        return frame is not None and not frame.f_code.co_filename.startswith(self.places[0])

    def _reaches_decision(self, frame):
        """Whether what a frame reads decides, there or where it is returned to."""
        for _ in range(16):
            key = frame.f_code, frame.f_lasti
            if key not in self.deciding:
                self.deciding[key] = leads_to_decision(*key)
            decides = self.deciding[key]
            frame = frame.f_back
            if decides is not None or frame is None:
                return bool(decides)
        return False

    def _decider(self):
        """The innermost frame of torch's that branches on what it reads, if it is what reads."""
        frame = sys._getframe(2)
        while frame is not None and self.foreign.get(frame.f_code.co_filename, 0) == 0:
            if frame.f_code.co_filename.startswith(self.deciders):
                return frame
            frame = frame.f_back
        return None

    def _tell_now_and_then(self, decides):
        """Reports each time the number of decisions has doubled: a server kills its workers, which report no more."""
        self.decisions += decides
        if decides and self.decisions & (self.decisions - 1) == 0:
            self.tell(self.summary())

    @harmless(None)
    def forget(self, tensor):
        """A tensor was changed unseen: by a backward pass or a step."""
        if tensor is not None and tensor.is_cuda and type(tensor) in self.plain:
            if tensor.layout is self.torch.strided and 0 < tensor.nbytes:
                self._mark(tensor, _DOUBT)

    def summary(self):
        """The facts that a verdict must name."""
        return {
            "reads": [[*place, decides, count] for (*place, decides), count in self.reads.items()],
            "sizes": [[*place, count] for (*place, _), count in self.sizes.items()],
            "sized_by": [source for *_, source in self.sizes],
            "assumed_mask": self.assumed_mask,
        }


class _Answers:
    """The answers to small reads of the device inside an operator of torch."""

    def __init__(self, answer, numbers):
        self.answer = answer
        self.numbers = (ctypes.c_uint64 * len(numbers))(*numbers)

    def enter(self, *_):
        self.answer(self.numbers, len(self.numbers))

    __enter__ = enter

    def __exit__(self, *_):
        self.answer(None, 0)


class _Watched:
    """Has the mode see a function of a backward pass, in the thread of autograd that runs it."""

    def __init__(self, values):
        self.values = values
        self.entered = False

    def enter(self, *_):
        if self.values.mode is not None and not self.values.is_active():
            self.values.resume()
            self.entered = True

    def leave(self, *_):
        if self.entered:
            self.entered = False
            self.values.pause()


def _reads_object(frame):
    """Whether torch.distributed reads a pickled object: what follows it in the tensor is unknown, and left out."""
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_name == "_tensor_to_object":
            return True
        frame = frame.f_back
    return False
