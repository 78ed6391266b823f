"""Four processes share one GPU by agreement, by the functions that PyTorch calls: plugged_tenants.py LIBRARY FOLDER.

PyTorch is not needed for that: a request that is refused gives null without it.
"""

import ctypes
import os
import signal
import subprocess
import sys

MIB = 1 << 20
LIBRARY, FOLDER = sys.argv[1:3]


def serve(name, quota):
    """One process: a request in each line of its input, `free` frees the last block."""
    library = ctypes.CDLL(LIBRARY)
    library.tonnage_malloc.restype = ctypes.c_void_p
    library.tonnage_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.tonnage_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.tonnage_share.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t) * 2,
        *(ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t),
    ]
    folder, room = FOLDER.encode(), ctypes.create_string_buffer(1000)
    assert library.tonnage_share(folder, len(folder), name.encode(), len(name), quota, room, len(room)) == 0, room.value
    blocks = []
    for line in sys.stdin:
        if line == "free\n":
            block, size = blocks.pop()
            library.tonnage_free(block, size, 0, None)
            library.tonnage_empty_cache()
            print("freed", flush=True)
            continue
        size = int(line)
        block = library.tonnage_malloc(size, 0, None)
        if block:
            blocks.append((block, size))
        print("served" if block else "refused", flush=True)


class Tenant:
    def __init__(self, name, quota):
        line = [sys.executable, __file__, LIBRARY, FOLDER, name, str(quota)]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


def main():
    quotas = {"train": 8 << 30, "eval": 4 << 30, "search": 6 << 30, "notebook": 2 << 30}
    tenants = {name: Tenant(name, quota) for name, quota in quotas.items()}
    for name, tenant in tenants.items():
        # Each reaches its own quota and no more, whatever the others hold.
        assert tenant.send(quotas[name] - 512 * MIB) == "served", name
        assert tenant.send(600 * MIB) == "refused", name
        assert tenant.send(512 * MIB) == "served", name
        assert tenant.send(2 * MIB) == "refused", name
    # The rest of the GPU is less than this quota, and a name has one owner.
    late = Tenant("late", 8 << 30)
    assert late.send(MIB) == "refused"
    late.end()
    twin = Tenant("eval", 1 << 30)
    assert twin.send(MIB) == "refused"
    twin.end()
    # A process that is killed leaves its memory and its quota.
    os.kill(tenants["train"].process.pid, signal.SIGKILL)
    tenants["train"].process.wait()
    late = Tenant("late", 8 << 30)
    assert late.send(8 << 30) == "served"
    # Memory that a process frees is its own again.
    assert tenants["eval"].send("free") == "freed"
    assert tenants["eval"].send(512 * MIB) == "served"
    for tenant in [*(tenants[name] for name in ("eval", "search", "notebook")), late]:
        tenant.end()
    print("every quota was kept")


if len(sys.argv) > 3:
    serve(sys.argv[3], int(sys.argv[4]))
else:
    main()
