// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems as the planner reads them, and their plans.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::plan::csv(data));
