# SPDX-License-Identifier: MIT OR Apache-2.0
"""Published logs of vLLM: its report of memory on a real GPU, beside that of the same version in a dry run.

`real` has the terms of vLLM's own breakdown in GiB, as far as the log has them, and the size of the KV cache in tokens.
"""

import json
import re
import statistics
from dataclasses import dataclass, field

PULL, ISSUE = "https://github.com/vllm-project/vllm/pull/", "https://github.com/vllm-project/vllm/issues/"
TERMS = ("weights", "other", "consumed", "activation", "graphs", "kv", "tokens")
PATTERNS = [
    # 0.6.5 to 0.9: the engine that is called V0.
    (
        r"model weights take ([\d.]+)GiB; non_torch_memory takes ([\d.]+)GiB; PyTorch activation peak memory takes"
        r" ([\d.]+)GiB; the rest of the memory reserved for KV Cache is (-?[\d.]+)GiB",
        ("weights", "other", "activation", "kv"),
    ),
    # Up to 0.6.4.
    (r"non_torch_memory=([\d.]+)GiB kv_cache_size=(-?[\d.]+)GiB", ("other", "kv")),
    (r"Available KV cache memory: (-?[\d.]+) GiB", ("kv",)),
    # From 0.9 on, with a more verbose setting.
    (r"torch peak memory increase: ([\d.]+)GiB", ("activation",)),
    (r"non-torch forward increase memory: (-?[\d.]+)GiB", ("other",)),
    (
        r"Actual usage is ([\d.]+) GiB for (?:consumed memory|weight)[^,]*, ([\d.]+) GiB for peak activation",
        ("consumed", "activation"),
    ),
    (r"(?:Loading model weights took|Model loading took|model weights.*?took) ([\d.]+) Gi?B", ("weights",)),
    (r"and ([\d.]+) GiB for CUDAGraph memory", ("graphs",)),
]


@dataclass
class Log:
    name: str
    # The folder of the environment, and the torch that is in it.
    environment: str
    torch: str
    gpu: str
    what: str
    # A name of drivers/vllm_log.py, and arguments of `vllm.LLM`. `served` marks a log of `vllm serve`.
    model: str
    settings: dict
    real: dict
    source: str
    options: tuple = ()
    # Environment variables of the process.
    variables: dict = field(default_factory=dict)
    # Values that the log leaves open, and their replacements.
    note: str = ""
    # Why the two differ by more than 1 %, as it was tested.
    cause: str = ""


def terms(text):
    """The terms of the first process that reports them, from the output of vLLM."""
    found = {}
    for pattern, names in PATTERNS:
        if match := re.search(pattern, text):
            for name, value in zip(names, match.groups()):
                found.setdefault(name, float(value))
    if match := re.search(r"GPU KV cache size: ([\d,]+) tokens", text):
        found["tokens"] = int(match.group(1).replace(",", ""))
    elif match := re.search(r"# (?:GPU|CUDA|cuda) blocks: (\d+)", text):
        found["tokens"] = 16 * int(match.group(1))
    return found


def measure(context, model, settings, options, variables, real):
    text = context.run(
        context.drivers / "vllm_log.py", model, json.dumps(settings), options=options, seconds=1800, **variables
    )
    dry = terms(text)
    assert "kv" in dry or "tokens" in dry, text[-3000:]
    # A server whose longest request does not fit in the cache ends there, on a GPU too.
    ended = "answered" if "both prompts are answered" in text else "not started"
    return [{"what": name, "unit": "serving", "real": real.get(name), "dry": dry.get(name)} for name in TERMS] + [
        {"what": "ending", "unit": "serving", "real": None, "dry": ended}
    ]


#: The section of docs/fidelity.md about these logs.
SECTION = "fidelity.md#a-server-vllm-against-published-logs"


def shown(value):
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def difference(found):
    """The KV cache, by tokens where the log has them."""
    for name in ("tokens", "kv"):
        real, dry = found[name]
        if real and dry is not None:
            return 100 * (dry - real) / real
    return None


