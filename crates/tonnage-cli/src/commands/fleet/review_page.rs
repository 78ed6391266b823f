// SPDX-License-Identifier: MIT OR Apache-2.0
//! The review of past jobs as a page: one file without a script.

use std::fmt::Write as _;

use tonnage_forecast::review::{Group, Review};
use tonnage_report::escaped;

use super::review::{headline, hours, name_of, percent, saved};
use crate::output::{count, plural};

/// Rows of a table; the JSON has all.
const MOST: usize = 20;
/// The size of a chart.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 200.0;
const COLORS: [&str; 4] = ["held", "shared", "ten", "twenty"];

const STYLE: &str = "\
:root{color-scheme:light dark;--held:#8a94a3;--shared:#2f9e6e;--ten:#3b76c4;--twenty:#b0722a;--line:#8884}\n\
body{margin:24px auto;max-width:1000px;padding:0 16px;font:14px/1.45 system-ui,sans-serif}\n\
h1{font-size:20px}h2{font-size:15px;margin-top:28px}\n\
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:currentColor}\n\
.held{stroke:var(--held)}.shared{stroke:var(--shared)}.ten{stroke:var(--ten)}.twenty{stroke:var(--twenty)}\n\
polyline{fill:none;stroke-width:1.8}.grid{stroke:var(--line)}.bar{fill:var(--ten)}\n\
i{display:inline-block;width:18px;border-top:3px solid;margin-right:6px;vertical-align:middle}\n\
i.held{border-color:var(--held)}i.shared{border-color:var(--shared)}i.ten{border-color:var(--ten)}i.twenty{border-color:var(--twenty)}\n\
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}\n\
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}\n\
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\n";

