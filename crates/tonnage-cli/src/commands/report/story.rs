// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a report: the verdict, the explanation and the replays, put where the page shows them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use tonnage_analysis::explain::{Explanation, codes};
use tonnage_analysis::holdings::{Holdings, Known, Recording as Held};
use tonnage_analysis::replay::{Alloc, Fidelity, Job, Outcome, Replayed, TrackReport};
use tonnage_analysis::unknown;
use tonnage_analysis::verdict::{self, Margin, Need, Verdict};
use tonnage_recording::facts;
use tonnage_recording::meta;
use tonnage_report::{
    AllocatorRun, Answer, Fact, Figure, Finding, Levels, Picture, Proposal, Rank, Ranks, Story,
    Tone, Words,
};

use super::panes::{Panes, Source};
use crate::PRODUCER;
use crate::commands::explain::render_text;
use crate::commands::headroom::{self, evidence};
use crate::commands::recording::{Recording, explained, named, plain, unreadable_trace, words};
use crate::commands::report::Compare;
use crate::commands::report::ReportOptions;
use crate::output::{bytes, count, plural, ranks_named, without_colour};
use crate::progress;

/// The words of the page: of the run, and of the process and device that is explained.
pub(super) fn story(
    options: &ReportOptions,
    recording: &Recording,
    held: &Held,
    track: &Holdings,
    explanation: Option<&Explanation>,
    panes: &Panes<'_>,
    picture: &Picture<'_>,
) -> Result<Story> {
    let of_run = verdict_of(options, recording, held, track)?;
    let of_run = of_run.as_ref();
    let (verdict, tone) = sentence(of_run, track, picture);
    let command = held.fact(track.process, meta::COMMAND).map(plain);
    Ok(Story {
        title: title(&options.file, command.as_deref()),
        verdict,
        tone,
        answer: explanation.map(|explanation| answer(explanation, of_run, track)),
        facts: lines(&options.file, recording, held, track),
        findings: explanation
            .map(|explanation| findings(explanation, panes))
            .unwrap_or_default(),
        ranks: ranks(held, panes),
        comparison: None,
        producer: PRODUCER.to_owned(),
    })
}

/// The memory of each rank of the job; for one that ran out of memory, its need without a limit.
fn ranks(held: &Held, panes: &Panes<'_>) -> Option<Ranks> {
    let whole = panes.sources.iter().find(|source| source.whole);
    let of = whole.map_or(held, |source| source.held);
    let mut run: BTreeMap<u32, Rank> = BTreeMap::new();
    for track in &of.tracks {
        let Some(rank) = of.rank(track.process) else {
            continue;
        };
        let used = track.peak_charged.saturating_add(track.context);
        let one = Rank {
            rank,
            used: used.max(track.peak_allocated),
            allocated: track.peak_allocated,
            capacity: track.capacity,
            pane: panes.find(track.process, track.device, whole.is_some()),
        };
        let known = run.entry(rank).or_default();
        if one.used > known.used {
            *known = one;
        }
    }
    let run: Vec<Rank> = run.into_values().collect();
    if run.len() < 2 {
        return None;
    }
    let size = held.fact(facts::RUN, facts::WORLD_SIZE);
    let size = size.and_then(|text| text.parse().ok());
    let last = run.last().map_or(0, |rank| rank.rank.saturating_add(1));
    Some(Ranks {
        world_size: size.unwrap_or(last),
        lines: groups(&run, whole.is_some()),
        run,
    })
}

/// Ranks with the same figures in one line, the fullest first. A job that ran out of memory was run again without a
/// limit.
fn groups(run: &[Rank], unlimited: bool) -> Vec<Fact> {
    let limit = if unlimited { " without a limit" } else { "" };
    let mut groups: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
    for rank in run {
        let same = groups.entry((rank.used, rank.allocated)).or_default();
        same.push(rank.rank);
    }
    let line = |((used, allocated), ranks): ((u64, u64), Vec<u32>)| Fact {
        name: ranks_named(&ranks),
        text: format!(
            "{} used at most{limit}, {} allocated",
            bytes(used),
            bytes(allocated)
        ),
    };
    groups.into_iter().rev().map(line).collect()
}

