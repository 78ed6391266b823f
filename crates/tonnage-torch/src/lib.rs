// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tonnage allocator as a plugin of PyTorch.
//!
//! `torch.cuda.memory.CUDAPluggableAllocator` loads a shared library and calls
//! two functions of it, [`tonnage_malloc`](exports::tonnage_malloc) and
//! [`tonnage_free`](exports::tonnage_free). The others serve `record_stream`,
//! CUDA graphs, `empty_cache` and memory fractions; `tonnage.torch.install()`
//! passes all of them to PyTorch. The wheel has these functions in its one shared
//! object; this crate alone is a library with nothing else in it.
//!
//! * `served` is the allocator of the process: which device, which pool. It has
//!   no `unsafe` code.
//! * `exports` has the C functions, and turns what C passes into values. No panic
//!   leaves them.
//! * `fork` keeps other threads out of the allocator while the process forks.
//! * `torch` calls functions of PyTorch's library `libc10.so`, found by name: the
//!   one that reports a block to its profiler, and those that raise its errors,
//!   because a plugin that returns null would let PyTorch go on without memory.
//!
//! One process is served on one device. PyTorch copies between two devices of a
//! process in a way that needs its own memory allocator, so a request for a
//! second device is an error.

#[expect(unsafe_code, reason = "functions that C calls")]
pub mod exports;
#[expect(unsafe_code, reason = "registers functions that a fork calls")]
mod fork;
mod served;
mod tags;
#[expect(unsafe_code, reason = "functions of C++ that are found by name")]
mod torch;
