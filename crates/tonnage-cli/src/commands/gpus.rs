// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage gpus`: the catalogue.

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tonnage_gpus::{Catalogue, Figure, Gpu, Peak};

use super::recording::plain;
use crate::options::ReplyOptions;
use crate::output::{Answer, DIM, Form, Reply, WARN, bytes, hinted};

/// List the GPUs that can be simulated, with the source of each figure
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage gpus
  tonnage gpus h100
  tonnage gpus --json")]
pub(crate) struct GpusOptions {
    /// Show one GPU, with the source of each figure.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Version of the JSON of this command.
const SCHEMA_VERSION: u32 = 1;

pub(crate) fn run(options: &GpusOptions, form: Form) -> Result<Reply> {
    let catalogue = Catalogue::embedded();
    if let Some(name) = &options.name {
        let gpu = find(&catalogue, name)?;
        let one = One {
            schema_version: SCHEMA_VERSION,
            gpu,
        };
        return Ok(Reply::new(form, Answer::Yes, &one, |_| {
            describe(gpu, &catalogue)
        })?);
    }
    let gpus = catalogue.gpus();
    let all = All {
        schema_version: SCHEMA_VERSION,
        gpus,
    };
    Ok(Reply::new(form, Answer::Yes, &all, |_| table(gpus))?)
}

/// The catalogue.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct All<'a> {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// Every GPU, in the order of the catalogue.
    gpus: &'a [Gpu],
}

/// One GPU of the catalogue.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct One<'a> {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// The requested GPU.
    gpu: &'a Gpu,
}

/// The names of the GPUs that hold a job which needs so much with a context of `context`, the smallest first.
pub(crate) fn that_hold(need: u64, context: u64) -> Vec<String> {
    let catalogue = Catalogue::embedded();
    let holding = catalogue.that_hold(need, context);
    holding.iter().map(|gpu| gpu.id.clone()).collect()
}

/// The GPU that the user means, or an error that lists similar names.
pub(crate) fn find<'a>(catalogue: &'a Catalogue, name: &str) -> Result<&'a Gpu> {
    catalogue
        .find(name)
        .map_err(|unknown| hinted(unknown.to_string(), UNKNOWN))
}

/// The next step after a name that the catalogue does not have.
const UNKNOWN: &str = "`tonnage gpus` lists them; `--capacity` gives any of them another size";

/// The environment variable that names the GPU of commands without `--gpu`.
const VARIABLE: &str = "TONNAGE_GPU";

/// The name of the GPU to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuChoice {
    /// One name, or several with commas.
    pub(crate) name: String,
    /// The variable or the file that has the name. None stands for the option, which needs no mention.
    pub(crate) source: Option<String>,
}

impl GpuChoice {
    /// The GPU by this name, or an error that names the source.
    pub(crate) fn find<'a>(&self, catalogue: &'a Catalogue) -> Result<&'a Gpu> {
        self.find_named(catalogue, &self.name)
    }

    /// The GPU by one of several names.
    pub(crate) fn find_named<'a>(&self, catalogue: &'a Catalogue, name: &str) -> Result<&'a Gpu> {
        catalogue.find(name).map_err(|unknown| {
            let read = self.source.as_ref();
            let read = read.map_or_else(String::new, |source| format!(" (named in {source})"));
            hinted(format!("{unknown}{read}"), UNKNOWN)
        })
    }

    /// The name and its source in words, unless the option has the name.
    pub(crate) fn mention(&self) -> Option<String> {
        let source = self.source.as_ref()?;
        Some(format!("{}, named in {}", self.name, plain(source)))
    }
}

/// The GPU of the option, else of the variable, else of the project around `folder`.
pub(crate) fn choose(option: Option<&str>, folder: &Path) -> Result<GpuChoice> {
    choose_from(option, std::env::var(VARIABLE).ok(), folder)
}

fn choose_from(option: Option<&str>, variable: Option<String>, folder: &Path) -> Result<GpuChoice> {
    if let Some(name) = option {
        return Ok(GpuChoice {
            name: name.to_owned(),
            source: None,
        });
    }
    default_from(variable, folder)?.ok_or_else(|| {
        hinted(
            "no GPU is named",
            "name one with --gpu, e.g. --gpu rtx4090, or for a project in TONNAGE_GPU or `gpu` of tonnage.toml; \
             `tonnage gpus` lists them",
        )
    })
}

/// The GPU of the variable, else of the project around `folder`; none if neither names one.
#[cfg(feature = "jobs")]
pub(crate) fn default_choice(folder: &Path) -> Result<Option<GpuChoice>> {
    default_from(std::env::var(VARIABLE).ok(), folder)
}

