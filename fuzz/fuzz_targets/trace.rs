// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace files: the reader, and the answers made of one pass over a trace.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: {
        // A panic of arrow that the reader turns into an error is not a finding.
        let abort = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !tonnage_recording::panic_is_guarded() {
                abort(panic);
            }
        }));
    },
    |data: &[u8]| tonnage_fuzz::trace::run(data)
);
