// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that a fuzzer found and arrow panics on: an error for the caller, and nothing for a panic hook to report.

use std::sync::atomic::{AtomicBool, Ordering};

use tonnage_recording::{Trace, panic_is_guarded};

static TOLD: AtomicBool = AtomicBool::new(false);

#[test]
fn what_arrow_panics_at_is_damage() {
    std::panic::set_hook(Box::new(|_| {
        if !panic_is_guarded() {
            TOLD.store(true, Ordering::Relaxed);
        }
    }));
    let file = include_bytes!("../../../fuzz/corpus/trace/short_offsets");
    let error = Trace::read(file.as_slice()).expect_err("it is damaged");
    assert!(error.to_string().contains("contradict"), "{error}");
    assert!(!TOLD.load(Ordering::Relaxed));
    assert!(!panic_is_guarded());
}
