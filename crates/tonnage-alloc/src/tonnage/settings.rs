// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program can choose.

/// How the allocator behaves.
///
/// ```
/// use tonnage_alloc::tonnage::Settings;
///
/// let settings = Settings::default().with_limit(8 << 30);
/// assert_eq!(settings.limit, Some(8 << 30));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Bytes that may be reserved at most; `None` for all that the device gives.
    pub limit: Option<u64>,
    /// How far reserved memory may exceed the most that was ever live before pages are moved instead of obtained,
    /// in thousandths. Moving costs driver calls each time, growing costs memory once.
    pub slack: u32,
    /// How many times its memory the device has addresses that are reserved. What is reserved costs no memory.
    pub address_factor: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limit: None,
            slack: 10,
            address_factor: 16,
        }
    }
}

impl Settings {
    /// The same with a limit.
    #[must_use]
    pub fn with_limit(self, bytes: u64) -> Self {
        Self {
            limit: Some(bytes),
            ..self
        }
    }

    /// The same with another slack, in thousandths.
    #[must_use]
    pub fn with_slack(self, thousandths: u32) -> Self {
        Self {
            slack: thousandths,
            ..self
        }
    }
}
