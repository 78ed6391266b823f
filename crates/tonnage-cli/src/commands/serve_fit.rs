// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage fit` of a vLLM server: how many requests of which length it holds at once.

use std::ffi::OsString;
use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use tonnage_fit::{ServeError, ServeEvidence, ServeRequest, Serving, serve_fit};
use tonnage_gpus::Catalogue;
use tonnage_run::Options;

use super::fit::Screen;
use super::run::job_of;
use crate::Surroundings;
use crate::options::{GpuName, GpuOptions, JobCommand, ReplyOptions, ScreenOptions, SideEffects};
use crate::output::{Answer, BAD, DIM, Form, GOOD, Reply, WARN, bytes, count, hinted};

/// How many requests of which length a vLLM server holds at once, with the flags to paste
///
/// The command is dry-run as it is: vLLM measures its memory when it starts, and
/// logs how many tokens its KV cache holds. The number of requests of each length
/// follows from that. The shortest and the longest are dry-run again with their
/// flags, which also shows whether a request of the model takes memory in
/// proportion to its length.
///
/// With `--load-format dummy` in the command no weights are needed, only the
/// model's configuration.
///
/// Exit code: 0 it starts, 1 it does not fit, 2 the server failed otherwise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage fit --gpu l4 -- vllm serve ./model --load-format dummy
  tonnage fit --gpu h100 --gpus 2 -- vllm serve ./model --load-format dummy --tensor-parallel-size 2")]
pub(crate) struct ServeFitOptions {
    #[command(flatten)]
    pub(crate) named: GpuName,
    /// How many of them the machine has.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) gpus: u8,
    #[command(flatten)]
    pub(crate) gpu: GpuOptions,
    /// Skip the two dry runs that confirm the answer.
    #[arg(long)]
    pub(crate) no_check: bool,
    #[command(flatten)]
    pub(crate) screen: ScreenOptions,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
    #[command(flatten)]
    pub(crate) effects: SideEffects,
    #[command(flatten)]
    pub(crate) job: JobCommand,
}

pub(crate) fn run(
    options: &ServeFitOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    let server = Server {
        gpu: options.named.gpu.as_deref(),
        gpus: options.gpus,
        device: &options.gpu,
        check: !options.no_check,
        screen: &options.screen,
        effects: &options.effects,
        command: &options.job.command,
    };
    server.answer(form, surroundings)
}

/// A server whose requests are counted.
pub(super) struct Server<'a> {
    pub(super) gpu: Option<&'a str>,
    pub(super) gpus: u8,
    pub(super) device: &'a GpuOptions,
    pub(super) check: bool,
    pub(super) screen: &'a ScreenOptions,
    pub(super) effects: &'a SideEffects,
    pub(super) command: &'a [OsString],
}

impl Server<'_> {
    pub(super) fn answer(&self, form: Form, surroundings: &Surroundings) -> Result<Reply> {
        let catalogue = Catalogue::embedded();
        let folder = super::recording::job_folder(surroundings);
        let choice = super::gpus::choose(self.gpu, &folder)?;
        let gpu = choice.find(&catalogue)?;
        let mut machine = Options::new(gpu.clone());
        machine.gpus = self.gpus;
        machine.capacity = self.device.capacity;
        machine.allow_real_gpu = self.device.allow_real_gpu;
        self.effects.apply(&mut machine);
        let request = ServeRequest {
            job: job_of(self.command, true, surroundings),
            options: machine,
            check: self.check,
        };
        let screen = Screen::new(self.screen.no_progress, surroundings);
        let serving = serve_fit(&request, &screen);
        screen.finish();
        let hint = "write the command of the server: tonnage fit --gpu l4 -- vllm serve MODEL";
        let serving = serving.map_err(|error| match error {
            ServeError::NotVllm => hinted(error.to_string(), hint),
            ServeError::Run(error) => anyhow::Error::new(error),
            other => anyhow::Error::new(other),
        })?;
        let reply = Reply::new(form, answer(&serving), &serving, |serving| {
            let mut text = text(serving);
            if let Some(gpu) = choice.mention() {
                let _ = writeln!(text, "  {DIM}simulates {gpu}{DIM:#}");
            }
            text
        });
        Ok(reply?)
    }
}

