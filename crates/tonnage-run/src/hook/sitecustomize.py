# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs at the start of every Python inside `tonnage run`.

Waits until torch is imported and CUDA is used, then turns on torch's own
allocator history and hands it to the stand-in piece by piece. Whatever goes
wrong here must not change what the user's script does: it ends the recording
of stacks, not the run.
"""

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import types

_TORCH, _NOTE = 3, 4
# An interrupt while this file runs ends the process: Python would report one as a fatal error of its start.
_interrupted = signal.getsignal(signal.SIGINT)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class _Recorder:
    """Moves torch's history to the log of the stand-in."""

    def __init__(self):
        import ctypes

        self.settings = _settings
        # Where the GPU is a real one, `tonnage record`, there is no stand-in.
        self.gpu = _load("gpu")["Gpu"](self.settings["record"]) if self.settings.get("record") else None
        self.library = self.gpu or ctypes.CDLL(None)
        self.library.tonnage_record.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
        self.library.tonnage_record.restype = None
        self.library.tonnage_torch_events.restype = ctypes.c_uint64
        if self.gpu is None:
            self.library.tonnage_costs.restype = ctypes.c_size_t
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
        # Whether the script records a history of its own, which must not be cleared.
        self.shared = False
        self.draining = False
        self.started = False
        self.forked = False
        # As torch.distributed has it; launchers may not tell.
        self.rank = None

    def write(self, tag, data):
        self.library.tonnage_record(tag, data, len(data))

    def note(self, **facts):
        self.write(_NOTE, json.dumps(facts).encode())

    def meet(self, torch):
        """Called when torch has been imported."""
        self.torch = torch
        if self.gpu is not None:
            self.gpu.meet(torch)
        self._look_for_names()
        if not _needs.has("start"):
            return
        if _needs.has("holders"):
            self.holders = _load("holders")["Holders"](torch, self.library, [__file__])
        if self.settings["values"] and _needs.has("values"):
            host = _load("host")["Host"](torch)
            decisions = types.SimpleNamespace(**_load("decisions"))
            values = _load("values", {"decisions": decisions})
            self.values = values["Values"](torch, self.library, host, self.settings["assumed_mask"])
            self.values.has_absent_ranks = self.settings["absent_ranks"]
            self.values.tell = lambda summary: self.note(values=summary)
            self.values.install()
            self._change_modules(self.values.modules())
        if self.gpu is None:
            self._change_compilers()
        if self.gpu is None and _needs.has("handshake"):
            self.handshake = _load("handshake")["Handshake"](torch, self.library, self.values, _limit)
        if _needs.has("owners"):
            self.owners = _load("owners")["Owners"](torch, self.library, self.holders, self.values)
            self.owners.sparing = self.gpu is not None
            self.owners.after_step = self._after_step
            self.owners.before_first_pass = self.handshake and self.handshake.run
            self.change(self.settings.get("changes") or ())
            self._watch_rank()
        self._lift_limits()
        if self.settings.get("ranks") and _needs.has("ranks"):
            _load("ranks")["Ranks"](self.settings["ranks"], self.note).install(torch)
        if _needs.has("history"):
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
            _skip_compiler(torch, function)
        torch.cuda._lazy_call(self.start)

    def _look_for_names(self):
        """Looks for the private names of torch that the hook uses, now or when their module is imported."""
        parts = ["start", "history", "owners", "holders", "sharded", "rank", "order", "copies"]
        parts += ["record"] if self.gpu is not None else ["handshake", "compilers"]
        parts += ["values", "masks", "operators"] if self.settings["values"] else []
        settings = {"ranks": "ranks", "changes": "changes", "unlimited": "limits"}
        parts += [part for setting, part in settings.items() if self.settings.get(setting)]
        _needs.want(*parts)
        for module in sorted(_needs.later(*parts)):
            sys.meta_path.insert(0, _AfterImport(module, lambda _, name=module: _needs.imported(name)))

    def change(self, names):
        """Makes changes to the program, inside this process. torch has been imported."""
        if names:
            self.changes = _load("changing")["Changes"](self.torch, names, _load, self.note)
            self.owners.before_pass = self.changes.before_pass
            self.owners.after_pass = self.changes.after_pass

    def _lift_limits(self):
        """Where the GPU has no limit, to find out how much a job needs, the script sets none either."""
        if self.settings.get("unlimited") and _needs.has("limits"):
            self.torch._C._cuda_setMemoryFraction = lambda fraction, device: None

    def sample(self):
        """Asks a real GPU how much of it is in use."""
        if self.gpu is not None:
            self.gpu.sample()

    def _change_compilers(self):
        forget = self.values.forget if self.values is not None else lambda tensor: None
        self.compilers = _load("compilers")["Compilers"](self.note, forget)
        changes = self.compilers.modules()
        if self.values is not None:
            ttir = types.SimpleNamespace(**_load("ttir"))
            self.kernels = _load("kernels", {"ttir": ttir})["Kernels"](self.library, self.values)
            changes.update(self.kernels.modules())
        self._change_modules(changes)

    def _change_modules(self, changes):
        for name, change in changes.items():
            change = functools.partial(self._change_module, name, change)
            if name in sys.modules:
                change(sys.modules[name])
            else:
                sys.meta_path.insert(0, _AfterImport(name, change))

    @staticmethod
    def _change_module(name, change, module):
        """Changes a module, unless a name is missing that the change needs."""
        if _needs.imported(name):
            change(module)

    def ask_owners(self):
        try:
            if self.owners is not None and self.owners.installed:
                self.owners.ask_all()
        except Exception as error:
            _failures.swallow("_Recorder.ask_owners", error)
            self.note(unnamed=f"{type(error).__name__}: {error}")

    def start(self):
        """Called by torch when CUDA is first used."""
        torch = self.torch
        self.started = True
        if self.gpu is not None:
            self.gpu.start()
        if not _serving:
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
            _failures.swallow("_Recorder.start", error)
            self.note(unnamed=f"{type(error).__name__}: {error}")
        self._tell_versions()
        if self.gpu is None and self._is_plugged():
            # PyTorch keeps no history of such an allocator, and tells nobody when it runs out. The stand-in still sees
            # the driver's calls; a real GPU has nothing else to tell, which is said as any other failure below.
            self.note(plugged=True)
            return
        if self.set_history is None:
            return
        try:
            if self.shared:
                # The script has asked before CUDA was used.
                self.library.tonnage_set_drain(self.callback)
            else:
                self.begin()
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except Exception as error:
            # cudaMallocAsync has neither a history nor observers.
            if self.torch.cuda.memory.get_allocator_backend() == "native":
                _failures.swallow("_Recorder.start", error)
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
        # A path says something of the machine and nothing of memory.
        settings = [name for name, value in os.environ.items() if name.startswith(families) and "/" not in value]
        variables = (*sorted(settings), "RANK", "LOCAL_RANK", "WORLD_SIZE")
        self.note(
            torch=self.torch.__version__,
            cuda=self.torch.version.cuda,
            python=sys.version.split()[0],
            environment={name: os.environ[name] for name in variables if name in os.environ},
        )
        if self.rank is not None:
            self.note(rank=self.rank)

    def _watch_rank(self):
        """Lets torch.distributed tell which rank this process is, as soon as it knows."""
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
                import ctypes

                self.library.tonnage_rank(ctypes.c_int64(rank))
            if self.started:
                self.note(rank=rank)

        c10d._update_default_pg = update_and_tell

    def join(self, settings):
        """Goes on as the recorder of a variant, which was forked off before any device was used."""
        self.settings = settings
        self.forked = True
        _needs.begin_anew()
        if self.torch is not None:
            self._look_for_names()
        if self.owners is not None:
            self.change(settings.get("changes") or ())
        self._lift_limits()
        if self.holders is not None and os.path.isfile(sys.argv[0]):
            self.holders.main_file = os.path.abspath(sys.argv[0])
        if self.started:
            # An import asked for the device's properties. Torch would refuse to go on in a forked process; what it
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
        """Tells what the process has had the GPU do so far."""
        if self.gpu is None:
            import ctypes

            counts = (ctypes.c_uint64 * 16)()
            number = self.library.tonnage_costs(counts, ctypes.c_size_t(16))
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
            _exit(0)

        threading.Thread(target=wait, daemon=True, name="tonnage").start()

    def stop(self, when):
        """Ends the job here, as was asked for."""
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
            self.write(_TORCH, pickle.dumps({key: snapshot[key] for key in kept if key in snapshot}, 5))
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
            _failures.swallow("_Recorder.drain", error)
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

        A script that is profiled or traced gets 2, to be called at the next event: Python 3.11 would call it for ever
        there. So does a script that has run out of memory: what we do then is itself inside an operator and takes many
        steps, at each of which Python would call this up to 32 times."""
        if self.at_out_of_memory:
            return 2
        frame = sys._getframe(2)
        for _ in range(12):
            if frame is None:
                break
            code = frame.f_code
            ours = code.co_name == "__torch_dispatch__" and code.co_filename == "<tonnage>"
            # What torch looks up before it calls a mode.
            if ours or code.co_name == "find_torch_dispatch_rule":
                return 1 if sys.getprofile() is None and sys.gettrace() is None else 2
            frame = frame.f_back
        self._between_two_steps(function)
        return 0

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
            _failures.swallow("_Recorder.take_census", error)
            self.note(unnamed=f"{type(error).__name__}: {error}")

    def _out_of_memory(self, device, size, allowed, free):
        # Called by the thread that ran out, which may be one of torch's own. An
        # exception here would take the place of the script's OutOfMemoryError.
        self.at_out_of_memory = True
        try:
            # Who watches the job counts these; the history, which has the row, is read after the job only.
            self.note(oom=device)
            self.sample()
            self.ask_owners()
            self.take_census("oom")
            self.drain()
        except Exception as error:
            self.running = False
            _failures.swallow("_Recorder._out_of_memory", error)
            print(f"tonnage: the history ends here: {error}", file=sys.stderr)
        finally:
            self.at_out_of_memory = False

    def _history_asked_for_by_script(self, enabled="all", *arguments, **options):
        self.drain()
        if enabled is not None and not arguments and self.gpu is None:
            # From here on one history serves the script and us. A ring that comes round would lose what only it
            # tells; the script then sees more than it asked for, never less.
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
        """Tells which values were read that nobody knows, and whether choices go by time."""
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
            _failures.swallow("_Recorder._finish", error)
            self.note(trouble=f"{type(error).__name__}: {error}")
        _failures.write()
        return 0

    def forget(self):
        """Records no further: the end is near, or this is a forked child."""
        self.running = False
        if self.gpu is None:
            self.library.tonnage_set_finish(None)
        if self.values is not None:
            self.values.stop()
        self.holders = None
        self.library.tonnage_set_drain(None)
        self.library.tonnage_set_census(None)


# What several of our files use.
_SHARED = {}


def _skip_compiler(torch, function):
    """Keeps torch.compile from compiling one of our own functions, and what it calls."""
    frames = torch._C._dynamo.eval_frame
    try:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except AttributeError:
        frames.skip_code(function.__code__)


def _load(name, given=()):
    """What one of our files defines. It runs under a name of its own, so that no stack shows a file of this run."""
    scope = {"__name__": f"tonnage_{name}", **_SHARED, **dict(given)}
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    with open(source, encoding="utf-8") as file:
        exec(compile(file.read(), "<tonnage>", "exec"), scope)
    return scope


def _stack(traceback):
    """The frames of an exception, innermost first, with the lines that raised: a frame that caught it has gone on."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append([code.co_name, code.co_filename, traceback.tb_lineno])
        traceback = traceback.tb_next
    return frames[:-65:-1]


