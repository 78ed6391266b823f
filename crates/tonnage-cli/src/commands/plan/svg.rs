// SPDX-License-Identifier: MIT OR Apache-2.0
//! A picture of a packing: time to the right, offsets upwards, a rectangle for each buffer.
//!
//! One file without scripts, which opens anywhere and prints. A rectangle that would be smaller than a hair is not
//! drawn, and of more than some thousands the largest are; the picture states how many are left out. Colours
//! distinguish neighbours and mean nothing; every rectangle shows its name when pointed at.

use std::io::{self, Write};

use tonnage_analysis::plan::{GroupReport, Placement, Report};

use crate::commands::recording::plain;
use crate::output::{bytes, count, plural};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 600.0;
const MARGIN: f64 = 60.0;

/// Rectangles of one picture; a browser draws as many without delay.
const MAX_DRAWN: usize = 20_000;

/// Draws all groups, one below the other.
pub(super) fn draw(report: &Report, writer: &mut dyn Write) -> io::Result<()> {
    let each = HEIGHT + 2.0 * MARGIN;
    let height = each * report.groups.len() as f64;
    writeln!(
        writer,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {height}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#fff"/>"##,
        w = WIDTH + 2.0 * MARGIN,
    )?;
    for (group, index) in report.groups.iter().zip(0_u32..) {
        draw_group(group, report, f64::from(index) * each + MARGIN, writer)?;
    }
    writeln!(writer, "</svg>")
}

fn draw_group(
    group: &GroupReport,
    report: &Report,
    top: f64,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let first = group
        .buffers
        .iter()
        .map(|buffer| buffer.lower)
        .min()
        .unwrap_or(0);
    let last = group
        .buffers
        .iter()
        .map(|buffer| buffer.upper)
        .max()
        .unwrap_or(1);
    let high = group.peak.max(report.capacity.unwrap_or(0)).max(1);
    let across = WIDTH / (last as f64 - first as f64).max(1.0);
    let up = HEIGHT / high as f64;
    let shape = |buffer: &Placement| {
        let x = MARGIN + (buffer.lower as f64 - first as f64) * across;
        let width = (buffer.upper as f64 - buffer.lower as f64) * across;
        let tall = buffer.size as f64 * up;
        (
            x,
            top + HEIGHT - buffer.offset as f64 * up - tall,
            width,
            tall,
        )
    };
    let mut drawn: Vec<(f64, usize)> = group
        .buffers
        .iter()
        .enumerate()
        .map(|(index, buffer)| {
            let (_, _, width, tall) = shape(buffer);
            (width * tall, index)
        })
        .filter(|(area, _)| *area > 0.01)
        .collect();
    drawn.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    drawn.truncate(MAX_DRAWN);
    let left_out = group.buffers.len() - drawn.len();
    let left_out = if left_out == 0 {
        String::new()
    } else {
        format!(" · {} too small to be seen", count(left_out as u64))
    };
    writeln!(
        writer,
        r#"<text x="{MARGIN}" y="{y}">process {}, device {} · {}{left_out} · peak {} · lower bound {}</text>"#,
        group.process,
        group.device,
        plural(group.buffers.len() as u64, "buffer"),
        bytes(group.peak),
        bytes(group.lower_bound),
        y = top - 12.0,
    )?;
    for (_, index) in drawn {
        let buffer = &group.buffers[index];
        let (x, y, width, tall) = shape(buffer);
        // Multiples of the golden angle are far apart for any run of numbers.
        let hue = (index as f64 * 137.508) % 360.0;
        writeln!(
            writer,
            r##"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{tall:.2}" fill="hsl({hue:.0},55%,72%)" stroke="#333" stroke-width="0.3"><title>{}: {} at {}, from {} to {}</title></rect>"##,
            escaped(&plain(&buffer.id)),
            bytes(buffer.size),
            buffer.offset,
            buffer.lower,
            buffer.upper,
        )?;
    }
    let mut line = |bytes_up: u64, colour: &str, label: &str| {
        let y = top + HEIGHT - bytes_up as f64 * up;
        writeln!(
            writer,
            r#"<line x1="{MARGIN}" x2="{x2}" y1="{y:.2}" y2="{y:.2}" stroke="{colour}" stroke-dasharray="6 4"/><text x="{x2}" y="{ty:.2}" text-anchor="end" fill="{colour}">{label}</text>"#,
            x2 = MARGIN + WIDTH,
            ty = y - 3.0,
        )
    };
    line(group.peak, "#0645ad", "peak")?;
    if let Some(capacity) = report.capacity {
        line(capacity, "#b00020", "capacity")?;
    }
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
