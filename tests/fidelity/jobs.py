# SPDX-License-Identifier: MIT OR Apache-2.0
"""The jobs: which published script is run, and where its published figures are.

A job gets a context that runs `tonnage`, and returns figures: what, unit, real, dry. Published scripts are run as they
are; where one has to be changed (a data set that cannot be had, fewer repetitions), the change is in the job or in a
file of drivers/, and `note` says it.
"""

import csv
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import serving
import snapshots

HERE = Path(__file__).parent


@dataclass
class Job:
    name: str
    source: str
    torch: str
    gpu: str
    measure: Callable
    arguments: tuple = ()
    note: str = ""
    # The folder of the environment, where a package brings its own torch.
    environment: str = ""

    def key(self):
        return self.source, self.torch, self.gpu, self.arguments, *([self.environment] if self.environment else [])


def figure(what, unit, real, dry):
    return {"what": what, "unit": unit, "real": real, "dry": dry}


# timm: the batch size at which benchmark.py ended, after it had been reduced on each error.

# The tables do not list with which options they were made. Whether a table was made with --fast-norm was found from its
# rows: on the RTX 4090 and the RTX 3090 models in which a normalization makes the peak (eva02_large_patch14_448,
# mobilenetv5_base, two resnetv2; convnext_small) ran with larger batches than they can without it, and with it with the
# published ones; on the RTX 5090 three of four that differ with it have the published ones without. It is the same for
# all rows of a table.
FAST_NORM = {"rtx4090": ("--fast-norm",), "rtx3090": ("--fast-norm",), "rtx5090": ()}


