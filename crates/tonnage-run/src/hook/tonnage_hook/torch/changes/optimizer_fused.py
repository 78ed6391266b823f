# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Fused optimizer"
maths = "rounding"
group = "optimizer"
applies = "torch.optim.Adam, AdamW and SGD with parameters on the GPU"
cost = "None: one kernel updates all parameters of a group, which is faster than the default."
page = '''
PyTorch's default step of an optimizer (foreach) computes with lists of all parameters, and keeps about one more copy of
them while it does. With fused=True one kernel reads and writes each element once, and needs no copy.

Savings: the temporary memory of the step, about as much as the parameters take. It does not help where the peak
is elsewhere, for instance in the backward pass.

Effect on the mathematics: the same formula, rounded in another order.

By hand: optimizer = torch.optim.AdamW(parameters, lr=..., fused=True)
'''
+++
"""

from tonnage_hook.torch.changing import OfOptimizers


class Change(OfOptimizers):
    kinds = ("Adam", "AdamW", "SGD")

    def change(self, optimizer, kind, options):
        tensors = self.tensors(options)
        if options.get("fused"):
            self.refused("the optimizer is fused already", already=True)
        elif options.get("differentiable"):
            self.refused("a differentiable optimizer cannot be fused")
        elif not all(one.is_floating_point() for one in tensors):
            self.refused("a fused optimizer takes floating-point parameters only")
        elif not all(one.is_cuda for one in tensors):
            self.refused("some parameters were not on the GPU when the optimizer was made")
        else:
            options["fused"] = True
            options.pop("foreach", None)
            self.option(kind, "fused", "True", "adamw_torch_fused" if kind == "AdamW" else None)
