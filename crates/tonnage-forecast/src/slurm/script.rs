// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of a batch script that may use a GPU, as far as its text tells.

use std::path::PathBuf;

/// The commands of a job that may use a GPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    pub(super) found: Vec<Started>,
    /// Lines with variables, of which nobody knows what they will be.
    pub(super) variables: Vec<usize>,
    /// The folder that the script has changed to.
    folder: Folder,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Started {
    /// None for what is no script.
    pub(super) line: Option<usize>,
    pub(super) words: Vec<String>,
    /// From the folder in which the job starts.
    pub(super) folder: PathBuf,
    pub(super) by: StartedBy,
}

/// What starts a command, and with that how many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartedBy {
    /// Once.
    Script,
    /// By `srun`, so many times if that is said there, otherwise once for each task of the job.
    Srun(Option<u32>),
}

#[derive(Debug, PartialEq, Eq)]
enum Folder {
    Known(PathBuf),
    /// Only variables tell.
    Unknown,
}

impl Default for Folder {
    fn default() -> Self {
        Self::Known(PathBuf::new())
    }
}

/// Programs that start PyTorch.
const PROGRAMS: [&str; 6] = [
    "python",
    "torchrun",
    "accelerate",
    "deepspeed",
    "vllm",
    "lightning",
];
/// Words that start another command.
const BEFORE: [&str; 13] = [
    "exec", "time", "nohup", "env", "command", "if", "then", "else", "elif", "do", "while",
    "until", "!",
];

/// The commands of a batch script with these arguments.
pub(super) fn commands_of(script: &str, arguments: &[String]) -> Commands {
    let mut commands = Commands::default();
    let mut logical = String::new();
    let mut first = 1;
    for (number, line) in script.lines().enumerate() {
        if logical.is_empty() {
            first = number + 1;
        }
        if let Some(more) = line.strip_suffix('\\') {
            logical.push_str(more);
            logical.push(' ');
            continue;
        }
        logical.push_str(line);
        let whole = std::mem::take(&mut logical);
        for part in whole.split("&&").flat_map(|part| part.split(';')) {
            take_line(part, first, arguments, &mut commands);
        }
    }
    take_line(&logical, first, arguments, &mut commands);
    commands
}

/// The command of srun, or another, by its words.
pub(super) fn command_of(words: &[String], by: StartedBy) -> Commands {
    let mut commands = Commands::default();
    let (words, within) = started(words, by);
    if starts_torch(words) {
        commands.found.push(Started {
            line: None,
            words: words.to_vec(),
            folder: PathBuf::new(),
            by: within,
        });
    }
    commands
}

fn take_line(line: &str, number: usize, arguments: &[String], commands: &mut Commands) {
    let line = line.trim();
    let line = match line.strip_prefix(['(', '{']) {
        Some(inside) => inside.trim_end_matches([')', '}']).trim(),
        None => line,
    };
    if line.is_empty() || line.starts_with('#') {
        return;
    }
    let Some(words) = shlex::split(line) else {
        return;
    };
    let words = with_arguments(words, arguments);
    let (words, by) = started(&words, StartedBy::Script);
    if let [cd, to] = words
        && matches!(cd.as_str(), "cd" | "pushd")
    {
        commands.folder = match &commands.folder {
            Folder::Known(folder) if !to.contains(['$', '`', '~']) && to != "-" => {
                Folder::Known(folder.join(to))
            }
            _ => Folder::Unknown,
        };
        return;
    }
    if !starts_torch(words) {
        return;
    }
    // Redirections are no words of the command.
    let is_redirection =
        |word: &String| word.starts_with(['>', '<', '|', '&']) || word.starts_with("2>");
    let end = words.iter().position(is_redirection).unwrap_or(words.len());
    let (command, after) = words.split_at(end);
    let is_known = !command.iter().any(|word| word.contains(['$', '`']));
    let another = (0..after.len()).any(|at| starts_torch(&after[at..]));
    match &commands.folder {
        Folder::Known(folder) if is_known && !another => commands.found.push(Started {
            line: Some(number),
            words: command.to_vec(),
            folder: folder.clone(),
            by,
        }),
        _ => commands.variables.push(number),
    }
}

/// The words with the script's arguments in their places. `$1` within a word stays, and so is not known.
fn with_arguments(words: Vec<String>, arguments: &[String]) -> Vec<String> {
    let mut known = Vec::new();
    for word in words {
        let name = word.strip_prefix('$').unwrap_or_default();
        let name = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'))
            .unwrap_or(name);
        match (name, name.parse::<usize>()) {
            ("@" | "*", _) => known.extend_from_slice(arguments),
            (_, Ok(at)) if at > 0 && at <= arguments.len() => known.push(arguments[at - 1].clone()),
            _ => known.push(word),
        }
    }
    known
}

