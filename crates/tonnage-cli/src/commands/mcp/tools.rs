// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tools of the server: what each takes, and the words one would type for it.
//!
//! The documentation comments of the parameters are what an assistant reads. A value is passed as `--name=value` and a
//! file behind `--`, so that none can be taken for an option.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::common::schema_for_input;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::commands::run::{free, output_file};
use crate::output::Failure;

/// How long a call without a time limit may take.
const TIME_LIMIT: u32 = 600;

/// The names of the tools.
pub(super) const NAMES: [&str; 6] = ["run", "fit", "check", "explain", "replay", "gpus"];

const RUN: &str = "\
Does this PyTorch program fit on that GPU, and how much memory does it need? Use it before a GPU is rented or a long \
job is started. EXECUTES the program on this machine, which needs no GPU: its Python code runs, the files that it \
writes are discarded, and its uploads are not sent; the CUDA libraries are replaced by a stand-in that accounts for \
every byte and runs no kernel. So tensors hold no results: losses are meaningless, and the time it takes means nothing \
about a GPU. The memory of PyTorch's own allocator is exact; the answer names what is assumed or not known. If it does \
not fit, the program is run again without a limit to report how much it needs. For a training script, set stop_after \
to 3steps, or use its own options for a short run: \
later steps that are like the first need no more. Writes a recording, whose name is in the answer, for `explain` and \
`replay`.";
const FIT: &str = "\
What must change so that this PyTorch program fits: the largest batch size, the GPU, or changes to the program such as \
gradient checkpointing or another optimizer? EXECUTES the program many times on this machine, which needs no GPU, and \
proves each answer by a dry run. Numbers that may change are placeholders in the program's own command: \
`{batch=1..256}` is searched for the largest that fits, `{seq=1024,2048}` is tried value by value. Without a \
placeholder, changes are made inside of the process, no file is touched, and what makes it fit is listed with the \
lines to write. With gpu `any`, every known GPU is judged. Takes from seconds to minutes: set stop_after.";
const CHECK: &str = "\
Do the memory budgets of the project hold, as its tonnage.toml or pyproject.toml has them? EXECUTES the programs of \
the budgets on this machine, which needs no GPU. Use it after a change to code that has a budget. Figures are exact \
and compared to the byte with the limits and with those last accepted.";
const EXPLAIN: &str = "\
Why is the GPU memory full, or what is the peak made of, and what would help? Reads a recording of `run`, or a PyTorch \
memory snapshot (torch.cuda.memory._dump_snapshot) of a real out-of-memory error; runs nothing. A setting is proposed \
only after it was replayed; what is inferred is marked so. With the code of a finding (TN102) or the name of a change \
(checkpoint-blocks) instead of a file, explains it.";
const REPLAY: &str = "\
Would the same requests for memory be served by another allocator setting, PyTorch's expandable segments, or a GPU of \
another size? Replays a recording or a PyTorch memory snapshot; runs nothing. PyTorch's allocator is replayed event for \
event and exact; other allocators are approximations and marked so. A program that picks kernels by GPU may request \
other sizes on another GPU: `run` shows those.";
const GPUS: &str = "\
Which GPUs can be simulated, with their memory, and for one of them where each figure comes from: measured, published \
or assumed. Runs nothing.";

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct Run {
    /// The program and its arguments, one word each, e.g. `["python", "train.py", "--batch-size", "8"]`. No shell
    /// reads it. Name the interpreter of the project's environment, e.g. ".venv/bin/python".
    command: Vec<String>,
    /// The folder to run in and to find files from [default: the server's own].
    directory: Option<PathBuf>,
    /// Environment variables that are set for the program.
    env: Option<BTreeMap<String, String>>,
    /// The GPU to simulate, a name that the tool gpus lists [default: the one of the project, in
    /// TONNAGE_GPU or tonnage.toml].
    gpu: Option<String>,
    /// How many of them the machine has [default: 1].
    gpus: Option<u8>,
    /// Memory of the GPU instead of the catalogue's, e.g. "24GiB".
    capacity: Option<String>,
    /// Memory that must stay free for the answer to be "fits", e.g. "1GiB" [default: the most CUDA overhead seen on
    /// real GPUs].
    margin: Option<String>,
    /// End the program early and judge it as far as it ran: "3steps" of an optimizer, or "90s".
    stop_after: Option<String>,
    /// Change the program inside of its process, e.g. `["checkpoint-blocks"]`; fit finds out which help.
    changes: Option<Vec<String>>,
    /// The assumptions: "mask=30%", what an unknown mask selects [default: all]; "lag=1024", how many launches the GPU
    /// is behind the host [default: none]; both with a comma between.
    assume: Option<String>,
    /// Where to write the recording [default: the script's name with .tonnage, and a number if that is taken].
    output: Option<PathBuf>,
    /// Run even where a real NVIDIA GPU is present [default: false].
    allow_real_gpu: Option<bool>,
    /// End the program after so many seconds; the verdict is then about what ran [default: 600].
    #[schemars(range(min = 1))]
    time_limit_seconds: Option<u32>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct Fit {
    /// The program and its arguments, one word each, with a placeholder for each number that may change, e.g.
    /// `["python", "train.py", "--batch-size", "{batch=1..256}"]`. No shell reads it. Name the interpreter of the
    /// project's environment, e.g. ".venv/bin/python".
    command: Vec<String>,
    /// The folder to run in and to find files from [default: the server's own].
    directory: Option<PathBuf>,
    /// Environment variables that are set for the program; a value may be a placeholder, e.g. {"BATCH": "{1..64}"}.
    env: Option<BTreeMap<String, String>>,
    /// Constants of the script with a placeholder, e.g. {"batch_size": "{1..64}"}: an assignment at the top level. The
    /// file is not changed, only what Python reads of it.
    constants: Option<BTreeMap<String, String>>,
    /// The GPU it is to fit on, several with commas, or any [default: the one of the project, in TONNAGE_GPU or
    /// tonnage.toml].
    gpu: Option<String>,
    /// How many of them the machine has [default: 1].
    gpus: Option<u8>,
    /// Also spread the model over these GPUs, by FSDP2, and report the need of each of them [default: false].
    shard: Option<bool>,
    /// Memory of the GPU instead of the catalogue's, e.g. "24GiB".
    capacity: Option<String>,
    /// Memory that is to stay free, e.g. "1GiB" [default: the most that was seen on real GPUs of what a dry run does
    /// not count].
    margin: Option<String>,
    /// The allowed effect of changes on the program's mathematics.
    allow: Option<Allow>,
    /// End each run early and judge it as far as it ran: "3steps" of an optimizer, or "90s".
    stop_after: Option<String>,
    /// Print proposal number N of an earlier answer as a patch of the script or as lines to write, instead of the list.
    show: Option<u32>,
    /// Run even where a real NVIDIA GPU is present [default: false].
    allow_real_gpu: Option<bool>,
    /// End the search after so many seconds; the answer is then the best so far [default: 600].
    #[schemars(range(min = 1))]
    time_limit_seconds: Option<u32>,
}

/// As `--allow` has them.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Allow {
    /// No change is tried.
    None,
    /// Nothing: the same numbers are computed.
    Nothing,
    /// The same formula, with another rounding.
    Rounding,
    /// Another algorithm, too; the default.
    Algorithm,
}

