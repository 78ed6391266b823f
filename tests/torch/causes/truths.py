# SPDX-License-Identifier: MIT OR Apache-2.0
"""The truths of the frozen programs: a table, written from source and shapes and never from a finding.

Shares no code with tonnage. `held` and `saving` are bytes, with the arithmetic as it follows from the shapes.
"""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MIB = 1 << 20
F16, F32, I64 = 2, 4, 8

# Statements that are false of every program here.
EVERYWHERE = (r"fragmented",)
# Every forward pass of the healthy programs needs its graph, or already runs without one.
TRAINS = (r"no_grad|inference_mode", r"\.item\(\)", r"retain_graph", r"zero_grad")


@dataclass(frozen=True)
class Truth:
    """The facts of a program."""

    name: str
    # The GPU, and how much of it there is: words of `tonnage run`.
    options: tuple[str, ...]
    # Whether it then runs to its end.
    fits: bool
    # Why, in words, with what the peak consists of.
    why: str
    # The kind of problem, in plain words; empty for a healthy program.
    kind: str = ""
    # Names that hold the memory, one of which the first finding has to name if it does not name a marked line. Of a
    # healthy program: variables that truly hold a value of the last iteration while the next is computed.
    holders: tuple[str, ...] = ()
    # Bytes that the problem holds at the peak.
    held: int = 0
    # Other sizes that are right to state, because the same holder also holds what the step still uses.
    also: tuple[int, ...] = ()
    # How much lower the peak is with FIXED=1.
    saving: int = 0
    # The peak of `torch.cuda.max_memory_...` that the saving is of.
    measure: str = "allocated"
    # Patterns of statements that would be false or harmful.
    false: tuple[str, ...] = ()

    @property
    def planted(self) -> bool:
        return bool(self.kind)

    @property
    def path(self) -> Path:
        return HERE / ("planted" if self.planted else "healthy") / f"{self.name}.py"

    @property
    def marked(self) -> tuple[int, ...]:
        lines = self.path.read_text().splitlines()
        return tuple(number for number, line in enumerate(lines, 1) if line.endswith("# <- here"))


def gpu(name: str, capacity: str | None = None) -> tuple[str, ...]:
    return ("--gpu", name) if capacity is None else ("--gpu", name, "--capacity", capacity)


def linear(inside: int, outside: int, bias: bool = True) -> int:
    return inside * outside + (outside if bias else 0)


# Parameters and the tied head of GPT-2: the state dictionary contains the head a second time.
GPT2 = 32000 * 768 + 512 * 768 + 4 * (12 * 768**2 + 13 * 768) + 2 * 768
GPT2_STATE = F32 * (GPT2 + 32000 * 768)
# A layer of nn.TransformerEncoder of width 1024 with a feed-forward network of 4096.
ENCODER_LAYER = linear(1024, 3 * 1024) + linear(1024, 1024) + linear(1024, 4096) + linear(4096, 1024) + 2 * 2 * 1024


def trial(width: int) -> int:
    """Bytes of weights, gradients and two states of Adam."""
    return 4 * F32 * (linear(1024, width) + linear(width, width) + linear(width, 1000))


