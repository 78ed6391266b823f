# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage explain` with the real torch: its totals. Causes and proposals are judged in test_answers.py."""

import ast
import json
import subprocess

import pytest
from conftest import PYTHON, TONNAGE, environment
from test_run import printed
from tonnage_hook.torch.holders import _last_reads


def explain(recording, *options):
    """The output of `tonnage explain` for a recording, with its exit code."""
    line = [TONNAGE, "explain", str(recording), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(NO_COLOR="1"))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "script, arguments, options",
    [
        # Short, so that the peak lies in the step, where all three are alive.
        ("transformer.py", ["16", "16", "16"], []),
        ("llama_8b.py", [], ["--gpu", "h100-80gb"]),
    ],
)
def test_totals_are_those_of_the_shapes_to_the_byte(tonnage, script, arguments, options):
    run = tonnage(script, *arguments, options=options)
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    assert told["moment"]["phase"] == "step"
    totals = {part["category"]: part for part in told["categories"]}
    for category in ("weights", "gradients", "optimizer_state"):
        computed = printed(run.err, category.replace("_", " "))
        assert totals[category]["bytes"] == computed, category
        # By torch's own word, all of it.
        assert totals[category]["exact_bytes"] == computed, category
    # And all categories together are equal to torch's counter.
    parts = sum(part["block_bytes"] for part in told["categories"])
    assert parts == told["on_device"]["allocated"] == printed(run.err, "peak allocated")


CACHES = """
import torch


class Server(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"), requires_grad=False)
        self.kv_cache = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
        # Tables that are kept for reuse are no keys and values.
        self.register_buffer("cos_sin_cache", torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))
        self.register_buffer("freqs_cache", torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))

        self.attention = Attention()
        # Nor are results that are kept.
        self._cache = {}

    def forward(self, x):
        return self._cache.setdefault("document", self.attention(x) * self.weight)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")

    def forward(self, x):
        return x + 1


class TokenToKVPool:
    def __init__(self):
        self.k_buffer = [torch.zeros(2 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.v_buffer = [torch.zeros(2 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.indices = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")


pool = TokenToKVPool()
with torch.inference_mode():
    Server()(torch.ones(1 << 20, device="cuda"))
"""


def test_a_cache_of_keys_and_values_is_not_any_cache(tonnage, tmp_path):
    path = tmp_path / "caches.py"
    path.write_text(CACHES)
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    totals = {part["category"]: part["exact_bytes"] for part in told["categories"]}
    assert totals["kv_cache"] == (8 + 4 + 4 * 2) << 20
    assert totals["buffers"] == 2 << 20
    assert totals["weights"] == 4 << 20


DECORATED = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])

    @DECORATOR
    def forward(self, x):
        return self.layers(x)


model = Net().cuda().eval()
for _ in range(3):
    model(torch.zeros(1 << 16, 512, device="cuda"))
"""


@pytest.mark.parametrize(
    "decorator, gradients",
    [("torch.no_grad()", False), ("torch.inference_mode()", False), ("torch.enable_grad()", True)],
)
def test_a_forward_function_may_turn_gradients_off_itself(tonnage, tmp_path, decorator, gradients):
    path = tmp_path / "decorated.py"
    path.write_text(DECORATED.replace("DECORATOR", decorator))
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    assert any(found["code"] == "TN212" for found in told["findings"]) == gradients, told["findings"]


MODEL = """
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(512, 2048)
        self.norm = torch.nn.BatchNorm1d(2048)
        self.down = torch.nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.down(torch.relu(self.norm(self.up(x))))


