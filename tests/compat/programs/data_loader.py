# SPDX-License-Identifier: MIT OR Apache-2.0
"""A DataLoader with worker processes and pinned memory; ragged batches padded by a collate function."""

import torch
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.arange(1, 20 + index % 50), index % 4


def collate(rows):
    texts, labels = zip(*rows)
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.tensor(labels)


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(1000, 2048, padding_idx=0), torch.nn.Linear(2048, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = 0
    for ids, labels in DataLoader(Texts(), 16, num_workers=2, pin_memory=True, collate_fn=collate):
        ids, labels = ids.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        torch.nn.functional.cross_entropy(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += len(labels)
    print(f"done, {seen} rows, {torch.cuda.max_memory_allocated()} bytes at most")
