// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dry runs through the library alone, of jobs that need no torch.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tonnage_analysis::verdict::Outcome;
use tonnage_run::{
    Attempt, Ending, Job, JobEnd, JobOutput, Observer, Options, Progress, Quiet, RunDir, RunError,
    Torch, dry_run, judge,
};

/// One GPU, with the stand-in that cargo puts beside the test.
fn options() -> Options {
    let mut options = Options::for_gpu("a100-40gb").unwrap();
    let test = std::env::current_exe().unwrap();
    options.standin = Some(test.with_file_name("libtonnage_standin.so"));
    options.allow_real_gpu = true;
    options
}

fn shell(script: &str) -> Job {
    let mut job = Job::new(["sh", "-c", script]);
    job.output = JobOutput::Discard;
    job
}

/// Writes down its notifications, and ends the job when it has waited long enough.
#[derive(Default)]
struct Log {
    told: Vec<String>,
    ticks: u32,
    patience: Option<Duration>,
}

impl Observer for Log {
    fn started(&mut self, attempt: Attempt) {
        self.told.push(format!("started {attempt:?}"));
    }

    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        self.ticks += 1;
        match self.patience {
            Some(patience) if progress.elapsed > patience => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn ended(&mut self, attempt: Attempt, end: &JobEnd) {
        self.told.push(format!("ended {attempt:?}: {}", end.ending));
    }
}

#[test]
fn a_job_is_run_recorded_and_judged() {
    let folder = TempDir::new().unwrap();
    let recording = folder.path().join("job.tonnage");
    let mut log = Log::default();
    let run = dry_run(&shell("exit 0"), &options(), &recording, &mut log).unwrap();
    assert_eq!(run.verdict.outcome, Outcome::NoDevice);
    assert_eq!(run.limited.end.ending, Ending::Exit(0));
    assert_eq!(run.limited.collected.processes, 0);
    assert_eq!(run.unlimited, None);
    assert_eq!(log.told, ["started Limited", "ended Limited: exit 0"]);
    // The recording has the same verdict for later readers.
    assert_eq!(judge(&recording).unwrap(), run.verdict);
    assert_eq!(run.verdict.gpu_name, options().gpu.name);

    let run = dry_run(&shell("kill -9 $$"), &options(), &recording, &mut Quiet).unwrap();
    assert_eq!(run.limited.end.ending, Ending::Signal(9));
}

#[test]
fn a_job_gets_its_own_folder_and_environment_and_the_simulated_devices() {
    let folder = TempDir::new().unwrap();
    let recording = folder.path().join("job.tonnage");
    let mut job = shell(r#"echo "$COLOUR,$TONNAGE_RUN,$LD_PRELOAD,$PYTHONPATH" > seen"#);
    job.folder = Some(folder.path().to_owned());
    job.environment = vec![
        ("COLOUR".into(), "green".into()),
        ("PYTHONPATH".into(), "/mine".into()),
    ];
    let mut options = options();
    options.pass_through = vec![folder.path().to_owned()];
    dry_run(&job, &options, &recording, &mut Quiet).unwrap();
    let seen = std::fs::read_to_string(folder.path().join("seen")).unwrap();
    let seen: Vec<&str> = seen.trim().split(',').collect();
    assert_eq!(seen[0], "green");
    assert!(seen[2].contains("libtonnage_standin.so"), "{seen:?}");
    assert_eq!(seen[3], format!("{}/python:/mine", seen[1]));
    // Nothing of the run stays behind but its recording.
    assert!(!Path::new(seen[1]).exists());
}

#[test]
fn a_program_is_found_where_the_job_runs() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let program = folder.path().join("bin/job");
    std::fs::write(&program, "#!/bin/sh\nexit 3\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let recording = folder.path().join("job.tonnage");
    let mut job = Job::new(["bin/job"]);
    let missing = dry_run(&job, &options(), &recording, &mut Quiet).unwrap_err();
    assert!(
        matches!(missing, RunError::CommandNotFound { .. }),
        "{missing}"
    );
    assert!(missing.hint().is_some());
    job.folder = Some(folder.path().to_owned());
    let run = dry_run(&job, &options(), &recording, &mut Quiet).unwrap();
    assert_eq!(run.limited.end.ending, Ending::Exit(3));
}

#[test]
fn an_observer_can_end_a_job() {
    let folder = TempDir::new().unwrap();
    let recording = folder.path().join("job.tonnage");
    let mut log = Log {
        patience: Some(Duration::from_millis(200)),
        ..Log::default()
    };
    let job = shell("exec sleep 600");
    let run = dry_run(&job, &options(), &recording, &mut log).unwrap();
    assert!(run.limited.end.interrupted);
    // A job that was started with interrupts ignored, as shells do in the background, is ended by the next signal.
    let ending = run.limited.end.ending;
    assert!(
        matches!(ending, Ending::Signal(2 | 15)),
        "ended with {ending:?}"
    );
    assert_eq!(run.verdict.outcome, Outcome::Interrupted);
    assert!(log.ticks > 1);
    assert!(run.limited.end.elapsed < Duration::from_mins(1));
}

#[test]
fn the_steps_can_be_taken_one_by_one() {
    let folder = TempDir::new().unwrap();
    let recording = folder.path().join("job.tonnage");
    let job = shell("exit 7");
    let torch = Torch::find(&job).unwrap();
    let run_dir = RunDir::create(&options(), torch, Attempt::Limited).unwrap();
    let status = run_dir.command(&job).unwrap().status().unwrap();
    let end = JobEnd::new(status.into(), Duration::from_secs(1));
    run_dir.record(&job, &end, &recording).unwrap();
    let verdict = judge(&recording).unwrap();
    assert_eq!(verdict.outcome, Outcome::Failed);
    assert_eq!(verdict.ending, "exit 7");
}

#[test]
fn what_cannot_be_simulated_is_refused_before_anything_runs() {
    let folder = TempDir::new().unwrap();
    let recording = folder.path().join("job.tonnage");
    let refused = |job: &Job, options: &Options| {
        let error = dry_run(job, options, &recording, &mut Quiet).unwrap_err();
        assert!(!recording.exists());
        error.to_string()
    };
    let mut many = options();
    many.gpus = 17;
    let job = shell("exit 0");
    assert_eq!(
        refused(&job, &many),
        "17 GPUs cannot be simulated: a machine has 1 to 16"
    );
    many.gpus = 0;
    assert!(refused(&job, &many).starts_with("0 GPUs cannot be simulated"));
    let mut unsupported = options();
    unsupported.gpu.supported = false;
    unsupported.gpu.reason = Some("it is a toaster".to_owned());
    assert_eq!(
        refused(&job, &unsupported),
        "a100-40gb cannot be simulated: it is a toaster"
    );
    let mut nowhere = options();
    nowhere.standin = Some(folder.path().join("none.so"));
    assert!(refused(&job, &nowhere).contains("none.so"));
    let nothing: [&str; 0] = [];
    assert_eq!(
        refused(&Job::new(nothing), &options()),
        "there is no command to run"
    );
}
