// SPDX-License-Identifier: MIT OR Apache-2.0
//! Past jobs as other programs write them: `sacct -P`, the answer of Prometheus to a query over a range, and CSV with
//! a line of names, as public traces of clusters have it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use thiserror::Error;
use tonnage_gpus::Catalogue;

use super::PastJob;
use super::times::seconds;
use crate::forecast::MIB;

/// No job has more GPUs.
const MAX_GPUS: u32 = 1 << 17;
/// GPUs of all jobs together: a replay places each of them.
const MAX_PLACED: u64 = 1 << 25;
/// The characters of names that Kubernetes makes up: no vowels, and no digits that look like letters.
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
/// Names are cut here.
const MAX_TEXT: usize = 200;

/// Past jobs, and the number of other rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The jobs.
    pub jobs: Vec<PastJob>,
    /// Rows without an end, or without GPUs.
    pub skipped: u64,
    /// Reasons for caution, a sentence each.
    pub notes: Vec<String>,
}

impl History {
    fn gpus(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.gpus)).sum()
    }

    /// Adds the jobs of another file.
    pub fn extend(&mut self, other: Self) -> Result<(), ReadError> {
        if self.gpus() + other.gpus() > MAX_PLACED {
            return Err(ReadError::Size);
        }
        self.jobs.extend(other.jobs);
        self.skipped += other.skipped;
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(())
    }
}

/// Why a file cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// Its form is not known.
    #[error(
        "it has no line of names with the start and the end of jobs, and is not an answer of Prometheus"
    )]
    Form,
    /// A column is missing.
    #[error("it has no column for {0}")]
    Column(&'static str),
    /// There are more jobs than a replay can place.
    #[error("its jobs have more than {MAX_PLACED} GPUs together")]
    Size,
    /// It is not the JSON of a query.
    #[error("{0}")]
    Json(String),
}

/// Reads past jobs. `gpu` is the GPU where a row names none.
pub fn read(text: &str, gpu: Option<&str>) -> Result<History, ReadError> {
    let mut history = if text.trim_start().starts_with(['{', '[']) {
        of_prometheus(text)?
    } else {
        of_table(text)?
    };
    if history.gpus() > MAX_PLACED {
        return Err(ReadError::Size);
    }
    let catalogue = Catalogue::embedded();
    let mut unknown: BTreeSet<String> = BTreeSet::new();
    let mut known: HashMap<String, Option<(String, u64)>> = HashMap::new();
    for job in &mut history.jobs {
        if job.gpu.is_empty() {
            gpu.unwrap_or_default().clone_into(&mut job.gpu);
        }
        let found = known.entry(job.gpu.clone()).or_insert_with(|| {
            let gpu = catalogue.find(&job.gpu).ok()?;
            Some((gpu.id.clone(), gpu.total_memory.value))
        });
        match found {
            Some((id, bytes)) => {
                job.gpu.clone_from(id);
                if job.capacity == 0 {
                    job.capacity = *bytes;
                }
            }
            None if job.capacity == 0 => {
                unknown.insert(job.gpu.clone());
            }
            None => {}
        }
    }
    for name in unknown {
        let name = if name.is_empty() {
            "jobs that name no GPU".to_owned()
        } else {
            format!("jobs on {name:?}")
        };
        history.notes.push(format!(
            "the memory of a GPU is not known for {name}: they hold whole GPUs; --gpu names the GPU of rows without one"
        ));
    }
    if history.jobs.iter().all(|job| job.used.is_none()) && !history.jobs.is_empty() {
        history.notes.push(
            "the file has no measured use of GPU memory, so that nothing can be concluded about sharing".to_owned(),
        );
    }
    Ok(history)
}

