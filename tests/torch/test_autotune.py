# SPDX-License-Identifier: MIT OR Apache-2.0
"""Autotuners: they end soon, their choice is named as unknown, and nothing of it reaches the user's caches."""

import os
import types

import pytest
from conftest import PYTHON
from tonnage_hook.torch.compilers import Compilers

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")

SCRIPT = """
import os

import torch
import triton
import triton.language as tl
from torch import nn


def configs():
    return [triton.Config({"BLOCK": size}, num_warps=warps) for size in (128, 256, 512, 1024) for warps in (1, 2, 4, 8)]


@triton.autotune(configs=configs(), key=["size"])
@triton.jit
def double(into, source, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(into + at, 2 * tl.load(source + at, mask=at < size), mask=at < size)


x = torch.randn(4096, device="cuda")
double[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](torch.empty_like(x), x, 4096)
compiled = sum(len(cache[0]) for cache in double.fn.device_caches.values())
print("compiled by Triton:", compiled)

model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).cuda()
model = torch.compile(model, mode="max-autotune-no-cudagraphs")
model(torch.randn(256, 512, device="cuda")).sum().backward()
torch.backends.cudnn.benchmark = True
nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32, device="cuda"))
print("went on:", True)
# vLLM is not here; where it would keep what it compiles.
os.makedirs(os.environ["VLLM_CACHE_ROOT"], exist_ok=True)
"""


def test_an_autotuner_takes_the_first_and_the_verdict_says_so(tonnage, tmp_path):
    path = tmp_path / "tuned.py"
    path.write_text(SCRIPT)
    own = {name: str(tmp_path / "own" / name) for name in CACHES}
    kept = tmp_path / "kept"
    run = tonnage(None, command=[PYTHON, str(path)], XDG_CACHE_HOME=str(kept), **own)
    assert run.code == 0, run.err
    assert "went on: True" in run.err
    assert "compiled by Triton: 1\n" in run.err
    assert any("which kernels an autotuner takes" in text for text in run.verdict["unknown"])
    assert any("which plan of a convolution" in text for text in run.verdict["unknown"])
    assert not (tmp_path / "own").exists(), "the user's own caches"
    assert {"inductor", "triton", "vllm"} <= set(os.listdir(kept / "tonnage"))


def test_inductor_before_torch_2_7_compiles_one_candidate_too():
    class CachingAutotuner:
        """As there: one function, which compiles every candidate and keeps what starts them."""

        def __init__(self, *configs):
            self.configs, self.launchers = list(configs), []

        def precompile(self, warm_cache_only=False):
            for config in self.configs:
                if config == "too large":
                    raise RuntimeError("out of resources")
                self.launchers.append(config)

    compilers = Compilers(lambda **facts: None, lambda tensor: None)
    compilers._change_kernels(types.SimpleNamespace(CachingAutotuner=CachingAutotuner))
    tuner = CachingAutotuner("too large", "first", "second")
    tuner.precompile()
    assert tuner.launchers == ["first"]
    assert compilers.chose


# A package of the same shape as FlashInfer's, on a machine without nvcc.
SPEC = """
class JitSpec:
    name = "sampling"

    def build_and_load(self):
        raise RuntimeError("Could not find nvcc")
"""
SAMPLED = """
import os

import torch
import vllm.envs
from flashinfer.jit.core import JitSpec

samples = torch.empty(4, dtype=torch.int32, device="cuda")
JitSpec().build_and_load().sampling_from_probs(torch.rand(4, 8, device="cuda"), samples)
print("sampled:", tuple(samples.shape))
print("vLLM takes FlashInfer:", os.environ.get("VLLM_HAS_FLASHINFER_CUBIN"))
"""


@pytest.mark.skipif(os.path.exists("/usr/local/cuda/bin/nvcc"), reason="there is an nvcc")
def test_flashinfer_needs_no_nvcc_and_the_verdict_says_so(tonnage, tmp_path):
    for name, text in (("flashinfer/jit/core.py", SPEC), ("vllm/envs.py", "")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    script = tmp_path / "sampled.py"
    script.write_text(SAMPLED)
    run = tonnage(None, command=[PYTHON, str(script)], PATH="/usr/bin:/bin")
    assert run.code == 0, run.err
    assert "sampled: (4,)" in run.err
    assert "vLLM takes FlashInfer: 1" in run.err
    words = "allocate themselves that a package compiles with nvcc (sampling)"
    assert any(words in text for text in run.verdict["unknown"])


# As in CUTLASS 4 and in TVM's FFI: what a script calls of them, with the compilers left out.
CUTE = """
class BaseDSL:
    @staticmethod
    def _lazy_initialize_dsl(function):
        function._dsl_object = BaseDSL()

    @staticmethod
    def _preprocess_and_replace_code(function):
        raise RuntimeError("the source of a kernel was read")

    def _func(self, function, *arguments, **options):
        raise RuntimeError("cudaErrorCallRequiresNewerDriver")


def jit(function):
    def call(*arguments, **options):
        BaseDSL._preprocess_and_replace_code(function)
        return function._dsl_object._func(function, *arguments, **options)

    return call


def compile(function, *arguments):
    return function(*arguments, compile_only=True)
"""
FFI = """
def load_inline(name, *, cpp_sources=None, cuda_sources=None):
    raise RuntimeError(f"{name} was not compiled")
"""
LAUNCHED = """
import torch
from cutlass.base_dsl.dsl import compile, jit
from tvm_ffi.cpp.extension import load_inline


@jit
def double(x):
    pass


ones = torch.ones(4, dtype=torch.int32, device="cuda")
print("before:", ones.sum().item())
compile(double, ones)(ones)
double(ones)
load_inline("halve", cuda_sources="…").run(ones)
if ones.sum().item() > 4:
    print("after")
try:
    load_inline("plain", cpp_sources="…")
except RuntimeError as error:
    print("raised:", error)
"""


@pytest.mark.skipif(os.path.exists("/usr/local/cuda/bin/nvcc"), reason="there is an nvcc")
def test_kernels_that_cannot_be_launched_do_nothing_and_what_they_write_is_unknown(tonnage, tmp_path):
    for name, text in (("cutlass/base_dsl/dsl.py", CUTE), ("tvm_ffi/cpp/extension.py", FFI)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)
    run = tonnage(None, command=[PYTHON, str(script)], PATH="/usr/bin:/bin")
    assert run.code == 0, run.err
    assert "before: 4" in run.err
    # A mistake in plain C++ is the script's own.
    assert "raised: plain was not compiled" in run.err
    unknown = run.verdict["unknown"]
    assert any("compiles with nvcc (halve)" in text for text in unknown)
    assert any("decides by" in text and "launched.py:17" in text for text in unknown), unknown
