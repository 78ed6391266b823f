// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fit`: the numbers with which a job fits.
//!
//! The search itself is the library `tonnage-fit`. Here are what was typed, what is shown meanwhile, and in `render`
//! the answer in words, in `picture` the same as a drawing.

mod picture;
mod render;

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};
use tonnage_fit::{Bound, Fit, FitError, Request, Stage, Template, Watcher, starts_vllm};
use tonnage_gpus::{Catalogue, Gpu};
use tonnage_run::changes::Maths;
use tonnage_run::{Constant, Job, Options};

use crate::Surroundings;
use crate::commands::gpus::{self, GpuChoice};
use crate::commands::recording::{Output, job_folder};
use crate::commands::run::job_of;
use crate::commands::serve_fit::Server;
use crate::options::{
    GpuOptions, JobCommand, QuietOptions, ReplyOptions, RunLimits, ScreenOptions, SideEffects,
    headings,
};
use crate::output::{Answer, DIM, Form, Reply, bytes, hinted, print_err};
use crate::{browser, progress};

/// Find what makes a job fit: the largest batch, or changes to the program
///
/// Write the numbers that may change into the job's own command: a range
/// {batch=1..256}, of which the largest that fits is searched, or a list
/// {seq=1024,2048}, of which each is tried. {batch=8..256+8} goes in steps,
/// {batch=1..256*2} in powers of two; {batch} repeats the value in another place,
/// and {steps=64/batch} keeps the product 64, for steps of gradient accumulation.
/// Quote them: a shell would take a list in braces apart.
///
/// Every answer is a dry run of the job itself, and so is the next larger
/// number, which does not fit. The job is started once; the variants are forked
/// from it, which is checked to give the same recording.
///
/// Where nothing fits, changes are made to the program inside its process, such
/// as gradient checkpointing or another optimizer, without touching a file. The
/// changes that make the job fit are listed, by what they add to each step, with
/// the lines to write.
///
/// If the command starts a vLLM server, the answer is the number of requests of
/// each length that the server holds at once, with the flags to paste. The server
/// starts unmodified: vLLM measures its memory, and reports how many tokens its KV
/// cache holds. The shortest and the longest length run again with their flags.
/// With `--load-format dummy` in the command, no weights are needed.
///
/// Exit code: 0 something fits, 1 nothing does, 2 the script failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage fit --gpu rtx4090 train.py
  tonnage fit --gpu any train.py
  tonnage fit --gpu rtx4090 --gpus 4 --shard train.py
  tonnage fit --gpu rtx4090 train.py --batch-size '{batch=1..256}'
  tonnage fit --gpu rtx4090 train.py --batch-size '{batch=1..256}' --seq '{seq=1024,2048,4096}'
  tonnage fit --gpu rtx4090 train.py --batch-size '{batch=1..64*2}' --accumulate '{steps=64/batch}'
  tonnage fit --gpu rtx4090 --let 'batch_size={1..256}' train.py
  tonnage fit --gpu a100-40gb --env 'BATCH={1..64}' -- python -m my.training
  tonnage fit --gpu l4 -- vllm serve ./model --load-format dummy")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct FitOptions {
    /// The GPU that it is to fit on; several with commas, or `any`, to see on which the job fits. `tonnage gpus` lists
    /// them [env: TONNAGE_GPU] [default: `gpu` in the nearest tonnage.toml, or in pyproject.toml under tool.tonnage].
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Vec<String>,
    /// A file with a GPU and its price on each line: the cheapest comes first.
    #[arg(long, value_name = "FILE", help_heading = headings::GPUS)]
    pub(crate) prices: Option<PathBuf>,
    /// How many of them the machine has.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = headings::GPUS,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) gpus: u8,
    /// Also spread the model over these GPUs, by FSDP2, and print the need of each of them.
    #[arg(long, help_heading = headings::GPUS)]
    pub(crate) shard: bool,
    #[command(flatten, next_help_heading = headings::MODEL)]
    pub(crate) device: GpuOptions,
    #[command(flatten, next_help_heading = headings::COMMON)]
    pub(crate) limits: RunLimits,
    /// An environment variable with a placeholder, e.g. BATCH={1..64}; may be repeated.
    #[arg(long, value_name = "NAME=TEXT", value_parser = parse_variable, help_heading = headings::SEARCH)]
    pub(crate) env: Vec<(String, String)>,
    /// A constant of the script with a placeholder, e.g. batch_size={1..64}: an assignment at the top level, or else
    /// the one keyword, key, attribute or default of that name. batch_size@42 names a line, config.yaml:batch_size a
    /// file of Python, YAML or JSON. No file is changed: only what Python reads of it. May be repeated.
    #[arg(long = "let", value_name = "NAME=TEXT", value_parser = parse_variable, help_heading = headings::SEARCH)]
    pub(crate) constants: Vec<(String, String)>,
    /// The allowed effect of changes on the mathematics of the program, where nothing fits without one.
    #[arg(long, value_enum, default_value_t = Allow::Algorithm, value_name = "WHAT", help_heading = headings::SEARCH)]
    pub(crate) allow: Allow,
    /// Print what a proposal changes in the script, as a patch where that is certain; the number is that of the list.
    #[arg(long, value_name = "N", help_heading = headings::OUTPUT)]
    pub(crate) show: Option<std::num::NonZeroUsize>,
    /// Keep the recording of the largest that fits in FILE, for `tonnage explain` and `tonnage report`.
    #[arg(short, long, value_name = "FILE", help_heading = headings::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// Draw what each variant needs, beside what the GPU has, into FILE: a page (.html) or a picture (.svg).
    #[arg(long, value_name = "FILE", help_heading = headings::OUTPUT)]
    pub(crate) picture: Option<PathBuf>,
    /// Open the chart in a browser. Without a display, and over SSH, print its path.
    #[arg(long, requires = "picture", help_heading = headings::OUTPUT)]
    pub(crate) open: bool,
    /// Overwrite the files.
    #[arg(long, help_heading = headings::OUTPUT)]
    pub(crate) force: bool,
    /// How many variants to run at a time [default: one for each processor].
    #[arg(long, value_name = "N", help_heading = headings::SEARCH)]
    pub(crate) jobs: Option<std::num::NonZeroU16>,
    /// With a vLLM server, skip the two dry runs that confirm the answer.
    #[arg(long, help_heading = headings::SEARCH)]
    pub(crate) no_check: bool,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) quiet: QuietOptions,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten, next_help_heading = headings::OUTPUT)]
    pub(crate) reply: ReplyOptions,
    #[command(flatten, next_help_heading = headings::EFFECTS)]
    pub(crate) effects: SideEffects,
    #[command(flatten, next_help_heading = headings::COMMON)]
    pub(crate) job: JobCommand,
}

