// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage explain`: one screen that says why, and the pages of the findings.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use tonnage_core::explain::{Explanation, Finding, Fix, Holder, Outcome, Proof, codes, explain};
use tonnage_core::holdings::{self, Known, Phase, Place, Recording as Holdings, shortened};
use tonnage_core::replay::{Job, Options};
use tonnage_core::words::{bytes, count};

use super::recording::{Recording, explained, plain};
use crate::arguments::ExplainOptions;
use crate::output::{Answer, BAD, DIM, Form, GOOD, HINT, Reply, hinted};

pub(crate) fn run(options: &ExplainOptions, form: Form) -> Result<Reply> {
    let name = options.what.to_string_lossy();
    if name.len() == 5 && name.to_ascii_uppercase().starts_with("TN") && !options.what.exists() {
        return page(&name, form);
    }
    let recording = Recording::open(&options.what)?;
    let read = read(&recording)?;
    // What cannot be replayed can be explained all the same, without settings.
    let job = Job::load(|| recording.trace(), &Options::default()).ok();
    let Some(explanation) = explain(&read, job.as_ref()) else {
        return Err(hinted(
            format!("{} shows no block of device memory", options.what.display()),
            "record the allocator's history, or make a recording with `tonnage run`",
        ));
    };
    let answer = match explanation.outcome {
        Outcome::OutOfMemory => Answer::No,
        Outcome::Ran => Answer::Yes,
    };
    let reply = Reply::new(form, answer, &explanation, |explanation| {
        let text = text(explanation);
        // Files here are named from here, as a compiler would.
        match std::env::current_dir() {
            Ok(here) if here.parent().is_some() => {
                text.replace(&format!("{}/", here.display()), "")
            }
            _ => text,
        }
    });
    Ok(reply?)
}

/// Reads whose every byte is.
pub(crate) fn read(recording: &Recording) -> Result<Holdings> {
    let read = holdings::read(recording.trace()?);
    read.map_err(|error| explained(&error, "record it again, or see `tonnage info`"))
}

/// What a finding means.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Meaning {
    /// `TN101`.
    code: &'static str,
    /// What it means, how it is recognised and what helps.
    page: &'static str,
    /// What it says in a few words.
    title: &'static str,
}

fn page(name: &str, form: Form) -> Result<Reply> {
    let Some(code) = codes::find(name) else {
        let known: Vec<&str> = codes::ALL.iter().map(|code| code.code).collect();
        return Err(hinted(
            format!("no finding is called {name}"),
            format!("there are {}", known.join(", ")),
        ));
    };
    let page = Meaning {
        code: code.code,
        page: code.page,
        title: code.title,
    };
    Ok(Reply::new(form, Answer::Yes, &page, |_| {
        format!(
            "{GOOD}{}{GOOD:#}  {}\n\n{}",
            code.code, code.title, code.page
        )
    })?)
}

/// The most lines that are shown, so that a screen suffices.
const HOLDERS: usize = 4;
const FIXES: usize = 3;
const CAUSES: usize = 2;

fn text(explanation: &Explanation) -> String {
    let mut text = headline(explanation);
    moment(&mut text, explanation);
    device(&mut text, explanation);
    whose(&mut text, explanation);
    for (index, holder) in explanation.holders.iter().take(HOLDERS).enumerate() {
        let title = if index == 0 { "held by" } else { "" };
        let _ = writeln!(text, "  {title:<10} {}", held(holder));
    }
    if let Some(second) = &explanation.second_peak {
        let _ = writeln!(
            text,
            "  {:<10} {:>11} in step {}, {}",
            "next peak",
            bytes(second.bytes),
            second.step,
            doing(second.phase),
        );
    }
    let causes = explanation.findings.iter().filter(|finding| {
        explanation.outcome == Outcome::Ran
            || !finding.code.code.starts_with("TN1")
            || finding.code == codes::OUTSIDE
    });
    for (index, finding) in causes.take(CAUSES).enumerate() {
        let title = if index == 0 { "because" } else { "" };
        let _ = writeln!(text, "  {title:<10} {}", found(finding));
    }
    for (index, fix) in explanation.fixes.iter().take(FIXES).enumerate() {
        let title = if index == 0 { "what helps" } else { "" };
        let _ = writeln!(text, "  {title:<10} {}", proposed(fix));
    }
    if explanation.fixes.is_empty() {
        let _ = writeln!(
            text,
            "  {:<10} nothing that could be proved on this recording",
            "what helps"
        );
    }
    if !explanation.unknown.is_empty() {
        let unknown: Vec<String> = explanation.unknown.iter().map(|gap| plain(gap)).collect();
        let _ = writeln!(text, "  {:<10} {}", "not known", unknown.join("; "));
    }
    text
}

fn headline(explanation: &Explanation) -> String {
    let device = &explanation.on_device;
    let used = device.allocated
        + device.cached
        + device.context.unwrap_or(0)
        + device.outside.unwrap_or(0);
    if let (Some(request), Some(class)) = (&explanation.request, explanation.findings.first()) {
        let short = if request.short > 0 {
            format!(": {} short", bytes(request.short))
        } else {
            String::new()
        };
        return format!(
            "{BAD}out of memory{BAD:#}: {} ({}){short}\n",
            class.code.title, class.code.code
        );
    }
    let of = device
        .capacity
        .map_or_else(String::new, |capacity| format!(" of {}", bytes(capacity)));
    let cause = explanation
        .findings
        .first()
        .map_or_else(String::new, |cause| {
            format!("; {} ({})", cause.code.title, cause.code.code)
        });
    format!("{GOOD}peak{GOOD:#} {}{of}{cause}\n", bytes(used))
}

