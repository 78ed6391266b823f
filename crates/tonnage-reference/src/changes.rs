// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the changes that a dry run can make to a program.

use std::fmt::Write as _;

use tonnage_run::changes;

/// Every change with its page.
pub(crate) fn page() -> String {
    let mut text = format!(
        "# Changes\n\n{}\n\n`tonnage run --change NAME` makes a change to the program inside its process, and touches no \
         file. The verdict is that\nof the changed program, with the lines that do the same by hand. `tonnage explain NAME` \
         shows the page of a change. Of\nthe changes of one group at most one can be made.\n\n\
         | name | change | group | mathematics |\n|---|---|---|---|\n",
        crate::MADE
    );
    for change in changes::all() {
        let _ = writeln!(
            text,
            "| [`{0}`](#{0}) | {1} | {2} | {3} |",
            change.name,
            change.title,
            change.group,
            change.maths.as_str()
        );
    }
    for change in changes::all() {
        let _ = write!(
            text,
            "\n## {}\n\n{}.\n\n{}\n\nApplies to: {}.\n\nCosts: {}\n",
            change.name, change.title, change.page, change.applies, change.cost
        );
    }
    text
}
