# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Python that runs beside the script: it sees every pass and step, and torch.compile does not see it."""

import subprocess

from conftest import PYTHON, SCRIPTS, environment


def test_what_is_compiled_is_the_same_as_without_us(tonnage):
    alone = subprocess.run(
        [PYTHON, str(SCRIPTS / "compiled.py")], capture_output=True, text=True, timeout=300, env=environment()
    )
    assert alone.returncode == 0, alone.stderr
    run = tonnage("compiled.py")
    assert run.code == 0, run.err
    printed = [line for line in run.err.splitlines() if line.startswith(("graph ", "frames ", "breaks "))]
    assert printed == alone.stdout.splitlines()
    assert len(printed) >= 6
    assert "global hooks" not in run.err
    owners = {row["text"].split()[0] for row in run.table().to_pylist() if row["kind"] == "owner"}
    assert {"weights", "gradients"} <= owners


READS = """
import torch


@torch.compile(backend="eager")
def read(x):
    return x.cpu().numpy().sum()


print(*(int(read(torch.ones(count, device="cuda"))) for count in (3, 4)))
"""


def test_compiled_code_reads_a_tensor(tonnage, tmp_path):
    # It calls our `numpy()`, which must not be compiled in turn: that would not end.
    script = tmp_path / "script.py"
    script.write_text(READS)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "3 4" in run.err.splitlines()


def test_each_pass_and_step_begins_and_ends(tonnage):
    run = tonnage("phases.py")
    assert run.code == 0, run.err
    rows = run.table().select(["kind", "name", "text"]).to_pylist()
    told = [row for row in rows if row["kind"].startswith("mark") and row["text"]]
    open_, phases, outermost = [], [], []
    for row in told:
        what = (row["text"], row["name"])
        if row["kind"] == "mark_start":
            if row["text"] == "phase":
                phases.append(row["name"])
                if not any(text == "phase" for text, _ in open_):
                    outermost.append(row["name"])
            open_.append(what)
        elif row["kind"] == "mark_end":
            assert open_ and open_.pop() == what, (what, open_)
    assert not open_
    training = ["forward", "backward", "step"]
    assert outermost == [*training, "forward", "step", *training, "forward", "eval", "forward"]
    assert phases[7:10] == ["step", "forward", "backward"], "the closure of a step is inside it"
    marks = [(row["text"], row["name"]) for row in told if row["kind"] == "mark"]
    assert marks.count(("grad_in_eval", "Sequential")) == 1
    assert not any(mark == ("grad_in_eval", "Linear") for mark in marks), "nothing of it requires a gradient"
    # The hook was there although others looked for torch first, and stays although something is compiled.
    kinds = {row["text"].split()[0] for row in rows if row["kind"] == "owner"}
    assert {"weights", "gradients", "optimizer_state"} <= kinds
    modules = {row["name"] for row in told if row["text"] == "module"}
    assert {"Sequential", "0", "1", "Failing", "inner"} <= modules
    files = {row["text"] for row in run.table().to_pylist() if row["kind"] == "frame"}
    assert "<tonnage>" not in {file for file in files if file}


def test_a_peak_and_running_out_within_one_operator(tonnage):
    # The new peak is to be looked at as soon as the operator has ended; looking at the error comes before that.
    run = tonnage("oom_inside_operator.py", options=("--gpu", "rtx4090", "--stop-at-oom"), timeout=120)
    assert run.code == 0, run.err
    assert "out of memory" in run.err
    assert run.verdict["devices"][0]["peak_allocated"] > 13 << 30


UNDEFINED = """
#include <torch/library.h>
static std::vector<at::Tensor> attend(const at::Tensor& query) { return {query.clone(), at::Tensor()}; }
TORCH_LIBRARY(undefined_results, library) {
  library.def("attend(Tensor query) -> Tensor[]");
  library.impl("attend", torch::dispatch(c10::DispatchKey::CUDA, attend));
}
"""


def test_an_operator_leaves_results_undefined(tonnage, tmp_path):
    """As FlashAttention 3 does: there is no such tensor in Python, and a list of them must not have one."""
    source, library, script = tmp_path / "attend.cpp", tmp_path / "attend.so", tmp_path / "attend.py"
    source.write_text(UNDEFINED)
    find = "import os, torch; print(os.path.dirname(torch.__file__))"
    torch = subprocess.run([PYTHON, "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    compiler = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{torch}/include"]
    libraries = [f"-L{torch}/lib", "-ltorch_cpu", "-lc10"]
    subprocess.run([*compiler, "-o", str(library), str(source), *libraries], check=True)
    script.write_text(
        "import torch\n"
        f"torch.ops.load_library({str(library)!r})\n"
        "made, _ = torch.ops.undefined_results.attend(torch.ones(3, 5, device='cuda'))\n"
        "print(tuple(made.shape))\n"
    )
    run = tonnage("", command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "(3, 5)" in run.err


SLOTS = """
import importlib.machinery
import sys

import torch


class Loader:
    # Nothing can be assigned to it, and one loader serves several modules.
    __slots__ = ()

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        assert module.__spec__.loader is module.__loader__ is loader
        module.executed = True


loader = Loader()


class Finder:
    def find_spec(self, name, path, target=None):
        if name in ("vllm", "vllm.envs", "vllm.other"):
            return importlib.machinery.ModuleSpec(name, loader, is_package=name == "vllm")


sys.meta_path.append(Finder())
import vllm.envs
import vllm.other

assert vllm.envs.executed and vllm.other.executed
torch.ones(1, device="cuda")
print("imported")
"""


def test_a_loader_with_slots_is_left_as_it_is(tonnage, tmp_path):
    # The hook watches the import of vllm.envs.
    script = tmp_path / "script.py"
    script.write_text(SLOTS)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "imported" in run.err.splitlines()