/// A field that is read, with the names that programs and traces give it.
const JOB: &[&str] = &["job", "jobid", "job_id", "job_name", "name"];
const FAMILY: &[&str] = &["family", "jobname", "task_name", "type", "job_type"];
const TEAM: &[&str] = &["team", "account", "vc", "namespace", "queue", "group"];
const USER: &[&str] = &["user", "user_id"];
const GPU: &[&str] = &["gpu", "gpu_type", "gpu_spec", "model"];
const GPUS: &[&str] = &["gpus", "gpu_num", "num_gpu", "gpu_count", "plan_gpu"];
const TRES: &[&str] = &["alloctres", "reqtres"];
const START: &[&str] = &["start", "start_time", "scheduled_time"];
const END: &[&str] = &["end", "end_time", "deletion_time"];
const STATE: &[&str] = &["state", "status", "pod_phase"];
const ASKED: &[&str] = &["requested", "requested_gib", "request"];
const USED: &[&str] = &["used", "used_gib", "max_gpu_wrk_mem", "tresusageinmax"];
const MEMORY: &[&str] = &["memory", "gpu_memory", "capacity"];
const TASKS: &[&str] = &["ntasks"];
const COMMENT: &[&str] = &["admincomment", "forecast"];

/// The columns of a table.
struct Columns<'t> {
    names: HashMap<String, usize>,
    row: Vec<&'t str>,
}

impl Columns<'_> {
    fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.names.contains_key(*name))
    }

    /// The first of these columns that is not empty.
    fn get(&self, names: &[&str]) -> &str {
        let columns = names.iter().filter_map(|name| self.names.get(*name));
        let values = columns.filter_map(|&at| self.row.get(at));
        values
            .map(|value| value.trim())
            .find(|value| !value.is_empty())
            .unwrap_or("")
    }

    fn text(&self, names: &[&str]) -> String {
        let text = self.get(names).chars().filter(|c| !c.is_control());
        text.take(MAX_TEXT).collect()
    }
}

/// The fields of a line; a field in quotes may have the separator.
fn fields(line: &str, separator: char) -> Vec<&str> {
    let (mut fields, mut from, mut is_quoted) = (Vec::new(), 0, false);
    for (at, letter) in line.char_indices() {
        if letter == '"' {
            is_quoted = !is_quoted;
        } else if letter == separator && !is_quoted {
            fields.push(line[from..at].trim_matches('"'));
            from = at + separator.len_utf8();
        }
    }
    fields.push(line[from..].trim_matches('"'));
    fields
}

fn of_table(text: &str) -> Result<History, ReadError> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let head = lines.next().ok_or(ReadError::Form)?;
    let separators = ['|', '\t', ';', ','];
    let separator = separators.into_iter().find(|&one| head.contains(one));
    let separator = separator.ok_or(ReadError::Form)?;
    let names = fields(head.trim_start_matches('\u{feff}'), separator);
    let names = names.iter().enumerate();
    let mut columns = Columns {
        names: names
            .map(|(at, name)| (name.trim().to_ascii_lowercase(), at))
            .collect(),
        row: Vec::new(),
    };
    match (columns.has(START), columns.has(END)) {
        (true, true) => {}
        (false, false) => return Err(ReadError::Form),
        (false, true) => return Err(ReadError::Column("the start of a job (start)")),
        (true, false) => return Err(ReadError::Column("the end of a job (end)")),
    }
    if !columns.has(GPUS) && !columns.has(TRES) {
        return Err(ReadError::Column(
            "the number of GPUs (gpus, or AllocTRES of sacct)",
        ));
    }
    let is_sacct = columns.has(TRES);
    let mut history = History::default();
    // The steps of a job come behind it: `12`, `12.batch`, `12.0`.
    let mut current: Option<String> = None;
    let (mut long, mut unreadable) = (0_u64, 0_u64);
    for line in lines {
        columns.row = fields(line, separator);
        // sacct does not mask a separator in the name of a job: all later columns would be wrong.
        if columns.row.len() > columns.names.len() {
            (current, long) = (None, long + 1);
            history.skipped += 1;
            continue;
        }
        let id = columns.get(JOB).to_owned();
        if is_sacct && let Some((job, _)) = id.split_once('.') {
            if current.as_deref() == Some(job)
                && let Some(last) = history.jobs.last_mut()
            {
                let (used, is_average) = slurm_use(&columns, last.gpus);
                last.used = last.used.max(used);
                last.is_average |= is_average;
            }
            continue;
        }
        unreadable += u64::from(
            !is_sacct && !columns.get(USED).is_empty() && size(columns.get(USED)).is_none(),
        );
        if let Some(job) = job_of(&columns, is_sacct) {
            current = Some(id);
            history.jobs.push(job);
        } else {
            current = None;
            history.skipped += 1;
        }
    }
    if is_sacct {
        history.notes.push(
            "Slurm samples the GPU memory of a task, every 30 seconds by default; a peak between two samples is not seen"
                .to_owned(),
        );
    }
    let averages = history.jobs.iter().filter(|job| job.is_average).count();
    if averages > 0 {
        history.notes.push(format!(
            "of {}, tasks had several GPUs: Slurm records the sum, and the average of the GPUs counts here",
            tonnage_text::plural(averages as u64, "job")
        ));
    }
    if long > 0 {
        history.notes.push(format!(
            "left out {} with more columns than names; a job's name may have the separator",
            tonnage_text::plural(long, "row")
        ));
    }
    if unreadable > 0 {
        history.notes.push(format!(
            "the measured use of {} cannot be read; write it as 31.5GiB",
            tonnage_text::plural(unreadable, "row")
        ));
    }
    Ok(history)
}

