// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage explain`: one screen with the reason, and the pages of the findings.

use std::fmt::Write as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tonnage_analysis::explain::{
    Explanation, Finding, Fix, FixOutcome, Holder, Measure, Moment, Need, NextUse, NextUses,
    OnDevice, Outcome, Proof, UsedNext, codes, explain, failed_otherwise,
};
use tonnage_analysis::holdings::{
    self, CategoryBytes, HoldingsError, Known, Phase, Place, Recording as Holdings, own_folder,
};
use tonnage_analysis::replay::{Job, Options};
use tonnage_recording::{facts, meta};
use tonnage_text::{bytes, count, plural, shortened};

#[cfg(feature = "jobs")]
use tonnage_run::RunError;
#[cfg(feature = "jobs")]
use tonnage_run::changes::{self, Change};

use super::recording::{Recording, explained, job_folder, plain, unreadable_trace, without};
use crate::Surroundings;
use crate::options::{DetailOptions, ReplyOptions};
use crate::output::{
    Answer, BAD, DIM, Form, GOOD, HINT, Reply, hinted, ranks_named, without_colour,
};
use crate::wrapped::Screen;

/// Explain what fills the memory, and what would help
///
/// At most one screen: changes that lower the peak, the cause, the moment of the failure or of the
/// peak, memory by category, and its holders. A setting is proposed only after a replay of the
/// recording with it, and any other change only with its arithmetic (`--verbose`).
///
/// Exit code: 0 explained, 1 the recording ends out of memory, 2 it cannot be explained.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage explain train.tonnage
  tonnage explain snapshot.pickle --json
  ssh trainer cat snapshot.pickle | tonnage explain -
  tonnage explain TN102
  tonnage explain checkpoint-blocks")]
