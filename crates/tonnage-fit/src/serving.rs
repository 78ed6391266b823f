// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests of which length a server holds at once: the user's own `vllm serve …` line, dry-run.
//!
//! vLLM measures its own memory when it starts and logs how many tokens its KV cache has. One dry run of the line gives
//! that. A request takes blocks for its length, so the rest is a division, as vLLM itself does it. Two of the answers
//! are run again with their flags: they show what the flags change, and whether a request takes memory in proportion to
//! its length at all, which hybrid models and sliding windows do not.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tonnage_analysis::verdict::Outcome;
use tonnage_run::{
    DryRun, Job, JobOutput, Observer, Options, Progress, RunError, dry_run, private_folder,
};

use crate::variants::{Stage, Watcher};

/// Version of the JSON that [`Serving`] serialises to; raised when a field changes its meaning.
pub const SERVING_SCHEMA_VERSION: u32 = 1;

/// Lengths that are answered, besides the server's own. All are whole numbers of vLLM's blocks.
const LENGTHS: [u64; 9] = [
    1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144,
];
/// Tokens of a block of vLLM's KV cache, of which a request takes whole ones.
const BLOCK: u64 = 16;
/// A request may take this part more or less than its length implies and still be in proportion.
const PROPORTION: f64 = 0.03;
/// Lines of the log that are kept of a server that did not start.
const LAST_LINES: usize = 12;

/// The question.
#[derive(Clone, Debug)]
pub struct ServeRequest {
    /// The user's own command.
    pub job: Job,
    /// The machine.
    pub options: Options,
    /// Whether two answers are run again with their flags.
    pub check: bool,
}

/// The values that vLLM logged while it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Startup {
    /// vLLM's version.
    pub version: Option<String>,
    /// GiB of weights on each GPU, as vLLM rounds them.
    pub weights_gib: Option<f64>,
    /// GiB that vLLM gives to the KV cache on each GPU, as it rounds them.
    pub kv_cache_gib: Option<f64>,
    /// Tokens that the KV cache holds.
    pub kv_cache_tokens: Option<u64>,
    /// The longest request, in tokens.
    pub max_model_len: Option<u64>,
    /// How many requests of that length vLLM can hold at once, by its log.
    pub concurrency: Option<f64>,
    /// The longest request that would have fitted, where the server refused to start for want of memory.
    pub longest_possible: Option<u64>,
    /// Whether the server came as far as taking requests.
    pub ready: bool,
}

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServeRow {
    /// Tokens of a request, prompt and answer.
    pub length: u64,
    /// How many requests of this length the KV cache holds at once.
    pub requests: u64,
    /// The flags to add to the command.
    pub flags: String,
    /// How it is known.
    pub known: ServeEvidence,
}

/// How a number of requests is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServeEvidence {
    /// The server was dry-run with this length, and with as many requests or more.
    DryRun,
    /// Computed from the smallest KV cache of the dry runs.
    Computed,
}

/// A line that was run again.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServeCheck {
    /// The length and the number of requests that were requested.
    pub length: u64,
    /// The requested number of requests.
    pub requests: u64,
    /// The values that vLLM logged then.
    pub startup: Startup,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Serving {
    /// Version of this form.
    pub schema_version: u32,
    /// The command.
    pub command: String,
    /// The GPU, as its vendor calls it.
    pub gpu: String,
    /// How many of them.
    pub gpus: u8,
    /// Bytes of memory of each.
    pub capacity: u64,
    /// The log of vLLM for the unchanged command, or with the longest length that fits.
    pub startup: Startup,
    /// The length that was set because the server refuses to start with its own.
    pub shortened_to: Option<u64>,
    /// Most bytes in use on a GPU while it started.
    pub most_in_use: u64,
    /// The fitting numbers, by length.
    pub rows: Vec<ServeRow>,
    /// Whether a request takes memory in proportion to its length; not known without a run at another length.
    pub proportional: Option<bool>,
    /// The lengths that were run again.
    pub checks: Vec<ServeCheck>,
    /// Why there is no answer: the last lines of the server's log.
    pub failure: Option<String>,
    /// The unknowns of a dry run, a sentence each.
    pub unknown: Vec<String>,
}

