# SPDX-License-Identifier: MIT OR Apache-2.0
"""Values that programs read back: computed where they are small, named where they are unknown."""

import ast

import pytest
from conftest import PYTHON

# The output of a GPU. Where the answer is about unknown values, it is that of a healthy program.
EXPECTED = """\
arithmetic: [0, 2, 6, 12, 20, 30]
transposed: [[1, 3], [2, 4]]
cast: [3.0, 1.0, 3.0, 2.0]
nonzero: [0, 2, 3]
selected rows: (3, 1024, 1024)
masked_select: (3,)
unique: [1, 2, 3]
unique rows: [[3, 1, 3, 2]]
unique_consecutive: [3, 1, 3, 2]
repeat_interleave: [3, 3, 3, 1, 3, 3, 3, 2, 2]
bincount: [0, 1, 1, 2]
coalesced: (3,)
written through a mask: [1.0, 0.0, 2.0, 3.0, 0.0]
a column: [0.0, 1.0, 2.0, 3.0]
beside the column: [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
columns of many rows: [1999000, 14000]
places in a column: (512,)
split by values: [1, 2, 3]
equal: True
stopped at: 7
loss is finite: True
all finite: True
any nan: False
reciprocal: True
sampled: (64,)
inference mode: [2.0, 2.0, 2.0]
operators made of others: [0, 2, 3]
vmap: [0, 2, 4]
the generator of the CPU stays: True
in a thread: [10]
frames of an error: 1
a frame of a backward pass: read_values.py
a frame of a backward pass: _tensor.py
a frame of a backward pass: __init__.py
a frame of a backward pass: __init__.py
after a graph: (4,)
"""


def test_programs_read_what_a_gpu_would_give_them(tonnage):
    run = tonnage("read_values.py")
    assert run.code == 0, run.err
    printed = "".join(f"{line}\n" for line in run.err.splitlines() if ": " in line and not line.startswith(" "))
    assert printed == EXPECTED
    unknown = run.verdict["unknown_values"]
    assert unknown["sizes"] == 0, "every size here follows from known values"
    assert unknown["decisions"] > 0
    assert unknown["first_decision"]["file"].endswith("read_values.py")


def test_without_values_the_device_reads_as_zero(tonnage):
    run = tonnage("read_values.py", options=["--values", "off"])
    assert run.code == 2
    assert "arithmetic: [0, 0, 0, 0, 0, 0]" in run.err
    assert run.verdict["unknown_values"] is None


MASKS_IN_BACKWARD = """
import torch


class Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        return x[mask]

    @staticmethod
    def backward(ctx, grad):
        x, mask = ctx.saved_tensors
        into = torch.zeros_like(x)
        into[mask] = grad
        kept = mask.nonzero()
        assert kept.shape == (600, 1), kept.shape
        return into, None


def loss(x, mask):
    y = x[mask]
    assert y.shape == (600, 256), y.shape
    z = y.clone()
    z[mask[:600]] = y[: mask[:600].sum()] * 2
    return Selected.apply(x, mask).sum() + z.sum()


mask = torch.zeros(1024, dtype=torch.bool)
mask[torch.randperm(1024)[:600]] = True
mask = mask.cuda()
x = torch.randn(1024, 256, device="cuda", requires_grad=True)
loss(x, mask).backward()
loss(x, mask).backward()
gradient, = torch.autograd.grad(outputs=loss(x, mask), inputs=x)
for reentrant in (True, False):
    torch.utils.checkpoint.checkpoint(loss, x, mask, use_reentrant=reentrant).backward()
print("went on:", tuple(gradient.shape))
"""


def test_masks_are_counted_in_backward_passes_too(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, MASKS_IN_BACKWARD))])
    assert run.code == 0, run.err
    assert "went on: (1024, 256)" in run.err
    assert run.verdict["unknown_values"] is None


