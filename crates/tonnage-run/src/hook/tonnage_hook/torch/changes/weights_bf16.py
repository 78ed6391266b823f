# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Weights in bfloat16"
maths = "algorithm"
group = "precision"
applies = "models with float32 weights; on GPUs from compute capability 8.0 on in hardware"
cost = "None from compute capability 8.0 on. Older GPUs compute bfloat16 without its hardware, and more slowly."
page = '''
The whole model is cast to bfloat16: weights, gradients, the state of the optimizer and activations take half.

Savings: half of nearly everything.

Effect on the mathematics: weights have 8 bits of precision. A small update of a large weight is lost; training
from the beginning often needs weights of 32 bits (autocast-bf16), fine-tuning mostly does not.

Floating-point inputs of the model have to be cast too; a dry run does that.

By hand, before the model is moved to the GPU and before the optimizer is made:

    model.to(torch.bfloat16)
'''
+++
"""

from tonnage_hook.torch.changing import Base, name_of


class Change(Base):
    nothing = "no model with weights to train was moved to the GPU or called"

    def install(self):
        module = self.torch.nn.Module
        self.replace(module, "to", self._before_move)
        self.replace(module, "cuda", self._before_move)

    def _before_move(self, call, args, kwargs):
        if call.__name__ == "to":
            device = self.torch._C._nn._parse_to(*args[1:], **kwargs)[0]
            if device is None or device.type != "cuda":
                return
        self._cast(args[0])

    def before_pass(self, module):
        if self.is_model(module):
            self._cast(module)

    def _cast(self, module):
        torch = self.torch
        if not self.is_model(module) or not self.is_new(module):
            return
        if all(one.dtype != torch.float32 for one in module.parameters()):
            if not self.done:
                self.refused("the weights have 16 bits already", already=True)
            return
        owner = name_of(module, "model")
        self.torch.nn.Module.to.__wrapped__(module, torch.bfloat16)
        module.register_forward_pre_hook(self._cast_inputs, with_kwargs=True)
        self.applied([f"{owner}.to(torch.bfloat16)"])

    def _cast_inputs(self, module, args, kwargs):
        torch = self.torch

        def cast(one):
            is_float = isinstance(one, torch.Tensor) and one.dtype == torch.float32
            if is_float:
                line = "inputs = inputs.to(torch.bfloat16)  # floating-point inputs of the model"
                if line not in self.lines:
                    self.lines.append(line)
            return one.to(torch.bfloat16) if is_float else one

        return tuple(cast(one) for one in args), {key: cast(one) for key, one in kwargs.items()}
