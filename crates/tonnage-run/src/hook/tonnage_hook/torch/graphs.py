# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads a tensor's place in autograd's graph without an exception.

torch raises for a view of a custom function's output after its base was changed in place: it refuses to rebuild the
node. The script may keep such a tensor, and never query it either.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def node_of(tensor: Any) -> Any:
    """The node that made a tensor; None for a leaf, and where torch refuses."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def keeps_gradient(tensor: Any) -> bool:
    """Whether autograd stores a gradient at a tensor. torch warns about reading the gradient of any other."""
    try:
        return tensor.retains_grad or tensor.is_leaf
    except RuntimeError:
        return False
