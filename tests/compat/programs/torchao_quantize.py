# SPDX-License-Identifier: MIT OR Apache-2.0
"""torchao: weights of 8 bits, float8, 4 bits, or an optimizer with 8 bits of state."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["int8", "float8", "int4", "adam8"])
kind = parser.parse_args().kind
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False) for _ in range(8)]).to("cuda", torch.bfloat16)
x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
if kind == "adam8":
    from torchao.optim import AdamW8bit

    optimizer = AdamW8bit(model.parameters())
    for _ in range(2):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    from torchao.quantization import Float8WeightOnlyConfig, Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    quantize_(
        model, {"int8": Int8WeightOnlyConfig, "float8": Float8WeightOnlyConfig, "int4": Int4WeightOnlyConfig}[kind]()
    )
    with torch.no_grad():
        model(x)
print(f"done, {torch.cuda.memory_allocated() >> 20} MiB at rest, {torch.cuda.max_memory_allocated()} bytes at most")
