# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Fused optimizer"
maths = "rounding"
group = "optimizer-step"
applies = "torch.optim.Adam, AdamW and SGD with parameters on the GPU"
cost = "None: one kernel updates all parameters of a group, which is faster than the default."
page = '''
PyTorch's default step of an optimizer (foreach) computes with lists of all parameters, and keeps about one more copy of
them while it does. With fused=True one kernel reads and writes each element once, and needs no copy.

What it saves: the temporary memory of the step, about as much as the parameters take. It does not help where the peak
is elsewhere, for instance in the backward pass.

What it does to the mathematics: the same formula, rounded in another order.

By hand: optimizer = torch.optim.AdamW(parameters, lr=..., fused=True)
'''
+++
"""


class Change(Base):
    nothing = "no optimizer of torch.optim was made"

    def install(self):
        optim = self.torch.optim
        for name in ("Adam", "AdamW", "SGD"):
            replace(getattr(optim, name), "__init__", self._construct)
        for name in sorted(vars(optim)):
            other = getattr(optim, name)
            is_optimizer = isinstance(other, type) and issubclass(other, optim.Optimizer)
            if is_optimizer and other not in (optim.Optimizer, optim.Adam, optim.AdamW, optim.SGD):
                replace(other, "__init__", self._construct_other)

    def _construct_other(self, call, args, kwargs):
        self.refused(f"torch has no fused {type(args[0]).__name__} for GPUs")
        return call, args, kwargs

    def _construct(self, call, args, kwargs):
        if len(args) > 3:
            # Options by position: their names are not known.
            self.refused("the options of the optimizer are given by position")
            return call, args, kwargs
        kwargs = dict(kwargs)
        parameters = list(args[1] if len(args) > 1 else kwargs.pop("params", ()))
        args = (args[0], parameters, *args[2:])
        why = self._why_not(parameters, kwargs)
        if why is not None:
            self.refused(why, already=bool(kwargs.get("fused")))
            return call, args, kwargs
        kwargs["fused"] = True
        kwargs.pop("foreach", None)
        frame = users_frame()
        kind = type(args[0]).__name__
        edit = edit_of_call(frame, kind, "fused", "True")
        self.applied([edit["new"].strip() if edit else f"optimizer = {kind}(..., fused=True)"], frame, edit)
        return call, args, kwargs

    def _why_not(self, parameters, options):
        if options.get("fused"):
            return "the optimizer is fused already"
        if options.get("differentiable"):
            return "a differentiable optimizer cannot be fused"
        every = [one for group in parameters for one in (group["params"] if isinstance(group, dict) else [group])]
        tensors = [one[1] if isinstance(one, tuple) else one for one in every]
        if not all(isinstance(one, self.torch.Tensor) and one.is_floating_point() for one in tensors):
            return "a fused optimizer takes floating-point parameters only"
        if not all(one.is_cuda for one in tensors):
            return "some parameters were not on the GPU when the optimizer was made"
        return None
