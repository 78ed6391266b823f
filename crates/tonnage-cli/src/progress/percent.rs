// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress for a page: the escape sequence by which terminals show a percentage outside of their text (OSC 9;4).

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A replacement of indicatif's bar, as far as the commands use it. It writes each percentage once.
#[derive(Default)]
pub(crate) struct ProgressBar {
    length: AtomicU64,
    position: AtomicU64,
    written: AtomicU64,
}

impl ProgressBar {
    pub(crate) fn set_length(&self, length: u64) {
        self.length.store(length, Ordering::Relaxed);
    }

    pub(crate) fn set_position(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed).max(1);
        let percent = (position.saturating_mul(100) / length).min(100);
        if self.written.swap(percent, Ordering::Relaxed) != percent {
            // In one piece: stderr has no buffer.
            let text = format!("\x1b]9;4;1;{percent}\x07");
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }

    pub(crate) fn inc(&self, more: u64) {
        let position = self.position.load(Ordering::Relaxed);
        self.set_position(position.saturating_add(more));
    }

    pub(crate) fn set_message(&self, _text: String) {}

    pub(crate) fn finish_and_clear(&self) {}
}