fn answer(serving: &Serving) -> Answer {
    match (&serving.failure, serving.startup.kv_cache_tokens) {
        (None, _) if !serving.rows.is_empty() => Answer::Yes,
        (Some(_), None) if serving.startup.longest_possible.is_none() => Answer::Failed,
        _ => Answer::No,
    }
}

fn text(serving: &Serving) -> String {
    let startup = &serving.startup;
    let mut text = String::new();
    let machine = if serving.gpus == 1 {
        format!("{} ({})", serving.gpu, bytes(serving.capacity))
    } else {
        format!(
            "{} × {} ({} each)",
            serving.gpus,
            serving.gpu,
            bytes(serving.capacity)
        )
    };
    if let Some(failure) = &serving.failure {
        let _ = writeln!(text, "{BAD}does not start{BAD:#} on {machine}");
        let _ = writeln!(text, "  the server's log:");
        for line in failure.lines() {
            let _ = writeln!(text, "    {line}");
        }
        return text;
    }
    let _ = writeln!(text, "{GOOD}starts{GOOD:#} on {machine}");
    if let Some(length) = serving.shortened_to {
        let _ = writeln!(
            text,
            "  {WARN}not as it is{WARN:#}: the KV cache is too small for one request of the model's own length; \
             --max-model-len {length} was set"
        );
    }
    let gib = |gib: Option<f64>| gib.map_or("not known".to_owned(), |gib| format!("{gib} GiB"));
    let version = startup.version.as_deref().unwrap_or("of unknown version");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "  {DIM}{name:<11}{DIM:#}  {value}");
    };
    row(
        "weights",
        &format!(
            "{} on each GPU, according to vLLM {version}",
            gib(startup.weights_gib)
        ),
    );
    let tokens = startup.kv_cache_tokens.unwrap_or(0);
    row(
        "KV cache",
        &format!(
            "{} on each GPU, {} tokens, according to vLLM in the dry run",
            gib(startup.kv_cache_gib),
            count(tokens)
        ),
    );
    row(
        "in use",
        &format!("{} at most while it starts", bytes(serving.most_in_use)),
    );
    let _ = writeln!(
        text,
        "\n  tokens of a request   requests at once   known      add to the command"
    );
    for one in &serving.rows {
        let known = match one.known {
            ServeEvidence::DryRun => "dry run",
            ServeEvidence::Computed => "computed",
        };
        let _ = writeln!(
            text,
            "  {:>19}   {:>16}   {known:<8}   {}",
            count(one.length),
            count(one.requests),
            one.flags
        );
    }
    let _ = writeln!(
        text,
        "\n  a request counts with its prompt and its answer, all of them at their full length at the same time"
    );
    for line in remarks(serving) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// The basis of the answer.
fn remarks(serving: &Serving) -> Vec<String> {
    let mut remarks = Vec::new();
    match serving.proportional {
        Some(true) => remarks.push(
            "computed: from the smallest KV cache of the dry runs; --max-num-seqs changes it a little".to_owned(),
        ),
        Some(false) => remarks.push(
            "only what was dry-run is listed: a request of this model does not take memory in proportion to its \
             length (a sliding window or a hybrid model)"
                .to_owned(),
        ),
        None => remarks.push(
            "not checked by a run at another length: of a hybrid model, or one with a sliding window, the computed \
             numbers are wrong"
                .to_owned(),
        ),
    }
    remarks.push(
        "not counted: images of kernels and handles of libraries, which take 50 to 350 MiB of the KV cache of a real GPU"
            .to_owned(),
    );
    remarks.extend(
        serving
            .unknown
            .iter()
            .map(|what| format!("not known: {what}")),
    );
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A result as a program would get it, read back.
    fn shown(serving: &Serving) -> String {
        crate::output::without_colour(&text(serving))
    }

    #[test]
    fn an_answer_is_a_table_with_flags() {
        let serving = Serving::example();
        insta::assert_snapshot!(shown(&serving));
        assert_eq!(json!(serving)["rows"][0]["known"], "dry_run");
    }

    #[test]
    fn a_server_that_does_not_start_shows_its_log() {
        let mut serving = Serving::example();
        serving.failure = Some("ValueError: no".to_owned());
        let text = shown(&serving);
        assert!(text.starts_with("does not start on NVIDIA Test"), "{text}");
        assert!(text.contains("    ValueError: no"), "{text}");
    }
}
