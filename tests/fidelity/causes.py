# SPDX-License-Identifier: MIT OR Apache-2.0
"""Why a figure differs, as it was tested. The first pattern that is part of `job: what` counts."""

ADDRESSES = (
    "addresses that the driver hands out decide ties between free blocks; replayed with the real ones, the figure is"
    " the real one"
)
CAUSES = [
    ("wedsonlin training", ADDRESSES),
]
