// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the findings.

use std::fmt::Write as _;

use tonnage_analysis::explain::codes;

/// Every code with its page.
pub(crate) fn page() -> String {
    let mut text = format!(
        "# Findings\n\n{}\n\nEach finding of `tonnage explain` has a code, and `tonnage explain CODE` shows its page. A code \
         never changes its\nmeaning and is never used again. 1xx explains why a request failed, 2xx what makes a peak.\n\n",
        crate::MADE
    );
    for code in codes::ALL.iter() {
        let _ = writeln!(
            text,
            "- [{0}](#{1}): {2}",
            code.code,
            crate::schema::anchor(&heading(code)),
            code.title
        );
    }
    for code in codes::ALL.iter() {
        let page = ["Recognised by:", "Fix:"]
            .into_iter()
            .fold(code.page.to_owned(), |page, part| {
                page.replace(&format!("\n{part}"), &format!("\n\n**{part}**"))
            });
        // The first of them begins a paragraph in the page already.
        let page = page.replace("\n\n\n", "\n\n");
        let _ = write!(text, "\n## {}\n\n{page}\n", heading(code));
    }
    text
}

fn heading(code: &codes::Code) -> String {
    format!("{}: {}", code.code, code.title)
}
