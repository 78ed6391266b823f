// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of a search as a picture: what each variant needs, beside what the GPU has.
//!
//! A number that was searched gives a line for each combination of the others, with a mark for each dry run. Without
//! one there is a bar for each combination, change, sharding or GPU. It is SVG without a script, so that it survives
//! mail and notebooks, in the colour of the text around it.

use std::fmt::Write as _;

use tonnage_fit::{Fit, Remedy, Row, Trial};
use tonnage_report::escaped;

use super::render::{judged, need, value};
use crate::output::{bytes, without_colour};

const WIDTH: f64 = 860.0;
const GOOD: &str = "#2f9e77";
const BAD: &str = "#d0453a";
/// The styles of lines, in the order of the rows; they differ in their dashes too.
const COLOURS: [&str; 6] = [
    "#3b76c4", "#e08a1e", "#8f72c6", "#2f9e77", "#d9667f", "#878d97",
];
const DASHES: [&str; 3] = ["", "7 4", "2 3"];
/// How many rows or bars are drawn; the JSON has all.
const MOST: usize = 24;
/// Needs above this part of the GPU are drawn at the upper edge, with an arrow.
const CEILING: f64 = 1.6;

/// A separate page: the picture, and the words of the terminal below it.
pub(super) fn page(fit: &Fit, words: &str) -> String {
    let title = escaped(&fit.command);
    let words = escaped(&without_colour(words));
    let picture = svg(fit);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} – what fits</title>\n<style>\n\
         body{{margin:24px auto;max-width:900px;padding:0 16px;font:14px/1.45 system-ui,sans-serif}}\n\
         h1{{font:600 16px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}}\n\
         pre{{font:12.5px/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}}\n\
         </style>\n</head>\n<body>\n<h1>{title}</h1>\n{picture}\n<pre>{words}</pre>\n</body>\n</html>\n"
    )
}

/// The picture alone.
pub(super) fn svg(fit: &Fit) -> String {
    match &fit.searched {
        Some(searched) => lines(fit, searched),
        None => bars(fit),
    }
}

fn open(height: f64, label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"{}\" style=\"width:100%;max-width:{WIDTH}px;font:12px system-ui,sans-serif;color:inherit\" \
         fill=\"currentColor\">",
        escaped(label)
    )
}

/// Levels from zero up to a number, at most seven: `first` apart, or its multiples by the factors in turn.
fn ticks(most: f64, first: f64, factors: &[f64]) -> Vec<f64> {
    let mut step = first;
    let mut factors = factors.iter().cycle();
    while most / step > 6.5 {
        step *= factors.next().unwrap_or(&10.0);
    }
    let count = (most / step) as usize;
    (0..=count).map(|number| number as f64 * step).collect()
}

/// Round levels of bytes.
fn levels(most: f64) -> Vec<f64> {
    ticks(most, (1u64 << 20) as f64, &[2.0])
}

/// A level of bytes without needless digits.
fn level(count: f64) -> String {
    if count == 0.0 {
        return "0".to_owned();
    }
    bytes(count as u64).replace(".00", "")
}

/// One dry run as a point.
struct Point<'a> {
    at: f64,
    need: f64,
    trial: &'a Trial,
}

fn points<'a>(fit: &Fit, row: &'a Row) -> Vec<Point<'a>> {
    let point = |trial: &'a Trial| {
        Some(Point {
            at: value(fit, trial).parse().ok()?,
            need: trial.need? as f64,
            trial,
        })
    };
    row.trials.iter().filter_map(point).collect()
}

