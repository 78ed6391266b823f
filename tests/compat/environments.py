# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the environments of tests/compat and tests/fidelity hold, for each torch."""

import subprocess
import sys

PACKAGES = {
    "2.1.2": ["numpy<2", "torchvision==0.16.2", "transformers==4.36.2", "accelerate<1", "peft==0.7.1", "timm==0.9.12",
              "lightning==2.1.4"],
    "2.4.1": ["numpy", "torchvision==0.19.1", "timm==1.0.9"],
    "2.6.0": ["numpy", "pandas", "transformers==4.50.3", "timm==1.0.15", "einops", "einx", "jaxtyping", "regex",
              "tiktoken"],
    "2.9.1": ["numpy", "torchvision", "timm==1.0.24", "transformers==4.57.1", "peft==0.18.0", "accelerate",
              "xformers==0.0.33.post2"],
    "2.11.0": ["numpy", "transformers", "accelerate", "einops", "einx", "jaxtyping", "regex", "tiktoken"],
    "2.13.0": ["numpy", "transformers", "peft", "accelerate"],
    "2.15.0": ["transformers", "accelerate", "lightning", "torchvision", "timm", "peft", "trl", "bitsandbytes",
               "torchao", "diffusers", "ultralytics", "openai-whisper", "torch-geometric", "sentence-transformers",
               "liger-kernel", "datasets", "einops", "cupy-cuda13x", "kornia", "monai", "open_clip_torch",
               "gpytorch", "torchdiffeq", "x-transformers", "einx", "vector-quantize-pytorch", "stable-baselines3",
               "segmentation-models-pytorch", "scipy", "deepspeed", "megatron-core", "torchtitan", "torchtune"],
}  # fmt: skip
# Packages that bring a torch of their own. vLLM 0.32 wants cuda-python, which writes over files of cuda-bindings.
OWN = {"vllm-0.32.0": (["vllm==0.32.0"], ["cuda-bindings==13.5.0"])}


def make(folder, name):
    """The environment `torch-VERSION` below a folder, or one of a package with its own torch, with the Python that runs
    this."""
    environment = folder / (name if name in OWN else f"torch-{name}")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    wanted, again = OWN.get(name) or ([f"torch=={name}", *PACKAGES[name]], [])
    subprocess.run([*pip, *wanted], check=True)
    if again:
        subprocess.run([*pip, "--force-reinstall", "--no-deps", *again], check=True)
    print(f"{environment} is there")
