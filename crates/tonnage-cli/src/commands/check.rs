// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage check`: dry runs against budgets, and the answer in five forms.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use tonnage_analysis::check::{
    Answer as Held, Budget, Checked, CommandLine, Config, Figure, Limits, Lock, SCHEMA_VERSION,
    Size, judge,
};
use tonnage_analysis::diff::Summary;
use tonnage_analysis::holdings;
use tonnage_analysis::verdict::Outcome;
use tonnage_analysis::words::bytes;
use tonnage_gpus::Catalogue;
use tonnage_run::{Job, JobOutput, Options, dry_run};

use super::diff::{named, row, signed};
use super::recording::{Output, plain};
use super::run::Screen;
use crate::arguments::{CheckFormat, CheckOptions};
use crate::output::{Answer, BAD, GOOD, HINT, Reply, hinted, parse_bytes, tell};

const OWN: &str = "tonnage.toml";
const PYTHONS: &str = "pyproject.toml";
const LOCK: &str = "tonnage.lock";
const HEAD: &str = "# What each budget took when it was last accepted. Written by `tonnage check --update`:\n\
# a figure that rises here is a change to review.\n";
/// A capacity below this is a mistake, such as a forgotten unit.
const MIN_CAPACITY: u64 = 1 << 20;
/// How many changed lines are shown.
const LINES: usize = 5;

pub(crate) fn run(options: &CheckOptions) -> Result<Reply> {
    let path = match &options.config {
        Some(path) => path.clone(),
        None => find_config()?,
    };
    let config = read_config(&path)?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let lock_path = folder.join(LOCK);
    let mut lock = read_lock(&lock_path)?;
    for name in &options.names {
        if !config.budgets.iter().any(|budget| &budget.name == name) {
            let known: Vec<&str> = config.budgets.iter().map(|b| b.name.as_str()).collect();
            return Err(hinted(
                format!("{} has no budget called {name}", path.display()),
                format!("it has {}", known.join(", ")),
            ));
        }
    }
    let wanted =
        |budget: &&Budget| options.names.is_empty() || options.names.contains(&budget.name);
    let mut all = Vec::new();
    for budget in config.budgets.iter().filter(wanted) {
        tell(&format!(
            "{HINT}checking{HINT:#} {} on {}",
            plain(&budget.name),
            budget.gpu
        ));
        let limits = limits(budget)?;
        let (mut checked, measured) = check(budget, limits, &lock, &folder, options)?;
        if let Some(measured) = measured.filter(|_| options.update) {
            lock.budget.insert(budget.name.clone(), measured);
            if checked.answer == Held::New {
                checked.answer = Held::Holds;
            }
        }
        all.push(checked);
    }
    if options.update {
        lock.version = SCHEMA_VERSION;
        // A budget that is gone leaves nothing behind.
        lock.budget
            .retain(|name, _| config.budgets.iter().any(|budget| &budget.name == name));
        write_lock(&lock_path, &lock)?;
        tell(&format!("wrote {}", lock_path.display()));
    }
    let format = if options.json {
        CheckFormat::Json
    } else {
        options.format
    };
    let text = render(&all, format, &path)?.trim_end().to_owned();
    let failed = |held: Held| held == Held::Failed;
    // Accepting says yes to growth, never to a limit.
    let holds = |held: Held| held.passes() || (options.update && held == Held::Grew);
    let answer = if all.iter().any(|checked| failed(checked.answer)) {
        Answer::Failed
    } else if all.iter().all(|checked| holds(checked.answer)) {
        Answer::Yes
    } else {
        Answer::No
    };
    Ok(Reply {
        text: Some(text),
        ..Reply::silent(answer)
    })
}

fn find_config() -> Result<PathBuf> {
    for name in [OWN, PYTHONS] {
        if Path::new(name).is_file() {
            return Ok(PathBuf::from(name));
        }
    }
    Err(hinted(
        format!("there is no {OWN} and no {PYTHONS} here"),
        "write one:\n\n  [[budget]]\n  name = \"train\"\n  run = \"python train.py\"\n  gpu = \"a100-40gb\"\n  peak = \"36 GiB\"",
    ))
}