impl FitOptions {
    /// The GPUs of the command line as one list.
    fn gpu_names(&self) -> Option<String> {
        (!self.gpu.is_empty()).then(|| self.gpu.join(","))
    }
}

/// The allowed effect of changes on the mathematics of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allow {
    /// No change is tried.
    None,
    /// Nothing: the same numbers are computed.
    Nothing,
    /// The same formula, with another rounding.
    Rounding,
    /// Another algorithm, too.
    Algorithm,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, text)) if !name.is_empty() && !name.contains('{') => {
            Ok((name.to_owned(), text.to_owned()))
        }
        _ => Err("a name and a text, e.g. BATCH={1..64}".to_owned()),
    }
}

/// The text shown meanwhile.
pub(crate) const PROGRESS: &str = "{msg}, {elapsed}";

pub(crate) fn run(options: &FitOptions, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    if counts_requests(options, surroundings) {
        return of_server(options, form, surroundings);
    }
    // Before anything runs: a recording that cannot be written is found out now.
    let mut output = match &options.output {
        Some(path) => Some(Output::create(path, options.force)?),
        None => None,
    };
    let drawing = match &options.picture {
        Some(path) => {
            let kind = Kind::from_path(path)?;
            Some((Output::create(path, options.force)?, kind))
        }
        None => None,
    };
    let catalogue = Catalogue::embedded();
    let typed = options.gpu_names();
    let choice = gpus::choose(typed.as_deref(), &job_folder(surroundings))?;
    let gpus = chosen(&catalogue, &choice)?;
    let Some(gpu) = gpus.first() else {
        return Err(hinted("no GPU is named", "`tonnage gpus` lists them"));
    };
    let mut machine = Options::new(gpu.clone());
    machine.gpus = options.gpus;
    machine.capacity = options.device.capacity;
    machine.stop_after = options.limits.stop_after;
    machine.allow_real_gpu = options.device.allow_real_gpu;
    options.effects.apply(&mut machine);
    let job = job_of(&options.job.command, options.reply.json, surroundings);
    let mut request = Request::new(job, machine);
    request.variables.clone_from(&options.env);
    for (place, text) in &options.constants {
        let (constant, name) = constant(&request.job, place)?;
        request.constants.push((constant, name, text.clone()));
    }
    request.prices = match &options.prices {
        Some(path) => prices(&catalogue, path)?,
        None => BTreeMap::new(),
    };
    if gpus.len() > 1 {
        if options.device.capacity.is_some() {
            return Err(hinted(
                "--capacity is the size of one GPU",
                "name one GPU, or leave the size to the catalogue",
            ));
        }
        request.gpus = gpus;
    }
    if options.shard && (options.gpus < 2 || !request.gpus.is_empty()) {
        return Err(hinted(
            "--shard spreads a model over several GPUs of one kind",
            "name the GPU and the number: --gpu rtx4090 --gpus 4 --shard",
        ));
    }
    request.shard = options.shard;
    request.margin = options.limits.margin;
    request.changes = match options.allow {
        Allow::None => None,
        Allow::Nothing => Some(Maths::Nothing),
        Allow::Rounding => Some(Maths::Rounding),
        Allow::Algorithm => Some(Maths::Algorithm),
    };
    request.recording = output
        .as_ref()
        .and_then(|output| output.path().map(Path::to_owned));
    if let Some(jobs) = options.jobs {
        request.width = usize::from(jobs.get());
    }
    let screen = Screen::new(options.screen.no_progress, surroundings);
    let fit = tonnage_fit::fit(&request, &screen);
    screen.finish();
    let fit = fit.map_err(explained)?;
    if fit.found
        && let Some(output) = output.take()
    {
        output.finish()?;
    }
    if let Some((output, kind)) = drawing {
        let drawn = match kind {
            Kind::Page => picture::page(&fit, &render::text(&fit, None, options.gpus)),
            Kind::Svg => picture::svg(&fit),
        };
        output.write(drawn.as_bytes())?;
        if let Some(path) = options.picture.as_deref().filter(|_| options.open) {
            browser::open(path)?;
        }
    }
    let show = options.show.map(std::num::NonZeroUsize::get);
    let here = job_folder(surroundings);
    let gpu = choice.mention();
    let reply = Reply::new(form, answer(&fit), &fit, |fit| match show {
        Some(number) => render::shown(fit, number, gpu.as_deref(), &here),
        None => render::text(fit, gpu.as_deref(), options.gpus),
    });
    Ok(reply?)
}