pub(crate) struct ExplainOptions {
    /// The recording, a PyTorch snapshot, `-` for standard input, the code of a finding or the name of a change.
    #[arg(value_name = "FILE|CODE|CHANGE")]
    pub(crate) what: PathBuf,
    /// Which rank of a job of several to explain [default: the one that failed, or with the largest peak].
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,
    #[command(flatten)]
    pub(crate) detail: DetailOptions,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// The explanation of a recording as text, for a command that has just written it.
#[cfg(feature = "jobs")]
pub(crate) fn explain_recording(
    path: &Path,
    surroundings: &Surroundings,
) -> Result<Option<String>> {
    let options = ExplainOptions {
        what: path.to_owned(),
        rank: None,
        detail: DetailOptions::default(),
        reply: ReplyOptions { json: false },
    };
    Ok(run(&options, Form::Text, surroundings)?.text)
}

pub(crate) fn run(
    options: &ExplainOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    let name = options.what.to_string_lossy();
    if name.len() == 5 && name.to_ascii_uppercase().starts_with("TN") && !options.what.exists() {
        return page(&name, form);
    }
    #[cfg(feature = "jobs")]
    if !options.what.exists() {
        match changes::find(&name) {
            Ok(change) => return page_of_change(change, form),
            Err(error @ RunError::UnknownChange { near: Some(_), .. }) => return Err(error.into()),
            Err(_) => {}
        }
    }
    let recording = Recording::open(&options.what)?;
    let mut first = read(&recording, &options.what)?;
    if let Some(rank) = options.rank {
        keep_rank(&mut first, rank)?;
    }
    let Some(explanation) = answer(&recording, &first)? else {
        let failure = failed_otherwise(&first).map(|how| plain(&how));
        let hint = match failure {
            Some(how) => format!("the job failed before it allocated any: {how}"),
            // A run has recorded all there was.
            None if first.meta.iter().any(|fact| fact.name == facts::ENDING) => {
                "the job used no GPU memory; `tonnage info` prints how it ended".to_owned()
            }
            None => {
                "record the allocator's history, or make a recording with `tonnage run`".to_owned()
            }
        };
        return Err(without(
            &options.what,
            "block of device memory",
            first.truncated,
            &hint,
        ));
    };
    let answer = match explanation.outcome {
        Outcome::OutOfMemory => Answer::No,
        Outcome::Ran => Answer::Yes,
    };
    // Files here are named from here, as a compiler would; those from elsewhere from their own folder.
    let here = Some(job_folder(surroundings)).filter(|here| here.parent().is_some());
    let here = here.map(|here| format!("{}/", here.display()));
    let own = find_user_folder(&first);
    let folders: Vec<&str> = here.iter().chain(&own).map(String::as_str).collect();
    let next = next(&options.what, &first, &explanation);
    let reply = Reply::new(form, answer, &explanation, |explanation| {
        if options.detail.quiet.quiet {
            Screen::unwrapped(&folders, &headline(explanation))
        } else {
            text(
                explanation,
                next.as_deref(),
                &folders,
                options.detail.verbose,
            )
        }
    });
    Ok(reply?)
}

/// The next useful command: a search for changes if a dry run ran out of memory, else the page of the recording.
fn next(file: &Path, read: &Holdings, explanation: &Explanation) -> Option<String> {
    let fact = |name: &str| read.fact(0, name).filter(|text| plain(text) == **text);
    let whole = fact(facts::GPU_CAPACITY_KNOWN).is_none_or(|known| known != "given");
    let alone =
        explanation.ranks.len() <= 1 && fact(facts::GPU_COUNT).is_none_or(|count| count == "1");
    let is_short = explanation.failure_class.is_some() && !is_own_limit(explanation);
    let mut causes = explanation.findings.iter();
    // A search cannot find the line that keeps memory; the page shows who holds it.
    let grows = causes.any(|finding| finding.code == codes::LEAK);
    // A setting that makes the whole job fit is above, ready to be pasted.
    let is_solved = explanation.fixes.iter().any(|fix| {
        fix.whole_job
            && fix.outcome == FixOutcome::Fits
            && fix.proof == Proof::Replayed
            && fix.paste.is_some()
    });
    // The words were joined without quotes, so only plain ones can be typed again.
    let is_plain = |command: &&str| {
        let mut words = command.split(' ');
        let known = |c: char| c.is_ascii_alphanumeric() || " _./=:,@%+-".contains(c);
        !words.any(|word| word.is_empty() || word == "-c") && command.chars().all(known)
    };
    if let (Some(gpu), Some(command)) = (fact(facts::GPU_ID), fact(meta::COMMAND).filter(is_plain))
        && is_short
        && whole
        && alone
        && !grows
        && !is_solved
    {
        return Some(format!("tonnage fit --gpu {gpu} -- {command}"));
    }
    let file = file
        .to_str()
        .filter(|name| *name != "-" && plain(name) == *name)?;
    let file = shlex::try_quote(file).ok()?;
    Some(format!("tonnage report {file}"))
}

/// Leaves out all processes but those of one rank, which must be there.
pub(super) fn keep_rank(read: &mut Holdings, rank: u32) -> Result<()> {
    let ranks = read.ranks();
    if ranks.contains(&rank) {
        read.keep_rank(rank);
        return Ok(());
    }
    let hint = if ranks.is_empty() {
        "its processes have no ranks; without --rank the largest is taken".to_owned()
    } else {
        format!("it has {}", ranks_named(&ranks))
    };
    Err(hinted(
        format!("the recording shows no memory of rank {rank}"),
        hint,
    ))
}

/// The folder of the user's code, with a slash.
fn find_user_folder(read: &Holdings) -> Option<String> {
    let blocks = read.worst().map_or(&[][..], |track| &track.blocks);
    let folder = own_folder(&read.stacks, blocks.iter().filter_map(|block| block.stack));
    (folder.len() > 1).then(|| format!("{folder}/"))
}

/// Explains a recording, with the whole job behind it if there is one; none if it shows no block.
fn answer(recording: &Recording, first: &Holdings) -> Result<Option<Explanation>> {
    let whole = recording.whole()?.map(holdings::read);
    // An unreadable part of the second recording counts as missing: the first explains itself.
    let whole = whole.and_then(Result::ok);
    // A recording that cannot be replayed can be explained all the same, without settings.
    let job = Job::load(|| recording.furthest(), &Options::default()).ok();
    Ok(explain_with_gpus(first, whole.as_ref(), job.as_ref()))
}

/// The explanation, with the GPUs of the catalogue that hold the job.
pub(crate) fn explain_with_gpus(
    first: &Holdings,
    whole: Option<&Holdings>,
    job: Option<&Job>,
) -> Option<Explanation> {
    let mut explanation = explain(first, whole, job);
    if let Some(need) = explanation.as_mut().and_then(|one| one.need.as_mut()) {
        let bytes = need.bytes.saturating_add(need.uncounted);
        need.gpus = super::gpus::that_hold(bytes, need.on_device.context.unwrap_or(0));
    }
    if let Some(explanation) = &mut explanation {
        leave_out_devices(explanation);
    }
    explanation
}

/// A larger GPU is not proposed for memory that grows, nor where the rest of the job is not known.
fn leave_out_devices(explanation: &mut Explanation) {
    let grows = explanation
        .findings
        .iter()
        .any(|finding| finding.code == codes::LEAK);
    let is_unknown = explanation.need.is_none();
    // Another device for each process is not a larger one.
    let is_larger = |fix: &Fix| fix.measure == Measure::Device && fix.code == codes::SHORT.code;
    explanation
        .fixes
        .retain(|fix| !(is_larger(fix) && (grows || is_unknown)));
}

/// Why a job does not fit, in a few words.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Cause {
    /// `TN204`.
    pub(crate) code: &'static str,
    /// The title.
    pub(crate) title: &'static str,
    /// The finding, in one sentence.
    pub(crate) sentence: String,
    /// The first change with which the whole job fits, and how that was proved; none if no such change was found.
    pub(crate) fix: Option<String>,
}

