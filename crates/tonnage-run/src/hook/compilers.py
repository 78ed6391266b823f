# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compilers in a dry run: autotuners choose without compiling every candidate, and old Triton finds the driver.

Triton's autotuner and those of Inductor compile many variants of a kernel, time
them and take the fastest. In a dry run nothing takes time, so the comparison
says nothing, and compiling takes minutes. Here the first candidate that compiles
is taken; where Inductor chooses between a library and kernels of its own, the
library. Which one a GPU would take is unknown by nature, and the verdict says so.

FlashInfer compiles its kernels with nvcc when they are first used. Where there is
no nvcc, a GPU's machine would have one, and so would have taken these kernels: a
module whose functions do nothing takes their place. FlashInfer allocates results
and work space in Python, before it calls them; the verdict names the modules.
"""

import functools
import os
import shutil


class Compilers:
    def __init__(self, note):
        self.note = note
        # Whether a choice was made that goes by time on a GPU.
        self.chose = False

    def modules(self):
        """What to do when these modules have been imported."""
        return {
            "triton.common.build": self._find_driver,
            "triton.runtime.autotuner": self._change_triton,
            "torch._inductor.runtime.triton_heuristics": self._change_kernels,
            "torch._inductor.select_algorithm": self._change_algorithms,
            "flashinfer.jit.core": self._change_flashinfer,
            "vllm.envs": self._change_vllm,
        }

    def _find_driver(self, module):
        """Triton of torch 2.1 asks only the system where the driver's library is."""
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
        if hasattr(tuner, "coordinate_descent_tuning"):
            tuner.coordinate_descent_tuning = lambda this, launcher, *_, **__: launcher

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

    def _change_flashinfer(self, module):
        if has_nvcc():
            return
        spec = module.JitSpec
        load = spec.build_and_load

        @functools.wraps(load)
        def load_or_do_nothing(this, *arguments, **options):
            try:
                return load(this, *arguments, **options)
            except Exception:
                # Nothing was compiled before, and nothing can be.
                self.note(undone_modules=[this.name])
                return _Nothing(this.name)

        spec.build_and_load = load_or_do_nothing


def has_nvcc():
    """Whether nvcc is where programs look for it."""
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home and os.path.exists(os.path.join(home, "bin", "nvcc")):
            return True
    return shutil.which("nvcc") is not None


class _Nothing:
    """A module of kernels that were not compiled: each of its functions does nothing."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do_nothing

    def __getitem__(self, name):
        return self._do_nothing

    @staticmethod
    def _do_nothing(*arguments, **options):
        return None
