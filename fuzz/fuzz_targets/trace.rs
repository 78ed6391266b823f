// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace files: the reader, and the answers made of one pass over a trace.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tonnage_fuzz::trace::run(data));
