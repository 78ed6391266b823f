# SPDX-License-Identifier: MIT OR Apache-2.0
"""A denoiser with a thread that gathers outputs and writes statistics of 64 of them at a time."""

import os
import queue
import threading

import torch
from torch import nn

FIXED = os.environ.get("FIXED") == "1"


class Recorder(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue()

    def run(self):
        backlog = []
        while True:
            item = self.inbox.get()
            if FIXED:
                item = item.mean(dim=(1, 2)).cpu()
            backlog.append(item)  # <- here
            del item
            if len(backlog) == 64:
                print("mean", sum(part.mean() for part in backlog))
                backlog.clear()
            self.inbox.task_done()


recorder = Recorder()
recorder.start()

model = nn.Sequential(nn.Conv1d(1, 4, 9, padding=4), nn.PReLU(), nn.Conv1d(4, 1, 9, padding=4)).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train_step():
    clean = torch.randn(64, 1, 2**20, device="cuda")
    noisy = clean + 0.1 * torch.randn_like(clean)
    output = model(noisy)
    (output - clean).abs().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    recorder.inbox.put(output.detach())


for _ in range(6):
    train_step()
    recorder.inbox.join()
