# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds the crates we depend on to deny.toml: their licences and where they come from.

cargo-deny does this and more, but takes too long to build for CI to do it. This reads the same lists with nothing but
Python and cargo. Where cargo-deny is there it runs as well, with advisories if their database can be reached; an
advisory that is found fails, a database out of reach is only said.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]


def main():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    allowed = set(rules["licenses"]["allow"])
    registries = {f"registry+{url}" for url in rules["sources"]["allow-registry"]}
    problems, used, crates = [], set(), {}
    for target in rules["graph"]["targets"]:
        crates |= resolved(target)
    for name, crate in sorted(crates.items()):
        if crate["source"] not in registries | {None}:
            problems.append(f"{name}: comes from {crate['source']}")
        needed = accepted(crate["license"] or "", allowed)
        if needed is None:
            problems.append(f"{name}: its licence is not allowed: {crate['license'] or 'none is given'}")
        else:
            used |= needed
    problems += [f"deny.toml: {licence} is allowed and not met" for licence in sorted(allowed - used)]
    for problem in problems:
        print(problem)
    print(f"{len(crates)} crates, {len(used)} licences, {len(problems)} problems")
    return 1 if problems or not with_cargo_deny() else 0


def resolved(target):
    """The crates that are built for a target, with all features and tests."""
    line = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", target]
    told = json.loads(subprocess.run(line, cwd=ROOT, capture_output=True, check=True).stdout)
    nodes = {node["id"] for node in told["resolve"]["nodes"]}
    crates = [crate for crate in told["packages"] if crate["id"] in nodes]
    return {f"{crate['name']} {crate['version']}": crate for crate in crates}


def accepted(expression, allowed):
    """Of an SPDX expression the allowed licences that satisfy it; None if none do."""
    words = re.findall(r"[()/]|[^\s()/]+", expression)

    def alternatives():
        found = together()
        while words and words[0] in ("OR", "/"):
            words.pop(0)
            other = together()
            found = other if found is None else found
        return found

    def together():
        found = one()
        while words and words[0] == "AND":
            words.pop(0)
            other = one()
            found = None if found is None or other is None else found | other
        return found

    def one():
        if not words:
            return None
        word = words.pop(0)
        if word == "(":
            found = alternatives()
            return found if words and words.pop(0) == ")" else None
        if words and words[0] == "WITH":
            word = f"{word} WITH {words[1]}" if len(words) > 1 else ""
            del words[:2]
        return {word} if word in allowed else None

    found = alternatives()
    return None if words else found


def with_cargo_deny():
    """Whether cargo-deny has nothing against it either, as far as it can be asked."""
    if not shutil.which("cargo-deny"):
        print("advisories: not checked, cargo-deny is not there")
        return True
    deny = ["cargo", "deny", "--color", "never", "--all-features"]
    good = subprocess.run([*deny, "check", "licenses", "bans", "sources"], cwd=ROOT).returncode == 0
    if subprocess.run(["cargo", "deny", "fetch", "db"], cwd=ROOT, capture_output=True).returncode:
        print("advisories: not checked, their database cannot be reached")
        return good
    return subprocess.run([*deny, "check", "--disable-fetch", "advisories"], cwd=ROOT).returncode == 0 and good


if __name__ == "__main__":
    sys.exit(main())