_recorder = None
# What keeps this process from uploading.
_offline = None
# Whether this process is a fork server, which records nothing itself.
_serving = False


def _torch_imported(torch):
    global _recorder
    try:
        _recorder = _Recorder()
        _recorder.meet(torch)
    except Exception as error:
        _failures.swallow("_torch_imported", error)
        print(f"tonnage: no stacks will be recorded: {error}", file=sys.stderr)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets a module be imported as usual, then calls a function with it.

    Many packages look whether a module is there before they import it, so this
    stays until it has really been imported.
    """

    def __init__(self, name, call, before=None):
        self.name = name
        self.call = call
        self.before = before

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        # Those before this one did not find it, and another one of this class may watch the same module.
        position = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[position:]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        else:
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self, module):
        """Called when the module has been executed."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            self.call(module)
        except Exception as error:
            # A version that we do not know: the program goes on with it as it is.
            _failures.swallow("_AfterImport.imported", error)
            print(f"tonnage: {self.name} is left as it is: {error}", file=sys.stderr)


class _Loader(importlib.abc.Loader):
    """Executes a module by the loader of its package, which stays as it is: it may have slots, or load many modules."""

    def __init__(self, inner, watcher):
        self.inner = inner
        self.watcher = watcher

    def create_module(self, spec):
        create = getattr(self.inner, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module):
        # The module sees the loader that it has without us.
        module.__spec__.loader = module.__loader__ = self.inner
        if self.watcher.before is not None:
            self.watcher.before()
        self.inner.exec_module(module)
        self.watcher.imported(module)

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def _write_note(**facts):
    """Writes a note by the recorder, or without one where torch is missing."""
    if _recorder is not None:
        _recorder.note(**facts)
    elif not _settings.get("record"):
        _note_without_torch(**facts)


