# SPDX-License-Identifier: MIT OR Apache-2.0
"""Comments in the allocator cite sections of docs/concepts/pytorch-allocator.md: each of them must be there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBER = r"\d+(?:\.\d+)?"


def cited():
    """Section numbers in comments, with where they are cited."""
    for file in sorted((ROOT / "crates/tonnage-alloc/src/torch").rglob("*.rs")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            comment = re.match(r"\s*//[/!]?(.*)", line)
            if comment:
                found = re.findall(rf"specification ({NUMBER}(?:, {NUMBER})*)", comment[1])
                found += re.findall(rf"\((?!0)({NUMBER})(?:, [^)\d][^)]*)?\)", comment[1])
                for section in ", ".join(found).split(", "):
                    if section:
                        yield section, f"{file.name}:{number}"


def sections():
    """Numbers of headings and of the items of numbered lists below them."""
    there, chapter = set(), ""
    for line in (ROOT / "docs/concepts/pytorch-allocator.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(rf"##+ ({NUMBER})\.? ", line):
            chapter = heading[1]
            there.add(chapter)
        elif item := re.match(r"(\d+)\. ", line):
            there.add(f"{chapter}.{item[1]}")
    return there


def test_every_cited_section_is_there():
    citations = list(cited())
    assert len(citations) > 40
    there = sections()
    assert [f"{where} cites {section}" for section, where in citations if section not in there] == []
