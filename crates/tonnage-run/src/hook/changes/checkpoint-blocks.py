# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Gradient checkpointing of repeated blocks"
maths = "nothing"
group = "checkpointing"
applies = "models with a ModuleList or Sequential that holds two or more blocks of one type"
cost = "The forward pass of every block is computed again in the backward pass."
page = '''
In a forward pass every block keeps what its backward pass needs. With checkpointing a block keeps its input only, and
computes the rest again when the backward pass reaches it. Then the activations of one block are there at a time,
instead of those of all blocks.

What it saves: most of the activations of the blocks. It does not help where the peak is the weights, the optimizer or
the loss.

What it does to the mathematics: nothing; dropout draws the same masks again. A layer that counts its calls, such as a
BatchNorm, counts the second one too: its running averages move twice in a step.

By hand, for each list of blocks:

    from functools import partial
    from torch.utils.checkpoint import checkpoint
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
'''
+++
"""

import functools
import importlib
import weakref


class Change(Base):
    nothing = "no model with a list of repeated blocks was trained"

    def install(self):
        self.ours = weakref.WeakSet()
        self.checkpoint = importlib.import_module("torch.utils.checkpoint")
        # Every checkpoint goes through one of these two, the script's too.
        replace(self.checkpoint, "_checkpoint_without_reentrant_generator", self._notice)
        replace(self.checkpoint.CheckpointFunction, "apply", self._notice_reentrant)

    def _notice(self, call, args, kwargs):
        self._is_the_scripts(args)
        return call, args, kwargs

    def _notice_reentrant(self, call, args, kwargs):
        self._is_the_scripts(args)
        return call, args, kwargs

    def _is_the_scripts(self, args):
        """A checkpoint that is not ours: the program does it by itself, and ours are taken off again."""
        function = args[0] if args else None
        if getattr(function, "__self__", None) in self.ours or self.already:
            return
        for block in list(self.ours):
            vars(block).pop("forward", None)
        self.done, self.where, self.lines = False, [], []
        self.refused("the program uses torch.utils.checkpoint already", already=True)
        self.tell()

    def before_pass(self, module):
        if self.already or not self.torch.is_grad_enabled() or not self.is_model(module) or not self.is_new(module):
            return
        for root in self.whole(module):
            for path, blocks in self._lists(root):
                self._change(root, path, blocks)

    def _lists(self, root, path=""):
        """The blocks of each outermost list that has repeated ones, with its path."""
        for name, child in root.named_children():
            where = f"{path}.{name}" if path else name
            if isinstance(child, (self.torch.nn.ModuleList, self.torch.nn.Sequential)):
                blocks = self._repeated(child)
                if blocks:
                    yield where, blocks
                    continue
            yield from self._lists(child, where)

    def _repeated(self, children):
        """Children of one type that are made of parts and have parameters, where there are two or more."""
        parts = [one for one in children if any(True for _ in one.children()) and self.is_model(one)]
        kinds = [type(one) for one in parts]
        return [one for one in parts if kinds.count(type(one)) > 1]

    def _change(self, root, path, blocks):
        new = [block for block in blocks if block not in self.ours and "forward" not in vars(block)]
        if not new:
            return
        for block in new:
            forward = block.forward
            self.ours.add(block)
            block.forward = functools.partial(self.checkpoint.checkpoint, forward, use_reentrant=False)
        owner = name_of(root, "model")
        lines = [
            "from functools import partial",
            "from torch.utils.checkpoint import checkpoint",
            f"for block in {owner}.{path}:",
            "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)",
        ]
        self.lines.extend(lines[2:] if self.lines else lines)
        kind = type(new[0]).__name__
        self.applied([], where=f"{owner}.{path}: {len(new)} × {kind}")