/// The cause that `tonnage explain` names first; none if it finds nothing but that memory is short.
pub(crate) fn cause(path: &Path) -> Option<Cause> {
    let recording = Recording::open(path).ok()?;
    let first = read(&recording, path).ok()?;
    let explanation = answer(&recording, &first).ok()??;
    let fix = sufficient_fix(&explanation);
    let found = explanation.findings.into_iter().next()?;
    (found.code != codes::SHORT).then_some(Cause {
        code: found.code.code,
        title: found.code.title,
        sentence: found.sentence,
        fix,
    })
}

/// The first change with which the whole job fits on this GPU.
fn sufficient_fix(explanation: &Explanation) -> Option<String> {
    let is_seen_whole = explanation.need.as_ref().is_some_and(|need| need.complete);
    let mut fixes = explanation.fixes.iter();
    let fix = fixes.find(|fix| {
        fix.whole_job && fix.outcome == FixOutcome::Fits && fix.measure != Measure::Device
    })?;
    let paste = pasted(fix).map_or_else(String::new, |paste| format!(": {paste}"));
    is_seen_whole.then(|| {
        let proof = proved(fix);
        format!(
            "{}{paste} ({proof}: the whole job then fits)",
            plain(&fix.advice)
        )
    })
}

/// Reads the lifetime of every block.
pub(crate) fn read(recording: &Recording, path: &Path) -> Result<Holdings> {
    holdings::read(recording.trace()?).map_err(|error| match error {
        HoldingsError::Read(error) => unreadable_trace(path, &error),
        error => explained(&error, "check the file; `tonnage info` prints its contents"),
    })
}

/// The meaning of a finding.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Meaning {
    /// `TN101`.
    code: &'static str,
    /// The meaning, the rule that recognises it, and the fix.
    page: &'static str,
    /// The title.
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

/// The effect of a change to a program.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ChangePage {
    /// The name.
    name: &'static str,
    /// The title.
    title: &'static str,
    /// The effect on the mathematics: nothing, rounding, or the algorithm.
    maths: &'static str,
    /// To what it applies.
    applies: &'static str,
    /// The cost in time.
    cost: &'static str,
    /// The effect, the saving, and the change written by hand.
    page: &'static str,
    /// Packages that the program's Python must have.
    packages: &'static [String],
}

#[cfg(feature = "jobs")]
fn page_of_change(change: &'static Change, form: Form) -> Result<Reply> {
    let page = ChangePage {
        name: &change.name,
        title: &change.title,
        maths: change.maths.as_str(),
        applies: &change.applies,
        cost: &change.cost,
        page: &change.page,
        packages: &change.packages,
    };
    Ok(Reply::new(form, Answer::Yes, &page, |page| {
        format!(
            "{GOOD}{}{GOOD:#}  {}\n\n{}\n\nApplies to: {}.\nCosts: {}\nTry it: tonnage run --gpu GPU --change {} -- python train.py",
            page.name, page.title, page.page, page.applies, page.cost, page.name
        )
    })?)
}

/// The most of each that one screen shows.
const HOLDERS: usize = 3;
const FIXES: usize = 3;
const CAUSES: usize = 2;
const GPUS: usize = 4;
const GAPS: usize = 2;
/// Lines of a screen, unless everything is wanted.
const LINES: usize = 25;

/// Where titled lines go: to the terminal, or to a page.
trait Lines {
    fn line(&mut self, title: &str, text: &str);
}

impl Lines for Screen<'_> {
    fn line(&mut self, title: &str, text: &str) {
        Screen::line(self, title, text);
    }
}

impl Lines for Vec<(String, String)> {
    fn line(&mut self, title: &str, text: &str) {
        self.push((title.to_owned(), without_colour(text)));
    }
}

/// The text of the terminal, without colour, for the page of `tonnage report`.
pub(crate) struct Said {
    pub(crate) headline: String,
    /// Title and text; a line without a title belongs to the one before.
    pub(crate) lines: Vec<(String, String)>,
    pub(crate) fixes: Vec<Proposal>,
}

/// A proposal as texts.
pub(crate) struct Proposal {
    pub(crate) advice: String,
    /// The text to copy.
    pub(crate) paste: Option<String>,
    pub(crate) proof: String,
}

pub(crate) fn render_text(explanation: &Explanation) -> Said {
    let mut lines = Vec::new();
    facts(&mut lines, explanation, true, HOLDERS);
    let proposal = |fix: &Fix| Proposal {
        advice: plain(&fix.advice),
        paste: pasted(fix),
        proof: proof(fix, explanation),
    };
    Said {
        headline: without_colour(&headline(explanation)),
        lines,
        fixes: explanation.fixes.iter().take(FIXES).map(proposal).collect(),
    }
}

