# SPDX-License-Identifier: MIT OR Apache-2.0
"""What `tonnage fit` answers, held against `tonnage run` of the same commands: fresh processes, read with pyarrow."""

import json
import os
import signal
import subprocess
import time
from xml.etree import ElementTree

import pyarrow
import pytest
from conftest import PYTHON, TONNAGE, environment

SCRIPT = """
import sys
import torch
import torch.nn as nn

batch_size = 16  # the number that --let finds
if len(sys.argv) > 1:
    batch_size = int(sys.argv[1])
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    x = torch.randn(batch_size, 512, 1024, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""
GPU = ("--gpu", "rtx4090", "--capacity", "4GiB")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def tonnage(folder, *words):
    line = [TONNAGE, words[0], "--json", "--no-progress", *words[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=environment(), cwd=folder)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def rows(path):
    """Every row of a recording, without its time."""
    with open(path, "rb") as file:
        batches = list(pyarrow.ipc.open_stream(file))
    return [{**row, "time_ns": None} for batch in batches for row in batch.to_pylist() if row["kind"] != "meta"]


def test_the_largest_batch_is_proved_and_a_fork_records_what_a_fresh_process_does(folder):
    words = ("--", PYTHON, "train.py", "{batch=1..128}")
    fit, code = tonnage(folder, "fit", *GPU, "-o", "best.tonnage", "--picture", "fit.svg", *words)
    assert (code, fit["found"], fit["not_forked"]) == (0, True, None)
    (row,) = fit["rows"]
    assert row["bound"] == "proved"
    largest, following = row["largest"], row["next"]
    assert largest["forked"] and len(row["trials"]) <= 8
    marks = [mark for mark in ElementTree.parse(folder / "fit.svg").iter() if mark.find("{*}title") is not None]
    told = [mark.find("{*}title").text for mark in marks]
    assert [text.split()[0] for text in told if "needs" in text] == [trial["values"][0][1] for trial in row["trials"]]
    batch = int(largest["values"][0][1])
    assert int(following["values"][0][1]) == batch + 1
    fresh, code = tonnage(folder, "run", *GPU, "-o", "fresh.tonnage", "--", PYTHON, "train.py", str(batch))
    assert (code, fresh["outcome"]) == (0, "fits")
    assert fresh["margin"]["certain"] and fresh["margin"]["smallest"] == largest["need"]
    assert rows(folder / "best.tonnage") == rows(folder / "fresh.tonnage")
    fresh, _ = tonnage(folder, "run", *GPU, "-o", "more.tonnage", "--", PYTHON, "train.py", str(batch + 1))
    assert fresh["outcome"] in ("does_not_fit", "uncertain")


def test_a_constant_of_the_script_has_another_value_and_the_file_stays(folder):
    fit, code = tonnage(
        folder, "fit", *GPU, "--let", "batch_size={8,24}", "-o", "let.tonnage", "--", PYTHON, "train.py"
    )
    assert (code, [row["bound"] for row in fit["rows"]]) == (0, ["end_of_range", "end_of_range"])
    assert (folder / "train.py").read_text() == SCRIPT
    (folder / "by_hand.py").write_text(SCRIPT.replace("batch_size = 16", "batch_size = 24"))
    by_hand, _ = tonnage(folder, "run", *GPU, "-o", "by_hand.tonnage", "--", PYTHON, "by_hand.py")
    assert by_hand["margin"]["smallest"] == fit["rows"][1]["largest"]["need"]
    assert by_hand["margin"]["smallest"] != fit["rows"][0]["largest"]["need"]


CONFIGURED = """
import json
import sys
import torch

path = sys.argv[1]
if path.endswith(".json"):
    config = json.load(open(path))
else:
    import yaml
    with open(path) as file:
        config = yaml.safe_load(file)
