# SPDX-License-Identifier: MIT OR Apache-2.0
"""Unpacks the Slurm of a newer Debian into a folder, beside the Slurm that is installed.

    python3 tests/slurm/unpack.py [--suite trixie] FOLDER

Shards per task need Slurm 23.11; Debian 12 has 22.05. The packages come from the archive that this machine uses, and
apt checks them. Nothing is installed: the programs are made to start with the libraries of the folder. A folder that
is complete already is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

#: Slurm and the libraries it loads. Further dependencies are not needed by the tests.
PACKAGES = [
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libc6", "libgcc-s1", "zlib1g"),
    *("libhwloc15", "libnuma1", "libudev1", "libcap2", "liblz4-1", "libreadline8t64", "libtinfo6", "libmunge2"),
    *("liblua5.1-0", "libjson-c5", "libpam0g", "libaudit1", "libcap-ng0", "libdbus-1-3", "libsystemd0"),
]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "usr/lib64/ld-linux-x86-64.so.2"


def archive() -> str:
    """Where this machine has its packages of Debian from."""
    words = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
        "Label: Debian",
    ]
    found = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    if not found:
        raise SystemExit("apt knows no archive of Debian here: add one to its sources")
    return found[0]


def unpack(suite: str, folder: Path, work: Path) -> None:
    root = folder.resolve()
    for name in ["lists/partial", "cache/archives/partial", "packages"]:
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb {archive()} {suite} main\n")
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::SourceList={work}/sources.list", "-o", "Dir::Etc::SourceParts=-"]
    apt += ["-o", f"Dir::State::Lists={work}/lists", "-o", f"Dir::State::Status={work}/status"]
    apt += ["-o", f"Dir::Cache={work}/cache", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none"]
    apt += ["-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], check=True, cwd=work / "packages")
    for package in (work / "packages").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    programs = [*root.glob("usr/bin/s*"), *root.glob("usr/sbin/slurm*")]
    path = f"{root}/{LIBRARIES}:{root}/{LIBRARIES}/slurm-wlm"
    for program in programs:
        loads = [
            "patchelf",
            "--set-interpreter",
            f"{root}/{LOADER}",
            "--force-rpath",
            "--set-rpath",
            path,
            str(program),
        ]
        subprocess.run(loads, check=True)
        if program.name.endswith("-wlm"):
            program.rename(program.with_name(program.name.removesuffix("-wlm")))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--suite", default="trixie")
    options.add_argument("folder", type=Path)
    given = options.parse_args()
    holds = given.folder / "holds"
    wanted = f"{given.suite} {given.folder.resolve()} {' '.join(PACKAGES)}"
    if not holds.exists() or holds.read_text() != wanted:
        shutil.rmtree(given.folder, ignore_errors=True)
        given.folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            unpack(given.suite, given.folder, Path(work))
        holds.write_text(wanted)
    subprocess.run([given.folder / "usr/sbin/slurmctld", "-V"], check=True)


if __name__ == "__main__":
    main()
