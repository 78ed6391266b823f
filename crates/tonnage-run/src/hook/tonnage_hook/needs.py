# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every private name of torch and other packages that the hook uses, and the loss where it is missing.

A private name may be gone in the next release. The hook looks for the names of a module when that module is imported.
A missing name switches off the part of the hook that needs it, and becomes a limitation of the verdict with the code
of that part. The job goes on.

A name is written as `module:attribute.attribute`. `>` leads to an attribute of instances, which a function of their
class names: `torch._ops:OpOverload.__init__>_op`. One of several names, `a | b`, is enough.
"""

from __future__ import annotations

import sys

from tonnage_hook.notes import write_limitation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Part:
    """A part of the hook: the code of its limitations, the loss without it, and whether figures are assumed then."""

    def __init__(self, code: str, lost: str, affects_figures: bool = False) -> None:
        self.code = code
        self.lost = lost
        self.affects_figures = affects_figures


PARTS = {
    "start": Part("TN310", "owners, holders, values and stacks: the hook cannot follow the job", True),
    "history": Part("TN311", "stacks, and how much PyTorch reserved"),
    "owners": Part("TN312", "which blocks are weights, gradients or optimizer state"),
    "holders": Part("TN313", "which variable holds a block"),
    "values": Part("TN314", "values that the script reads, and sizes that depend on them", True),
    "handshake": Part(
        "TN315", "whether tonnage works with this torch: the check after the first allocation did not run"
    ),
    "compilers": Part("TN316", "which kernels a compiler takes, and the integers that they write"),
    "ranks": Part("TN317", "what ranks that are not run send", True),
    "record": Part("TN318", "how much of the GPU was in use", True),
    "sharded": Part("TN319", "which gradients and parameters FSDP holds"),
    "limits": Part("TN320", "how much the job takes without the limit that the script sets"),
    "changes": Part("TN321", "whether a change to the program can be made"),
    # These parts have one name each, and the rest of the hook goes on without them.
    "rank": Part("TN322", "the rank of a process whose launcher does not set it"),
    "masks": Part("TN323", "sizes that a backward pass of an indexing by masks reads", True),
    "order": Part("TN324", "which of several autograd graphs is the newest"),
    "copies": Part("TN325", "which of several lazy copies holds a block"),
    "operators": Part("TN326", "values inside operators that the script registers itself", True),
    # Each module of this part is changed by itself: the others stay protected.
    "offline": Part("TN327", "protection from uploads: an HTTP client or a tracker runs as it is"),
}

# The newest release of torch in which the names were seen; .ci/tidy.py compares it with `Version::VERIFIED`.
_NEWEST = "2.15"
_FROM_2_1 = f"2.1–{_NEWEST}"
_FROM_2_6 = f"2.6–{_NEWEST}"
_FROM_2_15 = f"2.15–{_NEWEST}"

# The part, the name, and the oldest and the newest release of torch with which the name was seen, also where it is a
# name of another package. For the standard library, the releases of Python.
_C = "torch._C:"
_C10D = "torch.distributed.distributed_c10d:"
_DISPATCH = "torch.utils._python_dispatch:"
_FSDP = "torch.distributed.fsdp._fully_shard."
NEEDS = (
    ("start", "torch.cuda:_lazy_call", _FROM_2_1),
    ("start", _C + "_dynamo.eval_frame.set_eval_frame", _FROM_2_1),
    ("start", f"{_C}_dynamo.eval_frame._FrameAction | {_C}_dynamo.eval_frame.skip_code", _FROM_2_1),
    ("start", f"{_C}_dynamo.eval_frame._FrameExecStrategy | {_C}_dynamo.eval_frame.skip_code", _FROM_2_1),
    ("start", "threading:Thread._bootstrap_inner", "3.10–3.14"),
    ("history", "torch.cuda.memory:_record_memory_history", _FROM_2_1),
    ("history", "torch.cuda.memory:_snapshot", _FROM_2_1),
    ("history", _C + "_cuda_attach_out_of_memory_observer", _FROM_2_1),
    ("owners", "torch.nn:Module._wrapped_call_impl", _FROM_2_1),
    ("owners", "torch.nn:Module._call_impl", _FROM_2_1),
    ("owners", "torch.nn:Module._compiled_call_impl", _FROM_2_1),
    ("rank", _C10D + "_update_default_pg", _FROM_2_6),
    ("sharded", "torch.distributed.tensor:DTensor._local_tensor", _FROM_2_6),
    ("sharded", "torch.distributed.fsdp:FSDPModule._get_fsdp_state", _FROM_2_6),
    (
        "sharded",
        f"{_FSDP}_fsdp_state:FSDPState.__init__>_fsdp_param_groups | "
        f"{_FSDP}_fsdp_state:FSDPState.__init__>_fsdp_param_group",
        _FROM_2_6,
    ),
    ("sharded", _FSDP + "_fsdp_param:FSDPParam.init_unsharded_param>_unsharded_param", _FROM_2_15),
    ("sharded", _FSDP + "_fsdp_param:FSDPParam.__init__>_param_fqn", _FROM_2_15),
    ("holders", _C + "_FunctionBase", _FROM_2_1),
    ("copies", _C + "_is_cow_tensor", _FROM_2_15),
    ("holders", "torch:Tensor._grad", _FROM_2_1),
    ("order", "torch.autograd.graph:Node._sequence_nr", _FROM_2_15),
    ("holders", f"{_C}_autograd.SavedTensor.data | {_C}_autograd._push_saved_tensors_default_hooks", _FROM_2_1),
    ("holders", "warnings:_showwarnmsg", "3.10–3.14"),
    ("values", _DISPATCH + "_push_mode", _FROM_2_1),
    ("values", _DISPATCH + "_pop_mode", _FROM_2_1),
    ("values", _DISPATCH + "_disable_current_modes", _FROM_2_1),
    (
        "values",
        f"{_DISPATCH}TorchDispatchMode._should_skip_dynamo | torch._dynamo.eval_frame:_TorchDynamoContext",
        _FROM_2_1,
    ),
    ("values", _C + "_len_torch_dispatch_stack", _FROM_2_1),
    ("values", _C + "_get_dispatch_stack_at", _FROM_2_1),
    ("values", _C + "_disabled_torch_dispatch_impl", _FROM_2_1),
    ("values", _C + "_dispatch_has_kernel_for_dispatch_key", _FROM_2_1),
    ("values", _C + "_dispatch_tls_set_dispatch_key_excluded", _FROM_2_1),
    ("values", _C + "_dispatch_key_parse", _FROM_2_1),
    ("masks", _C + "_autograd._get_sequence_nr", _FROM_2_15),
    ("values", "torch._ops:HigherOrderOperator", _FROM_2_1),
    ("values", "torch._ops:OpOverload.__init__>_op", _FROM_2_1),
    ("values", "torch._ops:OpOverload.__init__>_op_dk", _FROM_2_1),
    ("values", "torch._ops:OpOverload.__init__>_schema", _FROM_2_1),
    ("operators", "torch.library:_impls", _FROM_2_1),
    ("values", "torch:Tensor._indices", _FROM_2_1),
    ("values", "torch:Tensor._values", _FROM_2_1),
    ("values", "torch:Tensor._neg_view", _FROM_2_1),
    ("values", "torch:UntypedStorage._share_cuda_", _FROM_2_1),
    ("values", "torch.serialization:_open_zipfile_writer", _FROM_2_1),
    ("values", "torch.serialization:_open_zipfile_writer_buffer", _FROM_2_1),
    ("values", "torch.testing._comparison:TensorLikePair._compare_regular_values_close", _FROM_2_1),
    ("handshake", _C + "_construct_storage_from_data_pointer", _FROM_2_15),
    ("handshake", _C + "_construct_CUDA_Tensor_From_Storage_And_Metadata", _FROM_2_15),
    ("handshake", _C + "_len_torch_function_stack", _FROM_2_15),
    ("handshake", _C + "_functorch.peek_interpreter_stack", _FROM_2_15),
    ("handshake", _C + "_autograd._profiler_enabled", _FROM_2_1),
    ("compilers", "triton.runtime.autotuner:Autotuner._bench", _FROM_2_1),
    ("compilers", "triton.compiler.compiler:CompiledKernel._init_handles", _FROM_2_1),
    (
        "compilers",
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_worker | "
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.precompile",
        _FROM_2_6,
    ),
    ("compilers", "cutlass.base_dsl.dsl:BaseDSL._preprocess_and_replace_code", _FROM_2_15),
    ("compilers", "cutlass.base_dsl.dsl:BaseDSL._func", _FROM_2_15),
    ("compilers", "deep_gemm:_C | deep_gemm:jit", _FROM_2_15),
    ("ranks", _C10D + "_get_default_group", _FROM_2_6),
    ("ranks", _C10D + "_new_process_group_helper", _FROM_2_6),
    ("ranks", _C10D + "_get_process_group_store", _FROM_2_6),
    ("ranks", _C10D + "_resolve_process_group", _FROM_2_6),
    ("ranks", _C10D + "_get_split_source", _FROM_2_6),
    ("ranks", _C10D + "Backend._plugins", _FROM_2_6),
    ("ranks", _C10D + "Backend._BackendPlugin", _FROM_2_6),
    ("ranks", "torch.distributed.rendezvous:_rendezvous_handlers", _FROM_2_6),
    ("ranks", "torch.distributed._symmetric_memory:_SymmetricMemory", _FROM_2_6),
    ("ranks", "torch.distributed._symmetric_memory:_group_name_to_store", _FROM_2_6),
    ("ranks", "torch.testing._internal.distributed.fake_pg:FakeProcessGroup", _FROM_2_6),
    ("record", _C + "_cuda_hasPrimaryContext", _FROM_2_15),
    ("record", _C + "_cuda_memorySnapshot", _FROM_2_15),
    ("record", _C + "_cuda_memoryStats", _FROM_2_15),
    ("limits", _C + "_cuda_setMemoryFraction", _FROM_2_1),
    ("changes", _C + "_nn._parse_to", _FROM_2_1),
    (
        "changes",
        "torch.utils.checkpoint:_checkpoint_without_reentrant_generator_impl | "
        "torch.utils.checkpoint:_checkpoint_without_reentrant_generator",
        _FROM_2_1,
    ),
    ("changes", "torch.testing._internal.distributed.fake_pg:FakeStore", _FROM_2_6),
    ("changes", "transformers.modeling_utils:PreTrainedModel._supports_sdpa", _FROM_2_15),
    ("offline", "http.client:_CS_IDLE", "3.10–3.14"),
    ("offline", "http.client:HTTPConnection.__init__>_HTTPConnection__state", "3.10–3.14"),
    ("offline", "http.client:HTTPConnection.__init__>_tunnel_host", "3.10–3.14"),
    ("offline", "http.client:HTTPConnection.__init__>_tunnel_port", "3.10–3.14"),
    ("offline", "aiohttp.client:ClientSession._request", _FROM_2_15),
    ("offline", "aiohttp.client:ClientSession._build_url", _FROM_2_15),
    ("offline", "mlflow.tracking._tracking_service.utils:_resolve_tracking_uri", _FROM_2_15),
)


def modules_of(name: str) -> list[str]:
    """The modules that a name, or one of its alternatives, lives in."""
    return [one.strip().partition(":")[0] for one in name.split("|")]


def is_there(name: str) -> bool | None:
    """Whether a name exists, or an alternative of it; None if a module that may have it is not imported."""
    missing: bool | None = False
    for one in name.split("|"):
        module, _, path = one.strip().partition(":")
        if module not in sys.modules:
            missing = None
            continue
        thing, (path, _, attribute) = sys.modules[module], path.partition(">")
        try:
            for part in path.split("."):
                thing = getattr(thing, part)
        except AttributeError:
            continue
        code = getattr(thing, "__code__", None)
        # A function of C shows no names.
        if not attribute or code is None or attribute in code.co_names:
            return True
    return missing


class Needs:
    """Looks for the names. `limit` writes a limitation."""

    def __init__(self, limit: Callable[[str, str, bool], None]) -> None:
        self.limit = limit
        self.wanted: set[str] = set()
        self.off: set[str] = set()
        self.reported: set[str] = set()

    def want(self, *parts: str) -> None:
        """Looks for the names of these parts in the modules that are imported."""
        self.wanted.update(parts)
        for part, name, _ in NEEDS:
            if part in parts:
                self._check_name(part, name)

    def begin_anew(self) -> None:
        """A variant reports the names that its fork server missed: the server has no log."""
        self.reported.clear()

    def has(self, part: str) -> bool:
        """Whether no name of a part is missing."""
        return part not in self.off

    def later(self, *parts: str) -> set[str]:
        """The modules of these parts that are not imported yet."""
        names = (name for part, name, _ in NEEDS if part in parts)
        return {module for name in names for module in modules_of(name) if module not in sys.modules}

    def imported(self, module: str) -> bool:
        """Looks for the names of a module that was just imported. Whether its wanted parts are there."""
        found = True
        for part, name, _ in NEEDS:
            if part in self.wanted and module in modules_of(name):
                self._check_name(part, name)
                found = found and self.has(part)
        return found

    def missing_of(self, module: str) -> list[str]:
        """The names of a module that was just imported and lacks them."""
        self.imported(module)
        return [name for _, name, _ in NEEDS if module in modules_of(name) and is_there(name) is False]

    def _check_name(self, part: str, name: str) -> None:
        if is_there(name) is not False or name in self.reported:
            return
        self.reported.add(name)
        self.off.add(part)
        package = name.partition(":")[0].partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", None)
        if package in sys.stdlib_module_names:
            package, version = "Python", sys.version.split()[0]
        about = PARTS[part]
        self.limit(about.code, f"{about.lost}: {package} {version} has no {name}", about.affects_figures)


needs = Needs(write_limitation)