PLANTED = (
    Truth(
        "p01_validation_history",
        gpu("rtx3060", "2.54GiB"),
        False,
        "Each validation loss keeps the graph of its batch: images and two outputs of ReLU in place.",
        "list of losses with their graph",
        ("history", "val_loss"),
        held=4 * 64 * 128 * 128 * (3 + 64 + 64) * F32,
        also=(5 * 64 * 128 * 128 * (3 + 64 + 64) * F32,),
        saving=4 * 64 * 128 * 128 * (3 + 64 + 64) * F32,
        false=(r"retain_graph", r"call zero_grad"),
    ),
    Truth(
        "p02_deferred_metrics",
        gpu("rtx4090"),
        True,
        "Each report remembers the output and the target of its step. Five earlier steps; the step's own are in use.",
        "closure",
        ("pending", "report", "prediction", "target"),
        held=5 * 2 * 32 * 3 * 1024 * 1024 * F32,
        also=(6 * 2 * 32 * 3 * 1024 * 1024 * F32,),
        saving=5 * 2 * 32 * 3 * 1024 * 1024 * F32,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p03_layer_outputs",
        gpu("rtx3070"),
        True,
        "The hook keeps the output of the last layer in each step. Only the newest is read; five earlier ones are not.",
        "hook",
        ("captured", "capture"),
        held=5 * 64 * 512 * 1024 * F32,
        also=(6 * 64 * 512 * 1024 * F32,),
        saving=5 * 64 * 512 * 1024 * F32,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p04_length_bias",
        gpu("t4"),
        True,
        "lru_cache keeps one bias per length, 16 heads × length². The sum saves no operand: at the peak, in the "
        "backward pass of the longest, even the last bias is not needed any more.",
        "cache",
        ("distance_bias", "lru_cache", "cache"),
        held=16 * F32 * sum(n * n for n in (1024, 1280, 1536, 1792, 2048)),
        also=(16 * F32 * sum(n * n for n in (1024, 1280, 1536, 1792)),),
        saving=16 * F32 * sum(n * n for n in (1024, 1280, 1536, 1792, 2048)),
        false=(r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p05_attention_maps",
        gpu("rtx2080ti"),
        True,
        "self.maps keeps the attention of each step: 8 × 8 heads × 1024². Five earlier ones; only the newest is read.",
        "attribute",
        ("maps",),
        held=5 * 8 * 8 * 1024 * 1024 * F32,
        also=(6 * 8 * 8 * 1024 * 1024 * F32,),
        saving=5 * 8 * 8 * 1024 * 1024 * F32,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p06_search_tree",
        gpu("rtx3060", "3.4GiB"),
        False,
        "A parent lists its children and a child names its parent: four earlier trees of five states are in cycles, "
        "and gc is disabled.",
        "reference cycle",
        ("Node", "parent", "children", "state", "cycle"),
        held=4 * 5 * 4096 * 8192 * F32,
        saving=4 * 5 * 4096 * 8192 * F32,
        false=(r"no_grad", r"inference_mode", r"\.detach\(\)"),
    ),
    Truth(
        "p07_recorder_thread",
        gpu("rtx3090"),
        True,
        "A local list of a thread keeps the outputs of all earlier steps: 64 waves of 2^20 samples.",
        "thread",
        ("backlog",),
        held=5 * 64 * 2**20 * F32,
        saving=5 * 64 * 2**20 * F32,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p08_frame_windows",
        gpu("rtx3070"),
        True,
        "A local list of a generator keeps all nine frames; only the last four can still be part of a window.",
        "generator",
        ("frames", "windows"),
        held=5 * 16 * 3 * 1024 * 1024 * F32,
        also=(9 * 16 * 3 * 1024 * 1024 * F32,),
        saving=5 * 16 * 3 * 1024 * 1024 * F32,
        false=(r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p09_bad_batches",
        gpu("rtx3060"),
        True,
        "Three exceptions are kept. The traceback of each keeps the frame of its step: input, target of width 512, two "
        "hidden tensors and the output.",
        "exception",
        ("failures", "error", "outputs", "inputs"),
        held=3 * 16384 * (1024 + 512 + 4096 + 4096 + 1024) * F32,
        saving=3 * 16384 * (1024 + 512 + 4096 + 4096 + 1024) * F32,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p10_gradient_norms",
        gpu("t4"),
        True,
        "Each norm has the graph of the gradients: input, output, target, gradient of the output (8192 × 1024 each), "
        "the ReLU's (8192 × 4096), two gradients of weights. Four earlier steps are kept. The peak lies in "
        "loss.backward, where the step's own gradients of output and weights are kept too (64 MiB); the fixed one in "
        "autograd.grad, where .grad still holds those of the last step (32 MiB).",
        "double backward",
        ("norms", "grads"),
        held=4 * F32 * (4 * 8192 * 1024 + 8192 * 4096 + 2 * 1024 * 4096),
        also=(
            5 * F32 * (4 * 8192 * 1024 + 8192 * 4096 + 2 * 1024 * 4096),
            4 * F32 * (4 * 8192 * 1024 + 8192 * 4096 + 2 * 1024 * 4096) + F32 * 8192 * 1024,
            4 * F32 * (4 * 8192 * 1024 + 8192 * 4096 + 2 * 1024 * 4096) + 2 * F32 * 8192 * 1024,
        ),
        saving=4 * F32 * (4 * 8192 * 1024 + 8192 * 4096 + 2 * 1024 * 4096) + F32 * 8192 * 1024,
        false=(r"no_grad",),
    ),
    Truth(
        "p11_squared_relu",
        gpu("t4"),
        True,
        "What a Function stores as an attribute of ctx lives as long as its node. The list of losses keeps the nodes: "
        "the inputs of five earlier steps.",
        "custom autograd.Function",
        ("losses", "ctx.x", "SquaredReLU", "loss"),
        held=5 * 16384 * 4096 * F32,
        also=(6 * 16384 * 4096 * F32,),
        saving=5 * 16384 * 4096 * F32,
        false=(r"no_grad",),
    ),
    Truth(
        "p12_nearest_centers",
        gpu("rtx4080"),
        False,
        "The difference of all pairs has 32768 × 1024 × 64 floats, its square has as many. By the product of matrices, "
        "three matrices of 32768 × 1024 are alive at once.",
        "large temporary",
        ("squared_distances",),
        held=2 * 32768 * 1024 * 64 * F32,
        also=(32768 * 1024 * 64 * F32,),
        saving=(2 * 64 - 3) * 32768 * 1024 * F32,
        false=(r"\bleak", r"no_grad", r"from earlier steps"),
    ),
    Truth(
        "p13_dice_score",
        gpu("rtx3060", "3.45GiB"),
        False,
        "Two one-hot tensors of 16 × 512 × 512 × 32 integers of 64 bits, and their product. Then there are also logits "
        "(32 floats a pixel), images (3), labels and predictions (2 each), and 16 MiB of the reduction. The fixed peak "
        "is in the network: images, labels, 16 channels and 32 channels.",
        "large temporary",
        ("p", "t", "one_hot", "dice"),
        held=3 * 16 * 512 * 512 * 32 * I64,
        also=(2 * 16 * 512 * 512 * 32 * I64, 16 * 512 * 512 * 32 * I64),
        saving=16 * 512 * 512 * ((3 * 32 * I64 + (32 + 3 + 2 + 2) * F32) - (3 + 2 + 16 + 32) * F32) + 16 * MIB,
        false=(r"\bleak", r"no_grad", r"from earlier steps"),
    ),
    Truth(
        "p14_perplexity",
        gpu("rtx3070"),
        False,
        "Logits in 16 bits, a copy in 32 bits and log_softmax in 32 bits: 10 bytes for each of 8 × 2048 × 50304. By "
        "sequences it is an eighth.",
        "large temporary",
        ("logits", "total_loss"),
        held=(F16 + F32 + F32) * 8 * 2048 * 50304,
        also=((F32 + F32) * 8 * 2048 * 50304, F32 * 8 * 2048 * 50304, (F16 + F32) * 8 * 2048 * 50304),
        saving=(F16 + F32 + F32) * 7 * 2048 * 50304,
        false=(r"\bleak", r"no_grad", r"from earlier steps"),
    ),
    Truth(
        "p15_causal_mask",
        gpu("rtx3070"),
        True,
        "A mask of 8 × 16 heads × 2048² in 16 bits, alive through forward and backward pass; is_causal needs none.",
        "large temporary",
        ("mask", "causal_mask"),
        held=8 * 16 * 2048 * 2048 * F16,
        saving=8 * 16 * 2048 * 2048 * F16,
        false=(r"\bleak", r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p16_feature_bank",
        gpu("rtx3070"),
        True,
        "Old and new bank are alive at once: five and six parts of 131072 × 512. With a bank made once, the peak lies "
        "in the encoder: six parts, input (64 wide), the output of Linear and that of LayerNorm.",
        "growth by cat",
        ("bank", "build"),
        held=5 * 131072 * 512 * F32,
        also=(6 * 131072 * 512 * F32, 11 * 131072 * 512 * F32),
        saving=((5 + 6 + 1) - (6 + 2)) * 131072 * 512 * F32 - 131072 * 64 * F32 - MIB,
        false=(r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p17_epoch_snapshots",
        gpu("rtx3070"),
        False,
        "Four state dictionaries on the GPU in the fifth epoch, each with the tied head a second time. The job needs "
        "more than 8 GiB and fails in an earlier epoch; the table had said that it fits.",
        "kept checkpoints",
        ("snapshots", "snapshot"),
        held=4 * GPT2_STATE,
        saving=4 * GPT2_STATE,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p18_optional_ema",
        gpu("t4"),
        True,
        "A copy of the weights that is never updated and never read, because use_ema is False: 16 layers.",
        "unused copy of the weights",
        ("ema",),
        held=16 * ENCODER_LAYER * F32,
        saving=16 * ENCODER_LAYER * F32,
        false=(r"no_grad", r"\bleak"),
    ),
    Truth(
        "p19_replay_memory",
        gpu("rtx3080-10gb"),
        False,
        "Two buffers of 50,000 × 4 × 84 × 84 floats on the GPU, with actions and rewards; 32 rows of them are read in "
        "a step. What stays is below 100 MiB.",
        "replay buffer",
        ("states", "next_states", "memory"),
        held=2 * 50_000 * 4 * 84 * 84 * F32,
        also=(50_000 * 4 * 84 * 84 * F32,),
        saving=2 * 50_000 * 4 * 84 * 84 * F32 + 50_000 * (I64 + F32),
        false=(r"\bleak", r"from earlier steps", r"\.detach\(\)"),
    ),
    Truth(
        "p20_width_search",
        gpu("rtx3070", "3.3GiB"),
        False,
        "Weights, gradients and two states of Adam of the three earlier trials.",
        "several models",
        ("results", "result", "model", "optimizer"),
        held=trial(4096) + trial(5120) + trial(6144),
        also=(trial(4096) + trial(5120) + trial(6144) + trial(8192),),
        saving=trial(4096) + trial(5120) + trial(6144),
        false=(r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p21_holdout",
        gpu("rtx4090", "6.7GiB"),
        False,
        "With a graph, input, 12 outputs of Linear and 12 of GELU stay. Without, input, the input of a layer and its "
        "output: 25 against 3 tensors of 65536 × 1024.",
        "evaluation without no_grad",
        ("test", "model", "x"),
        held=22 * 65536 * 1024 * F32,
        also=(23 * 65536 * 1024 * F32, 24 * 65536 * 1024 * F32, 25 * 65536 * 1024 * F32),
        saving=22 * 65536 * 1024 * F32,
        false=(r"call backward\(\) (for|after) each", r"\bleak"),
    ),
    Truth(
        "p22_micro_batches",
        gpu("rtx3070"),
        True,
        "Six graphs are alive at once instead of one. A graph: the input, 8 outputs of Linear, 8 of GELU, 4096 × 2048.",
        "gradient accumulation by a sum of losses",
        ("total", "loss"),
        held=5 * 17 * 4096 * 2048 * F32,
        also=(6 * 17 * 4096 * 2048 * F32, 5 * 16 * 4096 * 2048 * F32, 6 * 16 * 4096 * 2048 * F32),
        saving=5 * 17 * 4096 * 2048 * F32,
        false=(r"no_grad", r"\.item\(\)", r"total = total \+ loss\.detach", r"(keep|add|store) [^.]*\.detach\(\)"),
    ),
    Truth(
        "p23_warmup",
        gpu("t4"),
        True,
        "Two states of Adam in the optimizer of the warm-up, never read after it: 8 layers of 3072 × 3072.",
        "parameters in two optimizers",
        ("warmup",),
        held=2 * 8 * linear(3072, 3072) * F32,
        saving=2 * 8 * linear(3072, 3072) * F32,
        false=(r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p24_backbone",
        gpu("t4"),
        True,
        "Gradients and two states of AdamW for weights with a learning rate of zero: 3 × 8 × 4096². A frozen backbone "
        "also stores no activations: 8 outputs of ReLU instead of one input and one output, 256 × 4096.",
        "optimizer state of frozen parameters",
        ("backbone", "optimizer", "groups"),
        held=3 * 8 * linear(4096, 4096, bias=False) * F32,
        also=(2 * 8 * linear(4096, 4096, bias=False) * F32,),
        saving=3 * 8 * linear(4096, 4096, bias=False) * F32 + 6 * 256 * 4096 * F32,
        false=(r"no_grad\(\) around the (whole )?training",),
    ),
    Truth(
        "p25_train_then_score",
        gpu("rtx3070"),
        True,
        "The gradients of 16 layers stay through the scoring, and zero_grad frees them before the next backward pass.",
        "gradients kept between tasks",
        ("model", "optimizer", "grad", ".grad"),
        held=16 * linear(4096, 4096, bias=False) * F32,
        saving=16 * linear(4096, 4096, bias=False) * F32,
        false=(r"no_grad", r"\.detach\(\)", r"\bleak"),
    ),
    Truth(
        "p26_chat_sessions",
        gpu("rtx3070"),
        True,
        "Keys and values of four answered requests: 8 layers, 8 sequences of 2050 tokens, 1024 wide, 16 bits.",
        "cache of keys and values",
        ("sessions",),
        held=4 * 2 * 8 * 8 * 2050 * 1024 * F16,
        also=(5 * 2 * 8 * 8 * 2050 * 1024 * F16,),
        saving=4 * 2 * 8 * 8 * 2050 * 1024 * F16,
        false=(r"inference_mode", r"no_grad", r"\.detach\(\)"),
    ),
    Truth(
        "p27_graph_per_batch",
        gpu("rtx3060"),
        True,
        "Each capture has a pool of its own with two tensors of batch × 8192 in 16 bits. A shared pool has that of the "
        "largest batch; the other three take 12288 + 8192 + 4096 rows. Nothing of it is allocated between replays.",
        "a private pool for each CUDA graph",
        ("graphs", "graph", "capture"),
        held=2 * (12288 + 8192 + 4096) * 8192 * F16,
        also=(2 * (16384 + 12288 + 8192 + 4096) * 8192 * F16,),
        saving=2 * (12288 + 8192 + 4096) * 8192 * F16,
        measure="reserved",
        false=(r"\bleak", r"no_grad", r"empty_cache"),
    ),
    Truth(
        "p28_two_heads",
        gpu("rtx3060"),
        True,
        "The second backward pass retains the graph too, and the log keeps it: input, 4 outputs of Linear, 4 of GELU, "
        "and what the losses save, of four earlier steps. The fixed peak is in the first backward pass, where two "
        "gradients of weights fewer are alive.",
        "retain_graph",
        ("log", "main", "extra"),
        held=4 * 9 * 8192 * 2048 * F32,
        also=(5 * 9 * 8192 * 2048 * F32,),
        saving=4 * (9 * 8192 * 2048 * F32 + 8192 * (13 * F32 + 2 * I64)) + 2 * linear(2048, 2048) * F32,
        false=(r"no_grad", r"features\.detach\(\)"),
    ),
    Truth(
        "p29_collect_outputs",
        gpu("rtx3070"),
        True,
        "The callback keeps the logits of five earlier batches, 4096 × 32000; it needs the index of the largest.",
        "callback",
        ("predictions", "Confusion"),
        held=5 * 4096 * 32000 * F32,
        also=(6 * 4096 * 32000 * F32,),
        saving=5 * 4096 * 32000 * F32,
        false=(r"no_grad", r"retain_graph"),
    ),
    Truth(
        "p30_prefetcher",
        gpu("rtx3060"),
        True,
        "Twelve batches wait on the GPU, of 64 × 3 × 512 × 512; two are enough to copy during a step.",
        "prefetching too deep",
        ("queue", "Prefetcher", "DEPTH"),
        held=10 * 64 * 3 * 512 * 512 * F32,
        also=(
            11 * 64 * 3 * 512 * 512 * F32,
            12 * 64 * 3 * 512 * 512 * F32,
            13 * 64 * 3 * 512 * 512 * F32,
        ),
        saving=10 * 64 * 3 * 512 * 512 * F32,
        false=(r"no_grad", r"\.detach\(\)"),
    ),
)

# All memory that a healthy program holds is used. `held` is the most that its variables hold past their last use at the
# peak: a statement of these names and no more bytes is true.
HEALTHY = (
    Truth(
        "h01_residual_network",
        gpu("rtx3060"),
        True,
        "Weights, gradients, momentum; activations in 16 bits, which the backward pass uses. autocast casts the "
        "images, so that the originals are not used again.",
        holders=("images",),
        held=128 * 3 * 224 * 224 * F32,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h02_text_classifier",
        gpu("rtx3060"),
        True,
        "Weights, gradients, two states of AdamW, activations of six layers.",
        holders=(
            "batch",
            "output",
        ),
        held=5 * 32 * 128 * I64,
        false=(*TRAINS,),
    ),
    Truth(
        "h03_speech_separation",
        gpu("rtx3070"),
        True,
        "Activations of six blocks for 16 mixtures; estimate, truth and sources stay until the next step.",
        holders=(
            "sources",
            "truth",
            "estimate",
            "mixture",
        ),
        held=16 * (2 * 64000 + 5 * 257 * 501) * F32,
        false=(*TRAINS,),
    ),
    Truth(
        "h04_actor_critic",
        gpu("t4"),
        True,
        "A rollout of 64 × 256 observations, used in two epochs, and activations.",
        holders=(
            "logits",
            "probabilities",
            "advantages",
            "log_prob",
            "ratio",
            "gain",
            "value",
            "carried",
            "delta",
        ),
        held=64 * 256 * 32 * F32,
        false=(*TRAINS,),
    ),
    Truth(
        "h05_graph_network",
        gpu("rtx3070"),
        True,
        "Messages of 400,000 edges, features of 50,000 nodes; all are used in each epoch.",
        holders=("hidden",),
        held=50_000 * 256 * F32,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h06_diffusion",
        gpu("rtx3070"),
        True,
        "Activations at 128 × 128; the clean images are not used after they were mixed with noise.",
        holders=(
            "images",
            "share",
        ),
        held=32 * 3 * 128 * 128 * F32,
        false=(*TRAINS,),
    ),
    Truth(
        "h07_contrastive",
        gpu("rtx3070"),
        True,
        "Activations of 2048 views and similarities of all pairs; the images are not used after both views are made.",
        holders=("images",),
        held=1024 * 3 * 64 * 64 * F32,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h08_adversarial",
        gpu("rtx3070"),
        True,
        "Activations of generator and discriminator; the fake images are used for both.",
        holders=(
            "real",
            "loss_d",
        ),
        held=256 * 3 * 64 * 64 * F32,
        false=(*TRAINS, r"create_graph"),
    ),
    Truth(
        "h09_meta_learning",
        gpu("rtx3070"),
        True,
        "Two inner steps with create_graph: the outer gradient goes through them.",
        false=(*TRAINS, r"create_graph", r"\.detach\(\)"),
    ),
    Truth(
        "h10_distillation",
        gpu("rtx3070"),
        True,
        "A frozen teacher, used in each step under no_grad, and a student with its states.",
        holders=("logits",),
        held=4096 * 1000 * F32,
        false=(*TRAINS,),
    ),
    Truth(
        "h11_truncated_backward",
        gpu("rtx3070"),
        True,
        "The state is detached from chunk to chunk; activations of 35 words.",
        holders=(
            "tokens",
            "labels",
            "state",
        ),
        held=4 * 64 * 1024 * F32,
        false=(*TRAINS,),
    ),
    Truth(
        "h12_heat_equation",
        gpu("rtx3070"),
        True,
        "Second derivatives are part of the loss: create_graph is needed for each.",
        holders=(
            "u",
            "residual",
            "edge",
            "x",
            "t",
        ),
        held=5 * 65536 * F32,
        false=(*TRAINS, r"create_graph", r"\.detach\(\)"),
    ),
    Truth(
        "h13_optimal_transport",
        gpu("rtx3070"),
        True,
        "A cost matrix of 8192 × 8192 with its graph, and the plan, which does not need one.",
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h14_generation",
        gpu("rtx3060"),
        True,
        "Weights, and keys and values that each new token reads.",
        holders=("prompt",),
        held=16 * 1024 * I64,
        false=(*TRAINS, r"use_cache", r"\bleak"),
    ),
    Truth(
        "h15_low_rank",
        gpu("rtx3070"),
        True,
        "Frozen weights, used in each step; gradients and states only of the adapters.",
        holders=("labels",),
        held=8192 * I64,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h16_experts",
        gpu("rtx3070"),
        True,
        "Eight experts with states of AdamW, activations of 8 × 2560 tokens.",
        holders=(
            "mixed",
            "gates",
        ),
        held=16384 * (1024 + 8) * F32,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h17_segmentation",
        gpu("rtx3070"),
        True,
        "Skip connections are popped as they are used; validation runs under no_grad.",
        holders=(
            "scans",
            "masks",
        ),
        held=8 * 256 * 256 * (F32 + I64),
        false=(*TRAINS,),
    ),
    Truth(
        "h18_detection",
        gpu("rtx3070"),
        True,
        "Both levels belong to one loss, so that their graphs are alive at once.",
        holders=(
            "scores",
            "boxes",
        ),
        held=8 * 32 * 32 * 9 * 84 * F32,
        false=(*TRAINS, r"\.detach\(\)", r"call backward"),
    ),
    Truth(
        "h19_recommender",
        gpu("rtx3070"),
        True,
        "Two tables of embeddings with sparse gradients; 50 negatives for each purchase.",
        holders=(
            "taste",
            "positive",
            "negative",
            "others",
            "who",
            "bought",
        ),
        held=8192 * (128 + 51) * F32 + 8192 * 52 * I64,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h20_averaged_weights",
        gpu("rtx3070"),
        True,
        "The average is evaluated after each epoch: it is used.",
        holders=("x",),
        held=2048 * 2048 * F32,
        false=(*TRAINS, r"(remove|drop|delete) the (average|copy)"),
    ),
    Truth(
        "h21_accumulation",
        gpu("rtx3070"),
        True,
        "Each micro-batch has a backward pass of its own; the running loss is detached.",
        holders=(
            "images",
            "labels",
        ),
        held=16 * 3 * 224 * 224 * F32,
        false=(*TRAINS, r"call backward"),
    ),
    Truth(
        "h22_recomputed_blocks",
        gpu("rtx3070"),
        True,
        "Only the inputs of blocks are stored, the rest is computed again.",
        holders=(
            "x",
            "y",
        ),
        held=2 * 8 * 1024 * 1024 * F16,
        false=(*TRAINS, r"\.detach\(\)", r"call backward"),
    ),
    Truth(
        "h23_gaussian_process",
        gpu("rtx3070"),
        True,
        "A kernel of 4096 × 4096 and its factor, differentiated by hyperparameters.",
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h24_normalizing_flow",
        gpu("rtx3070"),
        True,
        "Activations of eight couplings, all in one loss.",
        holders=(
            "volume",
            "change",
            "z",
        ),
        held=8192 * (512 + 2) * F32,
        false=(*TRAINS, r"\.detach\(\)"),
    ),
    Truth(
        "h25_variational",
        gpu("rtx3070"),
        True,
        "Activations of encoder and decoder; the list of totals holds detached scalars.",
        holders=(
            "mean",
            "log_variance",
        ),
        held=2 * 128 * 256 * F32,
        false=(*TRAINS, r"\bleak"),
    ),
    Truth(
        "h26_time_series",
        gpu("rtx3060"),
        True,
        "Series become longer by a curriculum: the peak grows because the work grows.",
        false=(*TRAINS, r"\bleak", r"\.detach\(\)"),
    ),
    Truth(
        "h27_evolution",
        gpu("rtx3070"),
        True,
        "Perturbations of a population, used for both signs and for the update.",
        holders=(
            "hidden",
            "actions",
        ),
        held=64 * 64 * (1024 + 16) * F32,
        false=(*TRAINS, r"\bleak"),
    ),
    Truth(
        "h28_quantization_aware",
        gpu("rtx3070"),
        True,
        "Rounded weights and activations, with what the straight-through estimator saves.",
        false=(*TRAINS, r"\.detach\(\)", r"save_for_backward"),
    ),
    Truth(
        "h29_multi_task",
        gpu("rtx3070"),
        True,
        "One encoder with three heads in Lightning; the metric gets detached values.",
        false=(*TRAINS, r"\bleak"),
    ),
    Truth(
        "h30_self_play",
        gpu("t4"),
        True,
        "A league of earlier versions; the learner plays against each of them in each round.",
        holders=(
            "logits",
            "answers",
            "payoff",
            "gain",
            "reward",
            "states",
        ),
        held=2048 * (512 + 5 * 64) * F32,
        false=(*TRAINS, r"\bleak", r"(remove|drop|delete) "),
    ),
)

TRUTHS = {truth.name: truth for truth in (*PLANTED, *HEALTHY)}