/// An error of a search, with a next step.
fn explained(error: FitError) -> anyhow::Error {
    let hint = match &error {
        FitError::Template(wrong) => wrong.hint(),
        FitError::PlaceholdersAndGpus => {
            Some("name one GPU, or write the numbers into the command".to_owned())
        }
        FitError::Combinations { .. } => Some("make the lists shorter".to_owned()),
        _ => None,
    };
    match (hint, error) {
        (Some(hint), error) => hinted(error.to_string(), hint),
        (None, FitError::Run(error)) => anyhow::Error::new(error),
        (None, error) => anyhow::Error::new(error),
    }
}

/// Whether the command is that of a vLLM server without a placeholder to search.
fn counts_requests(options: &FitOptions, surroundings: &Surroundings) -> bool {
    let job = job_of(&options.job.command, true, surroundings);
    let words = job.command.iter().map(|word| (None, word.clone()));
    let is_plain = Template::read(words).is_ok_and(|read| read.parameters.is_empty());
    starts_vllm(&job) && is_plain && options.env.is_empty() && options.constants.is_empty()
}

/// The requests that a vLLM server holds at once.
fn of_server(options: &FitOptions, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    let given = [
        ("--prices", options.prices.is_some()),
        ("--shard", options.shard),
        ("--margin", options.limits.margin.is_some()),
        ("--stop-after", options.limits.stop_after.is_some()),
        ("--show", options.show.is_some()),
        ("--output", options.output.is_some()),
        ("--picture", options.picture.is_some()),
        ("--jobs", options.jobs.is_some()),
    ];
    if let Some((name, _)) = given.into_iter().find(|(_, given)| *given) {
        return Err(hinted(
            format!("{name} does not apply to a vLLM server"),
            format!(
                "leave out {name}, or write a placeholder such as {{seqs=1..256}} into the command"
            ),
        ));
    }
    let gpu = options.gpu_names();
    let server = Server {
        gpu: gpu.as_deref(),
        gpus: options.gpus,
        device: &options.device,
        check: !options.no_check,
        screen: &options.screen,
        effects: &options.effects,
        command: &options.job.command,
    };
    server.answer(form, surroundings)
}