/// Command, recording, device, versions.
fn lines(path: &Path, recording: &Recording, held: &Held, track: &Holdings) -> Vec<Fact> {
    let fact = |name: &str| held.fact(track.process, name).map(plain);
    let mut lines: Vec<Fact> = Vec::new();
    let mut put = |name: &str, text: Option<String>| {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            let name = name.to_owned();
            lines.push(Fact { name, text });
        }
    };
    put("command", fact(meta::COMMAND));
    let file = path.file_name().unwrap_or(path.as_os_str());
    let kind = recording
        .foreign
        .map(|format| format!(", {}", words(format)));
    put(
        "recording",
        Some(format!(
            "{}{}",
            named(Path::new(file)),
            kind.unwrap_or_default()
        )),
    );
    put("GPU", device(held, track));
    let conf = fact(meta::ALLOCATOR_CONF).filter(|conf| !conf.is_empty());
    let torch = fact(meta::TORCH_VERSION);
    put("PyTorch", torch.clone());
    put(
        "allocator",
        torch.map(|_| {
            conf.unwrap_or_else(|| {
                // A dry run writes settings down where there are any.
                if recording.foreign.is_none() {
                    "PyTorch's, with its defaults".to_owned()
                } else {
                    "PyTorch's, settings not recorded".to_owned()
                }
            })
        }),
    );
    put("CUDA", fact(facts::CUDA_VERSION));
    put("Python", fact(facts::PYTHON_VERSION));
    lines
}

/// The words of one pane.
pub(super) fn words_of(source: &Source<'_>, replayed: &[TrackReport]) -> Words {
    let allocators = if source.whole {
        Vec::new()
    } else {
        allocators(replayed, source.track)
    };
    Words {
        name: source.name.clone(),
        allocators,
        plan: None,
        unknown: unknown(source.held, source.track),
    }
}

/// The unknowns of the process and device that is explained, beside the limitations of its recording.
pub(super) fn more_unknown(
    words: &mut Words,
    options: &ReportOptions,
    replays: bool,
    track: &Holdings,
    explanation: Option<&Explanation>,
) {
    if !replays && options.compare_allocators == Compare::Auto {
        words.unknown.push(
            "what other allocators would have held, because the recording is long; --compare-allocators always replays it"
                .to_owned(),
        );
    }
    let outside = explanation.and_then(|one| one.on_device.outside);
    if let Some(outside) = outside.filter(|&outside| outside > 0) {
        words.unknown.push(format!(
            "what others than PyTorch's allocator held is not drawn: {} at the {}",
            bytes(outside),
            if track.failure.is_some_and(|failure| failure.last) {
                "failure"
            } else {
                "peak"
            }
        ));
    }
}

/// The script's name, or the recording's.
fn title(path: &Path, command: Option<&str>) -> String {
    let script = command.and_then(|command| {
        let mut words = command.split_whitespace();
        let script = words.find(|word| Path::new(word).extension().is_some_and(|e| e == "py"))?;
        script.rsplit(['/', '\\']).next()
    });
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    script.map_or_else(|| stem.display().to_string(), str::to_owned)
}

fn device(held: &Held, track: &Holdings) -> Option<String> {
    let name = held.fact(track.process, meta::GPU_NAME).map(plain);
    let capacity = track.capacity.map(bytes);
    match (name, capacity) {
        (Some(name), Some(capacity)) => Some(format!("{name}, {capacity}")),
        (name, capacity) => name.or(capacity),
    }
}

/// The verdict on the recording; none of a recording that is not a dry run, because only that shows how the program
/// ended.
fn verdict_of(
    options: &ReportOptions,
    recording: &Recording,
    held: &Held,
    track: &Holdings,
) -> Result<Option<Verdict>> {
    if recording.foreign.is_some() || held.fact(track.process, facts::ENDING).is_none() {
        return Ok(None);
    }
    let verdict = recording.verdict().map_err(|error| match error {
        verdict::VerdictError::Read(error) => unreadable_trace(&options.file, &error),
        error => explained(&error, "check the file"),
    })?;
    Ok(Some(verdict))
}

