// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage gpus`: the catalogue.

use std::fmt::{Display, Write as _};
use std::path::Path;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tonnage_gpus::{Catalogue, Figure, Gpu, Peak};

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
    /// The GPU that was asked for.
    gpu: &'a Gpu,
}

/// The names of the GPUs that hold a job which needs so much with a context of `context`, the smallest first.
pub(crate) fn that_hold(need: u64, context: u64) -> Vec<String> {
    let catalogue = Catalogue::embedded();
    let holding = catalogue.that_hold(need, context);
    holding.iter().map(|gpu| gpu.id.clone()).collect()
}

/// The GPU a person means, or an error that says what they could have meant.
pub(crate) fn find<'a>(catalogue: &'a Catalogue, name: &str) -> Result<&'a Gpu> {
    catalogue.find(name).map_err(|unknown| {
        let hint = "`tonnage gpus` lists them; `--capacity` gives any of them another size";
        hinted(unknown.to_string(), hint)
    })
}

/// The GPU that was named, or the one of the project in `folder`.
pub(crate) fn name_of(typed: Option<&str>, folder: &Path) -> Result<String> {
    if let Some(name) = typed {
        return Ok(name.to_owned());
    }
    match configured(folder)? {
        Some(name) => Ok(name),
        None => Err(hinted(
            "no GPU is named",
            "name one with --gpu, e.g. --gpu rtx4090, or for a project in TONNAGE_GPU or `gpu` of tonnage.toml; \
             `tonnage gpus` lists them",
        )),
    }
}

/// `gpu` of `tonnage.toml`, or of `tool.tonnage` in `pyproject.toml`.
fn configured(folder: &Path) -> Result<Option<String>> {
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
            Some(toml::Value::String(name)) => return Ok(Some(name.clone())),
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
