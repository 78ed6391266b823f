# SPDX-License-Identifier: MIT OR Apache-2.0
"""The rows of docs/compatibility.md: which program is run, with which torch, and how it ends on a GPU.

What a program must print and how it must end follows from its source and from what PyTorch documents, never from what
tonnage says of it. A program makes its own data and weights, because nothing is downloaded.
"""

from dataclasses import dataclass, replace

#: The newest release of torch that tonnage was verified with.
NEWEST = "2.15.0"


@dataclass(frozen=True)
class Row:
    # Unique, and what `--only` selects by.
    name: str
    # Packages as they are named in their registry; the first is what the row is about.
    packages: tuple
    model: str
    setting: str
    # A file of programs/, or arguments of Python.
    program: str
    arguments: tuple = ()
    # How ranks are started: a module of Python and its options, which the program follows.
    launch: tuple = ()
    gpu: str = "rtx4090"
    torch: str = NEWEST
    # Further options of `tonnage run`.
    options: tuple = ()
    # "fits" or "does_not_fit", as it is on that GPU; "failed" where the script itself must fail; "no_device".
    outcome: str = "fits"
    # A pattern that the script's output must match.
    prints: str = r"^done"
    # A pattern that the verdict must match, where there is a sentence that has to be there.
    says: str = ""
    seconds: int = 240
    # Run in CI, with what its environment holds.
    ci: bool = False
    # Why a row that fails does, as it was found out.
    cause: str = ""
    # The folder of the environment, where a package brings its own torch.
    environment: str = ""