/// The verdict in one sentence.
fn sentence(verdict: Option<&Verdict>, track: &Holdings, picture: &Picture<'_>) -> (String, Tone) {
    let most = |of: fn(&Levels) -> u64| picture.moments().map(|(_, levels)| of(levels)).max();
    let allocated = most(|levels| levels.allocated).unwrap_or(0);
    let reserved = most(Levels::held_bytes)
        .unwrap_or(0)
        .max(track.peak_reserved);
    let peak = if track.segments.is_empty() {
        format!("{} allocated at most", bytes(allocated))
    } else {
        let allocated = bytes(allocated);
        format!(
            "{allocated} allocated and {} reserved at most",
            bytes(reserved)
        )
    };
    let of = track.capacity.map_or(String::new(), |capacity| {
        format!(", of {}", bytes(capacity))
    });
    let failed = |tone| {
        track.failure.filter(|failure| failure.last).map(|failure| {
            let asked = bytes(failure.requested);
            let free = bytes(failure.free);
            (
                format!("Out of memory: {asked} requested, {free} free; {peak}{of}."),
                tone,
            )
        })
    };
    if let Some(verdict) = verdict {
        return match verdict.outcome {
            verdict::Outcome::Fits if verdict.is_measured() => {
                (format!("Ran on this GPU: {peak}{of}."), Tone::Good)
            }
            verdict::Outcome::Fits | verdict::Outcome::Uncertain => {
                fits(verdict, &format!("{peak}{of}"))
            }
            verdict::Outcome::DoesNotFit => {
                let (mut sentence, tone) = failed(Tone::Bad)
                    .unwrap_or_else(|| (format!("Does not fit: {peak}{of}."), Tone::Bad));
                if let Some(need) = &verdict.need {
                    let is_known = need.complete && need.known == "replayed";
                    let least = if is_known { "" } else { "at least " };
                    let need = bytes(need.bytes);
                    let _ = write!(sentence, " The whole job needs {least}{need}.");
                }
                (sentence, tone)
            }
            verdict::Outcome::Interrupted => {
                (format!("Interrupted; until then {peak}{of}."), Tone::Plain)
            }
            verdict::Outcome::Failed => (
                format!("The program failed for another reason; until then {peak}{of}."),
                Tone::Plain,
            ),
            verdict::Outcome::NotCovered => (
                "No verdict: the program used a GPU in a way that a dry run cannot follow."
                    .to_owned(),
                Tone::Plain,
            ),
            verdict::Outcome::NoDevice => ("The program used no device.".to_owned(), Tone::Plain),
        };
    }
    failed(Tone::Bad).unwrap_or_else(|| (format!("{}.", capitalised(&peak)), Tone::Plain))
}

