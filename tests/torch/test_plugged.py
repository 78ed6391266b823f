# SPDX-License-Identifier: MIT OR Apache-2.0
"""tonnage's allocator in the place of PyTorch's, under a dry run with the real PyTorch."""

import json
import pickle
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE, environment

LIBRARY = str(Path(TONNAGE).resolve().with_name("libtonnage_torch.so"))
GIB = 1 << 30


LENGTHS = ("128", "224")  # of the sequences of the transformer


def plugged(script, *arguments):
    return [PYTHON, str(SCRIPTS / "plugged.py"), LIBRARY, str(SCRIPTS / script), *arguments]


def requests(result):
    """The sizes of all blocks, in order, as the allocators round them."""
    table = result.table()
    columns = (table[name].to_pylist() for name in ("kind", "size", "requested"))
    return [-(-(requested or size) // 512) * 512 for kind, size, requested in zip(*columns) if kind == "alloc"]


def replayed(result):
    """The result of PyTorch's own allocator with the same requests."""
    line = [TONNAGE, "replay", "--json", "--alloc", "torch", str(result.recording)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)["tracks"][0]["allocators"][0]


def test_streams_threads_and_graphs_are_safe(tonnage):
    result = tonnage(
        None, command=plugged("plugged_checks.py"), options=["--gpu", "rtx3090", "--gpus", "2"], json=False
    )
    assert result.code == 0, result.out + result.err
    assert 'left {"blocks": 0, "blocks_waiting_for_streams": 0, "unknown_frees": 0}' in result.out
    assert "refused: tonnage: memory on GPU 1 was requested, and this process uses tonnage's allocator" in result.out
    assert "torch.cuda.set_per_process_memory_fraction limits it to 2.3" in result.out
    # The verdict knows the allocator, and does not mention PyTorch's allocator or lines it cannot know.
    assert "kept by tonnage's allocator" in result.out
    assert "it ran out of memory 2 times and went on" in result.out
    said = result.out.split("statistics", 1)[1]
    assert "by PyTorch" not in said and "PyTorch caches" not in said
    assert "held by" not in result.out


def test_a_transformer_fits_on_a_smaller_gpu(tonnage):
    small = ["--gpu", "rtx3090", "--capacity", "2.95GiB"]
    native = tonnage("transformer.py", *LENGTHS, options=[*small, "--stop-at-oom"])
    own = tonnage(None, command=plugged("transformer.py", *LENGTHS), options=small)
    assert native.verdict["outcome"] == "does_not_fit"
    assert own.code == 0, own.out + own.err
    assert own.verdict["outcome"] == "fits" and own.verdict["allocator"] == "tonnage"
    # The program requests the same; it only gets further.
    asked = requests(native)
    assert len(asked) > 1000 and requests(own)[: len(asked)] == asked
    device = own.verdict["devices"][0]
    assert device["reserved_known"]
    statistics = json.loads(own.err.split("statistics ", 1)[1].splitlines()[0])
    assert device["peak_reserved"] == statistics["reserved_bytes.peak_ever"]
    assert device["peak_allocated"] == statistics["allocated_bytes.peak_ever"]
    assert device["peak_reserved"] <= 1.02 * device["peak_allocated"]
    assert device["at_peak"]["other"] == 0
    assert statistics["pages_moved"] > 0
    # The replay of such a recording is one with tonnage's allocator, on a device that may be smaller still.
    assert 0.99 * device["peak_used"] < own.verdict["margin"]["smallest"] <= device["peak_used"]
    assert replayed(own)["smallest"]["bytes"] > 2.95 * GIB


def test_a_plan_of_a_dry_run_places_every_block(tonnage, tmp_path):
    native = tonnage("transformer.py", *LENGTHS, options=["--gpu", "rtx3090"])
    plan = tmp_path / "transformer.plan"
    line = [TONNAGE, "plan", str(native.recording), "--for-runtime", "-o", str(plan)]
    planned = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert planned.returncode == 0, planned.stderr
    own = tonnage(None, command=plugged("transformer.py", *LENGTHS), options=["--gpu", "rtx3090"], PLAN=str(plan))
    assert own.code == 0, own.out + own.err
    statistics = json.loads(own.err.split("statistics ", 1)[1].splitlines()[0])
    assert statistics["requests_served"] == len(requests(native))
    assert statistics["requests_at_planned_places"] >= 0.999 * statistics["requests_served"]
    assert statistics["steps"] == len(LENGTHS)
    # The one request that is elsewhere may take pages of places that are still to come.
    elsewhere = statistics["requests_served"] - statistics["requests_at_planned_places"]
    assert statistics["waits"] == 0 and statistics["pages_moved"] <= 4 * elsewhere
    assert statistics["reserved_bytes.peak_ever"] <= 1.01 * statistics["allocated_bytes.peak_ever"]
    # A file that is not a plan is reported, with the line.
    plan.write_text("tonnage plan 1\nnonsense\n")
    wrong = tonnage(None, command=plugged("transformer.py"), options=["--gpu", "rtx3090"], PLAN=str(plan))
    assert "line 2 is not understood; `tonnage plan RECORDING --for-runtime" in wrong.err


@pytest.mark.parametrize("script", [("resnet.py",), ("kv_cache.py", "1")])
def test_less_is_reserved(tonnage, script):
    own = tonnage(None, command=plugged(*script), options=["--gpu", "rtx3090"])
    assert own.code == 0, own.out + own.err
    device, native = own.verdict["devices"][0], replayed(own)
    assert device["peak_reserved"] < native["peak_reserved"]
    assert own.verdict["margin"]["smallest"] < native["smallest"]["bytes"]
    assert device["peak_reserved"] <= 1.02 * device["peak_allocated"]


def test_running_out_is_told_as_it_is(tonnage):
    result = tonnage(
        None, command=plugged("transformer.py", *LENGTHS), options=["--gpu", "rtx3090", "--capacity", "2.8GiB"]
    )
    verdict = result.verdict
    assert verdict["outcome"] == "does_not_fit"
    asked = verdict["devices"][0]["out_of_memory"]["requested"] / (1 << 20)
    assert f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked:.2f} MiB" in result.err
    # The second run, without a limit, goes to the end.
    assert verdict["need"]["known"] == "replayed" and verdict["need"]["expandable"] is None
    assert 2.8 * GIB < verdict["need"]["bytes"] < 2.95 * GIB
    explained = subprocess.run([TONNAGE, "explain", str(result.recording)], capture_output=True, text=True, timeout=60)
    assert "kept by tonnage's allocator" in explained.stdout
    assert "expandable" not in explained.stdout


def test_plain_plugging_works_and_refuses_graphs(tonnage, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        f"""
import torch
plugged = torch.cuda.memory.CUDAPluggableAllocator({LIBRARY!r}, "tonnage_malloc", "tonnage_free")
torch.cuda.memory.change_current_allocator(plugged)
x = torch.ones(1024, 1024, device="cuda")
y = x @ x
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = x @ x
except RuntimeError as error:
    print("refused:", str(error).splitlines()[0])
"""
    )
    result = tonnage(None, command=[PYTHON, str(script)], options=["--gpu", "rtx3090"], json=False)
    assert result.code == 0, result.out + result.err
    assert "refused: tonnage: a CUDA graph is captured" in result.out
    assert "kept by tonnage's allocator" in result.out
    # No setting of PyTorch's allocator is proposed to a program that does not use it.
    tuned = subprocess.run([TONNAGE, "tune", str(result.recording)], capture_output=True, text=True, timeout=120)
    assert tuned.stdout.startswith("recorded with tonnage's own allocator, which takes no settings")
    assert "export" not in tuned.stdout


def pickled(path):
    """The contents of a snapshot file, read as its viewers do."""
    with open(path, "rb") as file:
        return pickle.load(file)


def go_back(snapshot):
    """Undoes the events of a snapshot one by one, as PyTorch's viewer does: what is live always lies in segments."""
    segments = {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
    blocks = {
        block["address"]: block["state"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] != "inactive"
    }
    most = sum(segments.values())
    for event in reversed(snapshot["device_traces"][0]):
        action, address, size = event["action"], event.get("addr"), event["size"]
        if action == "alloc":
            assert blocks.pop(address) == "active_allocated"
        elif action == "free_completed":
            assert address not in blocks
            blocks[address] = "active_pending_free"
        elif action == "free_requested":
            assert blocks[address] == "active_pending_free"
            blocks[address] = "active_allocated"
        elif action == "segment_unmap":
            assert not any(start < address + size and address < start + length for start, length in segments.items())
            segments[address] = size
            for start in sorted(segments):
                while start in segments and start + segments[start] in segments:
                    segments[start] += segments.pop(start + segments[start])
            most = max(most, sum(segments.values()))
        elif action == "segment_map":
            start = max(start for start in segments if start <= address)
            end = start + segments.pop(start)
            assert address + size <= end, "what was mapped is not there"
            if start < address:
                segments[start] = address - start
            if address + size < end:
                segments[address + size] = end - address - size
        if action in ("segment_map", "alloc", "free_completed"):
            inside = (any(start <= block < start + length for start, length in segments.items()) for block in blocks)
            assert all(inside), "a live block without memory"
    return segments, blocks, most


def test_memory_is_given_back_and_the_snapshot_tells_it(tonnage, tmp_path):
    path = tmp_path / "snapshot.pickle"
    result = tonnage(None, command=plugged("plugged_pause.py", str(path)), options=["--gpu", "rtx3090"], json=False)
    assert result.code == 0, result.out + result.err
    assert "refused: CUDA out of memory. Resuming 'cache' needs " in result.out
    assert " more are needed. It stays paused." in result.out
    assert "refused: tonnage: a stream is captured into a graph" in result.out
    snapshot = pickled(path)
    statistics = json.loads(result.out.split("at the end ", 1)[1].splitlines()[0])
    # Paused memory is in the segments, because PyTorch's form has no word for it.
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    assert total == statistics["reserved_bytes.current"] + statistics["paused_bytes"]
    for name, key in (("allocated_bytes.current", "active_size"), ("requested_bytes.current", "requested_size")):
        assert sum(segment[key] for segment in snapshot["segments"]) == statistics[name]
    assert go_back(snapshot)[:2] == ({}, {}), "the events are all there, so there was nothing before them"
    run = [TONNAGE, "info", "--json", str(path)]
    info = json.loads(subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout)
    told = info["recordings"][0]
    assert told["allocator"] == "tonnage" and told["torch"].startswith("2.")
    assert told["devices"][0]["peak_reserved"]["known"] == "at_most", "what is paused counts there"
    for command in (["explain"], ["replay", "--no-smallest", "--alloc", "tonnage"]):
        line = [TONNAGE, *command, str(path)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        # The last request of the script is one that no GPU could serve.
        assert done.returncode in (0, 1) and not done.stderr.startswith("error"), done.stderr
        assert "by PyTorch" not in done.stdout


def test_memory_makes_way_before_a_request_is_refused(tonnage):
    result = tonnage(None, command=plugged("plugged_spill.py"), options=["--gpu", "rtx3090"], json=False)
    assert result.code == 0, result.out + result.err
    refused = [line for line in result.out.splitlines() if line.startswith("refused: ")]
    assert "'state' was spilled, and bringing it back needs " in refused[0], refused
    for words in ("Tried to allocate 10.00 GiB", " more are needed.", "Callbacks freed nothing.", "'state' is in use"):
        assert words in refused[1], refused
    assert "Pausing 'state' would give 8.00 GiB." in refused[1], refused


def test_a_snapshot_of_a_training_goes_back_to_its_beginning(tonnage, tmp_path):
    path = tmp_path / "snapshot.pickle"
    script = tmp_path / "train.py"
    script.write_text(
        f"import runpy, sys\nsys.argv = ['transformer.py', *{LENGTHS!r}]\n"
        f"runpy.run_path({str(SCRIPTS / 'transformer.py')!r}, run_name='__main__')\n"
        f"sys.modules['tonnage.torch'].dump_snapshot({str(path)!r})\n"
    )
    result = tonnage(None, command=plugged(str(script)), options=["--gpu", "rtx3090", "--capacity", "2.95GiB"])
    assert result.code == 0, result.out + result.err
    statistics = json.loads(result.err.split("statistics ", 1)[1].splitlines()[0])
    assert statistics["pages_moved"] > 0
    segments, blocks, most = go_back(pickled(path))
    assert (segments, blocks) == ({}, {})
    assert most == statistics["reserved_bytes.peak_ever"]
    line = [TONNAGE, "info", "--json", str(path)]
    info = json.loads(subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout)
    told = info["recordings"][0]
    assert told["allocator"] == "tonnage"
    exact = {"bytes": statistics["reserved_bytes.peak_ever"], "known": "exact"}
    assert exact.items() <= told["devices"][0]["peak_reserved"].items()


def test_too_late_is_said(tmp_path):
    script = (SCRIPTS / "plugged.py").read_text()
    late = script.replace("allocator.install(", "import torch\ntorch.zeros(1, device='cuda')\nallocator.install(")
    late = late.replace("Path(__file__).parents[3]", f"Path({str(SCRIPTS.parents[2])!r})")
    (tmp_path / "late.py").write_text(late)
    line = [TONNAGE, "run", "--gpu", "rtx3090", "--", PYTHON, str(tmp_path / "late.py"), LIBRARY, "x"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment(), cwd=tmp_path)
    assert "PyTorch has used CUDA already" in done.stderr + done.stdout


def test_pytorch_answers_about_memory(tonnage, tmp_path):
    native = tmp_path / "native.py"
    native.write_text(
        "import torch\ntorch.zeros(1, device='cuda')\nprint('keys', ','.join(sorted(torch.cuda.memory_stats())))\n"
    )
    keys = tonnage(None, command=[PYTHON, str(native)], options=["--gpu", "rtx3090"], json=False)
    keys = next(line for line in keys.out.splitlines() if line.startswith("keys ")).split()[1]
    assert len(keys.split(",")) > 100
    result = tonnage(
        None,
        command=plugged("plugged_answers.py", keys),
        options=["--gpu", "rtx3090"],
        json=False,
        PYTORCH_CUDA_ALLOC_CONF="garbage_collection_threshold:0.8",
    )
    assert result.code == 0, result.out + result.err
    assert "every answer is true" in result.out
    warning = "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8 has no effect"
    assert (result.out + result.err).count(warning) == 1


def test_a_plan_after_the_first_request_is_said(tonnage, tmp_path):
    plan = tmp_path / "some.plan"
    plan.write_text("tonnage plan 1\nend 0\n")
    script = tmp_path / "late.py"
    script.write_text(
        "import sys, torch\ntorch.zeros(1, device='cuda')\n"
        "own = sys.modules['tonnage.torch']\n"
        f"own._set_plan(own._functions(), {str(plan)!r})\n"
    )
    result = tonnage(None, command=plugged(str(script)), options=["--gpu", "rtx3090"], json=False)
    assert "the plan comes too late: memory was requested already" in result.err, result.err
    assert "line -1" not in result.err


def test_a_module_is_run_as_python_does(tmp_path):
    """`python -m tonnage.torch -m package`: without CUDA, with an installation that only takes note."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print('ran', __name__, sys.argv[1:], __package__)")
    (tmp_path / "single.py").write_text("import sys; print('ran', __name__, sys.argv[1:], __package__)")
    source = str(SCRIPTS.parents[2] / "python" / "tonnage" / "torch.py")
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import importlib.util, sys, types\n"
        f"spec = importlib.util.spec_from_file_location('tonnage.torch', {source!r})\n"
        "own = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(own)\n"
        "tonnage = types.ModuleType('tonnage')\ntonnage.torch = own\nsys.modules['tonnage'] = tonnage\n"
        "own.install = lambda plan: print('installed', plan)\n"
        "own._main()\n"
    )
    for arguments, ran in (
        (["-m", "package", "--plan", "theirs", "-m", "x"], "ran __main__ ['--plan', 'theirs', '-m', 'x'] package"),
        (["-m", "single", "a"], "ran __main__ ['a'] "),
        (["-msingle", "a", "-b"], "ran __main__ ['a', '-b'] "),
        (["single.py", "-m", "a"], "ran __main__ ['-m', 'a'] "),
    ):
        line = [PYTHON, str(starter), "--plan", "ours", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        installed, said = done.stdout.splitlines()
        assert installed == "installed ours" and said.startswith(ran), (arguments, done.stdout)
    none = subprocess.run([PYTHON, str(starter)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert none.returncode == 2 and "name a script, or a module with -m" in none.stderr


def test_processes_share_a_gpu_by_agreement(tonnage, tmp_path):
    command = [PYTHON, str(SCRIPTS / "plugged_tenants.py"), LIBRARY, str(tmp_path / "leases")]
    result = tonnage(None, command=command, options=["--gpu", "rtx3090"], json=False)
    assert "every quota was kept" in result.out, result.out + result.err


def test_a_quota_is_the_limit_of_its_process(tonnage, tmp_path):
    script = tmp_path / "tenant.py"
    script.write_text(
        "import sys, torch\n"
        "half = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "try:\n"
        "    torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('fence:', error)\n"
        "try:\n"
        "    sys.modules['tonnage.torch'].install(tenant='other', quota='1GiB')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "sizes = ['8GiB', '500 MB', '1.5GiB', 7]\n"
        "print('sizes', [sys.modules['tonnage.torch']._bytes(size) for size in sizes])\n"
    )
    result = tonnage(
        None,
        command=plugged(str(script)),
        options=["--gpu", "rtx3090"],
        json=False,
        TENANT="eval",
        QUOTA="2GiB",
        TONNAGE_SHARE_DIR=str(tmp_path / "leases"),
    )
    assert result.code == 0, result.out + result.err
    fence = next(line for line in result.out.splitlines() if line.startswith("fence:"))
    assert "CUDA out of memory. Tried to allocate 2.00 GiB." in fence
    assert "This process, 'eval' (" in fence and "holds 1.00 GiB of its quota of 2.00 GiB." in fence
    assert "tonnage's allocator is installed already; give tenant and quota to the first install()" in result.out
    assert f"sizes {[8 << 30, 500_000_000, 3 << 29, 7]}" in result.out
