// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job that is handed to Slurm: its commands are found in its batch script, its forecasts in the store.
//!
//! The Slurm hooks are Lua without logic; they pass on the command line and apply the result of [`submission`].

mod asked;
mod launchers;
mod lexer;
mod programs;
mod script;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use tonnage_gpus::Catalogue;

use asked::Wanted;
use programs::StartedBy;
use script::{Commands, command_of, commands_of};

use crate::admit::{Action, Asked, Decision, Mode, Sizes, decide};
use crate::emit::shards;
use crate::forecast::Forecast;
use crate::key::{ALLOCATOR_SETTINGS, JobKey, SourceFiles};
use crate::store::{Store, StoreError};

/// The longest that a hook may wait.
const MAX_SECONDS: u32 = 60;

/// Lines of a script that a message names.
const SHOWN: usize = 5;

/// The administrator's description of a cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The folder of forecasts.
    pub store: PathBuf,
    /// The size of a shard.
    #[serde(default = "gib")]
    pub shard: String,
    /// The permissions of tonnage.
    #[serde(default)]
    pub mode: Mode,
    /// Whether a job can have shards of several GPUs of a node: Slurm 23.11 and later, with
    /// `MULTIPLE_SHARING_GRES_PJ` in `SelectTypeParameters`.
    #[serde(default)]
    pub shards_of_several_gpus: bool,
    /// How long the hooks wait for an answer; only they need it.
    pub client_seconds: Option<u32>,
    /// The same in the controller.
    pub controller_seconds: Option<u32>,
    /// The kinds of GPUs.
    #[serde(rename = "gpu")]
    pub gpus: Vec<GpuType>,
}

fn gib() -> String {
    "1GiB".to_owned()
}

/// A kind of GPU of a cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuType {
    /// A name of the catalogue, which is also the type of the gres.
    #[serde(rename = "type")]
    pub name: String,
    /// Shards of one GPU.
    pub shards: u64,
}

/// Why the settings cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// They are not what is expected.
    #[error("{0}")]
    Syntax(String),
    /// They are, and make no sense.
    #[error("{0}")]
    Value(String),
}

impl Settings {
    /// Reads settings.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let settings: Self =
            toml::from_str(text).map_err(|error| SettingsError::Syntax(error.to_string()))?;
        if settings.gpus.is_empty() {
            return Err(SettingsError::Value("no [[gpu]] is named".to_owned()));
        }
        let mut waits = [settings.client_seconds, settings.controller_seconds]
            .into_iter()
            .flatten();
        if waits.any(|seconds| !(1..=MAX_SECONDS).contains(&seconds)) {
            return Err(SettingsError::Value(format!(
                "a hook waits for 1 to {MAX_SECONDS} seconds"
            )));
        }
        if settings.gpus.iter().any(|gpu| gpu.shards == 0) {
            return Err(SettingsError::Value(
                "a GPU has at least one shard".to_owned(),
            ));
        }
        Ok(settings)
    }
}

/// A job submitted to Slurm.
#[derive(Clone, Debug)]
pub struct Submission<'a> {
    /// The text of a batch script.
    pub script: Option<&'a str>,
    /// The words of a command, or the arguments of the script.
    pub words: &'a [String],
    /// The folder in which it starts.
    pub folder: &'a Path,
    /// The number of requested tasks.
    pub tasks: Option<u32>,
    /// The request: options of gres and TRES with their names, `tres-per-task=gres/shard:42`.
    pub asked: &'a [String],
    /// The settings of PyTorch's allocator in the environment.
    pub allocator: Option<String>,
}

/// The decision about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The decision.
    pub decision: Decision,
    /// How many tasks, one for each GPU.
    pub tasks: u32,
    /// Shards for each of them, where they are to be written.
    pub shards: Option<u64>,
    /// The forecast that was found.
    pub forecast: Option<String>,
}