/// A dry run that did not run out of memory: it fits, as far as that is certain.
fn fits(verdict: &Verdict, peak: &str) -> (String, Tone) {
    let is_uncertain = verdict.outcome == verdict::Outcome::Uncertain;
    if let Some(margin) = verdict.margin.as_ref().filter(|_| is_uncertain) {
        let fits = match margin.low() {
            _ if margin.given => "Does not leave the margin free",
            low if margin.room < low => "Probably does not fit",
            _ => "Probably fits",
        };
        let left = format!("{} of headroom", bytes(margin.room));
        let kept = format!("{} is kept free for CUDA overhead", bytes(margin.kept));
        (format!("{fits}: {left}, {kept}; {peak}."), Tone::Plain)
    } else if verdict.incomplete.is_some() {
        (
            format!("Fits as far as it was recorded: {peak}."),
            Tone::Plain,
        )
    } else if let Some(stopped) = &verdict.stopped {
        let fits = "Fits until it was stopped";
        (format!("{fits} {stopped}: {peak}."), Tone::Plain)
    } else if verdict.handled_ooms() > 0 {
        let times = plural(verdict.handled_ooms(), "time");
        let sentence =
            format!("Runs to its end; it ran out of memory {times} and went on: {peak}.");
        (sentence, Tone::Plain)
    } else {
        (format!("Fits: {peak}."), Tone::Good)
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The findings, each with the pane that shows its blocks.
fn findings(explanation: &Explanation, panes: &Panes<'_>) -> Vec<Finding> {
    let all = explanation.findings.iter().map(|finding| {
        let mut claims = explanation.claims.iter();
        let claim = claims.find(|claim| claim.code == finding.code);
        let whole = claim.is_some_and(|claim| claim.whole);
        let mut text = plain(finding.sentence.trim_end_matches('.'));
        if finding.known == Known::Inferred {
            text.push_str(" (inferred)");
        }
        Finding {
            code: finding.code.code.to_owned(),
            title: finding.code.title.to_owned(),
            text,
            pane: panes.number_of(explanation.process, explanation.device, whole),
            blocks: claim.map_or_else(Vec::new, |claim| claim.blocks.clone()),
            pins: [codes::FRAGMENTED, codes::STRANDED].contains(&finding.code),
        }
    });
    all.collect()
}

/// The answer in the words of `tonnage explain`, with the need and the headroom of `tonnage run`.
fn answer(explanation: &Explanation, verdict: Option<&Verdict>, track: &Holdings) -> Answer {
    let said = render_text(explanation);
    let fixes = said.fixes.into_iter();
    let margin = verdict.and_then(|verdict| margin_of(verdict, track));
    let mut lines = verdict
        .zip(margin)
        .map_or_else(Vec::new, |(verdict, margin)| distance(verdict, margin));
    let is_own_limit = explanation.failure_class == Some(codes::LIMIT);
    let explained = explanation.need.as_ref().map(|need| need.bytes);
    // The evidence is that of the figure above it.
    let is_known = |need: &&Need| need.known != "unknown" && explained == Some(need.bytes);
    let mut need = verdict
        .and_then(|verdict| verdict.need.as_ref())
        .filter(|need| is_known(need) && !is_own_limit);
    for (name, text) in said.lines {
        let is_need = name == "needs";
        lines.push(Fact { name, text });
        if let Some(need) = need.take_if(|_| is_need) {
            lines.push(fact(
                "",
                format!("{}: {}", bytes(need.bytes), evidence(need)),
            ));
        }
    }
    Answer {
        headline: said.headline,
        figures: verdict.zip(margin).map_or_else(
            || figures(explanation),
            |(verdict, margin)| figures_of_margin(verdict, margin),
        ),
        lines,
        fixes: fixes
            .map(|fix| Proposal {
                advice: fix.advice,
                paste: fix.paste,
                proof: fix.proof,
            })
            .collect(),
    }
}

/// The distance to the limits of the device that the page opens with, of a job that ran to its end there.
fn margin_of<'a>(verdict: &'a Verdict, track: &Holdings) -> Option<&'a Margin> {
    let is_about = |margin: &&Margin| margin.device == track.device && !verdict.is_measured();
    verdict.margin.as_ref().filter(is_about)
}

/// The need and the headroom of a job that ran to its end.
fn distance(verdict: &Verdict, margin: &Margin) -> Vec<Fact> {
    let least = if verdict.incomplete.is_some() || verdict.stopped.is_some() {
        "at least "
    } else {
        ""
    };
    let needs = margin.smallest.map(|smallest| {
        let how = "the smallest GPU on which every request is served (replayed)";
        fact("needs", format!("{least}{}: {how}", bytes(smallest)))
    });
    let lines = headroom::distance(margin, true).into_iter();
    let lines = lines.map(|(name, line)| fact(name, without_colour(&line)));
    needs.into_iter().chain(lines).collect()
}

fn fact(name: &str, text: String) -> Fact {
    Fact {
        name: name.to_owned(),
        text,
    }
}

