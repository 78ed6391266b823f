// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a dry run that outlive its command, or `tonnage run` itself.
//!
//! A process belongs to a run if its environment names the folder of the run. That holds for daemons and sessions of
//! their own as well, which no process group has.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tonnage_capture::{LOG_PREFIX, RUN_FOLDER_PREFIX, RUN_VARIABLE};

use crate::signals::Termination;

/// How long processes have to end by themselves after the command: workers notice that their parent is gone.
const GRACE: Duration = Duration::from_secs(1);
/// Seconds between two signals to a process that goes on.
const PACE: u64 = 3;
/// A process that no signal ends is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The processes of the run with this folder.
pub(crate) fn processes_of(folder: &Path) -> Vec<u32> {
    let variable = format!("{RUN_VARIABLE}={}", folder.display());
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let numbers = entries.filter_map(Result::ok).filter_map(number);
    numbers
        .filter(|process| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            let mut variables = environment.split(|&byte| byte == 0);
            variables.any(|one| one == variable.as_bytes())
        })
        .collect()
}

/// Processes whose parent ends them: they do no work of the job.
const HELPERS: [&str; 2] = [
    "multiprocessing.resource_tracker",
    "torch/_inductor/compile_worker",
];
/// So many processes are named, by so many characters each.
const NAMED: usize = 64;
const CHARACTERS: usize = 200;

/// Processes that still ran when the command had ended, and were ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// How many of them had used a GPU.
    pub(crate) users: usize,
    /// The arguments of each other.
    pub(crate) others: Vec<String>,
}

/// Ends the processes of a run whose command has ended.
pub(crate) fn end(folder: &Path, interrupted: bool) -> Ended {
    let since = Instant::now();
    let grace = if interrupted { Duration::ZERO } else { GRACE };
    let mut left = processes_of(folder);
    while !left.is_empty() && since.elapsed() < grace {
        std::thread::sleep(POLL);
        left = processes_of(folder);
    }
    if left.is_empty() {
        return Ended::default();
    }
    let (users, others): (Vec<u32>, Vec<u32>) =
        (left.iter()).partition(|&&process| has_log(folder, process));
    let ended = Ended {
        users: users.len(),
        others: (others.into_iter().filter_map(arguments).take(NAMED)).collect(),
    };
    let mut termination = Termination::start(folder, PACE);
    let since = Instant::now();
    while !left.is_empty() && since.elapsed() < PATIENCE {
        termination.go_on(&left);
        std::thread::sleep(POLL);
        left = processes_of(folder);
    }
    ended
}

/// The arguments of a process in one line; `None` for one that has ended, and for a helper.
fn arguments(process: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).replace(char::is_control, " ");
    let line: String = line.trim_end().chars().take(CHARACTERS).collect();
    let is_helper = HELPERS.iter().any(|helper| line.contains(helper));
    (!line.is_empty() && !is_helper).then_some(line)
}

fn has_log(folder: &Path, process: u32) -> bool {
    let end = format!("-{process}");
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(LOG_PREFIX) && name.ends_with(&end)
    })
}

/// Ends the job and removes its folder if this process is killed: waits for the end of a pipe, whose other end this
/// process has.
const GUARD: &str = r#"
read -r word
[ "$word" = done ] && exit 0
processes() { grep -lzxF -e "TONNAGE_RUN=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
for process in $(processes "$1"); do kill -TERM "$process"; done
sleep 2
for process in $(processes "$1"); do kill -KILL "$process"; done
rm -rf -- "$1"
"#;

/// A process that guards a run as long as this lives.
pub(crate) struct Guard(Option<Child>);

impl Guard {
    /// Starts it. Without it the run goes on.
    pub(crate) fn start(folder: &Path) -> Self {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(RUN_FOLDER_PREFIX) {
            // A job on a real GPU goes on, and writes there.
            return Self(None);
        }
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", GUARD, "sh"])
            .arg(folder)
            .env_remove(RUN_VARIABLE)
            .env_remove("LD_PRELOAD")
            // An interrupt at the terminal is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().ok())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut guard) = self.0.take() {
            if let Some(mut pipe) = guard.stdin.take() {
                let _ = pipe.write_all(b"done\n");
            }
            let _ = guard.wait();
        }
    }
}