HF, T = ("transformers",), ("torch",)
ROWS = [
    Row("gpt_eager", T, "GPT, 124 M", "bf16 autocast, AdamW, batch 8 × 1024", "gpt.py", gpu="a100-40gb", ci=True),
    Row(
        "gpt_scaler",
        T,
        "GPT, 124 M",
        "fp16, GradScaler, 2 accumulated batches",
        "gpt.py",
        ("--scaler", "--accumulate", "2"),
    ),
    Row("gpt_compile", T, "GPT, 124 M", "torch.compile", "gpt.py", ("--compile", "default"), gpu="a100-40gb"),
    Row(
        "gpt_graphs",
        T,
        "GPT, 2 layers",
        "torch.compile, reduce-overhead",
        "gpt.py",
        ("--compile", "reduce-overhead", "--layers", "2"),
        gpu="a100-40gb",
    ),
    Row(
        "gpt_autotune",
        T,
        "GPT, 2 layers",
        "torch.compile, max-autotune",
        "gpt.py",
        ("--compile", "max-autotune", "--layers", "2"),
        gpu="a100-40gb",
    ),
    Row("trainer_tiny", HF, "Llama, 12 M", "Trainer, bf16", "hf_trainer.py", ("--size", "tiny")),
    Row("trainer_1b", HF, "Llama 3.2 1B", "Trainer, bf16, batch 2 × 2048", "hf_trainer.py", gpu="a100-80gb"),
    Row(
        "trainer_1b_checkpointing",
        HF,
        "Llama 3.2 1B",
        "Trainer, gradient checkpointing",
        "hf_trainer.py",
        ("--checkpointing",),
        gpu="a100-80gb",
    ),
    Row(
        "trainer_8b_checkpointing",
        HF,
        "Llama 3.1 8B",
        "Trainer, bf16 weights, checkpointing, batch 1",
        "hf_trainer.py",
        ("--size", "8b", "--checkpointing", "--batch", "1"),
        gpu="h100-80gb",
    ),
    Row(
        "trainer_8b",
        HF,
        "Llama 3.1 8B",
        "Trainer, bf16 weights, batch 4",
        "hf_trainer.py",
        ("--size", "8b", "--batch", "4"),
        gpu="h100-80gb",
        outcome="does_not_fit",
        prints="OutOfMemoryError",
    ),
    Row(
        "generate",
        HF,
        "Llama, 2 layers",
        "generate(): greedy, sampled, 4 beams, 20 tokens",
        "hf_generate.py",
        ci=True,
        prints=r"greedy \(2, 36\)\nsample \(2, 36\)\nbeams \(2, 36\)\ndone",
    ),
    Row(
        "generate_8b",
        HF,
        "Llama 3.1 8B",
        "generate(), batch 4, 1024 + 64 tokens",
        "hf_generate.py",
        ("--big", "--new", "64"),
        prints=r"greedy \(4, 1088\)",
    ),
    Row(
        "generate_end_token",
        HF,
        "GPT-2, 6 layers",
        "generate() with an end token, sampled",
        "hf_generate_eos.py",
        ci=True,
    ),
    Row("masked_lm", HF, "BERT, 4 layers", "boolean mask on the device", "masked_lm.py", ci=True),
    Row("mixtral", HF, "Mixtral, 4 layers", "8 experts, AdamW", "mixtral.py", gpu="h100-80gb"),
    Row("whisper", HF, "Whisper tiny", "generate(), 8 × 30 s, fp16", "hf_whisper.py", gpu="rtx3090", ci=True),
    Row(
        "loss_is_finite",
        T,
        "linear layer",
        "stops if the loss is not finite",
        "loss_is_finite.py",
        gpu="rtx3090",
        ci=True,
    ),
    Row(
        "distributions",
        T,
        "torch.distributions",
        "seven kinds, arguments validated",
        "distributions.py",
        gpu="rtx3090",
        ci=True,
    ),
    Row(
        "ppo",
        T,
        "PPO, Atari network",
        "minibatches by permutation",
        "ppo.py",
        gpu="rtx3090",
        ci=True,
        prints="done, 16 minibatches",
    ),
    Row(
        "lightning",
        ("lightning",),
        "MLP, 21 M",
        "fit, validation, early stopping, checkpoint",
        "lightning_fit.py",
        gpu="rtx3090",
        ci=True,
        prints="done, 2 epochs, 16 steps",
    ),
    Row(
        "accelerate",
        ("accelerate", "transformers"),
        "BERT, 6 layers",
        "bf16, accumulation, gather_for_metrics",
        "accelerate_loop.py",
        gpu="t4",
        ci=True,
        prints="done, 64 rows",
    ),
    Row(
        "find_batch_size",
        ("accelerate",),
        "MLP, 268 M",
        "find_executable_batch_size",
        "find_batch_size.py",
        gpu="a100-40gb",
    ),
    Row("rnn", T, "LSTM and GRU", "packed sequences", "rnn.py", gpu="rtx3090", prints=r"done, \(2048,\)"),
    Row(
        "attention_kinds",
        T,
        "attention",
        "flash, efficient, math, cuDNN",
        "attention_kinds.py",
        gpu="a100-80gb",
        ci=True,
    ),
    Row("cuda_graph", T, "MLP", "CUDA graph of a training step", "cuda_graph.py", gpu="rtx3090", ci=True),
    Row("triton", ("triton", "torch"), "vector addition", "autotuned kernel", "triton_kernel.py", gpu="rtx3090"),
    Row(
        "data_loader",
        T,
        "EmbeddingBag",
        "2 workers, pinned memory, ragged batches",
        "data_loader.py",
        gpu="rtx3090",
        ci=True,
        prints="done, 96 rows",
    ),
    Row(
        "leak",
        T,
        "MLP",
        "outputs kept with their graphs",
        "leak.py",
        gpu="rtx3090",
        outcome="does_not_fit",
        prints="OutOfMemoryError",
    ),
    Row(
        "device_info",
        T,
        "none",
        "properties, mem_get_info, NVML",
        "device_info.py",
        gpu="a100-80gb",
        prints="^NVIDIA A100-SXM4-80GB 8 0 108",
    ),
    Row("cpu_offload", T, "MLP, 134 M", "save_on_cpu, model.cpu() and back", "cpu_offload.py", gpu="rtx3090", ci=True),
    Row("flex_attention", T, "attention", "flex_attention, compiled block mask", "flex_attention.py", gpu="a100-80gb"),
    Row(
        "read_values",
        T,
        "none",
        "item, log, assert, split, unique",
        "read_values.py",
        gpu="rtx3090",
        ci=True,
        prints="True True\ndone",
    ),
    Row(
        "operators",
        T,
        "80 operators",
        "linalg, fft, conv, sparse, sampling, …",
        "operators.py",
        gpu="a100-80gb",
        prints="done, 81 of 81",
    ),
    Row("resume", T, "Transformer encoder", "saved, loaded, plateau schedule", "checkpoint_resume.py", gpu="rtx3090"),
    Row(
        "host_memory",
        T,
        "linear layers, 1.6 B",
        "made on the host, cast, saved, loaded",
        "host_memory.py",
        gpu="rtx3090",
    ),
    Row("killed", T, "none", "ended by SIGKILL", "killed.py", gpu="rtx3090", outcome="failed", prints="^one GiB"),
    Row("fsdp_one", T, "Transformer encoder", "FSDP2 in one process", "fsdp_one.py", gpu="a100-40gb"),
    Row("lora_8b", ("peft", "transformers"), "Llama 3.1 8B", "LoRA, checkpointing, 2048 tokens", "peft_lora.py"),
    Row(
        "sft",
        ("trl", "peft"),
        "Llama, 100 M",
        "SFTTrainer with LoRA",
        "trl_sft.py",
        gpu="a100-40gb",
        prints="done, 3 steps",
    ),
    Row("adam8", ("bitsandbytes",), "linear layers", "Adam8bit", "bnb_adam8.py", gpu="a100-80gb"),
    Row(
        "paged",
        ("bitsandbytes",),
        "linear layers",
        "PagedAdamW32bit, managed memory",
        "bnb_adam8.py",
        ("--optimizer", "PagedAdamW32bit"),
        gpu="rtx3090",
    ),
    Row("qlora", ("bitsandbytes", "peft", "transformers"), "Llama, 170 M", "nf4 and LoRA", "qlora.py", gpu="rtx3090"),
    Row(
        "ao_int8",
        ("torchao",),
        "linear layers",
        "int8 weights",
        "torchao_quantize.py",
        ("int8",),
        gpu="a100-40gb",
        prints="done, 128 MiB",
    ),
    Row(
        "ao_float8",
        ("torchao",),
        "linear layers",
        "float8 weights",
        "torchao_quantize.py",
        ("float8",),
        gpu="h100-80gb",
        prints="done, 128 MiB",
    ),
    # Wants a package that is not in the registry for this torch, and reports it, with a GPU too.
    Row(
        "ao_int4",
        ("torchao",),
        "linear layers",
        "int4 weights without mslk: an ImportError",
        "torchao_quantize.py",
        ("int4",),
        gpu="h100-80gb",
        outcome="failed",
        prints="Requires mslk",
    ),
    Row("ao_adam8", ("torchao",), "linear layers", "AdamW8bit", "torchao_quantize.py", ("adam8",), gpu="a100-40gb"),
    Row("sd_unet", ("diffusers",), "U-Net of SD 1.5", "training, fp16, checkpointing", "diffusers_unet.py"),
    Row(
        "sd_pipeline",
        ("diffusers", "transformers"),
        "Stable Diffusion 1.5",
        "10 steps of 512 × 512, fp16",
        "diffusers_pipeline.py",
        gpu="rtx3060",
        prints=r"done, \(512, 512\)",
    ),
    Row(
        "sd_offload",
        ("diffusers", "accelerate"),
        "Stable Diffusion 1.5",
        "enable_model_cpu_offload",
        "diffusers_pipeline.py",
        ("--offload",),
        gpu="rtx3060",
        prints=r"done, \(512, 512\)",
    ),
    Row(
        "sdxl",
        ("diffusers",),
        "SDXL",
        "2 passes of 1024 × 1024, decoder",
        "diffusers_sdxl.py",
        prints=r"done, \(1, 3, 1024, 1024\)",
    ),
    Row(
        "flux",
        ("diffusers",),
        "Flux, 12 B",
        "1 pass of 1024 × 1024, bf16",
        "diffusers_flux.py",
        prints=r"done, \(1, 4096, 64\)",
    ),
    Row("vit", ("timm",), "ViT-B/16", "mixup, AdamW, average of weights", "timm_train.py", gpu="a100-40gb"),
    Row(
        "convnext",
        ("timm",),
        "ConvNeXt-T",
        "mixup, AdamW, average of weights",
        "timm_train.py",
        ("--model", "convnext_tiny"),
        gpu="a100-40gb",
    ),
    Row(
        "resnet",
        ("torchvision",),
        "ResNet-50",
        "channels last, fp16, batch 256",
        "torchvision_resnet.py",
        gpu="rtx3090",
    ),
    Row(
        "resnet_benchmark",
        ("torchvision",),
        "ResNet-50",
        "the same, cudnn.benchmark",
        "torchvision_resnet.py",
        ("--benchmark",),
        gpu="rtx3090",
    ),
    Row(
        "faster_rcnn",
        ("torchvision",),
        "Faster R-CNN",
        "training and inference",
        "torchvision_detection.py",
        gpu="rtx3090",
    ),
    Row("yolo", ("ultralytics",), "YOLOv8s", "an epoch with validation", "yolo_train.py", gpu="rtx3090"),
    Row("openai_whisper", ("openai-whisper",), "Whisper base", "transcribe()", "openai_whisper.py", gpu="rtx3060"),
    Row("gcn", ("torch-geometric",), "GCN", "1 M edges, self loops", "geometric_gcn.py", gpu="rtx3090"),
    Row(
        "sentences",
        ("sentence-transformers",),
        "BERT, 6 layers",
        "encode(), training",
        "sentence_embeddings.py",
        gpu="t4",
    ),
    Row(
        "liger",
        ("liger-kernel", "transformers"),
        "Llama, 0.5 B",
        "fused layers, Triton",
        "liger_llama.py",
        gpu="a100-80gb",
    ),
    Row(
        "device_map",
        ("accelerate", "transformers"),
        "Llama, 220 M",
        "device_map auto, shards",
        "accelerate_big.py",
        ("auto",),
        gpu="rtx3090",
    ),
    Row(
        "device_map_limit",
        ("accelerate", "transformers"),
        "Llama, 220 M",
        "device_map, 300 MiB on the GPU",
        "accelerate_big.py",
        ("limit",),
        gpu="rtx3090",
    ),
    Row(
        "weights_offload",
        ("accelerate", "transformers"),
        "Llama, 220 M",
        "cpu_offload",
        "accelerate_big.py",
        ("offload",),
        gpu="rtx3090",
    ),
    Row(
        "cupy",
        ("cupy-cuda13x",),
        "none",
        "an array of 1 GiB",
        "cupy_beside.py",
        gpu="rtx3090",
        cause="CuPy brings a CUDA runtime of its own, which a dry run does not cover; the verdict states it",
    ),
    Row(
        "x_transformers",
        ("x-transformers", "vector-quantize-pytorch"),
        "decoder, 6 layers",
        "training, generate, codes",
        "x_transformer.py",
        gpu="rtx3090",
    ),
    Row("gpytorch", ("gpytorch",), "exact GP", "marginal likelihood", "gaussian_process.py", gpu="rtx3090"),
    Row(
        "ode",
        ("torchdiffeq",),
        "neural ODE",
        "dopri5, adjoint",
        "ode.py",
        gpu="rtx3090",
        cause="the size of a step follows an estimate of the error that is not computed, and shrinks to nothing",
    ),
    Row("sb3", ("stable-baselines3",), "PPO", "MlpPolicy", "sb3_ppo.py", gpu="rtx3090", prints="done, 256 steps"),
    Row("monai", ("monai",), "3D U-Net", "Dice loss, sliding windows", "monai_segment.py", gpu="rtx3090"),
    Row("open_clip", ("open_clip_torch",), "CLIP ViT-B/32", "contrastive loss", "clip_train.py", gpu="rtx3090"),
    Row(
        "kornia",
        ("kornia",),
        "none",
        "augmentations, Canny",
        "kornia_augment.py",
        gpu="rtx3090",
        cause="Canny's edges are followed until nothing changes, by values that are not computed, so the loop does not "
        "end; `--stop-after` ends it",
    ),
    Row(
        "smp", ("segmentation-models-pytorch",), "U-Net, ResNet-34", "Dice loss, IoU", "segmentation.py", gpu="rtx3090"
    ),
    # xformers for torch 2.15 is not in the registry; that for another torch finds no operator, with a GPU too.
    Row(
        "xformers",
        ("xformers",),
        "attention",
        "block-diagonal mask",
        "xformers_attention.py",
        gpu="a100-40gb",
        torch="2.9.1",
    ),
]
# Programs on several GPUs, or as one rank of many. Every rank that runs prints that it is done.
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes")