# An old word among a kernel's parameters may look like an address, so that a block has a use more.
NOT_COMPARED = {"time_ns", "uses", "first_use", "last_use", "next_use"}


def rows(run):
    kept = [name for name in run.table().column_names if name not in NOT_COMPARED]
    return [row for row in run.table().select(kept).to_pylist() if row["kind"] != "meta"]


@pytest.mark.parametrize("kind", ["transformer", "convolutions"])
def test_values_leave_every_event_and_stack_as_it_was(tonnage, kind):
    computed, off = tonnage("values_train.py", kind), tonnage("values_train.py", kind, options=["--values", "off"])
    assert computed.code == 0 and off.code == 0, computed.err + off.err
    assert len(rows(off)) > 500
    assert rows(computed) == rows(off)


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


SELECTED = """\
import torch
scores = torch.randn(4, 1 << 20, device="cuda")
kept = scores[scores > 0.1]
print(kept.numel())
"""


@pytest.mark.parametrize(("percent", "count"), [(100, 4 << 20), (25, 1 << 20)])
def test_a_size_by_unknown_values_follows_the_assumption_and_is_named(tonnage, tmp_path, percent, count):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, SELECTED))], options=["--assume", f"mask={percent}%"])
    assert run.code == 0, run.err
    assert str(count) in run.err.splitlines()
    unknown = run.verdict["unknown_values"]
    assert unknown["sizes"] == 1
    assert (unknown["first_size"]["line"], unknown["assumed_mask"]) == (3, percent)
    assert any("script.py:3" in gap and f"{percent} %" in gap for gap in run.verdict["unknown"])


READS = """\
import torch
x = torch.randn(1 << 20, device="cuda")
history = []
for step in range(5):
    loss = (x * step).square().mean()
    history.append(loss.item())
    if not torch.isfinite(loss):
        raise SystemExit("not finite")
    value = loss.item()
    if value > 1e9:
        break
known = torch.tensor([4], device="cuda")
if known.item() == 4:
    print("ok")
"""


def test_reads_that_decide_are_told_from_those_that_are_only_kept(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, READS))])
    assert run.code == 0, run.err
    unknown = run.verdict["unknown_values"]
    assert (unknown["reads"], unknown["first_read"]["line"]) == (5, 6)
    assert (unknown["decisions"], unknown["first_decision"]["line"]) == (10, 7)
    branches = [gap for gap in run.verdict["unknown"] if "10 values that the script branches on" in gap]
    assert "script.py:7" in branches[0]


def test_a_read_in_a_module_has_the_folder_of_the_module(tonnage, tmp_path):
    # Projects have many files that are called utils.py.
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "utils.py").write_text("def over(loss):\n    return loss.item() > 3\n")
    read = "if over(torch.randn(4096, 4096, device='cuda').exp().sum()):\n    print('large')\n"
    text = "import torch\nfrom project.utils import over\n" + read
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, text))])
    assert run.code == 0, run.err
    assert [gap for gap in run.verdict["unknown"] if gap.endswith("first read at project/utils.py:2")], run.verdict


# Each line that reads, and whether the script branches on it.
DECISIONS = """\
import torch
import math
x = torch.randn(1 << 20, device="cuda")
names, log, best = ["a", "b"], [], {}
def mean():
    return x.mean().item()  # printed, then compared: reads of one line
def pair():
    return x.sum().item(), 3
def lowest(values):
    return min(values)
for step in range(2):
    print(step, mean(), names[step])
    log.append({"loss": x.std().item(), "name": names[step] if step else names[0]})
    a, b = pair()
    print(f"{a:.2f}" if b else a)
    total = 0.0
    total += x.var().item() / len(names)
    print(total, names[0])
    log[-1]["max"] = x.max().item()
    history = [one.item() for one in x[:2]]
    print(history, names[step])
    best["x"] = lowest([x.min().item(), 0.0])
print("read", len(log))
if mean() > 4:
    print("large")
scale = x.norm().item() if log else 1.0
scaled = scale * 2
while scaled > 1e9:
    break
print(names[int(x.mean().item() > 5)])
"""


