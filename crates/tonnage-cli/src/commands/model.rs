// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage model`: the memory that a model needs, from its name, without a script and without torch.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use tonnage_gpus::Catalogue;
use tonnage_model::{
    Estimate, Evidence, HubError, HubSettings, Kind, LocateError, Origin, Recipe, Request, Row,
    Settings, WeightType, estimate, locate, recipe, recipes,
};

use super::gpus;
use crate::Surroundings;
use crate::options::ReplyOptions;
use crate::output::{
    Answer, BAD, DIM, Form, GOOD, HINT, Reply, WARN, bytes, count, hinted, plural,
};

/// Compute the least GPU memory that a model needs, by its name
///
/// NAME is a model on the Hugging Face hub, a local directory, a config.json, a
/// safetensors file, or a GGUF file. Only configurations and headers are read,
/// with HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, and the local cache as in
/// huggingface_hub. No weights are downloaded, and no torch is needed.
///
/// Every figure is a lower bound: it excludes GPUs that are too small, and a run
/// needs more. --save writes the script of a method, which `tonnage run` dry-runs
/// for the exact answer.
///
/// Exit code: 0 done, 1 the chosen GPU is too small for every listed method.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage model Qwen/Qwen3-8B
  tonnage model Qwen/Qwen3-8B --train lora --gpu rtx4090
  tonnage model ./config.json --seq 8192 --batch 4 --json
  tonnage model Qwen3-8B-Q4_K_M.gguf --gpu rtx3060
  tonnage model Qwen/Qwen3-8B --train qlora --save train.py")]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub(crate) struct ModelOptions {
    /// The model.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// List this method of training only.
    #[arg(long, value_enum, value_name = "METHOD")]
    pub(crate) train: Option<Training>,
    /// List generation with transformers only.
    #[arg(long, conflicts_with = "train")]
    pub(crate) infer: bool,
    /// List serving with vLLM only.
    #[arg(long, conflicts_with_all = ["train", "infer"])]
    pub(crate) serve: bool,
    /// Sequences of a step, or requests at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) batch: u64,
    /// Tokens of a sequence.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) seq: u64,
    /// The GPU in question; `tonnage gpus` lists them. `any` ignores the default [env: TONNAGE_GPU] [default: `gpu` in
    /// the nearest tonnage.toml, or in pyproject.toml under tool.tonnage, or any].
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// The type of weights.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Dtype::Bfloat16)]
    pub(crate) dtype: Dtype,
    /// Quantize the linear layers with bitsandbytes for generation and serving.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) quant: Option<Quant>,
    /// The branch, tag, or commit on the hub.
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub(crate) revision: String,
    /// Write the script of the one listed method; `-` is stdout.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) save: Option<PathBuf>,
    /// Overwrite the script if it exists.
    #[arg(long, requires = "save")]
    pub(crate) force: bool,
    /// Print the table as Markdown, for a model card or an issue.
    #[arg(long, conflicts_with_all = ["json", "save"])]
    pub(crate) markdown: bool,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Methods of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Training {
    /// All parameters, with AdamW.
    Full,
    /// LoRA adapters of rank 16.
    Lora,
    /// LoRA adapters, and linear layers of 4 bits.
    Qlora,
    /// DPO with LoRA adapters.
    Dpo,
    /// GRPO with LoRA adapters.
    Grpo,
}

/// Types of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// 16 bits.
    Bfloat16,
    /// 16 bits.
    Float16,
    /// 32 bits.
    Float32,
}

/// Types of quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quant {
    /// 8 bits.
    Int8,
    /// 4 bits.
    Nf4,
}

pub(crate) fn run(
    options: &ModelOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    let recipes = listed(options);
    if let Some(path) = &options.save {
        return save(options, path, &recipes);
    }
    let catalogue = Catalogue::embedded();
    let gpu = match options.gpu.as_deref() {
        Some("any") => None,
        Some(name) => Some(gpus::find(&catalogue, name)?),
        None => match gpus::default_choice(&super::recording::job_folder(surroundings))? {
            Some(choice) => Some(choice.find(&catalogue)?),
            None => None,
        },
    };
    let model = locate(
        &options.name,
        &options.revision,
        &HubSettings::from_environment(),
    )
    .map_err(with_hint)?;
    let request = Request {
        recipes,
        settings: Settings {
            batch: options.batch,
            sequence: options.seq,
            weights: match options.dtype {
                Dtype::Float32 => WeightType::Float32,
                Dtype::Bfloat16 | Dtype::Float16 => WeightType::Float16,
            },
        },
        quantized: options.quant.map(|quant| match quant {
            Quant::Int8 => WeightType::Int8,
            Quant::Nf4 => WeightType::Nf4,
        }),
        gpu,
    };
    let estimate = estimate(&model, &request, &catalogue).map_err(|error| {
        let hint = "name a model with a configuration that tonnage knows, or with safetensors files; \
                    `tonnage run` answers for any script";
        hinted(error.to_string(), hint)
    })?;
    let excluded = |row: &Row| row.on_gpu.as_ref().is_some_and(|it| it.excluded);
    let answer = if !estimate.rows.is_empty() && estimate.rows.iter().all(excluded) {
        Answer::No
    } else {
        Answer::Yes
    };
    let reply = Reply::new(form, answer, &estimate, |estimate| {
        if options.markdown {
            markdown(estimate)
        } else {
            text(estimate)
        }
    });
    Ok(reply?)
}

