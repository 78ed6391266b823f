# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Attention by PyTorch's kernels"
maths = "rounding"
group = "attention"
applies = "models of the package transformers with eager attention"
cost = "None: the kernels are faster than the single operations."
page = '''
Eager attention computes the matrix of all pairs of positions, and keeps it with its softmax for the backward pass.
torch.nn.functional.scaled_dot_product_attention computes it in pieces and keeps none of them.

Savings: for each layer the matrices of batch × heads × length × length.

Effect on the mathematics: the same formula, rounded in another order.

By hand: model.set_attn_implementation("sdpa")
or, where the model is made: attn_implementation="sdpa"
'''
+++
"""

from tonnage_hook.torch.changing import Base, model_of_transformers, name_of


class Change(Base):
    nothing = "no model of transformers was called; a program's own attention has to be changed by hand"

    def before_pass(self, module):
        if not self.is_new(module):
            return
        model = model_of_transformers(module)
        if model is None:
            return
        kind = type(model).__name__
        used = getattr(model.config, "_attn_implementation", None)
        if used not in (None, "eager"):
            self.refused(f"{kind} uses {used} already", already=True)
        elif not getattr(model, "_supports_sdpa", False):
            self.refused(f"{kind} does not support it")
        elif getattr(model.config, "output_attentions", False):
            self.refused("the program requests the matrices of the attention, which only eager attention has")
        elif not hasattr(model, "set_attn_implementation"):
            self.refused("this version of transformers cannot change the attention of a model that is made")
        else:
            model.set_attn_implementation("sdpa")
            owner = name_of(model, "model")
            self.applied([f'{owner}.set_attn_implementation("sdpa")'], where=f"{owner}: {kind}")
