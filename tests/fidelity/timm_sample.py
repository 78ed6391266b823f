# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws models from timm's published tables by a seed: those whose batch size was found by reducing it on errors.

    python3 tests/fidelity/timm_sample.py FOLDER > tests/fidelity/timm.csv

FOLDER is a checkout of huggingface/pytorch-image-models at 90cae8c5ab83. Where the first batch size that was tried
already ran, the row is not a threshold, and it is not drawn.
"""

import csv
import random
import sys
from pathlib import Path

SEED = 13
TABLES = [
    ("benchmark-infer-amp-nchw-pt291-cu128-4090.csv", "rtx4090", "2.9.1", 30),
    ("benchmark-infer-amp-nchw-pt291-cu130-5090.csv", "rtx5090", "2.9.1", 20),
    ("benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv", "rtx3090", "2.4.1", 15),
]
FIRST = 1024

out = csv.writer(sys.stdout, lineterminator="\n")
out.writerow(["gpu", "torch", "model", "img_size", "batch_size", "table"])
for table, gpu, torch, count in TABLES:
    with open(Path(sys.argv[1]) / "results" / table) as file:
        rows = [row for row in csv.DictReader(file) if 0 < float(row["infer_batch_size"] or 0) < FIRST]
    rows.sort(key=lambda row: row["model"])
    for row in random.Random(f"{SEED} {table}").sample(rows, count):
        out.writerow([gpu, torch, row["model"], row["infer_img_size"], int(float(row["infer_batch_size"])), table])
