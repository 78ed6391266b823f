// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that start another one, which their last words name.

use super::lexer::Word;
use super::programs::{StartedBy, is_python_file, name_of, starts_torch};

/// The program that a command starts.
#[derive(Debug)]
pub(super) enum Launched {
    /// A program with its words.
    Words(Vec<Word>, StartedBy),
    /// No program that may use a GPU.
    Nothing,
    /// Something that its words do not show.
    Unknown,
}

/// A program that starts the one behind its own options. An option that is not listed makes a command unknown.
struct Launcher {
    names: &'static [&'static str],
    /// The subcommand that starts a program; empty where none is needed. Other subcommands start none.
    subcommand: &'static str,
    switches: &'static [&'static str],
    /// Options whose value is the next word, or follows `=`.
    valued: &'static [&'static str],
    /// The launcher's own words before the program.
    operands: usize,
    /// Whether the program is one that only its environment knows: an image, or commands that packages define.
    has_own_programs: bool,
}

const PLAIN: Launcher = Launcher {
    names: &[],
    subcommand: "",
    switches: &[],
    valued: &[],
    operands: 0,
    has_own_programs: false,
};

const LAUNCHERS: [Launcher; 15] = [
    Launcher {
        names: &["nohup", "setsid", "builtin"],
        switches: &["-w", "--wait"],
        ..PLAIN
    },
    Launcher {
        names: &["exec"],
        switches: &["-c", "-l"],
        valued: &["-a"],
        ..PLAIN
    },
    Launcher {
        names: &["time"],
        switches: &["-p", "-v", "--verbose", "-a"],
        valued: &["-f", "-o", "--format", "--output"],
        ..PLAIN
    },
    Launcher {
        names: &["command"],
        switches: &["-p"],
        ..PLAIN
    },
    Launcher {
        names: &["env"],
        switches: &["-i", "--ignore-environment", "-"],
        valued: &["-u", "--unset"],
        ..PLAIN
    },
    Launcher {
        names: &["nice"],
        valued: &["-n", "--adjustment"],
        ..PLAIN
    },
    Launcher {
        names: &["ionice"],
        switches: &["-t"],
        valued: &["-c", "-n", "--class", "--classdata"],
        ..PLAIN
    },
    Launcher {
        names: &["stdbuf"],
        valued: &["-i", "-o", "-e", "--input", "--output", "--error"],
        ..PLAIN
    },
    Launcher {
        names: &["timeout"],
        switches: &["--foreground", "--preserve-status", "-v", "--verbose"],
        valued: &["-k", "-s", "--kill-after", "--signal"],
        operands: 1,
        ..PLAIN
    },
    Launcher {
        names: &["taskset"],
        switches: &["-a", "-c", "--cpu-list"],
        operands: 1,
        ..PLAIN
    },
    Launcher {
        names: &["numactl"],
        switches: &["-l", "--localalloc", "-a", "--all"],
        valued: &[
            "-N",
            "-m",
            "-C",
            "-i",
            "-p",
            "--cpunodebind",
            "--membind",
            "--physcpubind",
            "--interleave",
            "--preferred",
        ],
        ..PLAIN
    },
    Launcher {
        names: &["uv"],
        subcommand: "run",
        switches: &[
            "--active",
            "--all-extras",
            "--all-groups",
            "--dev",
            "--exact",
            "--frozen",
            "--isolated",
            "--locked",
            "--no-cache",
            "--no-dev",
            "--no-project",
            "--no-sync",
            "--offline",
            "--quiet",
            "-q",
            "--verbose",
            "-v",
        ],
        valued: &[
            "--env-file",
            "--extra",
            "--group",
            "--index-url",
            "--package",
            "--project",
            "--python",
            "-p",
            "--with",
            "--with-requirements",
        ],
        has_own_programs: true,
        ..PLAIN
    },
    Launcher {
        names: &["poetry", "pipenv", "pdm", "rye", "pixi"],
        subcommand: "run",
        has_own_programs: true,
        ..PLAIN
    },
    Launcher {
        names: &["conda", "mamba", "micromamba"],
        subcommand: "run",
        switches: &["--live-stream", "--no-capture-output", "-v", "--verbose"],
        valued: &["-n", "--name", "-p", "--prefix"],
        has_own_programs: true,
        ..PLAIN
    },
    Launcher {
        names: &["apptainer", "singularity"],
        subcommand: "exec",
        switches: &[
            "--nv",
            "--rocm",
            "-e",
            "--cleanenv",
            "-c",
            "--contain",
            "-C",
            "--containall",
            "-i",
            "--ipc",
            "-p",
            "--pid",
            "-u",
            "--userns",
            "-f",
            "--fakeroot",
            "--no-home",
            "-w",
            "--writable",
            "--writable-tmpfs",
            "--unsquash",
        ],
        valued: &[
            "-B",
            "--bind",
            "--env",
            "--env-file",
            "-H",
            "--home",
            "--mount",
            "--overlay",
            "-S",
            "--scratch",
            "-W",
            "--workdir",
        ],
        operands: 1,
        has_own_programs: true,
    },
];

