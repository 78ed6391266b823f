# SPDX-License-Identifier: MIT OR Apache-2.0
"""Changes made inside the process against the same changes written by hand: the lines that the verdict printed.

For each script there is one run as it is, one run for each change, and one run
in which a process for each change runs a copy of the script with the printed
lines in it. All but the first have a GPU on which the script as it is does not
fit.
"""

import functools
import json
import os
import subprocess
from dataclasses import dataclass

import pytest
from conftest import HOOK, PYTHON, SCRIPTS, TONNAGE, environment

# Runs each script in its own process.
DRIVER = """
import subprocess, sys
for script in sys.argv[1:]:
    print("ended", subprocess.run([sys.executable, script]).returncode, file=sys.stderr)
"""


@dataclass
class Case:
    change: str
    script: str
    # The comment of the script behind which the lines are written; none if the change has edits.
    after: str | None = None


CASES = [
    Case("gradients-to-none", "changed_loop.py"),
    Case("evaluation-without-gradients", "changed_loop.py"),
    Case("optimizer-fused", "changed_mlp.py"),
    Case("optimizer-for-loop", "changed_mlp.py"),
    Case("gradient-release", "changed_mlp.py", "# ready"),
    Case("optimizer-on-host", "changed_mlp.py", "# ready"),
    Case("optimizer-adafactor", "changed_mlp.py"),
    Case("optimizer-8bit", "changed_mlp.py"),
    Case("optimizer-paged-8bit", "changed_mlp.py"),
    Case("checkpoint-blocks", "changed_gpt.py", "# made"),
    Case("checkpoint-every-second-block", "changed_gpt.py", "# made"),
    Case("offload-activations", "changed_gpt.py", "# made"),
    Case("autocast-bf16", "changed_gpt.py", "# made"),
    Case("weights-bf16", "changed_gpt.py", "# made"),
    Case("checkpointing", "changed_llama.py", "# made"),
    Case("sdpa-attention", "changed_llama.py", "# made"),
    Case("chunked-cross-entropy", "changed_llama.py", "# made"),
    Case("lora", "changed_llama.py", "# moved"),
]
# Packages that a change needs and the tests' Python may lack; a folder with them is in CHANGES_PACKAGES.
PACKAGES = {"optimizer-8bit": "bitsandbytes", "optimizer-paged-8bit": "bitsandbytes", "lora": "peft"}


def packages():
    """The environment in which those packages are found."""
    folder = os.environ.get("CHANGES_PACKAGES")
    return environment(**({"PYTHONPATH": folder} if folder else {}))


@functools.cache
def has(package):
    found = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, env=packages())
    return found.returncode == 0


def run(folder, name, *options, command):
    line = [TONNAGE, "run", "--json", "--no-progress", "-o", str(folder / f"{name}.tonnage"), *options, "--", *command]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=packages(), cwd=folder)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


def by_hand(text, change, after):
    """The script with the edits, or else the lines, that the verdict printed."""
    if after is None:
        lines = text.splitlines()
        assert change["edits"], f"no edit is certain: {change}"
        for edit in change["edits"]:
            assert lines[edit["line"] - 1] == edit["old"]
            lines[edit["line"] - 1] = edit["new"]
        return "\n".join(lines)
    marks = [line for line in text.splitlines() if line.strip() == after]
    assert len(marks) == 1, f"{after} is not there once"
    indent = marks[0][: -len(marks[0].lstrip())]
    return text.replace(marks[0], "\n".join(f"{indent}{line}" for line in change["lines"]))


