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
               "segmentation-models-pytorch", "scipy"],
}  # fmt: skip


def make(folder, version):
    """The environment `torch-VERSION` below a folder, with the Python that runs this."""
    environment = folder / f"torch-{version}"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"torch=={version}", *PACKAGES[version]], check=True)
    print(f"{environment} holds torch {version}")
