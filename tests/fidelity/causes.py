# SPDX-License-Identifier: MIT OR Apache-2.0
"""Why a figure differs, as it was tested. The first pattern that is part of `job: what` counts."""

ADDRESSES = (
    "addresses that the driver chooses decide ties between free blocks; replayed with the real ones, the figure is"
    " the real one"
)
IMAGES = "memory outside PyTorch that is not counted, images and handles of libraries (the verdict states it)"
EARLIER = (
    "programs that ran before it in the process left memory: it has blocks of 512 MiB and of 1 GiB only, and the"
    " difference, 0.66 GiB, is not a sum of these"
)
WORKSPACE = (
    "workspace of a convolution, which cuDNN below 9.8 does not report without a GPU (the verdict states it); with"
    " cuDNN 9.10 (torch 2.9.1) 1.02 GiB more are in use"
)
BESIDE = (
    "memory outside PyTorch that is not counted: with 350 MiB more, the maximum seen, it is the published one."
    " The verdict of the larger batch is uncertain, because its headroom is less"
)
UNTOLD = (
    "workspace of a convolution, which cuDNN below 9.8 does not report without a GPU (the verdict states it); with"
    " cuDNN 9.10 (torch 2.9.1) it is the published one"
)
CAUSES = [
    ("dm_nfnet_f5", BESIDE),
    ("rexnet_300", BESIDE),
    ("resnetrs420", BESIDE),
    ("vit_base_patch16_siglip_gap_512", UNTOLD),
    ("maxvit_rmlp_nano_rw_256", UNTOLD),
    (
        "samvit_base_patch16",
        "unknown; cuDNN below 9.8 does not report workspaces of convolutions, and with those of 9.10 (torch 2.9.1) it"
        " is 8",
    ),
    ("coatnet_3_rw_224", "unknown; with torch 2.9.1 and the workspaces of its cuDNN 9.10 it is the same"),
    ("sam2_hiera_tiny", "unknown; with torch 2.9.1 and the workspaces of its cuDNN 9.10 it is the same"),
    ("davit_large", "unknown; the larger batch needs 27.13 GiB of 31.36 GiB, and with --fast-norm it fits, too"),
    (
        "twins_svt_large",
        "unknown; with 410 MiB more outside PyTorch it is the published one, and 350 MiB is the maximum seen",
    ),
    (
        "convnext_large_mlp 384",
        "unknown; with 0.66 GiB less memory it is the published one, and without --fast-norm, too",
    ),
    (
        "mobilevitv2_175",
        "workspaces of the plans that cudnn.benchmark tries; without cudnn.benchmark it is the published one",
    ),
    (
        "memopt 05",
        "the published run had a nightly build, whose Adam makes one more copy of the weights than that of torch 2.1.2;"
        " with that copy put back it is 3.91 GB",
    ),
    (
        "memopt 04",
        "unknown; the published run had a nightly build of torch 2.1; its Adam, with one more copy, gives the same",
    ),
    (
        "litgpt adapter_v2 Llama",
        "unknown; the table names commit 8641822, which was run here; with 0f021f3, which added the row, the dry run"
        " gives 26.92 GB",
    ),
    (
        "bcrafton compiled: 12 layers, compiled training: events",
        "unknown; the published run had another torch: the lines in its stacks are not those of 2.9.1, nor of 2.13.0",
    ),
    ("whitefox cumsum: cumsum: in use", IMAGES),
    ("whitefox attention 93: attention 93: in use", IMAGES),
    ("whitefox tanh: tanh: in use", IMAGES),
    ("whitefox attention 128", EARLIER),
    ("whitefox transposed: transposed: in use", WORKSPACE),
    ("wedsonlin training", ADDRESSES),
    (
        "peft lily/llama-3.2-3B-rank896-a2-b2-s2.0: lily, rank896-a2-b2-s2.0: most",
        "the length of the longest batch is not published; with 684 tokens instead of 682 it is +0.22 %",
    ),
    ("torchtitan 405B", "the published figure is of the fullest of all ranks; rank 0 was run"),
]