fn read_config(path: &Path) -> Result<Config> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let wrong = |error: &toml::de::Error| {
        hinted(
            format!(
                "{} is wrong: {}",
                path.display(),
                error.to_string().trim_end()
            ),
            "a budget has name, run, gpu, and any of gpus, capacity, peak, reserved, growth",
        )
    };
    let is_pyproject = path.file_name().is_some_and(|name| name == PYTHONS);
    let config = if is_pyproject {
        let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let ours = table.get("tool").and_then(|tool| tool.get("tonnage"));
        let ours = ours.cloned().unwrap_or_else(|| toml::Table::new().into());
        ours.try_into::<Config>().map_err(|error| wrong(&error))?
    } else {
        toml::from_str(&text).map_err(|error| wrong(&error))?
    };
    if config.budgets.is_empty() {
        let section = if is_pyproject {
            "[[tool.tonnage.budget]]"
        } else {
            "[[budget]]"
        };
        return Err(hinted(
            format!("{} has no budget", path.display()),
            format!("add a {section} with name, run and gpu"),
        ));
    }
    for (index, budget) in config.budgets.iter().enumerate() {
        if config.budgets[..index]
            .iter()
            .any(|other| other.name == budget.name)
        {
            return Err(hinted(
                format!("{} has two budgets called {}", path.display(), budget.name),
                "figures are kept by name; give each its own",
            ));
        }
    }
    Ok(config)
}

fn read_lock(path: &Path) -> Result<Lock> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(Lock::default());
    };
    let lock: Lock = toml::from_str(&text).map_err(|error| {
        hinted(
            format!(
                "{} is wrong: {}",
                path.display(),
                error.to_string().trim_end()
            ),
            "restore it, or delete it and accept the figures with --update",
        )
    })?;
    if lock.version > SCHEMA_VERSION {
        return Err(hinted(
            format!("{} was written by a later tonnage", path.display()),
            "update tonnage",
        ));
    }
    Ok(lock)
}

fn write_lock(path: &Path, lock: &Lock) -> Result<()> {
    use std::io::Write as _;
    let text = format!("{HEAD}{}", toml::to_string(lock)?);
    let output = Output::create(path, true)?;
    output.writer()?.write_all(text.as_bytes())?;
    output.finish()?;
    Ok(())
}

fn limits(budget: &Budget) -> Result<Limits> {
    let read = |key: &str, size: &Option<Size>| match size {
        None => Ok(None),
        Some(size) => bytes_of(size).map(Some).map_err(|why| {
            hinted(
                format!("{key} of budget {}: {why}", budget.name),
                "e.g. \"36 GiB\"",
            )
        }),
    };
    Ok(Limits {
        peak: read("peak", &budget.peak)?,
        reserved: read("reserved", &budget.reserved)?,
        growth: read("growth", &budget.growth)?,
    })
}

fn bytes_of(size: &Size) -> Result<u64, String> {
    match size {
        Size::Bytes(bytes) => Ok(*bytes),
        // A growth of nothing is the commonest limit of all.
        Size::Text(text) if matches!(text.trim(), "0" | "0 B" | "0B") => Ok(0),
        Size::Text(text) => parse_bytes(text),
    }
}

/// The words of a budget's command; a script alone is run by Python.
fn words(budget: &Budget) -> Result<Vec<String>> {
    let mut words = match &budget.run {
        CommandLine::Words(words) => words.clone(),
        CommandLine::Line(line) => shlex::split(line).unwrap_or_default(),
    };
    if words.is_empty() {
        return Err(hinted(
            format!("run of budget {} is no command", budget.name),
            "e.g. run = \"python train.py --steps 3\"",
        ));
    }
    if Path::new(&words[0])
        .extension()
        .is_some_and(|extension| extension == "py")
    {
        words.insert(0, "python".to_owned());
    }
    Ok(words)
}

/// A budget's job and machine, as a dry run takes them.
fn described(budget: &Budget) -> Result<(Job, Options)> {
    let mut job = Job::new(words(budget)?);
    // stdout is for the answer alone.
    job.output = JobOutput::Stderr;
    let catalogue = Catalogue::embedded();
    let gpu = super::gpus::find(&catalogue, &budget.gpu)?;
    let mut options = Options::new(gpu.clone());
    options.gpus = budget.gpus;
    options.capacity = capacity(budget)?;
    // A budget asks whether it fits; by how much it does not is for `tonnage run`.
    options.stop_at_oom = true;
    options.forward_signals = true;
    options
        .validate()
        .with_context(|| format!("budget {} cannot be run", budget.name))?;
    Ok((job, options))
}

fn capacity(budget: &Budget) -> Result<Option<u64>> {
    let Some(size) = &budget.capacity else {
        return Ok(None);
    };
    let bytes = bytes_of(size).and_then(|bytes| match bytes {
        MIN_CAPACITY.. => Ok(bytes),
        _ => Err("not a size a GPU can have".to_owned()),
    });
    let bytes = bytes.map_err(|why| {
        hinted(
            format!("capacity of budget {}: {why}", budget.name),
            "e.g. \"36 GiB\"",
        )
    })?;
    Ok(Some(bytes))
}

