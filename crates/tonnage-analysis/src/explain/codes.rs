// SPDX-License-Identifier: MIT OR Apache-2.0
//! The findings by their codes, each with the page that `tonnage explain CODE` shows.
//!
//! A code never changes its meaning and is never used again. 1xx is why a
//! request failed, and who else is there; 2xx is what makes a peak. Each stands beside the code that looks for it;
//! `findings!` lists them.

use std::sync::LazyLock;

use serde::Serialize;

use super::listed;

pub use super::listed::*;

/// One kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Code {
    /// `TN101`.
    pub code: &'static str,
    /// The title.
    pub title: &'static str,
    /// The meaning, the rule that recognises it, and the fix.
    #[serde(skip)]
    pub page: &'static str,
}

pub(super) const fn code(code: &'static str, title: &'static str, page: &'static str) -> Code {
    Code { code, title, page }
}

/// Every code, in order.
pub static ALL: LazyLock<Vec<Code>> = LazyLock::new(|| {
    let mut codes = listed::CODES.to_vec();
    codes.sort_by_key(|code| code.code);
    codes
});

/// The code with this name.
///
/// ```
/// use tonnage_analysis::explain::codes;
///
/// let code = codes::find("tn101").expect("it is one of them");
/// assert_eq!(code.code, "TN101");
/// assert!(code.page.contains("Fix:"));
/// ```
pub fn find(code: &str) -> Option<&'static Code> {
    ALL.iter()
        .find(|known| known.code.eq_ignore_ascii_case(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_their_pages_say_how_and_what() {
        for (index, code) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.code < code.code));
            assert!(code.page.contains("Recognised by:"), "{}", code.code);
            assert!(code.page.contains("Fix:"), "{}", code.code);
            assert_eq!(find(&code.code.to_lowercase()), Some(code));
        }
    }
}