/// The drawing: a separate page, or the picture alone.
enum Kind {
    Page,
    Svg,
}

impl Kind {
    fn from_path(path: &Path) -> Result<Self> {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("html" | "htm") => Ok(Self::Page),
            Some("svg") => Ok(Self::Svg),
            _ => Err(hinted(
                format!("{} is neither a page nor a picture", path.display()),
                "name a file that ends with .html or .svg",
            )),
        }
    }
}

/// The GPUs that were named, or all that can be simulated.
fn chosen(catalogue: &Catalogue, choice: &GpuChoice) -> Result<Vec<Gpu>> {
    let mut names = choice.name.split(',').map(str::trim);
    if names.clone().any(|name| name == "any") {
        let all = catalogue.gpus().iter().filter(|gpu| gpu.supported);
        return Ok(all.cloned().collect());
    }
    names.try_fold(Vec::new(), |mut gpus, name| {
        gpus.push(choice.find_named(catalogue, name)?.clone());
        Ok(gpus)
    })
}

/// Prices by the catalogue's name: a GPU and a number on each line, with a space or a comma between; `#` begins a
/// remark.
fn prices(catalogue: &Catalogue, path: &Path) -> Result<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the prices {}", path.display()))?;
    let mut prices = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = || {
            let place = format!("{}:{}", path.display(), number + 1);
            hinted(
                format!("{place}: {line:?} is not a GPU with a price"),
                "a name and a number on each line: a100-40gb 1.29",
            )
        };
        let (name, price) = line.rsplit_once([' ', ',', '\t']).ok_or_else(wrong)?;
        let price: f64 = price.trim().parse().map_err(|_| wrong())?;
        if !price.is_finite() {
            return Err(wrong());
        }
        let gpu = gpus::find(catalogue, name.trim_end_matches([' ', ',', '\t']))?;
        prices.insert(gpu.id.clone(), price);
    }
    Ok(prices)
}

/// The constant that `--let` names: `NAME`, `NAME@LINE`, `FILE:NAME`.
fn constant(job: &Job, place: &str) -> Result<(Constant, String)> {
    let (file, name) = match place.rsplit_once(':') {
        Some((file, name)) => (Some(Path::new(file)), name),
        None => (None, place),
    };
    let (name, line) = match name.split_once('@') {
        Some((name, line)) => {
            let line = line.parse().map_err(|_| {
                hinted(
                    format!("{line:?} is not a line"),
                    "a number: --let batch_size@42={1..64}",
                )
            })?;
            (name, Some(line))
        }
        None => (name, None),
    };
    let constant = Constant::find(job, file, name, line)?;
    Ok((constant, name.to_owned()))
}

