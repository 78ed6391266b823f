# SPDX-License-Identifier: MIT OR Apache-2.0
"""Large parameters on the host: no memory until they are read, and then the same values as on any machine."""

import subprocess

import pytest
from conftest import PYTHON

# Each line it prints is a digest: of the generator after a fill, then of what was filled in.
FILLS = """
import copy
import hashlib

import torch
from torch import nn


def digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def tell(name, tensor):
    print(name, "generator", digest(torch.get_rng_state()))
    print(name, "values", digest(tensor))


def parameter(*shape, dtype=torch.float32):
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.empty(*shape, dtype=dtype))
    return holder.weight


torch.manual_seed(3)
for dtype in (torch.float32, torch.bfloat16, torch.float64):
    for shape in ((1024, 1024), (1031, 1033), (524289,)):
        for fill in (nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_, nn.init.zeros_, nn.init.ones_):
            weight = parameter(*shape, dtype=dtype)
            fill(weight)
            tell(f"{fill.__name__} {dtype} {shape}", weight)

linear = nn.Linear(2048, 2048)
print("linear", digest(torch.get_rng_state()), digest(linear.bias), digest(linear.weight))

embedding = nn.Embedding(40000, 64, padding_idx=5)
nn.init.normal_(embedding.weight, std=0.02)
with torch.no_grad():
    embedding.weight[embedding.padding_idx].zero_()
    embedding.weight[7:9].fill_(0.5)
    embedding.weight[100:400].normal_()
print("embedding", digest(torch.get_rng_state()), digest(embedding.weight))

# Copies, casts and changes of the original afterwards.
model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
twin = copy.deepcopy(model)
half = copy.deepcopy(model).to(torch.bfloat16)
with torch.no_grad():
    model[0].weight.mul_(2.0).add_(1)
    model[1].weight.copy_(model[0].weight)
for each in (half, twin, model):
    print("copies", [digest(one) for one in each.parameters()])

# A user's own generator, and one that is used between fill and read.
own = torch.Generator().manual_seed(11)
weight = parameter(700, 1024)
with torch.no_grad():
    weight.normal_(generator=own)
between = torch.randn(5, generator=own), torch.randint(9, (5,))
print("own generator", digest(weight), digest(between[0]), digest(between[1]))

# Every other way to read it.
for read in (
    lambda w: w.detach().numpy().sum(),
    lambda w: w.sum().item(),
    lambda w: w[3, 5].item(),
    lambda w: w.tolist()[1][1],
    lambda w: (w @ w).mean().item(),
    lambda w: torch.cat([w, w])[5, 5].item(),
    lambda w: nn.functional.linear(torch.ones(1, 1024), w)[0, 0].item(),
    lambda w: w.detach().share_memory_()[1, 1].item(),
    lambda w: torch.nn.utils.parameters_to_vector([w])[77].item(),
    lambda w: torch._foreach_norm([w])[0].item(),
    lambda w: w.data.T.contiguous()[4, 2].item(),
    lambda w: w.detach().resize_(512, 1024)[4, 2].item(),
):
    weight = parameter(1024, 1024)
    nn.init.xavier_uniform_(weight)
    print("read", read(weight))
one, other = parameter(1024, 1024), parameter(1024, 1024)
nn.init.normal_(one)
with torch.no_grad():
    for _ in range(300):
        other.copy_(one)
        one.copy_(other).mul_(1.5).clamp_(-1, 1)
print("to and fro", digest(one), digest(other))
for fill in (nn.init.trunc_normal_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_normal_):
    loose, weight = fill(torch.empty(1024, 1024)), nn.Parameter(fill(torch.empty(1024, 1024)))
    print("loose", digest(torch.get_rng_state()), loose.sum().item(), digest(weight))
lazy = nn.LazyLinear(1024)
lazy(torch.ones(1, 1024))
print("lazy", digest(lazy.weight))
state = parameter(1024, 1024)
nn.init.kaiming_normal_(state)
with torch._subclasses.FakeTensorMode():
    print("fake", tuple(nn.Linear(2048, 2048).weight.shape))
target = nn.Linear(1024, 1024, bias=False)
target.load_state_dict({"weight": state})
print("loaded", digest(target.weight))
"""


