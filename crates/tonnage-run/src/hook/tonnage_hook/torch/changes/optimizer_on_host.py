# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Optimizer on the host"
maths = "rounding"
group = "optimizer"
applies = "optimizers of torch.optim whose parameters are on one GPU; not with a gradient scaler"
cost = "Each step copies the gradients to the host and the weights back, and the CPU computes the step."
page = '''
The state of the optimizer, and the weights that it works on, are in the memory of the host. Before each step the
gradients are copied there and given free on the GPU; after it the weights are copied back.

Savings: all of the state of the optimizer, and the temporary memory of its step. The host needs the state and one
more copy of the weights.

Effect on the mathematics: the same formula, computed by the CPU, which rounds in another order. Gradients are
gone after each step, whether zero_grad is called or not.

In a dry run the step itself is not computed, so that a large model does not fill the memory of this machine.

By hand, with the learning rate and the other options of the program:

    parameters = [one for one in model.parameters() if one.requires_grad]
    host = [torch.nn.Parameter(one.detach().to("cpu")) for one in parameters]
    optimizer = torch.optim.AdamW(host, lr=...)
    def to_host(*_):
        for one, copy in zip(parameters, host):
            copy.grad, one.grad = None if one.grad is None else one.grad.to("cpu"), None
    def to_device(*_):
        for one, copy in zip(parameters, host):
            one.data.copy_(copy.data)
    optimizer.register_step_pre_hook(to_host)
    optimizer.register_step_post_hook(to_device)
'''
+++
"""

import weakref

from tonnage_hook.torch.changing import OfOptimizers


class Change(OfOptimizers):
    def change(self, optimizer, kind, options):
        torch = self.torch
        if kind == "LBFGS":
            self.refused("LBFGS calls the program during its step")
            return None
        pairs = []

        def on_host(one):
            # Without memory: what a step computes is not known in a dry run anyway.
            copy = torch.nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=one.requires_grad)
            pairs.append((weakref.ref(one), weakref.ref(copy)))
            return copy

        if not all(one.is_cuda and one.is_leaf for one in self.tensors(options)):
            self.refused("some parameters were not on the GPU when the optimizer was made")
            return None
        options["params"] = [self._moved(one, on_host) for one in options["params"]]
        options.pop("fused", None)
        options.pop("foreach", None)
        self.applied(self._lines(kind, options))

        def after(_):
            optimizer.register_step_pre_hook(lambda *_: self._to_host(pairs))
            optimizer.register_step_post_hook(lambda *_: self._to_device(pairs))

        return after

    def _moved(self, one, on_host):
        if isinstance(one, dict):
            inner = one["params"]
            inner = [inner] if isinstance(inner, self.torch.Tensor) else inner
            return {**one, "params": [self._moved(part, on_host) for part in inner]}
        return (one[0], on_host(one[1])) if isinstance(one, tuple) else on_host(one)

    def _to_host(self, pairs):
        for one, copy in pairs:
            one, copy = one(), copy()
            if one is not None and one.grad is not None:
                one.grad.to("cpu")
                copy.grad = self.torch.empty_like(copy)
                one.grad = None

    def _to_device(self, pairs):
        for one, _ in pairs:
            one = one()
            if one is not None:
                one.data.copy_(self.torch.empty(one.shape, dtype=one.dtype))

    def _lines(self, kind, options):
        shown = "".join(f", {key}={value!r}" for key, value in options.items() if key != "params")
        return [
            "parameters = [one for one in model.parameters() if one.requires_grad]",
            'host = [torch.nn.Parameter(one.detach().to("cpu")) for one in parameters]',
            f"optimizer = torch.optim.{kind}(host{shown})",
            "def to_host(*_):",
            "    for one, copy in zip(parameters, host):",
            '        copy.grad, one.grad = None if one.grad is None else one.grad.to("cpu"), None',
            "def to_device(*_):",
            "    for one, copy in zip(parameters, host):",
            "        one.data.copy_(copy.data)",
            "optimizer.register_step_pre_hook(to_host)",
            "optimizer.register_step_post_hook(to_device)",
        ]
