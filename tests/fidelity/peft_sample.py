# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the order of the experiments of peft's method comparison by a seed.

    python3 tests/fidelity/peft_sample.py FOLDER > tests/fidelity/peft.csv

FOLDER is a checkout of huggingface/peft at 5d602fdbff04. LoRA of rank 32 is left out: the lengths of the batches, which
are not published, come from its row.
"""

import csv
import json
import random
import sys
from pathlib import Path

SEED = 13
KNOWN = "lora/llama-3.2-3B-rank32"

found = []
for path in sorted((Path(sys.argv[1]) / "method_comparison" / "MetaMathQA" / "results").glob("*.json")):
    found.append(json.loads(path.read_text())["run_info"]["experiment_name"])
found.remove(KNOWN)
random.Random(SEED).shuffle(found)
out = csv.writer(sys.stdout, lineterminator="\n")
out.writerow(["experiment"])
out.writerows([name] for name in found)
