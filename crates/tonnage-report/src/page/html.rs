// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file itself: style, words, compressed data and the program that draws them.
//!
//! The order in the file is what makes the first picture quick: style and words, the timeline of the first pane, the
//! program, and only then everything else, so that the timeline is on the screen while the rest is still being read.
//! Words go into the page as JSON inside compressed data and are set by the program as text, never as HTML; the few
//! that stand in the HTML itself are escaped.

use std::fmt::Write as _;

use tonnage_analysis::holdings::Category;

use super::data::PaneData;
use crate::input::Story;
use crate::palette::colour;

const SCRIPT: &str = include_str!("../../assets/report.js");
const STYLE: &str = include_str!("../../assets/report.css");

/// Text as HTML.
///
/// ```
/// assert_eq!(tonnage_report::escaped("<1 & 2>"), "&lt;1 &amp; 2&gt;");
/// ```
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c if c.is_control() && c != '\n' => html.push(' '),
            c => html.push(c),
        }
    }
    html
}

/// The colours of categories as CSS.
fn colours() -> String {
    let mut rules = String::from(":root{");
    for (number, category) in Category::ALL.into_iter().enumerate() {
        let _ = write!(rules, "--c{number}:{};", colour(category));
    }
    rules.push_str("}\n");
    rules
}

/// The page; `words` and the panes are base64.
pub(super) fn page(story: &Story, words: &str, panes: &[PaneData]) -> String {
    let title = escaped(&story.title);
    let verdict = escaped(&story.verdict);
    let data: usize = panes.iter().map(PaneData::len).sum();
    let mut page = String::with_capacity(words.len() + data + SCRIPT.len() + (64 << 10));
    page.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    // Nothing is ever fetched, whatever a name in the recording contains.
    page.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n");
    page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n");
    page.push_str("<title>");
    page.push_str(&title);
    page.push_str(" – GPU memory</title>\n<style>\n");
    page.push_str(&colours());
    page.push_str(STYLE);
    page.push_str("</style>\n</head>\n<body>\n<div id=\"app\"><h1>");
    page.push_str(&title);
    page.push_str("</h1>\n<p>");
    page.push_str(&verdict);
    page.push_str("</p>\n<noscript><p>The pictures need JavaScript, which is off; `tonnage report --text` draws them in a terminal.</p></noscript></div>\n");
    data_element(&mut page, "data-story", words);
    for (number, pane) in panes.iter().enumerate() {
        data_element(
            &mut page,
            &format!("data-timeline-{number}"),
            &pane.timeline,
        );
        if number == 0 {
            page.push_str("<script>\n");
            page.push_str(SCRIPT);
            page.push_str("</script>\n");
        }
        data_element(&mut page, &format!("data-blocks-{number}"), &pane.blocks);
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn data_element(page: &mut String, id: &str, data: &str) {
    page.push_str("<script type=\"application/octet-stream\" id=\"");
    page.push_str(id);
    page.push_str("\">");
    page.push_str(data);
    page.push_str("</script>\n");
}
