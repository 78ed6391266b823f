"""Seconds per training step: the dry run, torch's fake tensors, and torch's memory tracker.

Run it under `tonnage run`. All three train the same 12-layer transformer on the device "cuda",
in one process. Rounds alternate between the three, so that a busy machine slows all of them alike.

    tonnage run --gpu h100-80gb -- python tests/torch/scripts/speed.py [ROUNDS] [STEPS]

The last line is JSON: the mean seconds per step of each, and two ratios.
"""

import json
import statistics
import sys
import time

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 32000, 768, 12, 12, 4, 512
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 20  # of the dry run, per round


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        # One by one: nn.TransformerEncoder copies its layer, and a copied fake tensor gets a copy
        # of its fake mode, with which the others refuse to work.
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, dropout=0.0)
                for _ in range(LAYERS)
            )
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


class Training:
    def __init__(self):
        with torch.device("cuda"):
            self.model = Model()
            self.tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        # Named, because AdamW would choose it for CUDA tensors but not for fake ones: with it all
        # three dispatch the same operators.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, foreach=True)

    def step(self):
        logits = self.model(self.tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds_per_step(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - start) / steps


fake_mode = FakeTensorMode()

dry = Training()
with fake_mode:
    fake = Training()
    tracked = Training()
tracker = MemTracker()
tracker.track_external(tracked.model, tracked.optimizer, tracked.tokens)


def dry_round():
    return dry.seconds_per_step(STEPS)


def fake_round():
    with fake_mode:
        return fake.seconds_per_step(1)


def tracked_round():
    tracker.reset_mod_stats()  # it tracks one iteration at a time
    with fake_mode, tracker:
        return tracked.seconds_per_step(1)


contenders = {"dry run": dry_round, "fake tensors": fake_round, "MemTracker": tracked_round}
seconds = {name: [] for name in contenders}
for round_number in range(ROUNDS + 1):
    for name, run in contenders.items():
        took = run()
        if round_number > 0:  # round 0 warms up: optimizer states, caches
            seconds[name].append(took)

# The mean, not the median: now and then the dry run hands its history over to tonnage, and the
# steps in which it does so are part of its price.
mean = {name: statistics.mean(values) for name, values in seconds.items()}
for name, values in seconds.items():
    print(
        f"{name:<13} {mean[name]:8.4f} s per step  (rounds: {ROUNDS}, fastest {min(values):.4f},"
        f" median {statistics.median(values):.4f}, slowest {max(values):.4f})"
    )
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "seconds_per_step": mean,
            "fake_over_dry": mean["fake tensors"] / mean["dry run"],
            "memtracker_over_dry": mean["MemTracker"] / mean["dry run"],
        }
    )
)