/// The methods that are listed.
fn listed(options: &ModelOptions) -> Vec<Recipe> {
    let name = match (options.train, options.infer, options.serve) {
        (Some(Training::Full), ..) => "full",
        (Some(Training::Lora), ..) => "lora",
        (Some(Training::Qlora), ..) => "qlora",
        (Some(Training::Dpo), ..) => "dpo",
        (Some(Training::Grpo), ..) => "grpo",
        (None, true, _) => "infer",
        (None, false, true) => "serve",
        (None, false, false) => return recipes(),
    };
    recipe(name).into_iter().collect()
}

/// Writes the script of a method.
fn save(options: &ModelOptions, path: &Path, recipes: &[Recipe]) -> Result<Reply> {
    let [recipe] = recipes else {
        return Err(hinted(
            "--save writes the script of one method",
            "name it: --train full, lora, qlora, dpo, or grpo, --infer, or --serve",
        ));
    };
    if path == Path::new("-") {
        let mut reply = Reply::silent(Answer::Yes);
        reply.text = Some(recipe.script.trim_end().to_owned());
        return Ok(reply);
    }
    if path.exists() && !options.force {
        return Err(hinted(
            format!("{} exists", path.display()),
            "overwrite it with --force",
        ));
    }
    std::fs::write(path, recipe.script)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let mut reply = Reply::silent(Answer::Yes);
    let script = path.display();
    let name = shlex::try_quote(&options.name).unwrap_or_default();
    let (batch, seq) = (options.batch, options.seq);
    reply.text = Some(format!(
        "wrote {script}: {}\n  {HINT}next{HINT:#}  tonnage run --gpu {} {script} --model {name} --batch {batch} \
         --seq {seq}\n  \
         it imports {}",
        recipe.about,
        options
            .gpu
            .as_deref()
            .filter(|gpu| *gpu != "any")
            .unwrap_or("NAME"),
        recipe.packages.join(", ")
    ));
    Ok(reply)
}

/// The error with its next step.
fn with_hint(error: LocateError) -> anyhow::Error {
    let hint = match &error {
        LocateError::NoSuchPath(_) => {
            "name a file, a directory, or a model on the hub such as Qwen/Qwen3-8B"
        }
        LocateError::Hub(HubError::Gated(name)) => {
            let hint = format!(
                "request access on the page of {name}, then set HF_TOKEN or run `hf auth login`"
            );
            return hinted(error.to_string(), hint);
        }
        LocateError::Hub(HubError::Missing { .. }) => {
            "check the spelling; for a private model, set HF_TOKEN or run `hf auth login`"
        }
        LocateError::Hub(HubError::Token) => {
            "set HF_TOKEN to a valid token, or run `hf auth login`"
        }
        LocateError::Hub(HubError::Revision { .. }) => "--revision is a branch, a tag, or a commit",
        LocateError::Hub(HubError::Offline(_)) => {
            "unset HF_HUB_OFFLINE, or name a local directory or config.json"
        }
        LocateError::Hub(HubError::Unreachable { .. }) => {
            "check the network and HF_ENDPOINT, or name a local directory or config.json"
        }
        LocateError::Hub(HubError::Name(_)) => {
            "a name on the hub is OWNER/MODEL, such as Qwen/Qwen3-8B"
        }
        _ => "name a directory with a config.json, or a GGUF file",
    };
    let hint = hint.to_owned();
    hinted(format!("{:#}", anyhow::Error::new(error)), hint)
}

/// A name in the terms of a reader.
fn evidence(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Run => "run",
        Evidence::Computed => "computed",
        Evidence::Read => "read",
    }
}

