# SPDX-License-Identifier: MIT OR Apache-2.0
"""Training that saves model and optimizer, starts again from the file, and goes on."""

import tempfile

import torch

with tempfile.TemporaryDirectory() as folder:
    for turn in range(2):
        model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        if turn:
            state = torch.load(f"{folder}/last.pt", map_location="cuda")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            assert state["step"] == 3
            assert int(optimizer.state[next(model.parameters())]["step"]) == 3
        for _ in range(3):
            loss = model(torch.randn(32, 128, 512, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(loss.item())
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, f"{folder}/last.pt")
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