def smaller(batch):
    """The next batch size that benchmark.py tries."""
    base = int(2 ** (math.log(batch - 1) // math.log(2)))
    step = max(base // 2, 1)
    return base + ((batch - base - 1) // step) * step


def timm(context, model, size, batch, *options):
    tried = [1024]
    while tried[-1] > batch:
        tried.append(smaller(tried[-1]))
    assert tried[-1] == batch, tried
    text = context.run(
        context.source / "benchmark.py",
        *("--model", model, "--img-size", size, "--bench", "inference", "--amp", *options, "-b", tried[-2]),
        *("--num-warm-iter", 2, "--num-bench-iter", 5),
    )
    found = json.loads(re.search(r"--result\n(\{.*?\n\})", text, re.S).group(1))
    assert found.get("infer_img_size") == size, found
    return [figure(f"{model}, {size} px: batch that runs", "batch", batch, found["infer_batch_size"])]


# Snapshots of the script itself, and tables that it prints.


def wedsonlin_snapshot(context, tokens, pattern, autocast):
    (context.folder / "results").mkdir()
    (context.folder / "scripts").mkdir()
    # Quotes inside the f-strings' braces want Python 3.12; with others, 3.11 reads them too.
    text = (context.source / "cs336_systems" / "nsys_profile.py").read_text()
    (context.folder / "scripts" / "nsys_profile.py").write_text(
        text.replace('config["context_length"]', "config['context_length']")
    )
    context.run(
        "nsys_profile.py",
        *("--model_name", "medium", "--d_model", 1024, "--d_ff", 4096, "--num_layers", 24, "--num_heads", 16),
        *("--memory-profiler", "pytorch", "--context_length", tokens, "--pattern", pattern, "--autocast", autocast),
        options=("--address-order", "ascending"),
        cwd=context.folder / "scripts",
        PYTHONPATH=str(context.source / "cs336-basics"),
    )
    kind = "training" if pattern == "full-training-step" else "inference"
    name = f"medium_{tokens}_{kind}_memory_snapshot.pickle"
    return snapshots.compare(
        context.source / "results" / name, context.folder / "results" / name, f"24 layers, {kind}, {tokens} tokens"
    )


def wedsonlin_attention(context, suite):
    context.run(
        *(
            "-m",
            "cs336_systems.attention_benchmark",
            "--suite",
            suite,
            "--warmup",
            2,
            "--iters",
            3,
            "--output",
            "out.jsonl",
        ),
        PYTHONPATH=f"{context.source / 'cs336-basics'}:{context.source}",
    )

    def rows(path):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return {(row["seq_len"], row["d_model"], row["precision"]): row for row in found if row["suite"] == suite}

    real, dry = rows(context.source / "results" / "attention_benchmark.jsonl"), rows(context.folder / "out.jsonl")
    return [
        figure(
            f"{suite}, {key[0]} × {key[1]} {key[2]}: allocated",
            "MiB",
            row["activation_mib"],
            dry[key]["activation_mib"],
        )
        for key, row in real.items()
        if key in dry
    ]


def wedsonlin_sharded(context, mode):
    context.run(
        *(
            "-m",
            "cs336_systems.sharded_optimizer",
            "--mode",
            mode,
            "--warmup-steps",
            1,
            "--steps",
            1,
            "--output",
            context.folder / "out.json",
        ),
        options=("--gpus", "2"),
        seconds=1500,
        PYTHONPATH=f"{context.source / 'cs336-basics'}:{context.source}",
    )
    real, dry = (
        json.loads(path.read_text())["results"][0]["memory"]["per_rank"]
        for path in (context.source / "results" / f"sharded_optimizer_{mode}.json", context.folder / "out.json")
    )
    return [
        figure(f"{mode}, rank {one['rank']}, {phase.replace('_', ' ')}: {name.split('_gib')[0]}", "GiB", values[name],
               other["phases"][phase][name])
        for one, other in zip(real, dry)
        for phase, values in one["phases"].items()
        for name in ("allocated_gib", "phase_peak_gib")
    ]  # fmt: skip


# Many GPUs, of which rank 0 is run: what torchtitan logs after each step is what PyTorch reserved.
FLOAT8 = (
    "--float8.enable_float8_linear",
    "--float8.enable_fsdp_float8_all_gather",
    "--float8.precompute_float8_dynamic_scale_for_fsdp",
)


def torchtitan(context, size, ranks, steps, real, options, segments=""):
    """`real` has the published figures by the step from which on they hold."""
    config = next(context.source.glob(f"**/train_configs/llama3_{size.lower()}.toml"))
    text = context.run(
        *(context.drivers / "torchtitan_run.py", context.source, "--job.config_file", config),
        *("--training.steps", steps, "--metrics.log_freq", 1, "--profiling.profile_freq", 1000),
        # A seed of more than 63 bits, which is drawn otherwise, cannot be read through a mode of torch 2.6.
        *("--training.seed", 1, *options),
        options=("--world-size", str(ranks), "--ranks", "0", "--capacity", "95GiB"),
        seconds=1500,
        PYTORCH_CUDA_ALLOC_CONF=segments,
    )
    logged = {int(step): float(size) for step, size in re.findall(r"step: +(\d+) .*memory: +([\d.]+)GiB", text)}
    assert len(logged) == steps, logged
    what = f"Llama 3.1 {size}, rank 0 of {ranks}{', compiled' if '--training.compile' in options else ''}"
    what += ", Float8" if FLOAT8[0] in options else ""
    return [figure(f"{what}, step {step}: reserved", "GiB", size, logged[step]) for step, size in real.items()]


def torchtitan_context(context, tokens, degree, real):
    """Sequences of so many tokens, each divided among `degree` GPUs."""
    found = torchtitan(
        context,
        *("8B", 8, 3, {3: real}),
        (
            *("--training.seq_len", tokens, "--experimental.context_parallel_degree", degree),
            *("--training.batch_size", 1, "--activation_checkpoint.mode", "full", "--training.compile", *FLOAT8),
        ),
        "expandable_segments:True",
    )
    return [one | {"what": f"{tokens:,} tokens, context parallel {degree}. {one['what']}"} for one in found]


def torchtitan_pipeline(context, schedule, real):
    """The first stage of eight, with the asynchronous tensor parallelism that its configuration asks for."""
    found = torchtitan(
        context,
        *("405B", 512, 2, {2: real}),
        (
            *("--training.batch_size", 32, "--training.data_parallel_shard_degree", 8),
            *("--training.tensor_parallel_degree", 8, "--experimental.pipeline_parallel_degree", 8),
            *("--experimental.pipeline_parallel_schedule", schedule),
        ),
    )
    return [one | {"what": f"{schedule}, FSDP 8, TP 8, PP 8. {one['what']}"} for one in found]


def torchtitan_stages(context, schedule, real):
    """One rank of each of eight pairs of stages: the first infers its shapes from what the last one sends."""
    text = context.run(
        *(context.drivers / "torchtitan_run.py", context.source, "--job.config_file"),
        *(context.source / "train_configs" / "llama3_405b.toml", "--training.steps", 2, "--metrics.log_freq", 1),
        *("--profiling.profile_freq", 1000, "--training.seed", 1, "--training.batch_size", 32),
        *("--training.data_parallel_shard_degree", 8, "--training.tensor_parallel_degree", 8),
        *("--experimental.pipeline_parallel_degree", 8, "--experimental.pipeline_parallel_schedule", schedule),
        options=("--world-size", "512", "--ranks", "0,64,128,192,256,320,384,448", "--capacity", "95GiB"),
        seconds=2400,
        PYTORCH_CUDA_ALLOC_CONF="",
    )
    logged = [float(size) for size in re.findall(r"step: +2 .*memory: +([\d.]+)GiB", text)]
    assert len(logged) == 8, logged
    what = f"{schedule}, FSDP 8, TP 8, PP 8. Llama 3.1 405B, one rank of each stage of 512, step 2: most reserved"
    return [figure(what, "GiB", real, max(logged))]


def torchtitan_later(context, ranks, real):
    """Half a year later, when options had other names. Much less is reserved than the capacity is."""
    found = torchtitan(
        context,
        *("8B", ranks, 3, {3: real}),
        (
            *("--training.local_batch_size", 2, "--training.compile", "--model.converters", "float8"),
            *FLOAT8[1:],
            "--float8.force_recompute_fp8_weight_in_bwd",
        ),
    )
    return [one | {"what": one["what"].replace(", compiled", ", compiled, Float8")} for one in found]


def torchtitan_async(context, real):
    found = torchtitan(
        context,
        *("70B", 256, 3, {3: real}),
        (
            *("--training.batch_size", 16, "--training.compile", *FLOAT8),
            "--experimental.enable_async_tensor_parallel",
        ),
    )
    return [one | {"what": f"Asynchronous tensor parallelism. {one['what']}"} for one in found]


def charan_snapshot(context):
    context.run(
        *(context.source / "cs336_systems" / "benchmark.py", "--mode", "forward"),
        PYTHONPATH=str(context.source / "cs336-basics"),
    )
    return snapshots.compare(
        context.source / "cs336_systems" / "memory_snapshot.pickle",
        context.folder / "memory_snapshot.pickle",
        "12 layers, forward",
    )


def magma27_snapshot(context):
    context.run(
        context.source / "cs336_systems" / "benchmarking_script.py", PYTHONPATH=str(context.source / "cs336-basics")
    )
    return snapshots.compare(
        context.source / "memory_snapshot.pickle",
        context.folder / "memory_snapshot.pickle",
        "12 layers, forward and backward",
    )


def silmont_snapshot(context):
    context.run(context.source / "cs336_systems" / "trace_peak_memory.py")
    found = next(context.folder.glob("*.pickle"))
    return snapshots.compare(context.source / "mem_snapshot.pickle", found, "attention, 4096 tokens")


# Error messages: the request, the memory of PyTorch's blocks, and that of the process.


def whitefox(context, case, tried, allocated, in_use):
    text = context.run(context.drivers / "whitefox_case.py", context.source, case, options=("--stop-at-oom",))
    message = text[text.index("direct:") :]

    def gib(pattern):
        number, unit = re.search(pattern.replace("SIZE", r"([\d.]+) (GiB|MiB|KiB)"), message).groups()
        return round(float(number) / {"GiB": 1, "MiB": 1 << 10, "KiB": 1 << 20}[unit], 2)

    return [
        figure(f"{case}: asked for", "GiB", tried, gib("Tried to allocate SIZE")),
        figure(f"{case}: allocated", "GiB", allocated, gib("Of the allocated memory SIZE is allocated")),
        figure(f"{case}: in use by the process", "GiB", in_use, gib("this process has SIZE memory in use")),
    ]


# Snapshots of a torch.compile'd step, and of a 2.7 B model in one process, one length after the other.


def bcrafton_snapshot(context):
    context.run(context.source / "benchmarking_script.py", PYTHONPATH=str(context.source))
    return snapshots.compare(
        context.source / "memory_snapshot.pickle",
        context.folder / "memory_snapshot.pickle",
        "12 layers, compiled training",
    )


def kkaitlyn_snapshots(context):
    context.run(
        *(context.drivers / "kkaitlyn_lengths.py",),
        seconds=1500,
        PYTHONPATH=f"{context.source}:{context.source.parent / 'kkaitlyn-basics'}",
    )
    found = []
    for way in ("forward", "fullstep"):
        for tokens in (128, 256, 512):
            name = f"memory_ctx{tokens}_{way}"
            real = context.source / "memory_files" / f"{name}_.pickle"
            found += snapshots.compare(real, context.folder / f"{name}.pickle", f"2.7 B, {way}, {tokens} tokens")
    return found


def nothanmin_snapshot(context):
    context.run(context.drivers / "nothanmin_forward.py", context.source, options=("--capacity", "48GiB"), seconds=900)
    name = "memory_snapshot_forward_without_mixed.pickle"
    return snapshots.compare(context.source / name, context.folder / name, "48 layers, forward")


def ptrblck(context):
    text = context.run(context.drivers / "resnet_moved.py")
    found = float(re.search(r"^allocated ([\d.]+)", text, re.M).group(1))
    return [figure("ResNet-18 on the GPU: allocated", "MiB", 44.6904296875, found)]


# The figures that the scripts of S. Raschka print at their end.


def rasbt(context, script, allocated, reserved):
    text = context.run(context.drivers / "rasbt_run.py", context.source, script, seconds=900)
    found = [float(re.search(rf"{name} memory: ([\d.]+) GB", text).group(1)) for name in ("Allocated", "Reserved")]
    figures = [figure(f"{script}: reserved", "GB", reserved, found[1])]
    return [figure(f"{script}: allocated", "GB", allocated, found[0]), *figures] if allocated else figures


def memopt(context, script, reserved):
    text = context.run(context.drivers / "memopt_run.py", context.source, script, seconds=900)
    found = float(re.search(r"Memory used: ([\d.]+) GB", text).group(1))
    return [figure(f"{script}: reserved", "GB", reserved, found)]


# lit-gpt's table of finetuning on an A100 of 40 GB; OOM is 0 there.


def litgpt(context, script, model, batch, tokens, real):
    text = context.run(context.drivers / "litgpt_row.py", context.source, script, model, batch, tokens, seconds=900)
    found = re.search(r"Memory used: ([\d.]+) GB", text)
    what = f"{script}, {model}, batch {batch}"
    assert found or "OutOfMemoryError" in text, "it ended otherwise"
    if not real:
        return [figure(what, "fits", "OOM", "OOM" if "OutOfMemoryError" in text else "fits")]
    return [figure(f"{what}: allocated", "GB", real, float(found.group(1)))]


# peft's comparison of methods: the most that PyTorch reserved, and what was allocated after a step, on average.


def peft(context, experiment, mean, longest):
    comparison, package = "method_comparison/MetaMathQA", context.source.parent / "peft-package"
    text = context.run(
        *(context.drivers / "peft_row.py", package / comparison, experiment, mean, longest),
        seconds=900,
        PYTHONPATH=str(package / "src"),
    )
    found = re.search(r"^RESULT trainable (\d+) allocated (\d+) reserved (\d+)$", text, re.M)
    method, name = experiment.split("/")
    path = context.source / comparison / "results" / f"{method}--{name}.json"
    published = json.loads(path.read_text())["train_info"]
    trainable, allocated, reserved = map(int, found.groups())
    assert trainable == published["num_trainable_params"], (trainable, published["num_trainable_params"])
    what = f"{method}, {name.removeprefix('llama-3.2-3B-')}"
    average = round(published["metrics"][0]["mem allocated avg"])
    return [
        figure(f"{what}: allocated after a step", "bytes", average, allocated),
        figure(f"{what}: most reserved", "bytes", published["accelerator_memory_max"], reserved),
    ]


JOBS = []
with open(HERE / "timm.csv") as file:
    for row in csv.DictReader(file):
        name = f"timm {row['gpu']} {row['model']} {row['img_size']}"
        arguments = (row["model"], int(row["img_size"]), int(row["batch_size"]), *FAST_NORM[row["gpu"]])
        JOBS.append(Job(name, "timm", row["torch"], row["gpu"], timm, arguments))
for tokens, autocast in ((1024, "true"), (512, "true"), (256, "false"), (128, "false")):
    JOBS.append(Job(f"wedsonlin training {tokens}", "wedsonlin", "2.11.0", "a100-80gb", wedsonlin_snapshot,
                    (tokens, "full-training-step", autocast)))  # fmt: skip
for tokens, autocast in ((1024, "false"), (512, "true"), (256, "false"), (128, "false")):
    JOBS.append(Job(f"wedsonlin inference {tokens}", "wedsonlin", "2.11.0", "a100-80gb", wedsonlin_snapshot,
                    (tokens, "forward-only", autocast)))  # fmt: skip
AO = " Options of Float8 are not published; torchao 0.8.0."
TITAN = (
    "The published runs had a nightly build of 2024-12-23. Data and tokenizer are those of drivers/torchtitan_run.py."
    " Settings of the allocator are not published. Tables 1, 3 and 4 are shown as torch has them by default, and table"
    " 2 (tokens) with `expandable_segments:True`, as run_llama_train.sh has it, because so they agree. The other way"
    " they are 1.5 to 6.5 % below: 79.14, 75.37, 75.16 GiB on 8 GPUs, 64.92, 61.06, 60.75 on 128, 67.26 on 256, and"
    " 80.93 and 80.12 for 65,536 and 131,072 tokens."
)
JOBS += [
    Job("wedsonlin attention", "wedsonlin", "2.11.0", "h100-80gb", wedsonlin_attention, ("pytorch_attention",)),
    Job("wedsonlin compiled attention", "wedsonlin", "2.11.0", "h100-80gb", wedsonlin_attention, ("torch_compile",)),
    Job("wedsonlin sharded optimizer", "wedsonlin", "2.11.0", "h100-80gb", wedsonlin_sharded, ("sharded",)),
    Job("wedsonlin baseline optimizer", "wedsonlin", "2.11.0", "h100-80gb", wedsonlin_sharded, ("baseline",)),
    Job("torchtitan 8", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan,
        ("8B", 8, 4, {4: 82.4}, ("--training.batch_size", 2)), TITAN),
    Job("torchtitan 128", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan,
        ("8B", 128, 4, {4: 67.0}, ("--training.batch_size", 2)), TITAN),
    *(
        Job(f"torchtitan {ranks} compiled", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan,
            ("8B", ranks, 4, {4: real}, ("--training.batch_size", 2, "--training.compile")), TITAN)
        for ranks, real in ((8, 77.0), (128, 62.0))
    ),
    *(
        Job(f"torchtitan {ranks} Float8", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan,
            ("8B", ranks, 4, {4: real}, ("--training.batch_size", 2, "--training.compile", *FLOAT8)), TITAN + AO)
        for ranks, real in ((8, 76.8), (128, 61.8))
    ),
    *(
        Job(f"torchtitan {tokens} tokens", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan_context,
            (tokens, degree, real), TITAN + AO)
        for degree, tokens, real in ((1, 32768, 83.9), (2, 65536, 84.2), (4, 131072, 84.0), (8, 262144, 84.5))
    ),
    Job("torchtitan 405B 512", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan_pipeline, ("1F1B", 82.5),
        TITAN + AO),
    Job("torchtitan interleaved 512", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan_stages,
        ("Interleaved1F1B", 72.7), TITAN + AO),
    Job("torchtitan issue 929", "torchtitan-202503", "2.6.0", "h100-80gb", torchtitan,
        ("8B", 8, 4, {1: 40.15, 4: 47.65}, ("--training.compile",), "expandable_segments:True"),
        "Data and tokenizer are those of drivers/torchtitan_run.py."),
    Job("torchtitan 70B 256", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan,
        ("70B", 256, 3, {3: 71.9}, ("--training.batch_size", 16, "--training.compile", *FLOAT8)), TITAN + AO),
    Job("torchtitan 70B 256 asynchronous", "torchtitan-202412", "2.6.0", "h100-80gb", torchtitan_async, (67.6,),
        TITAN + AO),
    *(
        Job(f"torchtitan H200 {ranks}", "torchtitan-202506", "2.8.0", "h200", torchtitan_later, (ranks, real),
            "The published runs had a nightly build before 2.8.0. Data and tokenizer are those of"
            " drivers/torchtitan_run.py; torchao 0.12.0.")
        for ranks, real in ((32, 47.96), (64, 46.97))
    ),
    Job("charan forward", "charan", "2.11.0", "a100-80gb", charan_snapshot),
    Job("magma27 training", "magma27", "2.11.0", "rtx4090", magma27_snapshot),
    Job("bcrafton compiled", "bcrafton", "2.9.1", "rtx4090", bcrafton_snapshot),
    Job("kkaitlyn lengths", "kkaitlyn", "2.6.0", "h100-80gb", kkaitlyn_snapshots),
    Job(
        "nothanmin forward",
        "nothanmin",
        "2.6.0",
        "rtx4090",
        nothanmin_snapshot,
        (),
        "The size of a buffer says that the GPU was an RTX 4090, and what is in use that it had 48 GB.",
    ),
    Job("silmont attention 4096", "silmont", "2.6.0", "rtx4090", silmont_snapshot),
]
BOOK = "Book and tokenizer are replaced by drivers/rasbt_run.py, and one epoch is run, after which the figures are."
for row in (("00_orig.py", 2.5069, 26.2617), ("01_opt_single_gpu.py", None, 22.5078)):
    JOBS.append(Job(f"rasbt {row[0]}", "rasbt", "2.6.0", "a100-40gb", rasbt, row, BOOK))
IMAGES = (
    "Data set and weights are replaced by drivers/memopt_run.py. The published run had a nightly build of torch 2.1."
)
MEMOPT = [
    ("01_pytorch-vit.py", 26.79), ("01-2_pytorch-fabric.py", 26.84), ("02_mixed-precision.py", 18.21),
    ("03_bfloat16.py", 13.82), ("04_lower-batchsize.py", 5.69), ("05_gradient-accum.py", 3.91),
    ("06_sgd-with-scheduler.py", 2.02),
]  # fmt: skip
for row in MEMOPT:
    JOBS.append(Job(f"memopt {row[0]}", "memopt", "2.1.2", "a100-40gb", memopt, row, IMAGES))
JOBS.append(
    Job(
        "ptrblck resnet18",
        "ptrblck",
        "2.1.2",
        "rtx3090",
        ptrblck,
        (),
        "The GPU is not named; blocks do not depend on it.",
    )
)
PHI, STABLE, LLAMA, LLAMA13 = "phi-1_5", "stablelm-base-alpha-3b", "Llama-2-7b-hf", "Llama-2-13b-hf"
LITGPT = [
    ("lora", PHI, 1, 1044, 4.82), ("lora", PHI, 2, 1044, 6.76), ("lora", PHI, 4, 1044, 10.68),
    ("lora", STABLE, 1, 1034, 9.69), ("lora", STABLE, 2, 1034, 12.10), ("lora", STABLE, 4, 1034, 16.92),
    ("lora", LLAMA, 1, 1304, 21.30), ("lora", LLAMA, 2, 1304, 29.07), ("lora", LLAMA, 4, 1304, 0),
    ("lora", LLAMA13, 1, 1304, 38.12), ("lora", LLAMA13, 2, 1304, 0), ("lora", LLAMA13, 4, 1304, 0),
    ("adapter", STABLE, 1, 1034, 9.10), ("adapter", LLAMA, 1, 1304, 19.98),
    ("adapter_v2", STABLE, 1, 1034, 10.71), ("adapter_v2", LLAMA, 1, 1304, 25.51),
]  # fmt: skip
NOTE = (
    "Checkpoint, tokenizer and data are replaced by drivers/litgpt_row.py; the longest sample has the published length."
)
for row in LITGPT:
    JOBS.append(Job(f"litgpt {row[0]} {row[1]} {row[2]}", "litgpt", "2.1.2", "a100-40gb", litgpt, row, NOTE))
MESSAGES = [
    ("cumsum", 5.96, 17.88, 18.17),
    ("attention 93", 13.08, 15.35, 15.62),
    ("attention 128", 128.0, 5.66, 9.46),
    ("tanh", 32.0, 9.0, 9.30),
    ("transposed", 28.37, 6.38, 8.23),
]
for row in MESSAGES:
    JOBS.append(
        Job(f"whitefox {row[0]}", "whitefox", "2.1.2", "rtx3090", whitefox, row, "The program is written anew.")
    )
PEFT = (
    "Weights, tokenizer and data are replaced by drivers/peft_row.py. The lengths of the batches are not published; the"
    " mean and the longest come from the row of LoRA of rank 32, which is not counted. The rows are in an order drawn"
    " by a seed, and the first of them are run."
)
with open(HERE / "peft.csv") as file:
    for row in csv.DictReader(file):
        arguments = (row["experiment"], 225, 682)
        JOBS.append(Job(f"peft {row['experiment']}", "peft", "2.13.0", "l40s", peft, arguments, PEFT))
for log in serving.LOGS:
    arguments = (log.model, log.settings, log.options, log.variables, log.real)
    JOBS.append(Job(log.name, "vllm", log.torch, log.gpu, serving.measure, arguments, log.note, log.environment))
