# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compilers in a dry run: autotuners choose without compiling every candidate, and old Triton finds the driver.

Triton's autotuner and those of Inductor compile many variants of a kernel, time
them and take the fastest. In a dry run nothing takes time, so the comparison
reports nothing, and compiling takes minutes. Here the first candidate that compiles
is taken; where Inductor chooses between a library and its own kernels, the
library. Which one a GPU would take is unknown by nature, and the verdict reports it.

FlashInfer and SGLang compile kernels with nvcc when they are first used, and so
does a program that loads sources with TVM's FFI. Where there is no nvcc, a GPU's machine
would have one, and so would have taken these kernels: a module whose functions do
nothing takes their place. Results and work space are allocated in Python, before
such a function is called; the verdict names the modules.

CuTe's kernels in Python, of CUTLASS, are launched by a library that has a CUDA
separate runtime, which fails here. They allocate nothing, so they are neither
compiled nor launched.
"""

import functools
import os
import shutil

from tonnage_hook.failures import swallow


class Compilers:
    def __init__(self, note, forget):
        self.note = note
        # Called with each tensor that a kernel may have written, and that was not computed.
        self.forget = forget
        # Whether a choice was made that goes by time on a GPU.
        self.chose = False

    def modules(self):
        """The actions after the import of each module."""
        return {
            "triton.common.build": self._find_driver,
            "triton.runtime.autotuner": self._change_triton,
            "torch._inductor.runtime.triton_heuristics": self._change_kernels,
            "torch._inductor.select_algorithm": self._change_algorithms,
            "flashinfer.jit.core": self._change_flashinfer,
            "sglang.kernels.jit.utils.compile.loader": self._change_sglang,
            "tvm_ffi.cpp.extension": self._change_tvm,
            "deep_gemm.cuda_helpers": self._find_toolkit,
            "deep_gemm": self._change_deep_gemm,
            "cutlass.base_dsl.dsl": self._change_cute,
            "vllm.envs": self._change_vllm,
        }

    def _find_driver(self, module):
        """Triton of torch 2.1 queries only the system where the driver's library is."""
        ask = getattr(module, "libcuda_dirs", None)
        if ask is None:
            return

        @functools.wraps(ask)
        def ask_here_first():
            folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
            here = [folder for folder in folders if folder and os.path.exists(os.path.join(folder, "libcuda.so"))]
            return here or ask()

        module.libcuda_dirs = ask_here_first

    def _change_triton(self, module):
        tuner = module.Autotuner
        bench = tuner._bench

        @functools.wraps(bench)
        def bench_until_one_works(this, *arguments, **options):
            # A new call has new arguments.
            if getattr(this, "_tonnage_chosen_for", None) is this.nargs:
                self.chose = True
                return [float("inf")] * 3
            result = bench(this, *arguments, **options)
            first = result[0] if isinstance(result, (list, tuple)) else result
            if first != float("inf"):
                this._tonnage_chosen_for = this.nargs
            return result

        tuner._bench = bench_until_one_works

    def _change_kernels(self, module):
        tuner = module.CachingAutotuner
        # torch before 2.7 has one function for the candidates, which makes what starts the kernels too.
        name, made = "_precompile_worker", "compile_results"
        if not hasattr(tuner, name):
            name, made = "precompile", "launchers"
        compile_all = getattr(tuner, name)

        @functools.wraps(compile_all)
        def compile_one(this, *arguments, **options):
            candidates = this.configs
            if getattr(this, made) or not candidates or len(candidates) < 2:
                return compile_all(this, *arguments, **options)
            self.chose = True
            for candidate in candidates[:-1]:
                this.configs = [candidate]
                try:
                    return compile_all(this, *arguments, **options)
                except Exception:
                    continue  # it needs more than the GPU has
            this.configs = candidates[-1:]
            return compile_all(this, *arguments, **options)

        setattr(tuner, name, compile_one)
        self._watch_launches(tuner)
        if hasattr(tuner, "coordinate_descent_tuning"):
            tuner.coordinate_descent_tuning = lambda this, launcher, *_, **__: launcher

    def _watch_launches(self, tuner):
        """Marks tensors that Inductor's kernels change in place: their values are not computed, and no operator
        reports it."""
        run = getattr(tuner, "run", None)
        if run is None:
            return

        @functools.wraps(run)
        def run_and_forget(this, *arguments, **options):
            result = run(this, *arguments, **options)
            changed = getattr(this, "mutated_arg_names", None)
            if changed:
                given = dict(zip(this.fn.arg_names, arguments)) | options
                _forget_all(self.forget, (given.get(name) for name in changed), {})
            return result

        tuner.run = run_and_forget

    def _change_algorithms(self, module):
        cache = module.AlgorithmSelectorCache
        choose = cache.__call__

        @functools.wraps(choose)
        def choose_first(this, name, choices, *arguments, **options):
            libraries = [one for one in choices if isinstance(one, module.ExternKernelCaller)]
            if len(choices) > 1 and libraries:
                self.chose = True
                choices = libraries[:1]
            return choose(this, name, choices, *arguments, **options)

        cache.__call__ = choose_first

    def _change_vllm(self, module):
        """vLLM leaves FlashInfer out where there is no nvcc; a GPU's machine has it, or FlashInfer's binaries."""
        if not has_nvcc():
            os.environ.setdefault("VLLM_HAS_FLASHINFER_CUBIN", "1")

    def _change_cute(self, module):
        # FlashInfer would keep what was compiled, and there is nothing to keep.
        os.environ["FLASHINFER_CUTE_DSL_DISABLE_CACHE"] = "1"
        language = module.BaseDSL
        prepare = language._preprocess_and_replace_code

        def prepare_nothing(function):
            # The function gets its attributes, as `compile` wants them; its source is not rewritten.
            initialize = getattr(language, "_lazy_initialize_dsl", None)
            if initialize is None:
                prepare(function)
            else:
                initialize(function)

        def compile_nothing(this, function, *arguments, compile_only=False, **options):
            if compile_only:
                return _Nothing(function.__name__, self.forget)
            _forget_all(self.forget, arguments, options)
            return None

        language._preprocess_and_replace_code = staticmethod(prepare_nothing)
        language._func = compile_nothing

    def _change_flashinfer(self, module):
        self._load_or_do_nothing(module.JitSpec, "build_and_load", lambda spec, *_, **__: spec.name)

    def _change_sglang(self, module):
        def name_of(*names, cuda_files=None, **_):
            return "_".join(map(str, names)) if cuda_files else None

        self._load_or_do_nothing(module, "load_jit", name_of)

    def _find_toolkit(self, module):
        """DeepGEMM cannot be imported without a CUDA toolkit, also where none of its kernels is used."""
        find = getattr(module, "find_cuda_home", None)
        if find is None or has_nvcc():
            return

        @functools.wraps(find)
        def find_or_assume():
            try:
                return find()
            except (AssertionError, OSError, RuntimeError):
                return "/usr/local/cuda"  # DeepGEMM finds no toolkit
            except Exception as error:
                swallow("Compilers._find_toolkit", error)
                return "/usr/local/cuda"

        module.find_cuda_home = find_or_assume

    def _change_deep_gemm(self, module):
        """Its operators, settings among them, look for nvcc when one is first called."""
        operators = getattr(module, "_C", None)
        if operators is None or has_nvcc():
            return

        def or_nothing(operator):
            def call(*arguments, **options):
                try:
                    return operator(*arguments, **options)
                except RuntimeError:
                    self.note(undone_modules=["deep_gemm"])
                    _forget_all(self.forget, arguments, options)

            return call

        class Operators:
            def __getattr__(self, name):
                return or_nothing(getattr(operators, name))

        module._C = Operators()
        for name, value in list(vars(module).items()):
            if type(value).__name__ in ("OpOverload", "builtin_function_or_method"):
                setattr(module, name, or_nothing(value))

    def _change_tvm(self, module):
        def name_of(name="a module", cuda_sources=None, cuda_files=None, **_):
            return str(name) if cuda_sources or cuda_files else None

        for name in ("load_inline", "load"):
            self._load_or_do_nothing(module, name, name_of)

    def _load_or_do_nothing(self, place, name, name_of):
        """Puts a function in the place of one that compiles a module and loads it. `name_of` gets what that one gets,
        and gives no name where nvcc is not needed."""
        load = getattr(place, name, None)
        if load is None or has_nvcc():
            return

        @functools.wraps(load)
        def load_or_do_nothing(*arguments, **options):
            try:
                return load(*arguments, **options)
            except Exception:
                # Nothing was compiled before, and nothing can be.
                module = name_of(*arguments, **options)
                if module is None:
                    raise
                self.note(undone_modules=[module])
                return _Nothing(module, self.forget)

        setattr(place, name, load_or_do_nothing)


def has_nvcc():
    """Whether nvcc is where programs look for it."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and os.path.exists(os.path.join(home, "bin", "nvcc")):
            return True
    return shutil.which("nvcc") is not None


def _forget_all(forget, arguments, options):
    for one in (*arguments, *options.values()):
        if hasattr(one, "untyped_storage"):
            forget(one)


class _Nothing:
    """A kernel, or a module of kernels, that was not compiled: each of its functions does nothing."""

    def __init__(self, name, forget):
        self._name = name
        self._forget = forget

    def __call__(self, *arguments, **options):
        _forget_all(self._forget, arguments, options)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, name):
        return self
