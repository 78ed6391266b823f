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
    ("whitefox cumsum: cumsum: in use", IMAGES),
    ("whitefox attention 93: attention 93: in use", IMAGES),
    ("whitefox tanh: tanh: in use", IMAGES),
    ("whitefox attention 128", HARNESS),
    ("whitefox transposed", HARNESS),
    ("wedsonlin training", ADDRESSES),
]
