# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes LICENSE-THIRD-PARTY: the licenses of the crates that are part of the wheel.

    python3 .ci/licenses.py [FILE]

The file is made for a release and not committed. A crate without a license file is listed with its SPDX expression.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"
# The module, and the library that it embeds.
ROOTS = ("tonnage-py", "tonnage-standin")
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def main(path: Path) -> int:
    line = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    line += ["--features", "tonnage-py/bundled"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    metadata = json.loads(done.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    foreign = [packages[one] for one in reachable(metadata, packages) if packages[one]["source"]]
    foreign.sort(key=lambda package: (package["name"], package["version"]))
    path.write_text("\n".join(describe(foreign)), encoding="utf-8")
    print(f"{path.name}: {len(foreign)} crates, {path.stat().st_size:,} bytes")
    return 0


def reachable(metadata: dict, packages: dict) -> set[str]:
    """The packages that end up in the program: no tools of the build, no tests."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [one for one, package in packages.items() if package["name"] in ROOTS and not package["source"]]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return seen


def describe(packages: list[dict]) -> list[str]:
    lines = ["The wheel of tonnage contains the following crates.", ""]
    lines += [f"{one['name']} {one['version']}: {one['license'] or 'see its license file'}" for one in packages]
    # Many crates have the same text.
    texts: dict[str, list[str]] = {}
    for one in packages:
        folder = Path(one["manifest_path"]).parent
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name.upper().startswith(NAMES):
                text = file.read_text(encoding="utf-8", errors="replace").strip()
                texts.setdefault(text, []).append(f"{one['name']} {one['version']}")
    for text, names in texts.items():
        lines += ["", "=" * 100, ", ".join(dict.fromkeys(names)), "=" * 100, "", text]
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "LICENSE-THIRD-PARTY")))
