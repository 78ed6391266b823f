# SPDX-License-Identifier: MIT OR Apache-2.0
"""Repository rules that no compiler checks.

Every source file states its purpose, no committed file names a machine's own
paths or a package registry, pure crates forbid `unsafe`, global locks of the
stand-in are known to its forks, no dependency between crates points upward, a
finding, a command, a change, a module of the hook and a GPU are each in few
files, there is one version, and wording that the style guide advises against
does not spread. `--update` accepts counts of such wording that have fallen.
"""

import re
import subprocess
import sys
from pathlib import Path

import style
import tomllib

SPDX = "SPDX-License-Identifier: MIT OR Apache-2.0"
# Locks and once-made values that a fork does not hold; `fork.rs` has those that it does.
UNHELD = re.compile(r"\bstatic\s+\w+\s*:[^;=]*?\b(LazyLock|Mutex|Once|OnceLock|ReentrantLock|RwLock|Condvar|Barrier)\b")
STANDIN = "crates/tonnage-standin/src/"
UNSAFE_CRATES = {"tonnage-device-cuda", "tonnage-device-host", "tonnage-runtime", "tonnage-standin", "tonnage-torch"}
# From the bottom up. A crate depends only on crates of lower layers; tests may use what they like.
LAYERS = (
    {"tonnage-text"},
    {"tonnage-alloc", "tonnage-capture", "tonnage-gpus", "tonnage-http", "tonnage-plan", "tonnage-recording"},
    {"tonnage-device-cuda", "tonnage-device-host", "tonnage-runtime"}
    | {"tonnage-export", "tonnage-import", "tonnage-model", "tonnage-standin"},
    {"tonnage-analysis", "tonnage-conformance", "tonnage-torch"},
    {"tonnage-report", "tonnage-run"},
    {"tonnage-fit", "tonnage-forecast"},
    {"tonnage-admit", "tonnage-watch"},
    {"tonnage-cli"},
    {"tonnage-py", "tonnage-reference"},
)
# A thing of each kind: the words that only it has, and all hand-written files of the product that have them.
CLI = "crates/tonnage-cli/src/"
EXPLAIN = "crates/tonnage-analysis/src/explain/"
HOOK = "crates/tonnage-run/src/hook/tonnage_hook/torch/"
PLACES = {
    "a finding": (
        r"\bLAST_RESULT\b|\bmod last_result\b",
        (f"{EXPLAIN}last_result.rs", f"{EXPLAIN}mod.rs"),
    ),
    "a command": (
        r"\bDoctorOptions\b|\bcommands::doctor\b|\bmod doctor\b",
        (f"{CLI}arguments.rs", f"{CLI}commands/doctor.rs", f"{CLI}commands/mod.rs", f"{CLI}lib.rs", f"{CLI}schema.rs"),
    ),
    "a change": (
        r"\bgradient[-_]release\b",
        ("crates/tonnage-run/src/changes.rs", f"{HOOK}changes/gradient_release.py"),
    ),
    "a module of the hook": (r"\bttir\b", (f"{HOOK}kernels.py", f"{HOOK}ttir.py")),
    "a GPU": (r"\bgtx1080ti\b|GTX 1080 Ti", ("crates/tonnage-gpus/gpus.toml",)),
}
# Put together here so that this file does not hold what it looks for.
FORBIDDEN = [
    re.compile(pattern)
    for pattern in (
        "/" + "work/(main|shared)",
        "/" + "root/",
        "/" + "opt/tn",
        "/" + "tmp/bash_jobs",
        "py" + r"pi\.org",
        "files\\.python" + "hosted",
        "static\\.crates" + r"\.io",
        "registry\\.npm" + "js",
    )
]


def main():
    root = Path(__file__).parents[1]
    names = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    problems, texts = [], []
    for name in filter(None, names):
        path = root / name
        if not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        texts.append((name, text))
        lines = text.splitlines()
        if name.endswith(".rs"):
            if not lines or lines[0] != f"// {SPDX}":
                problems.append(f"{name}: the first line is not the licence")
            if len(lines) < 2 or not lines[1].startswith("//! "):
                problems.append(f"{name}: the second line does not say what the file is for")
        if name.endswith((".py", ".lua")) and "scripts/" not in name and not any(SPDX in line for line in lines[:2]):
            problems.append(f"{name}: no licence in the first lines")
        if name.endswith("src/lib.rs") and name.startswith("crates/"):
            crate = name.split("/")[1]
            if crate not in UNSAFE_CRATES and "#![forbid(unsafe_code)]" not in text:
                problems.append(f"{name}: a pure crate must forbid unsafe code")
        if name.startswith(STANDIN) and name != f"{STANDIN}fork.rs":
            for found in UNHELD.finditer(text):
                number = text.count("\n", 0, found.start()) + 1
                problems.append(f"{name}:{number}: no fork holds a static {found[1]}; use Lock or Lazy of fork.rs")
        for number, line in enumerate(lines, 1):
            for pattern in FORBIDDEN:
                if pattern.search(line):
                    problems.append(f"{name}:{number}: names {pattern.pattern}")
    problems += style.problems(root, texts, update="--update" in sys.argv)
    problems += claims(root)
    problems += versions(root)
    problems += archives(root)
    problems += layers(root)
    problems += releases(root)
    problems += places(root, [name for name in names if name.startswith(("crates/", "python/"))])
    for problem in problems:
        print(problem)
    print(f"{len(names)} files, {len(problems)} problems")
    return 1 if problems else 0