class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = CALL
        return x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1, self.stage2 = Stage(), Stage()

    def forward(self, x):
        return self.stage2(self.stage1(x))


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEPS = """
for _ in range(3):
    model(torch.randn(16384, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_checkpointing_gives_the_peak_that_was_computed(tonnage, tmp_path):
    peaks = []
    for call in ("block(x)", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"):
        script = tmp_path / "script.py"
        script.write_text(MODEL.replace("CALL", call) + STEPS)
        run = tonnage(None, command=[PYTHON, str(script)])
        assert run.code == 0, run.err
        told = json.loads(explain(run.recording, "--json")[1])
        peaks.append((told, run.verdict["devices"][0]["peak_allocated"]))
    (told, before), (after, peak) = peaks
    fix = next(fix for fix in told["fixes"] if fix["advice"].startswith("checkpoint each of `stage*.blocks.*`: "))
    assert fix["peak_before"] == before
    # The outputs of the batch norms have small statistics behind them, which are not outputs of a block.
    assert fix["peak_after_least"] * 0.98 <= peak <= fix["peak_after"] * 1.02, (fix, peak)
    assert not [fix for fix in after["fixes"] if fix["advice"].startswith("checkpoint")]


PUPIL = """
teacher = Net().cuda()
student = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(16384, 512, device="cuda")
    LINES
    loss = (result - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TEACHER = MODEL.partition("model = ")[0].replace("CALL", "block(x)") + PUPIL


@pytest.mark.parametrize(
    "lines",
    [
        "target = teacher(x); result = student(x)",
        "result = student(x); target = teacher(x)",
        "result = student(x); kept = teacher(x); target = kept.detach()",
    ],
)
def test_a_teacher_that_no_optimizer_trains_needs_no_gradients(tonnage, tmp_path, lines):
    def run(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        run = tonnage(None, command=[PYTHON, str(script)])
        assert run.code == 0, run.err
        return json.loads(explain(run.recording, "--json")[1]), run.verdict["devices"][0]["peak_allocated"]

    script = TEACHER.replace("LINES", lines)
    told, before = run(script)
    assert told["findings"][0]["code"] == "TN219", told["findings"]
    fix = told["fixes"][0]
    assert fix["code"] == "TN219" and "torch.no_grad()" in fix["advice"] and fix["peak_before"] == before
    frozen, peak = run(script.replace("student = ", "teacher.requires_grad_(False)\nstudent = "))
    assert fix["peak_after_least"] * 0.99 <= peak <= fix["peak_after"] * 1.01, (fix, peak)
    assert fix["peak_after"] <= 2 * fix["peak_after_least"]
    assert not [found for found in frozen["findings"] if found["code"] == "TN219"]


def peaks_of(tonnage, tmp_path, *scripts):
    """The report on each script, and its peak."""
    found = []
    for text in scripts:
        script = tmp_path / "script.py"
        script.write_text(text)
        run = tonnage(None, command=[PYTHON, str(script)])
        assert run.code == 0, run.err
        told = json.loads(explain(run.recording, "--json")[1])
        found.append((told, run.verdict["devices"][0]["peak_allocated"]))
    return found


def test_a_function_that_calls_the_teacher_and_the_student(tonnage, tmp_path):
    helper = "def call(net, x):\n    return net(x).log_softmax(-1)[:, :256].sum(-1)\n\n\nteacher = Net()"
    script = TEACHER.replace("teacher = Net()", helper).replace("LINES", "result = call(student, x)\n    TARGET")
    scripts = [
        script.replace("TARGET", line)
        for line in ("target = call(teacher, x)", "with torch.no_grad(): target = call(teacher, x)")
    ]
    (told, _), (_, peak) = peaks_of(tonnage, tmp_path, *scripts)
    found = told["findings"][0]
    assert found["code"] == "TN219"
    assert scripts[0].splitlines()[found["place"]["line"] - 1].strip() == "target = call(teacher, x)"
    fix = told["fixes"][0]
    assert fix["peak_after_least"] * 0.99 <= peak <= fix["peak_after"] * 1.01, (fix, peak)


ADAPTERS = """
import torch


class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(2048, 2048)
        self.down = torch.nn.Linear(2048, 8)
        self.up = torch.nn.Linear(8, 2048)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


model = torch.nn.Sequential(*[Adapted() for _ in range(6)]).cuda()
FREEZE
optimizer = torch.optim.AdamW([one for name, one in model.named_parameters() if "base" not in name])
for _ in range(3):
    model(torch.randn(64, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_gradients_of_parameters_that_no_optimizer_has(tonnage, tmp_path):
    freeze = "for layer in model: layer.base.requires_grad_(False)"
    scripts = [ADAPTERS.replace("FREEZE", line) for line in ("", freeze)]
    (told, _), (frozen, peak) = peaks_of(tonnage, tmp_path, *scripts)
    found = told["findings"][0]
    assert found["code"] == "TN219" and found["bytes"] == 6 * (2048 + 1) * 2048 * 4, found
    fix = next(fix for fix in told["fixes"] if fix["code"] == "TN219")
    assert "requires_grad_(False)" in fix["advice"] and "at most" in fix["shown"]
    assert fix["peak_after_least"] <= peak <= fix["peak_after"], (fix, peak)
    assert not [found for found in frozen["findings"] if found["code"] == "TN219"]


def test_a_model_that_gradients_go_through_is_no_teacher(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TEACHER.replace("LINES", "target = x; result = teacher(student(x))"))
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    assert not [fix for fix in told["fixes"] if "no_grad" in fix["advice"]]


ERRORS = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
errors = []


def step(number, x):
    loss = model(x).square().mean()
    if number % 2 == 0:
        raise ValueError(number)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for number in range(16):
    x = torch.randn(16384, 1024, device="cuda")
    try:
        step(number, x)
    except ValueError as error:
        errors.append(KEPT)
"""


def test_a_list_of_exceptions_keeps_what_their_tracebacks_keep(tonnage, tmp_path):
    peaks = []
    for kept in ("error", "str(error)"):
        script = tmp_path / "script.py"
        script.write_text(ERRORS.replace("KEPT", kept))
        run = tonnage(None, command=[PYTHON, str(script)])
        assert run.code == 0, run.err
        told = json.loads(explain(run.recording, "--json")[1])
        peaks.append((told, run.verdict["devices"][0]["peak_allocated"]))
    (told, _), (_, peak) = peaks
    assert told["findings"][0]["code"] == "TN211" and "`errors`" in told["findings"][0]["headline"]
    assert [fix["code"] for fix in told["fixes"]] == ["TN211"], told["fixes"]
    fix = told["fixes"][0]
    assert "str(error)" in fix["advice"]
    assert fix["peak_after_least"] * 0.99 <= peak <= fix["peak_after"] * 1.01, (fix, peak)


# Under autocast the next block keeps a smaller copy of what it is given, and checkpointing the whole.
RESIDUAL = MODEL.replace("self.norm = torch.nn.BatchNorm1d(2048)", "self.norm = torch.nn.Identity()").replace(
    "self.down(torch.relu(self.norm(self.up(x))))", "self.down(torch.relu(self.norm(self.up(x)))).float()"
)


def test_checkpointing_keeps_an_output_that_only_passes(tonnage, tmp_path):
    steps = STEPS.replace("    model(", "    with torch.autocast('cuda', dtype=torch.bfloat16): y = model(")
    steps = steps.replace(").square()", ")\n    y.square()")
    calls = ("block(x)", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)")
    (told, _), (_, peak) = peaks_of(tonnage, tmp_path, *[RESIDUAL.replace("CALL", call) + steps for call in calls])
    fix = next(fix for fix in told["fixes"] if fix["advice"].startswith("checkpoint each of `stage*.blocks.*`: "))
    assert fix["peak_after_least"] * 0.95 <= peak <= fix["peak_after"] * 1.05, (fix, peak)


LOSSES = """
measure = torch.nn.MSELoss()
for _ in range(3):
    loss = 0
    for _ in range(4):
        x = torch.randn(8192, 512, device="cuda")
        loss = loss + measure(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_loss_is_no_forward_pass_of_its_own(tonnage, tmp_path):
    ((told, _),) = peaks_of(tonnage, tmp_path, MODEL.replace("CALL", "block(x)") + LOSSES)
    assert told["findings"][0]["headline"].endswith("of 4 forward passes at once"), told["findings"]
    assert any("`backward()` for each micro-batch" in fix["advice"] for fix in told["fixes"])


NOTEBOOK = """
import nbclient
import nbformat

cells = ["import torch; kept = []", CELL]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
"""
CELL = """for _ in range(10):
    kept.append(torch.zeros(4 << 20, device="cuda"))
"""


def test_lines_of_a_notebook_are_named_by_their_cell(tonnage, tmp_path):
    pytest.importorskip("nbclient")
    script = tmp_path / "script.py"
    script.write_text(NOTEBOOK.replace("CELL", repr(CELL)))
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    found = told["findings"][0]
    assert found["code"] == "TN201" and "`kept`" in found["headline"]
    assert (found["place"]["file"], found["place"]["line"]) == ("In[2]", 2)


TRAINER = """
import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

tokens = [{"input_ids": torch.arange(128), "labels": torch.arange(128)} for _ in range(128)]
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
arguments = TrainingArguments(
    OUTPUT, per_device_eval_batch_size=8, max_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, OPTIONS
)
model = LlamaForCausalLM(LlamaConfig(vocab_size=8000, **sizes))


def accuracy(told):
    return {"accuracy": float(numpy.mean(told.predictions.argmax(-1) == told.label_ids))}


trainer = Trainer(model, arguments, train_dataset=tokens, eval_dataset=tokens, compute_metrics=accuracy)
trainer.train()
trainer.evaluate()
"""


def test_predictions_that_a_trainer_collects_for_its_metrics(tonnage, tmp_path):
    peaks = []
    for options in ("", "eval_accumulation_steps=1"):
        script = tmp_path / "script.py"
        script.write_text(TRAINER.replace("OUTPUT", repr(str(tmp_path))).replace("OPTIONS", options))
        run = tonnage(None, command=[PYTHON, str(script)])
        assert run.code == 0, run.err
        told = json.loads(explain(run.recording, "--json")[1])
        peaks.append((told, run.verdict["devices"][0]["peak_allocated"]))
    (told, _), (_, peak) = peaks
    assert told["findings"][0]["code"] == "TN205", told["findings"]
    fix = next(fix for fix in told["fixes"] if fix["code"] == "TN205")
    assert fix["paste"] == "eval_accumulation_steps=1"
    assert fix["peak_after_least"] == fix["peak_after"] == peak


# With a norm in front, as transformers have it: it keeps what the block before gave.
NORMED = MODEL.replace("self.up = ", "self.first = torch.nn.LayerNorm(512)\n        self.up = ").replace(
    "self.up(x)", "self.up(self.first(x))"
)
AUTOCAST = """
for _ in range(3):
    x = torch.randn(16384, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = model(x)
        with torch.no_grad():
            loss = (y - model(x)).square().mean()
        loss = (y - loss).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_copies_that_autocast_makes_of_weights_are_no_outputs(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(NORMED.replace("CALL", "block(x)") + AUTOCAST)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    fix = next(fix for fix in told["fixes"] if fix["advice"].startswith("checkpoint each of `stage*.blocks.*`: "))
    # Five blocks of 16,384 × 512 numbers in float32. No block keeps what the last one gave: a weight stands for it.
    assert "leaving 162.00 MiB of outputs" in fix["shown"], fix


def test_lines_of_compiled_code_are_those_of_the_script(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MODEL.replace("CALL", "block(x)") + "model = torch.compile(model)" + STEPS)
    run = tonnage(None, command=[PYTHON, str(script)], timeout=300)
    assert run.code == 0, run.err
    text = explain(run.recording)[1]
    assert "activations make the peak" in text
    # The compiler chose what is kept, and no one can checkpoint a block of what it wrote.
    assert "checkpoint" not in text and "repeated" not in text, text
    lines = [place["file"] for holder in run.verdict["devices"][0]["holders"] if (place := holder["place"])]
    assert lines and all(line.endswith("script.py") for line in lines), lines
    assert "inductor" not in text, text


def test_an_exception_that_ends_the_script_keeps_nothing(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        MODEL.replace("CALL", "block(x)")
        + "def loss(x):\n    y = model(x)\n    return y.no_such_thing()\n"
        + "loss(torch.randn(16384, 512, device='cuda'))\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 2, run.err
    text = explain(run.recording)[1]
    assert "traceback" not in text and "graphs are kept" not in text, text


LBFGS = """
import torch

x = torch.rand(1 << 22, device="cuda", requires_grad=True)
optimizer = torch.optim.LBFGS([x], max_iter=12, tolerance_grad=0, tolerance_change=0)


def closure():
    optimizer.zero_grad()
    loss = (x * x).sum()
    loss.backward()
    return loss


for _ in range(2):
    optimizer.step(closure)
"""


def test_what_an_optimizer_keeps_in_lists_is_its_state(tonnage, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LBFGS)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    totals = {part["category"]: part["bytes"] for part in told["categories"]}
    # A direction and a step of each iteration but the last, beside what it keeps of the last one.
    assert totals["optimizer_state"] >= 2 * 11 * (16 << 20), totals


def line_of(script, text):
    """The number of the line of a script with a text in it."""
    return next(number for number, line in enumerate(script.splitlines(), 1) if text in line)


def test_a_line_that_calls_the_teacher_and_the_student_names_the_teacher(tonnage, tmp_path):
    script = TEACHER.replace("LINES", "result, target = student(x), teacher(x)")
    moved = TEACHER.replace("LINES", "result = student(x)\n    with torch.no_grad():\n        target = teacher(x)")
    (told, _), (after, peak) = peaks_of(tonnage, tmp_path, script, moved)
    found, fix = told["findings"][0], told["fixes"][0]
    place = f"{tmp_path / 'script.py'}:{line_of(script, 'student(x), teacher(x)')}"
    assert found["code"] == fix["code"] == "TN219"
    assert found["headline"].startswith(f"the call of `teacher` at {place} keeps "), found
    assert fix["advice"] == (
        f"move the call of `teacher` at {place} into `with torch.no_grad():`, or turn its gradients off before: "
        "`teacher.requires_grad_(False)`"
    )
    assert fix["peak_after_least"] * 0.99 <= peak <= fix["peak_after"] * 1.01, (fix, peak)
    assert not [found for found in after["findings"] if found["code"] == "TN219"]


CHECKPOINTED = """
for _ in range(3):
    x = torch.randn(16384, 512, device="cuda", requires_grad=True)
    CALL
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_checkpoint_around_the_whole_model(tonnage, tmp_path):
    checkpoint = "torch.utils.checkpoint.checkpoint"
    whole = MODEL.replace("CALL", "block(x)") + CHECKPOINTED.replace(
        "CALL", f"y = {checkpoint}(model, x, use_reentrant=False)"
    )
    each = MODEL.replace("CALL", f"{checkpoint}(block, x, use_reentrant=False)") + CHECKPOINTED.replace(
        "CALL", "y = model(x)"
    )
    none = MODEL.replace("CALL", "block(x)") + CHECKPOINTED.replace("CALL", "y = model(x)")
    (told, before), (after, peak), (_, plain) = peaks_of(tonnage, tmp_path, whole, each, none)
    found = told["findings"][0]
    assert found["code"] == "TN220", told["findings"]
    assert found["place"]["line"] == line_of(whole, "y = ")
    assert "covers 6 repeated blocks `stage*.blocks.*`" in found["sentence"], found
    assert found["sentence"].endswith("as much as without checkpointing") and before > plain * 0.9
    assert not [one for one in told["findings"] if one["code"] == "TN208"]
    fix = next(fix for fix in told["fixes"] if fix["code"] == "TN220")
    assert fix["advice"].startswith("checkpoint each of `stage*.blocks.*` instead of all at once at ")
    assert fix["peak_before"] == before
    assert fix["peak_after_least"] * 0.95 <= peak <= fix["peak_after"] * 1.05, (fix, peak)
    assert not [one for one in after["findings"] if one["code"] == "TN220"]


LOGITS = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(256, 256)
        self.head = torch.nn.Linear(256, 16384)

    def forward(self, x, labels):
        y = self.head(torch.relu(self.body(x)))
        with torch.no_grad():
            self.entropy = -(y.softmax(-1) * y.log_softmax(-1)).sum().item()
        return -y.gather(1, labels[:, None]).mean(), y


def train():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        x = torch.randn(8192, 256, device="cuda")
        labels = torch.zeros(8192, dtype=torch.long, device="cuda")
        loss, out = model(x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (out.argmax(-1) == labels).float().mean().item()
        LAST


train()
"""


def test_what_a_variable_keeps_of_the_round_before(tonnage, tmp_path):
    scripts = [LOGITS.replace("LAST", last) for last in ("print(right)", "del out")]
    (told, before), (after, peak) = peaks_of(tonnage, tmp_path, *scripts)
    found = next(one for one in told["findings"] if one["code"] == "TN221")
    fix = next(fix for fix in told["fixes"] if fix["code"] == "TN221")
    read = line_of(scripts[0], "right = ")
    assert found["bytes"] == 8192 * 16384 * 4
    assert found["headline"] == "`out` in train() still keeps 512.00 MiB of the round before"
    assert found["place"]["line"] == line_of(scripts[0], "loss, out = ")
    assert fix["advice"] == f"`del out` after {tmp_path / 'script.py'}:{read}, which reads it last"
    assert fix["paste"] == "del out" and fix["peak_before"] == before > peak
    assert fix["peak_after_least"] <= peak <= fix["peak_after"], (fix, peak)
    assert not [one for one in after["findings"] if one["code"] == "TN221"]


@pytest.mark.parametrize(
    "last, variables", [("probable = out.view(-1, 64)", "del out, probable"), ("model.last = out", None)]
)
def test_other_names_of_what_a_variable_keeps(tonnage, tmp_path, last, variables):
    ((told, _),) = peaks_of(tonnage, tmp_path, LOGITS.replace("LAST", last))
    found = [fix["paste"] for fix in told["fixes"] if fix["code"] == "TN221"]
    assert found == ([variables] if variables else []), told["fixes"]


LOOP = """
for x in batches:
    out, loss = model(x)
    loss.backward()
    print(out.sum())
"""


@pytest.mark.parametrize(
    "text, name, lines",
    [
        (LOOP, "out", {3: 5}),
        (LOOP, "loss", {3: 4}),
        # Read after the loop, in the next round, or by a function.
        (LOOP + "print(out)", "out", {}),
        (LOOP.replace("model(x)", "model(x, out)"), "out", {}),
        (LOOP.replace("    out,", "    if x: print(out)\n    out,"), "out", {}),
        (LOOP + "def last(): return out", "out", {}),
        (LOOP + "def last(out): return out", "out", {3: 5}),
        # Assigned only now and then, or outside of loops.
        (LOOP.replace("    out,", "    if x: out,"), "out", {}),
        ("out = model(x)\nprint(out)", "out", {}),
        ("for x in batches:\n    del out\n    out = model(x)", "out", {}),
    ],
)
def test_the_line_that_reads_a_variable_last(text, name, lines):
    assert _last_reads(ast.parse(text), 0, name) == lines


IN_BACKWARD = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizers = {p: torch.optim.AdamW([p], lr=1e-4) for p in model.parameters()}


def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
OWN
for _ in range(3):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    STEP
"""


@pytest.mark.parametrize("own, step", [("", ""), ("own = torch.optim.SGD(model.parameters(), lr=1)", "own.step()")])
def test_optimizers_inside_the_backward_pass_are_one_step(tonnage, tmp_path, own, step):
    script = tmp_path / "script.py"
    script.write_text(IN_BACKWARD.replace("OWN", own).replace("STEP", step))
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    marks = [(row["kind"], row["name"], row["text"]) for row in run.table().to_pylist()]
    assert [name for kind, name, text in marks if text == "step"] == ["0", "1", "2"]
    phases = [name for kind, name, text in marks if text == "phase" and kind == "mark_start"]
    assert phases == (["forward", "backward", "step"] if step else ["forward", "backward"]) * 3
    # All three rounds are requested, and not the first three parameters.
    stopped = tonnage(None, command=[PYTHON, str(script)], options=["--stop-after", "2steps"])
    backwards = [row for row in stopped.table().to_pylist() if row["text"] == "phase" and row["name"] == "backward"]
    assert len(backwards) == 4, stopped.err