fn text(explanation: &Explanation, next: Option<&str>, folders: &[&str], verbose: bool) -> String {
    let mut screen = Screen::new(folders);
    screen.title(&headline(explanation));
    let mut fixes = explanation.fixes.iter();
    if let Some(fix) = fixes.next() {
        proposed(&mut screen, "fix", fix, explanation, verbose);
    } else if explanation.outcome == Outcome::OutOfMemory {
        let what = if is_own_limit(explanation) {
            "a larger limit, or none: torch.cuda.set_per_process_memory_fraction, PYTORCH_CUDA_ALLOC_CONF"
        } else {
            "no change could be proved on this recording"
        };
        screen.line("fix", what);
    }
    let mut rest = Screen::new(folders);
    for holders in (1..=HOLDERS).rev() {
        rest = Screen::new(folders);
        facts(&mut rest, explanation, verbose, holders);
        ending(&mut rest, explanation, next);
        // A line is left for a mention of other changes.
        if verbose || screen.lines() + rest.lines() < LINES {
            break;
        }
    }
    for (index, fix) in fixes.take(FIXES - 1).enumerate() {
        let mut other = Screen::new(folders);
        proposed(&mut other, "or", fix, explanation, verbose);
        if !verbose && screen.lines() + other.lines() + rest.lines() > LINES {
            let left = explanation.fixes.len() - index - 1;
            screen.line("or", &format!("{left} more with --verbose"));
            break;
        }
        screen.append(&other);
    }
    screen.append(&rest);
    screen.finish()
}

/// Gaps of the recording, and the next command.
fn ending(screen: &mut Screen<'_>, explanation: &Explanation, next: Option<&str>) {
    if !explanation.unknown.is_empty() {
        // Sizes come first, and all of them: figures rest on them.
        let shown = explanation.unknown_sizes.len().max(GAPS);
        let gaps = explanation.unknown.iter().take(shown);
        let mut unknown: Vec<String> = gaps.map(|gap| plain(gap)).collect();
        let more = explanation.unknown.len().saturating_sub(shown);
        if more > 0 {
            unknown.push(format!("and {more} more, see --json"));
        }
        screen.line("not known", &unknown.join("; "));
    }
    // Without a proved proposal, the next step is an experiment.
    let is_experiment = explanation.fixes.is_empty()
        && explanation.outcome == Outcome::OutOfMemory
        && !is_own_limit(explanation);
    if is_experiment && explanation.failure_class == Some(codes::SHORT) {
        let next =
            "run the job with `tonnage run`, without --stop-at-oom, to see how much it needs";
        screen.line("next", next);
    } else if is_experiment {
        screen.line("next", "not verified:");
        let paste = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
        screen.paste(&format!("{HINT}{paste}{HINT:#}"));
        screen.line(
            "",
            "try it with `tonnage run`, or `tonnage fit` for changes of the program",
        );
    } else if let Some(next) = next {
        screen.command("next", &format!("{HINT}{next}{HINT:#}"));
    }
}

/// The causes, the need, the moment, and the memory at it. A screen without `verbose` leaves out figures that the cause
/// does not rest on, and a screen with fewer than the usual holders leaves out the next uses.
fn facts(screen: &mut impl Lines, explanation: &Explanation, verbose: bool, most: usize) {
    because(screen, explanation);
    if is_own_limit(explanation) {
        if let Some(need) = explanation.need.as_ref().filter(|need| !need.is_unknown()) {
            let least = if need.is_at_least() { "at least " } else { "" };
            let text = format!(
                "{least}{} without the limit that the script sets itself",
                bytes(need.bytes)
            );
            screen.line("needs", &text);
        }
    } else if let Some(need) = &explanation.need {
        needs(screen, need, verbose);
    } else if let Some(text) = at_least(explanation) {
        screen.line("needs", &text);
    }
    about(screen, explanation);
    let most_allocated = match &explanation.fullest {
        Some(fullest) => {
            let row = count(u64::from(fullest.row) + 1);
            let rows = count(u64::from(explanation.moment.rows));
            let there = on_device(&fullest.on_device);
            screen.line("at peak", &format!("event {row} of {rows}: {there}"));
            "most is allocated at another moment: "
        }
        None => "",
    };
    screen.line("when", &format!("{most_allocated}{}", when(explanation)));
    // The need of a job that was seen whole is explained, and not its state when it failed.
    let shown = explanation.need.as_ref();
    let shown = shown.filter(|need| is_short(explanation) && !need.is_unknown());
    if verbose || shown.is_none() {
        let failed = explanation.outcome == Outcome::OutOfMemory;
        let title = if failed { "at failure" } else { "on device" };
        screen.line(title, &on_device(&explanation.on_device));
    }
    let is_fragmented = explanation
        .failure_class
        .is_some_and(|class| class != codes::SHORT)
        || explanation.slack.hard + explanation.slack.soft >= explanation.on_device.allocated / 10;
    if verbose || is_fragmented {
        unused(screen, explanation);
    }
    let (categories, rounding, holders) = match shown {
        Some(need) => (&need.categories, 0, &need.holders),
        None => (
            &explanation.categories,
            explanation.slack.rounding,
            &explanation.holders,
        ),
    };
    if let Some(need) = shown {
        let whole = on_device(&need.on_device);
        screen.line(
            "at peak",
            &format!("{whole}, when most is allocated in the whole job without a limit"),
        );
    }
    by_kind(screen, categories, rounding, verbose);
    for (index, holder) in holders.iter().take(most).enumerate() {
        screen.line(
            if index == 0 { "held by" } else { "" },
            &describe_holder(holder),
        );
    }
    // A single part divides nothing.
    let is_shown = |uses: &&NextUses| verbose || (uses.sums.len() > 1 && most == HOLDERS);
    if let Some(uses) = explanation.next_uses.as_ref().filter(is_shown) {
        screen.line("next use", &used_next(uses));
        if let Some(never) = never_used(uses) {
            screen.line("", &never);
        }
        if verbose {
            screen.line("", &least(uses));
        }
    }
    if let Some(second) = explanation
        .second_peak
        .as_ref()
        .filter(|_| verbose && explanation.outcome == Outcome::Ran)
    {
        let phase = doing(second.phase);
        screen.line(
            "next peak",
            &format!("{} in step {}, {phase}", bytes(second.bytes), second.step),
        );
    }
}