fn check(
    budget: &Budget,
    limits: Limits,
    lock: &Lock,
    folder: &Path,
    options: &CheckOptions,
) -> Result<(Checked, Option<Summary>)> {
    let recording = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    let (job, machine) = described(budget)?;
    let mut screen = Screen::new(!options.no_progress);
    let run = dry_run(&job, &machine, recording.path(), &mut screen)?;
    let verdict = run.verdict;
    let failed = |answer, trouble: String| Checked {
        name: budget.name.clone(),
        gpu: budget.gpu.clone(),
        answer,
        figures: Vec::new(),
        diff: None,
        torch_changed: None,
        trouble: Some(trouble),
    };
    let exception = verdict.exceptions.first().map(|exception| {
        let message = exception.message.lines().next().unwrap_or_default();
        format!("{}: {message}", exception.kind)
    });
    match verdict.outcome {
        Outcome::Fits => {}
        Outcome::DoesNotFit => {
            let trouble = exception.unwrap_or_else(|| "out of memory".to_owned());
            return Ok((failed(Held::DoesNotFit, trouble), None));
        }
        Outcome::NoDevice => {
            return Ok((failed(Held::Failed, "it never used a GPU".to_owned()), None));
        }
        Outcome::Failed | Outcome::Interrupted => {
            let trouble = exception.unwrap_or_else(|| verdict.ending.clone());
            return Ok((failed(Held::Failed, trouble), None));
        }
    }
    let read = holdings::read(fs::File::open(recording.path())?)?;
    let base = fs::canonicalize(if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    })?;
    let Some(measured) = Summary::of(&read, &base.to_string_lossy()) else {
        return Ok((failed(Held::Failed, "it never used a GPU".to_owned()), None));
    };
    let checked = judge(budget, limits, &measured, lock.budget.get(&budget.name));
    Ok((checked, Some(measured)))
}

/// Budgets and how they were kept.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct All<'a> {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// In the order of the configuration.
    budgets: &'a [Checked],
}

fn render(all: &[Checked], format: CheckFormat, config: &Path) -> Result<String> {
    Ok(match format {
        CheckFormat::Text => text(all),
        CheckFormat::Markdown => markdown(all),
        CheckFormat::Junit => junit(all),
        CheckFormat::Github => github(all, config),
        CheckFormat::Json => serde_json::to_string_pretty(&All {
            schema_version: SCHEMA_VERSION,
            budgets: all,
        })?,
    })
}

/// The answer in words.
fn said(held: Held) -> &'static str {
    match held {
        Held::Holds => "holds",
        Held::New => "holds; nothing was accepted yet, `tonnage check --update` does",
        Held::Grew => "grew since it was accepted",
        Held::Over => "over its limit",
        Held::DoesNotFit => "does not fit",
        Held::Failed => "failed",
    }
}

/// What a figure is held against, in words.
fn held_against(figure: &Figure) -> String {
    let mut parts = Vec::new();
    if let Some(accepted) = figure.accepted {
        let delta = figure.measured.cast_signed() - accepted.cast_signed();
        parts.push(format!(
            "{} to the accepted {}",
            signed(delta),
            bytes(accepted)
        ));
    }
    if let Some(limit) = figure.limit {
        let over = if figure.is_over() {
            "over the"
        } else {
            "within the"
        };
        parts.push(format!("{over} limit of {}", bytes(limit)));
    }
    parts.join(", ")
}