impl Allow {
    fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nothing => "nothing",
            Self::Rounding => "rounding",
            Self::Algorithm => "algorithm",
        }
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct Check {
    /// The folder of the configuration, in which the programs run [default: the server's own].
    directory: Option<PathBuf>,
    /// The configuration [default: tonnage.toml, else pyproject.toml].
    config: Option<PathBuf>,
    /// The budgets to check [default: all].
    names: Option<Vec<String>>,
    /// End the programs after so many seconds in all [default: 600].
    #[schemars(range(min = 1))]
    time_limit_seconds: Option<u32>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct Explain {
    /// The recording or PyTorch memory snapshot; or the code of a finding, or the name of a change.
    what: PathBuf,
    /// The folder to find the file from [default: the server's own].
    directory: Option<PathBuf>,
    /// Give up after so many seconds [default: 600].
    #[schemars(range(min = 1))]
    time_limit_seconds: Option<u32>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct Replay {
    /// The recording or PyTorch memory snapshot.
    file: PathBuf,
    /// The folder to find the file from [default: the server's own].
    directory: Option<PathBuf>,
    /// The GPU to replay on, a name that the tool gpus lists [default: the recorded one].
    gpu: Option<String>,
    /// Memory of the GPU instead of the recorded or the catalogue's, e.g. "24GiB".
    capacity: Option<String>,
    /// Allocators: "recorded", "torch", "torch:max_split_size_mb:128" (any settings of PYTORCH_CUDA_ALLOC_CONF),
    /// "cuda-malloc-async", "bfc", "plan" [default: all of them, with and without expandable segments].
    allocators: Option<Vec<String>>,
    /// Give up after so many seconds [default: 600].
    #[schemars(range(min = 1))]
    time_limit_seconds: Option<u32>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct Gpus {
    /// One GPU, to see the source of each of its figures [default: a list of all].
    name: Option<String>,
}

/// The request.
pub(super) enum Question {
    Run(Run),
    Fit(Fit),
    Check(Check),
    Explain(Explain),
    Replay(Replay),
    Gpus(Gpus),
}

/// Why a call cannot be understood.
pub(super) enum Misread {
    NoSuchTool,
    Arguments(Failure),
}

impl Question {
    /// The tools with their descriptions and schemas.
    pub(super) fn all() -> Result<Vec<Tool>, String> {
        // A program can do anything, and a recording's program only what a file contains.
        let runs = |title: &str| {
            let hints = ToolAnnotations::with_title(title);
            hints.read_only(false).destructive(true).open_world(true)
        };
        let reads = |title: &str| {
            let hints = ToolAnnotations::with_title(title);
            hints.read_only(true).open_world(false)
        };
        Ok(vec![
            tool::<Run>("run", RUN, runs("Does it fit on that GPU?"))?,
            tool::<Fit>("fit", FIT, runs("What makes it fit?"))?,
            tool::<Check>("check", CHECK, runs("Do the memory budgets hold?"))?,
            tool::<Explain>("explain", EXPLAIN, reads("Why is the memory full?"))?,
            tool::<Replay>("replay", REPLAY, reads("Other allocators and GPUs"))?,
            tool::<Gpus>("gpus", GPUS, reads("Which GPUs are known?"))?,
        ])
    }

    /// Reads a call.
    pub(super) fn read(name: &str, arguments: JsonObject) -> Result<Self, Misread> {
        match name {
            "run" => arguments_of(name, arguments).map(Self::Run),
            "fit" => arguments_of(name, arguments).map(Self::Fit),
            "check" => arguments_of(name, arguments).map(Self::Check),
            "explain" => arguments_of(name, arguments).map(Self::Explain),
            "replay" => arguments_of(name, arguments).map(Self::Replay),
            "gpus" => arguments_of(name, arguments).map(Self::Gpus),
            _ => Err(Misread::NoSuchTool),
        }
    }

    /// Whether a program of the user runs.
    pub(super) fn runs_a_job(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Fit(_) | Self::Check(_))
    }

    /// The user's program, if one is named.
    pub(super) fn command(&self) -> Option<&[String]> {
        match self {
            Self::Run(asked) => Some(&asked.command),
            Self::Fit(asked) => Some(&asked.command),
            _ => None,
        }
    }

    /// Whether the JSON is too long to be of use: the catalogue with the sources of all figures has 160 kB.
    pub(super) fn is_long(&self) -> bool {
        matches!(self, Self::Gpus(Gpus { name: None }))
    }

    /// The folder that is named.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Run(asked) => asked.directory.as_deref(),
            Self::Fit(asked) => asked.directory.as_deref(),
            Self::Check(asked) => asked.directory.as_deref(),
            Self::Explain(asked) => asked.directory.as_deref(),
            Self::Replay(asked) => asked.directory.as_deref(),
            Self::Gpus(_) => None,
        }
    }

    pub(super) fn time_limit(&self) -> Duration {
        let asked = match self {
            Self::Run(asked) => asked.time_limit_seconds,
            Self::Fit(asked) => asked.time_limit_seconds,
            Self::Check(asked) => asked.time_limit_seconds,
            Self::Explain(asked) => asked.time_limit_seconds,
            Self::Replay(asked) => asked.time_limit_seconds,
            Self::Gpus(_) => None,
        };
        Duration::from_secs(u64::from(asked.unwrap_or(TIME_LIMIT)))
    }

    /// The environment variables of the job.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        match self {
            Self::Run(Run { env: Some(all), .. }) => {
                let all = all.iter();
                all.map(|(name, value)| (name.into(), value.into()))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The command line for a terminal, with files found from `folder`.
    pub(super) fn words(&self, folder: &Path) -> Vec<OsString> {
        match self {
            Self::Run(asked) => asked.words(folder),
            Self::Fit(asked) => asked.words(),
            Self::Check(asked) => {
                let config = asked.config.as_ref().map(|path| folder.join(path));
                let mut words = Words::for_command("check");
                words.option("config", config.as_ref());
                words.rest(asked.names.iter().flatten())
            }
            Self::Explain(asked) => {
                let file = folder.join(&asked.what);
                let is_file = file.exists() || asked.what.components().count() > 1;
                let what = if is_file { &file } else { &asked.what };
                Words::for_command("explain").rest([what])
            }
            Self::Replay(asked) => {
                let mut words = Words::for_command("replay");
                words.option("gpu", asked.gpu.as_ref());
                words.option("capacity", asked.capacity.as_ref());
                for allocator in asked.allocators.iter().flatten() {
                    words.option("alloc", Some(allocator));
                }
                words.rest([folder.join(&asked.file)])
            }
            Self::Gpus(asked) => Words::for_command("gpus").rest(&asked.name),
        }
    }
}

impl Run {
    fn words(&self, folder: &Path) -> Vec<OsString> {
        let command: Vec<OsString> = self.command.iter().map(OsString::from).collect();
        let output = match &self.output {
            Some(path) => folder.join(path),
            None => free(folder.join(output_file(None, true, &command))),
        };
        let mut words = Words::for_command("run");
        words.flag("no-progress", true);
        words.option("gpu", self.gpu.as_ref());
        words.option("gpus", self.gpus.map(|number| number.to_string()).as_ref());
        words.option("capacity", self.capacity.as_ref());
        words.option("margin", self.margin.as_ref());
        words.option("stop-after", self.stop_after.as_ref());
        for change in self.changes.iter().flatten() {
            words.option("change", Some(change));
        }
        words.option("assume", self.assume.as_ref());
        words.option("output", Some(&output));
        words.flag("allow-real-gpu", self.allow_real_gpu == Some(true));
        words.rest(command)
    }
}

impl Fit {
    fn words(&self) -> Vec<OsString> {
        let mut words = Words::for_command("fit");
        words.flag("no-progress", true);
        words.option("gpu", self.gpu.as_ref());
        words.option("gpus", self.gpus.map(|number| number.to_string()).as_ref());
        words.flag("shard", self.shard == Some(true));
        words.option("capacity", self.capacity.as_ref());
        words.option("margin", self.margin.as_ref());
        for (name, text) in self.env.iter().flatten() {
            words.option("env", Some(&format!("{name}={text}")));
        }
        for (name, text) in self.constants.iter().flatten() {
            words.option("let", Some(&format!("{name}={text}")));
        }
        words.option("allow", self.allow.map(Allow::word).as_ref());
        words.option("stop-after", self.stop_after.as_ref());
        words.option("show", self.show.map(|number| number.to_string()).as_ref());
        words.flag("allow-real-gpu", self.allow_real_gpu == Some(true));
        words.rest(&self.command)
    }
}

/// A command line in the making.
struct Words(Vec<OsString>);

impl Words {
    fn for_command(command: &str) -> Self {
        Self(vec!["tonnage".into(), command.into()])
    }

    fn option<T: AsRef<std::ffi::OsStr>>(&mut self, name: &str, value: Option<&T>) {
        if let Some(value) = value {
            let mut word = OsString::from(format!("--{name}="));
            word.push(value);
            self.0.push(word);
        }
    }

    fn flag(&mut self, name: &str, is_set: bool) {
        if is_set {
            self.0.push(format!("--{name}").into());
        }
    }

    /// The words that are not options, whatever they look like.
    fn rest<T: AsRef<std::ffi::OsStr>>(
        mut self,
        words: impl IntoIterator<Item = T>,
    ) -> Vec<OsString> {
        self.0.push("--".into());
        let words = words.into_iter();
        self.0.extend(words.map(|word| word.as_ref().to_owned()));
        self.0
    }
}

fn tool<T: JsonSchema + 'static>(
    name: &'static str,
    description: &'static str,
    hints: ToolAnnotations,
) -> Result<Tool, String> {
    let mut schema = (*schema_for_input::<T>()?).clone();
    // As they are read.
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    Ok(Tool::new(name, description, Arc::new(schema)).with_annotations(hints))
}

/// Reads the arguments of a call, and refuses those that the tool does not have: an option that is left out in silence
/// would make another question of it.
fn arguments_of<T: DeserializeOwned + JsonSchema + 'static>(
    name: &str,
    arguments: JsonObject,
) -> Result<T, Misread> {
    let wrong = |message: String, hint: String| {
        let hint = Some(hint);
        Misread::Arguments(Failure { message, hint })
    };
    let schema = schema_for_input::<T>().unwrap_or_default();
    let known = schema.get("properties").and_then(Value::as_object);
    let known: Vec<&str> = known.into_iter().flatten().map(|(key, _)| &**key).collect();
    if let Some(key) = arguments.keys().find(|key| !known.contains(&&***key)) {
        let message = format!("the tool {name} has no parameter {key:?}");
        return Err(wrong(message, format!("it has {}", known.join(", "))));
    }
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        let message = format!("the parameters of the tool {name} are wrong: {error}");
        wrong(message, "its input schema has their types".to_owned())
    })
}
