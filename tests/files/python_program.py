# SPDX-License-Identifier: MIT OR Apache-2.0
"""Python's own ways to write files: modules, databases, processes, archives."""

import glob
import importlib
import json
import mmap
import multiprocessing
import os
import pathlib
import pickle
import shelve
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

root = pathlib.Path.cwd()


def worker(number):
    path = f"checkpoints/rank-{number}.json"
    with open(path + ".tmp", "w") as file:
        json.dump({"rank": number}, file)
    os.replace(path + ".tmp", path)
    with open("log.txt", "a") as log:
        log.write(f"rank {number:02}\n")
    return sorted(os.listdir("checkpoints"))[-1][:4]


def main():
    print(root, os.path.realpath("folder"))
    # A module that exists only for the job.
    sys.path.insert(0, str(root))
    (root / "made.py").write_text("value = 1\n")
    import made

    print(made.value, made.__file__)
    (root / "package").mkdir()
    (root / "package" / "__init__.py").write_text("from . import inner\n")
    (root / "package" / "inner.py").write_text("value = 3\n")
    print(importlib.import_module("package").inner.value)

    # Rotation of checkpoints.
    for step in range(3, 8):
        (root / "checkpoints" / f"step-{step}.pt").write_bytes(pickle.dumps(step))
        kept = sorted(glob.glob("checkpoints/step-*.pt"))
        for old in kept[:-2]:
            os.remove(old)
    print(sorted(os.listdir("checkpoints")))
    print([pickle.loads(pathlib.Path(name).read_bytes()) for name in sorted(glob.glob("checkpoints/step-*"))])

    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(4) as pool:
            print(pool.map(worker, range(8)))
    with ThreadPoolExecutor(8) as pool:
        print(list(pool.map(worker, range(16))))
    lines = sorted(open("log.txt").read().splitlines())
    print(lines)
    (root / "log.txt").write_text("\n".join(lines))

    base = sqlite3.connect("new.db")
    base.execute("create table t (a)")
    base.executemany("insert into t values (?)", [(n,) for n in range(1000)])
    base.commit()
    base.close()
    base = sqlite3.connect("old.db")
    base.execute("pragma journal_mode=wal")
    base.execute("create table if not exists t (a)")
    with base:
        base.execute("insert into t values (7)")
    print(base.execute("select sum(a) from t").fetchall())
    base.close()
    print(sqlite3.connect("file:new.db?mode=ro", uri=True).execute("select sum(a) from t").fetchall())

    with shelve.open("shelf") as shelf:
        shelf["key"] = [1, 2]
    with open("sparse", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[10:14] = b"mmap"
        view.flush()
    print(open("sparse", "rb").read(20))
    shutil.make_archive("archive", "zip", "data")
    print(sorted(zipfile.ZipFile("archive.zip").namelist()))
    shutil.rmtree("data")
    print(os.path.exists("data"), os.path.exists("absolute"), sorted(os.listdir(".")))
    os.mkdir("data")
    print(os.listdir("data"), os.listdir("absolute"))
    shutil.copytree("checkpoints", "data/copy", symlinks=True)
    shutil.move("data/copy", "empty")
    print(sorted(str(path) for path in root.rglob("*") if "__pycache__" not in path.parts))
    with tempfile.TemporaryDirectory(dir=root) as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"x")
        print(os.path.dirname(folder) == str(root), os.listdir(folder) == [os.path.basename(file.name)])
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(b"x")
    print(subprocess.run(["sh", "-c", "rm -f best.pt; ls; pwd"], capture_output=True, text=True, env={}).stdout)
    print(subprocess.run(["./run.sh", "2"], capture_output=True, text=True, cwd=root, env={}).stdout)
    os.makedirs("sub/dir")
    print(subprocess.run(["pwd"], capture_output=True, text=True, cwd="sub/dir").stdout)
    os.chdir("sub")
    open("x", "w").close()
    print(os.getcwd(), os.listdir(), os.path.abspath("x"), pathlib.Path("x").resolve())
    descriptor = os.open("..", os.O_RDONLY)
    print(sorted(os.listdir(descriptor)) == sorted(os.listdir(root)), os.stat("log.txt", dir_fd=descriptor).st_size)
    for folder, folders, files, opened in os.fwalk("empty", dir_fd=descriptor):
        print(folder, sorted(folders), sorted(files))


if __name__ == "__main__":
    main()
