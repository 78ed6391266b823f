# SPDX-License-Identifier: MIT OR Apache-2.0
"""Packages of the environments of tests/compat and tests/fidelity, for each torch, and for packages with their own."""

import shutil
import subprocess
import sys

from rows import NEWEST

PACKAGES = {
    "2.1.2": ["numpy<2", "torchvision==0.16.2", "transformers==4.36.2", "accelerate<1", "peft==0.7.1", "timm==0.9.12",
              "lightning==2.1.4"],
    "2.4.1": ["numpy", "torchvision==0.19.1", "timm==1.0.9"],
    "2.6.0": ["numpy", "pandas", "transformers==4.50.3", "timm==1.0.15", "einops", "einx", "jaxtyping", "regex",
              "tiktoken", "torchdata", "datasets", "blobfile", "tensorboard", "torchao==0.8.0"],
    "2.8.0": ["numpy", "transformers==4.52.4", "tiktoken", "torchdata", "datasets", "blobfile", "tensorboard", "tyro",
              "torchao==0.12.0"],
    "2.9.1": ["numpy", "torchvision", "timm==1.0.24", "transformers==4.57.1", "peft==0.18.0", "accelerate",
              "xformers==0.0.33.post2"],
    "2.11.0": ["numpy", "pandas", "transformers", "accelerate", "einops", "einx", "jaxtyping", "regex", "tiktoken"],
    "2.13.0": ["numpy", "transformers", "peft", "accelerate"],
    NEWEST: ["transformers", "accelerate", "lightning", "torchvision", "timm", "peft", "trl", "bitsandbytes",
             "torchao", "diffusers", "ultralytics", "openai-whisper", "torch-geometric", "sentence-transformers",
             "liger-kernel", "datasets", "einops", "cupy-cuda13x", "kornia", "monai", "open_clip_torch",
             "gpytorch", "torchdiffeq", "x-transformers", "einx", "vector-quantize-pytorch", "stable-baselines3",
             "segmentation-models-pytorch", "scipy", "deepspeed", "megatron-core", "torchtitan", "torchtune"],
}  # fmt: skip
# Packages that bring a torch of their own. vLLM wants cuda-python, which writes over files of cuda-bindings.
OWN = {
    "vllm-0.33.0": (["vllm==0.33.0"], ["cuda-bindings==13.5.0"]),
    "vllm-0.32.0": (["vllm==0.32.0"], ["cuda-bindings==13.5.0"]),
    "sglang-0.5.23": (["sglang==0.5.23"], []),
    "transformers-5.23.0": ([f"torch=={NEWEST}", "transformers[serving]==5.23.0"], []),
}
# Earlier versions of vLLM, whose logs are published, with everything as it was on a day: they set few upper limits.
THEN = {
    "vllm-0.2.4": "2023-12-13",
    "vllm-0.2.5": "2023-12-20",
    "vllm-0.6.4.post1": "2024-11-20",
    "vllm-0.6.5": "2024-12-20",
    "vllm-0.7.0": "2025-02-01",
    "vllm-0.7.1": "2025-02-05",
    "vllm-0.7.2": "2025-02-10",
    "vllm-0.8.5.post1": "2025-05-10",
    "vllm-0.9.2": "2025-07-21",
    "vllm-0.11.0": "2025-10-10",
    "vllm-0.19.0": "2026-04-10",
    "vllm-0.19.0+gemma4": "2026-04-17",
    "vllm-0.27.1": "2026-08-20",
    "vllm-0.31.0": "2026-10-17",
}
# Packages that are installed after them, against their own requirements: 0.19.0 has Gemma 4, and excludes the
# transformers that reads its configuration.
ALSO = {"vllm-0.19.0+gemma4": ["transformers>=5.5"]}
# Requirements in a version that is newer than the newest some registries have, and that they run without.
INSTEAD = {"vllm-0.33.0": "certifi"}
# Which Python they need, where it is not the one that runs this: flashinfer of 0.27.1 has `array.array[int]`,
# which is not subscriptable before 3.12.
PYTHON = {"vllm-0.27.1": "3.12"}


def interpreter(name):
    """The Python that an environment is made with."""
    version = PYTHON.get(name, ".".join(map(str, sys.version_info[:2])))
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
        return found
    sys.exit(f"{name} needs Python {version}: put python{version} on PATH (with pyenv, name both in PYENV_VERSION)")


def make(folder, name):
    """The environment `torch-VERSION` below a folder, or one of a package with its own torch."""
    environment = folder / (name if name in OWN or name in THEN else f"torch-{name}")
    python = str(environment / "bin" / "python")
    subprocess.run([interpreter(name), "-m", "venv", str(environment)], check=True)
    pip = [python, "-m", "pip", "install", "--quiet"]
    if name in THEN or name in INSTEAD:
        subprocess.run([*pip, "uv"], check=True)
        uv = [str(environment / "bin" / "uv"), "pip", "install", "--quiet", "--python", python]
    if name in THEN:
        # uv can leave out what came later. pyairports was published again in 2025.
        line = [*uv, "--exclude-newer", THEN[name], "--exclude-newer-package", "pyairports=2026-01-01"]
        subprocess.run([*line, "vllm==" + name.removeprefix("vllm-").partition("+")[0]], check=True)
        if name in ALSO:
            subprocess.run([*line, *ALSO[name]], check=True)
        print(f"{environment} is there")
        return
    wanted, again = OWN.get(name) or ([f"torch=={name}", *PACKAGES[name]], [])
    if name in INSTEAD:
        # uv takes another version than the requested one.
        instead = environment / "instead.txt"
        instead.write_text(INSTEAD[name] + "\n")
        subprocess.run([*uv, "--override", str(instead), *wanted], check=True)
    else:
        subprocess.run([*pip, *wanted], check=True)
    if again:
        subprocess.run([*pip, "--force-reinstall", "--no-deps", *again], check=True)
    print(f"{environment} is there")