def on_ranks(name, packages, model, setting, program, *arguments, ranks=2, of=None, launch=TORCHRUN, **more):
    """A row of so many live ranks, or of rank 0 of a job of `of`."""
    which, size, options = (range(ranks), ranks, ("--gpus", str(ranks)))
    if of:
        which, size, options = (range(1), of, ("--world-size", str(of), "--ranks", "0"))
    prints = "".join(rf"(?=[\s\S]*^done, rank {rank} of {size}\b)" for rank in which)
    # The verdict names the rank of each.
    says = rf'"rank": "{which[-1]}"'
    launch = (*launch, str(ranks)) if launch else ()
    row = Row(name, packages, model, setting, program, arguments, launch, "h100-80gb", NEWEST, options)
    return replace(row, prints=prints, says=says, seconds=600, **more)


SMALL, TRAIN, ZERO, DEEPSPEED = "transformer, 17 M", "ranks_train.py", "deepspeed_zero.py", ("deepspeed",)
OWN, MEGATRON = ("ddp", "--start"), (("megatron-core",), "GPT, 17 M")
ROWS += [
    on_ranks("objects", T, "none", "2 ranks: objects, operators, messages", "ranks_objects.py", ci=True),
    on_ranks("objects_3", T, "none", "3 ranks: objects, operators, messages", "ranks_objects.py", ranks=3),
    on_ranks("objects_8", T, "none", "8 ranks: objects, operators, messages", "ranks_objects.py", ranks=8),
    on_ranks("ddp", T, SMALL, "DDP on 2 GPUs, torchrun", TRAIN, "ddp"),
    on_ranks("ddp_spawn", T, SMALL, "DDP on 2 GPUs, mp.spawn", TRAIN, *OWN, "spawn", launch=(), ci=True),
    on_ranks("ddp_fork", T, SMALL, "DDP on 2 GPUs, forked ranks", TRAIN, *OWN, "fork", launch=(), ci=True),
    on_ranks("fsdp1", T, SMALL, "FSDP1 on 2 GPUs, bf16", TRAIN, "fsdp1"),
    on_ranks("fsdp2", T, SMALL, "FSDP2 on 2 GPUs, bf16", TRAIN, "fsdp2"),
    on_ranks("fsdp2_of_128", T, SMALL, "FSDP2, rank 0 of 128", TRAIN, "fsdp2", ranks=8, of=128),
    on_ranks("fsdp2_checkpoint", T, SMALL, "FSDP2 on 2 GPUs, DCP save and load", TRAIN, "checkpoint", ci=True),
    on_ranks("hsdp", T, SMALL, "HSDP on 2 × 2 GPUs", TRAIN, "hsdp", ranks=4),
    on_ranks("tp", T, SMALL, "tensor parallel on 2 GPUs", TRAIN, "tp"),
    on_ranks("tp_fsdp", T, SMALL, "tensor parallel × FSDP2 on 2 × 2 GPUs", TRAIN, "tp_fsdp", ranks=4),
    on_ranks("tp_fsdp_of_128", T, SMALL, "tensor parallel × FSDP2, rank 0 of 128", TRAIN, "tp_fsdp", ranks=8, of=128),
    on_ranks("pipeline", T, SMALL, "1F1B on 2 GPUs, shapes inferred", TRAIN, "pipeline", ci=True),
    on_ranks("context_parallel", T, SMALL, "context parallel on 2 GPUs", TRAIN, "context"),
    on_ranks("experts", T, "router and experts", "expert parallel on 2 GPUs, all_to_all", TRAIN, "experts", ci=True),
    on_ranks(
        "accelerate_ranks",
        ("accelerate",),
        "MLP",
        "accelerate launch on 2 GPUs, gather_for_metrics",
        "accelerate_ranks.py",
        launch=ACCELERATE,
        ci=True,
    ),
    on_ranks("trainer_ddp", HF, "Llama, 17 M", "Trainer on 2 GPUs, evaluation", "hf_ranks.py", "ddp"),
    on_ranks("trainer_fsdp", HF, "Llama, 17 M", "Trainer on 2 GPUs, FSDP, evaluation", "hf_ranks.py", "fsdp", ci=True),
    on_ranks("trainer_zero3", DEEPSPEED + HF, "Llama, 17 M", "Trainer on 2 GPUs, ZeRO-3", "hf_ranks.py", "zero3"),
    on_ranks("zero1", DEEPSPEED, SMALL, "ZeRO-1 on 2 GPUs, checkpoint", ZERO, "--stage", "1"),
    on_ranks("zero2", DEEPSPEED, SMALL, "ZeRO-2 on 2 GPUs, checkpoint", ZERO, "--stage", "2"),
    on_ranks("zero3", DEEPSPEED, SMALL, "ZeRO-3 on 2 GPUs, checkpoint", ZERO, "--stage", "3"),
    on_ranks("zero2_offload", DEEPSPEED, SMALL, "ZeRO-2, optimizer on the CPU", ZERO, "--stage", "2", "--offload"),
    on_ranks("zero3_offload", DEEPSPEED, SMALL, "ZeRO-3, all on the CPU", ZERO, "--stage", "3", "--offload"),
    on_ranks("megatron_tp", *MEGATRON, "tensor parallel on 2 GPUs", "megatron_gpt.py", "--tp", "2"),
    on_ranks("megatron_pp", *MEGATRON, "1F1B on 2 GPUs", "megatron_gpt.py", "--pp", "2"),
    on_ranks(
        "megatron_of_64",
        *MEGATRON,
        "tensor parallel 4 × data parallel 16, rank 0",
        "megatron_gpt.py",
        *("--tp", "4"),
        ranks=8,
        of=64,
    ),
]
VLLM = {"program": "vllm_llama.py", "gpu": "h100-80gb", "torch": "2.13.0", "environment": "vllm-0.32.0"}
VLLM["seconds"] = 3000
NEWER_VLLM = VLLM | {"torch": "2.14.0", "environment": "vllm-0.33.0"}
# vLLM's processes write between the lines of the program.
SERVED = r"(?s)^5 tokens in, 8 out: length\n.*^100 tokens in, 8 out: length\n.*^done"
SERVED_ONE = r"(?s)^5 tokens in, 4 out\n.*^server ended with 0\n.*^done"
LLAMA_8B = "Llama 3 8B"
ROWS += [
    Row(f"{version}_{name}", ("vllm",), model, setting, arguments=arguments, prints=prints, options=options, **vllm)
    for version, vllm in (("vllm", VLLM), ("vllm_0_33", NEWER_VLLM))
    for name, model, setting, arguments, prints, options in (
        ("eager", LLAMA_8B, "generate(), without graphs", ("--eager",), SERVED, ()),
        ("graphs", LLAMA_8B, "generate(), torch.compile, CUDA graphs", (), SERVED, ()),
        (
            "serve",
            "Llama, 4 layers",
            "`vllm serve`, one completion, SIGTERM",
            ("--serve", "--eager", "--layers", "4"),
            SERVED_ONE,
            (),
        ),
        (
            "tensor_parallel",
            LLAMA_8B,
            "tensor parallel on 2 GPUs, without graphs",
            ("--tensor-parallel", "2", "--eager"),
            SERVED,
            ("--gpus", "2"),
        ),
    )
]
FORM = {"program": "vllm_forms.py"}
PREFIX = r"(?s)^0 of 100 tokens were there, 8 out\n.*^96 of 100 tokens were there, 8 out\n.*^done"
ROWS += [
    Row(f"vllm_{form}", ("vllm",), model, setting, arguments=(form,), prints=prints, **(vllm | FORM))
    for form, vllm, model, setting, prints in (
        ("lora", NEWER_VLLM, LLAMA_8B, "an adapter of rank 16 (`enable_lora`)", SERVED),
        ("fp8", VLLM, LLAMA_8B, "weights quantised to fp8 when loaded", SERVED),
        ("kv_fp8", VLLM, LLAMA_8B, "KV cache in fp8", SERVED),
        ("awq", VLLM, LLAMA_8B, "weights of AWQ, 4 bits", SERVED),
        ("gptq", VLLM, LLAMA_8B, "weights of GPTQ, 4 bits", SERVED),
        ("prefix", VLLM, LLAMA_8B, "prefix caching, the same prompt twice", PREFIX),
        ("ngram", VLLM, LLAMA_8B, "speculative decoding (ngram)", SERVED),
        ("image", NEWER_VLLM, "LLaVA, Llama 3 8B and CLIP L/14", "prompts of text alone", SERVED),
    )
]
ROWS.append(
    Row(
        "vllm_tensor_parallel_8",
        ("vllm",),
        LLAMA_8B,
        "tensor parallel on 8 GPUs, without graphs",
        arguments=("--tensor-parallel", "8", "--eager"),
        options=("--gpus", "8"),
        prints=SERVED,
        **NEWER_VLLM,
    )
)
SERVING = {"program": "transformers_serve.py", "environment": "transformers-5.23.0"}
ROWS += [
    Row(
        f"transformers_serve{name}",
        HF,
        "Llama, 8 layers",
        f"`transformers serve`{setting}, one completion, SIGTERM",
        arguments=arguments,
        prints=r"(?s)^answered: length\n.*^server ended\n.*^done",
        **SERVING,
    )
    for name, setting, arguments in (("", "", ()), ("_batching", " with continuous batching", ("--batching",)))
]
SGLANG = {"program": "sglang_llama.py", "torch": "2.14.1", "environment": "sglang-0.5.23", "seconds": 3000}
ROWS += [
    Row("sglang", ("sglang",), LLAMA_8B, "Engine, CUDA graphs, A100", gpu="a100-80gb", prints=SERVED, **SGLANG),
    Row("sglang_h100", ("sglang",), LLAMA_8B, "Engine, CUDA graphs, H100", gpu="h100-80gb", prints=SERVED, **SGLANG),
    Row(
        "sglang_serve",
        ("sglang",),
        "Llama, 4 layers",
        "`sglang.launch_server`, one request, SIGTERM",
        arguments=("--serve", "--layers", "4"),
        gpu="a100-80gb",
        prints=r"(?s)^5 tokens in, 8 out\n.*^server ended\n.*^done",
        **SGLANG,
    ),
]
# Programs of torch and transformers alone, with other torches.
OTHER = [
    ("2.1.2", ("gpt_eager", "gpt_compile", "resnet", "generate", "loss_is_finite", "ppo", "rnn", "leak")),
    (
        "2.6.0",
        ("gpt_eager", "gpt_compile", "generate", "distributions", "data_loader", "rnn", "leak", "attention_kinds"),
    ),
    ("2.9.1", ("gpt_eager", "gpt_compile", "lora_8b", "generate", "resnet", "read_values")),
    ("2.11.0", ("gpt_eager", "gpt_compile", "accelerate", "masked_lm", "rnn", "distributions")),
    ("2.13.0", ("gpt_eager", "gpt_compile", "lora_8b", "generate", "masked_lm", "rnn", "distributions")),
]
for torch, names in OTHER:
    by_name = {row.name: row for row in ROWS if row.torch == NEWEST}
    for name in names:
        ROWS.append(replace(by_name[name], name=f"{name}_{torch}", torch=torch, ci=False))