/// The figures of a job that ran to its end.
fn figures_of_margin(verdict: &Verdict, margin: &Margin) -> Vec<Figure> {
    let figure = |name: &str, bytes: u64, bad: bool| Figure {
        name: name.to_owned(),
        bytes,
        bad,
    };
    let mut totals = verdict.devices_total.iter();
    let total = totals.find(|total| total.device == margin.device);
    // The cache of PyTorch is a part of what is in use, so the job may need less.
    let first = match margin.smallest {
        Some(smallest) => Some(figure("needs", smallest, false)),
        None => total.map(|total| figure("uses", total.most_in_use, false)),
    };
    let capacity = total.map(|total| figure("the GPU has", total.capacity, false));
    let least = if margin.given {
        margin.kept
    } else {
        margin.low()
    };
    // After an out-of-memory error the job requests less where there is less.
    let is_known = margin.after_ooms.is_none();
    let headroom = is_known.then(|| figure("headroom", margin.room, margin.room < least));
    [first, capacity, headroom].into_iter().flatten().collect()
}

/// The figures that decide.
fn figures(explanation: &Explanation) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut put = |name: &str, bytes: Option<u64>, bad: bool| {
        figures.extend(bytes.map(|bytes| Figure {
            name: name.to_owned(),
            bytes,
            bad,
        }));
    };
    let device = &explanation.on_device;
    let positive = |bytes: u64| Some(bytes).filter(|&bytes| bytes > 0);
    if let Some(need) = &explanation.need {
        let name = if need.is_at_least() {
            "the job needs at least"
        } else {
            "the job needs"
        };
        put(name, Some(need.bytes), false);
        put("with expandable segments", need.expandable, false);
        put("the GPU has", device.capacity, false);
        put("short by", positive(need.short), true);
    } else if let Some(request) = &explanation.request {
        put("requested", Some(request.bytes), false);
        put("free on the GPU", Some(request.free), false);
        put("the GPU has", device.capacity, false);
        put("short by at least", positive(request.short), true);
    } else {
        put("in use at most", explanation.peak_used, false);
        put("the GPU has", device.capacity, false);
    }
    figures
}

/// The results of other allocators for each process on each device; nothing for recordings that cannot be
/// replayed.
pub(super) fn replayed(job: Option<&Job>) -> Vec<TrackReport> {
    let replay =
        |job: &Job| progress::of_replays(|shown| job.replay_watched(&Alloc::usual(), false, shown));
    job.map_or_else(Vec::new, |job| replay(job).tracks)
}

/// The results of other allocators for one.
fn allocators(replayed: &[TrackReport], track: &Holdings) -> Vec<AllocatorRun> {
    let ours = replayed
        .iter()
        .find(|one| (one.process, one.device) == (track.process, track.device));
    let mut rows: Vec<AllocatorRun> = Vec::new();
    for result in ours.into_iter().flat_map(|one| &one.allocators) {
        // The recorded setting is often one of the usual ones.
        let again = rows.iter().any(|run| run.allocator == result.allocator);
        if !again {
            rows.push(run(result));
        }
    }
    rows
}

fn run(result: &Replayed) -> AllocatorRun {
    let outcome = match &result.outcome {
        Outcome::Completes => "completes".to_owned(),
        Outcome::OutOfMemory { request, .. } => {
            format!("out of memory at request {}", count(*request))
        }
        Outcome::OthersOutOfMemory { request, .. } => format!(
            "another library out of memory after request {}",
            count(*request)
        ),
        Outcome::Undefined { reason, .. } => format!("not known: {reason}"),
    };
    AllocatorRun {
        completes: result.completes(),
        outcome,
        recorded: result.recorded,
        exact: result.fidelity == Fidelity::Exact,
        peak_reserved: result.peak_reserved,
        peak_allocated: result.peak_allocated,
        cached_at_peak: result.cached_at_peak,
        smallest: result.smallest.as_ref().map(|found| found.bytes),
        calls: result.driver.sum(),
        retries: result.retries,
        series: Vec::new(),
        allocator: result.allocator.clone(),
    }
}

