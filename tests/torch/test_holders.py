# SPDX-License-Identifier: MIT OR Apache-2.0
"""The holder of each block, as Python reports it: names, sorts and lines, at an out-of-memory and at peaks."""

import collections

from conftest import PYTHON, SCRIPTS
from test_run import without_times

MIB = 1 << 20
SCRIPT = SCRIPTS / "holders.py"


def lines(script):
    """The number of each line that ends with a comment of one word, by that word."""
    found = {}
    for number, line in enumerate(script.read_text().splitlines(), 1):
        code, _, word = line.rpartition("  # ")
        if code and word.isidentifier():
            found[word] = number
    return found


def at_census(table, reason):
    """The live blocks after the last census for this reason, and the marks up to it.

    The requested bytes of each block, the sort of its holder, the name and the line.
    """
    live, held, marks, answer = {}, {}, [], None
    for row in table.select(["kind", "address", "requested", "name", "text"]).to_pylist():
        if row["kind"] == "alloc":
            live[row["address"]] = row["requested"]
        elif row["kind"] == "free_requested":
            live.pop(row["address"])
            held.pop(row["address"], None)
        elif row["kind"] == "holder":
            assert row["address"] in live
            held[row["address"]] = row
        elif row["kind"] == "mark":
            marks.append((row["text"], row["name"]))
            if (row["text"], row["name"]) == ("census_end", reason):
                blocks = []
                for address, size in live.items():
                    # For a large tensor, type and shape follow.
                    sort, _, place = held[address]["text"].partition("\t")[0].partition(" ")
                    blocks.append((size, sort, held[address]["name"] or "", place))
                answer = blocks, list(marks)
    return answer


def test_each_holder_is_named_with_its_line(tonnage):
    run = tonnage("holders.py", options=["--capacity", "4GiB"])
    assert run.code == 0, run.err
    assert "nothing was kept" in run.err
    table = run.table()
    kinds = table.column("kind").to_pylist()
    # Python's report at the failure stands before it.
    assert "holder" in kinds[kinds.index("oom") - 10 : kinds.index("oom")]
    blocks, marks = at_census(table, "oom")
    place = {word: f"{SCRIPT}:{number}" for word, number in lines(SCRIPT).items()}
    found = collections.Counter((size // MIB, sort, name, place) for size, sort, name, place in blocks if size >= MIB)
    expected = {
        (2, "variable", "plain", place["plain"]): 1,
        (3, "list", "kept", place["kept"]): 3,
        (5, "dict", "trainer.history", place["history"]): 2,
        (6, "attribute", "trainer.last", place["last"]): 1,
        (4, "list", "Trainer.shared", place["shared"]): 2,
        (9, "list", "keys", place["keys"]): 1,
        (11, "closure", "inner (make)", place["inner"]): 1,
        (12, "dict", "memory (remember)", place["memory"]): 1,
        (13, "variable", "waiting (numbers)", place["waiting"]): 1,
        (18, "traceback", "lost (fail) by caught", place["caught"]): 1,
        (19, "list", "saved", place["saved"]): 2,
        (23, "graph", "total", place["total"]): 3,
        (29, "graph", "hidden", place["hidden"]): 3,
        (31, "graph", "losses", place["losses"]): 2,
        (37, "module", "policy", place["policy"]): 1,
        (37, "grad", "policy", place["policy"]): 1,
        (37, "optimizer", "optimizer", place["optimizer"]): 1,
        (37, "module", "reference", place["reference"]): 1,
        (42, "variable", "pair", place["pair"]): 2,
        (44, "variable", "frozen", place["frozen"]): 1,
        (43, "dict", "outputs (evaluate)", place["outputs"]): 1,
        (47, "variable", "local (evaluate)", place["local"]): 1,
    }
    assert {key: found[key] for key in expected} == expected
    assert ("model", "trained policy") in marks
    assert ("model", "frozen reference") in marks
    assert not any(sort == "census_cut" for sort, _ in marks), marks


TASKS = """
import asyncio
import torch


async def make():
    return torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")


async def fail():
    await asyncio.sleep(0)
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("nothing was kept")


async def main():
    await asyncio.gather(make(), make(), fail())


asyncio.run(main())
"""


def test_what_asyncio_keeps_is_the_result_of_a_task(tonnage, tmp_path):
    script = tmp_path / "tasks.py"
    script.write_text(TASKS)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    blocks, _ = at_census(run.table(), "oom")
    assert [name for size, _, name, _ in blocks if size == 64 << 20] == ["<result of an asyncio task>"] * 2


CALL = """
import torch


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.middle = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())

    def forward(self, x):
        return self.middle(torch.cat([x, x]))


model = Whole()
for _ in range(3):
    model(torch.ones(256 << 20, device="cuda"))
"""


def test_the_arguments_of_a_call_belong_to_the_library(tonnage, tmp_path):
    """`args` of torch's own call: the script has no line to end its life."""
    script = tmp_path / "call.py"
    script.write_text(CALL)
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    rows = run.table().select(["kind", "name", "text"]).to_pylist()
    arguments = [row for row in rows if row["kind"] == "holder" and (row["name"] or "").startswith("args")]
    assert arguments
    assert all(row["text"].endswith("\tlibrary") for row in arguments), arguments


def test_cycles_are_found_after_temporaries_without_a_name(tonnage):
    """Results that a running line has not assigned yet have no name. Searches for them must not end later ones."""
    program = SCRIPTS.parent / "causes" / "planted" / "p06_search_tree.py"
    run = tonnage(None, command=[PYTHON, str(program)], options=["--capacity", "4GiB"])
    assert run.code == 0, run.err
    blocks, _ = at_census(run.table(), "end")
    kept = [name for size, _, name, _ in blocks if size == 128 << 20]
    assert len(kept) == 25
    assert all(name.startswith("<cycle: Node.state") for name in kept), kept


def test_two_censuses_say_the_same_of_two_runs(tonnage):
    first, second = (tonnage("holders.py", options=["--capacity", "2GiB"]) for _ in range(2))
    assert first.code == second.code == 0, first.err
    assert without_times(first.table()).equals(without_times(second.table()))
    _, marks = at_census(first.table(), "end")
    assert marks.count(("census", "peak")) > 2
