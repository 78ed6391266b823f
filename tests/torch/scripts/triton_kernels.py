# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels with which programs keep their books; what they write is read back."""

import torch
import triton
import triton.language as tl


@triton.jit
def advance(lengths, limits, sampled, order, BLOCK: tl.constexpr):
    """One program for each request: those that have not read their prompt yet sample nothing."""
    request = tl.program_id(0)
    slot = tl.load(order + request)
    if slot < 0:
        return
    length = tl.load(lengths + slot)
    count = tl.load(sampled + request)
    count = tl.where(length < tl.load(limits + slot), 0, count)
    tl.store(sampled + request, count)
    for _ in range(count):
        length += 2
    tl.store(lengths + slot, length)


@triton.jit
def slots(tables, counts, into, stride, size, BLOCK: tl.constexpr):
    """A table of addresses of tables, as block tables of a cache are kept."""
    group = tl.program_id(0)
    table = tl.load(tables + group).to(tl.pointer_type(tl.int32))
    total = tl.load(counts + group)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        number = tl.load(table + at // 4, mask=at < total, other=0)
        tl.store(into + group * stride + at, tl.where(at < total, number * 4 + at % 4, -1), mask=at < size)


@triton.jit
def summary(values, into, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    value = tl.load(values + at)
    tl.store(into + 0, tl.sum(value))
    best, place = tl.max(value, 0, return_indices=True)
    tl.store(into + 1, best)
    tl.store(into + 2, place)
    running = tl.cumsum(value, 0)
    tl.store(into + 3, tl.sum(tl.where(at == 2, running, 0)))
    tl.store(into + 4, tl.sum((value > 3).to(tl.int64)))
    tl.atomic_add(into + 5 + at * 0, value)
    halves = tl.reshape(value, (2, SIZE // 2))
    tl.store(into + 6, tl.sum(tl.max(halves, 1)))
    left = -7 // tl.load(values + 1)
    tl.store(into + 7, left * 100 + (-7) % tl.load(values + 1))
    grown = tl.load(values)
    while grown < 50:
        grown = grown * 3
    tl.store(into + 8, grown)


@triton.jit
def pick(scores, into, size, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    score = tl.load(scores + at, mask=at < size, other=float("-inf"))
    tl.store(into, tl.argmax(score, 0))
    tl.store(into + 1, size)


@triton.jit
def halve(numbers, into, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(into + at, tl.load(numbers + at) * 0.5)


@triton.jit
def stray(tables, into):
    table = tl.load(tables).to(tl.pointer_type(tl.int32))
    tl.store(into, tl.load(table) + 1)


def numbers(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device="cuda")


lengths, sampled = numbers(5, 6, 7, 8), numbers(1, 1, 1, 2)
advance[(4,)](lengths, numbers(9, 6, 7, 8), sampled, numbers(3, 0, -1, 1), BLOCK=1)
print("sampled:", sampled.tolist())
print("lengths:", lengths.tolist())

first, second = numbers(10, 20), numbers(7, 8, 9)
tables = numbers(first.data_ptr(), second.data_ptr(), dtype=torch.int64).view(torch.uint64)
into = torch.zeros(2, 10, dtype=torch.int64, device="cuda")
slots[(2,)](tables, numbers(6, 9), into, 10, 10, BLOCK=4)
print("slots:", into.tolist())

into = torch.zeros(9, dtype=torch.int64, device="cuda")
summary[(1,)](numbers(2, 3, 1, 9, 4, 2, 8, 0, dtype=torch.int64), into, SIZE=8)
print("summary:", into.tolist())

# Kernels see pinned memory of the host, and the other way round.
pinned = torch.tensor([4, 5, 6], dtype=torch.int32).pin_memory()


class OnDevice:
    """Pinned memory as a kernel gets it: by its address."""

    dtype = torch.int32

    @staticmethod
    def data_ptr():
        return pinned.data_ptr()


advance[(3,)](OnDevice(), numbers(0, 0, 0), numbers(1, 0, 2), numbers(0, 1, 2), BLOCK=1)
print("pinned:", pinned.tolist())

# A score that was not computed: the answer is one of the indices, and the count beside it is known.
scores = torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")
into = numbers(-1, -1)
pick[(1,)](scores, into, 300, BLOCK=512)
print("picked one of them:", 0 <= into[0].item() < 300)
print("beside it:", into[1].item())

# Floating point numbers alone decide nothing: they are left undone.
into = torch.zeros(8, device="cuda")
halve[(1,)](torch.ones(8, device="cuda"), into, BLOCK=8)

# An address of nothing is not followed.
into = numbers(41)
stray[(1,)](numbers(64, dtype=torch.int64).view(torch.uint64), into)
print("after a stray address:", into.shape[0])
print("went on: True")
