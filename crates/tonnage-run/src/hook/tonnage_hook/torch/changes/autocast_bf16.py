# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Autocast to bfloat16"
maths = "rounding"
group = "precision"
applies = "models with float32 weights; on GPUs from compute capability 8.0 on in hardware"
cost = "None: matrix products in bfloat16 are faster, and the weights are cast once in each forward pass."
page = '''
Inside torch.autocast matrix products, convolutions and attention compute in bfloat16, and what they keep for the
backward pass has half the size. Weights, gradients and the state of the optimizer stay in float32. Each forward pass
keeps a copy of the weights in bfloat16 until it ends, and the graph keeps what of it the backward pass needs.

Savings: about half of the activations. It needs a little more for the cast weights; a small batch of a large
model can need more than without.

Effect on the mathematics: products are rounded to 8 bits of precision and added up in float32. Most training
works with it and needs no scaling of the loss.

By hand:

    model.forward = torch.autocast("cuda", dtype=torch.bfloat16)(model.forward)

or, around the call: with torch.autocast("cuda", dtype=torch.bfloat16): output = model(inputs)
'''
+++
"""

from tonnage_hook.torch.changing import Base, name_of


class Change(Base):
    nothing = "no model with weights to train was called"

    def install(self):
        self.entered = []

    def before_pass(self, module):
        torch = self.torch
        # A program that uses autocast chooses by itself where it does.
        if self.already or not self.is_model(module):
            return
        if torch.is_autocast_enabled():
            self.refused("the model is called inside an autocast already", already=True)
            return
        if all(one.dtype != torch.float32 for one in module.parameters()):
            self.refused("the weights have 16 bits already", already=True)
            return
        context = torch.autocast("cuda", dtype=torch.bfloat16)
        context.__enter__()
        self.entered.append((id(module), context))
        if self.is_new(module):
            owner = name_of(module, "model")
            line = f'{owner}.forward = torch.autocast("cuda", dtype=torch.bfloat16)({owner}.forward)'
            self.applied([line])

    def after_pass(self, module):
        if self.entered and self.entered[-1][0] == id(module):
            self.entered.pop()[1].__exit__(None, None, None)