/// Decides about a submission. `shard` is what the settings' shard stands for, in bytes.
pub fn submission(
    settings: &Settings,
    shard: u64,
    submission: &Submission<'_>,
) -> Result<Answer, StoreError> {
    let wanted = Wanted::from_options(submission.asked);
    if wanted.is_settled {
        return Ok(Answer {
            decision: Decision {
                action: Action::None,
                bytes: None,
                message: String::new(),
            },
            tasks: submission.tasks.unwrap_or(1).max(1),
            shards: None,
            forecast: None,
        });
    }
    let gpu_types = GpuTypes::from_settings(settings, submission.asked);
    let commands = match submission.script {
        Some(script) => commands_of(script, submission.words),
        None => command_of(submission.words, StartedBy::Srun(submission.tasks)),
    };
    let (known, missing) = look_up(settings, submission, &commands, &gpu_types)?;
    let fullest = known
        .iter()
        .map(|(forecast, _)| forecast)
        .max_by_key(|forecast| most(forecast));

    let request = fullest.and_then(|forecast| forecast.request(forecast.fullest()));
    let request_shards = request.and_then(|bytes| shards(bytes, shard));
    let tasks = submission.tasks.unwrap_or(1).max(1);
    let asked = match per_task(&wanted, tasks, settings, &gpu_types) {
        // Whole shards hold a little more than the request.
        Some(count) if Some(count) == request_shards => Asked::Bytes(request.unwrap_or(0)),
        Some(count) => Asked::Bytes(count.saturating_mul(shard)),
        None if wanted.gpus => Asked::WholeGpus,
        None => Asked::Nothing,
    };
    let sizes = Sizes {
        smallest: gpu_types.smallest_shards.saturating_mul(shard),
        largest: gpu_types.largest_shards.saturating_mul(shard),
    };
    let mut answer = Answer {
        decision: decide(fullest, asked, sizes, settings.mode),
        tasks,
        shards: None,
        forecast: fullest.map(|forecast| forecast.name.clone()),
    };
    let decision = &mut answer.decision;
    if fullest.is_none() && asked == Asked::Nothing {
        // A job that requests no GPU gets none, unless its forecast needs one.
        let (action, message) = if missing.is_empty() {
            (Action::None, "")
        } else {
            (
                Action::Advise,
                "no forecast of this job, and it requests no GPU",
            )
        };
        *decision = Decision {
            action,
            bytes: None,
            message: message.to_owned(),
        };
    }
    // One known part allows no conclusion about the others, unless it cannot run itself.
    if let Some(fullest) = fullest
        && !missing.is_empty()
        && decision.action != Action::Refuse
    {
        let mut parts = missing[..missing.len().min(SHOWN)].join(", ");
        if missing.len() > SHOWN {
            parts += ", …";
        }
        *decision = decide(None, asked, sizes, settings.mode);
        let done = match decision.action {
            Action::Fill | Action::Whole => "it requests whole GPUs",
            Action::None | Action::Advise | Action::Refuse => "nothing was changed",
        };
        decision.message = format!(
            "{} has a forecast, {parts} of the script has none: {done}",
            fullest.family
        );
        if decision.action == Action::None {
            decision.action = Action::Advise;
        }
    }
    if let Some(count) = wanted.per_node
        && settings.shards_of_several_gpus
    {
        of_a_node(decision, count, tasks, &gpu_types);
    }
    if matches!(decision.action, Action::Fill | Action::Whole) {
        match tasks_to_fill(&known, submission.tasks, settings) {
            Ok(tasks) => {
                answer.tasks = tasks;
                let wanted = decision.bytes.and_then(|bytes| shards(bytes, shard));
                answer.shards = wanted.map(|count| count.min(gpu_types.largest_shards));
            }
            Err(reason) => {
                decision.action = Action::Advise;
                decision.bytes = None;
                let sentence = fullest.map(Forecast::sentence).unwrap_or_default();
                decision.message =
                    format!("{sentence}; nothing was written into the job: {reason}");
            }
        }
    }
    Ok(answer)
}

