// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pictures of a report in the terminal, as far as text can: 80 columns, readable without colour.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::{RgbColor, Style};
use tonnage_analysis::holdings::{Category, Holding, Holdings, Phase, Recording};
use tonnage_report::{
    Fact, Levels, Moment, MomentKind, Picture, Story, Stretch, Tone, Words, colour, own_line,
};

use crate::commands::recording::plain;
use crate::output::{BAD, DIM, GOOD, WARN, bytes, count, wrapped};

/// Width of the names at the left, of the pictures, and of the figures at the right.
const NAME: usize = 16;
const WIDE: u32 = 50;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Lines of the tree, and parts of one part that are shown.
const TREE: usize = 22;
const CHILDREN: usize = 3;

pub(crate) fn render(
    picture: &Picture<'_>,
    story: &Story,
    words: &Words,
    held: &Recording,
    track: &Holdings,
) -> String {
    let mut text = String::new();
    headline(&mut text, story);
    timeline(&mut text, picture, held, track);
    moments(&mut text, picture, track);
    holders(&mut text, picture, held, track);
    allocators(&mut text, words, track.capacity);
    plan(&mut text, words);
    for sentence in &words.unknown {
        let mut name = "not known";
        for line in wrapped(sentence, 68) {
            let _ = writeln!(text, "{DIM}{name:<10}{DIM:#} {line}");
            name = "";
        }
    }
    text.trim_end().to_owned()
}

fn headline(text: &mut String, story: &Story) {
    let style = match story.tone {
        Tone::Good => GOOD,
        Tone::Bad => BAD,
        Tone::Plain => Style::new().bold(),
    };
    let _ = writeln!(text, "{}", story.title);
    for line in wrapped(&story.verdict, 80) {
        let _ = writeln!(text, "{style}{line}{style:#}");
    }
    for finding in &story.findings {
        let _ = writeln!(text, "{WARN}{}{WARN:#}  {}", finding.code, finding.title);
    }
    for Fact { name, text: line } in story.ranks.iter().flat_map(|ranks| &ranks.lines) {
        let _ = writeln!(text, "{name:<NAME$} {line}");
    }
}

/// A line for each category: how much of it there was, all on one scale.
fn timeline(text: &mut String, picture: &Picture<'_>, held: &Recording, track: &Holdings) {
    let stretches = picture.stretches(WIDE);
    let at = moment_of(picture);
    let reserved = !track.segments.is_empty();
    let most = stretches
        .iter()
        .map(|one| one.high.allocated.max(one.most_reserved))
        .max()
        .unwrap_or(0);
    let _ = writeln!(
        text,
        "\n{DIM}{:NAME$} {} events, each column at its fullest; █ is {}{DIM:#}",
        "bytes over time",
        count(held.rows.into()),
        bytes(most)
    );
    phases(text, &stretches, track);
    let mut line = |name: &str, style: Style, of: &dyn Fn(&Stretch) -> u64, figure: Option<u64>| {
        let picture: String = stretches
            .iter()
            .map(|one| LEVELS[level(of(one), most)])
            .collect();
        let figure = figure.map_or(String::new(), bytes);
        let _ = writeln!(
            text,
            "{name:NAME$} {style}{picture:<50}{style:#} {figure:>12}"
        );
    };
    for category in Category::ALL {
        let of = |one: &Stretch| one.high.by_category[category as usize];
        if stretches.iter().any(|one| of(one) > 0) {
            let figure = at.map(|(_, levels)| levels.by_category[category as usize]);
            line(category.name(), painted(category), &of, figure);
        }
    }
    line(
        "allocated",
        Style::new(),
        &|one| one.high.allocated,
        at.map(|(_, levels)| levels.allocated),
    );
    if reserved {
        line(
            "reserved",
            Style::new(),
            &|one| one.most_reserved.max(one.high.allocated),
            at.map(|(_, levels)| levels.held_bytes()),
        );
    }
    if let Some((moment, _)) = at {
        let column = u64::from(moment.row) * u64::from(WIDE.min(held.rows.max(1)))
            / u64::from(held.rows.max(1));
        let name = if moment.kind == MomentKind::OutOfMemory {
            "out of memory"
        } else {
            "peak"
        };
        let column = column as usize;
        let marker = if column + name.len() + 2 < WIDE as usize {
            format!("{}▲ {name}", " ".repeat(column))
        } else {
            format!(
                "{}{name} ▲",
                " ".repeat(column.saturating_sub(name.len() + 1))
            )
        };
        let _ = writeln!(text, "{:NAME$} {marker}", "");
    }
}