/// A job of a row; none without GPUs, a start or an end.
fn job_of(columns: &Columns<'_>, is_sacct: bool) -> Option<PastJob> {
    let (start, end) = (seconds(columns.get(START))?, seconds(columns.get(END))?);
    let mut gpu = columns.text(GPU);
    let gpus = if is_sacct {
        let (kind, count) = gpus_of_tres(columns.get(TRES))?;
        if let Some(kind) = kind {
            gpu = kind;
        }
        count
    } else {
        let number: f64 = columns.get(GPUS).parse().ok()?;
        // Alibaba's `plan_gpu` is in hundredths.
        let is_percent = columns.names.contains_key("plan_gpu");
        let number = if is_percent { number / 100.0 } else { number };
        (number > 0.0 && number <= f64::from(MAX_GPUS)).then_some(number.ceil() as u32)?
    };
    let (used, is_average) = if is_sacct {
        slurm_use(columns, gpus)
    } else {
        (size(columns.get(USED)), false)
    };
    let is_lasting = end > start && gpus > 0;
    let state = columns.get(STATE).to_ascii_lowercase();
    // OUT_OF_MEMORY of Slurm is the memory of the machine, and NODE_FAIL is the fault of a machine.
    let fails: &[&str] = if is_sacct {
        &["fail"]
    } else {
        &["fail", "out_of_memory", "oom", "error"]
    };
    is_lasting.then(|| PastJob {
        job: columns.text(JOB),
        team: columns.text(TEAM),
        user: columns.text(USER),
        family: columns.text(FAMILY),
        gpu,
        gpus,
        capacity: size(columns.get(MEMORY)).unwrap_or(0),
        asked: size(columns.get(ASKED)),
        used,
        is_average,
        start,
        end,
        failed: !state.contains("node_fail") && fails.iter().any(|word| state.contains(word)),
        forecast: forecast_in(columns.get(COMMENT)),
    })
}

/// The forecast of `tonnage fill 1x30 3f2a81c09b1d4e5512345678`, which Slurm's hooks write into a comment.
fn forecast_in(comment: &str) -> Option<String> {
    let comment = comment.trim_start_matches('[').trim_end_matches(']');
    let name = comment.strip_prefix("tonnage ")?.split(' ').next_back()?;
    let is_name = name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| name.to_owned())
}

/// A size with its unit, `31.5GiB`, `31245M`, `33GB`; a plain number is in GiB, as traces have it.
fn size(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "g" | "gib" => 1_073_741_824.0,
        "m" | "mib" => 1_048_576.0,
        "k" | "kib" => 1024.0,
        "t" | "tib" => 1_099_511_627_776.0,
        "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    let bytes = number * factor;
    (0.0..1e18).contains(&bytes).then_some(bytes as u64)
}

/// The GPUs of `billing=8,gres/gpu:h100=4,gres/gpu=4`, with their kind; none without any.
fn gpus_of_tres(text: &str) -> Option<(Option<String>, u32)> {
    let (mut kind, mut all, mut of_kinds) = (None, None, 0_u32);
    for part in text.split(',') {
        let Some((name, count)) = part.split_once('=') else {
            continue;
        };
        let count: Option<u32> = count.parse().ok().filter(|&count| count <= MAX_GPUS);
        match (name.strip_prefix("gres/gpu"), count) {
            (Some(""), Some(count)) => all = Some(count),
            (Some(rest), Some(count)) if rest.starts_with(':') => {
                kind = Some(rest[1..].to_owned());
                of_kinds = of_kinds.saturating_add(count);
            }
            _ => {}
        }
    }
    let count = all.unwrap_or(of_kinds);
    (count > 0).then_some((kind, count))
}