def test_a_value_decides_where_it_gets_to_a_condition_itself(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, DECISIONS))])
    assert run.code == 0, run.err
    unknown = run.verdict["unknown_values"]
    # mean() in the condition, the norm, and the index.
    assert (unknown["decisions"], unknown["first_decision"]["line"]) == (3, 6), unknown
    assert unknown["reads"] == 16


# Nothing here is decided by what is read: a text has the name of the variable, and shapes and types are known.
NO_DECISIONS = """\
import torch
x = torch.randn(1 << 20, device="cuda")
history = {"loss": [], "other": []}
loss = x.mean().item()
if "loss" in history and history["loss"] == []:
    history["other"].append(loss)
array = x[:4].tolist()
grads = x[:4].cpu()
assert grads.shape == (4,) and grads.dtype == torch.float32
if grads.numel() > 3 and grads.dim() == 1 and grads.size(0) == 4 and grads.device.type == "cpu":
    print("read", array)
"""


def test_texts_and_shapes_are_no_decisions(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, NO_DECISIONS))])
    assert run.code == 0, run.err
    unknown = run.verdict["unknown_values"]
    assert (unknown["decisions"], unknown["reads"]) == (0, 3), unknown
    # The same, decided by.
    decided = NO_DECISIONS.replace('if "loss" in', 'if loss > 9 and "loss" in').replace("grads.numel() > 3", "grads[0]")
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, decided))])
    assert run.verdict["unknown_values"]["decisions"] == 2, run.verdict


# The value that is read, and the same of a tensor of the CPU.
OF_RARE_TYPES = """
import torch
def rare(device):
    given = torch.tensor([0.5, 1.5, 192.0, 3.3], device=device)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
        yield given.to(getattr(torch, name)).float().tolist()
    for name in ("complex64", "complex128"):
        yield given.to(getattr(torch, name)).real.tolist()
    turned = torch.complex(given, -given)
    yield turned.conj().imag.tolist()
    yield turned.conj().tolist()
    yield (turned * turned.conj()).real.tolist()
    other = turned.clone()
    other.conj()[1] = 2 + 1j
    yield other.tolist()
print([list(rare("cuda")), list(rare("cpu"))])
"""


def test_float8_and_complex_numbers_are_known(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, OF_RARE_TYPES))])
    assert run.code == 0, run.err
    on_device, on_cpu = ast.literal_eval(run.err.splitlines()[0])
    assert on_device == on_cpu
    assert on_device[0] == [0.5, 1.5, 192.0, 3.25]
    assert not run.verdict["unknown_values"], run.verdict["unknown_values"]


COALESCED = """
import torch
places = torch.tensor([[0, 1, 1, 2, 1], [2, 0, 0, 1, 0]], device="cuda")
def coalesced(values, *shape):
    values = torch.tensor(values, device="cuda")
    return torch.sparse_coo_tensor(places, values, (3, 3, *shape), check_invariants=False).coalesce()
one = coalesced([1.0, 2.0, 3.0, 4.0, 5.0])
rows = coalesced([[1, 2], [2, 2], [3, 4], [4, 5], [5, 6]], 2)
twice = torch.cat([one.indices(), one.indices()], 1)
again = torch.sparse_coo_tensor(twice, torch.randn(6, device="cuda"), (3, 3), check_invariants=False).coalesce()
print([one.indices().tolist(), one.values().tolist(), rows.values().tolist(), again._nnz()])
"""


def test_what_a_sparse_tensor_has_is_known_once_its_places_are_sorted(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, COALESCED))])
    assert run.code == 0, run.err
    places = [[0, 1, 2], [2, 0, 1]]
    assert ast.literal_eval(run.err.splitlines()[0]) == [
        places,
        [1.0, 10.0, 4.0],
        [[1, 2], [10, 12], [4, 5]],
        3,
    ]
    assert not (run.verdict["unknown_values"] or {}).get("sizes"), run.verdict["unknown_values"]