fn lines(fit: &Fit, searched: &str) -> String {
    let (left, right, top, height) = (76.0, 150.0, 16.0, 360.0);
    let base = height - 44.0;
    let rows: Vec<(&Row, Vec<Point<'_>>)> = fit
        .rows
        .iter()
        .take(MOST)
        .map(|row| (row, points(fit, row)))
        .collect();
    let every = || rows.iter().flat_map(|(_, points)| points);
    let capacity = fit.limit.capacity.max(1) as f64;
    let highest = every().map(|point| point.need).fold(capacity, f64::max);
    let scale = highest.min(capacity * CEILING) * 1.05;
    let last = every().map(|point| point.at).fold(1.0, f64::max);
    let x = |at: f64| left + (WIDTH - left - right) * at / last;
    let y = |count: f64| top + (base - top) * (1.0 - count.min(scale) / scale);
    let label = format!("what {} needs for each {searched}", fit.command);
    let mut svg = open(height, &label);
    grid(&mut svg, scale, &y, (left, WIDTH - right));
    for at in ticks(last, 1.0, &[2.0, 2.5, 2.0]) {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at}</text>",
            x(at),
            base + 18.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(left, WIDTH - right),
        base + 36.0,
        escaped(searched)
    );
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{:.1}\" fill-opacity=\".75\">● fits with the margin &#160; ○ does not</text>",
        base + 36.0
    );
    limit(&mut svg, fit, &y, (left, WIDTH - right));
    let mut labels: Vec<(f64, String, &str)> = Vec::new();
    for (number, (row, points)) in rows.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let dash = DASHES[number / COLOURS.len() % DASHES.len()];
        let corners: Vec<String> = points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x(point.at), y(point.need)))
            .collect();
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" stroke-dasharray=\"{dash}\"/>",
            corners.join(" ")
        );
        for point in points {
            mark(&mut svg, fit, point, (x(point.at), y(point.need)), colour);
        }
        if let Some(end) = points.last() {
            labels.push((y(end.need), row_label(fit, row), colour));
        }
    }
    // From the top down, none on top of another.
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free = top;
    for (at, text, colour) in labels {
        let at = at.max(free);
        free = at + 15.0;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            WIDTH - right + 10.0,
            at + 4.0,
            escaped(&text)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// The name of a row, and its answer.
fn row_label(fit: &Fit, row: &Row) -> String {
    let mut text: Vec<String> = row
        .values
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    text.push(match &row.largest {
        Some(largest) => format!("{} fits", value(fit, largest)),
        None => "none fits".to_owned(),
    });
    text.join(", ")
}

/// A filled circle for what fits, an open one for what does not, an arrow for what is beyond the edge.
fn mark(svg: &mut String, fit: &Fit, point: &Point<'_>, (x, y): (f64, f64), colour: &str) {
    let trial = point.trial;
    let told = format!(
        "{} needs {}: {}",
        value(fit, trial),
        need(trial),
        judged(trial)
    );
    let beyond = point.need > fit.limit.capacity as f64 * CEILING;
    let fill = if trial.fits { colour } else { "none" };
    let _ = if beyond {
        write!(
            svg,
            "<path d=\"M{:.1} {:.1}l5 9h-10z\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\">",
            x,
            y - 5.0
        )
    } else {
        write!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.6\">",
        )
    };
    let tag = if beyond { "path" } else { "circle" };
    let _ = write!(svg, "<title>{}</title></{tag}>", escaped(&told));
}

/// Lines at round levels of bytes.
fn grid(svg: &mut String, scale: f64, y: &dyn Fn(f64) -> f64, (left, right): (f64, f64)) {
    for count in levels(scale) {
        let _ = write!(
            svg,
            "<path d=\"M{left} {0:.1}H{right}\" stroke=\"currentColor\" stroke-opacity=\".15\"/>\
             <text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y(count),
            left - 8.0,
            y(count) + 4.0,
            level(count)
        );
    }
}

/// The memory of the GPU, and its free part above the margin.
fn limit(svg: &mut String, fit: &Fit, y: &dyn Fn(f64) -> f64, (left, right): (f64, f64)) {
    let capacity = fit.limit.capacity;
    let usable = capacity.saturating_sub(fit.limit.margin);
    let (high, low) = (y(capacity as f64), y(usable as f64));
    let _ = write!(
        svg,
        "<rect x=\"{left}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{BAD}\" fill-opacity=\".13\">\
         <title>{} are kept free</title></rect>\
         <path d=\"M{left} {high:.1}H{right}\" stroke=\"{BAD}\" stroke-width=\"1.4\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{BAD}\">{}: {}</text>",
        right - left,
        low - high,
        bytes(fit.limit.margin),
        left + 6.0,
        high - 5.0,
        escaped(&fit.gpu_name),
        bytes(capacity)
    );
}

/// One bar.
struct Bar {
    name: String,
    need: Option<u64>,
    told: String,
    fits: bool,
    /// The memory, where it differs from bar to bar.
    capacity: Option<u64>,
}

fn bar_of(name: String, trial: &Trial) -> Bar {
    Bar {
        name,
        need: trial.need,
        told: format!("{}, {}", need(trial), judged(trial)),
        fits: trial.fits,
        capacity: None,
    }
}

