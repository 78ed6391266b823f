# SPDX-License-Identifier: MIT OR Apache-2.0
"""Words of the pages: phrases that readers stumbled over do not come back. docs/glossary.md has the terms to use."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if "reference" not in page.parts]
#: A regular expression, and what to write instead.
INSTEAD = {
    r"can be played|GPU to play|is played": "simulated",
    r"own word\b": "reported by PyTorch",
    r"not for want of": "not because of",
    r"held, not handed out": "cached by PyTorch",
    r"truly short|simply short": "needs more than the GPU has",
    r"(held|hold|holds) against": "compared with",
    r"\b(all|half-open|known|knew all|with) lives\b|\bsizes and lives\b": "lifetimes",
    r"\bwere tried\b": "tested with",
    r"they were made of": "that produced them",
    r"the house\b|\bsisters\b|\brivals?\b": "the plain word",
    r"whose bytes": "categories",
    r"no sandbox|no exception\b": "not a …",
    r"\bread off\b": "read from",
    r"\bis told (from|by)|\bare told by": "is detected from, is identified by",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_plain_words(page):
    # The output of commands is not prose.
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = " ".join(prose.split())
    found = {m[0]: better for words, better in INSTEAD.items() for m in re.finditer(words, text, re.IGNORECASE)}
    assert found == {}