/// The rank and the GPU that are explained, and errors that the script handled.
fn about(screen: &mut impl Lines, explanation: &Explanation) {
    if let Some(rank) = explanation.rank.filter(|_| explanation.ranks.len() > 1) {
        let what = match explanation.outcome {
            Outcome::OutOfMemory => "which failed,",
            Outcome::Ran => "with the largest peak",
        };
        let all = ranks_named(&explanation.ranks);
        screen.line(
            "of",
            &format!("rank {rank}, {what} of {all}; --rank N explains another"),
        );
    } else if let Some(rank) = explanation.rank {
        let of = explanation.world_size.map_or_else(String::new, |size| {
            format!(" of {}; the others did not run", count(u64::from(size)))
        });
        screen.line("of", &format!("rank {rank}{of}"));
    }
    if let Some(shared) = &explanation.shared {
        let text = format!(
            "GPU {}, which {} processes use, with {} in use together at most",
            explanation.device,
            shared.processes,
            bytes(shared.most_in_use)
        );
        screen.line("on", &text);
    } else if explanation.devices > 1 && explanation.rank.is_none() {
        let text = format!(
            "GPU {}, with the largest peak of {} GPUs",
            explanation.device, explanation.devices
        );
        screen.line("on", &text);
    }
    if let Some(handled) = &explanation.handled {
        let after = bytes(handled.allocated_after);
        let which = if handled.before_last {
            "; what follows is of an attempt before the last of them"
        } else {
            ""
        };
        let times = plural(handled.times, "time");
        screen.line(
            "handled",
            &format!(
                "ran out of memory {times}, went on, and then had at most {after} allocated{which}"
            ),
        );
    }
}

/// The causes; differences between ranks stand beside them.
fn because(screen: &mut impl Lines, explanation: &Explanation) {
    // The headline covers a shortage without a cause.
    let causes = explanation
        .findings
        .iter()
        .filter(|finding| finding.code != codes::SHORT || explanation.findings.len() == 1);
    let (ranks, causes): (Vec<_>, Vec<_>) =
        causes.partition(|finding| finding.code == codes::IMBALANCE);
    let shown = causes.into_iter().take(CAUSES).chain(ranks);
    for (index, finding) in shown.enumerate() {
        screen.line(
            if index == 0 { "because" } else { "" },
            &describe_finding(finding),
        );
    }
}

/// Whether the script's own limit refused the request.
fn is_own_limit(explanation: &Explanation) -> bool {
    explanation.failure_class == Some(codes::LIMIT)
}

fn is_short(explanation: &Explanation) -> bool {
    explanation.failure_class == Some(codes::SHORT)
}