/// The memory that a task of Slurm used of each of its GPUs, and whether that is an average of several.
fn slurm_use(columns: &Columns<'_>, gpus: u32) -> (Option<u64>, bool) {
    let usage = columns.get(USED).split(',');
    let memory = usage.filter_map(|part| part.strip_prefix("gres/gpumem="));
    let bytes = memory.filter_map(|text| {
        if text.ends_with(|c: char| c.is_ascii_digit()) {
            text.parse().ok()
        } else {
            size(text)
        }
    });
    let tasks: u32 = columns.get(TASKS).parse().unwrap_or(1);
    let of_a_task = gpus.div_ceil(tasks.max(1)).max(1);
    let used = bytes.max().filter(|&bytes: &u64| bytes > 0);
    let used = used.map(|bytes| bytes.div_ceil(u64::from(of_a_task)));
    (used, used.is_some() && of_a_task > 1)
}

#[derive(serde::Deserialize)]
struct Answer {
    data: Data,
}

#[derive(serde::Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(serde::Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Span,
}

/// The measurements of a series, of which few figures are kept: there may be millions.
#[derive(Default)]
struct Span {
    times: Option<(f64, f64)>,
    most: f64,
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Span;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("pairs of a time and a value")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Span, A::Error> {
                let mut span = Span::default();
                while let Some((time, value)) = pairs.next_element::<(f64, Cow<'de, str>)>()? {
                    let first = span.times.map_or(time, |(first, _)| first);
                    span.times = Some((first, time));
                    span.most = span.most.max(value.parse().unwrap_or(0.0));
                }
                Ok(span)
            }
        }
        deserializer.deserialize_seq(Pairs)
    }
}

/// A pod whose series are being read.
#[derive(Default)]
struct Pod {
    gpus: BTreeSet<String>,
    model: String,
    most: u64,
    start: f64,
    end: f64,
}

/// The answer to a query over a range of `DCGM_FI_DEV_FB_USED`, in MiB: a series for each GPU of a pod.
fn of_prometheus(text: &str) -> Result<History, ReadError> {
    let answer: Answer =
        serde_json::from_str(text).map_err(|error| ReadError::Json(error.to_string()))?;
    let mut pods: BTreeMap<(String, String), Pod> = BTreeMap::new();
    let mut history = History::default();
    for series in answer.data.result {
        let label = |names: &[&str]| {
            let found = names.iter().find_map(|name| series.metric.get(*name));
            found.cloned().unwrap_or_default()
        };
        let name = (
            label(&["namespace", "exported_namespace"]),
            label(&["pod", "exported_pod"]),
        );
        let Some((first, last)) = series.values.times else {
            history.skipped += 1;
            continue;
        };
        // A GPU that no pod has.
        if name.1.is_empty() {
            history.skipped += 1;
            continue;
        }
        let most = series.values.most * MIB as f64;
        let pod = pods.entry(name).or_insert_with(|| Pod {
            start: first,
            ..Pod::default()
        });
        pod.gpus
            .insert(label(&["UUID", "gpu_uuid", "gpu", "device"]));
        pod.model = label(&["modelName", "model"]);
        pod.most = pod.most.max(most as u64);
        pod.start = pod.start.min(first);
        pod.end = pod.end.max(last);
    }
    for ((namespace, name), pod) in pods {
        if pod.end <= pod.start {
            history.skipped += 1;
            continue;
        }
        history.jobs.push(PastJob {
            family: family_of_pod(&name),
            job: name,
            team: namespace,
            gpu: pod.model,
            gpus: u32::try_from(pod.gpus.len()).unwrap_or(MAX_GPUS),
            used: Some(pod.most),
            start: pod.start,
            end: pod.end,
            ..PastJob::default()
        });
    }
    history.notes.push(
        "a peak between two measurements is not seen; on a GPU that pods share, each series may show all of them"
            .to_owned(),
    );
    Ok(history)
}

