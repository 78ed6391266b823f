# SPDX-License-Identifier: MIT OR Apache-2.0
"""DeepSpeed's ZeRO, with what it moves to the CPU and with checkpoints of all ranks."""

import argparse
import os
import tempfile

import deepspeed
import torch

# Torch 2.15 knows functions by their addresses there; later, one may have got that of another.
import torch._dynamo
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, VOCABULARY, LENGTH = 512, 4, 4096, 256

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=3)
parser.add_argument("--offload", action="store_true")
parser.add_argument("--local_rank", type=int, default=0)
arguments = parser.parse_args()
offload = {"device": "cpu"}
zero = {"stage": arguments.stage, "stage3_param_persistence_threshold": 0}
if arguments.offload:
    zero |= {"offload_optimizer": offload} | ({"offload_param": offload} if arguments.stage == 3 else {})
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": zero,
    "zero_force_ds_cpu_optimizer": False,
}
deepspeed.init_distributed()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1).float(), tokens[:, 1:].flatten())


with deepspeed.zero.Init(config_dict_or_path=config, enabled=arguments.stage == 3):
    model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(4):
    engine.backward(engine(torch.randint(VOCABULARY, (4, LENGTH + 1), device="cuda")))
    engine.step()
folder = [tempfile.mkdtemp()]
torch.distributed.broadcast_object_list(folder, src=0)
engine.save_checkpoint(folder[0], tag="last")
engine.load_checkpoint(folder[0], tag="last")
peak = torch.cuda.max_memory_allocated()
print(f"done, rank {engine.global_rank} of {engine.world_size}, {peak} bytes at most\n", end="", flush=True)
torch.distributed.destroy_process_group()
