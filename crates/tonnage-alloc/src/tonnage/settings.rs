// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choices of a program.

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
    /// How far reserved memory may exceed the most that was ever live before pages are moved instead of obtained, in
    /// thousandths. Moving costs driver calls each time, growing costs memory once.
    pub slack: u32,
    /// The same in bytes; the smaller one counts.
    pub slack_bytes: u64,
    /// How far the slack is doubled, in thousandths, for a program that keeps pages moving.
    pub most_slack: u32,
    /// How many times its memory the device has addresses that are reserved. Reserved addresses cost no memory.
    pub address_factor: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limit: None,
            slack: 5,
            slack_bytes: 16 << 20,
            most_slack: 30,
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

    /// The same with another slack, in thousandths, which is not doubled and has no limit in bytes.
    #[must_use]
    pub fn with_slack(self, thousandths: u32) -> Self {
        Self {
            slack: thousandths,
            slack_bytes: u64::MAX,
            most_slack: thousandths,
            ..self
        }
    }

    /// Bytes that may be reserved beyond the most that was live.
    pub(super) fn slack_of(&self, live: u64, doublings: u32) -> u64 {
        let part = |thousandths: u32| {
            let bytes = u128::from(live) * u128::from(thousandths) / 1000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let first = part(self.slack).min(self.slack_bytes);
        let doubled = first.saturating_mul(1_u64.checked_shl(doublings).unwrap_or(u64::MAX));
        // Without a first slack there is nothing to double.
        doubled.min(part(self.most_slack)).max(first)
    }
}