config["unused"] = 1
for step in range(2):
    x = torch.zeros(config["train"]["batch_size"], 256, 1024, device="cuda")
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", '{"model": {"width": true},\n "train": {"batch_size": 4}}\n'),
        ("config.yaml", "model: {name: é}\ntrain: {name: é, batch_size: 4}\n"),
        ("itself.yaml", "model: &model {again: *model}\ntrain: {batch_size: 4}\n"),
    ],
)
def test_a_number_of_a_configuration_has_another_value_and_the_file_stays(tmp_path, file, text):
    (tmp_path / "train.py").write_text(CONFIGURED)
    (tmp_path / file).write_text(text)
    words = ("--let", f"{file}:batch_size={{64..1024+64}}", "--", PYTHON, "train.py", file)
    fit, code = tonnage(tmp_path, "fit", "--capacity", "1GiB", "--margin", "1MiB", *words)
    (row,) = fit["rows"]
    assert (code, row["bound"]) == (0, "proved")
    # 1 MiB for each of the batch; the context of an H100 is 516 MiB, and the tensor is allocated anew while it lives.
    batch = int(row["largest"]["values"][0][1])
    assert 2 * batch <= 1024 - 516 - 1 < 2 * (batch + 64)
    assert (tmp_path / file).read_text() == text


