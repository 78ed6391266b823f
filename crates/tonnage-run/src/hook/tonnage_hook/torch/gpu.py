# SPDX-License-Identifier: MIT OR Apache-2.0
"""Takes the place of the stand-in where the GPU is a real one: `tonnage record`.

It has the functions of the stand-in that the other files call, and writes the
same files. Events of torch's allocator that only the stand-in sees are
left to the reader of the files: there the notes of the program are put among
the rows of torch's history by their times, which come from the same clock.

The GPU is queried how much of it is in use at the first mark, at each drain, at an
out-of-memory and at the end. A context is never made for that: only devices that
have one already are queried.

Nothing here grows with the length of the run but the files, and those are cut
off where there is no more room.
"""

import array
import ctypes
import functools
import json
import mmap
import os
import struct
import sys
import threading
import time

from tonnage_hook.failures import swallow
from tonnage_hook.wire import (
    BLOCKS_PREFIX,
    BLOCKS_WINDOW,
    LOG_PREFIX,
    MOMENT,
    OWNER,
    OWNER_LIST,
    RECORD_NOTE,
    RECORD_OWNERS,
    RECORD_START,
    RECORD_TEXT,
)

_NOTE_MARK = 1 << 32
_ENTRY = struct.Struct("<QQQQ")

# Torch's history holds this many rows of a device between two drains; more are lost, and counted.
_MAX_ENTRIES = 1 << 18
_SECONDS_PER_DRAIN = 0.5
# Texts and lists that are remembered so as not to be written twice.
_MAX_TEXTS = 100_000
_MAX_LISTS = 256
# A pool that does not exist: a snapshot of it has the history and no blocks.
_NO_POOL = (0, (1 << 31) - 1)
# A census of what holds the memory is due at this many bytes, and a quarter above the last.
_CENSUS_LEAST = 64 << 20


class _Nvml:
    """The driver's library for monitoring, which reports the memory of a process."""

    class _Process(ctypes.Structure):
        _fields_ = (
            ("pid", ctypes.c_uint),
            ("bytes", ctypes.c_ulonglong),
            ("instance", ctypes.c_uint),
            ("compute", ctypes.c_uint),
        )

    def __init__(self, torch):
        self.torch = torch
        self.handles = {}
        self.library = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0:
                self.library = library
        except (OSError, AttributeError):
            pass

    def _handle(self, device):
        if device not in self.handles:
            properties = self.torch.cuda.get_device_properties(device)
            bus = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
            handle = ctypes.c_void_p()
            found = 1
            if None not in bus:
                name = "{:08x}:{:02x}:{:02x}.0".format(*bus).encode()
                found = self.library.nvmlDeviceGetHandleByPciBusId_v2(name, ctypes.byref(handle))
            self.handles[device] = handle if found == 0 else None
        return self.handles[device]

    def free(self, device):
        """Bytes that are free on a device, for all processes; no context is made for the query."""
        try:
            handle = self._handle(device) if self.library is not None else None
            # Total, free, used.
            memory = (ctypes.c_ulonglong * 3)()
            if handle is None or self.library.nvmlDeviceGetMemoryInfo(handle, memory) != 0:
                return None
            return memory[1]
        except Exception as error:
            swallow("_Nvml.free", error)
            return None

    def uuid(self, device):
        """The driver's own id of a device, by which other monitoring names it too."""
        try:
            handle = self._handle(device) if self.library is not None else None
            text = ctypes.create_string_buffer(96)
            if handle is None or self.library.nvmlDeviceGetUUID(handle, text, len(text)) != 0:
                return None
            return text.value.decode()
        except Exception as error:
            swallow("_Nvml.uuid", error)
            return None

    def read_own_bytes(self, device):
        """Bytes of this process on a device; none if the driver does not report them, as in many containers."""
        if self.library is None:
            return None
        try:
            handle = self._handle(device)
            if handle is None:
                return None
            count = ctypes.c_uint(128)
            processes = (self._Process * count.value)()
            ask = self.library.nvmlDeviceGetComputeRunningProcesses_v3
            if ask(handle, ctypes.byref(count), processes) != 0:
                return None
            pid = os.getpid()
            # All ones: the driver cannot report it.
            found = [one.bytes for one in processes[: count.value] if one.pid == pid and one.bytes < 1 << 62]
            return found[0] if len(found) == 1 else None
        except Exception as error:
            swallow("_Nvml.read_own_bytes", error)
            return None


