// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings no recorder would write, replayed with every allocator.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::replay::run(data));
