# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "LoRA: adapters instead of all weights"
maths = "algorithm"
group = "weights"
strong = true
applies = "models of the package transformers, where peft is installed"
packages = ["peft"]
cost = "Little: each linear layer has two more, narrow products; there are fewer gradients and less state."
page = '''
The weights stay as they are. Each linear layer gets two narrow matrices of rank 16, and only these are trained.

Savings: the gradients and the state of the optimizer of all other weights. The weights themselves stay, and most
activations too: their gradients are needed on the way to the adapters.

Effect on the mathematics: another algorithm: it fine-tunes in a small subspace.

By hand, before the optimizer is made:

    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
'''
+++
"""

import gc
import sys

from tonnage_hook.failures import swallow
from tonnage_hook.torch.changing import OfOptimizers, name_of


class Change(OfOptimizers):
    nothing = "no optimizer was made for a model of transformers"

    def change(self, optimizer, kind, options):
        model = self._model(self.tensors(options))
        if model is None:
            self.refused("the optimizer is not for a model of transformers")
            return None
        if any("lora_" in name for name, _ in model.named_parameters()):
            self.refused("the model has LoRA adapters already", already=True)
            return None
        try:
            from peft import LoraConfig, get_peft_model
        except Exception as error:
            if not isinstance(error, ImportError):
                swallow("Change.change", error)
            self.refused(f"peft cannot be imported: {error}")
            return None
        owner = name_of(model, "model")
        # It puts the adapters into the model; what it returns is a wrapper around it.
        get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
        trained = [one for one in model.parameters() if one.requires_grad]
        group = options["params"][0]
        options["params"] = [{**group, "params": trained}] if isinstance(group, dict) else trained
        self.applied(
            [
                "from peft import LoraConfig, get_peft_model",
                f'{owner} = get_peft_model({owner}, LoraConfig(r=16, target_modules="all-linear"))',
            ],
            where=f"{owner}: {type(model).__name__}",
        )
        return None

    def _model(self, tensors):
        """The model of transformers that the parameters are of."""
        kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
        if kind is None or not tensors:
            return None
        found = [one for one in gc.get_objects() if issubclass(type(one), kind)]
        holds = [one for one in found if any(part is tensors[-1] for part in one.parameters())]
        # The outermost has most parts.
        return max(holds, key=lambda one: sum(1 for _ in one.modules()), default=None)