/// The first line: the answer.
fn headline(estimate: &Estimate) -> String {
    let names = |excluded: bool| {
        let rows = estimate.rows.iter();
        let rows = rows.filter(|row| {
            row.on_gpu
                .as_ref()
                .is_some_and(|it| it.excluded == excluded)
        });
        rows.map(|row| &*row.method).collect::<Vec<_>>().join(", ")
    };
    let Some(gpu) = &estimate.gpu else {
        let least = estimate
            .rows
            .iter()
            .min_by_key(|row| row.needs_at_least.bytes);
        return match least {
            Some(row) => {
                let need = bytes(row.needs_at_least.bytes);
                format!(
                    "{}: at least {GOOD}{need}{GOOD:#} ({})",
                    estimate.model, row.method
                )
            }
            None => format!("{}: no method is computed", estimate.model),
        };
    };
    let machine = format!("{} ({})", gpu.id, bytes(gpu.total_memory));
    match (&*names(true), &*names(false)) {
        ("", "") => format!("{}: no method is computed", estimate.model),
        ("", left) => format!("{WARN}may fit{WARN:#} on {machine}: {left}"),
        (out, "") => format!("{BAD}does not fit{BAD:#} on {machine}: {out}"),
        (out, left) => {
            format!("{WARN}may fit{WARN:#} on {machine}: {left}; {BAD}does not fit{BAD:#}: {out}")
        }
    }
}

/// The model in words.
fn described(estimate: &Estimate) -> String {
    let source = match estimate.origin {
        Origin::Local => "local files",
        Origin::Cache => "the local cache",
        Origin::Hub => "the hub",
    };
    let parameters = &estimate.parameters;
    let mut text = format!(
        "{}: {} parameters, {} from {source}",
        estimate.model,
        count(parameters.count),
        match parameters.evidence {
            Evidence::Read => "read",
            _ => "computed",
        }
    );
    if let Some(shapes) = &estimate.shapes {
        let _ = write!(
            text,
            "; {}, {}",
            shapes.family,
            plural(shapes.layers, "layer")
        );
    }
    if let Some(stored) = &estimate.stored {
        let kind = stored.usual_type().unwrap_or("no type");
        let _ = write!(text, "; {} stored, mostly {kind}", bytes(stored.bytes));
    }
    text
}

/// The cells of a row.
fn cells(row: &Row) -> [String; 5] {
    let smallest = match &row.not_excluded[..] {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [one, others @ ..] => format!("{one} and {} more", others.len()),
    };
    let limit = |limit: Option<u64>| limit.map_or("-".to_owned(), count);
    let (longest, batch) = match &row.on_gpu {
        Some(on_gpu) if on_gpu.excluded => ("does not fit".to_owned(), String::new()),
        Some(on_gpu) => (limit(on_gpu.longest_sequence), limit(on_gpu.largest_batch)),
        None => (String::new(), String::new()),
    };
    [
        row.method.clone(),
        bytes(row.needs_at_least.bytes),
        smallest,
        longest,
        batch,
    ]
}

const HEADER: [&str; 5] = [
    "method",
    "at least",
    "smallest GPUs left",
    "longest, at most",
    "batch, at most",
];

fn text(estimate: &Estimate) -> String {
    let mut text = format!("{}\n  {}\n", headline(estimate), described(estimate));
    if estimate.rows.is_empty() {
        return with_remarks(text, estimate);
    }
    let _ = writeln!(
        text,
        "  batch {}, {} tokens; every figure is {WARN}a lower bound{WARN:#}, and a run needs more\n",
        count(estimate.batch),
        count(estimate.sequence)
    );
    let columns = if estimate.gpu.is_some() { 5 } else { 3 };
    let rows: Vec<[String; 5]> = estimate.rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([HEADER[column].len()]).max().unwrap_or(0)
    };
    let mut line = |cells: [&str; 5], known: &str| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate().take(columns) {
            let width = width(column);
            let _ = match column {
                1 => write!(line, "{cell:>width$}  {DIM}{known:<8}{DIM:#}  "),
                3 | 4 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        let _ = writeln!(text, "  {}", line.trim_end());
    };
    line(HEADER, "known");
    for (cells, row) in rows.iter().zip(&estimate.rows) {
        line(cells.each_ref().map(String::as_str), evidence(row.evidence));
    }
    text.push('\n');
    if let [row] = &estimate.rows[..] {
        let parts = row.needs_at_least.parts.iter();
        let parts: Vec<String> = parts
            .map(|part| format!("{} {}", part.name, bytes(part.bytes)))
            .collect();
        let _ = writeln!(
            text,
            "  {}: {}\n  {}",
            row.needs_at_least.moment,
            parts.join(", "),
            row.about
        );
    }
    with_remarks(text, estimate)
}

/// The parts that a bound counts, and the parts that it does not.
const COUNTED: &str = "computed: weights, gradients, optimizer state, inputs of layers, logits, and KV cache; \
                       not counted: \
                       other activations, workspaces, fragmentation, and CUDA overhead beyond the context";

