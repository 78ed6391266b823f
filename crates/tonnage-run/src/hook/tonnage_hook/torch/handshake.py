# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks, once torch has allocated device memory, that the parts of a dry run work together.

A new torch may rename a function that the stand-in intercepts. The job then runs as before, and its figures are wrong.
Each check that fails becomes a limitation of the verdict with a code.

The checks leave no trace: nothing is allocated on the device, a kernel that they launch is not counted, and the known
operator works on a page that no program has. They wait while a mode, a profiler or a capture of the script would see
their operators.
"""

from __future__ import annotations

import gc

from tonnage_hook.failures import swallow
from tonnage_hook.wire import bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_BLOCKS, _DISPATCH, _OPERATOR = "TN301", "TN302", "TN303"
_WHY = {
    _BLOCKS: "the order of blocks among owners and holders: torch's allocator does not report its blocks to tonnage",
    _DISPATCH: "how torch's operators allocate: they see the dispatch mode of the hook, and some allocate differently "
    "under a mode",
    _OPERATOR: "which sizes depend on values: an operator with a known result did not return it",
}


class Handshake:
    """`limit` writes a limitation; `values` is None where no values are computed."""

    def __init__(self, torch: Any, library: Any, values: Any, limit: Callable[..., None]) -> None:
        self.torch = torch
        self.library = library
        self.values = values
        self.limit = limit
        self.done = False
        bind(library, "tonnage_modes_hidden", "tonnage_handshake_begin", "tonnage_handshake_end")

    def run(self) -> bool:
        """Runs the checks if that is possible now. Whether they are still to be run."""
        if self.done:
            return False
        # A collection that is set off here would free the script's garbage sooner than without us.
        collecting = gc.isenabled()
        gc.disable()
        try:
            if self._has_allocated() and self._is_unseen():
                self.done = True
                for code in self._failed():
                    self.limit(code, _WHY[code], affects_figures=True)
        except Exception as error:
            self.done = True
            swallow("Handshake.run", error)
            self.limit(_OPERATOR, f"{_WHY[_OPERATOR]} ({type(error).__name__}: {error})", affects_figures=True)
        finally:
            if collecting:
                gc.enable()
        return not self.done

    def _has_allocated(self) -> bool:
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return False
        # Only the current device: the checks would open a context on a device that the script does not use.
        return bool(cuda.memory_stats(cuda.current_device()).get("allocation.all.allocated", 0))

    def _is_unseen(self) -> bool:
        """Whether nothing of the script would see an operator that is called now."""
        torch = self.torch
        if torch.cuda.is_current_stream_capturing() or torch._C._autograd._profiler_enabled():
            return False
        if torch._C._len_torch_function_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return False
        return self.values is None or (self.values.is_active() and torch._C._len_torch_dispatch_stack() == 1)

    def _failed(self) -> Iterator[str]:
        """The codes of the checks that fail."""
        native = self.torch.cuda.memory.get_allocator_backend() == "native"
        if native and self.library.tonnage_torch_events() == 0:
            yield _BLOCKS
        if self.values is None:
            return
        with self.torch.no_grad():
            if not self._hides_mode():
                yield _DISPATCH
            if not self._computes():
                yield _OPERATOR

    def _hides_mode(self) -> bool:
        """Whether operators of torch do not see the mode of the hook: `linear` looks for modes."""
        torch = self.torch
        before = self.library.tonnage_modes_hidden()
        ones = torch.ones(1, 2, 2, device="cpu", dtype=torch.float32)
        # An input that is not contiguous: else `linear` is one product.
        torch.nn.functional.linear(ones.transpose(1, 2), ones[0], ones[0, 0])
        return self.library.tonnage_modes_hidden() > before

    def _computes(self) -> bool:
        """Whether the sum of two known tensors on the device is known and right."""
        torch, values = self.torch, self.values
        page = self.library.tonnage_handshake_begin()
        if page == 0:
            return True  # the device keeps no values, as where address space is limited
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            storage = torch._C._construct_storage_from_data_pointer(page, device, 48)
            about = {"dtype": torch.int64, "size": (2,), "stride": (1,)}
            make = torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata
            first, second, total = (make({**about, "storage_offset": at}, storage) for at in (0, 2, 4))
            values._write_values(first, torch.tensor([20, 1], device="cpu"), 2)
            values._write_values(second, torch.tensor([22, 2], device="cpu"), 2)
            torch.add(first, second, out=total)
            return values._state(total) == 2 and values._view(total).tolist() == [42, 3]
        finally:
            self.library.tonnage_handshake_end(page)