@pytest.fixture(scope="session")
def results(request, tmp_path_factory):
    """The results of the runs of the selected cases, by change."""
    items = [item for item in request.session.items if "case" in getattr(item, "fixturenames", ())]
    chosen = [item.callspec.params["case"] for item in items]
    chosen = [case for case in chosen if case.change not in PACKAGES or has(PACKAGES[case.change])]
    found = {}
    for script in dict.fromkeys(case.script for case in chosen):
        folder = tmp_path_factory.mktemp(script.removesuffix(".py"))
        cases = [case for case in chosen if case.script == script]
        text = (SCRIPTS / script).read_text()
        (folder / script).write_text(text)
        plain, _ = run(folder, "plain", command=[PYTHON, script])
        assert plain["outcome"] == "fits"
        capacity = plain["margin"]["smallest"] - (2 << 20)
        # The changes are compared to the byte, so no margin stays free.
        size = ["--capacity", str(capacity), "--margin", "0"]
        copies = {}
        for case in cases:
            verdict, errors = run(folder, case.change, *size, "--change", case.change, command=[PYTHON, script])
            found[case.change] = {"plain": plain, "changed": verdict, "errors": errors}
            (told,) = verdict["changes"]
            if not told["applied"]:
                continue
            copy = folder / f"{case.change}.py"
            copy.write_text(by_hand(text, told, case.after))
            copies[case.change] = str(copy)
        (folder / "driver.py").write_text(DRIVER)
        together, errors = run(folder, "by-hand", *size, command=[PYTHON, "driver.py", *copies.values()])
        ends = [line for line in errors.splitlines() if line.startswith("ended ")]
        assert len(ends) == len(copies) and len(together["devices"]) == len(copies), errors
        for change, end, device in zip(copies, ends, together["devices"]):
            found[change]["by_hand"] = {"fits": end == "ended 0", "device": device, "errors": errors}
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.change)
def test_a_change_gives_what_the_printed_lines_give(case, results):
    if case.change not in results:
        pytest.skip(f"{PACKAGES[case.change]} is not installed")
    result = results[case.change]
    changed = result["changed"]
    (told,) = changed["changes"]
    assert told["applied"], told
    assert changed["outcome"] == "fits", result["errors"]
    assert result["by_hand"]["fits"], result["by_hand"]["errors"]
    ours, theirs = changed["devices"][0], result["by_hand"]["device"]
    for figure in ("peak_allocated", "peak_used"):
        assert ours[figure] == theirs[figure], (figure, ours[figure], theirs[figure])


ALREADY = """
import torch
from torch.utils.checkpoint import checkpoint

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)

model = torch.nn.Sequential(Block(), Block()).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with torch.autocast("cuda", dtype=torch.bfloat16):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
optimizer.step()
optimizer.zero_grad()
model.eval()
with torch.no_grad():
    model(torch.randn(8, 64, device="cuda"))
torch.optim.AdamW(model.parameters(), lr=-1)
"""


def test_what_is_on_already_is_said_and_no_traceback_shows_us(tmp_path):
    (tmp_path / "already.py").write_text(ALREADY)
    names = ["optimizer-fused", "autocast-bf16", "checkpoint-blocks", "evaluation-without-gradients"]
    options = [word for name in [*names, "chunked-cross-entropy"] for word in ("--change", name)]
    verdict, errors = run(tmp_path, "already", *options, command=[PYTHON, "already.py"])
    *on, nothing = verdict["changes"]
    assert [change["name"] for change in on] == names
    for change in on[1:]:
        assert change["already"] and not change["applied"] and change["why"], change
    assert on[0]["where"] == ["already.py:22"], "the second optimizer is not fused by itself"
    assert not nothing["already"] and nothing["why"] == "no language model of transformers was trained with labels"
    assert "Invalid learning rate: -1" in errors
    assert "<tonnage>" not in errors, "a frame of ours"


# Trains on the CPU as it is and with a change; the hook is found by the path of the first argument.
ACCUMULATED = """
import sys
sys.path.append(sys.argv[1])
import torch
from tonnage_hook.torch.changes import accumulate_2, accumulate_8
from torch.utils.data import DataLoader, TensorDataset


def train(change, zero_first):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16)
    sizes = set()
    for _ in range(2):
        for (x,) in loader:
            sizes.add(len(x))
            if change is not None:
                change.before_pass(model)
            if zero_first:
                optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()
        schedule.step()
    with torch.no_grad():
        assert [len(x) for (x,) in loader] == [16] * 4, "evaluation has whole batches"
    return torch.cat([one.flatten() for one in model.parameters()]), sizes


plain = [train(None, zero_first)[0] for zero_first in (False, True)]
parts = int(sys.argv[2])
told = []
change = {2: accumulate_2, 8: accumulate_8}[parts].Change(torch, told.append)
change.install()
for zero_first, expected in zip((False, True), plain):
    found, sizes = train(change, zero_first)
    assert sizes == {16 // parts}, sizes
    assert torch.allclose(found, expected, atol=1e-6), (found - expected).abs().max()
assert told[-1]["applied"] and f"(loss / {parts}).backward()" in told[-1]["lines"], told[-1]
change.before_pass(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
assert not told[-1]["applied"] and "batch normalization" in told[-1]["why"], told[-1]
"""


@pytest.mark.parametrize("parts", ["2", "8"])
def test_gradients_of_smaller_batches_add_up_to_those_of_the_whole(parts, tmp_path):
    (tmp_path / "accumulated.py").write_text(ACCUMULATED)
    line = [PYTHON, "accumulated.py", str(HOOK), parts]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