/// The request of a job at its fullest GPU; larger than any GPU if it does not fit.
fn most(forecast: &Forecast) -> u64 {
    forecast.request(forecast.fullest()).unwrap_or(u64::MAX)
}

type Known = Vec<(Forecast, StartedBy)>;

/// The forecasts of a job's commands, and the commands that have none.
fn look_up(
    settings: &Settings,
    submission: &Submission<'_>,
    commands: &Commands,
    gpu_types: &GpuTypes,
) -> Result<(Known, Vec<String>), StoreError> {
    let store = Store::new(&settings.store);
    let mut known = Vec::new();
    let mut missing = Vec::new();
    let mut files = SourceFiles::default();
    for started in &commands.found {
        let folder = submission.folder.join(&started.folder);
        let Some(mut key) = JobKey::of_command_within(&started.words, &folder, &mut files) else {
            missing.push(place(started.line));
            continue;
        };
        key.allocator.clone_from(&submission.allocator);
        let ranks = match started.by {
            StartedBy::Srun(own) => own.or(submission.tasks),
            StartedBy::Script => None,
        };
        key.world_size = ranks.filter(|&ranks| ranks > 1);
        let mut found = store.find(&key)?;
        found.retain(|forecast| gpu_types.names.contains(&forecast.key.gpu));
        // The job may start on any GPU it may have: it must fit on the kind that it takes most of.
        match found.into_iter().max_by_key(most) {
            Some(forecast) => known.push((forecast, started.by)),
            None => missing.push(place(started.line)),
        }
    }
    missing.extend(commands.unknown.iter().map(|&line| place(line)));
    Ok((known, missing))
}

fn place(line: Option<usize>) -> String {
    line.map_or_else(|| "its command".to_owned(), |line| format!("line {line}"))
}

/// The shards that a job requests, for each task. The shards of a node are all of one GPU, unless the cluster splits
/// them.
fn per_task(wanted: &Wanted, tasks: u32, settings: &Settings, gpu_types: &GpuTypes) -> Option<u64> {
    wanted.per_task.or_else(|| {
        let count = wanted.per_node?;
        let one_gpu = !settings.shards_of_several_gpus && count > gpu_types.largest_shards;
        Some(if one_gpu {
            count
        } else {
            count / u64::from(tasks)
        })
    })
}

/// Slurm's choice of the shards of a node, if a job can have shards of several GPUs: it takes them where it finds them.
fn of_a_node(decision: &mut Decision, count: u64, tasks: u32, gpu_types: &GpuTypes) {
    let largest = gpu_types.largest_shards;
    if tasks == 1 && count > largest {
        decision.message = format!(
            "the job requests {count} shards, the largest GPU has {largest}: its task would get parts of several GPUs"
        );
    } else if decision.action != Action::Refuse {
        let each = count.div_ceil(u64::from(tasks));
        let flag = if tasks > 1 {
            " --gres-flags=one-task-per-sharing"
        } else {
            ""
        };
        let before = match decision.message.as_str() {
            "" => String::new(),
            message => format!("{message}; "),
        };
        decision.action = Action::Advise;
        decision.message = format!(
            "{before}Slurm may take shards of a node from several GPUs; those of one GPU for each task are \
             --ntasks={tasks} --tres-per-task=gres/shard:{each}{flag}"
        );
    }
}

/// How many tasks can be given shards, each of a separate GPU, or the reason why Slurm cannot express that.
fn tasks_to_fill(known: &Known, asked: Option<u32>, settings: &Settings) -> Result<u32, String> {
    let mut all = None;
    for (forecast, by) in known {
        let tasks = tasks_of(forecast.gpus(), *by, asked)?;
        if all.is_some_and(|others| others != tasks) {
            return Err(
                "its commands use different numbers of GPUs: request whole ones".to_owned(),
            );
        }
        all = Some(tasks);
    }
    let tasks = all.or(asked).unwrap_or(1);
    if tasks > 1 && !settings.shards_of_several_gpus {
        return Err(format!(
            "this cluster has no shards of several GPUs for one job: request whole ones (--gpus={tasks})"
        ));
    }
    Ok(tasks)
}

