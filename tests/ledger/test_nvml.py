# SPDX-License-Identifier: MIT OR Apache-2.0
"""The NVML queries of programs, through the package that they use for it."""

import json
import sys

ASK = """
import ctypes, json, pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByIndex(0)
block = ctypes.c_void_p()
if {use}:
    assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(block), ctypes.c_size_t(1 << 30)) == 0
rates = nvml.nvmlDeviceGetUtilizationRates(device)
memory = nvml.nvmlDeviceGetMemoryInfo(device)
second = nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2)
print(json.dumps(dict(
    name=nvml.nvmlDeviceGetName(device),
    uuid=nvml.nvmlDeviceGetUUID(device)[:4],
    driver=nvml.nvmlSystemGetDriverVersion().split(".")[0].isdigit(),
    utilisation=[rates.gpu, rates.memory],
    temperature=nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
    newer=nvml.nvmlDeviceGetTemperatureV(device, nvml.NVML_TEMPERATURE_GPU),
    power=nvml.nvmlDeviceGetPowerUsage(device) < nvml.nvmlDeviceGetEnforcedPowerLimit(device),
    clocks=[nvml.nvmlDeviceGetClockInfo(device, 1), nvml.nvmlDeviceGetMaxClockInfo(device, 2)],
    fan=nvml.nvmlDeviceGetFanSpeed(device),
    used=[memory.used, second.used],
    total=[memory.total, second.total],
    processes=[process.usedGpuMemory for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)],
)))
"""
GIB = 1 << 30


def ask(run, tmp_path, use):
    script = tmp_path / "ask.py"
    script.write_text(ASK.format(use=use))
    job = tmp_path / "job.sh"
    # A shell script finds its Python itself: this one needs no torch.
    job.write_text(f"exec {sys.executable} {script}")
    ran = run("sh", job)
    assert ran.status == 0, ran.lines
    return ran, json.loads(ran.lines[-1])


def test_sensors_answer_as_those_of_an_idle_gpu_and_are_named(run, tmp_path):
    ran, said = ask(run, tmp_path, True)
    in_use = GIB + 256 * (1 << 20)
    assert said == {
        "name": "NVIDIA GeForce RTX 3090",
        "uuid": "GPU-",
        "driver": True,
        "utilisation": [0, 0],
        "temperature": 35,
        "newer": 35,
        "power": True,
        "clocks": [1695, 9751],
        "fan": 30,
        "used": [in_use, in_use],
        "total": [24 * GIB, 24 * GIB],
        "processes": [in_use],
    }
    assert "utilisation, temperature, power" in ran.unknown
    assert "those of an idle GPU" in ran.unknown


def test_asking_alone_uses_no_device(run, tmp_path):
    ran, said = ask(run, tmp_path, False)
    assert (said["used"], said["processes"]) == ([0, 0], [])
    assert ran.verdict["outcome"] == "no_device"