/// Why a command cannot be analysed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It does not start a server that is known.
    #[error("the command does not start vLLM's server")]
    NotVllm,
    /// A dry run could not be done.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// How many requests of which length the server of a command holds at once.
///
/// # Errors
///
/// If the command does not start vLLM's server, or could not be run. That it does not start is an answer.
pub fn serve_fit(request: &ServeRequest, watcher: &dyn Watcher) -> Result<Serving, ServeError> {
    if !starts_vllm(&request.job) {
        return Err(ServeError::NotVllm);
    }
    let folder = private_folder("tonnage-serve-")?;
    let runs = Runs {
        request,
        watcher,
        folder: folder.path(),
    };
    let (mut run, mut startup, mut log) = runs.start(None, Until::Ready)?;
    let mut shortened_to = None;
    if startup.kv_cache_tokens.is_none()
        && let Some(longest) = startup.longest_possible.map(whole_blocks)
        && longest > 0
    {
        shortened_to = Some(longest);
        (run, startup, log) = runs.start(Some((longest, None)), Until::Ready)?;
    }
    let mut serving = Serving {
        schema_version: SERVING_SCHEMA_VERSION,
        command: request.job.line(),
        gpu: run.verdict.gpu_name.clone(),
        gpus: request.options.gpus,
        capacity: request.options.capacity(),
        shortened_to,
        most_in_use: most_in_use(&run),
        rows: Vec::new(),
        proportional: None,
        checks: Vec::new(),
        failure: None,
        unknown: unknown(&run),
        startup,
    };
    let (Some(tokens), Some(longest)) = (
        serving.startup.kv_cache_tokens,
        serving.startup.max_model_len,
    ) else {
        serving.failure = Some(last_lines(&log));
        return Ok(serving);
    };
    if run.verdict.outcome == Outcome::DoesNotFit || !serving.startup.ready {
        serving.failure = Some(last_lines(&log));
    }
    serving.rows = rows(tokens, longest);
    if !request.check || serving.failure.is_some() || watcher.stopped() {
        return Ok(serving);
    }
    // The longest and a short one: between them, any other way of taking memory shows.
    let ends = [serving.rows.first(), serving.rows.last()];
    let mut wanted: Vec<(u64, u64)> = ends
        .into_iter()
        .flatten()
        .map(|row| (row.length, row.requests))
        .collect();
    wanted.dedup();
    for (length, requests) in wanted {
        if watcher.stopped() {
            break;
        }
        let (_, startup, _) = runs.start(Some((length, Some(requests))), Until::CacheSize)?;
        serving.checks.push(ServeCheck {
            length,
            requests,
            startup,
        });
    }
    serving.conclude(tokens);
    Ok(serving)
}

impl Serving {
    /// An answer to look at, for tests of those who show it.
    #[doc(hidden)]
    pub fn example() -> Self {
        let rows = rows(98_304, 8192);
        let mut serving = Self {
            schema_version: SERVING_SCHEMA_VERSION,
            command: "vllm serve model".to_owned(),
            gpu: "NVIDIA Test".to_owned(),
            gpus: 1,
            capacity: 40 << 30,
            startup: Startup {
                version: Some("0.32.0".to_owned()),
                weights_gib: Some(14.96),
                kv_cache_gib: Some(12.0),
                kv_cache_tokens: Some(98_304),
                max_model_len: Some(8192),
                concurrency: Some(12.0),
                longest_possible: None,
                ready: true,
            },
            shortened_to: None,
            most_in_use: 36 << 30,
            proportional: Some(true),
            checks: Vec::new(),
            failure: None,
            unknown: Vec::new(),
            rows,
        };
        serving.rows[0].known = ServeEvidence::DryRun;
        serving
    }