/// The same for a GGUF file.
const COUNTED_OF_GGUF: &str = "computed: the tensors of the file, and a KV cache of 16 bits; not counted: compute \
                               buffers, \
                               and CUDA overhead beyond the context";

fn with_remarks(mut text: String, estimate: &Estimate) -> String {
    let possible = |row: &&Row| row.on_gpu.as_ref().is_none_or(|it| !it.excluded);
    let row = estimate
        .rows
        .iter()
        .find(possible)
        .or(estimate.rows.first());
    let is_gguf = row.is_some_and(|row| row.method == "llama.cpp");
    let is_decoder = estimate
        .shapes
        .as_ref()
        .is_none_or(|shapes| shapes.kind == Kind::Decoder);
    let mut write = |remark: &str| {
        for (index, line) in crate::output::wrapped(remark, 96).into_iter().enumerate() {
            let indent = if index == 0 { "  " } else { "    " };
            let _ = writeln!(text, "{indent}{DIM}{line}{DIM:#}");
        }
    };
    if row.is_some() {
        write(if is_gguf { COUNTED_OF_GGUF } else { COUNTED });
    }
    for remark in &estimate.remarks {
        write(remark);
    }
    // The scripts are for models that write text.
    if let Some(row) = row.filter(|_| !is_gguf && is_decoder) {
        let option = match &*row.method {
            "infer" => "--infer".to_owned(),
            "serve" => "--serve".to_owned(),
            method => format!("--train {method}"),
        };
        let name = shlex::try_quote(&estimate.model).unwrap_or_default();
        let _ = writeln!(
            text,
            "  {HINT}next{HINT:#}  tonnage model {name} {option} --save train.py, to dry-run it for the exact need"
        );
    }
    text
}

fn markdown(estimate: &Estimate) -> String {
    let columns = if estimate.gpu.is_some() { 5 } else { 3 };
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("GPU memory of {}\n\n", described(estimate));
    text.push_str(&line(HEADER.iter().take(columns).copied().collect()));
    text.push_str(&line(vec!["---"; columns]));
    for row in &estimate.rows {
        let cells = cells(row);
        text.push_str(&line(
            cells.iter().take(columns).map(String::as_str).collect(),
        ));
    }
    let _ = write!(
        text,
        "\nLower bounds at batch {} and {} tokens, {COUNTED}. Made with `tonnage model`, {}.",
        count(estimate.batch),
        count(estimate.sequence),
        env!("CARGO_PKG_VERSION")
    );
    text
}

#[cfg(test)]
mod tests {
    use tonnage_model::ConfigError;

    use super::*;

    fn shown(config: &str, line: &str) -> (Answer, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        let path = path.display().to_string();
        let words = ["tonnage", "model", &path]
            .into_iter()
            .chain(line.split_whitespace());
        let reply = crate::ask(words.map(Into::into)).unwrap();
        (
            reply.answer,
            reply.text.unwrap().replace(&path, "config.json"),
        )
    }

    /// The configuration of Llama 3 8B.
    const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": false, "max_position_embeddings": 8192}"#;

    #[test]
    fn a_table_lists_every_method() {
        let (answer, text) = shown(LLAMA, "--gpu rtx4090");
        assert_eq!(answer, Answer::Yes);
        assert!(text.starts_with("may fit on rtx4090 ("), "{text}");
        for words in [
            "): lora, qlora, dpo, grpo, infer, serve; does not fit: full\n",
            "8,030,261,248 parameters, computed from local files; llama, 32 layers\n",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
        let rows = text
            .lines()
            .filter(|line| line.contains(" computed  "))
            .count();
        assert_eq!(rows, 7, "{text}");
    }

    #[test]
    fn one_method_lists_its_parts() {
        let (answer, text) = shown(LLAMA, "--gpu rtx4090 --train full");
        assert_eq!(answer, Answer::No);
        // Two bytes of each of 8,030,261,248 parameters, as much for gradients, and twice as much for the optimizer.
        let parts = "weights 14.96 GiB, optimizer state 29.92 GiB, gradients 14.96 GiB";
        assert!(text.contains("59.83 GiB") && text.contains(parts), "{text}");
        let (_, text) = shown(LLAMA, "--gpu any --train lora --markdown");
        assert!(text.contains("| lora | 18.37 GiB | "), "{text}");
    }

    #[test]
    fn an_unknown_family_is_an_error_with_its_name() {
        let error = ConfigError::UnknownFamily("mamba".to_owned());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, r#"{"model_type": "mamba"}"#).unwrap();
        let words = ["tonnage".into(), "model".into(), path.into_os_string()];
        let failure = crate::ask(words).unwrap_err();
        assert!(
            failure.message.starts_with(&error.to_string()),
            "{failure:?}"
        );
    }
}
