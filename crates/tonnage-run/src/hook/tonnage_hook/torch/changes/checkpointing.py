# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Gradient checkpointing of transformers"
maths = "nothing"
group = "checkpointing"
strong = true
applies = "models of the package transformers that support it"
cost = "The forward pass of every layer is computed again in the backward pass."
page = '''
In a forward pass every layer keeps what its backward pass needs. With checkpointing a layer keeps its input only, and
computes the rest again when the backward pass reaches it.

Savings: most of the activations of the layers. It does not help where the peak is the weights, the optimizer or
the loss.

Effect on the mathematics: nothing; dropout draws the same masks again.

By hand: model.gradient_checkpointing_enable()
or, with the Trainer: TrainingArguments(..., gradient_checkpointing=True)
'''
+++
"""

from tonnage_hook.torch.changing import Base, model_of_transformers, name_of


class Change(Base):
    nothing = "no model of transformers was trained; checkpoint-blocks does the same for other models"

    def before_pass(self, module):
        if not self.torch.is_grad_enabled() or not module.training or not self.is_new(module):
            return
        model = model_of_transformers(module)
        if model is None:
            return
        kind = type(model).__name__
        if model.is_gradient_checkpointing:
            self.refused("gradient checkpointing is on already", already=True)
        elif not model.supports_gradient_checkpointing:
            self.refused(f"{kind} does not support gradient checkpointing")
        else:
            model.gradient_checkpointing_enable()
            owner = name_of(model, "model")
            self.applied([f"{owner}.gradient_checkpointing_enable()"], where=f"{owner}: {kind}")