ENDLESS = """\
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_need_of_a_job_that_was_stopped_early_is_a_lower_bound(tonnage, tmp_path):
    kept = ENDLESS.replace("while True:", "kept = []\nwhile True:").replace(
        '    model(torch.randn(64, 1024, device="cuda"))',
        '    kept.append(torch.zeros(64 << 20, device="cuda"))\n    model(torch.randn(64, 1024, device="cuda"))',
    )
    command = [PYTHON, str(script(tmp_path, kept))]
    run = tonnage(None, command=command, options=["--capacity", "1GiB", "--stop-after", "6steps"])
    assert run.code == 1, run.err
    need = run.verdict["need"]
    assert not need["complete"]
    assert need["ended"] == "it was to stop after 6 steps"


@pytest.mark.parametrize(("when", "said"), [("4steps", "after 4 steps"), ("3s", "after 3 seconds")])
def test_a_job_can_be_stopped_early_and_is_judged_as_far_as_it_ran(tonnage, tmp_path, when, said):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, ENDLESS))], options=["--stop-after", when])
    assert run.code == 0, run.err
    assert run.verdict["stopped"] == said
    assert run.verdict["outcome"] == "fits"
    assert any(said in gap for gap in run.verdict["unknown"])
    if when == "4steps":
        steps = [row for row in run.table().to_pylist() if row["kind"] == "mark" and row["text"] == "step"]
        assert len(steps) == 4


def test_solvers_succeed_unless_it_is_known_that_they_do_not(tonnage, tmp_path):
    script = tmp_path / "solvers.py"
    script.write_text(
        "import torch\n"
        "a = torch.randn(512, 512, device='cuda')\n"
        "for name in ('cholesky', 'inv', 'svd', 'eigh', 'eigvals', 'pinv'):\n"
        "    getattr(torch.linalg, name)(a)\n"
        "torch.linalg.lstsq(a, a)\n"
        "try:\n"
        "    torch.linalg.cholesky(-torch.eye(3).cuda())\n"
        "except torch.linalg.LinAlgError:\n"
        "    print('not positive definite')\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "not positive definite" in run.err


VALUES_IN_BACKWARD_AND_STEP = """
import torch
from torch import nn

table = nn.Embedding(10_000, 64, sparse=True, padding_idx=0).cuda()
optimizer = torch.optim.SparseAdam(table.parameters())
ids = torch.arange(4096, device="cuda") % 100
table(ids).sum().backward()
print("rows:", table.weight.grad._nnz())
print("rows once:", table.weight.grad.coalesce()._nnz())
optimizer.step()

factors = torch.tensor([1.0, 2.0, 0.0, 3.0], device="cuda", requires_grad=True)
factors.prod().backward()

weight = torch.randn(2048, 1024, device="cuda", requires_grad=True)
search = torch.optim.LBFGS([weight], max_iter=12, history_size=6, line_search_fn="strong_wolfe")
evaluated = []


def closure():
    search.zero_grad()
    loss = weight.square().mean()
    loss.backward()
    evaluated.append(1)
    return loss


search.step(closure)
print("evaluations:", len(evaluated))
print("kept of the past:", len(search.state[weight]["old_dirs"]))
"""


def test_backward_passes_and_steps_that_go_by_values_are_those_of_a_gpu(tonnage, tmp_path):
    script = tmp_path / "steps.py"
    script.write_text(VALUES_IN_BACKWARD_AND_STEP)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert f"rows: {4096 - 41}\n" in run.err, "those of the padding are left out"
    assert "rows once: 99\n" in run.err
    assert "evaluations: 13\n" in run.err, "the search goes on as before a minimum"
    assert "kept of the past: 6\n" in run.err
    unknown = run.verdict["unknown_values"]
    assert unknown["sizes"] == 0
    assert unknown["decisions"] > 12
    lines = VALUES_IN_BACKWARD_AND_STEP.splitlines()
    assert unknown["first_decision"]["line"] == lines.index("search.step(closure)") + 1


def test_masks_of_what_has_no_gradient_leave_those_of_others_alone(tonnage, tmp_path):
    """Experts of a first layer: what each gets has no gradient, what it makes has."""
    script = tmp_path / "experts.py"
    script.write_text(
        """
