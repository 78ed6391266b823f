# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Evaluation without gradients"
maths = "nothing"
group = "evaluation"
applies = "models that are called in evaluation mode with gradients on, of which no gradient is computed"
cost = "None: the forward pass keeps nothing."
page = '''
model.eval() changes layers such as dropout; it does not stop the forward pass from keeping what a backward pass would
need. torch.no_grad() does.

Savings: all activations of evaluation passes.

Effect on the mathematics: nothing, unless the program computes gradients of the evaluation. The change is not made to a
model that was never trained if the program computes any gradient.

By hand: with torch.no_grad(): output = model(inputs)
'''
+++
"""

import weakref

from tonnage_hook.settings import SETTINGS
from tonnage_hook.torch.changing import Base, edit_of_statement, users_frame


class Change(Base):
    nothing = "no model was called in evaluation mode with gradients on"

    def install(self):
        self.trained = weakref.WeakSet()
        self.entered = []
        # Whether the program computes gradients: a model in evaluation mode may then be a part of what is trained.
        self.computes_gradients = False
        # Whether a model was changed that the program has not trained before.
        self.changed_untrained = False
        for owner, name in ((self.torch.autograd, "backward"), (self.torch.autograd, "grad")):
            self.replace(owner, name, self._compute_gradients)

    def _compute_gradients(self, call, args, kwargs):
        self.computes_gradients = True
        if self.changed_untrained:
            self.changed_untrained = False
            self.done, self.where, self.lines, self.pieces, self.edits = False, [], [], [], []
            self.refused("the program computes gradients, maybe through the model that it evaluates")
            self.tell()

    def before_pass(self, module):
        if not self.is_model(module):
            return
        if module.training:
            self.trained.add(module)
            return
        if not self.torch.is_grad_enabled():
            self.refused("evaluation runs without gradients already", already=True)
            return
        if module not in self.trained:
            # A job that is stopped early may compute gradients later.
            is_cut = SETTINGS.get("stop_after_steps") or SETTINGS.get("stop_after_seconds")
            if self.computes_gradients or is_cut or len(self.trained) > 0:
                return
            self.changed_untrained = True
        context = self.torch.no_grad()
        context.__enter__()
        self.entered.append((id(module), context))
        frame = users_frame()
        edit = edit_of_statement(frame, "with torch.no_grad():")
        default = ["with torch.no_grad():", "    output = model(inputs)"]
        if len(self.edits) < 8:
            self.applied([line.strip("\n") for line in edit["new"].splitlines()] if edit else default, frame, edit)

    def after_pass(self, module):
        if self.entered and self.entered[-1][0] == id(module):
            self.entered.pop()[1].__exit__(None, None, None)