/// The colour of a category, as the page has it.
fn painted(category: Category) -> Style {
    let hex = colour(category);
    let part = |at: usize| u8::from_str_radix(hex.get(at..at + 2).unwrap_or(""), 16).unwrap_or(0);
    let rgb = RgbColor(part(1), part(3), part(5));
    Style::new().fg_color(Some(rgb.into()))
}

/// A letter for each column, where phases are long enough to be distinguished.
fn phases(text: &mut String, stretches: &[Stretch], track: &Holdings) {
    if track.phases.len() < 2 || track.phases.len() > 3 * WIDE as usize {
        return;
    }
    let letter = |stretch: &Stretch| {
        track
            .phase_at(stretch.high.row)
            .map_or(' ', |span| match span.phase {
                Phase::Load => 'l',
                Phase::Forward => 'F',
                Phase::Backward => 'B',
                Phase::Step => 'S',
                Phase::Eval => 'E',
                Phase::Save => 'v',
                Phase::Other => '·',
            })
    };
    let letters: String = stretches.iter().map(letter).collect();
    let _ = writeln!(text, "{:NAME$} {letters}", "phase");
}

/// Eighths of the scale; whatever is there at all shows.
fn level(value: u64, most: u64) -> usize {
    if value == 0 || most == 0 {
        return 0;
    }
    let eighths = (u128::from(value) * 8).div_ceil(u128::from(most));
    (eighths as usize).clamp(1, 8)
}

/// The failure, else the peak.
fn moment_of<'a>(picture: &'a Picture<'_>) -> Option<(&'a Moment, &'a Levels)> {
    let of = |kind| {
        let mut all = picture.moments();
        all.find(|(moment, _)| moment.kind == kind)
    };
    of(MomentKind::OutOfMemory).or_else(|| of(MomentKind::Peak))
}

fn moments(text: &mut String, picture: &Picture<'_>, track: &Holdings) {
    let of_note = picture
        .moments()
        .filter(|(moment, _)| moment.kind < MomentKind::Mark);
    // A plain script has no phases to report.
    let has_phases = track.phases.iter().any(|span| span.phase != Phase::Load);
    text.push('\n');
    for (moment, levels) in of_note {
        let span = track.phase_at(moment.row).filter(|_| has_phases);
        let place = span.map_or(String::new(), |span| {
            if span.phase == Phase::Load {
                "loading".to_owned()
            } else if span.phase == Phase::Step {
                format!("optimizer in step {}", span.step)
            } else {
                format!("{} of step {}", span.phase.name(), span.step)
            }
        });
        let name = match moment.kind {
            MomentKind::OutOfMemory => "out of memory",
            _ => &moment.label,
        };
        let _ = writeln!(
            text,
            "{name:NAME$} {:>12} allocated at event {}{}{place}",
            bytes(levels.allocated),
            count(u64::from(moment.row) + 1),
            if place.is_empty() { "" } else { ", " }
        );
    }
}

/// A part of what is alive, with its parts.
#[derive(Default)]
struct Part {
    bytes: u64,
    blocks: u64,
    parts: BTreeMap<String, Part>,
}

impl Part {
    fn add(&mut self, path: &[String], size: u64) {
        self.bytes = self.bytes.saturating_add(size);
        self.blocks += 1;
        if let Some((first, rest)) = path.split_first() {
            self.parts.entry(first.clone()).or_default().add(rest, size);
        }
    }
}

fn holders(text: &mut String, picture: &Picture<'_>, held: &Recording, track: &Holdings) {
    let Some((moment, levels)) = moment_of(picture) else {
        return;
    };
    let mut root = Part::default();
    for block in track
        .blocks
        .iter()
        .filter(|block| block.alive_at(moment.row))
    {
        root.add(&path_of(block, held), block.bytes);
    }
    if root.bytes == 0 {
        return;
    }
    let _ = writeln!(text, "\n{DIM}held by{DIM:#}");
    let mut left = TREE;
    let cached = if track.segments.is_empty() {
        0
    } else {
        levels.held_bytes().saturating_sub(levels.allocated)
    };
    let whole = root.bytes.saturating_add(cached);
    let whole = whole.saturating_add(track.context);
    tree(text, &root, whole, 0, &mut left);
    if cached > 0 {
        part_line(text, "cached by PyTorch", cached, whole, 0);
    }
    if track.context > 0 {
        part_line(text, "context", track.context, whole, 0);
    }
}

/// Category, module with its layers taken together, line, tensor.
fn path_of(block: &Holding, held: &Recording) -> Vec<String> {
    let mut path = vec![block.category.name().to_owned()];
    if let Some(module) = block.module {
        let pieces: Vec<&str> = held
            .stacks
            .text(module)
            .split('.')
            .map(|piece| match piece.parse::<u32>() {
                Ok(_) => "*",
                Err(_) => piece,
            })
            .collect();
        path.push(plain(&pieces.join(".")));
    }
    if let Some(line) = block.stack.and_then(|stack| own_line(&held.stacks, stack)) {
        path.push(plain(&line));
    }
    path
}