def test_what_is_filled_in_late_is_the_same_bit_for_bit(tonnage, tmp_path):
    path = tmp_path / "fills.py"
    path.write_text(FILLS)
    plain = subprocess.run([PYTHON, str(path)], capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    run = tonnage(None, command=[PYTHON, str(path)])
    expected = plain.stdout.splitlines()
    assert len(expected) > 100
    assert run.err.splitlines()[: len(expected)] == expected


MOVED = """
import resource

import torch
from torch import nn


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


before = peak()
if {by_hand}:
    model = nn.Module()
    for at in range(12):
        fill = (nn.init.xavier_normal_, nn.init.kaiming_uniform_)[at % 2]
        setattr(model, str(at), nn.Parameter(fill(torch.empty(4096, 4096))))
else:
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(12)])
half = model.to(torch.bfloat16) if {half} else model
half.to("cuda")
assert peak() - before < 400, peak() - before
torch.save(model.state_dict(), "checkpoint.pt")
assert peak() - before < 400, peak() - before
model.to("cpu")
print("host", peak() - before)
"""


CHECKPOINT = """
import json
import resource
import struct

import torch
from safetensors.torch import load_file
from torch import nn

shape = (4096, 4096)
size = 2 * shape[0] * shape[1]
header = {
    f"{at}.weight": {"dtype": "BF16", "shape": shape, "data_offsets": [at * size, (at + 1) * size]}
    for at in range(12)
}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open("model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    # The first numbers of the first tensor; all others are zeros.
    file.write(torch.arange(8, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes())
    file.truncate(8 + len(text) + 12 * size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = nn.Sequential(*[nn.Linear(*shape, bias=False, device="meta") for _ in range(12)])
state = {name: tensor.float() for name, tensor in load_file("model.safetensors").items()}
model.load_state_dict(state, assign=True)
model.to("cuda")
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
print("read: ", state["0.weight"][0, :8].tolist())
"""


def test_a_checkpoint_is_cast_on_the_host_without_memory(tonnage, tmp_path):
    path = tmp_path / "checkpoint.py"
    path.write_text(CHECKPOINT)
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    assert f"read:  {[float(number) for number in range(8)]}" in run.err


@pytest.mark.parametrize(("half", "by_hand"), [(False, False), (True, False), (False, True)])
def test_a_model_built_on_the_host_costs_no_memory_there(tonnage, tmp_path, half, by_hand):
    path = tmp_path / "moved.py"
    path.write_text(MOVED.format(half=half, by_hand=by_hand))
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    saved = (tmp_path / "checkpoint.pt").stat()
    assert saved.st_size > (384 if half else 768) << 20
    assert saved.st_blocks * 512 < 64 << 20, "a checkpoint of values nobody knows is a sparse file"


def test_a_sparse_buffer_goes_to_the_device(tonnage, tmp_path):
    script = tmp_path / "sparse.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2048, 2048)\n"
        "model.register_buffer('heads', torch.ones(6, 8, dtype=torch.bool).to_sparse(), persistent=False)\n"
        "model.cuda()\n"
        "print('on', model.heads.device, model.heads.layout)\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "on cuda:0 torch.sparse_coo" in run.err


def test_a_host_without_memory_is_named(tonnage, tmp_path):
    path = tmp_path / "large.py"
    path.write_text("import torch\ntorch.ones(1, device='cuda')\ntorch.empty(1 << 50)\n")
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 2
    assert run.verdict["outcome"] == "failed"
    assert run.verdict["host_out_of_memory"] == "the host did not have the memory that the script requested"