    /// Takes what the second runs showed into the rows.
    fn conclude(&mut self, tokens: u64) {
        let seen: Vec<u64> = self
            .checks
            .iter()
            .filter_map(|check| check.startup.kv_cache_tokens)
            .collect();
        if seen.len() < self.checks.len() || seen.is_empty() {
            return;
        }
        let apart = |seen: &u64| (*seen as f64 / tokens as f64 - 1.0).abs() > PROPORTION;
        let is_proportional = !seen.iter().any(apart);
        self.proportional = Some(is_proportional);
        let least = seen.iter().copied().fold(tokens, u64::min);
        if is_proportional {
            for row in &mut self.rows {
                row.set(count_requests(least, row.length), ServeEvidence::Computed);
            }
        } else {
            // Only what was run is known then.
            let checks = &self.checks;
            self.rows
                .retain(|row| checks.iter().any(|check| check.length == row.length));
        }
        for check in &self.checks {
            let row = self.rows.iter_mut().find(|row| row.length == check.length);
            if let (Some(row), Some(held)) = (row, check.startup.concurrency) {
                // As many as vLLM logs, of those that may run at once.
                row.set((held as u64).min(check.requests), ServeEvidence::DryRun);
            }
        }
        self.rows.retain(|row| row.requests > 0);
    }
}

impl ServeRow {
    fn set(&mut self, requests: u64, known: ServeEvidence) {
        self.requests = requests;
        self.flags = flags(self.length, Some(requests));
        self.known = known;
    }
}

/// The lines of the answer, from the tokens of the cache and the longest request.
fn rows(tokens: u64, longest: u64) -> Vec<ServeRow> {
    let mut lengths: Vec<u64> = LENGTHS.into_iter().filter(|one| *one < longest).collect();
    lengths.push(longest);
    let mut rows: Vec<ServeRow> = Vec::new();
    for length in lengths {
        let requests = count_requests(tokens, length);
        if requests > 0 {
            rows.push(ServeRow {
                length,
                requests,
                flags: flags(length, Some(requests)),
                known: ServeEvidence::Computed,
            });
        }
    }
    rows
}

/// How many requests of a length so many tokens of cache hold at once.
fn count_requests(tokens: u64, length: u64) -> u64 {
    tokens / length.next_multiple_of(BLOCK)
}

fn flags(length: u64, requests: Option<u64>) -> String {
    let requests = requests.map_or(String::new(), |number| format!(" --max-num-seqs {number}"));
    format!("--max-model-len {length}{requests}")
}

/// A length that is a whole number of blocks of any usual size.
fn whole_blocks(length: u64) -> u64 {
    length / 256 * 256
}

/// Whether a command starts vLLM's server, by `vllm serve` or as a module.
pub fn starts_vllm(job: &Job) -> bool {
    let words: Vec<String> = job
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let is_vllm = |word: &String| {
        Path::new(word)
            .file_name()
            .is_some_and(|name| name == "vllm")
    };
    let serves = words
        .windows(2)
        .any(|pair| is_vllm(&pair[0]) && pair[1] == "serve");
    serves
        || words
            .iter()
            .any(|word| word.starts_with("vllm.entrypoints."))
}

/// How far a run goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The server takes requests.
    Ready,
    /// The size of the KV cache is known.
    CacheSize,
}

struct Runs<'a> {
    request: &'a ServeRequest,
    watcher: &'a dyn Watcher,
    folder: &'a Path,
}

impl Runs<'_> {
    /// Starts the server, with these flags for the length and the number of requests, and ends it.
    fn start(
        &self,
        with: Option<(u64, Option<u64>)>,
        until: Until,
    ) -> Result<(DryRun, Startup, String), ServeError> {
        let mut job = self.request.job.clone();
        let mut said = Vec::new();
        if let Some((length, requests)) = with {
            let flags = flags(length, requests);
            job.command.extend(flags.split(' ').map(Into::into));
            said.push(("length".to_owned(), length.to_string()));
            said.extend(requests.map(|number| ("requests".to_owned(), number.to_string())));
        }
        self.watcher.stage(Stage::Trying(&said, &[]));
        let log = self.folder.join("log");
        let recording = self.folder.join("recording");
        for file in [&log, &recording] {
            // The file of an earlier run.
            let _ = fs::remove_file(file);
        }
        job.output = JobOutput::File(log.clone());
        let mut options = self.request.options.clone();
        options.stop_at_oom = true;
        let mut observer = Reading {
            log: log.clone(),
            until,
            watcher: self.watcher,
        };
        let run = dry_run(&job, &options, &recording, &mut observer)?;
        let text = read(&log);
        Ok((run, Startup::read(&text), text))
    }
}