fn answer(fit: &Fit) -> Answer {
    let failed = |bound: Bound| matches!(bound, Bound::Failed | Bound::Interrupted);
    if fit.found {
        Answer::Yes
    } else if fit.interrupted {
        // A change that was not tried may fit.
        Answer::Failed
    } else if fit.rows.iter().any(|row| failed(row.bound))
        || !fit.gpus.is_empty() && fit.gpus.iter().all(|gpu| gpu.fits.is_none())
    {
        Answer::Failed
    } else {
        Answer::No
    }
}

/// Shows what is being tried, and the best so far.
pub(crate) struct Screen {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    /// Ctrl-C was pressed.
    interrupted: Arc<AtomicBool>,
    watcher: Option<Sender<String>>,
    /// The first result that was printed last.
    noted: Mutex<String>,
}

impl Screen {
    pub(crate) fn new(is_off: bool, surroundings: &Surroundings) -> Self {
        let bar = progress::line(is_off, PROGRESS);
        bar.enable_steady_tick(Duration::from_millis(200));
        let interrupted = Arc::new(AtomicBool::new(false));
        if surroundings.forward_signals {
            for signal in [SIGINT, SIGTERM] {
                // Without a handler a signal ends this process, and its jobs with it, as usual.
                let _ = signal_hook::flag::register(signal, Arc::clone(&interrupted));
            }
        }
        Self {
            bar,
            stop: Arc::clone(&surroundings.stop),
            interrupted,
            watcher: surroundings.progress.clone(),
            noted: Mutex::default(),
        }
    }

    /// Leaves nothing on the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line that stays, above the bar.
    fn print(&self, line: &str) {
        self.bar
            .suspend(|| print_err(&format!("{DIM}{line}{DIM:#}")));
    }

    /// Prints a first result of a search that goes on, each one once, where progress is shown.
    fn note(&self, line: &str) {
        let Ok(mut last) = self.noted.lock() else {
            return;
        };
        if !self.bar.is_hidden() && *last != line {
            line.clone_into(&mut last);
            self.print(line);
        }
    }

    fn say(&self, what: String) {
        if let Some(watcher) = &self.watcher {
            // A client that does not listen any more does not want to know.
            let _ = watcher.send(what.clone());
        }
        self.bar.set_message(what);
    }
}

impl Watcher for Screen {
    fn stage(&self, stage: Stage<'_>) {
        let values = |values: &[(String, String)]| {
            let values: Vec<String> = values
                .iter()
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            values.join(", ")
        };
        match stage {
            Stage::Trying(tried, changes) => {
                let mut what = values(tried);
                if !changes.is_empty() {
                    let names = changes.join(" + ");
                    what = if what.is_empty() {
                        names
                    } else {
                        format!("{what}, {names}")
                    };
                }
                if what.is_empty() {
                    "the job as it is".clone_into(&mut what);
                }
                self.say(format!("trying {what}"));
            }
            Stage::Importing => self.say("importing once for all variants".to_owned()),
            Stage::NotForked(why) => {
                self.print(&format!("each variant gets its own process: {why}"));
            }
            Stage::Tried(trial) => {
                let need = trial
                    .need
                    .map_or_else(String::new, |need| format!(", needs {}", bytes(need)));
                let word = if trial.fits { "fits" } else { "does not fit" };
                let mut what = values(&trial.values);
                let is_made = |change: &tonnage_analysis::verdict::ProgramChange| change.applied;
                let made: Vec<&str> = trial
                    .changes
                    .iter()
                    .filter(|it| is_made(it))
                    .map(|it| &*it.name)
                    .collect();
                if !made.is_empty() {
                    let changed = format!("{what} {}", made.join(" + "));
                    changed.trim().clone_into(&mut what);
                }
                if trial.fits && !made.is_empty() {
                    self.note(&format!("{what} fits{need}; cheaper changes may, too"));
                }
                self.say(format!("{what} {word}{need}"));
            }
            Stage::Estimated { name, low, high } => {
                self.note(&format!(
                    "{name} {low} to {high}, by a line through the runs so far; dry runs prove it next"
                ));
            }
            _ => {}
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.interrupted.load(Ordering::Relaxed)
    }
}