def _limit(code, message, affects_figures=False):
    """Writes a limitation of the verdict."""
    _write_note(limitation={"code": code, "message": message, "affects_figures": affects_figures})


def _note_without_torch(**facts):
    """Tells the stand-in what no recorder tells, because there is none without torch."""
    import ctypes

    note = json.dumps(facts).encode()
    ctypes.CDLL(None).tonnage_record(ctypes.c_uint32(_NOTE), note, ctypes.c_size_t(len(note)))


class _JaxFinder(importlib.abc.MetaPathFinder):
    """Notices that JAX loads its part for CUDA. It looks for the files of a driver that is not there and goes on
    without a word on the CPU, maybe for hours: where torch is not in the process, the job is ended here."""

    def find_spec(self, name, path, target=None):
        if not name.startswith("jax_plugins.xla_cuda"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        _note_without_torch(foreign={"name": "JAX", "library": (spec and spec.origin) or name, "how": "cpu"})
        if "torch" not in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            _exit_at_once(2)
        # Its check of CUDA's libraries would end the process by a signal.
        raise ModuleNotFoundError("tonnage: a dry run cannot follow JAX on a GPU; it computes on the CPU", name=name)


def _name_cells(module):
    """Has a kernel of Jupyter call its cells `In[3]`, as notebooks do, and not by a path that does not exist."""
    compiler = module.XCachingCompiler
    named = compiler.get_code_name

    def get_code_name(self, raw_code, code, number):
        if "IPYKERNEL_CELL_NAME" in os.environ or type(number) is not int:
            return named(self, raw_code, code, number)
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and _after_cell not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", _after_cell)
        return f"In[{number}]"

    compiler.get_code_name = get_code_name


def _after_cell(_=None):
    """A kernel is killed if it does not end within seconds, so nothing is left for the end."""
    if _recorder is not None and _recorder.started and not _recorder.shared:
        _recorder.drain()
        if _recorder.holders is not None and _recorder.holders.due():
            _recorder.take_census("peak")


def _at_exit():
    if _imports is not None:
        _imports.write()
    if _offline is not None:
        _offline.finish()
    if _recorder is not None:
        _recorder.sample()
        _recorder.drain()
        # After the history: when that is drained depends on the clock, and the place of a row must not. Before what
        # takes longer: a server kills workers that do not end within seconds.
        _recorder.tell_values()
        if _recorder.settings.get("holders_at_end", True):
            _recorder.ask_owners()
            _recorder.take_census("end")
        _recorder.drain()
        if _recorder.gpu is not None and _recorder.gpu.files is not None:
            _recorder.note(ended=True)
        _failures.write()
        # What torch frees from here on happens in a Python that is going away.
        _recorder.forget()
        if _recorder.forked:
            _leave_libraries()


def _leave_libraries():
    """Has this process, a fork, end without taking apart the libraries that it shares with others: hundreds of
    thousands of objects, each of which would have to be copied first."""
    import ctypes
    import gc

    is_library = _SHARED["is_library"]
    left = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and is_library(file):
            left.append(sys.modules.pop(name))
    # Nobody lets go of it again.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
    # What is in a reference cycle at the end is not freed then: the system takes it with the process.
    gc.freeze()


_exit = os._exit


def _exit_at_once(status):
    _at_exit()
    _exit(status)


def _in_forked_child():
    _failures.begin_anew(keep=_serving)
    # Where CUDA was used before, torch refuses to use it here. Where not, this may be a rank.
    if _recorder is not None and not _serving and _recorder.started:
        _recorder.forget()
    if _offline is not None:
        _offline.forget()


def _without_our_frames(traceback):
    """A traceback of the script's own frames. One that is all ours stays as it is: the fault is ours."""
    kept, one = [], traceback
    while one is not None:
        if one.tb_frame.f_code.co_filename not in ("<tonnage>", __file__):
            kept.append(one)
        one = one.tb_next
    shown = None
    for one in reversed(kept):
        shown = types.TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown or traceback


def _hide_our_frames(error):
    """Takes our frames off the tracebacks of an exception and of all that it refers to."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_our_frames(one.__traceback__)
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _is_ended_by_tonnage():
    """Whether `tonnage run` ends the job, because another rank failed or nothing new comes."""
    return os.path.exists(os.path.join(os.environ.get("TONNAGE_RUN", ""), "ended"))


def _report_exception(kind, value, traceback, _report=sys.excepthook):
    try:
        # An interrupt may come while our code runs, and an import that fails runs in a frame of ours.
        _hide_our_frames(value)
        traceback = value.__traceback__
        exception = {
            "type": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(value)[:4096],
            "stack": _stack(traceback),
        }
        if _recorder is None or not _recorder.started:
            # No note has the rank of this process yet.
            rank = _recorder.rank if _recorder is not None else None
            rank = os.environ.get("RANK", "") if rank is None else rank
            if str(rank).isdecimal():
                _write_note(rank=int(rank))
        _write_note(exception=exception)
    except Exception as error:
        _failures.swallow("_report_exception", error)
    if _recorder is not None and _recorder.holders is not None:
        _recorder.holders.script_failed = True
    if not (issubclass(kind, KeyboardInterrupt) and _is_ended_by_tonnage()):
        _report(kind, value, traceback)


def _hear_interrupts():
    """Lets an interrupt end the script where it was started with interrupts ignored, as shells start what runs in the
    background: `tonnage run` passes interrupts on, and only a script that hears them hands over what it recorded."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:
        pass  # not the main thread of this interpreter


def _run_the_users_sitecustomize():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _read_settings(folder):
    with open(os.path.join(folder, "tonnage.json"), encoding="utf-8") as file:
        return json.load(file)


def _redirect_safetensors(module):
    """Has safetensors write where the preloaded library can redirect it: its own writes bypass the C library."""
    original = module.serialize_file

    def serialize_file(data, filename, *rest, **named):
        if os.environ.get("TONNAGE_FILES_BY") != "preload":
            return original(data, filename, *rest, **named)
        import shutil
        import tempfile

        with tempfile.TemporaryDirectory(dir=os.environ["TONNAGE_RUN"]) as folder:
            written = os.path.join(folder, "file")
            result = original(data, written, *rest, **named)
            shutil.copyfile(written, filename)
        return result

    module.serialize_file = serialize_file


def _stay_offline():
    """Has this process upload nothing."""
    global _offline
    _needs.want("offline")
    _offline = _load("offline")["Offline"](_note_without_torch, _load, _needs.missing_of)
    for name, change in _offline.modules().items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, _AfterImport(name, change))