EVALUATED = """
import sys
sys.path.append(sys.argv[1])
import torch
from tonnage_hook.torch.changes.evaluation_without_gradients import Change

told = []
change = Change(torch, told.append)
change.install()
model = torch.nn.Linear(4, 4).eval()


def call():
    change.before_pass(model)
    try:
        return model(torch.ones(2, 4))
    finally:
        change.after_pass(model)


assert not call().requires_grad and change.finish()["applied"]
other = torch.nn.Linear(4, 4)
other(torch.ones(2, 4)).sum().backward()
assert not told[-1]["applied"] and "computes gradients" in told[-1]["why"], told[-1]
assert call().requires_grad, "the model may be a part of what is trained"
"""


def test_a_program_that_only_evaluates_needs_no_gradients(tmp_path):
    (tmp_path / "evaluated.py").write_text(EVALUATED)
    line = [PYTHON, "evaluated.py", str(HOOK)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


CLIPPING = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 64, device="cuda")).sum().backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
"""


def test_gradients_are_not_released_where_they_are_clipped(tmp_path):
    (tmp_path / "clipping.py").write_text(CLIPPING)
    verdict, errors = run(tmp_path, "clipping", "--change", "gradient-release", command=[PYTHON, "clipping.py"])
    (change,) = verdict["changes"]
    assert not change["applied"] and "clips gradients" in change["why"], errors
    assert verdict["outcome"] == "fits", errors


# A transformer of which every product is known; the arguments are the type and whether blocks are checkpointed.
PRODUCTS = """
import sys
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

BLOCKS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 3, 256, 4, 1000, 2, 128
kind = getattr(torch, sys.argv[1])
calls = checkpoint if sys.argv[2] == "checkpointed" else lambda block, x, **_: block(x)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(F.gelu(self.up(x)))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = calls(block, x, use_reentrant=False)
        return self.head(x)

model = Model().to("cuda", kind)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(3):
    words = torch.randint(WORDS, (BATCH, LENGTH)).to("cuda")
    F.cross_entropy(model(words).view(-1, WORDS), words.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    seen = torch.empty(1000, device="cuda").cpu()
"""


@pytest.mark.parametrize(("kind", "how"), [("float32", "plain"), ("bfloat16", "checkpointed")])
def test_operations_and_bytes_of_a_step_are_those_of_the_formula(kind, how, tmp_path):
    (tmp_path / "products.py").write_text(PRODUCTS)
    # The two GPUs take different kernels of attention for float32.
    verdict, errors = run(tmp_path, kind, "--gpu", "rtx4090", command=[PYTHON, "products.py", kind, how])
    blocks, width, words, batch, length = 3, 256, 1000, 2, 128
    tokens = batch * length
    # 12 · width² weights of a block; scores and their sum over the values.
    forward = 2 * tokens * 12 * width**2 + 2 * 2 * batch * length**2 * width
    # Two products for each weight; the kernel of attention computes five, because it has the scores again.
    backward = 2 * 2 * tokens * 12 * width**2 + 5 * 2 * batch * length**2 * width
    # The second computation ends before the last layer of a block, whose result is not needed.
    again = forward - 2 * tokens * 4 * width**2 if how == "checkpointed" else 0
    head = 3 * 2 * tokens * width * words
    step = verdict["costs"]["per_step"]
    assert verdict["costs"]["steps"] == 3, errors
    products = {"float32": "flops_32", "bfloat16": "flops_16"}[kind]
    assert step[products] == blocks * (forward + backward + again) + head
    assert step["flops_16"] + step["flops_32"] + step["flops_64"] == step[products]
    assert step["uncounted"] == 0
    # Two products forward, for each time that is computed, and five backward.
    times = 2 if how == "checkpointed" else 1
    assert step["attention_flops"] == blocks * (2 * times + 5) * 2 * batch * length**2 * width
    assert step["attention"] == blocks * (3 if how == "checkpointed" else 2)
    assert step["to_device"] == tokens * 8, "the words"
    assert step["to_host"] == 4000, "what is copied back"


def test_the_lines_of_gradient_release_follow_groups_and_schedules():
    """Frozen parameters, groups with options of their own, and a schedule of the learning rate, on the CPU."""
    import torch
    from tonnage_hook.torch.changes.gradient_release import Change

    lines = "\n".join(Change._lines(None, "AdamW"))

    def trained(lines):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        model[1].requires_grad_(False)
        groups = [{"params": model[0].parameters(), "weight_decay": 0.5}, {"params": model[2].parameters(), "lr": 0.1}]
        groups[0]["params"] = [*groups[0]["params"], *model[1].parameters()]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        exec(lines, {"torch": torch, "optimizer": optimizer})
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.3)
        for _ in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return torch.cat([one.flatten() for one in model.parameters()])

    assert torch.equal(trained(lines), trained(""))
    first_rate = lines.replace("    optimizers[one].param_groups[0].update(options)\n", "")
    assert not torch.equal(trained(first_rate), trained(""))
