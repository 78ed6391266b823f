// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts of calls against PyTorch's policy.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::policy::run(data));