/// The tasks of a job, of which each uses one GPU.
fn tasks_of(gpus: u32, by: StartedBy, asked: Option<u32>) -> Result<u32, String> {
    let several = || {
        Err(format!(
            "Slurm has no shards for a task that uses several GPUs: start a task for each of the {gpus} GPUs, \
             or request whole ones (--gpus={gpus})"
        ))
    };
    match (by, asked) {
        (StartedBy::Script, None) => Ok(gpus),
        (StartedBy::Script, Some(tasks)) if tasks == gpus => Ok(gpus),
        (StartedBy::Script, Some(tasks)) if gpus == 1 => Err(format!(
            "it has {tasks} tasks, of which one uses a GPU, and Slurm would count shards for each: \
             request --ntasks=1 --cpus-per-task={tasks}"
        )),
        (StartedBy::Script, Some(_)) => several(),
        (StartedBy::Srun(own), asked) => {
            let tasks = own.or(asked).unwrap_or(1);
            if asked.is_some_and(|asked| asked != tasks) {
                Err(format!(
                    "srun starts {tasks} of the job's tasks: request --ntasks={tasks}"
                ))
            } else if gpus == 1 || gpus == tasks {
                Ok(tasks)
            } else {
                several()
            }
        }
    }
}

/// The kinds of GPUs that a job may get.
struct GpuTypes {
    names: Vec<String>,
    smallest_shards: u64,
    largest_shards: u64,
}

impl GpuTypes {
    fn from_settings(settings: &Settings, asked: &[String]) -> Self {
        // `gpu:h100:2` names its kind.
        let words: Vec<&str> = asked
            .iter()
            .flat_map(|option| option.split([':', ',', '/', '=']))
            .collect();
        let named = |gpu: &&GpuType| words.contains(&gpu.name.as_str());
        let mut gpus: Vec<&GpuType> = settings.gpus.iter().filter(named).collect();
        if gpus.is_empty() {
            gpus = settings.gpus.iter().collect();
        }
        let catalogue = Catalogue::embedded();
        let name = |gpu: &&GpuType| {
            let known = catalogue.find(&gpu.name).map(|found| found.id.clone());
            known.unwrap_or_else(|_| gpu.name.clone())
        };
        Self {
            names: gpus.iter().map(name).collect(),
            smallest_shards: gpus.iter().map(|gpu| gpu.shards).min().unwrap_or(0),
            largest_shards: gpus.iter().map(|gpu| gpu.shards).max().unwrap_or(0),
        }
    }
}

/// The settings of PyTorch's allocator of an environment.
pub fn allocator_settings(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    ALLOCATOR_SETTINGS.iter().find_map(|name| variable(name))
}