def table(known, commit):
    """The table of the logs."""
    lines = []
    for log, result in known:
        found = figures_of(result)
        if not found or (off := difference(found)) is None:
            continue
        pairs = []
        for name in ("weights", "other", "consumed", "activation", "graphs"):
            real, dry = found[name]
            if real is not None and dry is not None:
                pairs.append(f"{name} {shown(real)} / {shown(dry)}")
        kv = [" = ".join(filter(None, (cell("kv", found, side), cell("tokens", found, side)))) for side in (0, 1)]
        words = "; ".join(filter(None, (log.note, log.cause if abs(off) > 1 else "")))
        words = words.replace("in detail below", f"[in detail]({SECTION})")
        version = log.environment.removeprefix("vllm-").partition("+")[0]
        cells = [version, log.gpu, f"{log.what} ({log.source})", "<br>".join(pairs), *kv]
        cells += [f"{off:+.2f} %", words, commit(result)]
        lines.append(f"| {' | '.join(cells)} |")
    head = "| vLLM | GPU | model, settings | terms in GiB, real / dry | KV cache, real | dry | difference | | commit |"
    return "\n".join([head, "|---" * 9 + "|", *lines])


def figures_of(result):
    return {figure["what"]: (figure["real"], figure["dry"]) for figure in result["figures"]}


def summarize_logs(known):
    """How far the size of the KV cache differs: of all logs, and of the list that was made before any was run."""
    found = [(log, difference(figures_of(result))) for log, result in known if result["figures"]]
    apart = [abs(off) for _, off in found if off is not None]
    listed = [abs(off) for log, off in found if off is not None and log.name not in FOUND_LATER]
    return (
        f"in {len(apart)} logs, the size of the KV cache has a median difference of {statistics.median(apart):.2f} %,"
        f" and {near(apart)} are within 2 %. {len(listed)} of them are of a list that was made before any was run:"
        f" {statistics.median(listed):.2f} %, and {near(listed)} within 2 %."
    )


def near(differences):
    """How many are within 2 %."""
    return sum(1 for value in differences if value <= 2)


def cell(name, found, side):
    value = found[name][side]
    if value is None:
        return ""
    return f"{value:,} tokens" if name == "tokens" else f"{value:.2f} GiB"