fn default_from(variable: Option<String>, folder: &Path) -> Result<Option<GpuChoice>> {
    if let Some(name) = variable.filter(|name| !name.trim().is_empty()) {
        return Ok(Some(GpuChoice {
            name,
            source: Some(VARIABLE.to_owned()),
        }));
    }
    // A file is named as seen from the working directory.
    let mut above = PathBuf::new();
    for folder in folder.ancestors() {
        if let Some((name, file)) = configured(folder)? {
            return Ok(Some(GpuChoice {
                name,
                source: Some(above.join(file).display().to_string()),
            }));
        }
        above.push("..");
    }
    Ok(None)
}

/// `gpu` of `tonnage.toml`, or of `tool.tonnage` in `pyproject.toml`, with the name of the file.
fn configured(folder: &Path) -> Result<Option<(String, &'static str)>> {
    for (file, tables) in [
        ("tonnage.toml", &[][..]),
        ("pyproject.toml", &["tool", "tonnage"]),
    ] {
        let path = folder.join(file);
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let wrong = |why: String| {
            let hint = "`gpu` is a name that `tonnage gpus` lists";
            hinted(format!("{} is wrong: {why}", path.display()), hint)
        };
        let root: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let mut table = Some(&root);
        for name in tables {
            table = table.and_then(|table| table.get(*name)?.as_table());
        }
        match table.and_then(|table| table.get("gpu")) {
            Some(toml::Value::String(name)) => return Ok(Some((name.clone(), file))),
            Some(_) => return Err(wrong("`gpu` is not a text".to_owned())),
            None => {}
        }
    }
    Ok(None)
}

fn table(gpus: &[Gpu]) -> String {
    let mut text = format!(
        "{:<16} {:>10} {:<8} {:>10} {:<8} {:>5} {:>4}  {}\n",
        "name", "capacity", "", "context", "", "sm", "SMs", "as the driver calls it"
    );
    for gpu in gpus {
        if !gpu.supported {
            let reason = gpu.reason.as_deref().unwrap_or_default();
            let _ = writeln!(text, "{:<16} {WARN}not supported{WARN:#}: {reason}", gpu.id);
            continue;
        }
        let _ = writeln!(
            text,
            "{:<16} {:>10} {DIM}{:<8}{DIM:#} {:>10} {DIM}{:<8}{DIM:#} {:>5} {:>4}  {}",
            gpu.id,
            bytes(gpu.total_memory.value),
            gpu.total_memory.known.as_str(),
            bytes(gpu.context.value),
            gpu.context.known.as_str(),
            gpu.compute_capability.to_string(),
            gpu.sm_count.value,
            gpu.name,
        );
    }
    text.push_str(
        "\n`tonnage gpus NAME` shows where each figure comes from, and the MIG slices of a GPU.",
    );
    text
}

fn describe(gpu: &Gpu, catalogue: &Catalogue) -> String {
    let mut text = format!("{}: {}\n", gpu.id, gpu.name);
    if let Some(reason) = &gpu.reason {
        let _ = writeln!(text, "  not supported: {reason}");
    }
    if !gpu.aliases.is_empty() {
        let _ = writeln!(text, "  also called {}", gpu.aliases.join(", "));
    }
    let own = |slice: &&Gpu| slice.id.split_once('/').map(|(whole, _)| whole) == Some(&*gpu.id);
    let slices: Vec<&str> = catalogue
        .slices()
        .iter()
        .filter(own)
        .map(|slice| &*slice.id)
        .collect();
    if !slices.is_empty() {
        let _ = writeln!(text, "  MIG slices  {}", slices.join(", "));
    }
    let size = |figure: &Figure<u64>| format!("{} ({} bytes)", bytes(figure.value), figure.value);
    line(
        &mut text,
        "capacity",
        size(&gpu.total_memory),
        &gpu.total_memory,
    );
    line(&mut text, "context", size(&gpu.context), &gpu.context);
    let _ = writeln!(
        text,
        "  {:<14} {} ({})",
        "capability", gpu.compute_capability, gpu.architecture
    );
    line(&mut text, "SMs", gpu.sm_count.value, &gpu.sm_count);
    line(
        &mut text,
        "L2 cache",
        bytes(gpu.l2_bytes.value),
        &gpu.l2_bytes,
    );
    line(
        &mut text,
        "shared memory",
        format!("{} a block", bytes(gpu.limits.shared_per_block_optin.value)),
        &gpu.limits.shared_per_block_optin,
    );
    if let Some(channels) = &gpu.nccl_channels {
        line(&mut text, "NCCL channels", channels.value, channels);
    }
    peak(&mut text, &gpu.peak);
    text.trim_end().to_owned()
}

