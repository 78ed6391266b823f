// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each fuzz target does with its bytes: plain functions that panic where a promise is broken.
//!
//! They need no fuzzer, so that a test of tonnage-analysis runs the kept corpus through them with the stable
//! compiler; it includes this file by its path.
#![forbid(unsafe_code)]

pub mod import;
pub mod plan;
pub mod policy;
pub mod replay;
pub mod settings;
pub mod trace;

/// The function that a target calls with an input.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 11] = [
    ("pickle", import::pickle),
    ("json", import::json),
    ("rmm", import::rmm),
    ("planner", import::planner),
    ("plan_csv", plan::csv),
    ("plan_onnx", plan::onnx),
    ("any", import::any),
    ("trace", trace::run),
    ("policy", policy::run),
    ("settings", settings::run),
    ("replay", replay::run),
];

/// Bytes taken from the front; past the end they are zero, so that every input means something.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Bytes of memory: small, large, odd and absurd ones are all a few bytes away.
    pub(crate) fn size(&mut self) -> u64 {
        let (mantissa, shift) = (u64::from(self.byte()), u32::from(self.byte()));
        match shift {
            0xff => u64::MAX - mantissa,
            _ => (mantissa << (shift % 56)).wrapping_add(u64::from(shift / 56)),
        }
    }
}