/// Programs that start containers in ways that are not understood, by the subcommands that do.
const CONTAINERS: [(&[&str], &[&str]); 4] = [
    (&["apptainer", "singularity"], &["run", "shell", "instance"]),
    (&["docker", "podman", "nerdctl"], &["run", "exec", "start"]),
    (&["enroot"], &["start", "exec"]),
    (&["sarus"], &["run"]),
];

/// The words from the program on that a command starts: assignments, `srun` with its options and the like are left out.
pub(super) fn strip_launcher(words: &[Word], mut by: StartedBy) -> Launched {
    let mut rest = words;
    let mut has_own_programs = false;
    while let [first, after @ ..] = rest {
        let name = name_of(&first.text);
        let (next, subcommand) = (after.first(), after.first().map_or("", |word| &word.text));
        let launcher = LAUNCHERS.iter().find(|one| one.names.contains(&name));
        let is_container = CONTAINERS
            .iter()
            .any(|(names, starts)| names.contains(&name) && starts.contains(&subcommand));
        if is_assignment(first) {
            rest = after;
        } else if name == "srun" {
            let (behind, tasks) = behind_srun(after);
            by = StartedBy::Srun(tasks);
            rest = behind;
        } else if is_container {
            return Launched::Unknown;
        } else if name == "command" && matches!(subcommand, "-v" | "-V") {
            return Launched::Nothing;
        } else if let Some(launcher) = launcher
            && (launcher.subcommand.is_empty()
                || next.is_some_and(|word| !word.is_known || word.text == launcher.subcommand))
        {
            let own = usize::from(!launcher.subcommand.is_empty());
            let Some(behind) = behind_options(&after[own..], launcher) else {
                return Launched::Unknown;
            };
            has_own_programs |= launcher.has_own_programs;
            rest = behind;
        } else {
            break;
        }
    }
    let mut words = rest.to_vec();
    if has_own_programs {
        let name = words.first().map_or("", |word| name_of(&word.text));
        match name {
            "-m" | "--module" => "-m".clone_into(&mut words[0].text),
            "bash" | "sh" => return Launched::Words(words, by),
            name if !starts_torch(name) => return Launched::Unknown,
            name if !is_python_file(name) => return Launched::Words(words, by),
            _ => {}
        }
        // `uv run train.py` and `uv run -m train` start Python.
        words.insert(0, Word::literal("python"));
    }
    Launched::Words(words, by)
}

fn is_assignment(word: &Word) -> bool {
    word.text.split_once('=').is_some_and(|(name, _)| {
        let name = name.strip_suffix('+').unwrap_or(name);
        let name = name.split_once('[').map_or(name, |(name, _)| name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The words behind the options of a launcher; none if they are not understood.
fn behind_options<'w>(words: &'w [Word], launcher: &Launcher) -> Option<&'w [Word]> {
    let mut at = 0;
    while let Some(option) = words.get(at).filter(|word| word.text.starts_with('-')) {
        let text = option.text.as_str();
        let has_value = launcher
            .valued
            .iter()
            .any(|name| match name.strip_prefix("--") {
                // `--bind=a`; `-oL`.
                Some(_) => text
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('=')),
                None => text.len() > 2 && !text.starts_with("--") && text.starts_with(name),
            });
        if launcher.has_own_programs && matches!(text, "-m" | "--module") {
            break;
        }
        at += 1;
        if text == "--" {
            break;
        } else if launcher.valued.contains(&text) {
            at += 1;
        } else if !has_value && !launcher.switches.contains(&text) {
            return None;
        }
    }
    words.get(at + launcher.operands..)
}

/// The words behind the options of srun, and how many tasks they start.
fn behind_srun(words: &[Word]) -> (&[Word], Option<u32>) {
    let (mut at, mut tasks) = (0, None);
    while let Some(option) = words.get(at).filter(|word| word.text.starts_with('-')) {
        tasks = tasks_of(&option.text, words.get(at + 1)).or(tasks);
        at += 1 + usize::from(takes_a_word(&option.text));
    }
    (words.get(at..).unwrap_or_default(), tasks)
}

/// The tasks that an option of srun sets.
fn tasks_of(option: &str, next: Option<&Word>) -> Option<u32> {
    let value = match option {
        "-n" | "--ntasks" => next?.text.as_str(),
        _ => option
            .strip_prefix("--ntasks=")
            .or_else(|| option.strip_prefix("-n"))?,
    };
    value.parse().ok()
}

/// Whether an option of srun is followed by its value.
fn takes_a_word(option: &str) -> bool {
    const SWITCHES: [&str; 18] = [
        "--contiguous",
        "--disable-status",
        "--exact",
        "--exclusive",
        "--hold",
        "--interactive",
        "--kill-on-bad-exit",
        "--label",
        "--no-allocate",
        "--no-kill",
        "--overcommit",
        "--overlap",
        "--oversubscribe",
        "--preserve-env",
        "--pty",
        "--quiet",
        "--unbuffered",
        "--verbose",
    ];
    if option.starts_with("--") {
        return !option.contains('=') && !SWITCHES.contains(&option);
    }
    // `-n2` has its value, `-n` has it in the next word; `-l`, `-u` have none.
    option.len() == 2 && !"EHIKkOQsuvXZl".contains(&option[1..])
}
