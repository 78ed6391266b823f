# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs whose error messages of an RTX 3090 were published with WhiteFox, through WhiteFox's own harness.

The programs are written anew from what they do: shapes and operators decide the memory. Their harness copies the
inputs, which is why it is used; it is taken from a checkout.
"""

import itertools
import math
import sys

import torch

sys.path.insert(0, f"{sys.argv[1]}/torch-exec")
import torch_utils


class Calls(torch.nn.Module):
    def __init__(self, run, *layers):
        super().__init__()
        self.layers, self.run = torch.nn.ModuleList(layers), run

    def forward(self, *inputs):
        return self.run(self.layers, *inputs)


def cumsum(layers, x):
    full = torch.full([800000000, 1], 1, dtype=torch.int64, device="cuda:0")
    whole = full.to(dtype=torch.int32)
    return torch.cumsum(whole, 1)


def attention(dropout):
    def run(layers, query, key, value, mask):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        scores = scores + mask
        weights = torch.softmax(scores, dim=-1)
        weights = torch.dropout(weights, dropout, True)
        return weights @ value

    return run


def transposed(layers, x):
    # Their program names the result of each layer, so each lives until the end.
    found = [x]
    for layer in layers:
        found.append(torch.nn.functional.softplus(layer(found[-1])))
    return found[-1]


def tanh(layers, x):
    first = layers[1](layers[0](x))
    second = torch.tanh(first)
    layers[2](second)
    third = torch.tanh(second)
    return torch.sigmoid(layers[2](third)).squeeze(1)


def case(name):
    conv, up, randn = torch.nn.Conv2d, torch.nn.ConvTranspose2d, torch.randn
    if name == "cumsum":
        return Calls(cumsum), [randn(800000000, 1, device="cuda:0")]
    if name == "attention 93":
        return Calls(attention(0.7)), [*(randn(1, 93, 6144, 155) for _ in range(3)), randn(1, 1, 6144, 6144)]
    if name == "attention 128":
        return Calls(attention(0.78)), [*(randn(1, 128, 16384, 64) for _ in range(3)), randn(1, 1, 16384, 16384)]
    if name == "tanh":
        return Calls(tanh, conv(16, 256, 1), conv(256, 1024, 1), conv(1024, 5, 1)), [randn(128, 16, 256, 256)]
    widths = [44, 27, 39, 57, 94]
    layers = [up(one, other, 3, stride=2, bias=False) for one, other in itertools.pairwise(widths)]
    return Calls(transposed, *layers), [randn(7, 44, 399, 745)]


torch_utils.set_seed(420)
torch_utils.set_state()
function, inputs = case(sys.argv[2])
function = function.to("cuda")
_, errors = torch_utils.test_jit_oracle(function, inputs, "cuda")
print("direct:", errors["direct"])
