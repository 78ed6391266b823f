# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does random file operations below a directory and prints each result."""

import ctypes
import errno
import os
import random
import shutil
import stat
import sys

root, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
os.umask(0o022)
libc = ctypes.CDLL(None, use_errno=True)
NAMES = ["a", "b", "c", "log.txt", "best.pt", "checkpoints", "data", "deep", "er", "step-1.pt", "folder", "latest"]


def path():
    """A path that often exists."""
    if draw.random() < 0.6:
        found = [root]
        for folder, folders, files in os.walk(root):
            folders.sort()
            found += sorted(os.path.join(folder, name) for name in [*folders, *files])
        chosen = draw.choice(found)
    else:
        chosen = os.path.join(root, *(draw.choice(NAMES) for _ in range(draw.randint(1, 3))))
    style = draw.random()
    if style < 0.15:
        return os.path.relpath(chosen)
    if style < 0.2 and chosen != root:
        return os.path.join(os.path.dirname(chosen), ".", "..", os.path.basename(os.path.dirname(chosen)), "x")
    if style < 0.23:
        return chosen + "/"
    return chosen


def about(name, follow):
    got = os.stat(name, follow_symlinks=follow)
    size = got.st_size if stat.S_ISREG(got.st_mode) else None
    return oct(got.st_mode), size


def read(name):
    with open(name, "rb") as file:
        data = file.read()
    return len(data), data[:8], data[-8:]


def write(name, mode):
    with open(name, mode) as file:
        file.write(f"{draw.random()}".encode())
        return file.tell()


def update(name):
    descriptor = os.open(name, os.O_RDWR)
    try:
        os.pwrite(descriptor, b"patched", 2)
        return os.pread(descriptor, 20, 0)
    finally:
        os.close(descriptor)


def opened(name, flags):
    descriptor = os.open(name, flags, 0o640)
    try:
        return about(descriptor, True)
    finally:
        os.close(descriptor)


def change_mode_of_open(name):
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fchmod(descriptor, draw.choice([0o600, 0o640, 0o755]))
        os.utime(descriptor, ns=(5, 7))
    finally:
        os.close(descriptor)
    return oct(os.stat(name).st_mode), os.stat(name).st_mtime_ns


def read_while_written(name):
    """A descriptor that was opened before the first write sees the write."""
    with open(name, "rb") as reader:
        write(name, "ab")
        return len(reader.read())


def relative(name):
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        base = os.path.basename(name)
        descriptor = os.open(base, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=folder)
        os.write(descriptor, b"relative")
        os.close(descriptor)
        return oct(os.stat(base, dir_fd=folder).st_mode), sorted(os.listdir(folder))
    finally:
        os.close(folder)


def unlink_relative(name):
    folder = os.open(os.path.dirname(name) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.unlink(os.path.basename(name), dir_fd=folder)
        return sorted(os.listdir(folder))
    finally:
        os.close(folder)


def go(name):
    os.chdir(name)
    here = os.getcwd()
    return here


def exchange(one, two, flags):
    if libc.renameat2(-100, one.encode(), -100, two.encode(), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def remove_tree(name):
    if os.path.realpath(name) in (root, os.path.dirname(root)):
        return "kept"
    shutil.rmtree(name)


def safe_rename(call, one, two):
    if os.path.abspath(one) == root or os.path.abspath(two) == root:
        return "kept"
    return call(one, two)


OPERATIONS = {
    "lstat": lambda: about(path(), False),
    "stat": lambda: about(path(), True),
    "read": lambda: read(path()),
    "write": lambda: write(path(), "wb"),
    "append": lambda: write(path(), "ab"),
    "create": lambda: write(path(), "xb"),
    "update": lambda: update(path()),
    "open": lambda: opened(
        path(),
        draw.choice([os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
        | draw.choice([0, os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_TRUNC, os.O_CREAT | os.O_TRUNC])
        | draw.choice([0, 0, os.O_NOFOLLOW, os.O_DIRECTORY]),
    ),
    "unlink": lambda: os.unlink(path()),
    "remove": lambda: os.remove(path()),
    "rmdir": lambda: os.rmdir(path()),
    "mkdir": lambda: os.mkdir(path(), draw.choice([0o755, 0o700])),
    "makedirs": lambda: os.makedirs(path(), exist_ok=True),
    "rename": lambda: safe_rename(os.rename, path(), path()),
    "replace": lambda: safe_rename(os.replace, path(), path()),
    "exchange": lambda: safe_rename(lambda one, two: exchange(one, two, draw.choice([1, 2])), path(), path()),
    "link": lambda: os.link(path(), path(), follow_symlinks=False),
    "symlink": lambda: os.symlink(draw.choice(["a", "../data", path()]), path()),
    "readlink": lambda: os.readlink(path()),
    "realpath": lambda: os.path.realpath(path()),
    "list": lambda: sorted(os.listdir(path())),
    "scan": lambda: sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in os.scandir(path())),
    "chmod": lambda: os.chmod(path(), draw.choice([0o600, 0o644, 0o755])),
    "truncate": lambda: os.truncate(path(), draw.choice([0, 5, 100000])),
    "utime": lambda: os.utime(path(), ns=(10**18, draw.randint(1, 10**18)), follow_symlinks=draw.random() < 0.5),
    "mtime": lambda: os.stat(path()).st_mtime_ns <= 10**18 + 10**6,
    "access": lambda: os.access(path(), draw.choice([os.R_OK, os.W_OK, os.X_OK, os.F_OK])),
    "fchmod": lambda: change_mode_of_open(path()),
    "before": lambda: read_while_written(path()),
    "relative": lambda: relative(path()),
    "unlink relative": lambda: unlink_relative(path()),
    "chdir": lambda: go(path()),
    "getcwd": lambda: os.getcwd(),
    "rmtree": lambda: remove_tree(path()) if draw.random() < 0.2 else None,
    "copytree": lambda: shutil.copytree(path(), f"{root}/copy{step}", symlinks=True) if draw.random() < 0.2 else None,
    "move": lambda: safe_rename(shutil.move, path(), path()),
}
names = list(OPERATIONS)

for step in range(count):
    name = draw.choice(names)
    try:
        os.getcwd()
    except OSError:
        os.chdir(root)
    try:
        result = OPERATIONS[name]()
    except OSError as error:
        result = errno.errorcode.get(error.errno, str(error))
    except (shutil.Error, ValueError) as error:
        result = type(error).__name__
    print(step, name, result, flush=True)
