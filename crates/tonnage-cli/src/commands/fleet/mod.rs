// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fleet`: forecasts in a cluster. `page` has the report as a page, `watch` serves what jobs take.

mod page;
mod watch;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tonnage_forecast::Store;
use tonnage_forecast::admit::Action;
use tonnage_forecast::fleet::{Report, report};
use tonnage_forecast::kubernetes::Account;
use tonnage_forecast::metrics::{self, Exposition, Kind};
use tonnage_forecast::slurm::{Settings, Submission, allocator_settings, submission};

use super::recording::{Input, Output, named, plain};
use crate::arguments::{FleetCommand, FleetMetrics, FleetOptions, FleetReport, SlurmOptions};
use crate::output::{Answer, BAD, Form, Reply, WARN, bytes, count, hinted, parse_bytes, plural};

/// Larger files are no batch scripts and no settings.
const MAX_SCRIPT: u64 = 16 << 20;
/// Larger documents are no account: that of 10,000 GPUs has some 20 MB.
const MAX_ACCOUNT: u64 = 1 << 30;
/// Machines and teams that the text lists; the JSON has all.
const LISTED: usize = 12;

pub(crate) fn run(options: &FleetOptions, form: Form) -> Result<Reply> {
    match &options.what {
        FleetCommand::Report(options) => report_on(options, form),
        FleetCommand::Metrics(options) => metrics_of(options),
        FleetCommand::Watch(options) => watch::run(options),
        FleetCommand::Slurm(options) => slurm(options),
    }
}

fn report_on(options: &FleetReport, form: Form) -> Result<Reply> {
    let target = options.html.as_deref();
    let output = target
        .map(|target| Output::create(target, options.force))
        .transpose()?;
    let account = account_of(&options.files)?;
    let sums = match &options.store.store {
        Some(folder) => Some(super::forecast::ledger_of(&Store::new(folder))?),
        None => None,
    };
    let reported = report(&account, sums.as_ref());
    if let Some(output) = output {
        output.write(page::page(&reported).as_bytes())?;
        if target == Some(Path::new("-")) {
            return Ok(Reply::silent(Answer::Yes));
        }
    }
    Ok(Reply::new(form, Answer::Yes, &reported, text)?)
}

fn metrics_of(options: &FleetMetrics) -> Result<Reply> {
    if options.files.is_empty() && options.store.store.is_none() {
        return Err(hinted(
            "there is nothing to tell",
            "name the folder of forecasts with --store, or a file that kubectl printed",
        ));
    }
    let mut exposition = Exposition::default();
    if let Some(folder) = &options.store.store {
        let (forecasts, observed) = super::forecast::contents_of(&Store::new(folder))?;
        metrics::of_store(&mut exposition, &forecasts.found, &observed.found);
        let damaged = forecasts.damaged.len() + observed.damaged.len();
        exposition
            .metric(
                "tonnage_store_damaged_files",
                Kind::Gauge,
                "Files of the store that could not be read.",
            )
            .add(&[], damaged);
    }
    if !options.files.is_empty() {
        metrics::of_report(&mut exposition, &report(&account_of(&options.files)?, None));
    }
    let mut reply = Reply::silent(Answer::Yes);
    if options.otlp {
        watch::push(&exposition)?;
    } else {
        reply.text = Some(exposition.to_text().trim_end().to_owned());
    }
    Ok(reply)
}

