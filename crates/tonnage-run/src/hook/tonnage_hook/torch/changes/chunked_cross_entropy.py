# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Cross-entropy in chunks of tokens"
maths = "rounding"
group = "loss"
applies = "language models of the package transformers that compute their loss from labels"
cost = "The head of the model is computed again in the backward pass."
page = '''
A language model computes a logit for each word of the vocabulary at each position, casts them to float32 and computes
the loss from them; with their gradients this is 12 bytes for each position and word. Here 1024 positions at a time go
through the head and the loss, and are computed again in the backward pass.

Savings: nearly all of the memory of logits and loss.

Effect on the mathematics: the same formula, added up in another order.

The logits in the output of the model are then the hidden states before the head: a program that reads the logits, to
count right answers or to generate, needs another way to get them.

A loss that the program computes by itself from the logits is not changed: by then the logits are there.

By hand:

    from torch.utils.checkpoint import checkpoint
    head, model.lm_head.forward = model.lm_head.forward, lambda hidden: hidden
    def chunk_loss(hidden, labels):
        logits = head(hidden).float()
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    def loss_function(logits, labels, vocab_size, num_items_in_batch=None, **_):
        hidden = logits.reshape(-1, logits.shape[-1])
        labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        chunks = zip(hidden.split(1024), labels.split(1024))
        total = sum(checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks)
        return total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)
    model.loss_function = loss_function
'''
+++
"""

from tonnage_hook.torch.changing import Base, model_of_transformers, name_of

_CODE = """\
from torch.utils.checkpoint import checkpoint
head, {model}.lm_head.forward = {model}.lm_head.forward, lambda hidden: hidden
def chunk_loss(hidden, labels):
    logits = head(hidden).float()
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
def loss_function(logits, labels, vocab_size, num_items_in_batch=None, **_):
    hidden = logits.reshape(-1, logits.shape[-1])
    labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    chunks = zip(hidden.split(1024), labels.split(1024))
    total = sum(checkpoint(chunk_loss, *chunk, use_reentrant=False) for chunk in chunks)
    return total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)
{model}.loss_function = loss_function
"""


class Change(Base):
    nothing = "no language model of transformers was trained with labels"

    def before_pass(self, module):
        if not self.torch.is_grad_enabled() or not module.training or not self.is_new(module):
            return
        model = model_of_transformers(module)
        if model is None:
            return
        kind = type(model).__name__
        head = getattr(model, "lm_head", None)
        if not kind.endswith("ForCausalLM") or not isinstance(head, self.torch.nn.Linear):
            self.refused(f"{kind} has no head of a language model that is one linear layer")
            return
        if "forward" in vars(head) or "loss_function" in vars(model):
            self.refused("the program has its own loss", already=True)
            return
        # The very lines that are printed; in a file of torch, so that no traceback shows one of ours.
        exec(compile(_CODE.format(model="model"), self.torch.nn.functional.__file__, "exec"), self._scope(model))
        owner = name_of(model, "model")
        self.applied(_CODE.format(model=owner).splitlines(), where=f"{owner}: {kind}")

    def _scope(self, model):
        return {"torch": self.torch, "model": model}
