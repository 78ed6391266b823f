# SPDX-License-Identifier: MIT OR Apache-2.0
"""What libraries and the driver answer to programs that call them by name, outside torch."""

import json
import subprocess

from conftest import PYTHON

# Outside of a dry run the real libraries answer. A version needs no device.
REAL_VERSIONS = """
import ctypes, json, pathlib, torch
answers = {}
for name, function in (("libcublas", "cublasGetProperty"), ("libcublasLt", "cublasLtGetProperty")):
    path = next(pathlib.Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}.so.*"))
    library, value, answers[function] = ctypes.CDLL(str(path)), ctypes.c_int(), []
    for part in range(3):
        assert library[function](part, ctypes.byref(value)) == 0
        answers[function].append(value.value)
print(json.dumps(answers))
"""


def test_answers_are_those_of_cuda(tonnage):
    run = tonnage("driver_calls.py", options=("--gpu", "h100"))
    assert run.code == 0, run.err
    answers = json.loads(next(line for line in run.err.splitlines() if line.startswith('{"versions"')))

    real = subprocess.run([PYTHON, "-c", REAL_VERSIONS], check=True, capture_output=True, text=True)
    versions = answers["versions"]
    major, minor, patch = json.loads(real.stdout)["cublasGetProperty"]
    assert json.loads(real.stdout).items() <= versions.items()
    assert versions["cublasGetVersion_v2"] == major * 10000 + minor * 100 + patch

    # The true sizes, each with its distance from a multiple of 256; CUDA_ERROR_NOT_FOUND for another name.
    sizes = {"table": [40000, 0], "three": [12, 0], "one": [1, 0], "missing": 500}
    assert answers["cubin"] == sizes
    assert answers["ptx"] == sizes
    assert answers["unknown"] == 0
    assert [call["name"] for call in run.verdict["unmodelled"]] == ["cuModuleGetGlobal_v2"]

    assert answers["contexts"] == {
        "new thread": None,
        "retained": None,
        "nothing to pop": 201,
        "set": True,
        "popped": [True, None],
        "pushed": True,
        "set to null": None,
        "runtime": True,
    }