def test_a_number_that_makes_no_difference_is_said(folder):
    (folder / "train.py").write_text(CONFIGURED.replace('config["train"]["batch_size"]', "64"))
    (folder / "config.json").write_text('{"train": {"batch_size": 4}}')
    line = [TONNAGE, "fit", "--no-progress", *GPU, "--let", "unused={1..9}", "--", PYTHON, "train.py", "config.json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=environment(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "unused makes no difference: the job needs the same with every value that was tried" in done.stdout


def test_what_cannot_be_forked_is_run_afresh_and_said(folder):
    words = ("--", "sh", "-c", f"exec {PYTHON} train.py {{batch=1,2}}")
    fit, code = tonnage(folder, "fit", *GPU, *words)
    assert code == 0 and "no Python script" in fit["not_forked"]
    assert not any(trial["forked"] for row in fit["rows"] for trial in row["trials"])


def test_a_job_that_fails_is_no_answer(folder):
    (folder / "broken.py").write_text("import torch\ntorch.zeros(1, device='cuda')\nraise ValueError('no such data')\n")
    fit, code = tonnage(folder, "fit", *GPU, "--", PYTHON, "broken.py", "{batch=1..9}")
    assert (code, fit["found"], fit["rows"][0]["bound"]) == (2, False, "failed")
    assert "no such data" in fit["rows"][0]["next"]["why"]


def test_a_job_that_does_not_fit_gets_changes_that_a_fresh_run_confirms(folder):
    words = ("--", PYTHON, "train.py", "100")
    fit, code = tonnage(folder, "fit", *GPU, "--allow", "rounding", "--picture", "fit.html", *words)
    assert (code, fit["rows"][0]["bound"]) == (0, "nothing_fits")
    remedy = fit["remedies"]["fitting"][0]
    page = (folder / "fit.html").read_text()
    assert "as it is" in page and all(" + ".join(one["changes"]) in page for one in fit["remedies"]["fitting"])
    options = [word for name in remedy["changes"] for word in ("--change", name)]
    if remedy["setting"]:
        options = []
    fresh, code = tonnage(folder, "run", *GPU, *options, "-o", "changed.tonnage", *words)
    assert (code, fresh["outcome"]) == (0, "fits")
    assert fresh["margin"]["smallest"] == remedy["trial"]["need"]
    # An RTX 4090 at its published peak: 330.3 TFLOP/s in 16 bits, 82.6 in 32 bits, 1,008 GB/s, 32 GB/s to the host.
    least = remedy["least_time"]
    cost = remedy["trial"]["costs"]["per_step" if least["of_step"] else "total"]
    products = cost["flops_16"] / 330.3e12 + cost["flops_32"] / 82.6e12
    copies = 2 * cost["on_device"] / 1008e9
    link = max(cost["to_device"], cost["to_host"]) / 32e9
    assert cost["attention_flops"] == 0 and products > 0
    assert least["seconds"] == pytest.approx(max(products, copies, link))
    parts = [one["least_time"]["part"] for one in fit["remedies"]["fitting"]]
    assert parts == sorted(parts)


def test_an_interrupt_gives_the_best_so_far(folder):
    (folder / "slow.py").write_text(
        "import sys, time\nimport torch\nx = torch.zeros(1 << 20, device='cuda')\n"
        "if int(sys.argv[1]) > 1:\n    open('begun', 'w').close()\n    time.sleep(300)\n"
    )
    line = [TONNAGE, "fit", "--json", "--no-progress", *GPU, "--", PYTHON, "slow.py", "{batch=1..9}"]
    job = subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, env=environment(), cwd=folder, start_new_session=True
    )
    deadline = time.monotonic() + 200
    while not (folder / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    # As Ctrl-C at a terminal does: to the command, the fork server and its children.
    os.killpg(job.pid, signal.SIGINT)
    out, _ = job.communicate(timeout=100)
    fit = json.loads(out)
    assert (job.returncode, fit["interrupted"], fit["rows"][0]["bound"]) == (0, True, "interrupted")
    assert fit["rows"][0]["largest"]["values"] == [["batch", "1"]]


# Sizes its cache as vLLM does, and reports it in vLLM's words: weights of 2 GiB, 128 KiB for each token, 1 MiB for each
# request that may run.
SERVER = """#!{python}
import argparse, time, torch
parser = argparse.ArgumentParser()
parser.add_argument("command")
parser.add_argument("--max-model-len", type=int, default=8192)
parser.add_argument("--max-num-seqs", type=int, default=16)
found = parser.parse_args()
print("INFO Initializing a V1 LLM engine (v9.9) with config: model", flush=True)
weights = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
print("INFO Model loading took 2.0 GiB memory and 0.1 seconds", flush=True)
logits = torch.empty(found.max_num_seqs << 20, dtype=torch.uint8, device="cuda")
free, total = torch.cuda.mem_get_info()
length, blocks = found.max_model_len, (int(0.9 * total) - (total - free)) // (16 << 17)
concurrency = blocks * 16 / length
if concurrency < 1:
    raise ValueError(f"the estimated maximum model length is {{blocks * 16}}.")
print(f"INFO Available KV cache memory: {{blocks * 16 / 8192:.2f}} GiB", flush=True)
print(f"INFO GPU KV cache size: {{blocks * 16:,}} tokens, "
      f"Maximum concurrency for {{length:,}} tokens per request: {{concurrency:.2f}}x", flush=True)
cache = torch.empty(blocks * 16 << 17, dtype=torch.uint8, device="cuda")
print("INFO:     Application startup complete.", flush=True)
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path):
    path = tmp_path / "vllm"
    path.write_text(SERVER.format(python=PYTHON))
    path.chmod(0o755)
    return str(path)


def test_how_many_requests_a_server_holds(tmp_path, server):
    answer, code = tonnage(tmp_path, "fit", *GPU, "--", server, "serve")
    assert code == 0 and answer["proportional"] is True
    assert (answer["startup"]["version"], answer["startup"]["weights_gib"]) == ("9.9", 2.0)
    found = {row["length"]: (row["requests"], row["known"]) for row in answer["rows"]}
    # Each token takes 128 KiB; the check with the most requests has the least for it.
    least = min(check["startup"]["kv_cache_tokens"] for check in answer["checks"])
    assert least < answer["startup"]["kv_cache_tokens"]
    assert found[2048] == (least // 2048, "computed") and found[4096] == (least // 4096, "computed")
    assert found[1024][1] == found[8192][1] == "dry_run"
    assert answer["rows"][-1]["flags"] == f"--max-model-len 8192 --max-num-seqs {found[8192][0]}"


def test_a_length_that_does_not_fit_is_shortened(tmp_path, server):
    words = [server, "serve", "--max-model-len", "99999"]
    answer, code = tonnage(tmp_path, "serve-fit", *GPU, "--no-check", "--", *words)
    assert code == 0 and answer["proportional"] is None
    assert answer["shortened_to"] % 256 == 0 and answer["startup"]["max_model_len"] == answer["shortened_to"]
    assert answer["rows"][-1]["length"] == answer["shortened_to"]


def test_an_answer_ends_with_the_next_command(tmp_path):
    (tmp_path / "hold.py").write_text(
        "import sys\nimport torch\nx = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device='cuda')\n"
    )

    def last(gpu, size):
        words = [TONNAGE, "fit", "--gpu", gpu, "--allow", "none", PYTHON, "hold.py", size]
        done = subprocess.run(words, capture_output=True, text=True, env=environment(NO_COLOR="1"), cwd=tmp_path)
        return done.stdout.splitlines()[-1].removeprefix("  next         ")

    assert last("l4", "1") == f"tonnage check --init --gpu l4 -- {PYTHON} hold.py 1"
    assert last("l4", "500") == f"tonnage fit --gpu any -- {PYTHON} hold.py 500"
    assert last("l4,a100-40gb", "30") == f"tonnage run --gpu a100-40gb -- {PYTHON} hold.py 30"
