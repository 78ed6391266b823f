# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where published figures of real GPUs come from: public repositories at a commit. Nothing of them is kept here."""

import subprocess

# Folder below `--sources`: repository, commit, who published it. A figure from an issue has no commit.
SOURCES = {
    "timm": ("huggingface/pytorch-image-models", "90cae8c5ab83", "timm (R. Wightman)"),
    "wedsonlin": ("Wedsonlin/assignment2-systems", "87b086417ea8", "Wedsonlin"),
    "magma27": ("MAGMA27/assignment2-systems", "15883f2b1d6b", "MAGMA27"),
    "charan": ("Charan6924/assignment2-systems", "4e7e497ce83d", "Charan6924"),
    "silmont": ("silmont2000/assignment2-systems", "133f0643dd71", "silmont2000"),
    "kkaitlyn": ("kkaitlyn111/cs336-a2-systems", "c1c174d195a5", "kkaitlyn111"),
    "kkaitlyn-basics": ("kkaitlyn111/cs336-assignment1", "e6dc1418ec46", "kkaitlyn111"),
    "bcrafton": ("bcrafton/assignment2-systems", "0c0e8a736edb", "B. Crafton"),
    "nothanmin": ("notHanmin/assignment2-systems", "bbd29721256d", "notHanmin"),
    "litgpt": ("Lightning-AI/litgpt", "8641822b3249", "Lightning AI"),
    "rasbt": ("rasbt/LLMs-from-scratch", "28c65cdfbc33", "S. Raschka"),
    "memopt": ("rasbt/pytorch-memory-optim", "f6eddcd28c40", "S. Raschka"),
    "torchtitan-202412": ("pytorch/torchtitan", "9dec370ad26b", "torchtitan (Meta)"),
    "torchtitan-202503": ("pytorch/torchtitan", "9a2f5784c381", "torchtitan (Meta)"),
    "torchtitan-202506": ("pytorch/torchtitan", "e7c0cae", "torchtitan (Meta)"),
    "whitefox": ("ise-uiuc/WhiteFox", "e402f40e9018", "WhiteFox (UIUC)"),
    "ptrblck": ("pytorch/pytorch/issues/107667", None, "ptrblck"),
    # Logs, each with its own source in serving.py.
    "vllm": ("vllm-project/vllm", None, "vLLM"),
    # The results, and the package as it was when they were measured.
    "peft": ("huggingface/peft", "5d602fdbff04", "peft (Hugging Face)"),
    "peft-package": ("huggingface/peft", "d787f51bbaa1", "peft (Hugging Face)"),
}


def get(folder, name):
    """A checkout of a source."""
    repository, commit, _ = SOURCES[name]
    subprocess.run(["git", "clone", "--quiet", f"https://github.com/{repository}", str(folder / name)], check=True)
    subprocess.run(["git", "-C", str(folder / name), "checkout", "--quiet", commit], check=True)