/// Ends the server when its log is complete enough.
struct Reading<'a> {
    log: PathBuf,
    until: Until,
    watcher: &'a dyn Watcher,
}

impl Observer for Reading<'_> {
    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        let startup = Startup::read(&read(&self.log));
        let enough = match self.until {
            Until::Ready => startup.ready,
            Until::CacheSize => startup.concurrency.is_some() && startup.kv_cache_tokens.is_some(),
        };
        if enough || self.watcher.stopped() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

fn read(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn most_in_use(run: &DryRun) -> u64 {
    let devices = run.verdict.devices_total.iter();
    devices.map(|device| device.most_in_use).max().unwrap_or(0)
}

/// The unknowns of the run. The end of the server once it was ready is not one of them.
fn unknown(run: &DryRun) -> Vec<String> {
    let all = run.verdict.unknown.iter();
    all.filter(|what| !what.contains("after the interrupt"))
        .cloned()
        .collect()
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    // The line with the error, where there is one, else the end.
    let told = lines.iter().rposition(|line| line.contains("Error: "));
    let end = told.map_or(lines.len(), |at| at + 1);
    lines[end.saturating_sub(LAST_LINES)..end].join("\n")
}

impl Startup {
    /// Reads vLLM's log. The smallest of several engines or ranks counts.
    fn read(log: &str) -> Self {
        let mut found = Self::default();
        for line in log.lines() {
            if let Some(version) = after(line, "LLM engine (v") {
                found.version = version.split(')').next().map(str::to_owned);
            }
            keep_most(
                &mut found.weights_gib,
                decimal(after(line, "Model loading took ")),
            );
            let available = decimal(after(line, "Available KV cache memory: "));
            keep_least(&mut found.kv_cache_gib, available);
            keep_least(
                &mut found.kv_cache_tokens,
                whole(after(line, "KV cache size: ")),
            );
            if let Some(rest) = after(line, "Maximum concurrency for ") {
                found.max_model_len = whole(Some(rest)).or(found.max_model_len);
                keep_least(
                    &mut found.concurrency,
                    decimal(after(rest, "per request: ")),
                );
            }
            let longest = after(line, "estimated maximum model length is ");
            found.longest_possible = whole(longest).or(found.longest_possible);
            found.ready |= line.contains("Application startup complete");
        }
        found
    }
}

fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.split_once(words).map(|(_, rest)| rest)
}

