// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster at a glance as a page: one file without a script, so that it survives mail and a locked-down browser.

use std::fmt::Write as _;

use tonnage_forecast::fleet::{Report, Sums};
use tonnage_report::escaped;

use crate::output::{bytes, count, plural};

/// Rows of a table; the JSON has all.
const MOST: usize = 500;

const STYLE: &str = "\
:root{color-scheme:light dark;--requested:#3b76c4;--stranded:#d0453a;--headroom:#b9c0ca}\n\
@media(prefers-color-scheme:dark){:root{--headroom:#4a515c}}\n\
body{margin:24px auto;max-width:1000px;padding:0 16px;font:14px/1.45 system-ui,sans-serif}\n\
h1{font-size:20px}h2{font-size:15px;margin-top:28px}\n\
.figures{display:flex;flex-wrap:wrap;gap:12px 32px;margin:12px 0}\n\
.figures b{display:block;font-size:20px}\n\
.bar{display:flex;height:12px;min-width:80px;background:var(--headroom);border-radius:2px;overflow:hidden}\n\
.bar i{display:block}.requested{background:var(--requested)}\n\
.stranded{background:var(--stranded)}.headroom{background:var(--headroom)}\n\
.key i{display:inline-block;width:10px;height:10px;margin:0 4px 0 14px;border-radius:2px}.key i:first-child{margin-left:0}\n\
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}\n\
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid #8884;overflow-wrap:anywhere}\n\
th{font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\n\
td.w{width:34%}.bad{color:var(--stranded);font-weight:600}\n";

/// The page of a report.
pub(super) fn page(report: &Report) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>GPU memory of the cluster</title>\n<style>\n",
    );
    page.push_str(STYLE);
    page.push_str("</style>\n</head>\n<body>\n<h1>GPU memory of the cluster</h1>\n");
    figures(&mut page, report);
    impossible(&mut page, report);
    pins(&mut page, report);
    teams(&mut page, report);
    machines(&mut page, report);
    page.push_str("</body>\n</html>\n");
    page
}

fn figures(page: &mut String, report: &Report) {
    let all = &report.all;
    let part = |part: u64| format!("{:.1} %", part as f64 * 100.0 / all.capacity.max(1) as f64);
    page.push_str("<div class=\"figures\">");
    for (name, figure) in [
        (
            "GPUs",
            format!("{}, {} in use", count(all.gpus), count(all.in_use)),
        ),
        ("memory", bytes(all.capacity)),
        (
            "requested",
            format!("{}, {}", bytes(all.asked), part(all.asked)),
        ),
        (
            "headroom",
            format!("{}, {}", bytes(all.headroom), part(all.headroom)),
        ),
        (
            "stranded",
            format!("{}, {}", bytes(all.stranded), part(all.stranded)),
        ),
        ("claims that wait", count(report.waiting)),
    ] {
        let _ = write!(page, "<div>{name}<b>{figure}</b></div>");
    }
    page.push_str("</div>\n");
    bar(page, all);
    page.push_str(
        "<p class=\"key\"><i class=\"requested\"></i>requested<i class=\"stranded\"></i>stranded: free, in pieces too \
         small for the smallest share that any job has or wants<i class=\"headroom\"></i>headroom: all else that is \
         free</p>\n",
    );
}

/// The requested and stranded parts of all.
fn bar(page: &mut String, sums: &Sums) {
    let part = |part: u64| part as f64 * 100.0 / sums.capacity.max(1) as f64;
    let _ = write!(
        page,
        "<div class=\"bar\" role=\"img\" aria-label=\"{} requested, {} stranded, {} headroom\">\
         <i class=\"requested\" style=\"width:{:.2}%\"></i><i class=\"stranded\" style=\"width:{:.2}%\"></i></div>",
        bytes(sums.asked),
        bytes(sums.stranded),
        bytes(sums.headroom),
        part(sums.asked),
        part(sums.stranded)
    );
}

fn impossible(page: &mut String, report: &Report) {
    if report.impossible.is_empty() {
        return;
    }
    page.push_str("<h2>Claims that never start</h2>\n<p>They request more of one GPU than any has.</p>\n<ul>\n");
    for job in report.impossible.iter().take(MOST) {
        let _ = writeln!(page, "<li class=\"bad\">{}</li>", escaped(job));
    }
    page.push_str("</ul>\n");
    rest(page, report.impossible.len());
}