def _replace_sources(settings):
    if settings.get("sources"):
        _load("sources")["replace"](settings["sources"])


def _serve():
    """Makes this process a fork server. Returns in the process of each variant, to go on as if it had been started."""
    global _serving
    address = os.environ.pop("TONNAGE_FORK_SERVER", None)
    if address is None:
        return
    _serving = True
    hook = _load("fork_server")["serve"](address, _exit)
    _serving = False
    settings = _read_settings(hook)
    _replace_sources(settings)
    if _recorder is not None:
        _recorder.join(settings)
    _failures.write()


_failures = _load("failures")["Failures"](_write_note)
_needs = _load("needs")["Needs"](_limit)
_SHARED["swallow"], _SHARED["harmless"] = _failures.swallow, _failures.harmless
_SHARED["is_library"] = _load("libraries")["is_library"]
_SHARED["skip_compiler"] = _skip_compiler
_graphs = _load("graphs")
_SHARED["node_of"], _SHARED["keeps_gradient"] = _graphs["node_of"], _graphs["keeps_gradient"]
_settings = _read_settings(os.path.dirname(os.path.abspath(__file__)))
_imports = _load("imports")["Imports"](os.environ) if _settings.get("imports") else None
sys.meta_path.insert(0, _AfterImport("ipykernel.compiler", _name_cells))
sys.meta_path.insert(0, _AfterImport("safetensors", _redirect_safetensors))
sys.meta_path.insert(0, _AfterImport("torch", _torch_imported, _imports and _imports.before_torch))
# On a real GPU every library works, and signals are the script's own business.
if not _settings.get("record"):
    sys.meta_path.insert(1, _JaxFinder())
    _hear_interrupts()
    if not _settings.get("side_effects"):
        _stay_offline()
sys.excepthook = _report_exception
os._exit = _exit_at_once
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_forked_child)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)
_run_the_users_sitecustomize()
_replace_sources(_settings)
_serve()
