# SPDX-License-Identifier: MIT OR Apache-2.0
"""Saves, rotates, renames and deletes files in every way that needs no other package than torch and NumPy."""

import ctypes
import glob
import mmap
import os
import shutil
import sqlite3
import tempfile

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch import nn


class Logged(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        with open(f"worker-{index}.txt", "w") as file:
            file.write(str(index))
        with open("shared.log", "a") as file:
            file.write("x")
        return torch.zeros(1)


def rank(number):
    torch.save(torch.ones(8, device="cuda"), f"rank-{number}.pt")
    os.replace(f"rank-{number}.pt", "rank.pt")


def listing():
    found = []
    for folder, folders, files in os.walk("."):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [os.path.join(folder, name) for name in sorted(files)]
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(64, 64).cuda()
    before = torch.load("best.pt")
    print("loaded", sorted(before), float(before["weight"].sum()))
    torch.save(model.state_dict(), "best.pt")
    print("saved", {name: tuple(value.shape) for name, value in torch.load("best.pt").items()})
    for step in range(5):
        torch.save({"step": step}, f"checkpoints/step-{step}.pt")
        for old in sorted(glob.glob("checkpoints/step-*.pt"))[:-2]:
            os.remove(old)
    print("rotated", sorted(os.listdir("checkpoints")), torch.load("checkpoints/step-4.pt"))
    print("dcp before", {name: os.path.getsize(f"dcp/{name}") for name in sorted(os.listdir("dcp"))})
    for _ in range(2):
        dcp.save({"model": model.state_dict()}, checkpoint_id="dcp")
    dcp.load({"model": model.state_dict()}, checkpoint_id="dcp")
    print("dcp", {name: os.path.getsize(f"dcp/{name}") for name in sorted(os.listdir("dcp"))})
    shutil.rmtree("old")
    print("removed", os.path.exists("old"))
    os.rename("runs", "runs-before")
    print("renamed", sorted(os.listdir("runs-before")), os.path.exists("runs"))
    os.makedirs("runs/new")
    with open("train.log", "a") as log:
        log.write("appended\n")
    print("log", open("train.log").read().splitlines())
    with open("config.json", "r+") as file:
        file.truncate(3)
    print("config", open("config.json").read())
    numpy.save("array.npy", numpy.arange(8))
    mapped = numpy.memmap("mapped.bin", dtype=numpy.int32, mode="r+", shape=(4,))
    mapped[:] = 7
    mapped.flush()
    print("numpy", numpy.load("array.npy").sum(), numpy.fromfile("mapped.bin", dtype=numpy.int32))
    with open("raw.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:4] = b"mmap"
    print("mmap", open("raw.bin", "rb").read(8))
    base = sqlite3.connect("runs.db")
    base.execute("create table if not exists run (name text)")
    base.execute("insert into run values ('dry')")
    base.commit()
    print("sqlite", base.execute("select count(*) from run").fetchone())
    base.close()
    print("worker", len(list(torch.utils.data.DataLoader(Logged(), num_workers=2))), sorted(glob.glob("worker-*")))
    print("appended by workers", os.path.getsize("shared.log"))
    torch.multiprocessing.spawn(rank, nprocs=2)
    print("rank", torch.load("rank.pt").shape)
    extension = ctypes.CDLL(os.environ["EXTENSION"])
    print("extension", extension.write_file(b"native.bin", b"native"), open("native.bin").read())
    os.chmod("best.pt", 0o600)
    os.utime("readonly.pt", (1, 1))
    print("mode", oct(os.stat("best.pt").st_mode & 0o777), os.stat("readonly.pt").st_mtime)
    os.symlink("best.pt", "latest.pt")
    os.link("train.log", "train-copy.log")
    print("links", os.readlink("latest.pt"), os.path.samefile("latest.pt", "best.pt"))
    print("hard link", os.stat("train-copy.log").st_nlink)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(model.state_dict(), file.name)
        print("temporary", os.path.getsize(file.name) > 0)
    print("\n".join(listing()))