/// The first line.
fn headline(explanation: &Explanation) -> String {
    let cause = explanation.findings.first();
    let named = |finding: &Finding| {
        let headline = finding.headline.as_ref();
        let headline = headline.map_or_else(String::new, |text| format!(": {}", plain(text)));
        format!("{} ({}){headline}", finding.code.title, finding.code.code)
    };
    if explanation.outcome == Outcome::OutOfMemory {
        let text = match cause {
            Some(cause) if cause.code == codes::SHORT => {
                let holds = cause.headline.as_ref();
                let holds = holds.map_or_else(String::new, |text| format!(": {}", plain(text)));
                format!("{}{holds}", short(explanation))
            }
            Some(cause) => named(cause),
            None => "a request was refused".to_owned(),
        };
        return format!("{BAD}out of memory{BAD:#}: {text}");
    }
    let device = &explanation.on_device;
    let of = device
        .capacity
        .map_or_else(String::new, |capacity| format!(" of {}", bytes(capacity)));
    // Findings are about the moment at which most is allocated.
    let allocated = match &explanation.fullest {
        Some(_) => format!("; {} allocated at most", bytes(device.allocated)),
        None => String::new(),
    };
    let cause = cause.map_or_else(String::new, |cause| {
        let joint = if allocated.is_empty() { ";" } else { ":" };
        format!("{joint} {}", named(cause))
    });
    let peak = explanation.peak_used.unwrap_or(0).max(device.used());
    format!(
        "{GOOD}peak{GOOD:#} {} in use{of}{allocated}{cause}",
        bytes(peak)
    )
}

/// The headline of a job of which nothing else was found.
fn short(explanation: &Explanation) -> String {
    let code = codes::SHORT.code;
    match (&explanation.need, &explanation.request) {
        (Some(need), _) => {
            let least = if need.is_at_least() { "at least " } else { "" };
            format!(
                "the job needs {least}{} more than the GPU has ({code})",
                bytes(need.short)
            )
        }
        (None, Some(request)) if request.short > 0 => format!(
            "the job needs at least {} more than the GPU has ({code})",
            bytes(request.short)
        ),
        _ => format!("{} ({code})", codes::SHORT.title),
    }
}

fn needs(screen: &mut impl Lines, need: &Need, verbose: bool) {
    let least = if need.is_at_least() { "at least " } else { "" };
    let more = match (need.on_device.capacity, need.expandable) {
        (Some(capacity), Some(packed)) if packed <= capacity && need.bytes > capacity => format!(
            " as its blocks are placed, {} with expandable segments; the GPU has {}",
            bytes(packed),
            bytes(capacity)
        ),
        (Some(capacity), _) if need.short > 0 => format!(
            ", {} more than the GPU has ({})",
            bytes(need.short),
            bytes(capacity)
        ),
        _ => String::new(),
    };
    let over = need.over.filter(|_| verbose);
    let over = over.map_or_else(String::new, |over| {
        format!(
            "; {} of {} {} above it",
            count(over.requests),
            plural(over.of, "request"),
            if over.requests == 1 { "lies" } else { "lie" }
        )
    });
    if need.is_unknown() {
        let text = format!(
            "more than the GPU has ({}): how much more, the run without a limit did not show",
            bytes(need.bytes)
        );
        screen.line("needs", &text);
        return;
    }
    let needed = format!("{least}{}{more}{over}", bytes(need.bytes));
    let names: Vec<&str> = need.gpus.iter().take(GPUS).map(String::as_str).collect();
    let rest = need.gpus.len().saturating_sub(GPUS);
    let text = match (names.as_slice(), rest) {
        ([], _) => "no GPU of the catalogue holds it".to_owned(),
        ([first, ..], _) if need.is_at_least() => {
            format!("the smallest GPU of the catalogue that may hold it is {first}")
        }
        (names, 0) => format!("fits on {}", names.join(", ")),
        (names, rest) => format!("fits on {} and {rest} more", names.join(", ")),
    };
    screen.line("needs", &format!("{needed}; {text}"));
}

/// The need of a job of which only the beginning was seen.
fn at_least(explanation: &Explanation) -> Option<String> {
    let short = explanation.request.as_ref()?.short;
    let capacity = explanation.on_device.capacity?;
    (short > 0).then(|| {
        format!(
            "at least {}, {} more than the GPU has: so much up to this request, the rest was not seen",
            bytes(capacity + short),
            bytes(short)
        )
    })
}

/// The activity of the program, in words.
fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Load => "loading",
        Phase::Forward => "forward pass",
        Phase::Backward => "backward pass",
        Phase::Step => "optimizer's step",
        Phase::Eval => "pass without gradients",
        Phase::Save => "saving or loading a checkpoint",
        Phase::Other => "between passes",
    }
}

fn when(explanation: &Explanation) -> String {
    let asked = explanation
        .request
        .as_ref()
        .map_or_else(String::new, |request| {
            format!("requesting {}, ", bytes(request.bytes))
        });
    let moment = &explanation.moment;
    // A plain script has no steps.
    let plain_script = moment.phase == Phase::Load && moment.phase_known == Known::Inferred;
    let step = if plain_script {
        String::new()
    } else {
        format!("step {}, ", moment.step)
    };
    format!(
        "{asked}{step}{}; event {} of {}",
        whereabouts(moment, plain_script),
        count(u64::from(moment.row) + 1),
        count(u64::from(moment.rows)),
    )
}

