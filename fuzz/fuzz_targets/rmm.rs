// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs of RMM below their header.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::import::rmm(data));