impl Answer {
    /// The input of the hooks: a line for each fact.
    pub fn lines(&self) -> BTreeMap<&'static str, String> {
        let action = match self.decision.action {
            Action::None => "none",
            Action::Advise => "advise",
            Action::Fill => "fill",
            Action::Whole => "whole",
            Action::Refuse => "refuse",
        };
        let mut lines = BTreeMap::from([
            ("action", action.to_owned()),
            ("tasks", self.tasks.to_string()),
        ]);
        if let Some(shards) = self.shards {
            lines.insert("shards", shards.to_string());
        }
        if let Some(forecast) = &self.forecast {
            lines.insert("forecast", forecast.clone());
        }
        if !self.decision.message.is_empty() {
            lines.insert("message", self.decision.message.replace('\n', " "));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::{forecast_of, too_large};

    const GIB: u64 = 1 << 30;

    /// A cluster with H100s of 79 shards and a forecast of `python train.py`, and the queries to it.
    struct Cluster {
        folder: tempfile::TempDir,
        settings: Settings,
    }

    impl Cluster {
        fn with(forecast: Option<&Forecast>, mode: Mode) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            if let Some(forecast) = forecast {
                Store::new(folder.path())
                    .save_forecast(forecast)
                    .expect("written");
            }
            let settings = Settings {
                store: folder.path().to_owned(),
                shard: gib(),
                mode,
                shards_of_several_gpus: true,
                client_seconds: None,
                controller_seconds: None,
                gpus: vec![GpuType {
                    name: "h100".to_owned(),
                    shards: 79,
                }],
            };
            Self { folder, settings }
        }

        /// The action, the tasks with their shards if some are to be written, and the message.
        fn ask(
            &self,
            script: &str,
            tasks: Option<u32>,
            asked: &[&str],
        ) -> (Action, Option<(u32, u64)>, String) {
            let asked: Vec<String> = asked.iter().map(|&option| option.to_owned()).collect();
            let handed = Submission {
                script: Some(script),
                words: &[],
                folder: self.folder.path(),
                tasks,
                asked: &asked,
                allocator: None,
            };
            let answer = submission(&self.settings, GIB, &handed).expect("an answer");
            let filled = answer.shards.map(|shards| (answer.tasks, shards));
            (answer.decision.action, filled, answer.decision.message)
        }
    }

    #[test]
    fn a_job_is_filled_by_its_forecast_and_never_by_a_guess() {
        let one = forecast_of(&[29 * GIB]);
        let cluster = Cluster::with(Some(&one), Mode::Fill);
        let (action, filled, _) = cluster.ask("python train.py", None, &[]);
        assert_eq!((action, filled), (Action::Fill, Some((1, 30))));
        // Four processes of a kind.
        let (action, filled, _) = cluster.ask("srun -n 4 python train.py", Some(4), &[]);
        assert_eq!((action, filled), (Action::Fill, Some((4, 30))));
        for mode in [Mode::Advise, Mode::Fill, Mode::Enforce] {
            let cluster = Cluster::with(Some(&one), mode);
            let (action, filled, message) = cluster.ask("python other.py", None, &[]);
            assert_eq!((action, filled), (Action::Advise, None), "{mode:?}");
            assert!(message.contains("no forecast"), "{message}");
            // A command that does not start PyTorch is ignored.
            assert_eq!(
                cluster.ask("hostname", Some(64), &[]),
                (Action::None, None, String::new())
            );
        }
        let (action, filled, message) =
            cluster.ask("python train.py\npython other.py\n", None, &[]);
        assert_eq!((action, filled), (Action::Advise, None));
        assert!(
            message.contains("line 2 of the script has none: nothing was changed"),
            "{message}"
        );
        let strict = Cluster::with(Some(&one), Mode::Enforce);
        let (action, filled, message) = strict.ask("python train.py\npython other.py\n", None, &[]);
        assert_eq!((action, filled), (Action::Fill, Some((1, 79))), "{message}");
    }

    #[test]
    fn a_line_is_not_passed_over_for_its_quotes_or_its_launcher() {
        let one = forecast_of(&[29 * GIB]);
        for mode in [Mode::Advise, Mode::Fill, Mode::Enforce] {
            let cluster = Cluster::with(Some(&one), mode);
            for script in [
                "python other.py --tags \"a;b\"",
                "python other.py --tags 'a && b'",
                "python other.py --tags \"a;b",
                "apptainer exec --nv image.sif python other.py",
                "uv run other.py",
                "./run.sh",
            ] {
                let (action, filled, message) = cluster.ask(script, None, &[]);
                assert_eq!((action, filled), (Action::Advise, None), "{script}");
                assert!(message.contains("no forecast"), "{message}");
            }
            let action = if mode == Mode::Advise {
                Action::Advise
            } else {
                Action::Fill
            };
            for script in [
                "echo \"a;b\" && python train.py",
                "apptainer exec image.sif python train.py",
                "uv run train.py",
                "cat <<END\npython other.py\nEND\npython train.py",
            ] {
                let (found, _, message) = cluster.ask(script, None, &[]);
                assert_eq!(found, action, "{script}: {message}");
                assert!(!message.contains("no forecast"), "{message}");
            }
        }
        let many = format!("python train.py\n{}", "./run.sh\n".repeat(9));
        let cluster = Cluster::with(Some(&one), Mode::Fill);
        let (_, _, message) = cluster.ask(&many, None, &[]);
        assert!(message.contains("line 6, … of the script"), "{message}");
    }