fn pins(page: &mut String, report: &Report) {
    if report.pins.is_empty() {
        return;
    }
    page.push_str("<h2>Pinned like this, more of the waiting jobs start than by first fit</h2>\n");
    table(page, &["claim", "team", "machine", "GPUs", "#of each"]);
    for pin in report.pins.iter().take(MOST) {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td></tr>",
            escaped(&pin.job),
            escaped(&pin.team),
            escaped(&pin.node),
            escaped(&pin.gpus.join(", ")),
            bytes(pin.bytes)
        );
    }
    page.push_str("</table></div>\n");
    rest(page, report.pins.len());
}

fn machines(page: &mut String, report: &Report) {
    page.push_str("<h2>Machines, those with most stranded first</h2>\n");
    table(
        page,
        &[
            "machine",
            "#GPUs",
            "",
            "#requested",
            "#stranded",
            "#headroom",
        ],
    );
    for node in report.nodes.iter().take(MOST) {
        let sums = &node.sums;
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"n\">{} of {} in use</td><td class=\"w\">",
            escaped(&node.node),
            sums.in_use,
            sums.gpus
        );
        bar(page, sums);
        let _ = writeln!(
            page,
            "</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            bytes(sums.asked),
            bytes(sums.stranded),
            bytes(sums.headroom)
        );
    }
    page.push_str("</table></div>\n");
    rest(page, report.nodes.len());
}

fn teams(page: &mut String, report: &Report) {
    page.push_str("<h2>Teams, largest requests first</h2>\n");
    let heads = [
        "team",
        "#requested",
        "#shares",
        "#whole GPUs",
        "#waiting",
        "#a job requested",
        "#a job used",
    ];
    table(page, &heads);
    let known = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), bytes);
    for team in report.teams.iter().take(MOST) {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escaped(&team.team),
            bytes(team.asked),
            count(team.shares),
            count(team.whole),
            count(team.waiting),
            known(team.asked_by_a_job),
            known(team.used_by_a_job)
        );
    }
    page.push_str("</table></div>\n");
    rest(page, report.teams.len());
    if report.teams.iter().all(|team| team.used_by_a_job.is_none()) {
        page.push_str(
            "<p>What jobs used is not known here: <code>--store</code> names a folder that \
             <code>tonnage forecast learn</code> has filled.</p>\n",
        );
    }
}

/// Opens a table; the heads of numbers start with `#`.
fn table(page: &mut String, heads: &[&str]) {
    page.push_str("<div class=\"scroll\"><table>\n<tr>");
    for head in heads {
        let _ = match head.strip_prefix('#') {
            Some(head) => write!(page, "<th class=\"n\">{head}</th>"),
            None => write!(page, "<th>{head}</th>"),
        };
    }
    page.push_str("</tr>\n");
}

/// Says that there are more.
fn rest(page: &mut String, rows: usize) {
    if let Some(more) = rows.checked_sub(MOST).filter(|&more| more > 0) {
        let more = plural(more as u64, "row more");
        let _ = writeln!(page, "<p>And {more}; <code>--json</code> has all.</p>");
    }
}

#[cfg(test)]
mod tests {
    use tonnage_forecast::fleet::report;
    use tonnage_forecast::kubernetes::Account;

    use super::*;

    #[test]
    fn names_are_text_and_a_large_cluster_has_a_page_of_bounded_size() {
        let slice = |node: usize| {
            serde_json::json!({"kind": "ResourceSlice", "spec": {
                "driver": "gpu.nvidia.com", "nodeName": format!("<u>{node}"), "pool": {"name": node.to_string()},
                "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}]}})
        };
        let slices: Vec<_> = (0..2000).map(slice).collect();
        let json = serde_json::json!({"kind": "List", "items": slices}).to_string();
        let account = Account::parse([json.as_bytes()]).expect("an account");
        let page = page(&report(&account, None));
        assert!(!page.contains("<u>"), "a name became an element");
        assert!(page.contains("&lt;u&gt;1"));
        assert!(page.contains("And 1,500 rows more"), "the rest is not told");
        assert!(page.len() < 400_000, "{} bytes", page.len());
    }
}