class _Files:
    """The log and the notes of one process."""

    def __init__(self, folder, visible):
        self.pid = os.getpid()
        self.texts = {}
        self.text_count = 0
        self.lists = {}
        self.list_count = 0
        self.window = None
        self.offset = -BLOCKS_WINDOW
        self.used = BLOCKS_WINDOW
        number = 0
        while True:
            name = f"{number:03}-{self.pid}"
            try:
                os.close(os.open(os.path.join(folder, f"number-{number:03}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                break
            except FileExistsError:
                number += 1
        self.log_path = os.path.join(folder, f"{LOG_PREFIX}{name}")
        self.blocks_path = os.path.join(folder, f"{BLOCKS_PREFIX}{name}")
        self.log = self._open_log()
        self.length = 0
        start = {
            "slot": number,
            "pid": self.pid,
            "arguments": list(getattr(sys, "orig_argv", sys.argv)),
            "visible": visible,
            "time": time.time_ns(),
            "measured": True,
        }
        self.append(RECORD_START, json.dumps(start).encode())

    def _open_log(self):
        return os.open(self.log_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def append(self, tag, data):
        record = struct.pack("<II", tag, len(data)) + data
        try:
            ours = os.fstat(self.log)
            there = os.stat(self.log_path)
            if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
                raise OSError
        except OSError:
            # The program closed the descriptor, and may use its number for its own file.
            self.log = self._open_log()
        view = memoryview(record)
        while view:
            view = view[os.write(self.log, view) :]

    def text(self, data):
        """The number of a text, which is logged at its first use."""
        number = self.texts.get(data)
        if number is None:
            if len(self.texts) >= _MAX_TEXTS:
                self.texts.clear()
            number = self.texts[data] = self.text_count
            self.text_count += 1
            self.append(RECORD_TEXT, data)
        return number

    def list(self, data):
        """The number of a list of owners, likewise."""
        number = self.lists.get(data)
        if number is None:
            if len(self.lists) >= _MAX_LISTS:
                self.lists.clear()
            number = self.lists[data] = self.list_count
            self.list_count += 1
            self.append(RECORD_OWNERS, data)
        return number

    def note(self, kind, when, address, number):
        if self.used == BLOCKS_WINDOW:
            self._grow()
        _ENTRY.pack_into(self.window, self.used, address, number | kind << 32, when, _NOTE_MARK | 1)
        self.used += _ENTRY.size

    def _grow(self):
        descriptor = os.open(self.blocks_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Without this a store into the mapping could be the one that finds the disk full.
            os.posix_fallocate(descriptor, self.offset + BLOCKS_WINDOW, BLOCKS_WINDOW)
            window = mmap.mmap(descriptor, BLOCKS_WINDOW, offset=self.offset + BLOCKS_WINDOW)
        finally:
            os.close(descriptor)
        self.window, self.offset, self.used = window, self.offset + BLOCKS_WINDOW, 0


class Gpu:
    """The functions of the stand-in that the recorder calls."""

    max_entries = _MAX_ENTRIES

    def __init__(self, folder):
        self.folder = folder
        self.torch = None
        self.files = None
        self.stopped = False
        self.owners = array.array("Q")
        self.owners_since = 0
        self.callback = None
        self.census_callback = None
        self.asked = False
        self.thread = None
        self.nvml = None
        self.free_before = {}
        self.sampled = set()
        # Rows of torch's history: counted by torch, kept, and missing.
        self.counted = self.kept = self.missing = 0
        self.level = 0
        # `partial` because a method takes no attributes, such as `argtypes`.
        for name in ("record", "note", "torch_events", "set_drain", "set_census"):
            setattr(self, f"tonnage_{name}", functools.partial(getattr(self, f"_{name}")))
        for name in ("due", "begin", "end"):
            setattr(self, f"tonnage_census_{name}", functools.partial(getattr(self, f"_census_{name}")))

    def meet(self, torch):
        self.torch = torch

    def start(self):
        """CUDA is used for the first time: what is in use now belongs to others."""
        self.nvml = _Nvml(self.torch)
        devices = range(self.torch.cuda.device_count())
        self.free_before = {device: self.nvml.free(device) for device in devices}

    # The files.

    def _write(self, write):
        """Calls a function with the files of this process. A failed write ends the recording, not the run."""
        if self.stopped or self.torch is None:
            return
        try:
            if self.files is None or self.files.pid != os.getpid():
                self.files = _Files(self.folder, self._visible())
            write(self.files)
        except Exception as error:
            self.stopped = True
            swallow("Gpu._write", error)
            print(f"tonnage: the recording ends here: {error}", file=sys.stderr)

    def _visible(self):
        """The machine's numbers of the devices, as far as they are given as numbers."""
        said = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        numbers = said.split(",")
        if said and all(number.strip().isdigit() for number in numbers):
            return [int(number) for number in numbers]
        return []

    def _record(self, tag, data, _length):
        self._flush_owners()
        self._write(lambda files: files.append(tag, data))

    def _note(self, kind, address, data, _length):
        now = time.time_ns()
        if kind == OWNER:
            if not self.owners:
                self.owners_since = now

            def remember(files):
                self.owners.extend((address, files.text(data)))

            self._write(remember)
            return
        self._flush_owners()
        if not self.sampled:
            self.sample()
        self._write(lambda files: files.note(kind, now, address, files.text(data)))

    def _flush_owners(self):
        if self.owners:
            data, self.owners = self.owners.tobytes(), array.array("Q")
            since = self.owners_since
            self._write(lambda files: files.note(OWNER_LIST, since, 0, files.list(data)))

    # Torch's history.

    def snapshot(self):
        """Torch's history without the blocks that are there, which no caller requests."""
        try:
            return self.torch._C._cuda_memorySnapshot(_NO_POOL)
        except TypeError:
            return self.torch.cuda.memory._snapshot()

    def drained(self, traces, counted):
        """Reports how many rows torch's history has lost: it was full, or another thread was at work meanwhile.

        `counted` is the number that torch had counted before the query."""
        self.kept += sum(row["action"] in ("alloc", "free_requested") for trace in traces for row in trace)
        if counted < self.counted:
            # The script has reset the count.
            self.kept, self.missing = counted, 0
        self.counted = counted
        missing = counted - self.kept
        if missing > self.missing:
            data = json.dumps({"overrun": missing - self.missing}).encode()
            self._write(lambda files: files.append(RECORD_NOTE, data))
            self.missing = missing

    def _stats(self):
        """The figures of torch's allocator for each device that has a context."""
        torch = self.torch
        for device in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(device):
                yield device, torch._C._cuda_memoryStats(device)

    def _torch_events(self):
        try:
            counts = (stats["allocation"]["all"] for _, stats in self._stats())
            return sum(count["allocated"] + count["freed"] for count in counts)
        except Exception as error:
            swallow("Gpu._torch_events", error)
            return 0

    def _set_drain(self, callback):
        self.callback = callback
        if callback is not None and (self.thread is None or not self.thread.is_alive()):
            self.thread = threading.Thread(target=self._ask_for_drains, daemon=True, name="tonnage")
            self.thread.start()

    def _ask_for_drains(self):
        while self.callback is not None:
            time.sleep(_SECONDS_PER_DRAIN)
            callback = self.callback
            if callback is not None and not self.asked:
                # The main thread calls it between two of its steps. One at a time: where a script is profiled, Python
                # 3.11 does not get beyond the first line of a pending call while another one waits.
                self.asked = True
                ctypes.pythonapi.Py_AddPendingCall(callback, None)

    # The holders of the memory.

    def _set_census(self, callback):
        self.census_callback = callback

    def _allocated(self):
        return max((stats["allocated_bytes"]["all"]["current"] for _, stats in self._stats()), default=0)

    def _census_due(self, percent):
        now = self._allocated()
        return now >= _CENSUS_LEAST and now * 100 >= self.level * percent

    def _census_begin(self, reason, _length):
        self.level = self._allocated()
        self._note(MOMENT, 0, b"census\t" + reason, 0)

    def _census_end(self, reason, _length, graphs):
        # The place of the address reports whether graphs were walked.
        self._note(MOMENT, int(graphs), b"census_end\t" + reason, 0)

    # The figures of the device.

    def sample(self):
        """Queries each device that has a context: how much of it is in use, and by which processes."""
        torch = self.torch
        try:
            if self.nvml is None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
                return
            for device, stats in self._stats():
                free, total = torch.cuda.mem_get_info(device)
                sample = {
                    "device": device,
                    "time": time.time_ns(),
                    "free": free,
                    "total": total,
                    "own": self.nvml.read_own_bytes(device),
                    "free_before": self.free_before.get(device),
                    "reserved": stats["reserved_bytes"]["all"]["current"],
                    "allocated": stats["allocated_bytes"]["all"]["current"],
                    "peak_allocated": stats["allocated_bytes"]["all"]["peak"],
                    "peak_reserved": stats["reserved_bytes"]["all"]["peak"],
                    "inactive_split": stats["inactive_split_bytes"]["all"]["current"],
                }
                if device not in self.sampled:
                    self.sampled.add(device)
                    properties = torch.cuda.get_device_properties(device)
                    sample["name"] = properties.name
                    sample["count"] = torch.cuda.device_count()
                    sample["uuid"] = self.nvml.uuid(device)
                data = json.dumps({"sample": sample}).encode()
                self._write(lambda files, data=data: files.append(RECORD_NOTE, data))
        except Exception as error:
            swallow("Gpu.sample", error)
            data = json.dumps({"unsampled": f"{type(error).__name__}: {error}"[:512]}).encode()
            self._write(lambda files: files.append(RECORD_NOTE, data))