    #[test]
    fn tasks_are_those_that_use_a_gpu() {
        let two = forecast_of(&[39 * GIB, 39 * GIB]);
        let cluster = Cluster::with(Some(&two), Mode::Fill);
        for (script, tasks) in [
            ("python train.py", None),
            ("python train.py", Some(2)),
            ("srun python train.py", Some(2)),
            ("srun -n 2 python train.py", None),
        ] {
            let (action, filled, message) = cluster.ask(script, tasks, &[]);
            assert_eq!(
                (action, filled),
                (Action::Fill, Some((2, 40))),
                "{script}: {message}"
            );
        }
        // One task that starts both ranks, tasks that are not the ranks, a step that is not the job.
        for (script, tasks, reason) in [
            ("srun python train.py", None, "--gpus=2"),
            ("python train.py", Some(1), "--gpus=2"),
            ("srun python train.py", Some(8), "--gpus=2"),
            ("srun -n 2 python train.py", Some(4), "--ntasks=2"),
        ] {
            let (action, filled, message) = cluster.ask(script, tasks, &[]);
            assert_eq!((action, filled), (Action::Advise, None), "{script}");
            assert!(message.contains(reason), "{message}");
        }
        let one = Cluster::with(Some(&forecast_of(&[29 * GIB])), Mode::Fill);
        let (action, _, message) = one.ask("python train.py", Some(8), &[]);
        assert_eq!(action, Action::Advise);
        assert!(
            message.contains("--ntasks=1 --cpus-per-task=8"),
            "{message}"
        );
        // Where a job has shards of one GPU only, a job of two is not filled.
        let mut cluster = cluster;
        cluster.settings.shards_of_several_gpus = false;
        let (action, filled, message) = cluster.ask("python train.py", None, &[]);
        assert_eq!((action, filled), (Action::Advise, None));
        assert!(message.contains("--gpus=2"), "{message}");
    }

    #[test]
    fn a_number_of_ones_own_is_compared_in_whole_shards() {
        let one = forecast_of(&[29 * GIB]);
        for (mode, less) in [
            (Mode::Advise, Action::Advise),
            (Mode::Fill, Action::Advise),
            (Mode::Enforce, Action::Refuse),
        ] {
            let cluster = Cluster::with(Some(&one), mode);
            let ask = |option: &str| {
                let (action, filled, _) = cluster.ask("python train.py", Some(1), &[option]);
                assert_eq!(filled, None);
                action
            };
            assert_eq!(ask("tres-per-task=gres/shard:30"), Action::None);
            assert_eq!(ask("tres-per-task=gres/shard:29"), less);
            assert_eq!(ask("tres-per-task=gres/shard:31"), Action::Advise);
            assert_eq!(ask("gres=gpu:1"), Action::Advise);
            let never = if mode == Mode::Advise {
                Action::Advise
            } else {
                Action::Refuse
            };
            assert_eq!(ask("tres-per-task=gres/shard:80"), never);
            assert_eq!(ask("gres=shard:80"), never);
        }
    }