/// The account that kubectl printed to these files.
fn account_of(files: &[PathBuf]) -> Result<Account> {
    let mut documents = Vec::new();
    for path in files {
        let json = at_most(MAX_ACCOUNT, Input::new(path)?.open()?)
            .with_context(|| format!("cannot read {}", named(path)))?;
        documents.push(json.ok_or_else(|| {
            hinted(
                format!("{} is larger than any account", named(path)),
                "it should be what kubectl printed",
            )
        })?);
    }
    Account::parse(documents.iter().map(Vec::as_slice)).map_err(|error| {
        hinted(
            error.to_string(),
            "make it with: kubectl get resourceslices,resourceclaims -A -o json",
        )
    })
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let all = &report.all;
    let part = |part: u64| format!("{:.1} %", part as f64 * 100.0 / all.capacity.max(1) as f64);
    let _ = writeln!(
        text,
        "{}, {} in use: {} of {} asked for",
        plural(all.gpus, "GPU"),
        count(all.in_use),
        part(all.asked),
        bytes(all.capacity)
    );
    let _ = writeln!(
        text,
        "  {:<10} {:>12}  {}",
        "headroom",
        bytes(all.headroom),
        part(all.headroom)
    );
    let _ = writeln!(
        text,
        "  {:<10} {:>12}  {}, in pieces too small for the smallest share that anybody has or wants",
        "stranded",
        bytes(all.stranded),
        part(all.stranded)
    );
    let stranded = report.nodes.iter().filter(|node| node.sums.stranded > 0);
    let mut shown = stranded.clone().take(LISTED).peekable();
    if shown.peek().is_some() {
        let _ = writeln!(text, "\nmachines with most stranded");
    }
    for node in shown {
        let sums = &node.sums;
        let _ = writeln!(
            text,
            "  {:<24} {:>12} stranded, {:>12} headroom, {} of {} in use",
            plain(&node.node),
            bytes(sums.stranded),
            bytes(sums.headroom),
            sums.in_use,
            plural(sums.gpus, "GPU")
        );
    }
    let more = stranded.count().saturating_sub(LISTED);
    if more > 0 {
        let _ = writeln!(text, "  and {more} more; --json has all");
    }
    let _ = writeln!(text, "\nteams");
    for team in report.teams.iter().take(LISTED) {
        let seen = match (team.asked_by_a_job, team.used_by_a_job) {
            (Some(asked), Some(used)) => {
                format!("; a job asked for {}, used {}", bytes(asked), bytes(used))
            }
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "  {:<24} asked for {} in {}, {} of them whole GPUs; {} waiting{seen}",
            plain(&team.team),
            bytes(team.asked),
            plural(team.shares, "share"),
            team.whole,
            team.waiting
        );
    }
    if report.teams.len() > LISTED {
        let _ = writeln!(
            text,
            "  and {} more; --json has all",
            report.teams.len() - LISTED
        );
    }
    for job in &report.impossible {
        let _ = writeln!(
            text,
            "\n{BAD}never starts{BAD:#}  {} asks for more of one GPU than any has",
            plain(job)
        );
    }
    if !report.pins.is_empty() {
        let _ = writeln!(
            text,
            "\n{WARN}pinned like this{WARN:#}, more of the waiting jobs start than by first fit:"
        );
        for pin in &report.pins {
            let gpus = pin
                .gpus
                .iter()
                .map(|gpu| plain(gpu))
                .collect::<Vec<_>>()
                .join(", ");
            let _ = writeln!(
                text,
                "  {} ({}): {} on {}, {} of each",
                plain(&pin.job),
                plain(&pin.team),
                gpus,
                plain(&pin.node),
                bytes(pin.bytes)
            );
        }
    }
    text
}

fn slurm(options: &SlurmOptions) -> Result<Reply> {
    let settings = Settings::parse(&text_of(&options.settings)?).map_err(|error| {
        hinted(
            format!("cannot read {}: {error}", options.settings.display()),
            "it needs store = \"FOLDER\" and, for each kind of GPU, [[gpu]] with type and shards",
        )
    })?;
    let shard = parse_bytes(&settings.shard)
        .map_err(|error| hinted(format!("shard: {error}"), "shard = \"1GiB\" is usual"))?;
    let script = options.script.as_deref().map(text_of).transpose()?;
    let words: Vec<String> = options
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let here = std::env::current_dir().context("the current folder is gone")?;
    let folder = options
        .folder
        .as_ref()
        .map_or_else(|| here.clone(), |folder| here.join(folder));
    let answer = submission(
        &settings,
        shard,
        &Submission {
            script: script.as_deref(),
            words: &words,
            folder: &folder,
            tasks: options.tasks,
            asked: &options.asked,
            allocator: allocator_settings(|name| std::env::var(name).ok()),
        },
    )?;
    let mut text = String::new();
    for (name, value) in answer.lines() {
        let _ = writeln!(text, "{name}={value}");
    }
    let mut reply = Reply::silent(match answer.decision.action {
        Action::Refuse => Answer::No,
        Action::None | Action::Advise | Action::Fill => Answer::Yes,
    });
    reply.text = Some(text.trim_end().to_owned());
    Ok(reply)
}

fn text_of(path: &Path) -> Result<String> {
    let failed = || format!("cannot read {}", path.display());
    let file = fs::File::open(path).with_context(failed)?;
    let bytes = at_most(MAX_SCRIPT, file).with_context(failed)?;
    let bytes = bytes.ok_or_else(|| {
        hinted(
            format!("{} is larger than any script", path.display()),
            "name the batch script",
        )
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All of it; none if it has more bytes than `most`.
fn at_most(most: u64, reader: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}
