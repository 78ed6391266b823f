# SPDX-License-Identifier: MIT OR Apache-2.0
"""Follows torch in this process: waits until CUDA is used, turns on torch's own history of allocations and hands it to
the stand-in piece by piece."""

from __future__ import annotations

import functools
import json
import os
import sys

from tonnage_hook.after_import import call_after_import
from tonnage_hook.failures import failures, swallow
from tonnage_hook.needs import needs
from tonnage_hook.notes import write_limitation
from tonnage_hook.process import leave
from tonnage_hook.settings import SETTINGS
from tonnage_hook.torch.frames import skip_compiler
from tonnage_hook.wire import RECORD_NOTE, RECORD_TORCH, bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Unpack

    from tonnage_hook.wire import Notes


class Recorder:
    """Moves torch's history to the log of the stand-in."""

    def __init__(self, serving: bool) -> None:
        import ctypes

        self.settings = SETTINGS
        # Whether this process is a fork server, which records nothing itself.
        self.serving = serving
        # Where the GPU is a real one, `tonnage record`, there is no stand-in.
        self.gpu: Any = None
        if self.settings.get("record"):
            from tonnage_hook.torch.gpu import Gpu

            self.gpu = Gpu(self.settings["record"])
        self.library: Any = self.gpu or ctypes.CDLL(None)
        shared = ("tonnage_record", "tonnage_torch_events", "tonnage_set_drain", "tonnage_set_census")
        bind(self.library, *shared)
        if self.gpu is None:
            bind(self.library, "tonnage_costs", "tonnage_rank", "tonnage_set_finish")
        # Kept here because the stand-in holds only its address.
        self.callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._drain_from_main_thread)
        self.census_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._census_from_main_thread)
        self.finish_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._finish)
        self.torch = None
        self.owners = None
        self.holders = None
        self.values = None
        self.compilers = None
        self.kernels = None
        self.handshake = None
        self.changes = None
        self.set_history = None
        self.running = False
        # Whether the script has run out of memory, and we look why.
        self.at_out_of_memory = False
        # Whether the script records its own history, which must not be cleared.
        self.shared = False
        self.draining = False
        self.started = False
        self.forked = False
        # As torch.distributed has it; launchers may not set it.
        self.rank = None

    def write(self, tag, data):
        self.library.tonnage_record(tag, data, len(data))

    def note(self, **facts: Unpack[Notes]) -> None:
        self.write(RECORD_NOTE, json.dumps(facts).encode())

    def meet(self, torch):
        """Called when torch has been imported."""
        self.torch = torch
        if self.gpu is not None:
            self.gpu.meet(torch)
        self._look_for_names()
        if not needs.has("start"):
            return
        if needs.has("holders"):
            from tonnage_hook.torch.holders import Holders

            self.holders = Holders(torch, self.library)
        if self.settings["values"] and needs.has("values"):
            from tonnage_hook.torch.host import Host
            from tonnage_hook.torch.values import Values

            self.values = Values(torch, self.library, Host(torch), self.settings["assumed_mask"])
            self.values.has_absent_ranks = self.settings["absent_ranks"]
            self.values.tell = lambda summary: self.note(values=summary)
            self.values.install()
            self._change_modules(self.values.modules())
        if self.gpu is None:
            self._change_compilers()
        if self.gpu is None and needs.has("handshake"):
            from tonnage_hook.torch.handshake import Handshake

            self.handshake = Handshake(torch, self.library, self.values, write_limitation)
        if needs.has("owners"):
            from tonnage_hook.torch.owners import Owners

            self.owners = Owners(torch, self.library, self.holders, self.values)
            self.owners.sparing = self.gpu is not None
            self.owners.after_step = self._after_step
            self.owners.before_first_pass = self.handshake and self.handshake.run
            self.change(self.settings.get("changes") or ())
            if self.holders is not None and self.gpu is None:
                self.holders.watch_collections()
            self._watch_rank()
        self._lift_limits()
        if self.settings.get("ranks") and needs.has("ranks"):
            from tonnage_hook.torch.ranks import Ranks

            Ranks(self.settings["ranks"], self.note).install(torch)
        if needs.has("history"):
            memory = torch.cuda.memory
            self.set_history = memory._record_memory_history
            memory._record_memory_history = self._history_asked_for_by_script
        # Python may call these amid code that torch.compile watches.
        for function in (
            self._drain_from_main_thread,
            self._census_from_main_thread,
            self._unless_inside_operator,
            self._between_two_steps,
            self._out_of_memory,
        ):
            skip_compiler(torch, function)
        torch.cuda._lazy_call(self.start)

    def _look_for_names(self):
        """Looks for the private names of torch that the hook uses, now or when their module is imported."""
        parts = ["start", "history", "owners", "holders", "sharded", "rank", "order", "copies"]
        parts += ["record"] if self.gpu is not None else ["handshake", "compilers"]
        parts += ["values", "masks", "operators"] if self.settings["values"] else []
        settings = {"ranks": "ranks", "changes": "changes", "unlimited": "limits"}
        parts += [part for setting, part in settings.items() if self.settings.get(setting)]
        needs.want(*parts)
        for module in sorted(needs.later(*parts)):
            call_after_import(module, lambda _, name=module: needs.imported(name))

    def change(self, names):
        """Makes changes to the program, inside this process. torch has been imported."""
        if names:
            from tonnage_hook.torch.changing import Changes

            self.changes = Changes(self.torch, names, self.note)
            self.owners.before_pass = self.changes.before_pass
            self.owners.after_pass = self.changes.after_pass

    def _lift_limits(self):
        """Where the GPU has no limit, to find out how much a job needs, the script sets none either."""
        if self.settings.get("unlimited") and needs.has("limits"):
            self.torch._C._cuda_setMemoryFraction = lambda fraction, device: None

    def sample(self):
        """Queries a real GPU: how much of it is in use."""
        if self.gpu is not None:
            self.gpu.sample()

    def _change_compilers(self):
        from tonnage_hook.torch.compilers import Compilers

        forget = self.values.forget if self.values is not None else lambda tensor: None
        self.compilers = Compilers(self.note, forget)
        changes = self.compilers.modules()
        if self.values is not None:
            from tonnage_hook.torch.kernels import Kernels

            self.kernels = Kernels(self.library, self.values)
            changes.update(self.kernels.modules())
        self._change_modules(changes)

    def _change_modules(self, changes):
        for name, change in changes.items():
            call_after_import(name, functools.partial(self._change_module, name, change))

    @staticmethod
    def _change_module(name, change, module):
        """Changes a module, unless a name is missing that the change needs."""
        if needs.imported(name):
            change(module)

    def ask_owners(self):
        try:
            if self.owners is not None and self.owners.installed:
                self.owners.ask_all()
        except Exception as error:
            swallow("Recorder.ask_owners", error)
            self.note(unnamed=f"{type(error).__name__}: {error}")

    def start(self):
        """Called by torch when CUDA is first used."""
        torch = self.torch
        self.started = True
        if self.gpu is not None:
            self.gpu.start()
        if not self.serving:
            self._stop_after_seconds()
        try:
            if self.values is not None:
                self.values.start()
            if self.owners is not None:
                self.owners.install()
            self.library.tonnage_set_census(self.census_callback)
            if self.gpu is None:
                self.library.tonnage_set_finish(self.finish_callback)
        except Exception as error:
            swallow("Recorder.start", error)
            self.note(unnamed=f"{type(error).__name__}: {error}")
        self._tell_versions()
        if self.gpu is None and self._is_plugged():
            # PyTorch keeps no history of such an allocator, and does not report when it runs out. The stand-in still
            # sees the driver's calls; a real GPU has nothing else to report, which is noted as any other failure below.
            self.note(plugged=True)
            return
        if self.set_history is None:
            return
        try:
            if self.shared:
                # The script has requested a history before CUDA was used.
                self.library.tonnage_set_drain(self.callback)
            else:
                self.begin()
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except Exception as error:
            # cudaMallocAsync has neither a history nor observers.
            if self.torch.cuda.memory.get_allocator_backend() == "native":
                swallow("Recorder.start", error)
            self.running = False
            self.note(trouble=str(error).splitlines()[0])

    def _is_plugged(self):
        """Whether another allocator took the place of PyTorch's own."""
        try:
            return self.torch.cuda.memory.get_allocator_backend() == "pluggable"
        except AttributeError:
            # Before torch 2.0 there was none.
            return False

    def _tell_versions(self):
        families = ("PYTORCH_", "TORCH_", "CUDA_", "CUBLAS", "CUDNN_", "NCCL_")
        # A path describes the machine and not memory.
        settings = [name for name, value in os.environ.items() if name.startswith(families) and "/" not in value]
        variables = (*sorted(settings), "RANK", "LOCAL_RANK", "WORLD_SIZE")
        versions = {
            "torch": self.torch.__version__,
            "cuda": self.torch.version.cuda,
            "python": sys.version.split()[0],
            "environment": {name: os.environ[name] for name in variables if name in os.environ},
        }
        self.note(versions=versions)
        if self.rank is not None:
            self.note(rank=self.rank)

    def _watch_rank(self):
        """Lets torch.distributed report which rank this process is, as soon as it knows."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        update = getattr(c10d, "_update_default_pg", None)
        if update is None:
            return

        def update_and_tell(group, *arguments, **named):
            update(group, *arguments, **named)
            rank = c10d.get_rank() if group is not None else -1
            if rank < 0:
                return
            self.rank = rank
            if self.gpu is None:
                self.library.tonnage_rank(rank)
            if self.started:
                self.note(rank=rank)

        c10d._update_default_pg = update_and_tell

    def join(self):
        """Goes on as the recorder of a variant, which was forked off before any device was used."""
        self.serving = False
        self.forked = True
        needs.begin_anew()
        if self.torch is not None:
            self._look_for_names()
        if self.owners is not None:
            self.change(self.settings.get("changes") or ())
        self._lift_limits()
        if self.holders is not None and os.path.isfile(sys.argv[0]):
            self.holders.main_file = os.path.abspath(sys.argv[0])
        if self.started:
            # An import requested the device's properties. Torch would refuse to go on in a forked process; what it
            # knows of the device is still true in this one, though not in its own children.
            process = os.getpid()
            self.torch.cuda._is_in_bad_fork = lambda: os.getpid() != process
            self._tell_versions()
            self._stop_after_seconds()

    def _after_step(self, steps):
        # The first steps, then ever fewer: the cost of a step is a difference.
        if steps <= 4 or steps & (steps - 1) == 0:
            self.tell_costs(steps)
        self._stop_after_steps(steps)

    def tell_costs(self, steps):
        """Reports what the process has had the GPU do so far."""
        if self.gpu is None:
            import ctypes

            counts = (ctypes.c_uint64 * 16)()
            number = self.library.tonnage_costs(counts, len(counts))
            self.note(costs={"steps": steps, "counts": list(counts[:number])})

    def _stop_after_steps(self, steps):
        wanted = self.settings["stop_after_steps"]
        if wanted is not None and steps >= wanted:
            self.stop(f"after {steps} {'step' if steps == 1 else 'steps'}")

    def _stop_after_seconds(self):
        """Ends the job in its main thread, between two of its steps; by force if it is stuck in a call."""
        import ctypes
        import threading
        import time

        wanted = self.settings["stop_after_seconds"]
        if wanted is None:
            return
        when = f"after {wanted} seconds"
        # Kept here because Python holds only its address.
        self.stop_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: self.stop(when))

        def wait():
            time.sleep(wanted)
            ctypes.pythonapi.Py_AddPendingCall(self.stop_callback, None)
            time.sleep(20)
            self.note(stopped=when)
            leave(0)

        threading.Thread(target=wait, daemon=True, name="tonnage").start()

    def stop(self, when):
        """Ends the job here, as was requested."""
        self.note(stopped=when)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def begin(self, **more):
        if self.gpu is not None:
            more["max_entries"] = self.gpu.max_entries
        self.set_history("all", context="alloc", stacks="python", **more)
        self.shared = False
        self.running = True
        self.library.tonnage_set_drain(self.callback)

    def drain(self):
        """Hands over what torch has recorded since the last time, and clears it."""
        if not self.running or self.draining:
            return
        self.draining = True
        import gc
        import pickle

        # A collection set off by what is made here would free the script's own
        # garbage, and with it device memory, sooner than without us.
        collecting = gc.isenabled()
        gc.disable()
        try:
            before = self.library.tonnage_torch_events()
            snapshot = self.gpu.snapshot() if self.gpu is not None else self.torch.cuda.memory._snapshot()
            kept = ("device_traces", "external_annotations")
            self.write(RECORD_TORCH, pickle.dumps({key: snapshot[key] for key in kept if key in snapshot}, 5))
            if self.gpu is not None:
                self.gpu.drained(snapshot["device_traces"], before)
            del snapshot
            if self.shared:
                self.running = False
                return
            try:
                self.begin(clear_history=True)
            except TypeError:
                # Before torch 2.7 a history is cleared by ending it.
                self.set_history(None)
                self.begin()
            lost = self.library.tonnage_torch_events() - before
            if lost and self.gpu is None:
                # Another thread used the allocator meanwhile; the blocks are
                # known all the same, only their stacks are not.
                self.note(lost=lost)
        except Exception as error:
            self.running = False
            swallow("Recorder.drain", error)
            self.note(trouble=f"{type(error).__name__}: {error}")
        finally:
            if collecting:
                gc.enable()
            self.draining = False

    def _drain_from_main_thread(self, _):
        later = self._unless_inside_operator(self._drain_in_passing)
        if self.gpu is not None:
            self.gpu.asked = False
        return later

    def _drain_in_passing(self):
        if self.shared:
            return
        self.drain()
        if self.gpu is not None:
            self.gpu.sample()
            if self.holders is not None and self.holders.due(125):
                self.take_census("peak")

    def _census_from_main_thread(self, _):
        return self._unless_inside_operator(lambda: self.take_census("peak"))

    def _unless_inside_operator(self, function):
        """Calls a function and gives 0; or 1, to be called again, where values are being computed: that is inside an
        operator of torch, where no step of the script ends. Without values, Python would not run there.

        A script that is profiled or traced gets 2, to be called at the next event: Python 3.11 would call it forever
        there. So does a script that has run out of memory: what we do then is itself inside an operator and takes many
        steps, at each of which Python would call this up to 32 times."""
        if self.at_out_of_memory:
            return 2
        if self._is_inside_operator(sys._getframe(2)):
            return 1 if sys.getprofile() is None and sys.gettrace() is None else 2
        self._between_two_steps(function)
        return 0

    @staticmethod
    def _is_inside_operator(frame):
        """Whether values are being computed in a frame or in one that called it."""
        for _ in range(12):
            if frame is None:
                break
            code = frame.f_code
            ours = code.co_name == "__torch_dispatch__" and code.co_filename == "<tonnage>"
            # A lookup of torch before it calls a mode.
            if ours or code.co_name == "find_torch_dispatch_rule":
                return True
            frame = frame.f_back
        return False

    def _between_two_steps(self, function):
        """Calls a function of ours in the midst of the script's."""
        # A frame that torch.compile watches would be compiled.
        set_eval_frame = self.torch._C._dynamo.eval_frame.set_eval_frame
        hold = set_eval_frame(None)
        try:
            function()
        except BaseException as error:
            # The script's own: Ctrl-C, or what a handler of a signal raised. It is raised again when we are gone.
            import ctypes
            import threading

            main = ctypes.c_ulong(threading.main_thread().ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(type(error)))
        finally:
            set_eval_frame(hold)

    def take_census(self, reason):
        try:
            if self.holders is not None and self.owners is not None and self.owners.installed:
                self.holders.take(reason, self.owners.in_backward())
        except Exception as error:
            swallow("Recorder.take_census", error)
            self.note(unnamed=f"{type(error).__name__}: {error}")

    def _out_of_memory(self, device, size, allowed, free):
        # Called by the thread that ran out, which may be one of torch's own. An
        # exception here would take the place of the script's OutOfMemoryError.
        self.at_out_of_memory = True
        try:
            # A watcher of the job counts these; the history, which has the row, is read after the job only.
            self.note(oom=device)
            self.sample()
            self.ask_owners()
            self.take_census("oom")
            self.drain()
        except Exception as error:
            self.running = False
            swallow("Recorder._out_of_memory", error)
            print(f"tonnage: the history ends here: {error}", file=sys.stderr)
        finally:
            self.at_out_of_memory = False

    def _history_asked_for_by_script(self, enabled="all", *arguments, **options):
        self.drain()
        if enabled is not None and not arguments and self.gpu is None:
            # From here on one history serves the script and us. A ring that comes round would lose what only it
            # has; the script then sees more than it requested, never less.
            options["max_entries"] = sys.maxsize
        result = self.set_history(enabled, *arguments, **options)
        if enabled is None and not self.torch.cuda.is_initialized():
            self.shared = self.running = False
        elif enabled is None:
            self.begin()
        else:
            self.shared = True
            self.running = True
        return result

    def tell_values(self):
        """Reports which unknown values were read, and whether choices go by time."""
        if self.handshake is not None:
            self.handshake.run()
        if self.values is not None and self.values.on:
            self.values.on = False
            self.note(values=self.values.summary())
        if self.compilers is not None and self.compilers.chose:
            self.note(autotuned=True)
        if self.gpu is None and self.torch.backends.cudnn.benchmark and self._convolved():
            self.note(benchmarked=True)
        if self.changes is not None:
            self.changes.finish()
        if self.torch is not None and self.torch.cuda.is_initialized() and self.owners is not None:
            self.tell_costs(self.owners.steps)

    def _convolved(self):
        """Whether a convolution was called, as far as operators were seen."""
        seen = self.values.operators.values() if self.values is not None else ()
        return any("convolution" in getattr(operator, "name", "") for operator in seen)

    def _finish(self, _):
        """Hands over what is left where C ends the process, maybe in the midst of an operator."""
        try:
            self.drain()
            self.tell_values()
        except Exception as error:
            swallow("Recorder._finish", error)
            self.note(trouble=f"{type(error).__name__}: {error}")
        failures.write()
        return 0

    def after_cell(self):
        """Called when a cell of a notebook has run."""
        if self.started and not self.shared:
            self.drain()
            if self.holders is not None and self.holders.due():
                self.take_census("peak")

    def script_failed(self):
        """Called when an exception has ended the script."""
        if self.holders is not None:
            self.holders.script_failed = True

    def end(self):
        """Hands over what is left where Python ends the process."""
        self.sample()
        self.drain()
        # After the history: when that is drained depends on the clock, and the place of a row must not. Before what
        # takes longer: a server kills workers that do not end within seconds.
        self.tell_values()
        if self.settings.get("holders_at_end", True):
            self.ask_owners()
            self.take_census("end")
        self.drain()
        if self.gpu is not None and self.gpu.files is not None:
            self.note(ended=True)
        failures.write()
        # Memory that torch frees from here on is freed while Python shuts down.
        self.forget()

    def forget(self):
        """Records no further: the end is near, or this is a forked child."""
        self.running = False
        if self.gpu is None:
            self.library.tonnage_set_finish(None)
        if self.values is not None:
            self.values.stop()
        if self.holders is not None:
            self.holders.forget()
        self.holders = None
        self.library.tonnage_set_drain(None)
        self.library.tonnage_set_census(None)
