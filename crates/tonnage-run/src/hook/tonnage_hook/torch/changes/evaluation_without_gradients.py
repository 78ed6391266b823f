# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Evaluation without gradients"
maths = "nothing"
group = "evaluation"
applies = "models that were trained and are then called in evaluation mode with gradients on"
cost = "None: the forward pass keeps nothing."
page = '''
model.eval() changes layers such as dropout; it does not stop the forward pass from keeping what a backward pass would
need. torch.no_grad() does.

Savings: all activations of evaluation passes.

Effect on the mathematics: nothing, unless the program computes gradients of the evaluation.

By hand: with torch.no_grad(): output = model(inputs)
'''
+++
"""

import weakref

from tonnage_hook.torch.changing import Base, edit_of_statement, users_frame


class Change(Base):
    nothing = "no model was called in evaluation mode with gradients on after it was trained"

    def install(self):
        self.trained = weakref.WeakSet()
        self.entered = []

    def before_pass(self, module):
        if not self.is_model(module):
            return
        if module.training:
            self.trained.add(module)
            return
        if module not in self.trained:
            return
        if not self.torch.is_grad_enabled():
            self.refused("evaluation runs without gradients already", already=True)
            return
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
