# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage mcp` as a coding assistant sees it: the official client, and a real torch.

`TONNAGE` names the command, with its first words if it has any; `TORCH_PYTHON` a Python with torch. The client's own
Python needs none.
"""

import asyncio
import json
import os
import shlex
import time
from pathlib import Path

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

TONNAGE = shlex.split(os.environ.get("TONNAGE", str(Path(__file__).parents[2] / "target" / "debug" / "tonnage")))
PYTHON = os.environ.get("TORCH_PYTHON", "python")

# 1,024 rows of 16,384 numbers are 64 MiB.
TRAIN = """
import sys, torch
print("loss", 1, flush=True)
batch = int(sys.argv[1])
model = torch.nn.Linear(16384, 1024, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(torch.zeros(batch, 16384, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ENDLESS = """
import pathlib, time, torch
torch.zeros(1024, device="cuda")
pathlib.Path("started").touch()
try:
    while True:
        time.sleep(0.05)
finally:
    pathlib.Path("ended").touch()
"""
BUDGET = """
[[budget]]
name = "train"
run = {run}
gpu = "rtx3090"
peak = "1 GiB"
"""
MIB = 1 << 20


class Assistant:
    """A client with a session."""

    def __init__(self, session):
        self.session = session
        self.progress = []

    async def call(self, tool, **arguments):
        async def record_progress(progress, total, message):
            self.progress.append((progress, message))

        return await self.session.call_tool(tool, arguments, progress_callback=record_progress)


def dialogue(folder, talk):
    """Starts the server in `folder`, and lets `talk` send requests."""

    async def all_of_it():
        variables = {name: os.environ[name] for name in ("TONNAGE_STANDIN",) if name in os.environ}
        # The test reads what its jobs write.
        variables["TONNAGE_PASS_THROUGH"] = str(folder)
        variables["TONNAGE_GPU"] = "h100-80gb"
        server = StdioServerParameters(command=TONNAGE[0], args=[*TONNAGE[1:], "mcp"], cwd=str(folder), env=variables)
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            await talk(Assistant(session))

    asyncio.run(all_of_it())


def text(result):
    return "\n".join(part.text for part in result.content)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "endless.py").write_text(ENDLESS)
    run = json.dumps([PYTHON, "train.py", "64"])
    (tmp_path / "tonnage.toml").write_text(BUDGET.format(run=run))
    return tmp_path


def test_an_assistant_asks_before_it_rents(project):
    async def talk(assistant):
        listed = (await assistant.session.list_tools()).tools
        assert [tool.name for tool in listed] == ["run", "fit", "check", "explain", "replay", "gpus"]
        by_name = {tool.name: tool for tool in listed}
        assert by_name["run"].input_schema["required"] == ["command"]
        executes = {name for name, tool in by_name.items() if "EXECUTES" in tool.description}
        assert executes == {"run", "fit", "check"}
        assert executes == {name for name, tool in by_name.items() if not tool.annotations.read_only_hint}

        gpus = await assistant.call("gpus")
        assert "rtx3090" in text(gpus) and not gpus.is_error
        one = await assistant.call("gpus", name="rtx3090")
        capacity = one.structured_content["gpu"]["total_memory"]["value"]

        # Two questions at a time, in one server.
        fits, short = await asyncio.gather(
            assistant.call("run", command=[PYTHON, "train.py", "64"], gpu="rtx3090"),
            assistant.call("run", command=[PYTHON, "train.py", "64"], capacity="600MiB", output="short.tonnage"),
        )
        assert not fits.is_error
        assert text(fits).startswith("fits on NVIDIA GeForce RTX 3090")
        verdict = fits.structured_content
        assert verdict["outcome"] == "fits"
        assert verdict["capacity"]["bytes"] == capacity
        assert Path(verdict["recording"]) == project / "train.tonnage"
        # That it does not fit is an answer.
        assert not short.is_error
        assert short.structured_content["outcome"] == "does_not_fit"
        assert text(short).startswith("does not fit")
        times = [progress for progress, _ in assistant.progress]
        assert assistant.progress and all("GPU 0" in message for _, message in assistant.progress), times

        why = await assistant.call("explain", what="short.tonnage")
        assert text(why).startswith("out of memory") and "train.py:" in text(why)
        assert why.structured_content["outcome"] == "out_of_memory"
        larger = await assistant.call("replay", file="short.tonnage", gpu="rtx3090", allocators=["torch"])
        track = larger.structured_content["tracks"][0]
        assert track["allocators"][0]["outcome"]["kind"] == "completes", track

        largest = await assistant.call("fit", command=[PYTHON, "train.py", "{batch=512..8192*2}"], capacity="1200MiB")
        assert not largest.is_error, text(largest)
        row = largest.structured_content["rows"][0]
        best, beyond = (dict(row[which]["values"])["batch"] for which in ("largest", "next"))
        assert int(beyond) == 2 * int(best)
        assert f"batch {best} fits" in text(largest)

        budgets = await assistant.call("check")
        assert not budgets.is_error
        assert budgets.structured_content["budgets"][0]["name"] == "train"
        assert text(budgets).startswith("holds")

    dialogue(project, talk)


def test_a_program_that_fails_is_an_error_with_what_it_printed(project):
    (project / "broken.py").write_text("import torch\nprint('hello')\nraise ValueError('no data')\n")

    async def talk(assistant):
        broken = await assistant.call("run", command=[PYTHON, "broken.py"])
        assert broken.is_error
        assert "hello" in text(broken) and "ValueError: no data" in text(broken)
        assert broken.structured_content["outcome"] == "failed"
        nowhere = await assistant.call("run", command=[PYTHON, "train.py"], directory=str(project / "none"))
        assert nowhere.is_error and "next step" in text(nowhere)

    dialogue(project, talk)


def test_a_call_that_is_cancelled_ends_the_program(project):
    async def appears(name):
        since = time.monotonic()
        while not (project / name).exists():
            assert time.monotonic() - since < 60, name
            await asyncio.sleep(0.05)

    async def talk(assistant):
        call = asyncio.create_task(assistant.call("run", command=[PYTHON, "endless.py"]))
        await appears("started")
        call.cancel()
        await appears("ended")
        # And the server is there for the next question.
        assert not (await assistant.call("gpus", name="h100")).is_error

    dialogue(project, talk)