/// Facts that the recording does not contain.
fn unknown(held: &Held, track: &Holdings) -> Vec<String> {
    let told = unknown::sentences(&held.meta, &held.unmodelled);
    let mut sentences: Vec<String> = told.iter().take(50).map(|text| plain(text)).collect();
    if held.truncated {
        sentences
            .push("what came after the last whole batch, because the file was cut off".to_owned());
    }
    if !track.phases_told && track.phases.len() > 1 {
        sentences.push(
            "phases and steps as the program saw them; they are inferred from stacks".to_owned(),
        );
    }
    if track.unseen_births > 0 {
        sentences.push(format!(
            "when {} of the final blocks were handed out; they are shown from the start",
            count(track.unseen_births)
        ));
    }
    let said = |word: &str, sentences: &[String]| sentences.iter().any(|one| one.contains(word));
    if track.capacity.is_none() && !said("capacity", &sentences) {
        sentences.push("the capacity of the device".to_owned());
    }
    if track.context == 0 {
        sentences.push("the size of the context".to_owned());
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::run::render::verdict_for_tests as verdict;

    #[test]
    fn a_job_that_fits_has_the_need_and_the_headroom_of_the_run() {
        let mut verdict = verdict();
        let margin = verdict.margin.clone().unwrap();
        let named = |verdict: &Verdict, margin: &Margin| -> Vec<(String, u64, bool)> {
            let figures = figures_of_margin(verdict, margin).into_iter();
            figures.map(|one| (one.name, one.bytes, one.bad)).collect()
        };
        let gib = |name: &str, gib: u64, bad| (name.to_owned(), gib << 30, bad);
        let figures = [
            gib("needs", 31, false),
            gib("the GPU has", 40, false),
            gib("headroom", 9, false),
        ];
        assert_eq!(named(&verdict, &margin), figures);
        let lines = |verdict: &Verdict, margin: &Margin| -> Vec<(String, String)> {
            let lines = distance(verdict, margin).into_iter();
            lines.map(|fact| (fact.name, fact.text)).collect()
        };
        let [needs, headroom, overhead] = <[_; 3]>::try_from(lines(&verdict, &margin)).unwrap();
        let how = "the smallest GPU on which every request is served (replayed)";
        assert_eq!(needs, ("needs".to_owned(), format!("31.00 GiB: {how}")));
        let is_replayed = "9.00 GiB (replayed)".to_owned();
        assert_eq!(headroom, ("headroom".to_owned(), is_replayed));
        let range = "50.00 MiB to 350.00 MiB for kernel images (seen), not counted";
        assert_eq!(overhead, ("overhead".to_owned(), range.to_owned()));
        verdict.stopped = Some("after 3 steps".to_owned());
        assert!(lines(&verdict, &margin)[0].1.starts_with("at least 31.00"));
        // Less is left than CUDA uses at least; without a replay the need is not certain.
        let short = Margin {
            room: 9 << 20,
            smallest: None,
            ..margin.clone()
        };
        let figures = named(&verdict, &short);
        assert_eq!(figures[0].0, "uses");
        assert_eq!(figures[2], ("headroom".to_owned(), 9 << 20, true));
        assert!(
            lines(&verdict, &short)
                .iter()
                .all(|(name, _)| name != "needs")
        );
        // A job that handled an out-of-memory error requests less where there is less.
        let handled = Margin {
            after_ooms: Some(1),
            ..short
        };
        assert_eq!(named(&verdict, &handled).len(), 2);
        assert!(lines(&verdict, &handled)[0].1.starts_with("not known"));
    }

    #[test]
    fn the_need_of_a_run_on_a_gpu_or_of_another_device_is_not_shown() {
        let mut verdict = verdict();
        let mut track = Holdings::default();
        assert!(margin_of(&verdict, &track).is_some());
        track.device = 1;
        assert!(margin_of(&verdict, &track).is_none());
        track.device = 0;
        facts::MEASURED.clone_into(&mut verdict.capacity.known);
        assert!(margin_of(&verdict, &track).is_none());
    }

    #[test]
    fn what_a_job_takes_without_a_limit_is_called_so() {
        let rank = |rank| Rank {
            rank,
            used: 28 << 30,
            allocated: 27 << 30,
            capacity: Some(16 << 30),
            pane: None,
        };
        let line = |unlimited| groups(&[rank(0), rank(1)], unlimited).remove(0);
        let words = "28.00 GiB used at most without a limit, 27.00 GiB allocated";
        assert_eq!(line(true).text, words);
        assert_eq!(line(true).name, "ranks 0 and 1");
        assert!(!line(false).text.contains("limit"));
    }
}
