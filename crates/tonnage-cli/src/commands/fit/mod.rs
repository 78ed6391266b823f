// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fit`: the numbers with which a job fits.
//!
//! The search itself is the library `tonnage-fit`. Here are what was typed, what is shown meanwhile, and in `render`
//! the answer in words, in `picture` the same as a drawing.

mod picture;
mod render;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use signal_hook::consts::{SIGINT, SIGTERM};
use tonnage_fit::{Bound, Fit, FitError, Request, Stage, Watcher};
use tonnage_gpus::{Catalogue, Gpu};
use tonnage_run::changes::Maths;
use tonnage_run::{Constant, Job, Options};

use crate::Surroundings;
use crate::arguments::{Allow, FitOptions};
use crate::commands::recording::Output;
use crate::commands::run::{job_folder, job_of};
use crate::output::{Answer, DIM, Form, Reply, bytes, hinted, print_err};
use crate::progress;

/// What is shown meanwhile.
pub(crate) const PROGRESS: &str = "{msg}, {elapsed}";

pub(crate) fn run(options: &FitOptions, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    // Before anything runs: a recording that cannot be written is found out now.
    let mut output = match &options.output {
        Some(path) => Some(Output::create(path, options.force)?),
        None => None,
    };
    let drawing = match &options.picture {
        Some(path) => {
            let kind = Kind::of(path)?;
            Some((Output::create(path, options.force)?, kind))
        }
        None => None,
    };
    let catalogue = Catalogue::embedded();
    let names = match options.gpu.as_slice() {
        [] => vec![super::gpus::name_of(None, &job_folder(surroundings))?],
        names => names.to_vec(),
    };
    let gpus = chosen(&catalogue, &names)?;
    let Some(gpu) = gpus.first() else {
        return Err(hinted("no GPU is named", "`tonnage gpus` lists them"));
    };
    let mut machine = Options::new(gpu.clone());
    machine.gpus = options.gpus;
    machine.capacity = options.capacity;
    machine.stop_after = options.stop_after;
    machine.allow_real_gpu = options.allow_real_gpu;
    options.effects.apply(&mut machine);
    let job = job_of(&options.job.command, options.json, surroundings);
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
        if options.capacity.is_some() {
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
            "say which and how many: --gpu rtx4090 --gpus 4 --shard",
        ));
    }
    request.shard = options.shard;
    request.margin = options.margin;
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
    let screen = Screen::new(options.no_progress, surroundings);
    let fit = tonnage_fit::fit(&request, &screen);
    screen.finish();
    let fit = fit.map_err(|error| match &error {
        FitError::Template(wrong) => match wrong.hint() {
            Some(hint) => hinted(error.to_string(), hint),
            None => anyhow::Error::new(error),
        },
        FitError::PlaceholdersAndGpus => hinted(
            error.to_string(),
            "name one GPU, or write the numbers into the command",
        ),
        FitError::Combinations { .. } => hinted(error.to_string(), "make the lists shorter"),
        FitError::Run(_) => match error {
            FitError::Run(error) => anyhow::Error::new(error),
            other => anyhow::Error::new(other),
        },
        _ => anyhow::Error::new(error),
    })?;
    if fit.found
        && let Some(output) = output.take()
    {
        output.finish()?;
    }
    if let Some((output, kind)) = drawing {
        let drawn = match kind {
            Kind::Page => picture::page(&fit, &render::text(&fit)),
            Kind::Svg => picture::svg(&fit),
        };
        output.write(drawn.as_bytes())?;
    }
    let show = options.show.map(std::num::NonZeroUsize::get);
    let here = job_folder(surroundings);
    let reply = Reply::new(form, answer(&fit), &fit, |fit| match show {
        Some(number) => render::shown(fit, number, &here),
        None => render::text(fit),
    });
    Ok(reply?)
}

/// What is drawn: a page of its own, or the picture alone.
enum Kind {
    Page,
    Svg,
}

impl Kind {
    fn of(path: &Path) -> Result<Self> {
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
fn chosen(catalogue: &Catalogue, names: &[String]) -> Result<Vec<Gpu>> {
    if names.iter().any(|name| name == "any") {
        let all = catalogue.gpus().iter().filter(|gpu| gpu.supported);
        return Ok(all.cloned().collect());
    }
    let find = |name: &String| Ok(super::gpus::find(catalogue, name)?.clone());
    names.iter().map(find).collect()
}

/// Prices by the catalogue's name: a GPU and a number on each line, with a space or a comma between; `#` begins a remark.
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
                format!("{place}: {line:?} is no GPU with a price"),
                "a name and a number on each line: a100-40gb 1.29",
            )
        };
        let (name, price) = line.rsplit_once([' ', ',', '\t']).ok_or_else(wrong)?;
        let price: f64 = price.trim().parse().map_err(|_| wrong())?;
        if !price.is_finite() {
            return Err(wrong());
        }
        let gpu = super::gpus::find(catalogue, name.trim_end_matches([' ', ',', '\t']))?;
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
                    format!("{line:?} is no line"),
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
        }
    }

    /// Leaves nothing on the terminal.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, what: String) {
        if let Some(watcher) = &self.watcher {
            // Who does not listen any more does not want to know.
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
                self.bar.suspend(|| {
                    print_err(&format!(
                        "{DIM}each variant gets a process of its own: {why}{DIM:#}"
                    ));
                });
            }
            Stage::Tried(trial) => {
                let need = trial
                    .need
                    .map_or_else(String::new, |need| format!(", needs {}", bytes(need)));
                let word = if trial.fits { "fits" } else { "does not fit" };
                self.say(format!("{} {word}{need}", values(&trial.values)));
            }
            _ => {}
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.interrupted.load(Ordering::Relaxed)
    }
}
