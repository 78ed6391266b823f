# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Activations in the memory of the host"
maths = "nothing"
group = "offload"
applies = "models that are trained on the GPU"
cost = "Everything that is kept for the backward pass goes to the host and comes back, over the bus."
page = '''
Tensors that a forward pass keeps for the backward pass are copied to page-locked memory of the host, and come back when
the backward pass needs them.

Savings: the activations inside the model. The host needs as much, page-locked. Activations computed outside the
model, such as a loss, stays on the GPU.

Effect on the mathematics: nothing.

By hand:

    def forward(*args, _forward=model.forward, **kwargs):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            return _forward(*args, **kwargs)
    model.forward = forward

or, around the call: with torch.autograd.graph.save_on_cpu(pin_memory=True): output = model(inputs)
'''
+++
"""

from tonnage_hook.torch.changing import Base, name_of


class Change(Base):
    nothing = "no model with weights to train was called"

    def install(self):
        self.entered = []

    def before_pass(self, module):
        if not self.torch.is_grad_enabled() or not self.is_model(module):
            return
        context = self.torch.autograd.graph.save_on_cpu(pin_memory=True)
        context.__enter__()
        self.entered.append((id(module), context))
        if self.is_new(module):
            owner = name_of(module, "model")
            self.applied(
                [
                    f"def forward(*args, _forward={owner}.forward, **kwargs):",
                    "    with torch.autograd.graph.save_on_cpu(pin_memory=True):",
                    "        return _forward(*args, **kwargs)",
                    f"{owner}.forward = forward",
                ]
            )

    def after_pass(self, module):
        if self.entered and self.entered[-1][0] == id(module):
            self.entered.pop()[1].__exit__(None, None, None)
