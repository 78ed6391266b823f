// SPDX-License-Identifier: MIT OR Apache-2.0
//! Differences between releases of torch that change memory.
//!
//! The placement logic has been the same since 2.1 but for the points below
//! (specification 13.3, 13.5). They are values, so a recording of torch 2.3 is
//! replayed by the same code as one of 2.15.

/// A release of torch, as major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u16, pub u16);

impl Version {
    /// The newest release that tonnage was verified with: its allocator's rules, its history and the hook.
    pub const VERIFIED: Self = Self(2, 15);

    /// Reads the first two numbers of a version: `2.15.0+cu130` is release 2.15.
    ///
    /// ```
    /// use tonnage_alloc::torch::Version;
    ///
    /// assert_eq!(Version::parse("2.15.0+cu130"), Some(Version(2, 15)));
    /// assert_eq!(Version::parse("2.16.0a0+git1234567"), Some(Version(2, 16)));
    /// assert_eq!(Version::parse(">=2.3"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let (major, rest) = text.trim().split_once('.')?;
        let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether the release is newer than every release that tonnage was verified with.
    pub fn is_unverified(self) -> bool {
        self > Self::VERIFIED
    }
}

/// Which of two free blocks of equal size is taken first (specification 13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TieBreak {
    /// The one at the lower address. Up to 2.11.
    Address,
    /// The one whose block object was made earlier. Only 2.12.
    Object,
    /// The one whose segment was obtained earlier, then the lower address. Since 2.13.
    Segment,
}

/// The condition for which the allocator assumes a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureRule {
    /// Any open allocation scope, `use_mem_pool` included. Up to 2.12.
    AnyScope,
    /// A capture of the current stream only. Since 2.13.
    RealCapture,
}

/// How a memory fraction becomes a limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitRule {
    /// Truncated; a limit exists even for 1.0, which arms garbage collection.
    Truncated,
    /// Rounded; 1.0 means that there is no limit.
    Rounded,
}

/// Which of several matching allocation scopes wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScopeRule {
    /// The one opened first.
    Outermost,
    /// The one opened last.
    Innermost,
}

/// The points in which releases differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Order among free blocks of equal size.
    pub tie_break: TieBreak,
    /// When event reaping and the retry are suspended.
    pub capture: CaptureRule,
    /// How a fraction becomes bytes.
    pub limit: LimitRule,
    /// Which scope wins.
    pub scope: ScopeRule,
    /// Up to 2.5 the slack of an unsplittable block was 20 MiB, for all settings.
    pub fixed_non_split_rounding: bool,
}

impl Rules {
    /// The rules of `version`.
    ///
    /// The release in which the limit and the scope rule changed is not known: a source from the time of 2.6 has the
    /// old ones (specification 7.1, 8.2). Assumed: the limit changed in 2.10, which made the fraction a setting, and
    /// the scope in 2.13, which separated scopes and captures.
    pub fn for_version(version: Version) -> Self {
        let since = |minor| version >= Version(2, minor);
        Self {
            tie_break: match version {
                Version(2, 12) => TieBreak::Object,
                _ if since(13) => TieBreak::Segment,
                _ => TieBreak::Address,
            },
            capture: if since(13) {
                CaptureRule::RealCapture
            } else {
                CaptureRule::AnyScope
            },
            limit: if since(10) {
                LimitRule::Rounded
            } else {
                LimitRule::Truncated
            },
            scope: if since(13) {
                ScopeRule::Innermost
            } else {
                ScopeRule::Outermost
            },
            fixed_non_split_rounding: !since(6),
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::for_version(Version::VERIFIED)
    }
}
