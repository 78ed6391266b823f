// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of PYTORCH_CUDA_ALLOC_CONF.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::settings::run(data));