# Up to 0.8 graphs are captured after the cache was sized, and do not count; they are left out, and so is the memory of
# the host that the cache is swapped to.
FIRST = {"enforce_eager": True, "swap_space": 0}
# Before it reduces by kernels of its own, vLLM tries whether GPUs reach each other. Here NCCL reduces, as it does where
# they do not.
PAIR = FIRST | {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
LINES = "by the lines of the code that it names, of this version"
HETERO = "[heteropilot](https://github.com/swsok/heteropilot/blob/1ea4920/docs/phase0_bench_plan.md)"
A5000 = "the log does not have the memory of the card"
# A page with the whole line and image of each run, and no repository that we know.
H100 = {"max_model_len": 16000, "block_size": 128, "enable_prefix_caching": True, "gpu_memory_utilization": 0.9}
H100_LOGS = [
    (
        "llama-3.1-8b",
        "Llama 3.1 8B",
        {"weights": 14.99, "activation": 4.76, "other": 0.13, "graphs": -0.45, "kv": 51.38},
    ),
    (
        "qwen3-0.6b",
        "Qwen3 0.6B",
        {"weights": 1.12, "activation": 5.56, "other": 0.13, "graphs": 0.10, "kv": 64.45},
    ),
    (
        "qwen3-32b",
        "Qwen3 32B",
        {"weights": 61.03, "activation": 5.64, "other": 0.14, "graphs": -0.88, "kv": 4.45},
    ),
    (
        "gpt-oss-20b",
        "gpt-oss-20b (mxfp4)",
        {"weights": 13.47, "activation": 7.38, "other": 0.13, "graphs": 0.39, "kv": 50.28},
    ),
]
LOGS = [
    Log(
        "vllm pr-2031 before",
        "vllm-0.2.4",
        "2.1.1",
        "a100-80gb",
        "Llama 2 7B, all defaults; only what PyTorch allocates counts",
        "llama-2-7b",
        {"swap_space": 0},
        {"tokens": 7449 * 16},
        f"[PR 2031]({PULL}2031)",
    ),
    Log(
        "vllm pr-2031 after",
        "vllm-0.2.5",
        "2.1.1",
        "a100-80gb",
        "Llama 2 7B, all defaults; everything in use counts",
        "llama-2-7b",
        {"swap_space": 0},
        {"tokens": 7351 * 16},
        f"[PR 2031]({PULL}2031)",
    ),
    Log(
        "vllm pr-2031 before, 4 GPUs",
        "vllm-0.2.4",
        "2.1.1",
        "a100-80gb",
        "Llama 2 70B on 4 GPUs, all defaults; only what PyTorch allocates counts",
        "llama-2-70b",
        {"ray": True, "swap_space": 0, "tensor_parallel_size": 4},
        {"tokens": 31615 * 16},
        f"[PR 2031]({PULL}2031)",
        options=("--gpus", "4"),
    ),
    Log(
        "vllm pr-2031 after, 4 GPUs",
        "vllm-0.2.5",
        "2.1.1",
        "a100-80gb",
        "Llama 2 70B on 4 GPUs, all defaults; everything in use counts",
        "llama-2-70b",
        {"ray": True, "swap_space": 0, "tensor_parallel_size": 4},
        {"tokens": 20865 * 16},
        f"[PR 2031]({PULL}2031)",
        options=("--gpus", "4"),
        cause="there the memory of activations waited until the GPU had reduced them, because torch called"
        f" `record_stream`, as vLLM found five days later ([PR 2151]({PULL}2151)); here the GPU is never behind."
        " With `--assume lag=1024` it is 324,192 tokens, -2.89 %",
    ),
    Log(
        "vllm pr-10511",
        "vllm-0.6.5",
        "2.5.1",
        "h100-80gb",
        "Llama 3 8B, all defaults",
        "llama-3-8b",
        FIRST,
        {"weights": 14.96, "other": 1.79, "activation": 1.26, "kv": 53.29},
        f"[PR 10511]({PULL}10511)",
        options=("--capacity", "79.22GiB"),
        note="main of 2024-12-13",
        cause="1.79 GiB outside PyTorch there, of code that was not merged yet; 0.12 GiB in the log below, of the"
        " release that followed",
    ),
    Log(
        "vllm 79.14",
        "vllm-0.6.5",
        "2.5.1",
        "a100-80gb",
        "Llama 3.1 8B, 0.9 of the memory",
        "llama-3.1-8b",
        FIRST,
        {"weights": 14.99, "other": 0.12, "activation": 1.19, "kv": 54.93},
        "a public log",
        options=("--capacity", "79.14GiB"),
        note=f"{LINES}; the log has no length, the model's own was taken",
    ),
    Log(
        "vllm a10",
        "vllm-0.7.1",
        "2.5.1",
        "a10",
        "Llama 3.1 8B, all defaults",
        "llama-3.1-8b",
        FIRST,
        {"weights": 14.99, "other": 0.05, "activation": 0.22, "kv": 4.60, "tokens": 2356 * 16},
        "a public log",
        note=LINES,
        cause="the log has no number of requests: with 32 instead of the default, 256, the activation is 0.22 GiB as"
        " in the log, and the cache 4.65 GiB = 38,128 tokens (+1.15 %)",
    ),
    Log(
        "vllm t4",
        "vllm-0.7.2",
        "2.5.1",
        "t4",
        "Qwen2.5 1.5B, fp16, 32,768 tokens, prefix caching, 0.5 of the memory",
        "qwen2.5-1.5b",
        FIRST
        | {"dtype": "float16", "max_model_len": 32768, "enable_prefix_caching": True, "gpu_memory_utilization": 0.5},
        {"weights": 2.89, "other": 0.01, "activation": 2.02, "graphs": 0.17, "kv": 2.36, "tokens": 5519 * 16},
        "a public log",
    ),
    Log(
        "vllm rtx2060",
        "vllm-0.8.5.post1",
        "2.6.0",
        "rtx2080ti",
        "RTX 2060 12 GB, Qwen3 4B, fp16, 10,000 tokens, one request, 0.95 of the memory",
        "qwen3-4b",
        FIRST | {"dtype": "float16", "max_model_len": 10000, "max_num_seqs": 1, "gpu_memory_utilization": 0.95},
        {"weights": 7.56, "other": 0.04, "activation": 0.74, "kv": 3.06, "tokens": 1394 * 16},
        "a public log",
        options=("--capacity", "12GiB"),
        cause="the difference is the 0.04 GiB outside PyTorch, which are not counted",
    ),
    Log(
        "vllm issue-13061",
        "vllm-0.7.2",
        "2.5.1",
        "rtx4090",
        "DeepSeek-R1-Distill-Qwen-14B on 2 GPUs, 0.98 of the memory",
        "qwen2.5-14b-distilled",
        PAIR | {"gpu_memory_utilization": 0.98},
        {"weights": 13.95, "other": 0.25, "activation": 0.19, "kv": 8.69, "tokens": 81536},
        f"[issue 13061]({ISSUE}13061)",
        options=("--gpus", "2"),
        note="ends there as in the log: 131,072 tokens do not fit",
        cause="0.25 GiB outside PyTorch there, NCCL's buffers among them, which are not counted; with these taken off"
        " the cache is 8.66 GiB",
    ),
    Log(
        "vllm pr-10511 tp2",
        "vllm-0.6.5",
        "2.5.1",
        "h100-80gb",
        "Llama 3 8B on 2 GPUs, all defaults",
        "llama-3-8b",
        PAIR,
        {"weights": 7.48, "other": 3.58, "activation": 1.26, "kv": 58.97},
        f"[PR 10511]({PULL}10511)",
        options=("--capacity", "79.22GiB", "--gpus", "2"),
        note="main of 2024-12-13",
        cause="3.58 GiB outside PyTorch there, twice what it is on one GPU",
    ),
    Log(
        "vllm issue-11251",
        "vllm-0.6.4.post1",
        "2.5.1",
        "v100-16gb",
        "Llama 3.1 8B on 2 GPUs, 40,000 tokens",
        "llama-3.1-8b",
        PAIR
        | {
            "max_model_len": 40000,
            "dtype": "float16",
            "enable_chunked_prefill": False,
        },
        {"weights": 7.51, "other": 0.39, "activation": 2.53, "kv": 3.76, "tokens": 3852 * 16},
        f"[issue 11251]({ISSUE}11251)",
        options=("--capacity", "15.77GiB", "--gpus", "2"),
        cause="the difference is 0.04 GiB outside PyTorch, which are not counted",
    ),
    Log(
        "vllm a5000 eager",
        "vllm-0.19.0",
        "2.10.0",
        "rtx3090",
        "RTX A5000, Llama 3.1 8B, eager, 2,048 tokens, 0.9 of the memory",
        "llama-3.1-8b",
        {"enforce_eager": True, "max_model_len": 2048, "gpu_memory_utilization": 0.9},
        {"kv": 5.29, "tokens": 43296},
        HETERO,
        options=("--capacity", "23.68GiB"),
        note=A5000,
        cause="0.18 GiB; the log has no terms. On the A100 below, consumed and activation together are 0.28 GiB apart",
    ),
    Log(
        "vllm a5000 graphs",
        "vllm-0.19.0",
        "2.10.0",
        "rtx3090",
        "RTX A5000, Llama 3.1 8B, 8,192 tokens, 128 requests, 2,048 tokens in a batch, no prefix caching, 0.9 of the"
        " memory",
        "llama-3.1-8b",
        {
            "max_model_len": 8192,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.9,
        },
        {"kv": 5.85, "tokens": 47920},
        HETERO,
        options=("--capacity", "23.68GiB"),
        note=A5000,
        cause="0.19 GiB, as much as in the row before",
    ),
    Log(
        "vllm gpt-oss",
        "vllm-0.19.0",
        "2.10.0",
        "a100-80gb",
        "gpt-oss-20b (mxfp4), 131,072 tokens, 0.65 of the memory",
        "gpt-oss-20b",
        {"served": True, "max_model_len": 131072, "gpu_memory_utilization": 0.65},
        {"weights": 13.72, "kv": 36.56},
        "[a public page](https://myoceane.fr/index.php/ai-vllm-a100-gemma-4)",
    ),
    Log(
        "vllm gemma-4",
        "vllm-0.19.0+gemma4",
        "2.10.0",
        "a100-80gb",
        "Gemma 4 26B A4B, eager, 131,072 tokens, 0.9 of the memory",
        "gemma-4-26b-a4b",
        {"served": True, "enforce_eager": True, "max_model_len": 131072, "gpu_memory_utilization": 0.9},
        {"weights": 48.5, "kv": 21.5},
        "[a public page](https://myoceane.fr/index.php/ai-vllm-a100-gemma-4)",
        note="with transformers 5.5, which the model needs",
    ),
    Log(
        "vllm issue-21348",
        "vllm-0.9.2",
        "2.7.0",
        "h100-80gb",
        "Qwen3 235B A22B (fp8) on 4 GPUs, all defaults",
        "qwen3-235b-a22b-fp8",
        # Graphs are captured after the cache was sized: one instead of 67.
        {
            "served": True,
            "tensor_parallel_size": 4,
            "disable_custom_all_reduce": True,
            "compilation_config": {"cudagraph_capture_sizes": [1]},
        },
        {"kv": 8.11, "tokens": 178880},
        f"[issue 21348]({ISSUE}21348)",
        options=("--gpus", "4"),
        note="the issue does not name a version; without LMCache, which ran with it there; the first request ends"
        " with an error in the dry run",
        cause="the issue has no terms, and the cause of the difference is unknown",
    ),
    Log(
        "vllm pr-12126",
        "vllm-0.7.0",
        "2.5.1",
        "h100-80gb",
        "Llama 3.2 11B Vision, eager, 65,536 tokens, 128 requests, random weights there too",
        "llama-3.2-11b-vision",
        FIRST | {"max_model_len": 65536, "max_num_seqs": 128},
        {"weights": 19.86, "other": 0.16, "activation": 36.63, "kv": 14.65, "tokens": 6001 * 16},
        f"[PR 12126]({PULL}12126)",
        options=("--capacity", "79.22GiB"),
        note="main of 2025-01-16",
        cause="the difference is the 0.16 GiB outside PyTorch, which are not counted",
    ),
    Log(
        "vllm issue-15815",
        "vllm-0.7.1",
        "2.5.1",
        "l40s",
        "Qwen2.5 32B on 2 GPUs, 10,000 tokens, 0.9 of the memory",
        "qwen2.5-32b",
        PAIR | {"max_model_len": 10000},
        {"weights": 30.71, "other": 0.30, "activation": 1.26, "kv": 7.71, "tokens": 3947 * 16},
        f"[issue 15815]({ISSUE}15815)",
        options=("--gpus", "2", "--capacity", "44.42GiB"),
        note=LINES,
    ),
    Log(
        "vllm wsl",
        "vllm-0.27.1",
        "2.13.0",
        "rtx4090",
        "RTX 4090 under WSL (23.99 GiB), Qwen2.5 0.5B, 2,048 tokens, 0.85 of the memory",
        "qwen2.5-0.5b",
        {"served": True, "max_model_len": 2048, "gpu_memory_utilization": 0.85},
        {"weights": 0.93, "consumed": 1.49, "activation": 0.25, "graphs": 0.37, "kv": 18.65, "tokens": 1629520},
        "a public log",
        options=("--capacity", "23.99GiB"),
    ),
    Log(
        "vllm a100",
        "vllm-0.31.0",
        "2.13.0",
        "a100-80gb",
        "Llama 3.1 8B, all defaults",
        "llama-3.1-8b",
        {"served": True},
        {"weights": 15.0, "consumed": 15.26, "activation": 1.44, "graphs": 0.23, "kv": 56.21, "tokens": 460496},
        "a public log",
        note="in detail below",
    ),
]
# Not of the list that was made before any log was run; the page counts them apart.
FOUND_LATER = {
    "vllm rtx2060",
    "vllm issue-13061",
    "vllm issue-15815",
    *(f"vllm h100 {model}" for model, *_ in H100_LOGS),
}
LOGS += [
    Log(
        f"vllm h100 {model}",
        "vllm-0.11.0",
        "2.8.0",
        "h100-80gb",
        f"{name}, 16,000 tokens, blocks of 128, 0.9 of the memory",
        model,
        H100,
        real,
        "a public log",
        options=("--capacity", "79.18GiB"),
        variables={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    for model, name, real in H100_LOGS
]