fn remedy_bar(remedy: &Remedy) -> Bar {
    let name = match remedy.changes.as_slice() {
        [] => remedy.title.clone(),
        names => names.join(" + "),
    };
    bar_of(name, &remedy.trial)
}

fn all_bars(fit: &Fit) -> Vec<Bar> {
    if !fit.gpus.is_empty() {
        let bar = |gpu: &tonnage_fit::GpuVerdict| {
            let need = gpu.need.map_or_else(|| "-".to_owned(), bytes);
            let word = match gpu.fits {
                Some(true) => "fits",
                Some(false) => "does not fit",
                None => "fails",
            };
            Bar {
                name: gpu.gpu.clone(),
                need: gpu.need,
                told: format!("{need} of {}, {word}", bytes(gpu.capacity)),
                fits: gpu.fits == Some(true),
                capacity: Some(gpu.capacity),
            }
        };
        return fit.gpus.iter().map(bar).collect();
    }
    let mut bars: Vec<Bar> = Vec::new();
    for row in &fit.rows {
        let values = row.values.iter();
        let name: Vec<String> = values
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let name = if name.is_empty() {
            "as it is".to_owned()
        } else {
            name.join(", ")
        };
        let trial = row.largest.as_ref().or(row.next.as_ref());
        bars.extend(trial.map(|trial| bar_of(name, trial)));
    }
    bars.extend(fit.sharded.iter().map(remedy_bar));
    if let Some(found) = &fit.remedies {
        bars.extend(found.fitting.iter().chain(&found.nearest).map(remedy_bar));
    }
    bars
}

fn bars(fit: &Fit) -> String {
    let (left, right, top, pitch) = (300.0, 190.0, 30.0, 24.0);
    let bars = all_bars(fit);
    let drawn = bars.len().min(MOST);
    let height = top + pitch * drawn as f64 + 30.0;
    let capacities = bars.iter().filter_map(|bar| bar.capacity);
    let capacity = capacities.max().unwrap_or(fit.limit.capacity).max(1) as f64;
    let needs = bars.iter().filter_map(|bar| bar.need);
    let scale = (needs.max().unwrap_or(0) as f64).max(capacity) * 1.02;
    let x = |count: f64| left + (WIDTH - left - right) * count / scale;
    let mut svg = open(height, &format!("what {} needs", fit.command));
    for count in levels(scale) {
        let _ = write!(
            svg,
            "<path d=\"M{0:.1} {top}V{1:.1}\" stroke=\"currentColor\" stroke-opacity=\".15\"/>\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{3}</text>",
            x(count),
            height - 24.0,
            height - 8.0,
            level(count)
        );
    }
    for (number, bar) in bars.iter().take(MOST).enumerate() {
        let y = top + pitch * number as f64;
        let colour = if bar.fits { GOOD } else { BAD };
        let width = bar.need.map_or(0.0, |need| x(need as f64) - left);
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{left}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"15\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 8.0,
            y + 15.0,
            escaped(&shortened(&bar.name)),
            y + 4.0,
            WIDTH - right + 8.0,
            y + 15.0,
            escaped(&bar.told)
        );
        if let Some(capacity) = bar.capacity {
            let _ = write!(
                svg,
                "<path d=\"M{:.1} {:.1}v19\" stroke=\"currentColor\" stroke-width=\"2\"/>",
                x(capacity as f64),
                y + 2.0
            );
        }
    }
    if fit.gpus.is_empty() {
        let usable = fit.limit.capacity.saturating_sub(fit.limit.margin);
        let (end, from) = (x(fit.limit.capacity as f64), x(usable as f64));
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{BAD}\" fill-opacity=\".18\"/>\
             <path d=\"M{end:.1} {:.1}V{:.1}\" stroke=\"{BAD}\" stroke-width=\"1.4\"/>\
             <text x=\"{end:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{BAD}\">{}: {}</text>",
            end - from,
            height - 24.0 - top,
            top - 6.0,
            height - 24.0,
            top - 10.0,
            escaped(&fit.gpu_name),
            bytes(fit.limit.capacity)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A name as far as there is room.
fn shortened(name: &str) -> String {
    const ROOM: usize = 44;
    if name.chars().count() <= ROOM {
        return name.to_owned();
    }
    let mut short: String = name.chars().take(ROOM - 1).collect();
    short.push('…');
    short
}
