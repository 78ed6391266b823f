// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes: what format they are in, and that format's importer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::import::any(data));