fn whereabouts(moment: &Moment, plain_script: bool) -> String {
    let module = moment
        .module
        .as_ref()
        .map_or_else(String::new, |module| format!(" in {}", plain(module)));
    let place = match (&moment.place, &moment.called_at) {
        (Some(place), _) => format!(" at {}", located(place)),
        (None, Some(place)) => format!(" called at {}", located(place)),
        (None, None) => " without a Python line".to_owned(),
    };
    let doing = if plain_script {
        ""
    } else {
        doing(moment.phase)
    };
    format!("{doing}{module}{place}").trim_start().to_owned()
}

fn on_device(device: &OnDevice) -> String {
    let mut parts = vec![
        format!("{} allocated", bytes(device.allocated)),
        format!(
            "{} {}",
            bytes(device.cached),
            if device.own_allocator {
                "kept by tonnage's allocator"
            } else {
                "cached by PyTorch"
            }
        ),
    ];
    if let Some(context) = device.context {
        parts.push(format!("{} context", bytes(context)));
    }
    if let Some(outside) = device.outside.filter(|&outside| outside > 0) {
        parts.push(format!("{} outside PyTorch", bytes(outside)));
    }
    if device.others > 0 {
        parts.push(format!("{} other processes", bytes(device.others)));
    }
    parts.join(" + ")
}

/// When the memory of the peak is used next.
fn used_next(uses: &NextUses) -> String {
    let part = |part: &UsedNext| {
        let when = match part.next_use {
            NextUse::Now => "used now",
            NextUse::ThisStep => "later in this step",
            NextUse::LaterStep => "in a later step",
            NextUse::Later => "later",
            NextUse::NotSeen => "not used again in what was recorded",
            NextUse::Never => "never used again",
            NextUse::Unknown => "without a record of uses",
        };
        format!("{} {when}", bytes(part.bytes))
    };
    let parts: Vec<String> = uses.sums.iter().map(part).collect();
    format!("of {}: {}", bytes(uses.bytes), parts.join(" · "))
}

/// The two bounds: what an ideal program would need, and what no program can avoid.
fn least(uses: &NextUses) -> String {
    let ideal = format!(
        "{} if each block were freed after its last use",
        bytes(uses.ideal_peak)
    );
    match uses.floor {
        Some(floor) => format!("{ideal}; one launch alone uses {}", bytes(floor)),
        None => ideal,
    }
}

/// The largest part that is never used again, where it is a tenth of the peak.
fn never_used(uses: &NextUses) -> Option<String> {
    let mut parts = uses.parts.iter();
    let part = parts.find(|part| part.next_use == NextUse::Never)?;
    let made = part.place.as_ref();
    let made = made.map_or_else(String::new, |place| format!(" {}", located(place)));
    let named = part.held_by.as_ref().filter(|held| held.is_named());
    let held = named.map_or_else(String::new, |held| {
        format!(", held by {}", plain(&held.describe_holder()))
    });
    (part.bytes >= uses.bytes / 10).then(|| {
        let blocks = plural(part.blocks, "block");
        format!("never again: {} in {blocks}{made}{held}", bytes(part.bytes))
    })
}

fn unused(screen: &mut impl Lines, explanation: &Explanation) {
    let slack = &explanation.slack;
    let mut parts = Vec::new();
    if slack.hard > 0 {
        parts.push(format!(
            "{} in {} (largest {})",
            bytes(slack.hard),
            plural(slack.holes, "gap"),
            bytes(slack.largest_hole)
        ));
    }
    if slack.soft > 0 {
        parts.push(format!("{} in free segments", bytes(slack.soft)));
    }
    if slack.stream > 0 {
        parts.push(format!("{} of other streams", bytes(slack.stream)));
    }
    if !parts.is_empty() {
        screen.line("unused", &parts.join(", "));
    }
}