import torch
experts = [torch.nn.Linear(64, 64, device="cuda") for _ in range(3)]
x = torch.randn(700, 64, device="cuda")
of = torch.arange(700, device="cuda") % 7 % 3  # 300, 200 and 200
out = torch.zeros_like(x)
for number, expert in enumerate(experts):
    mask = of == number
    out[mask] = expert(x[mask])
out.sum().backward()
print("gradients", [expert.weight.grad.shape[0] for expert in experts])
"""
    )
    run = tonnage(str(script))
    assert run.code == 0, run.err
    assert "gradients [64, 64, 64]" in run.err
    assert run.verdict["unknown_values"] is None


def test_a_mode_of_fake_tensors_gets_its_turn(tonnage, tmp_path):
    script = tmp_path / "fsdp.py"
    script.write_text(
        "import os, torch\n"
        "import torch.distributed as dist\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29617', RANK='0', WORLD_SIZE='1')\n"
        "dist.init_process_group('nccl')\n"
        "model = fully_shard(torch.nn.Linear(64, 64).cuda())\n"
        "model(torch.randn(8, 64, device='cuda')).sum().backward()\n"
        "dist.destroy_process_group()\n"
        "print('sharded')\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "sharded" in run.err


def test_a_parameter_with_attributes_of_its_own_is_a_plain_tensor(tonnage, tmp_path):
    script = tmp_path / "subclass.py"
    script.write_text(
        "import torch\n"
        "class Packed(torch.nn.Parameter):\n"
        "    blocks = 64\n"
        "packed = Packed(torch.arange(6.0), requires_grad=False).cuda()\n"
        "packed = Packed(packed, requires_grad=False)\n"
        "print('sum', packed.data.contiguous().sum().item(), type(packed).__name__)\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "sum 15.0 Packed" in run.err


def test_a_convolution_is_traced_by_torch_jit(tonnage, tmp_path):
    script = tmp_path / "traced.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).cuda()\n"
        "x = torch.ones(2, 3, 8, 8, device='cuda')\n"
        "traced = torch.jit.trace(model, x, check_trace=False)\n"
        "nodes = [node.kind() for node in traced.inlined_graph.nodes()]\n"
        "print('operators', [kind for kind in nodes if kind.startswith('aten::')])\n"
        "traced(torch.ones(64, 3, 512, 512, device='cuda'))\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "operators ['aten::_convolution', 'aten::relu']" in run.err


KILLED_WORKER = """
import os
import signal
import torch

x = torch.randn(2048, 2048, device="cuda") @ torch.randn(2048, 2048, device="cuda")
for row in range(5):
    if x[row, 0].item() > 100:
        print("large")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_has_told_what_it_decided_by(tonnage, tmp_path):
    (tmp_path / "worker.py").write_text(KILLED_WORKER)
    path = tmp_path / "server.py"
    path.write_text("import subprocess, sys\nprint('ended by:', subprocess.call([sys.executable, 'worker.py']))")
    run = tonnage(None, command=[PYTHON, str(path)])
    assert "ended by: -9" in run.err, run.err
    # Reported when there are 1, 2 and 4 of them.
    assert run.verdict["unknown_values"]["decisions"] == 4