def claims(root):
    """Where SECURITY.md does not name the crates with `unsafe` code, and their number."""
    numbers = ("none", "one", "two", "three", "four", "five", "six", "seven")
    text = " ".join((root / "SECURITY.md").read_text().split())
    claim = text[text.index("**No memory errors.**") : text.index("**Bounded memory.**")]
    problems = []
    if set(re.findall(r"`(tonnage-[a-z-]+)`", claim)) != UNSAFE_CRATES:
        problems.append(f"SECURITY.md: the crates with unsafe code are {', '.join(sorted(UNSAFE_CRATES))}")
    if f"every crate but {numbers[len(UNSAFE_CRATES)]}" not in claim:
        problems.append(f"SECURITY.md: the number of crates with unsafe code is {len(UNSAFE_CRATES)}")
    return problems


def places(root, names):
    """Where a thing of a kind is in another file than in those that adding one touches."""
    is_test = re.compile(r"/(tests?|benches|examples)/|(^|/)tests\.rs$|\.snap$")
    sources = {}
    for name in names:
        if not is_test.search(name) and name.endswith((".py", ".rs", ".toml")) and (root / name).is_file():
            sources[name] = (root / name).read_text()
    problems = []
    for thing, (words, expected) in PLACES.items():
        found = {name for name, text in sources.items() if re.search(words, f"{name}\n{text}")}
        problems += [f"{name}: adding {thing} does not touch this file" for name in found - {*expected}]
        problems += [f"{name}: {thing} is not in this file" for name in {*expected} - found]
    return sorted(problems)


def versions(root):
    """Where a version differs from the workspace's, which is the one.

    Cargo wants the version of our own crates beside their path, for those who get them from a registry.
    """
    workspace = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    problems = [
        f"Cargo.toml: {name} is wanted in version {wanted.get('version')}, the workspace is {version}"
        for name, wanted in workspace["dependencies"].items()
        if isinstance(wanted, dict) and "path" in wanted and wanted.get("version") != version
    ]
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        if tomllib.loads(manifest.read_text())["package"]["version"] != {"workspace": True}:
            problems.append(f"{manifest.relative_to(root)}: has a version of its own")
    if "version" in tomllib.loads((root / "pyproject.toml").read_text())["project"]:
        problems.append("pyproject.toml: has a version of its own")
    return problems


def archives(root):
    """Crates that would be published without their licenses, or without what a reader of a registry needs."""
    problems = []
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        package, name = tomllib.loads(manifest.read_text())["package"], manifest.relative_to(root)
        if not package.get("publish", True):
            continue
        for license_file in ("LICENSE-APACHE", "LICENSE-MIT"):
            if not (manifest.parent / license_file).is_file():
                problems.append(f"{name}: {license_file} is missing beside it")
        if not package["description"].endswith("(internal to tonnage, no stable interface)"):
            problems += [
                f"{name}: {key} is missing" for key in ("readme", "keywords", "categories") if key not in package
            ]
    return problems


def releases(root):
    """Where the newest verified release of torch differs from `Version::VERIFIED`, which is the one.

    The others derive it: tests/compat/environments.py from rows.py, and crates that use the constant.
    """
    rules = (root / "crates/tonnage-alloc/src/torch/rules.rs").read_text()
    major, minor = re.search(r"const VERIFIED: Self = Self\((\d+), (\d+)\);", rules).groups()
    copies = {
        ".ci/run": rf"(?m)^torch_version={major}\.{minor}\.\d+$",
        "README.md": rf"PyTorch 2\.1 to\s+{major}\.{minor}\]",
        "crates/tonnage-alloc/src/torch/mod.rs": rf"The policy of torch {major}\.{minor}\.\d+ as",
        "crates/tonnage-export/src/snapshot.rs": rf"const NEWEST: u32 = {minor};",
        "crates/tonnage-import/src/pytorch.rs": rf"(?m)PyTorch 2\.1 to {major}\.{minor}\.$",
        "crates/tonnage-run/src/hook/tonnage_hook/needs.py": rf'(?m)^_NEWEST = "{major}\.{minor}"$',
        "docs/concepts/limits.md": rf"Tested with torch 2\.1, [\d., ]+, and {major}\.{minor}:",
        "docs/concepts/pytorch-allocator.md": rf"describes torch {major}\.{minor}\.\d+;",
        "docs/index.md": rf"tested with 2\.1 to {major}\.{minor}\]",
        "tests/compat/rows.py": rf'NEWEST = "{major}\.{minor}\.\d+"',
        "tests/torch/differential.py": rf'NEWEST = "{major}\.{minor}"',
    }
    wanted = f"is not {major}.{minor}, the newest verified release of torch"
    return [
        f"{name}: the release {wanted}"
        for name, pattern in copies.items()
        if not re.search(pattern, (root / name).read_text())
    ]


def layers(root):
    """Dependencies between our crates that do not point downward, and crates without a layer."""
    layer_of = {crate: number for number, crates in enumerate(LAYERS) for crate in crates}
    problems = []
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        crate = manifest.parent.name
        if crate not in layer_of:
            problems.append(f"{manifest.relative_to(root)}: has no layer; give it one in .ci/tidy.py")
            continue
        tables = tomllib.loads(manifest.read_text())
        wanted = {**tables.get("dependencies", {}), **tables.get("build-dependencies", {})}
        for name in wanted:
            if name.startswith("tonnage-") and layer_of.get(name, len(LAYERS)) >= layer_of[crate]:
                problems.append(f"{manifest.relative_to(root)}: {name} is not in a lower layer")
    return problems


if __name__ == "__main__":
    sys.exit(main())