    #[test]
    fn shards_of_a_node_are_told_how_slurm_takes_them() {
        let two = forecast_of(&[41 * GIB, 41 * GIB]);
        let mut cluster = Cluster::with(Some(&two), Mode::Fill);
        let (action, _, message) = cluster.ask("python train.py", Some(2), &["gres=shard:84"]);
        assert_eq!(action, Action::Advise);
        let option = "--ntasks=2 --tres-per-task=gres/shard:42 --gres-flags=one-task-per-sharing";
        assert!(message.contains(option), "{message}");
        let (action, _, message) = cluster.ask("python train.py", None, &["gres=shard:100"]);
        assert_eq!(action, Action::Refuse);
        assert!(message.contains("parts of several GPUs"), "{message}");
        // All of them come from one GPU there.
        cluster.settings.shards_of_several_gpus = false;
        let (action, _, message) = cluster.ask("python train.py", Some(2), &["gres=shard:84"]);
        assert_eq!(action, Action::Refuse);
        assert!(message.contains("it would never start"), "{message}");
    }

    #[test]
    fn a_job_that_fits_nowhere_is_refused_by_who_may() {
        for (mode, action) in [
            (Mode::Advise, Action::Advise),
            (Mode::Fill, Action::Refuse),
            (Mode::Enforce, Action::Refuse),
        ] {
            let cluster = Cluster::with(Some(&too_large()), mode);
            let (found, filled, message) = cluster.ask("python train.py", None, &[]);
            assert_eq!((found, filled), (action, None));
            assert!(message.contains("does not fit"), "{message}");
        }
    }

    #[test]
    fn a_job_with_an_unknown_part_gets_a_gpu_of_any_size() {
        let one = forecast_of(&[29 * GIB]);
        let mut cluster = Cluster::with(Some(&one), Mode::Enforce);
        cluster.settings.gpus.push(GpuType {
            name: "l40s".to_owned(),
            shards: 44,
        });
        let script = "python train.py\npython other.py\n";
        let (action, filled, message) = cluster.ask(script, None, &[]);
        assert_eq!((action, filled), (Action::Whole, None), "{message}");
        assert!(message.contains("it requests whole GPUs"), "{message}");
        // The job names its GPU: all of them have one size.
        let (action, filled, _) = cluster.ask(script, None, &["gres=shard:h100:40"]);
        assert_eq!((action, filled), (Action::Advise, None));
    }

    #[test]
    fn a_job_that_declines_gpus_or_shares_them_otherwise_is_left_alone() {
        let cluster = Cluster::with(Some(&forecast_of(&[29 * GIB])), Mode::Enforce);
        for option in ["gres=none", "gres=mps:50"] {
            let (action, filled, message) = cluster.ask("python train.py", None, &[option]);
            assert_eq!(
                (action, filled, message),
                (Action::None, None, String::new())
            );
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let parse = |text: &str| Settings::parse(text).map_err(|error| error.to_string());
        assert!(
            parse(
                "store = '/x'\n[[gpu]]\ntype = 'h100'\nshards = 80\nshards_of_several_gpus = true\n"
            )
            .is_err()
        );
        assert!(
            parse(
                "store = '/x'\nshards_of_several_gpus = true\n[[gpu]]\ntype = 'h100'\nshards = 80\n"
            )
            .is_ok()
        );
        let waits = |seconds: u32| {
            parse(&format!(
                "store = '/x'\ncontroller_seconds = {seconds}\n[[gpu]]\ntype = 'h100'\nshards = 80\n"
            ))
        };
        assert!(waits(0).is_err());
        assert!(waits(1).is_ok());
        assert!(waits(61).is_err());
        assert!(parse("store = '/x'\n").is_err());
        assert!(parse("store = '/x'\n[[gpu]]\ntype = 'h100'\nshards = 0\n").is_err());
        assert!(
            parse("store = '/x'\nmode = 'force'\n[[gpu]]\ntype = 'h100'\nshards = 80\n").is_err()
        );
    }
}