/// How fast it is at most, as far as that is published; what has one source in one line.
fn peak(text: &mut String, peak: &Peak) {
    let operations = |figure: &Figure<u64>| format!("{} TFLOP/s", figure.value as f64 / 1e12);
    let rate = |figure: &Figure<u64>| format!("{} GB/s", figure.value as f64 / 1e9);
    let figures = [
        (
            &peak.flops_8,
            operations as fn(&Figure<u64>) -> String,
            "in 8 bits",
        ),
        (&peak.flops_16, operations, "in 16 bits"),
        (&peak.flops_tf32, operations, "in TF32"),
        (&peak.flops_32, operations, "in 32 bits"),
        (&peak.flops_64, operations, "in 64 bits"),
        (&peak.memory_bytes, rate, "of memory"),
        (&peak.host_bytes, rate, "to or from the host"),
    ];
    let mut lines: Vec<(&Figure<u64>, Vec<String>)> = Vec::new();
    for (figure, said, what) in figures {
        let Some(figure) = figure else {
            continue;
        };
        let said = format!("{} {what}", said(figure));
        match lines.last_mut() {
            Some((first, all)) if first.source == figure.source => all.push(said),
            _ => lines.push((figure, vec![said])),
        }
    }
    for (figure, said) in lines {
        line(text, "peak", said.join(", "), figure);
    }
}

fn line<T>(text: &mut String, name: &str, value: impl Display, figure: &Figure<T>) {
    let _ = writeln!(
        text,
        "  {name:<14} {value}\n  {:<14} {DIM}{}: {}{DIM:#}",
        "", figure.known, figure.source
    );
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The name of the GPU and its source, or the error.
    fn chosen(
        option: Option<&str>,
        variable: Option<&str>,
        folder: &Path,
    ) -> Result<(String, Option<String>), String> {
        let choice = choose_from(option, variable.map(str::to_owned), folder);
        let choice = choice.map_err(|error| error.to_string())?;
        Ok((choice.name, choice.source))
    }

    #[test]
    fn the_option_precedes_the_variable_and_the_variable_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pyproject.toml");
        fs::write(path, "[tool.tonnage]\ngpu = \"rtx4090\"\n").unwrap();
        let named = |name: &str, source: &str| Ok((name.to_owned(), Some(source.to_owned())));
        let from_option = chosen(Some("l4"), Some("t4"), folder.path());
        assert_eq!(from_option, Ok(("l4".to_owned(), None)));
        let from_variable = chosen(None, Some("t4"), folder.path());
        assert_eq!(from_variable, named("t4", "TONNAGE_GPU"));
        // An empty variable counts as unset.
        let from_file = chosen(None, Some(""), folder.path());
        assert_eq!(from_file, named("rtx4090", "pyproject.toml"));
    }

    #[test]
    fn the_nearest_file_with_a_gpu_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("jobs/small");
        fs::create_dir_all(&inner).unwrap();
        let write = |path: &str, text: &str| fs::write(folder.path().join(path), text).unwrap();
        write("pyproject.toml", "[tool.tonnage]\ngpu = \"rtx4090\"\n");
        // A file without the key is not the end of the search.
        write("jobs/small/pyproject.toml", "[project]\nname = \"x\"\n");
        let named = |name: &str, source: &str| Ok((name.to_owned(), Some(source.to_owned())));
        let found = chosen(None, None, &inner);
        assert_eq!(found, named("rtx4090", "../../pyproject.toml"));
        write("jobs/tonnage.toml", "gpu = \"l4\"\n");
        assert_eq!(chosen(None, None, &inner), named("l4", "../tonnage.toml"));
        write("jobs/small/tonnage.toml", "gpu = 4090\n");
        let wrong = chosen(None, None, &inner).unwrap_err();
        assert!(wrong.contains("`gpu` is not a text"), "{wrong}");
    }

    #[test]
    fn an_unknown_name_is_reported_with_its_source() {
        let catalogue = Catalogue::embedded();
        let error = |source: Option<&str>| {
            let choice = GpuChoice {
                name: "nope".to_owned(),
                source: source.map(str::to_owned),
            };
            let error = choice.find(&catalogue).unwrap_err();
            let hint = crate::output::Failure::from_error(&error).hint;
            (error.to_string(), hint)
        };
        let (typed, hint) = error(None);
        assert_eq!(typed, "no GPU in the catalogue is called \"nope\"");
        let expected = format!("{typed} (named in ../pyproject.toml)");
        assert_eq!(error(Some("../pyproject.toml")), (expected, hint));
    }
}