fn tree(text: &mut String, part: &Part, whole: u64, depth: usize, left: &mut usize) {
    let mut parts: Vec<(&String, &Part)> = part.parts.iter().collect();
    parts.sort_by_key(|(_, part)| std::cmp::Reverse(part.bytes));
    // All categories, but of deeper levels only what matters.
    let most = if depth == 0 { usize::MAX } else { CHILDREN };
    let worth = |part: &Part| depth == 0 || part.bytes >= whole / 50;
    for (name, part) in parts.into_iter().take(most) {
        if *left == 0 || !worth(part) {
            return;
        }
        *left -= 1;
        part_line(text, name, part.bytes, whole, depth);
        tree(text, part, whole, depth + 1, left);
    }
}

fn part_line(text: &mut String, name: &str, size: u64, whole: u64, depth: usize) {
    const ROOM: usize = 44;
    let indent = "  ".repeat(depth);
    let room = ROOM - indent.len().min(ROOM - 8);
    let name = cut_in_the_middle(name, room);
    let percent = 100.0 * size as f64 / whole.max(1) as f64;
    let bar: String = "█".repeat(((percent / 10.0).round() as usize).min(10));
    let line = format!(
        "{indent}{name:<room$} {:>12} {percent:>4.0} %  {bar}",
        bytes(size)
    );
    let _ = writeln!(text, "{}", line.trim_end());
}

/// A name that fits: the middle is cut, because ends differ more.
fn cut_in_the_middle(name: &str, room: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= room {
        return name.to_owned();
    }
    let (head, tail) = ((room - 1) / 3, room - 1 - (room - 1) / 3);
    let head: String = letters[..head].iter().collect();
    let tail: String = letters[letters.len() - tail..].iter().collect();
    format!("{head}…{tail}")
}

fn allocators(text: &mut String, words: &Words, capacity: Option<u64>) {
    const ROOM: usize = 32;
    const BAR: u64 = 30;
    if words.allocators.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{DIM}reserved under other allocators{DIM:#}");
    let reserved = words.allocators.iter().map(|run| run.peak_reserved).max();
    let most = reserved.unwrap_or(0).max(1);
    for run in &words.allocators {
        let name = cut_in_the_middle(&run.allocator, ROOM);
        let full = u128::from(run.peak_reserved) * u128::from(BAR) / u128::from(most);
        let live = run.peak_reserved.saturating_sub(run.cached_at_peak);
        let solid = u128::from(live) * u128::from(BAR) / u128::from(most);
        let bar = format!(
            "{}{}",
            "█".repeat(solid as usize),
            "░".repeat(full.saturating_sub(solid) as usize)
        );
        let _ = write!(
            text,
            "{name:<ROOM$} {bar:<30} {:>12}",
            bytes(run.peak_reserved)
        );
        let mark = match (run.recorded, run.exact) {
            (true, _) => " *",
            (_, false) => " ~",
            _ => "",
        };
        let _ = writeln!(text, "{mark}");
        if !run.completes {
            let _ = writeln!(text, "  {BAD}{}{BAD:#}", run.outcome);
        }
    }
    let _ = writeln!(
        text,
        "{DIM}█ handed out, ░ cached beside it, * recorded, ~ approximation{DIM:#}"
    );
    if let Some(capacity) = capacity {
        let _ = writeln!(text, "{DIM}the device has {}{DIM:#}", bytes(capacity));
    }
    text.push('\n');
}

/// The size of the blocks if their lifetimes had been known, beside the reserved size.
fn plan(text: &mut String, words: &Words) {
    let Some(plan) = &words.plan else {
        return;
    };
    let _ = writeln!(
        text,
        "{DIM}if all lifetimes had been known beforehand{DIM:#}"
    );
    let mut line = |name: &str, value: u64, note: &str| {
        let _ = writeln!(text, "{name:<32} {:>12}{note}", bytes(value));
    };
    if plan.done {
        line("lower bound", plan.lower_bound, "");
        let pools = plan.pools.len() as u64;
        let pools = if pools > 1 {
            format!("  in {} pools", count(pools))
        } else {
            String::new()
        };
        line("plan", plan.peak, &pools);
        if let Some(reserved) = plan.reserved {
            line("reserved in the recording", reserved, "");
        }
    }
    for sentence in wrapped(&plan.sentence, 80) {
        let _ = writeln!(text, "{sentence}");
    }
    text.push('\n');
}
