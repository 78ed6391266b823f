# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels of Triton that keep a program's books are computed, so that the host reads what a GPU would have written."""

from conftest import PYTHON

# By hand, from what the kernels do.
EXPECTED = """\
sampled: [1, 0, 1, 2]
lengths: [5, 10, 7, 10]
slots: [[40, 41, 42, 43, 80, 81, -1, -1, -1, -1], [28, 29, 30, 31, 32, 33, 34, 35, 36, -1]]
summary: [29, 9, 3, 6, 3, 29, 17, -201, 54]
pinned: [6, 5, 10]
picked one of them: True
beside it: 300
after a stray address: 1
went on: True
"""


def printed(run):
    return "".join(f"{line}\n" for line in run.err.splitlines() if ": " in line and not line.startswith(" "))


def test_what_kernels_write_is_read_back(tonnage):
    run = tonnage("triton_kernels.py")
    assert run.code == 0, run.err
    assert printed(run).endswith(EXPECTED), run.err
    unknown = run.verdict["unknown_values"]
    # The index of the greatest of unknown scores is read by the comparison; nothing else is unknown.
    assert unknown["decisions"] == 1, unknown


def test_without_values_kernels_do_nothing(tonnage):
    run = tonnage("triton_kernels.py", options=["--values", "off"])
    assert run.code == 0, run.err
    assert "sampled: [1, 1, 1, 2]" in run.err
    assert "lengths: [5, 6, 7, 8]" in run.err


AHEAD_OF_TIME = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 32, device="cuda")

    def forward(self, ids):
        return self.embedding(ids.long()) + torch.zeros(32, device=ids.device)


net = Net()
ids = torch.arange(8, dtype=torch.int32, device="cuda")
with torch.inference_mode():
    # Serving programs compile so: with modes of torch.compile below ours.
    torch.compile(net.forward, fullgraph=True, backend="aot_eager").aot_compile(((ids,), {}))
print("compiled: True")
"""


def test_a_program_may_compile_ahead_of_time(tonnage, tmp_path):
    path = tmp_path / "ahead.py"
    path.write_text(AHEAD_OF_TIME)
    run = tonnage(None, command=[PYTHON, str(path)])
    assert "compiled: True" in run.err, run.err
    assert "data pointer of FakeTensor" not in run.err


IN_PLACE = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, rows_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, out = x_ptr + at, out_ptr + at
    for start in range(0, n, BLOCK):
        row = tl.load(rows_ptr + start // BLOCK)
        tl.store(out + row * BLOCK, tl.load(x) * 2.0)
        x += BLOCK


x, rows, out = torch.ones(256, device="cuda"), torch.arange(4, device="cuda"), torch.zeros(256, device="cuda")
scale[(1,)](x, rows, out, 256, BLOCK=64)
if x.sum().item() == 256 and rows.sum().item() == 6:
    print("what it read is known")
if out.sum().item() == 0:
    print("nothing was computed")
"""


def test_what_a_kernel_wrote_that_was_not_computed_is_unknown(tonnage, tmp_path):
    path = tmp_path / "in_place.py"
    path.write_text(IN_PLACE)
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    assert "what it read is known" in run.err
    unknown = run.verdict["unknown_values"]
    assert unknown["decisions"] == 1, unknown
    assert unknown["first_decision"]["line"] == IN_PLACE.splitlines().index("if out.sum().item() == 0:") + 1, unknown


COMPILED = """
import torch


@torch.compile
def count(steps, limits):
    steps += 1
    return limits * 2


steps, limits = torch.zeros((), dtype=torch.int64, device="cuda"), torch.ones((), device="cuda")
count(steps, limits)
if limits.item() == 1:
    print("what it read is known")
if steps.item() == 0:
    print("nothing was computed")
"""


def test_what_compiled_code_changes_in_place_is_unknown(tonnage, tmp_path):
    path = tmp_path / "compiled.py"
    path.write_text(COMPILED)
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    assert "what it read is known" in run.err
    unknown = run.verdict["unknown_values"]
    assert unknown["decisions"] == 1, unknown
    assert unknown["first_decision"]["line"] == COMPILED.splitlines().index("if steps.item() == 0:") + 1, unknown
