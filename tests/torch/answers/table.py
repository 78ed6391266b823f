# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs of which the truth is known, and that truth.

The truth about a program follows from its source and its shapes, never from the output of tonnage. A program marks
the lines that hold the memory or have to change with `# <- here`; the environment variable FIXED makes it apply the
change for real.
"""

from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# Snapshots of real GPUs, where they are: beside the repository.
SHARED = next((folder / "shared" for folder in ROOT.parents if (folder / "shared").is_dir()), ROOT.parent / "shared")
MIB, GIB = 1 << 20, 1 << 30

# Sentences that are wrong wherever memory is truly too small.
FRAGMENTED = r"fragmented"
EVERY_REQUEST = r"every request is served"
# A number instead of the tensor: wrong where the tensor is what the program wants, or what it trains with.
AS_NUMBER = r"\.item\(\)"
DROP_MODEL = r"drop every reference|drop the old|younger copy"
LEAK = r"\bleak"
NO_GRAD = r"no_grad|inference_mode"
LENGTHS = r"\blengths?\b"
CHECKPOINT = r"checkpoint"


@dataclass
class Fix:
    """A proposal that is right, and how to apply it."""

    code: str
    # Words of its advice, as a pattern.
    words: str
    # Value of FIXED with which the program does it; None: nothing to apply, only the words are judged.
    variant: str | None = "1"
    # Whether it must be proposed.
    wanted: bool = True
    # Whether it can be proposed once more where it was done: what was halved can be halved again.
    again: bool = False


@dataclass
class Program:
    name: str
    # Options of `tonnage run`.
    options: list = field(default_factory=lambda: ["--capacity", "8GiB"])
    # "fits", "does_not_fit", "failed", "no_device".
    outcome: str = "does_not_fit"
    # Codes that are true as the first cause; empty: none may be alleged but what is in `also`.
    causes: tuple = ()
    # Further codes that are true of it. A code in neither must not be found.
    also: tuple = ()
    # Names of which the first cause must have one.
    holder: tuple = ()
    # Whether the first cause or its advice must have a marked line.
    line: bool = True
    # Patterns that what is printed must not, and must, match.
    wrong: tuple = ()
    right: tuple = ()
    fixes: tuple = ()
    # Bytes that have to be on the device at once, context and cache left out: from the shapes.
    live: int | None = None
    # Bytes that a job that fits leaves free at its tightest, context left out: from the sizes it requests.
    free: int | None = None
    arguments: tuple = ()
    environment: dict = field(default_factory=dict)
    # Another script than programs/NAME.py.
    script: Path | None = None
    # A recording that is there already, instead of a run.
    recording: Path | None = None
    # Whether it is part of what CI runs.
    ci: bool = True
    # Whether it requests the same memory on a device of any size.
    same_without_limit: bool = True

    @property
    def path(self):
        return self.script or HERE / "programs" / f"{self.name.split('@')[0]}.py"

    def marked(self):
        """The numbers of the marked lines."""
        lines = self.path.read_text().splitlines()
        return [number for number, line in enumerate(lines, 1) if line.endswith("# <- here")]


# A larger device or another GPU is always a way out, where its size is true.
DEVICE = Fix("TN101", r"device|GPU", variant=None, wanted=False)
EXPANDABLE = Fix("TN102", r"expandable", variant=None)

PROGRAMS = [
    # Programs that were reviewed by users.
    Program(
        "serve",
        ["--gpu", "rtx3090"],
        causes=("TN102",),
        line=False,
        fixes=(EXPANDABLE,),
        script=ROOT / "python" / "tonnage" / "examples" / "serve.py",
        live=32 * 480 * MIB + 57_000 * 128 * 1024,
    ),
    Program(
        "oom_example",
        causes=("TN102",),
        line=False,
        fixes=(Fix("TN102", r"expandable", variant=None),),
        recording=ROOT / "python" / "tonnage" / "examples" / "oom.tonnage",
    ),
    Program("holes_given_back", ["--capacity", "10GiB"], outcome="fits", line=False, also=("TN201",)),
    Program(
        "pinned_holes",
        causes=("TN102",),
        holder=("stay",),
        fixes=(EXPANDABLE,),
        live=7000 * MIB,
    ),
    # Overhead that is not counted may take more than the setting leaves.
    Program(
        "pinned_holes@tight",
        ["--capacity", "7700MiB"],
        causes=("TN102",),
        holder=("stay",),
        right=(r"fits only if what is not counted takes less than",),
        fixes=(EXPANDABLE,),
        live=7000 * MIB,
    ),
    Program(
        "logits",
        causes=("TN203",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN203", r"chunk|parts|piece"), DEVICE),
        # Logits as float, their log-softmax and its gradient.
        live=8192 * 128256 * (4 + 4 + 4),
    ),
    Program(
        "running_total",
        causes=("TN211", "TN201"),
        holder=("total",),
        wrong=(FRAGMENTED, CHECKPOINT),
        fixes=(Fix("TN211|TN201", r"\.item\(\)|detach"), DEVICE),
        live=40 * 9 * 64 * MIB,
    ),
    Program(
        "hidden_state",
        causes=("TN211", "TN201"),
        holder=("state",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN211|TN201", r"detach\(\)"), DEVICE),
        # Input, state, the gates of both and the workspace of a fused cell.
        live=40 * (1 + 1 + 3 + 3 + 5) * 64 * MIB,
    ),
    Program(
        "outputs_kept",
        causes=("TN201",),
        holder=("history",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN201", r"\.cpu\(\)"), DEVICE),
        live=40 * 4096 * 16000 * 4,
    ),
    Program(
        "adam_states",
        ["--capacity", "5GiB"],
        causes=("TN204",),
        wrong=(FRAGMENTED,),
        # Without the copies of a step it is still too much, and the output must report that.
        fixes=(Fix("TN204", r"fused"), DEVICE),
        live=4 * 2 * GIB,
    ),
    Program(
        "adam_temporaries",
        ["--capacity", "7GiB"],
        causes=("TN204",),
        wrong=(FRAGMENTED,),
        fixes=(Fix("TN204", r"fused"), DEVICE),
        live=5 * 1536 * MIB,
    ),
    Program(
        "evaluation_graph",
        causes=("TN212",),
        wrong=(FRAGMENTED, AS_NUMBER, CHECKPOINT),
        right=(NO_GRAD,),
        fixes=(Fix("TN212", NO_GRAD), DEVICE),
        live=33 * 512 * MIB,
    ),
    Program(
        "evaluation_graph@fits",
        ["--capacity", "24GiB"],
        outcome="fits",
        causes=("TN212",),
        wrong=(FRAGMENTED, AS_NUMBER, CHECKPOINT),
        right=(NO_GRAD,),
        fixes=(Fix("TN212", NO_GRAD),),
        ci=False,
    ),
    Program(
        "evaluation_losses",
        causes=("TN212", "TN211"),
        also=("TN201",),
        holder=("losses", "model", "Sequential", "evaluate"),
        wrong=(FRAGMENTED, CHECKPOINT),
        right=(NO_GRAD,),
        fixes=(Fix("TN212", NO_GRAD), Fix("TN211|TN201", r"\.item\(\)|detach", "2", False), DEVICE),
        live=20 * 24 * 64 * MIB,
    ),
    Program(
        "reference_model",
        ["--capacity", "6GiB"],
        causes=("TN204", "TN215"),
        wrong=(FRAGMENTED, DROP_MODEL),
        right=(r"\breference\b",),
        fixes=(Fix("TN204", r"fused|8.bit|offload", None, False), Fix("TN215", r"", None, False), DEVICE),
        live=5 * 1536 * MIB,
    ),
    Program(
        "cache_by_cat@fits",
        outcome="fits",
        arguments=("40",),
        causes=("TN207", "TN201"),
        line=False,
        fixes=(Fix("TN207", r"", None, False),),
        ci=False,
    ),
    Program(
        "cache_by_cat",
        arguments=("100",),
        causes=("TN207", "TN201"),
        holder=("keys", "values"),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN207|TN201", r"half|halve|batch", again=True), DEVICE),
        live=2 * GIB + 32 * 8 * 8 * (2048 + 100 * 128) * 128 * 2,
    ),
    Program(
        "pinned_copies",
        causes=("TN201",),
        holder=("on_device",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN201", r"\.cpu\(\)|drop|keep|remove|free"), DEVICE),
        live=100 * 128 * MIB,
    ),
    Program("side_stream_fits", ["--capacity", "6656MiB"], outcome="fits", line=False, also=("TN201", "TN103")),
    Program(
        "side_stream_stranded",
        causes=("TN103",),
        holder=("stay",),
        fixes=(Fix("TN103|TN102", r"expandable", variant=None), Fix("TN103", r"stream", None, False)),
        live=20 * 256 * MIB,
    ),
    Program(
        "batch_doubles",
        ["--capacity", "7GiB"],
        causes=("TN202",),
        # The backward pass of the one line makes 4 GiB of temporary memory.
        also=("TN208",),
        wrong=(FRAGMENTED, LENGTHS, AS_NUMBER),
        fixes=(Fix("TN202", r"batch"), DEVICE),
        # Images, three results of layers, and the 4 GiB of workspace that cuDNN requests.
        live=64 * 256 * 256 * 4 * (64 + 3 * 128) + 4 * GIB,
    ),
    Program(
        "larger_each_time",
        causes=("TN201", "TN208", "TN101"),
        holder=("buffer",),
        wrong=(FRAGMENTED, AS_NUMBER, r"\.cpu\(\)"),
        fixes=(Fix("TN201|TN208|TN101", r"before|del |drop|halve", None, False), DEVICE),
        live=(79 + 78) * 64 * MIB,
    ),
    Program(
        "by_a_hair",
        causes=("TN101",),
        also=("TN208",),
        holder=("held",),
        wrong=(FRAGMENTED, r"at least 8\.00 GiB"),
        fixes=(DEVICE,),
        same_without_limit=False,
        live=8 * GIB + 2 * MIB - 542 * MIB,
    ),
    Program(
        "gradient_clones",
        causes=("TN201",),
        holder=("saved",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN201", r"\.cpu\(\)"), DEVICE),
        live=18 * 512 * MIB,
    ),
    Program(
        "state_copy",
        causes=("TN216", "TN206"),
        holder=("weights", "moments", "best", "state"),
        wrong=(FRAGMENTED, r"optimizer's step", AS_NUMBER),
        fixes=(Fix("TN216|TN206", r"cpu"), DEVICE),
        live=6 * 1536 * MIB,
    ),
    Program(
        "long_sample",
        causes=("TN202",),
        also=("TN213", "TN214"),
        wrong=(AS_NUMBER,),
        fixes=(Fix("TN202", r"length|batch|sample"), Fix("TN213", CHECKPOINT, None, False), DEVICE),
        # The memory that a layer keeps for each token, in results of its width: qkv 3, attention 1, sums 2, the wide
        # part 12.
        live=6 * 8 * 6144 * 512 * 4 * (3 + 1 + 2 + 12),
    ),
    Program(
        "attention_scores",
        ["--capacity", "16GiB"],
        causes=("TN214",),
        also=("TN213",),
        wrong=(FRAGMENTED, EVERY_REQUEST),
        right=(r"scaled_dot_product_attention|memory-efficient",),
        fixes=(
            Fix("TN214", r"scaled_dot_product_attention|memory-efficient"),
            Fix("TN213", CHECKPOINT, None, False),
            DEVICE,
        ),
        live=12 * 2 * GIB + 2 * GIB,
    ),
    Program(
        "adapters",
        causes=("TN213",),
        also=("TN203", "TN217"),
        wrong=(FRAGMENTED, EVERY_REQUEST, AS_NUMBER),
        right=(CHECKPOINT,),
        fixes=(Fix("TN213", CHECKPOINT), Fix("TN203", r"chunk|parts|piece", None, False), DEVICE),
        live=9 * GIB,
    ),
    Program(
        "retained_graphs",
        ["--capacity", "6GiB"],
        causes=("TN211", "TN201"),
        holder=("outputs", "total"),
        wrong=(FRAGMENTED, CHECKPOINT),
        fixes=(Fix("TN211", r"\.item\(\)|detach"), Fix("TN201", r"cpu.*`total`", "2"), DEVICE),
        live=60 * 9 * 16 * MIB,
    ),
    # Named in the issue.
    Program(
        "separate_layers",
        ["--capacity", "4GiB"],
        causes=("TN217",),
        wrong=(FRAGMENTED, DROP_MODEL, AS_NUMBER),
        holder=("layers",),
        fixes=(Fix("TN217", r"", None, False), DEVICE),
        live=48 * 128 * MIB,
    ),
    Program(
        "micro_batches",
        ["--capacity", "6GiB"],
        causes=("TN213", "TN211"),
        holder=("loss",),
        wrong=(FRAGMENTED, AS_NUMBER, LEAK),
        right=(r"backward\(\)?.*(each|every|per) |(each|every|per) .*backward",),
        fixes=(Fix("TN213|TN211", r"backward"), Fix("TN213", CHECKPOINT, None, False), DEVICE),
        live=8 * 17 * 64 * MIB,
    ),
    Program(
        "evaluation_outputs",
        causes=("TN205", "TN201"),
        holder=("predictions",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN205|TN201", r"\.cpu\(\)"), DEVICE),
        live=sum((4096 + 512 * (number % 7)) * 8192 * 4 for number in range(60)),
    ),
    Program(
        "llama_8b",
        ["--gpu", "a100-40gb"],
        causes=("TN204",),
        also=("TN217", "TN213", "TN203"),
        line=False,
        wrong=(FRAGMENTED, r"at least 39\."),
        fixes=(Fix("TN204", r"fused|8.bit|offload", None, False), DEVICE),
        script=HERE.parent / "scripts" / "llama_8b.py",
        live=4 * 16_060_522_496,
    ),
    Program(
        "real_gpu",
        causes=("TN213", "TN214"),
        also=("TN203", "TN204"),
        line=False,
        outcome="fits",
        right=(CHECKPOINT,),
        fixes=(
            Fix("TN213", CHECKPOINT, None),
            Fix("TN214", r"scaled_dot_product_attention|memory-efficient", None, False),
        ),
        recording=SHARED / "data" / "real-gpu" / "medium_1024_training_memory_snapshot.pickle",
    ),
    # One of each kind that no program above has.
    Program(
        "activations",
        causes=("TN213",),
        wrong=(FRAGMENTED, AS_NUMBER, NO_GRAD),
        right=(CHECKPOINT,),
        fixes=(Fix("TN213", CHECKPOINT), DEVICE),
        live=(16 * 3 + 1) * 256 * MIB,
    ),
    Program(
        "post_norm",
        causes=("TN213",),
        wrong=(FRAGMENTED, AS_NUMBER, NO_GRAD),
        right=(CHECKPOINT,),
        fixes=(Fix("TN213", CHECKPOINT), DEVICE),
        live=(16 * 4 + 1) * 256 * MIB,
    ),
    Program(
        "checkpoint_file",
        outcome="fits",
        causes=("TN206",),
        fixes=(Fix("TN206", r"map_location"),),
    ),
    Program(
        "checkpointed_step",
        outcome="fits",
        causes=("TN204",),
        also=("TN210",),
        wrong=(FRAGMENTED,),
        fixes=(Fix("TN204", r"fused"),),
    ),
    Program(
        "cache_at_start",
        ["--capacity", "32GiB"],
        causes=("TN207",),
        holder=("kv_cache", "server"),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN207", r"half|sequences|tokens|batch", again=True), DEVICE),
        live=16 * 2 * 64 * 8 * 8192 * 128 * 2,
    ),
    Program(
        "cache_in_module",
        ["--capacity", "12GiB"],
        causes=("TN207", "TN201"),
        holder=("kv_cache", "server"),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN207", r"half|sequences|tokens|batch", again=True), DEVICE),
        live=(256 + 255) * 64 * 32768 * 8 * 2,
    ),
    Program(
        "cached_reference",
        ["--gpu", "rtx4090"],
        outcome="fits",
        causes=("TN209",),
        fixes=(Fix("TN209", r"reference"),),
    ),
    Program(
        "decoder",
        ["--gpu", "rtx4090"],
        outcome="fits",
        causes=("TN208",),
        also=("TN202",),
        wrong=(NO_GRAD, AS_NUMBER),
        fixes=(Fix("TN208", r"half|tiles|parts", again=True),),
    ),
    Program(
        "contexts",
        ["--capacity", "9GiB", "--gpus", "4"],
        causes=("TN105",),
        wrong=(FRAGMENTED, AS_NUMBER),
        fixes=(Fix("TN105", r"set_device"), DEVICE),
        live=7 * GIB,
    ),
    # Further ordinary programs.
    Program(
        "fits_with_room",
        outcome="fits",
        line=False,
        also=("TN204", "TN213", "TN217"),
        wrong=(LEAK, FRAGMENTED),
        fixes=(Fix("TN204", r"fused", None, False),),
    ),
    Program("fits_exactly", outcome="fits", line=False, also=("TN208",), free=0, same_without_limit=False),
    Program(
        "smaller_retry",
        ["--capacity", "6GiB"],
        outcome="fits",
        line=False,
        also=("TN213", "TN202", "TN101"),
        wrong=(LEAK, FRAGMENTED, DROP_MODEL),
        fixes=(Fix("TN213", CHECKPOINT, None, False), Fix("TN202", r"", None, False)),
        same_without_limit=False,
    ),
    Program(
        "accumulation",
        outcome="fits",
        line=False,
        also=("TN213", "TN204"),
        wrong=(LEAK, AS_NUMBER, FRAGMENTED),
        fixes=(Fix("TN213", CHECKPOINT, None, False), Fix("TN204", r"fused", None, False)),
    ),
    Program(
        "moving_average",
        outcome="fits",
        line=False,
        also=("TN215", "TN216", "TN217"),
        wrong=(DROP_MODEL, LEAK, FRAGMENTED),
    ),
    Program(
        "prefetched",
        outcome="fits",
        line=False,
        also=("TN213",),
        wrong=(LEAK, AS_NUMBER, FRAGMENTED),
        fixes=(Fix("TN213", CHECKPOINT, None, False),),
    ),
    Program(
        "kept_exception",
        ["--capacity", "5GiB"],
        causes=("TN211", "TN209", "TN201"),
        also=("TN213",),
        holder=("failures", "activations", "error"),
        wrong=(FRAGMENTED, AS_NUMBER, NO_GRAD),
        fixes=(Fix("TN211|TN209|TN201", r""), DEVICE, Fix("TN213", CHECKPOINT, None, False)),
        live=16 * 24000 * 2048 * 4 + 16 * 128 * MIB,
    ),
    Program(
        "validation_batch",
        ["--capacity", "6GiB"],
        causes=("TN202", "TN208"),
        wrong=(FRAGMENTED, NO_GRAD, AS_NUMBER, LENGTHS),
        fixes=(Fix("TN202|TN208", r"batch|half|parts|smaller|samples", again=True), DEVICE),
        live=2 * 131072 * 8192 * 4 + 512 * MIB,
    ),
    Program(
        "hook_keeps",
        ["--capacity", "4GiB"],
        causes=("TN201",),
        holder=("features",),
        wrong=(FRAGMENTED,),
        fixes=(Fix("TN201", r"\.cpu\(\)"), DEVICE),
        live=40 * 128 * MIB,
    ),
    Program(
        "retain_graph",
        ["--capacity", "6GiB"],
        causes=("TN211",),
        also=("TN213",),
        holder=("loss",),
        wrong=(FRAGMENTED, NO_GRAD),
        fixes=(Fix("TN211", r"retain_graph|del |backward"), Fix("TN213", CHECKPOINT, None, False), DEVICE),
        live=2 * 32 * 128 * MIB,
    ),
    Program(
        "two_models",
        ["--capacity", "4GiB"],
        causes=("TN201",),
        holder=("samples",),
        wrong=(FRAGMENTED, NO_GRAD, AS_NUMBER),
        fixes=(Fix("TN201", r"\.cpu\(\)"), DEVICE),
        live=60 * 64 * MIB,
    ),
    Program(
        "inference_loop",
        ["--capacity", "2GiB"],
        causes=("TN212",),
        wrong=(FRAGMENTED, AS_NUMBER, CHECKPOINT),
        right=(NO_GRAD,),
        fixes=(Fix("TN212", NO_GRAD), DEVICE),
        live=2 * 48 * 64 * MIB,
    ),
    Program(
        "history",
        ["--capacity", "4GiB"],
        causes=("TN201", "TN211"),
        holder=("history", "trainer.history"),
        wrong=(FRAGMENTED, CHECKPOINT, NO_GRAD),
        fixes=(Fix("TN201", r"\.cpu\(\)"), Fix("TN211", r"detach", None, False), DEVICE),
        # The errors, their differences, and the squares that the losses are made from.
        live=60 * 3 * 32 * MIB,
    ),
    Program("one_after_another", outcome="fits", line=False, wrong=(r"other process",), free=3 * GIB),
    Program("without_torch@fits", outcome="fits", arguments=("5",), line=False, free=3 * GIB),
    Program("without_torch", arguments=("9",), line=False, causes=("TN105", "TN101"), live=9 * GIB, fixes=(DEVICE,)),
    Program(
        "stream_ordered",
        outcome="fits",
        line=False,
        also=("TN201",),
        environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        free=8 * GIB - 100 * 64 * MIB,
    ),
    Program("managed", outcome="fits", line=False, free=6 * GIB),
    Program("nothing", outcome="no_device", line=False, free=8 * GIB),
    Program("other_error", outcome="failed", line=False, wrong=(FRAGMENTED,)),
]