/// The page of a review.
pub(super) fn page(review: &Review, price: Option<f64>) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>GPU memory of past jobs</title>\n<style>\n",
    );
    page.push_str(STYLE);
    let _ = writeln!(
        page,
        "</style>\n</head>\n<body>\n<h1>{}</h1>",
        escaped(&headline(review))
    );
    if review.measured > 0 {
        scenarios(&mut page, review, price);
        parts(&mut page, review);
        groups(&mut page, "Teams with most unused memory", &review.teams);
        groups(
            &mut page,
            "Kinds of jobs with most unused memory",
            &review.families,
        );
    }
    if review.full_failures > 0 {
        let _ = writeln!(
            page,
            "<h2>Failures</h2>\n<p>{} failed with a full GPU after {} GPU-hours. {} came after such a failure of the \
             same user and kind.</p>",
            plural(review.full_failures, "job"),
            hours(review.full_failure_gpu_hours),
            count(review.repeated_failures)
        );
    }
    if !review.notes.is_empty() {
        page.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in &review.notes {
            let _ = writeln!(page, "<li>{}</li>", escaped(note));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// The replays as a table, and the GPUs in use over time.
fn scenarios(page: &mut String, review: &Review, price: Option<f64>) {
    let Some(held) = review.scenarios.first() else {
        return;
    };
    page.push_str(
        "<h2>GPUs that would have been enough</h2>\n<p>Each job starts when it did, on the first GPUs of its kind with \
         room. A shared job is charged the most it used for all of its time, so all peaks may come at once. A job \
         that was not measured holds whole GPUs.</p>\n<div class=\"scroll\"><table>\n<tr><th></th>\
         <th class=\"n\">most GPUs</th><th class=\"n\">GPU-hours</th><th class=\"n\">fewer</th>",
    );
    page.push_str(if price.is_some() {
        "<th class=\"n\">price</th></tr>\n"
    } else {
        "</tr>\n"
    });
    for (scenario, color) in review.scenarios.iter().zip(COLORS) {
        let fewer = match scenario.margin_percent {
            None => "–".to_owned(),
            Some(_) => percent(saved(scenario, held)),
        };
        let _ = write!(
            page,
            "<tr><td><i class=\"{color}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{fewer}</td>",
            name_of(scenario),
            count(scenario.most_gpus),
            hours(scenario.gpu_hours)
        );
        if let Some(price) = price {
            let _ = write!(
                page,
                "<td class=\"n\">{}</td>",
                hours(scenario.gpu_hours * price)
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
    let most = review.scenarios.iter().flat_map(|one| &one.gpus).max();
    let most = most.copied().unwrap_or(0).max(1) as f64;
    let days = (review.end - review.start) / 86_400.0;
    let _ = writeln!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"GPUs in use over time\">\
         <text x=\"0\" y=\"12\">{} GPUs in use</text>\
         <line class=\"grid\" x1=\"0\" x2=\"{WIDTH}\" y1=\"18\" y2=\"18\"/>\
         <line class=\"grid\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{:.0}\" y2=\"{:.0}\"/>\
         <text x=\"0\" y=\"{:.0}\">first job</text><text x=\"{WIDTH}\" y=\"{:.0}\" text-anchor=\"end\">{days:.1} days later</text>",
        HEIGHT + 40.0,
        count(most as u64),
        HEIGHT + 18.0,
        HEIGHT + 18.0,
        HEIGHT + 34.0,
        HEIGHT + 34.0
    );
    for (scenario, color) in review.scenarios.iter().zip(COLORS) {
        let step = WIDTH / (scenario.gpus.len().max(2) - 1) as f64;
        let points = scenario.gpus.iter().enumerate().map(|(at, &gpus)| {
            let y = 18.0 + HEIGHT * (1.0 - gpus as f64 / most);
            format!("{:.1},{y:.1}", at as f64 * step)
        });
        let points: Vec<String> = points.collect();
        let _ = writeln!(
            page,
            "<polyline class=\"{color}\" points=\"{}\"/>",
            points.join(" ")
        );
    }
    page.push_str("</svg>\n");
}

/// GPU-hours by the part of a GPU that jobs used.
fn parts(page: &mut String, review: &Review) {
    let all = review.measured_gpu_hours;
    let most = review.gpu_hours_by_part.iter().copied().fold(0.0, f64::max);
    if all <= 0.0 || most <= 0.0 {
        return;
    }
    let _ = writeln!(
        page,
        "<h2>GPU-hours by the part of a GPU that jobs used</h2>\n\
         <svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"GPU-hours by the part used\">",
        HEIGHT + 40.0
    );
    let count = review.gpu_hours_by_part.len();
    let step = WIDTH / count as f64;
    for (at, &part) in review.gpu_hours_by_part.iter().enumerate() {
        let height = HEIGHT * part / most;
        let x = at as f64 * step;
        let top = HEIGHT + 18.0 - height;
        let _ = writeln!(
            page,
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}–{} %</text>",
            x + 2.0,
            step - 4.0,
            x + step / 2.0,
            top - 4.0,
            percent(part / all),
            x + step / 2.0,
            HEIGHT + 34.0,
            at * 100 / count,
            (at + 1) * 100 / count
        );
    }
    page.push_str("</svg>\n");
}

fn groups(page: &mut String, title: &str, groups: &[Group]) {
    let named = groups.iter().filter(|group| !group.name.is_empty());
    if named.clone().next().is_none() {
        return;
    }
    let _ = writeln!(
        page,
        "<h2>{title}</h2>\n<div class=\"scroll\"><table>\n<tr><th>name</th><th class=\"n\">jobs</th>\
         <th class=\"n\">GPU-hours</th><th class=\"n\">used</th><th class=\"n\">unused GPU-hours</th></tr>"
    );
    for group in named.take(MOST) {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>",
            escaped(&group.name),
            count(group.jobs),
            hours(group.gpu_hours),
            percent(group.used_part),
            hours(group.unused_gpu_hours)
        );
    }
    page.push_str("</table></div>\n");
    if let Some(more) = groups.len().checked_sub(MOST).filter(|&more| more > 0) {
        let _ = writeln!(
            page,
            "<p>And {} more; <code>--json</code> has all.</p>",
            count(more as u64)
        );
    }
}
