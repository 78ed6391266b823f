# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the seeds of the fuzz targets to fuzz/corpus: `TONNAGE=target/debug/tonnage python3 fuzz/seeds.py`.

Each is small and whole, so that the fuzzer starts from inputs that reach every part of a reader.
"""

import json
import os
import pickle
import random
import subprocess
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def write(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(content if isinstance(content, bytes) else content.encode())


def snapshot():
    frame = {"name": "forward", "filename": "model.py", "line": 12}
    stack = [frame, {"name": "main", "filename": "train.py", "line": 70000}]

    def event(action, addr, size, **more):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1783874041854969,
                "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": stack} | more

    blocks = [
        {"address": 0x7000000000, "size": 1536, "requested_size": 1500, "state": "active_allocated", "frames": stack},
        {"address": 0x7000000600, "size": 2095616, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {"device": 0, "address": 0x7000000000, "total_size": 2097152, "allocated_size": 1536,
               "active_size": 1536, "requested_size": 1500, "stream": 0, "segment_type": "small",
               "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}
    oom = event("oom", 0, 1 << 33, device_free=123456789, frames=[])
    del oom["addr"]
    return {
        "segments": [segment],
        "device_traces": [[event("segment_alloc", 0x7000000000, 2097152), event("alloc", 0x7000000000, 1500),
                           event("free_requested", 0x7000000600, 7, stream=(1 << 63) + 5), oom,
                           event("teleport", 5, 6, surprise=[1, 2.5, None, True])], []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "max_split_size": -1,
                               "roundup_power2_divisions": {"1": 0, "2": 4}},
        "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 17}],
    }


def main():
    whole = snapshot()
    for protocol in range(6):
        write("pickle", f"protocol-{protocol}", pickle.dumps(whole, protocol))
    write("pickle", "list", pickle.dumps(whole["segments"], 2))
    write("pickle", "runs-code", pickle.dumps(print, 2))
    write("json", "snapshot", json.dumps(whole))
    write("json", "event", json.dumps(whole["device_traces"][0][1]))
    write("json", "escapes", '{"a\\u00e9\\ud83d\\ude00": [-1.5e+3, true, null, "\\n\\"", 99999999999999999999]}')
    log = ("17,23:59:59.999999,allocate,0x7f00000000,1024,0x0\n17,00:00:00.000001,free,0x7f00000000,1024,0x0\r\n"
           "17,00:00:01:500000,allocate failure,(nil),99,0x5\n")
    write("rmm", "log", log)
    plan = "a,0,5,100\nb,5,9,50\n\nc,-3,8,18446744073709551615\n"
    write("planner", "plain", plan)
    write("planner", "offsets", "4096,100,9,2,x\n0,50,3,1,y\n")
    # The first byte reports what is wanted and which header stands above.
    write("plan_csv", "plain", b"\x08" + plan.encode())
    write("plan_csv", "capacity", b"\x09a,0,5,100\nb,5,9,50\nc,-3,8,1048477\n")
    write("plan_csv", "everything", b"\x14a,0,9,8,4,3-6,4\nb,-3,9,4,4,,\nc,3,6,6,2,4-5 5-5,0\n")
    write("plan_csv", "own-header", b"\x00\xef\xbb\xbfbuffer, start,end ,\"size\",size,odd\nx,0,3,,7,z\n\n")
    write("plan_csv", "last-moments", b"\x1d0,0-1,512,5,9223372036854775807,-9223372036854775808,a\n")
    for model in sorted((CORPUS.parents[1] / "crates/tonnage-analysis/tests/onnx").glob("*.onnx")):
        write("plan_onnx", model.stem, model.read_bytes())
    files = {
        "pickle": pickle.dumps(whole, 4),
        "json": json.dumps(whole).encode(),
        "rmm": b"Thread,Time,Action,Pointer,Size,Stream\n" + log.encode(),
        "planner": b"id,lower,upper,size\n" + plan.encode(),
    }
    for name, content in files.items():
        write("any", name, content)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pickle", "rmm"):
            source, trace = Path(folder, name), Path(folder, "out.tonnage")
            source.write_bytes(files[name])
            subprocess.run([os.environ["TONNAGE"], "import", source, "-o", trace], check=True, capture_output=True)
            write("trace", name, trace.read_bytes())
            trace.unlink()
    keys = ["max_split_size_mb:40", "max_non_split_rounding_mb:30", "roundup_power2_divisions:[256:1,512:2,>:4]",
            "garbage_collection_threshold:0.8", "expandable_segments:True", "backend:native",
            "large_segment_size_mb:32", "pinned_use_background_threads:True", "per_process_memory_fraction:0.5",
            "throw_on_cudamalloc_oom:True", "expandable_segments_reserve:0.3", "graph_capture_record_stream_reuse:True"]
    for number, key in enumerate(keys):
        write("settings", f"key-{number}", key)
    write("settings", "change", ",".join(keys[:5]) + "\n" + ",".join(keys[5:]))
    # Bytes are calls and rows there, so random ones are scripts and recordings.
    source = random.Random(3)
    for number, length in enumerate((60, 400, 1500)):
        write("policy", f"random-{number}", source.randbytes(length))
        write("replay", f"random-{number}", source.randbytes(length))


if __name__ == "__main__":
    main()
