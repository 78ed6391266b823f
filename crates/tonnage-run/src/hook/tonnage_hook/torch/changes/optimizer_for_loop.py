# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Optimizer that updates one parameter after another"
maths = "nothing"
group = "optimizer"
applies = "optimizers of torch.optim with the option foreach"
cost = "More and smaller kernels in each step of the optimizer."
page = '''
PyTorch's default step of an optimizer (foreach) computes with lists of all parameters, and keeps about one more copy of
them while it does. With foreach=False it updates one parameter after another, and keeps temporaries of one at a time.

Savings: the temporary memory of the step, about as much as the parameters take. Where a fused optimizer exists,
it saves the same and is faster: optimizer-fused.

Effect on the mathematics: nothing, the same operations run parameter by parameter.

By hand: optimizer = torch.optim.AdamW(parameters, lr=..., foreach=False)
'''
+++
"""

import inspect

from tonnage_hook.torch.changing import OfOptimizers


class Change(OfOptimizers):
    def change(self, optimizer, kind, options):
        if options.get("fused"):
            self.refused("the optimizer is fused, which needs no more than a loop", already=True)
        elif options.get("foreach") is False:
            self.refused("the optimizer has foreach=False already", already=True)
        elif "foreach" not in inspect.signature(type(optimizer).__init__).parameters:
            self.refused(f"{kind} has no option foreach")
        else:
            options["foreach"] = False
            self.option(kind, "foreach", "False", None)
