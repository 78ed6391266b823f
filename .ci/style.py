# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counts wording that docs/contributing/style.md advises against, in comments, names, docs and output.

style.toml holds the accepted count of each area and pattern. A count may only fall: a higher one is a problem, and
`python3 .ci/tidy.py --update` commits lower ones to the file. The patterns also match correct sentences, so a count is
an order of magnitude and zero is not the aim.
"""

import re

import tomllib

PATTERNS = {
    "speech": r"\b(tells?|told|telling|says?|said|saying|asks?|asked|asking|hears?|heard|speaks?|spoken?)\b",
    "headless": r"(?:^|[.!?]\s+|^[#*|> -]+)(What|Who|Whose|Whoever|Those|Of)\s(?![^.!?|]*\?)",
    "nobody": r"\b(nobody|somebody|anybody|everybody|whoever|whom)\b",
    "is_no": r"(?<![Tt]here )\b(is|are|was|were) (no|none)\b(?! longer)",
    "words": r"\b(for ever|beside (PyTorch|torch)|decides? by|of its own|to spare|plug-in|lock file|processor time)\b",
}
PATTERNS = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()}
NAMES = re.compile(r"\b(?:fn|def) _?(told|said|own|known|held|found|seen|kept|meant|of|put|give|look)\s*[(<]")
# A comment or a string, whichever comes first: a `//` in a string is not a comment, nor is a quote in a comment.
RUST = re.compile(r'(//[^\n]*)|r(#*)"(.*?)"\2|"((?:[^"\\]|\\.)*)"|\'(?:[^\'\\\n]|\\[^\n]{1,8})\'', re.DOTALL)
PYTHON = re.compile(r'(#[^\n]*)|("""|\'\'\')(.*?)\2|"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', re.DOTALL)
SCRIPT = re.compile(r'(//[^\n]*|/\*.*?\*/)|(`)((?:[^`\\]|\\.)*)`|"((?:[^"\\\n]|\\.)*)"', re.DOTALL)
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,}).*?^\s*\2\s*$|<!--.*?-->|`[^`\n]*`", re.DOTALL | re.MULTILINE)
# Pages that list such words, or repeat what others wrote; the reference is made from comments.
NOT_COUNTED = (
    "docs/contributing/style.md",
    "tests/docs/test_style.py",
    "docs/reference/",
    "tests/data/",
    "CHANGELOG.md",
)
TEST = re.compile(r"(^|/)(tests?|benches|examples)/|/tests\.rs$|^\.ci/")
PRODUCT = ("crates/", "python/", "deploy/")


def text_of(name, text):
    """The comments or prose of a file, its strings, and the area of the former."""
    if name.endswith(".md"):
        # A line that opens a list item, a row or a heading opens a sentence; others continue one.
        prose = FENCE.sub(" ` ", text)
        return re.sub(r"\n(?![\n#*|>-]| *[-*\d])", " ", prose), "", "docs"
    pattern = RUST if name.endswith(".rs") else PYTHON if name.endswith(".py") else SCRIPT
    comments, strings, end = [], [], -1
    tests = text.find("#[cfg(test)]\nmod ")
    for found in pattern.finditer(text):
        comment, ticks, block, line = found.group(1, 2, 3, 4)
        if (
            comment is None
            and ticks in ('"""', "'''")
            and not text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        ):
            comment = block
        if comment is not None:
            # Lines of one comment are one text.
            joined = not text[end : found.start()].strip() if end >= 0 else False
            separator = " " if joined and text.count("\n", end, found.start()) == 1 else "\n"
            comments.append(separator + comment.strip("/!#* \n"))
            end = found.end()
        elif tests < 0 or found.start() < tests:
            strings.append(block or line or "")
    output = "\n".join(strings) if name.startswith(PRODUCT) and not TEST.search(name) else ""
    return "".join(comments), output, "comments"


def counts(files):
    """Matches of each pattern in each area; `files` are pairs of name and text."""
    areas = {area: dict.fromkeys(PATTERNS, 0) for area in ("comments", "docs", "output")} | {"names": {"bare": 0}}
    for name, text in files:
        if name.startswith(NOT_COUNTED) or not name.endswith((".rs", ".py", ".ts", ".md")):
            continue
        prose, output, area = text_of(name, text)
        for pattern, expression in PATTERNS.items():
            areas[area][pattern] += sum(1 for _ in expression.finditer(prose))
            areas["output"][pattern] += sum(1 for _ in expression.finditer(output))
        if area == "comments":
            areas["names"]["bare"] += len(NAMES.findall(text))
    return areas


def problems(root, files, update=False):
    """Counts that are higher than in style.toml. With `update`, lower ones are written to it."""
    path = root / ".ci/style.toml"
    accepted, now = tomllib.loads(path.read_text()), counts(files)
    found, lower = [], []
    for area, patterns in now.items():
        for pattern, count in patterns.items():
            limit = accepted[area][pattern]
            if count > limit:
                found.append(f".ci/style.toml: {area}.{pattern} is {count}, at most {limit} are accepted")
            elif count < limit:
                lower.append(f"{area}.{pattern} {limit} → {count}")
                accepted[area][pattern] = count
    if lower and update:
        path.write_text(render(path.read_text(), accepted))
    elif lower:
        print(f"fewer than accepted: {', '.join(lower)}; commit that with `python3 .ci/tidy.py --update`")
    return found


def render(before, accepted):
    """The file with its opening comment and the given counts."""
    opening = before[: before.index("[")]
    areas = (
        "\n".join([f"[{area}]", *(f"{name} = {count}" for name, count in patterns.items())])
        for area, patterns in accepted.items()
    )
    return opening + "\n\n".join(areas) + "\n"
