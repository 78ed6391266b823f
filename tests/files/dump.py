# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints a tree as a job sees it: names, kinds, modes, contents."""

import hashlib
import os
import stat
import sys


def show(path):
    about = os.lstat(path)
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFLNK:
        print(path, "->", os.readlink(path))
    elif kind == stat.S_IFDIR:
        print(path, oct(about.st_mode))
        names = sorted(os.listdir(path))
        entries = {entry.name: entry for entry in os.scandir(path)}
        assert names == sorted(entries), (names, sorted(entries))
        for name in names:
            child = os.lstat(os.path.join(path, name)).st_mode
            assert entries[name].is_dir(follow_symlinks=False) == stat.S_ISDIR(child), name
            # git writes inodes and times into its index.
            if name != ".git":
                show(os.path.join(path, name))
    elif kind == stat.S_IFREG:
        with open(path, "rb") as file:
            content = file.read()
        print(path, oct(about.st_mode), about.st_size, hashlib.sha256(content).hexdigest()[:16])
    else:
        print(path, oct(about.st_mode))


show(sys.argv[1])
