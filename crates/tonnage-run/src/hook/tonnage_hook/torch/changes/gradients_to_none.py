# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Gradients set to none"
maths = "nothing"
group = "gradients"
applies = "programs that call zero_grad with set_to_none=False"
cost = "None: nothing has to be filled with zeros."
page = '''
zero_grad(set_to_none=False) fills the gradients with zeros and keeps their memory through the next forward pass. With
set_to_none=True, the default, it is given free until the backward pass needs it.

Savings: the gradients, in the forward pass. It does not help where the peak is in the step of the optimizer.

Effect on the mathematics: nothing for most programs. A parameter that gets no gradient is then left out of the
step, instead of being updated with a gradient of zero.

By hand: optimizer.zero_grad()
'''
+++
"""

from tonnage_hook.torch.changing import Base, edit_of_call, users_frame


class Change(Base):
    nothing = "the program does not call zero_grad with set_to_none=False"

    def install(self):
        self.replace(self.torch.optim.Optimizer, "zero_grad", self._zero)
        self.replace(self.torch.nn.Module, "zero_grad", self._zero)

    def _zero(self, call, args, kwargs):
        given = args[1] if len(args) > 1 else kwargs.get("set_to_none", True)
        if given:
            return None
        frame = users_frame()
        edit = edit_of_call(frame, "zero_grad", "set_to_none", "True")
        self.applied([edit["new"].strip() if edit else "optimizer.zero_grad(set_to_none=True)"], frame, edit)
        return call, args[:1], {"set_to_none": True}
