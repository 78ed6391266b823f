# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Optimizer steps inside the backward pass"
maths = "nothing"
group = "optimizer"
applies = "optimizers of torch.optim; not with clipping, accumulation or scaling of gradients"
cost = "Hardly any: the same steps, one parameter at a time."
page = '''
As soon as the gradient of a parameter is complete, the parameter is updated and the gradient is given free. Then there
is one gradient at a time, instead of all of them until the step.

Savings: nearly all of the gradients, and the temporary memory of the step.

Effect on the mathematics: nothing, as long as the program does not need all gradients at once: clipping by the
norm of all, accumulation over several batches and gradient scalers do, and the change is not made then. The lines below
read the options of each group at every step, so a schedule of the learning rate still holds.

By hand, behind the program's own optimizer; optimizer.step() and zero_grad() then find no gradients and do nothing:

    groups = {one: group for group in optimizer.param_groups for one in group["params"]}
    def step(one, optimizers={}):
        options = {key: value for key, value in groups[one].items() if key != "params"}
        if one not in optimizers:
            optimizers[one] = torch.optim.AdamW([{"params": [one], **options}])
        optimizers[one].param_groups[0].update(options)
        optimizers[one].step()
        one.grad = None
    for one in groups:
        if one.requires_grad:
            one.register_post_accumulate_grad_hook(step)
'''
+++
"""

import functools

from tonnage_hook.torch.changing import OfOptimizers


class Change(OfOptimizers):
    def install(self):
        super().install()
        # Released gradients are gone before these are requested: the first call takes the change back.
        self.handles, self.backwards, self.inner = [], 0, False
        utilities = self.torch.nn.utils
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for owner in (utilities, utilities.clip_grad):
                if hasattr(owner, name):
                    self.replace(owner, name, self._clips)
        self.replace(self.torch.amp.GradScaler, "scale", self._scales)
        self.replace(self.torch.autograd, "backward", self._backward)

    def _clips(self, call, args, kwargs):
        self._take_back("the program clips gradients, which needs all of them at once")

    def _scales(self, call, args, kwargs):
        if args[0].is_enabled():
            self._take_back("the program scales gradients, which needs all of them at once")

    def _backward(self, call, args, kwargs):
        self.backwards += 1
        if self.backwards > 1:
            self._take_back("the program accumulates gradients over several backward passes")

    def _take_back(self, why):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.done, self.where, self.lines = False, [], []
        self.why = why
        self.tell()

    def change(self, optimizer, kind, options):
        if self.inner or self.why:
            return None
        if kind == "LBFGS":
            self.refused("LBFGS needs all gradients at once")
            return None
        groups = [one if isinstance(one, dict) else {"params": [one]} for one in options["params"]]
        for group in groups:
            inner = group["params"]
            for one in [inner] if isinstance(inner, self.torch.Tensor) else list(inner):
                one = one[1] if isinstance(one, tuple) else one
                own = {key: value for key, value in {**options, **group}.items() if key != "params"}
                if one.requires_grad:
                    self.handles.append(
                        one.register_post_accumulate_grad_hook(functools.partial(self._step, type(optimizer), own, []))
                    )
        self.applied(self._lines(kind))

        def after(_):
            optimizer.register_step_post_hook(self._stepped)

        return after

    def _stepped(self, *_):
        self.backwards = 0

    def _step(self, kind, options, optimizers, one):
        if not optimizers:
            self.inner = True
            try:
                optimizers.append(kind([one], **options))
            finally:
                self.inner = False
        optimizers[0].step()
        one.grad = None

    def _lines(self, kind):
        return [
            'groups = {one: group for group in optimizer.param_groups for one in group["params"]}',
            "def step(one, optimizers={}):",
            '    options = {key: value for key, value in groups[one].items() if key != "params"}',
            "    if one not in optimizers:",
            f'        optimizers[one] = torch.optim.{kind}([{{"params": [one], **options}}])',
            "    optimizers[one].param_groups[0].update(options)",
            "    optimizers[one].step()",
            "    one.grad = None",
            "for one in groups:",
            "    if one.requires_grad:",
            "        one.register_post_accumulate_grad_hook(step)",
        ]