fn text(all: &[Checked]) -> String {
    let mut text = String::new();
    for checked in all {
        let style = if checked.answer.passes() { GOOD } else { BAD };
        let _ = writeln!(
            text,
            "{style}{}{style:#}  {} on {}",
            said(checked.answer),
            plain(&checked.name),
            checked.gpu
        );
        if let Some(trouble) = &checked.trouble {
            let _ = writeln!(text, "  {}", plain(trouble));
        }
        for figure in &checked.figures {
            let line = format!(
                "  {:<16} {:>11}  {}",
                figure.name,
                bytes(figure.measured),
                held_against(figure)
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if let Some((before, after)) = &checked.torch_changed {
            let _ = writeln!(
                text,
                "  torch was {} and is {}",
                plain(before),
                plain(after)
            );
        }
        if let Some(diff) = checked.diff.as_ref().filter(|diff| !diff.lines.is_empty()) {
            let _ = writeln!(text, "  what changed");
            for change in diff.lines.iter().take(LINES) {
                let _ = writeln!(text, "  {}", row(change));
            }
            if diff.lines.len() > LINES {
                let _ = writeln!(text, "    and {} more", diff.lines.len() - LINES);
            }
        }
        if checked.figures.iter().any(Figure::has_shrunk) && checked.answer == Held::Holds {
            let _ = writeln!(
                text,
                "  it needs less than before: keep that with `tonnage check --update`"
            );
        }
    }
    let held = all.iter().filter(|checked| checked.answer.passes()).count();
    let _ = writeln!(text, "{held} of {} budgets hold", all.len());
    text
}

/// Text that is only text in Markdown.
fn escaped(text: &str) -> String {
    plain(text)
        .replace('|', "\\|")
        .replace('`', "'")
        .replace('<', "&lt;")
}

fn markdown(all: &[Checked]) -> String {
    let mut text = String::from(
        "### GPU memory\n\n| budget | figure | now | accepted | limit | |\n|---|---|--:|--:|--:|---|\n",
    );
    for checked in all {
        let name = format!("{} ({})", escaped(&checked.name), escaped(&checked.gpu));
        if let Some(trouble) = &checked.trouble {
            let _ = writeln!(
                text,
                "| {name} | | | | | ❌ {}: {} |",
                said(checked.answer),
                escaped(trouble)
            );
        }
        for figure in &checked.figures {
            let known = |bytes_: Option<u64>| bytes_.map_or_else(|| "–".to_owned(), bytes);
            let mark = if figure.is_over() {
                "❌ over"
            } else if figure.has_grown() {
                "❌ grew"
            } else if figure.has_shrunk() {
                "✅ less"
            } else {
                "✅"
            };
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {mark} |",
                figure.name,
                bytes(figure.measured),
                known(figure.accepted),
                known(figure.limit),
            );
        }
    }
    for checked in all {
        let Some(diff) = checked.diff.as_ref().filter(|diff| !diff.lines.is_empty()) else {
            continue;
        };
        let _ = writeln!(
            text,
            "\n<details><summary>what changed in {}</summary>\n\n| change | before | after | where |\n|--:|--:|--:|---|",
            escaped(&checked.name)
        );
        for change in diff.lines.iter().take(LINES * 4) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                signed(change.delta()),
                bytes(change.before),
                bytes(change.after),
                escaped(&named(change)),
            );
        }
        text.push_str("\n</details>\n");
    }
    text
}

