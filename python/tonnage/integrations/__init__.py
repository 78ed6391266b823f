# SPDX-License-Identifier: MIT OR Apache-2.0
"""tonnage where people train: callbacks that record a training on a real GPU.

A dry run needs none of them: `tonnage run --gpu NAME -- python train.py` sees any trainer as it is.
"""
