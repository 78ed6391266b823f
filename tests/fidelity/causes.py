# SPDX-License-Identifier: MIT OR Apache-2.0
"""Why a figure differs, as it was tested. The first pattern that is part of `job: what` counts."""

ADDRESSES = (
    "addresses that the driver hands out decide ties between free blocks; replayed with the real ones, the figure is"
    " the real one"
)
IMAGES = "memory beside PyTorch that is not counted, images and handles of libraries (the verdict says so)"
HARNESS = (
    "unknown; their programs ran one after the other in a process, so earlier ones may have left memory (not tested)"
)
CAUSES = [
    (
        "dm_nfnet_f5",
        "memory beside PyTorch that is not counted: with 350 MiB more, the most that was seen, it is the published one",
    ),
    (
        "mobilevitv2_175",
        "workspaces of the plans that cudnn.benchmark tries; without cudnn.benchmark it is the published one",
    ),
    (
        "resnetv2_101x1_bit",
        "unknown; with expandable segments it is the published one, without cudnn.benchmark it is not",
    ),
    (
        "resnetv2_101x3_bit",
        "unknown; with expandable segments it is the same as without",
    ),
    (
        "twins_svt_large",
        "unknown; with 350 MiB more beside PyTorch or with expandable segments it is the same",
    ),
    (
        "memopt 05",
        "unknown; the published run had a nightly build; the difference is the size of a copy of the weights",
    ),
    ("memopt 04", "unknown; the published run had a nightly build of torch 2.1"),
    ("litgpt adapter_v2 Llama", "unknown"),
    ("whitefox cumsum: cumsum: in use", IMAGES),
    ("whitefox attention 93: attention 93: in use", IMAGES),
    ("whitefox tanh: tanh: in use", IMAGES),
    ("whitefox attention 128", HARNESS),
    ("whitefox transposed", HARNESS),
    ("wedsonlin training", ADDRESSES),
    ("torchtitan", "unknown; the published run had a nightly build of 2024-12-23, the dry run torch 2.6.0"),
]