fn xml(text: &str) -> String {
    let mut safe = String::new();
    for c in plain(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

/// What is wrong with a budget, in one line.
fn reason(checked: &Checked) -> String {
    if let Some(trouble) = &checked.trouble {
        return format!("{}: {trouble}", said(checked.answer));
    }
    let wrong = |figure: &&Figure| figure.is_over() || figure.has_grown();
    let figures = checked.figures.iter().filter(wrong).map(|figure| {
        let now = bytes(figure.measured);
        format!("{} {now}, {}", figure.name, held_against(figure))
    });
    let mut reason = figures.collect::<Vec<_>>().join("; ");
    let first = checked.diff.as_ref().and_then(|diff| diff.lines.first());
    if let Some(change) = first {
        let _ = write!(
            reason,
            "; most of it {} at {}",
            signed(change.delta()),
            named(change)
        );
    }
    reason
}

fn junit(all: &[Checked]) -> String {
    let count = |wanted: fn(Held) -> bool| all.iter().filter(|c| wanted(c.answer)).count();
    let errors = count(|held| held == Held::Failed);
    let failures = count(|held| !held.passes() && held != Held::Failed);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"tonnage check\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\">\n",
        all.len(),
    );
    for checked in all {
        let name = xml(&checked.name);
        let class = xml(&checked.gpu);
        if checked.answer.passes() {
            let _ = writeln!(text, "  <testcase classname=\"{class}\" name=\"{name}\"/>");
            continue;
        }
        let tag = if checked.answer == Held::Failed {
            "error"
        } else {
            "failure"
        };
        let _ = writeln!(
            text,
            "  <testcase classname=\"{class}\" name=\"{name}\">\n    <{tag} message=\"{}\"/>\n  </testcase>",
            xml(&reason(checked))
        );
    }
    text.push_str("</testsuite>\n");
    text
}

fn github(all: &[Checked], config: &Path) -> String {
    // GitHub's own escapes, for what would end a command or a property.
    let safe = |text: &str| {
        plain(text)
            .replace('%', "%25")
            .replace(',', "%2C")
            .replace(':', "%3A")
    };
    let mut text = String::new();
    for checked in all {
        let level = if checked.answer.passes() {
            "notice"
        } else {
            "error"
        };
        let message = if checked.answer.passes() {
            said(checked.answer).to_owned()
        } else {
            reason(checked)
        };
        let first = checked.diff.as_ref().and_then(|diff| {
            let grown = diff.lines.iter().find(|change| change.delta() > 0)?;
            let file = grown.what.split(' ').next()?;
            Some((file.to_owned(), grown.line?))
        });
        let (file, line) = first.unwrap_or_else(|| (config.display().to_string(), 1));
        let _ = writeln!(
            text,
            "::{level} file={},line={line},title={}::{}",
            safe(&file),
            safe(&format!("GPU memory: {}", checked.name)),
            plain(&message).replace('%', "%25"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use tonnage_analysis::diff::Diff;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(name: &str) -> Budget {
        Budget {
            name: name.to_owned(),
            run: CommandLine::Line("train.py --steps 3".to_owned()),
            gpu: "a100-40gb".to_owned(),
            gpus: 1,
            capacity: None,
            peak: None,
            reserved: None,
            growth: None,
        }
    }

    fn summary(peak: u64, line: u64) -> Summary {
        Summary {
            torch: "2.15.0".to_owned(),
            peak_allocated: peak,
            peak_reserved: peak + 2 * MIB,
            lines: [(
                "train.py forward in layers.* (activations)".to_owned(),
                vec![(line, peak)],
            )]
            .into(),
            ..Summary::default()
        }
    }

    /// One budget for each answer.
    fn every_answer() -> Vec<Checked> {
        let limits = Limits {
            peak: Some(100 * MIB),
            reserved: None,
            growth: Some(0),
        };
        let accepted = summary(64 * MIB, 30);
        let mut old = accepted.clone();
        old.torch = "2.14.0".to_owned();
        let judged = |name: &str, measured: &Summary, accepted: Option<&Summary>| {
            judge(&budget(name), limits, measured, accepted)
        };
        let mut all = vec![
            judged("holds", &accepted, Some(&accepted)),
            judged("new", &accepted, None),
            judged("less", &summary(60 * MIB, 30), Some(&accepted)),
            judged("grew", &summary(72 * MIB, 31), Some(&old)),
            judged("over | <limit>", &summary(104 * MIB, 31), Some(&accepted)),
        ];
        for (name, answer, trouble) in [
            (
                "too large",
                Held::DoesNotFit,
                "torch.OutOfMemoryError: CUDA out of memory",
            ),
            ("broken", Held::Failed, "exit 3"),
        ] {
            all.push(Checked {
                name: name.to_owned(),
                gpu: "a100-40gb".to_owned(),
                answer,
                figures: Vec::new(),
                diff: None,
                torch_changed: None,
                trouble: Some(trouble.to_owned()),
            });
        }
        all
    }

    #[test]
    fn every_answer_in_every_form() {
        let all = every_answer();
        for (name, format) in [
            ("text", CheckFormat::Text),
            ("markdown", CheckFormat::Markdown),
            ("junit", CheckFormat::Junit),
            ("github", CheckFormat::Github),
            ("json", CheckFormat::Json),
        ] {
            let said = render(&all, format, Path::new("tonnage.toml")).unwrap();
            let said = anstream::adapter::strip_str(&said).to_string();
            assert_snapshot!(format!("check_{name}"), said);
        }
        assert!(Diff::of(&Summary::default(), &Summary::default()).is_empty());
    }

    #[test]
    fn a_script_alone_is_run_by_python_and_quotes_hold() {
        assert_eq!(
            words(&budget("a")).unwrap(),
            ["python", "train.py", "--steps", "3"]
        );
        let quoted = Budget {
            run: CommandLine::Line("torchrun 'my job.py'".to_owned()),
            ..budget("a")
        };
        assert_eq!(words(&quoted).unwrap(), ["torchrun", "my job.py"]);
    }

    #[test]
    fn nothing_is_a_limit_too() {
        assert_eq!(bytes_of(&Size::Text("0 B".to_owned())), Ok(0));
        assert_eq!(bytes_of(&Size::Text("0.5 GiB".to_owned())), Ok(512 * MIB));
        assert_eq!(bytes_of(&Size::Bytes(7)), Ok(7));
        let decimal = bytes_of(&Size::Text("36 GB".to_owned()));
        assert_eq!(decimal, Ok(36_000_000_000));
        assert!(bytes_of(&Size::Text("36 GX".to_owned())).is_err());
    }
}
