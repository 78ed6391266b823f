"""Runs another script with tonnage's allocator: plugged.py LIBRARY SCRIPT ARGUMENTS. `PLAN` names a plan to follow.

The module is read from the source tree and given the library that cargo built, so that no wheel is needed.
"""

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path

path = Path(__file__).parents[3] / "python" / "tonnage" / "torch.py"
spec = importlib.util.spec_from_file_location("tonnage.torch", path)
allocator = importlib.util.module_from_spec(spec)
sys.modules["tonnage.torch"] = allocator
spec.loader.exec_module(allocator)
library, sys.argv = sys.argv[1], sys.argv[2:]
allocator.library = lambda: library
allocator.install(os.environ.get("PLAN"), tenant=os.environ.get("TENANT"), quota=os.environ.get("QUOTA"))
runpy.run_path(sys.argv[0], run_name="__main__")
print("statistics", json.dumps(allocator.memory_stats()))
