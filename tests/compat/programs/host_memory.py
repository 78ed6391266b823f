# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model of 1.6 billion parameters made on the host, cast, saved, loaded again and moved."""

import tempfile

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192, bias=False) for _ in range(24)]).to(torch.bfloat16)
with tempfile.TemporaryDirectory() as folder:
    torch.save(model.state_dict(), f"{folder}/model.pt")
    loaded = torch.load(f"{folder}/model.pt", mmap=True, weights_only=True)
    model.load_state_dict(loaded, assign=True)
model.cuda()
with torch.no_grad():
    model(torch.randn(4, 8192, device="cuda", dtype=torch.bfloat16))
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