fn by_kind(screen: &mut impl Lines, categories: &[CategoryBytes], rounding: u64, verbose: bool) {
    let mut sorted: Vec<_> = categories.iter().collect();
    sorted.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let parts = sorted.iter().map(|part| {
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
    if rounding > 0 {
        parts.push(format!("rounding {}", bytes(rounding)));
    }
    if parts.is_empty() {
        return;
    }
    let mut text = parts.join(" · ");
    if parts.iter().any(|part| part.starts_with(['~', '≈'])) {
        let is_partly = parts.iter().any(|part| part.starts_with('≈'));
        let partly = if is_partly { "≈ in part; " } else { "" };
        let legend = if verbose {
            format!(
                "~ inferred from phase, lifetime or stack; {partly}the others reported by torch"
            )
        } else {
            let partly = partly.trim_end_matches("; ");
            let joint = if partly.is_empty() { "" } else { "; " };
            format!("~ inferred{joint}{partly}")
        };
        let _ = write!(text, " {DIM}({legend}){DIM:#}");
    }
    screen.line("by kind", &text);
}

fn describe_holder(holder: &Holder) -> String {
    let made = match (&holder.place, &holder.backward_of) {
        (Some(place), _) => located(place),
        (None, Some(place)) => format!("backward pass of {}", located(place)),
        (None, None) => "no Python line".to_owned(),
    };
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
    let by = match &holder.held_by {
        Some(held) if !held.name.is_empty() => format!("{}, ", plain(&held.describe_holder())),
        _ => String::new(),
    };
    format!(
        "{:>11} {:>5} × {by}{mark}{}{module} {made}{shape}",
        bytes(holder.bytes),
        count(holder.blocks),
        holder.category.name(),
    )
}

fn located(place: &Place) -> String {
    format!("{}:{}", plain(shortened(&place.file)), place.line)
}

fn describe_finding(finding: &Finding) -> String {
    let guess = match finding.known {
        Known::Exact => "",
        Known::Inferred => " (inferred)",
    };
    format!(
        "{HINT}{}{HINT:#} {}{guess}",
        finding.code.code,
        plain(&finding.sentence)
    )
}

fn proposed(
    screen: &mut Screen<'_>,
    title: &str,
    fix: &Fix,
    explanation: &Explanation,
    verbose: bool,
) {
    screen.line(title, &plain(&fix.advice));
    if let Some(paste) = pasted(fix) {
        screen.paste(&format!("{HINT}{paste}{HINT:#}"));
    }
    let text = if verbose {
        proof(fix, explanation)
    } else {
        effect(fix, explanation)
    };
    screen.line("", &text);
}

/// The line to paste; a device is not a line.
fn pasted(fix: &Fix) -> Option<String> {
    let paste = fix.paste.as_ref();
    let paste = paste.filter(|_| fix.code != codes::SHORT.code);
    paste.map(|paste| plain(paste))
}

/// The outcome of a proposal, of a job that failed.
fn consequence(fix: &Fix, explanation: &Explanation) -> String {
    if explanation.outcome != Outcome::OutOfMemory {
        return String::new();
    }
    let only_if = fix.room.map_or_else(String::new, |room| {
        format!(
            " only if what is not counted takes less than {}",
            bytes(room)
        )
    });
    if fix.code == codes::SHORT.code && fix.measure == Measure::Device {
        return match fix.outcome {
            FixOutcome::FitsOnlyIf => "; plus what is not counted".to_owned(),
            _ => String::new(),
        };
    }
    // The run without a limit may have been ended before the job was.
    let seen_whole = explanation.need.as_ref().is_none_or(|need| need.complete);
    match (fix.whole_job, fix.outcome) {
        (true, FixOutcome::Fits | FixOutcome::FitsOnlyIf) if !seen_whole => {
            format!("; as far as it was run, the job then fits{only_if}")
        }
        (true, FixOutcome::Fits | FixOutcome::FitsOnlyIf) => {
            format!("; the whole job then fits{only_if}")
        }
        (true, FixOutcome::DoesNotFit) => "; the job still needs more than the GPU has".to_owned(),
        (true, _) => "; whether the job then fits is not certain".to_owned(),
        (false, FixOutcome::DoesNotFit) => "; this request still fails".to_owned(),
        (false, _) => format!("; gets past this request{only_if}, what follows is unknown"),
    }
}

/// The arithmetic of a proposal, how it was proved, and its consequence.
fn proof(fix: &Fix, explanation: &Explanation) -> String {
    let about = if fix.estimate { "about " } else { "" };
    let shown = format!("{about}{}", plain(&fix.shown));
    concluded(&shown, fix, explanation)
}

/// The peak before and after, where the arithmetic is a sum; the rest as `proof`.
fn effect(fix: &Fix, explanation: &Explanation) -> String {
    let is_sum = fix.proof == Proof::Computed
        && fix.measure == Measure::Allocated
        && fix.shown.starts_with(&bytes(fix.peak_before));
    if !is_sum {
        return proof(fix, explanation);
    }
    let about = if fix.estimate { "about " } else { "" };
    let least = bytes(fix.peak_after_least);
    let most = bytes(fix.peak_after);
    let after = if least == most {
        most
    } else {
        format!("between {least} and {most}")
    };
    let shown = format!(
        "lowers the peak from {} to {about}{after} allocated",
        bytes(fix.peak_before)
    );
    concluded(&shown, fix, explanation)
}

fn concluded(shown: &str, fix: &Fix, explanation: &Explanation) -> String {
    let then = consequence(fix, explanation);
    let changes = if fix.changes_result {
        "; changes what the program computes"
    } else {
        ""
    };
    format!("{shown} [{}]{then}{changes}", proved(fix))
}

fn proved(fix: &Fix) -> &'static str {
    match fix.proof {
        Proof::Replayed => "replayed",
        Proof::Computed => "computed",
    }
}