/// What the program was doing, in words.
fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Load => "loading",
        Phase::Forward => "forward pass",
        Phase::Backward => "backward pass",
        Phase::Step => "optimizer's step",
        Phase::Eval => "pass without gradients",
        Phase::Save => "saving or loading a checkpoint",
    }
}

fn moment(text: &mut String, explanation: &Explanation) {
    let moment = &explanation.moment;
    let asked = explanation
        .request
        .as_ref()
        .map_or_else(String::new, |request| {
            format!("asking for {}, ", bytes(request.bytes))
        });
    let module = moment
        .module
        .as_ref()
        .map_or_else(String::new, |module| format!(" in {}", plain(module)));
    let place = moment.place.as_ref().map_or_else(
        || " without a Python line".to_owned(),
        |place| format!(" at {}", located(place)),
    );
    let _ = writeln!(
        text,
        "  {:<10} {asked}step {}, {}{module}{place}; event {} of {}",
        "when",
        moment.step,
        doing(moment.phase),
        count(u64::from(moment.row)),
        count(u64::from(moment.rows)),
    );
}

fn device(text: &mut String, explanation: &Explanation) {
    let device = &explanation.on_device;
    let mut parts = vec![
        format!("{} allocated", bytes(device.allocated)),
        format!("{} cached", bytes(device.cached)),
    ];
    if let Some(context) = device.context {
        parts.push(format!("{} context", bytes(context)));
    }
    if let Some(outside) = device.outside.filter(|&outside| outside > 0) {
        parts.push(format!("{} past PyTorch", bytes(outside)));
    }
    if device.others > 0 {
        parts.push(format!("{} other processes", bytes(device.others)));
    }
    let _ = writeln!(text, "  {:<10} {}", "on device", parts.join(" + "));
    let slack = &explanation.slack;
    if slack.cached() > 0 {
        let mut parts = Vec::new();
        if slack.hard > 0 {
            parts.push(format!(
                "{} in {} {} (largest {})",
                bytes(slack.hard),
                count(slack.holes),
                if slack.holes == 1 { "hole" } else { "holes" },
                bytes(slack.largest_hole)
            ));
        }
        if slack.soft > 0 {
            parts.push(format!("{} in free segments", bytes(slack.soft)));
        }
        if slack.stream > 0 {
            parts.push(format!("{} of other streams", bytes(slack.stream)));
        }
        let _ = writeln!(text, "  {:<10} {}", "unused", parts.join(", "));
    }
}

fn whose(text: &mut String, explanation: &Explanation) {
    let mut parts: Vec<_> = explanation.categories.iter().collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let parts = parts.iter().map(|part| {
        let known = if part.exact_bytes == part.bytes {
            ""
        } else if part.exact_bytes == 0 {
            "~"
        } else {
            "≈"
        };
        format!("{known}{} {}", part.category.name(), bytes(part.bytes))
    });
    let mut parts: Vec<String> = parts.collect();
    if explanation.slack.rounding > 0 {
        parts.push(format!("rounding {}", bytes(explanation.slack.rounding)));
    }
    if parts.is_empty() {
        return;
    }
    let half = parts.len().div_ceil(2).max(3).min(parts.len());
    let _ = writeln!(text, "  {:<10} {}", "whose", parts[..half].join(" · "));
    if half < parts.len() {
        let _ = writeln!(text, "  {:<10} {}", "", parts[half..].join(" · "));
    }
    if parts.iter().any(|part| part.starts_with(['~', '≈'])) {
        let _ = writeln!(
            text,
            "  {:<10} {DIM}~ inferred from phase, lifetime or stack; the others by torch's own word{DIM:#}",
            ""
        );
    }
}

fn held(holder: &Holder) -> String {
    let place = holder
        .place
        .as_ref()
        .map_or_else(|| "no Python line".to_owned(), located);
    let module = holder
        .module
        .as_ref()
        .map_or_else(String::new, |module| format!(" in {}", plain(module)));
    let shape = match (&holder.shape, holder.blocks) {
        (Some(shape), 1) => format!(" {}", plain(shape)),
        (Some(shape), _) => format!(" e.g. {}", plain(shape)),
        _ => String::new(),
    };
    let mark = if holder.known == Known::Exact {
        ""
    } else {
        "~"
    };
    format!(
        "{:>11} {:>5} × {mark}{}{module} {place}{shape}",
        bytes(holder.bytes),
        count(holder.blocks),
        holder.category.name(),
    )
}

fn located(place: &Place) -> String {
    format!("{}:{}", plain(shortened(&place.file)), place.line)
}

fn found(finding: &Finding) -> String {
    format!(
        "{HINT}{}{HINT:#} {}",
        finding.code.code,
        plain(&finding.sentence)
    )
}

fn proposed(fix: &Fix) -> String {
    let proof = match fix.proof {
        Proof::Replayed => "replayed",
        Proof::Computed => "computed",
    };
    let advice = match &fix.paste {
        Some(paste) => format!("{} ({HINT}{paste}{HINT:#})", fix.advice),
        None => plain(&fix.advice),
    };
    format!("{advice}: {} [{proof}]", fix.shown)
}