fn starts_torch(words: &[String]) -> bool {
    words.first().is_some_and(|program| {
        let name = program.rsplit('/').next().unwrap_or(program);
        PROGRAMS.iter().any(|known| name.starts_with(known))
    })
}

/// The words from the program on that a line starts: assignments, `srun` with its options and the like are left out.
fn started(words: &[String], mut by: StartedBy) -> (&[String], StartedBy) {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let is_assignment = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        if is_assignment || BEFORE.contains(&word.as_str()) {
            at += 1;
        } else if word == "srun" {
            at += 1;
            let mut tasks = None;
            while let Some(option) = words.get(at).filter(|word| word.starts_with('-')) {
                tasks = tasks_of(option, words.get(at + 1)).or(tasks);
                at += 1 + usize::from(takes_a_word(option));
            }
            by = StartedBy::Srun(tasks);
        } else {
            break;
        }
    }
    (words.get(at..).unwrap_or_default(), by)
}

/// What an option of srun says of its tasks.
fn tasks_of(option: &str, next: Option<&String>) -> Option<u32> {
    let value = match option {
        "-n" | "--ntasks" => next?.as_str(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: usize, words: &str, folder: &str, by: StartedBy) -> Started {
        Started {
            line: Some(line),
            words: words.split('|').map(str::to_owned).collect(),
            folder: folder.into(),
            by,
        }
    }

    #[test]
    fn the_commands_of_a_batch_script_are_found_behind_what_starts_them() {
        let script = "#!/bin/bash\n#SBATCH -n 2\nmodule load cuda\nexport A=1\n\
            A=1 srun -n 2 --label \\\n  python3 train.py --lr 1e-3 > log.txt\n\
            cd x && torchrun --nproc-per-node 2 'my train.py'\necho python\npython eval.py --data $DATA\n\
            srun --ntasks=4 python a.py\nsrun -n8 python b.py\nsrun python c.py\n\
            cd $HOME\npython last.py\n";
        let commands = commands_of(script, &[]);
        let expected = [
            found(
                5,
                "python3|train.py|--lr|1e-3",
                "",
                StartedBy::Srun(Some(2)),
            ),
            found(
                7,
                "torchrun|--nproc-per-node|2|my train.py",
                "x",
                StartedBy::Script,
            ),
            found(10, "python|a.py", "x", StartedBy::Srun(Some(4))),
            found(11, "python|b.py", "x", StartedBy::Srun(Some(8))),
            found(12, "python|c.py", "x", StartedBy::Srun(None)),
        ];
        assert_eq!(commands.found, expected);
        assert_eq!(commands.variables, [9, 14]);
    }

    #[test]
    fn commands_within_loops_and_conditions_are_commands() {
        let script = "for n in 1 2; do python train.py $n; done\nif python check.py; then\n  (python a.py)\nfi\n\
            python b.py & python c.py\npython d.py 2>&1 | tee log\n";
        let commands = commands_of(script, &[]);
        let words: Vec<_> = commands
            .found
            .iter()
            .map(|one| one.words.join(" "))
            .collect();
        assert_eq!(words, ["python check.py", "python a.py", "python d.py"]);
        assert_eq!(commands.variables, [1, 5]);
    }

    #[test]
    fn arguments_of_the_script_are_known() {
        let arguments = ["7b".to_owned(), "a b".to_owned()];
        let script = "python train.py --size $1 --name \"${2}\"\npython all.py \"$@\"\npython x.py --size=$1\npython y.py $3\n";
        let commands = commands_of(script, &arguments);
        let words: Vec<_> = commands.found.iter().map(|one| one.words.clone()).collect();
        assert_eq!(
            words,
            [
                vec!["python", "train.py", "--size", "7b", "--name", "a b"],
                vec!["python", "all.py", "7b", "a b"]
            ]
        );
        assert_eq!(commands.variables, [3, 4]);
    }

    #[test]
    fn a_command_without_a_script_is_what_srun_starts() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let by = StartedBy::Srun(Some(2));
        let commands = command_of(&words("env A=1 python train.py"), by);
        assert_eq!(commands.found[0].words, words("python train.py"));
        assert_eq!(commands.found[0].by, by);
        // What salloc starts.
        let commands = command_of(&words("srun -n 3 python train.py"), StartedBy::Script);
        assert_eq!(commands.found[0].by, StartedBy::Srun(Some(3)));
        assert_eq!(command_of(&words("hostname"), by), Commands::default());
        assert_eq!(command_of(&[], by), Commands::default());
    }
}
