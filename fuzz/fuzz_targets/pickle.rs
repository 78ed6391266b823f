// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pickles of PyTorch snapshots, however the bytes begin.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::import::pickle(data));
