# SPDX-License-Identifier: MIT OR Apache-2.0
"""When the device uses each block: recordings against counts that the programs make of themselves."""

import bisect
import json

import pytest

KINDS = ("alloc", "free_requested", "used")


def blocks_of(table):
    """Every block, by birth: address, rows of birth and end, and the rows of its first, last and next use."""
    columns = ["kind", "address", "size", "uses", "first_use", "last_use", "next_use"]
    rows = [row for row in table.select(columns).to_pylist() if row["kind"] not in ("meta", "frame")]
    live, blocks = {}, []
    for number, row in enumerate(rows):
        if row["kind"] == "alloc":
            live[row["address"]] = {**row, "born": number, "uses": None}
            blocks.append(live[row["address"]])
        elif row["kind"] in KINDS[1:]:
            block = live.pop(row["address"])
            block["uses"], block["died"] = row["uses"], number
            block["first"] = block["born"] + (row["first_use"] or 0)
            block["last"] = number - row["last_use"] if row["last_use"] else None
            block["next"] = number - row["next_use"] if row["next_use"] else None
    return blocks


def fact(table, name):
    rows = table.select(["kind", "name", "text"]).to_pylist()
    return [row["text"] for row in rows if row["kind"] == "meta" and row["name"] == name]


@pytest.mark.parametrize("program", ["mlp", "images", "attention", "pieces", "algebra"])
def test_no_use_is_missed(tonnage, tmp_path, program):
    counts = tmp_path / "counts.json"
    run = tonnage("uses.py", program, str(counts))
    assert run.code == 0, run.err
    table = run.table()
    assert fact(table, "uses") == ["all"]
    blocks = blocks_of(table)
    births = [block["born"] for block in blocks]
    missed, later, checked = [], [], 0
    for counted in json.loads(counts.read_text()):
        # The last block at this address when the program saw the tensor first.
        same = [block for block in blocks[: counted["seen"]] if block["address"] == counted["address"]]
        block = same[-1]
        assert block["uses"] is not None and block["size"] >= counted["bytes"]
        if not counted["uses"]:
            continue
        checked += 1

        def at(row):
            """How many blocks had been allocated at a use."""
            return bisect.bisect_right(births, row)

        first, last = counted["uses"][0], counted["uses"][-1]
        if block["last"] is None or at(block["last"]) < last[0] or at(block["first"]) > first[1]:
            missed.append((first, last, block))
        elif at(block["last"]) > last[1]:
            later.append((last, block))
    assert checked > 20
    assert not missed, missed[:5]
    # A kernel's parameters may contain what earlier work left there: few blocks seem used once more.
    assert len(later) <= checked // 20, later[:5]


def test_graphs_and_tables_of_addresses_use_what_they_name(tonnage):
    run = tonnage("uses_graph.py")
    assert run.code == 0, run.err
    table = run.table()
    assert fact(table, "uses") == ["all"]
    by_size = {block["size"]: block for block in blocks_of(table)}
    # In the script: what a graph reads is used by each of its five launches, and once before.
    static = by_size[3 << 20]
    assert static["uses"] >= 6
    assert static["last"] >= by_size[5 << 20]["born"]
    # The address of this block reaches the device in a copy, and the kernel gets only the copy.
    assert by_size[7 << 20]["last"] >= by_size[9 << 20]["born"]
    # Nothing uses this one after its first line.
    assert by_size[12 << 20]["uses"] == 1