/// The number that a text begins with, whose thousands may have commas.
fn whole(text: Option<&str>) -> Option<u64> {
    let digits: String = text?
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == ',')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn decimal(text: Option<&str>) -> Option<f64> {
    let text = text?;
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'));
    let number = text.get(..end.unwrap_or(text.len()))?.trim_end_matches('.');
    number
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

fn keep_least<T: PartialOrd + Copy>(kept: &mut Option<T>, seen: Option<T>) {
    if let Some(seen) = seen
        && kept.is_none_or(|kept| seen < kept)
    {
        *kept = Some(seen);
    }
}

fn keep_most<T: PartialOrd + Copy>(kept: &mut Option<T>, seen: Option<T>) {
    if let Some(seen) = seen
        && kept.is_none_or(|kept| seen > kept)
    {
        *kept = Some(seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
(EngineCore pid=7) INFO 11-17 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m'
(Worker_TP0 pid=8) INFO [model_runner.py:425] Model loading took 7.48 GiB memory and 3.1 seconds
(Worker_TP1 pid=9) INFO [model_runner.py:425] Model loading took 7.5 GiB memory and 3.1 seconds
(Worker_TP0 pid=8) INFO [gpu_worker.py:760] Available KV cache memory: 63.76 GiB
(Worker_TP1 pid=9) INFO [gpu_worker.py:760] Available KV cache memory: 63.7 GiB
INFO [kv_cache_utils.py:1] GPU KV cache size: 1,044,576 tokens, Maximum concurrency for 131,072 tokens per request: 7.97x
INFO:     Application startup complete.
";

    #[test]
    fn the_log_of_a_start_is_read() {
        let startup = Startup::read(LOG);
        let expected = Startup {
            version: Some("0.32.0".to_owned()),
            weights_gib: Some(7.5),
            kv_cache_gib: Some(63.7),
            kv_cache_tokens: Some(1_044_576),
            max_model_len: Some(131_072),
            concurrency: Some(7.97),
            longest_possible: None,
            ready: true,
        };
        assert_eq!(startup, expected);
        // Versions before 0.32 have two lines for it.
        let older = LOG.replace(" tokens, Maximum", " tokens\nINFO Maximum");
        assert_eq!(Startup::read(&older), expected);
        assert_eq!(
            Startup::read("KV cache size: tokens, …"),
            Startup::default()
        );
    }

    #[test]
    fn a_server_that_refuses_says_what_would_fit() {
        let log = "ValueError: To serve at least one request (…). Based on the available memory, the estimated maximum \
                   model length is 40960. Try increasing";
        assert_eq!(Startup::read(log).longest_possible, Some(40960));
        assert_eq!(whole_blocks(40_961), 40_960);
    }

    #[test]
    fn requests_are_a_division_of_tokens() {
        let found: Vec<_> = rows(100_000, 40_000)
            .iter()
            .map(|row| (row.length, row.requests))
            .collect();
        assert_eq!(found[..2], [(1024, 97), (2048, 48)]);
        assert_eq!(found.last(), Some(&(40_000, 2)));
        assert!(rows(100, 4096).is_empty());
    }

    #[test]
    fn a_request_takes_whole_blocks_whatever_showed_the_cache() {
        let mut serving = Serving {
            rows: rows(100_000, 8200),
            checks: vec![ServeCheck {
                length: 8200,
                requests: 12,
                startup: Startup {
                    kv_cache_tokens: Some(12 * 8200),
                    ..Startup::default()
                },
            }],
            ..Serving::example()
        };
        serving.conclude(100_000);
        let last = serving.rows.last();
        assert_eq!(last.map(|row| (row.length, row.requests)), Some((8200, 11)));
    }

    fn checked(tokens: [u64; 2], concurrency: [f64; 2]) -> Serving {
        let rows = rows(100_000, 8192);
        let ends = [rows[0].clone(), rows[rows.len() - 1].clone()];
        let checks = ends.iter().zip(tokens).zip(concurrency);
        let checks = checks.map(|((row, tokens), concurrency)| ServeCheck {
            length: row.length,
            requests: row.requests,
            startup: Startup {
                kv_cache_tokens: Some(tokens),
                concurrency: Some(concurrency),
                ..Startup::default()
            },
        });
        let mut serving = Serving {
            checks: checks.collect(),
            rows,
            ..Serving::example()
        };
        serving.conclude(100_000);
        serving
    }

    #[test]
    fn the_smallest_cache_that_was_seen_counts() {
        let serving = checked([98_304, 99_000], [96.0, 12.08]);
        assert_eq!(serving.proportional, Some(true));
        let rows = serving
            .rows
            .iter()
            .map(|row| (row.length, row.requests, row.known));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                (1024, 96, ServeEvidence::DryRun),
                (2048, 48, ServeEvidence::Computed),
                (4096, 24, ServeEvidence::Computed),
                (8192, 12, ServeEvidence::DryRun),
            ]
        );
    }

    #[test]
    fn of_a_sliding_window_only_what_was_run_is_said() {
        let serving = checked([60_000, 100_000], [58.6, 12.2]);
        assert_eq!(serving.proportional, Some(false));
        let rows: Vec<_> = serving
            .rows
            .iter()
            .map(|row| (row.length, row.requests))
            .collect();
        assert_eq!(rows, [(1024, 58), (8192, 12)]);
    }
}