def test_what_a_function_made_is_free_when_it_has_returned(tonnage, tmp_path):
    path = tmp_path / "returns.py"
    path.write_text(
        "import torch\n"
        "def step():\n"
        "    model = torch.nn.Linear(4096, 4096, device='cuda')\n"
        "    model(torch.ones(8, 4096, device='cuda')).prod().backward()\n"
        "step()\n"
        "print('MiB alive:', torch.cuda.memory_allocated() >> 20)\n"
    )
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    assert "MiB alive: 0\n" in run.err, run.err


SHARED = """
import torch
import torch.multiprocessing as mp


def worker(queue, done):
    own = torch.full((4,), 5, device="cuda")
    received = queue.get()
    received.fill_(7)
    print("the worker's own:", own.tolist(), flush=True)
    print("apart:", own.data_ptr() != received.data_ptr(), flush=True)
    done.set()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    queue, done = mp.Queue(), mp.Event()
    process = mp.Process(target=worker, args=(queue, done))
    process.start()
    flag, beside = torch.zeros(4, dtype=torch.int64, device="cuda"), torch.ones(1, device="cuda")
    queue.put(flag)
    done.wait()
    if beside.item() != 1:
        print("what was not sent is known as before")
    if flag[0].item() == 7:
        print("written")
    flag.zero_()
    if flag[0].item() != 0:
        print("the worker may have written since")
    process.join()
    del flag, process
"""


def test_what_another_process_may_have_written_is_not_known(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, SHARED))])
    assert run.code == 0, run.err
    assert "the worker's own: [5, 5, 5, 5]" in run.err, "both processes number their memory from the same address on"
    assert "apart: True" in run.err
    unknown = run.verdict["unknown_values"]
    line = SHARED.splitlines().index("    if flag[0].item() == 7:") + 1
    assert (unknown["decisions"], unknown["first_decision"]["line"]) == (2, line)


DRAWN_SIZES = """
import torch
scores = torch.randn(50_000, 64, device="cuda") @ torch.randn(64, 1000, device="cuda")
print("drawn", torch.unique(scores.argmax(1)).numel())
print("kept", scores[scores > 0.1].numel())
"""


def test_a_mask_is_spoken_of_only_where_there_is_one(tonnage, tmp_path):
    drawn = DRAWN_SIZES.partition('print("kept"')[0]
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, drawn))])
    assert run.code == 0, run.err
    said = [gap for gap in run.verdict["unknown"] if "depend" in gap]
    assert said and "mask" not in said[0] and "drawn" in said[0], said
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, DRAWN_SIZES))])
    unknown = run.verdict["unknown_values"]
    assert (unknown["sizes"], unknown["sizes_by_mask"], unknown["sizes_drawn"]) == (2, 1, 1)


OWN_OPERATORS = """
import torch


@torch.library.custom_op("mine::every", mutates_args=())
def every(x: torch.Tensor, n: int) -> torch.Tensor:
    return x % n == 0


@torch.library.custom_op("mine::count", mutates_args={"counter"})
def count(counter: torch.Tensor) -> None:
    counter.add_(1)


library = torch.library.Library("mine2", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CUDA")
numbers = torch.arange(1000, device="cuda")
kept = numbers[every(numbers, 10)]
print("kept:", tuple(kept.shape))
counter = torch.zeros(1, dtype=torch.int64, device="cuda")
for _ in range(3):
    count(counter)
print("counted:", counter.item(), torch.ops.mine2.twice(counter).item())
x = torch.ones(3, requires_grad=True, device="cuda")
print("on the host:", every(torch.arange(4), 2).tolist())
"""


def test_operators_of_the_scripts_own_are_computed_as_what_they_are_made_of(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, OWN_OPERATORS))])
    assert run.code == 0, run.err
    assert "kept: (100,)" in run.err
    assert "counted: 3 6" in run.err
    assert "on the host: [True, False, True, False]" in run.err
    assert run.verdict["unknown_values"] is None


