"""Values that a script can see: those that it wrote come back.

With the argument `off` no values are computed and the rest is zero; otherwise it is a finite number.
"""

import math
import multiprocessing
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset


OFF = sys.argv[1:] == ["off"]


def is_unknown(value):
    return value == 0.0 if OFF else math.isfinite(value) and value != 5.0


class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((16,), float(index))


def forked_worker(queue):
    queue.put(sum(range(10)))


def spawned_worker(queue):
    block = torch.ones(8, device="cuda")
    queue.put((torch.cuda.device_count(), block.sum().item()))


def main():
    # Values that came from the host are known.
    assert torch.tensor([1, 2, 3], device="cuda").tolist() == [1, 2, 3]
    assert torch.tensor(7, device="cuda").item() == 7
    assert torch.arange(6).cuda().cpu().tolist() == [0, 1, 2, 3, 4, 5]
    # An address that is handed out anew knows nothing of what was there.
    for _ in range(3):
        block = torch.tensor([5.0] * 128, device="cuda")
        assert block.tolist() == [5.0] * 128
        del block
        assert all(map(is_unknown, torch.empty(128, device="cuda").tolist()))
    # The result of a kernel is unknown: zeros, never rubbish.
    big = torch.randn(1 << 20, device="cuda")
    assert big.cpu().abs().sum().item() == 0.0
    reused = torch.ones(1 << 20)
    reused.copy_(big)
    assert reused.abs().sum().item() == 0.0, "a host buffer that held something else"
    assert is_unknown(big.sum().item())

    model = torch.nn.Linear(16, 16, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    for batch in loader:
        assert batch.is_pinned()
        batch = batch.to("cuda", non_blocking=True)
        with torch.autocast("cuda"):
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert is_unknown(loss.item())

    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=forked_worker, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 45
    child.join(60)
    assert child.exitcode == 0
    if os.fork() == 0:
        try:
            torch.empty(1, device="cuda")
        except RuntimeError as error:
            os._exit(17 if "forked subprocess" in str(error) else 18)
        os._exit(19)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 17

    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    child = spawn.Process(target=spawned_worker, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == (1, 0.0 if OFF else 8.0)
    child.join(60)
    assert child.exitcode == 0

    assert os.system("true") == 0
    print("values ok")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