/// The name of a pod without the parts that Kubernetes added: `train-7d9f8b6c5-x2x4z`, `train-0`.
fn family_of_pod(name: &str) -> String {
    let is_added = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let is_random = (5..=10).contains(&part.len()) && part.chars().all(|c| RANDOM.contains(c));
        is_number || is_random
    };
    let mut rest = name;
    while let Some((before, part)) = rest.rsplit_once('-') {
        if !is_added(part) {
            break;
        }
        rest = before;
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn one(text: &str) -> PastJob {
        let mut history = read(text, None).expect("jobs");
        assert_eq!(history.jobs.len(), 1, "{history:?}");
        history.jobs.remove(0)
    }

    #[test]
    fn sacct_is_read_with_the_steps_that_have_the_use() {
        let text = "JobID|JobName|Account|User|AllocTRES|NTasks|Start|End|State|TRESUsageInMax\n\
            7|train|vision|ann|billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4|\
            |2026-11-01T10:00:00|2026-11-01T12:00:00|FAILED|\n\
            7.batch|batch|vision||cpu=8,gres/gpu:h100=4,gres/gpu=4|1|2026-11-01T10:00:00|2026-11-01T12:00:00|FAILED|\
            cpu=00:10:00,gres/gpumem=81920M,gres/gpuutil=61\n\
            7.0|python|vision||gres/gpu:h100=4,gres/gpu=4|4|2026-11-01T10:00:00|2026-11-01T12:00:00|FAILED|\
            gres/gpumem=31245M\n\
            8|prepare|vision|ann|billing=8,cpu=8||2026-11-01T10:00:00|2026-11-01T12:00:00|COMPLETED|\n\
            8.batch|batch|vision||cpu=8|1|2026-11-01T10:00:00|2026-11-01T12:00:00|COMPLETED|\n\
            9|train|vision|ann|gres/gpu=1||2026-11-01T10:00:00|Unknown|RUNNING|\n";
        let history = read(text, None).expect("jobs");
        assert_eq!((history.jobs.len(), history.skipped), (1, 2));
        let job = &history.jobs[0];
        assert_eq!((job.gpus, job.gpu.as_str()), (4, "h100-80gb"));
        assert_eq!(Some(job.end - job.start), Some(7200.0));
        // The task with one GPU counts in full, the one with four by a quarter.
        assert_eq!(job.used, Some(31_245 * MIB));
        assert!(job.failed && job.capacity > 79 * GIB);
        // An average may be less than the fullest GPU: no forecast learns from it.
        assert!(job.is_average && job.observation().is_none());
        let name = "3f2a81c09b1d4e5512345678";
        let mark = format!("tonnage fill 1x30 {name}");
        assert_eq!(forecast_in(&mark).as_deref(), Some(name));
        assert_eq!(forecast_in("tonnage advise"), None);
    }

    #[test]
    fn a_name_with_the_separator_changes_no_other_column() {
        let head = "JobID|JobName|User|AllocTRES|NTasks|Start|End|State|TRESUsageInMax\n";
        let row = |name: &str, state: &str| {
            format!(
                "7|{name}|ann|gres/gpu:h100=1|1|2026-11-01T10:00:00|2026-11-01T12:00:00|{state}|gres/gpumem=78G\n"
            )
        };
        let ending = |state: &str| one(&format!("{head}{}", row("train", state))).failed;
        assert!(ending("FAILED"));
        // The machine's memory, and a fault of the machine.
        assert!(!ending("OUT_OF_MEMORY") && !ending("NODE_FAIL"));
        let history = read(&format!("{head}{}", row("a|gres/gpu=64", "FAILED")), None);
        let history = history.expect("no job");
        assert_eq!((history.jobs.len(), history.skipped), (0, 1));
        assert!(
            history
                .notes
                .iter()
                .any(|note| note.contains("left out 1 row with")),
            "{history:?}"
        );
    }

    #[test]
    fn sizes_have_units_and_a_replay_a_limit() {
        for (text, bytes) in [
            ("1", GIB),
            ("1.5GiB", 3 * GIB / 2),
            ("3GB", 3_000_000_000),
            ("5M", 5 * MIB),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        let history = read("gpus,start,end,used\n1,0,9,some\n", None).expect("a job");
        assert!(
            history.notes.iter().any(|note| note.contains("31.5GiB")),
            "{history:?}"
        );
        let row = format!("{MAX_GPUS},0,9\n");
        let many = format!("gpus,start,end\n{}", row.repeat(300));
        assert_eq!(read(&many, None), Err(ReadError::Size));
        for (pod, family) in [
            ("train-7d9f8b6c5-x2x4z", "train"),
            ("train-7d9f8b6c5-xkzvb", "train"),
            ("tune-llama3", "tune-llama3"),
            ("worker-0", "worker"),
        ] {
            assert_eq!(family_of_pod(pod), family);
        }
    }

    #[test]
    fn columns_of_public_traces_are_read() {
        // Helios.
        let job = one(
            "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
            1,u1,vc7,8,64,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 01:00:00,2020-04-01 02:00:00,3600,3600\n",
        );
        assert_eq!((job.gpus, job.team.as_str(), job.used), (8, "vc7", None));
        // Acme.
        let job = one(
            "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,\
            start_time,end_time,fail_time,stop_time,duration,queue,gpu_time\n\
            dlc1,u1,2.0,16.0,1.0,100,0,Evaluation,FAILED,2023-03-01 00:00:00+08:00,2023-03-01 01:00:00+08:00,\
            2023-03-01 03:00:00+08:00,,,7200,0,1\n",
        );
        assert_eq!(
            (job.gpus, job.family.as_str(), job.failed),
            (16, "Evaluation", true)
        );
        // Alibaba 2023.
        let job = one(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
            scheduled_time\npod-1,1000,1024,1,460,V100M16,LS,Running,0,12537496,9.0\n",
        );
        assert_eq!((job.gpus, job.gpu.as_str(), job.start), (1, "V100M16", 9.0));
        // Alibaba 2020, with its names as the first line, and the sensor's use joined.
        let job = one(
            "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type,\
            max_gpu_wrk_mem\na,tensorflow,1,Terminated,100,400,600,29.3,50,T4,3.5\n",
        );
        assert_eq!((job.gpus, job.used), (1, Some(7 * GIB / 2)));
        assert_eq!(job.gpu, "t4");
    }

    #[test]
    fn series_of_prometheus_become_pods() {
        let series = |pod: &str, uuid: &str, values: &str| {
            format!(
                "{{\"metric\": {{\"pod\": \"{pod}\", \"namespace\": \"ml\", \"UUID\": \"{uuid}\", \
                 \"modelName\": \"NVIDIA H100 80GB HBM3\"}}, \"values\": {values}}}"
            )
        };
        let text = format!(
            "{{\"status\": \"success\", \"data\": {{\"resultType\": \"matrix\", \"result\": [{}, {}, {}]}}}}",
            series(
                "train-7d9f8b6c5-x2x4z",
                "a",
                "[[100, \"1024\"], [400, \"2048\"]]"
            ),
            series(
                "train-7d9f8b6c5-x2x4z",
                "b",
                "[[130, \"512\"], [460, \"1\"]]"
            ),
            series("", "c", "[[130, \"512\"]]"),
        );
        let history = read(&text, None).expect("jobs");
        assert_eq!((history.jobs.len(), history.skipped), (1, 1));
        let job = &history.jobs[0];
        assert_eq!(
            (job.gpus, job.used, job.family.as_str()),
            (2, Some(2 * GIB), "train")
        );
        assert_eq!(
            (job.start, job.end, job.gpu.as_str()),
            (100.0, 460.0, "h100-80gb")
        );
    }

    #[test]
    fn other_files_are_refused_and_hostile_rows_passed_over() {
        assert_eq!(read("", None), Err(ReadError::Form));
        assert_eq!(read("a,b\n1,2\n", None), Err(ReadError::Form));
        assert!(matches!(read("{\"a\": 1}", None), Err(ReadError::Json(_))));
        assert_eq!(
            read("start,end\n1,2\n", None),
            Err(ReadError::Column(
                "the number of GPUs (gpus, or AllocTRES of sacct)"
            ))
        );
        let text = "job,gpus,start,end,used\n1,-1,0,9,1\n2,1e99,0,9,1\n3,1,9,0,1\n4,1,nan,9,1\n5,1\n6,1,0,9,-5\n\"7,1,0,9";
        let history = read(text, Some("h100")).expect("jobs");
        assert_eq!((history.jobs.len(), history.skipped), (1, 6));
        assert_eq!(
            (history.jobs[0].used, history.jobs[0].gpu.as_str()),
            (None, "h100-80gb")
        );
    }
}