WARNED = """
import warnings
import torch

x, into = torch.zeros(3, device="cuda"), torch.zeros(5, device="cuda")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    torch.add(x, x, out=into)
    into = torch.zeros(5, device="cuda")
    torch.mul(x, x, out=into)
    for _ in range(2):
        torch.add(x, x, out=torch.zeros(5, device="cuda"))
    warnings.simplefilter("always")
    torch.add(x, x, out=torch.zeros(5, device="cuda"))
for one in caught:
    print("warned at", one.filename.rsplit("/")[-1], one.lineno)
warnings.filterwarnings("ignore", module="__main__")
torch.add(x, x, out=torch.zeros(5, device="cuda"))
warnings.filterwarnings("error", message="An output with one or more")
try:
    torch.add(x, x, out=torch.zeros(5, device="cuda"))
except UserWarning as error:
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    print("raised at", frame.tb_frame.f_code.co_filename.rsplit("/")[-1])
"""


def test_warnings_of_torch_name_the_line_of_the_script(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, WARNED))])
    assert run.code == 0, run.err
    assert [line for line in run.err.splitlines() if line.startswith("warned at")] == [
        "warned at script.py 8",
        "warned at script.py 10",
        "warned at script.py 12",
        "warned at script.py 14",
    ], run.err
    assert "raised at script.py" in run.err
    assert "<tonnage>" not in run.err and "An output with" not in run.err


COMPARED = """
import torch

x = torch.randn(1000, 100, device="cuda")
y = (x * 2).relu()
assert torch.allclose(x @ x.T, y @ y.T)
torch.testing.assert_close(x @ x.T, y @ y.T)
known = torch.arange(3.0, device="cuda")
print("known:", torch.allclose(known, known + 1), torch.allclose(known, known + 1e-9))
try:
    torch.testing.assert_close(known, known + 1)
except AssertionError:
    print("not close")
correct = 0
for _ in range(3):
    correct += (y.argmax(1) == x.argmax(1)).sum().item()
accuracy = correct / 3000
best = 0
if accuracy > best:
    print("a new best")
"""


def test_comparisons_with_what_nobody_knows_are_passed_and_named(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, COMPARED))])
    assert run.code == 0, run.err
    assert "known: False True" in run.err
    assert "not close" in run.err
    unknown = run.verdict["unknown_values"]
    assert (unknown["decisions"], unknown["first_decision"]["line"]) == (5, 6), "by way of another variable too"


OWN_LIMIT = """
import torch

torch.cuda.set_per_process_memory_fraction(0.25)
kept = [torch.empty(256 << 20, device="cuda", dtype=torch.uint8) for _ in range({count})]
"""


def test_a_limit_of_the_script_is_told_from_a_full_gpu(tonnage, tmp_path):
    command = [PYTHON, str(script(tmp_path, OWN_LIMIT.format(count=40)))]
    run = tonnage(None, command=command, options=["--gpu", "rtx3090"], json=False)
    assert run.code == 1, run.err
    assert "does not fit in what the script allows itself of NVIDIA GeForce RTX 3090" in run.out, run.out
    assert ": needs 10.25 GiB; the script limits its own memory (TN104)" in run.out, run.out
    # Without its own limit the GPU refuses it.
    command = [PYTHON, str(script(tmp_path, OWN_LIMIT.format(count=100)))]
    run = tonnage(None, command=command, options=["--gpu", "rtx3090"], json=False)
    assert run.code == 1, run.err
    assert "does not fit on NVIDIA GeForce RTX 3090 (23.55 GiB): needs 25.25 GiB" in run.out, run.out


RAISED = """
import torch
x = torch.zeros(1, device="cuda")
try:
    int("three")
except ValueError:
    print("cannot go on")
    raise
"""


def test_an_error_that_a_script_raises_again_has_the_line_where_it_was_raised(tonnage, tmp_path):
    run = tonnage(None, command=[PYTHON, str(script(tmp_path, RAISED))])
    assert run.code == 2, run.err
    assert run.verdict["exceptions"][0]["place"]["line"] == 5
