# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs programs with and without the copy-on-write view of the stand-in, and compares.

`TONNAGE` names the command; the stand-in lies beside it. The checker walks the tree with its own code.
"""

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def standin():
    return Path(os.environ["TONNAGE"]).resolve().parent / "libtonnage_standin.so"


def snapshot(root):
    """Content, mode, owner, modification time, links and entries of everything below `root`."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [".", *folders, *files]:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            content = None
            if stat.S_ISREG(about.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            elif stat.S_ISLNK(about.st_mode):
                content = os.readlink(path)
            elif stat.S_ISDIR(about.st_mode):
                content = sorted(os.listdir(path))
            key = os.path.normpath(os.path.relpath(path, root))
            links = 0 if stat.S_ISDIR(about.st_mode) else about.st_nlink
            found[key] = (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, about.st_size, links, content)
    return found


def plant(root):
    """A tree as people have it: checkpoints, logs, links, a sparse file, empty directories."""
    (root / "checkpoints" / "old").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "deep" / "er" / "still").mkdir(parents=True)
    (root / "data").mkdir(mode=0o750)
    (root / "best.pt").write_bytes(b"best" * 5000)
    (root / "checkpoints" / "step-1.pt").write_bytes(b"one" * 999)
    (root / "checkpoints" / "step-2.pt").write_bytes(b"two" * 999)
    (root / "checkpoints" / "old" / "step-0.pt").write_bytes(b"zero")
    (root / "log.txt").write_text("line 1\nline 2\n")
    (root / "deep" / "er" / "still" / "note").write_text("note")
    (root / "data" / "a.csv").write_text("1,2,3\n" * 100)
    (root / "data" / "b.csv").write_text("4,5,6\n" * 100)
    with open(root / "sparse", "wb") as file:
        file.truncate(3 << 20)
        file.seek(1 << 20)
        file.write(b"middle")
    (root / "run.sh").write_text("#!/bin/sh\necho ran $1\n")
    (root / "run.sh").chmod(0o755)
    (root / "latest").symlink_to("checkpoints/step-2.pt")
    (root / "folder").symlink_to("checkpoints")
    (root / "absolute").symlink_to(root / "data")
    (root / "dangling").symlink_to("not/there")
    (root / "loop").symlink_to("loop")
    os.link(root / "data" / "a.csv", root / "data" / "same.csv")
    (root / "secret").write_text("secret")
    (root / "secret").chmod(0o600)
    for folder, folders, files in os.walk(root, topdown=False):
        for number, name in enumerate([*files, *folders]):
            os.utime(os.path.join(folder, name), ns=(10**18 + number, 10**18 + number * 1001), follow_symlinks=False)
    os.utime(root, ns=(10**18, 10**18))


class Place:
    """A tree, a pristine copy, and the directory of redirected changes."""

    def __init__(self, folder):
        self.root = folder / "tree"
        self.pristine = folder / "pristine"
        self.changes = folder / "changes"
        self.root.mkdir()
        plant(self.root)
        self.save()

    def save(self):
        """Takes the tree as it is as the state before a run."""
        shutil.rmtree(self.pristine, ignore_errors=True)
        subprocess.run(["cp", "-a", self.root, self.pristine], check=True)
        self.before = snapshot(self.root)

    def restore(self):
        shutil.rmtree(self.root)
        subprocess.run(["cp", "-a", self.pristine, self.root], check=True)
        assert snapshot(self.root) == self.before

    def environment(self, by="preload", through=()):
        """The changes of a protected program."""
        self.changes.mkdir(exist_ok=True)
        prefixes = [self.changes, "/dev", "/proc", "/sys", "/run", *through]
        (self.changes / "through").write_text("".join(f"{prefix}\n" for prefix in prefixes))
        return {"LD_PRELOAD": str(standin()), "TONNAGE_FILES": str(self.changes), "TONNAGE_FILES_BY": by}

    def run(self, *command, protected=True, timeout=120, environment=None, **options):
        extra = self.environment() if protected else {}
        base = {"PATH": os.environ["PATH"], "HOME": str(self.root), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.root,
            env={**base, **(environment or {}), **extra},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **options,
        )

    def compare(self, *command, **options):
        """Runs a command plainly, then protected: same output, same tree for the job, and the real one as before."""
        plain = self.run(*command, protected=False, **options)
        plain_tree = self.run(sys.executable, HERE / "dump.py", self.root, protected=False).stdout
        self.restore()
        shutil.rmtree(self.changes, ignore_errors=True)
        guarded = self.run(*command, **options)
        guarded_tree = self.run(sys.executable, HERE / "dump.py", self.root)
        assert guarded.stdout.splitlines() == plain.stdout.splitlines(), guarded.stderr
        assert (guarded.returncode, guarded.stderr) == (plain.returncode, plain.stderr)
        assert guarded_tree.stdout.splitlines() == plain_tree.splitlines(), guarded_tree.stderr
        assert snapshot(self.root) == self.before
        return guarded


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """Compiles a C program of this folder."""
    folder = tmp_path_factory.mktemp("programs")

    def compiled(name, *flags):
        made = folder / "".join([name, *flags])
        if not made.exists():
            line = ["cc", "-O1", "-Wall", "-Wextra", "-pthread", *flags, HERE / f"{name}.c", "-o", made]
            subprocess.run(line, check=True)
        return made

    return compiled
