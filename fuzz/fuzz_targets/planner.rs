// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems below their header.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::import::planner(data));
