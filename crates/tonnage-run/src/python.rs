// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which Python and which torch a job would use.
//!
//! The command may be a Python, a script that names one in its first line (`torchrun`, `accelerate`), or anything that
//! starts the one found on the path. That Python is queried for the location of torch, without importing it.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::RunError;
use crate::job::Job;

/// The torch that a job will import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Torch {
    /// CUDA's version as torch was built for it, e.g. 13020; 0 if it must be found out inside the process.
    pub cuda: i32,
}

impl Torch {
    /// Finds the torch that `job` would use, without importing it.
    pub fn find(job: &Job) -> Result<Self, RunError> {
        let program = program_of(job)?;
        match interpreter(job, &program) {
            Some(python) => ask(job, &python),
            // A shell script may find its Python in its own ways.
            None => Ok(executable(job, Path::new("python"))
                .and_then(|python| ask(job, &python).ok())
                .unwrap_or_default()),
        }
    }
}

/// The file that the first word of the job's command means.
fn program_of(job: &Job) -> Result<PathBuf, RunError> {
    let first = job.command.first().ok_or(RunError::NoCommand)?;
    executable(job, Path::new(first)).ok_or_else(|| RunError::CommandNotFound {
        command: first.to_string_lossy().into_owned(),
    })
}

/// A Python that sees what the job sees: the one it starts, else the one on its path.
pub(crate) fn interpreter_of(job: &Job) -> Result<Option<PathBuf>, RunError> {
    let program = program_of(job)?;
    let on_path = || {
        let names = ["python", "python3"].into_iter();
        names.map(Path::new).find_map(|name| executable(job, name))
    };
    Ok(interpreter(job, &program).or_else(on_path))
}

/// Options of Python's interpreter that take the next word as their value.
const WITH_VALUE: [&str; 3] = ["-W", "-X", "--check-hash-based-pycs"];

/// Which word of the job's command names its script, where it starts a Python that runs one: what comes behind it is
/// for the script.
pub(crate) fn script_position(job: &Job) -> Option<usize> {
    let program = program_of(job).ok()?;
    let python = interpreter(job, &program)?;
    if python != program {
        return Some(0);
    }
    let mut position = 1;
    loop {
        let word = job.command.get(position)?.to_str()?;
        match word {
            "-m" | "-c" => return job.command.get(position + 1).map(|_| position + 1),
            // Without a script Python reads one from its input.
            "-" | "-i" => return None,
            _ if WITH_VALUE.contains(&word) => position += 2,
            _ if word.starts_with('-') => position += 1,
            _ => return Some(position),
        }
    }
}

/// Compiles a script without running it; prints the kind, the line and the message of an error.
const COMPILE: &str = "import sys
try: compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec', dont_inherit=True)
except (SyntaxError, ValueError) as e: print(type(e).__name__, getattr(e, 'lineno', 0) or 0, getattr(e, 'msg', e), sep='\\n')
except BaseException: pass";

/// Fails if the job is `python SCRIPT` and Python could not begin to run that script.
pub(crate) fn check_script(job: &Job) -> Result<(), RunError> {
    let Ok(program) = program_of(job) else {
        return Ok(());
    };
    let Some(position) = script_position(job).filter(|position| *position > 0) else {
        return Ok(());
    };
    let before = &job.command[position - 1];
    if before == "-m" || before == "-c" {
        return Ok(());
    }
    let script = Path::new(&job.command[position]);
    let path = job.resolve(script);
    if !path.exists() {
        return Err(RunError::NoScript {
            script: script.to_owned(),
        });
    }
    // Python also runs folders and archives.
    let is_archive = || {
        let mut head = [0; 2];
        let read = std::fs::File::open(&path).and_then(|mut file| file.read_exact(&mut head));
        read.is_err() || head == *b"PK"
    };
    if !path.is_file() || is_archive() {
        return Ok(());
    }
    let mut command = Command::new(program);
    command
        .args(["-I", "-S", "-W", "ignore", "-c", COMPILE])
        .arg(&path);
    let Ok(answer) = command.output() else {
        return Ok(());
    };
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let mut lines = answer.lines();
    let (Some(kind), Some(line)) = (lines.next(), lines.next()) else {
        return Ok(());
    };
    Err(RunError::Script {
        kind: kind.to_owned(),
        script: script.to_owned(),
        line: line.parse().unwrap_or(0),
        message: lines.next().unwrap_or_default().to_owned(),
    })
}

impl Job {
    /// Puts the Python that the job's path finds in front of a command that begins with a Python script.
    ///
    /// A script that the system can start itself, because it may be executed and names its interpreter, stays as it is.
    pub fn start_scripts_with_python(&mut self) {
        let Some(script) = self.command.first().map(Path::new) else {
            return;
        };
        if script.extension().is_none_or(|extension| extension != "py") {
            return;
        }
        if executable(self, script).is_some_and(|file| first_line(&file).is_some()) {
            return;
        }
        let is_there = |name: &&str| executable(self, Path::new(name)).is_some();
        let python = ["python", "python3"].into_iter().find(is_there);
        // If there is none, the message names the usual one.
        self.command.insert(0, python.unwrap_or("python").into());
    }
}

/// The file that the first word of a command means.
fn executable(job: &Job, name: &Path) -> Option<PathBuf> {
    let runnable = |path: &PathBuf| {
        let metadata = path.metadata();
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if name.components().count() > 1 {
        return Some(job.resolve(name)).filter(runnable);
    }
    let folders = job.variable("PATH")?;
    let candidates = std::env::split_paths(&folders).map(|folder| job.resolve(&folder).join(name));
    candidates.into_iter().find(runnable)
}

/// The Python that running `program` starts, if it is one or names one.
fn interpreter(job: &Job, program: &Path) -> Option<PathBuf> {
    let is_python = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("python") || name.starts_with("pypy")
    };
    if is_python(program) {
        return Some(program.to_owned());
    }
    let line = first_line(program)?;
    let mut words = line.split_whitespace();
    let first = PathBuf::from(words.next()?);
    if first.file_name()? == "env" {
        return executable(job, Path::new(words.next()?)).filter(|path| is_python(path));
    }
    is_python(&first).then_some(first)
}

/// The interpreter in a script's first line, without the `#!`.
fn first_line(program: &Path) -> Option<String> {
    let mut head = [0; 512];
    let length = std::fs::File::open(program).ok()?.read(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head[..length]).into_owned();
    let line = head.strip_prefix("#!")?.lines().next()?;
    Some(line.to_owned())
}

/// Prints the folder of torch, or an empty line and what else uses GPUs; importing torch would take seconds.
const QUESTION: &str = "import importlib.util as u; s = u.find_spec('torch'); \
                        print(s.submodule_search_locations[0] if s else ''); \
                        s or print(*[n for n in ('jax', 'tensorflow', 'cupy') if u.find_spec(n)])";

fn ask(job: &Job, python: &Path) -> Result<Torch, RunError> {
    let mut command = Command::new(python);
    command
        .args(["-c", QUESTION])
        .envs(job.environment.iter().cloned());
    if let Some(folder) = &job.folder {
        command.current_dir(folder);
    }
    let answer = command.output().map_err(|source| RunError::Start {
        program: python.display().to_string(),
        source,
    })?;
    if !answer.status.success() {
        let printed = String::from_utf8_lossy(&answer.stderr);
        let last = printed.lines().rfind(|line| !line.trim().is_empty());
        return Err(RunError::BrokenPython {
            python: python.to_owned(),
            message: last.map_or_else(|| answer.status.to_string(), str::to_owned),
        });
    }
    let answered = String::from_utf8_lossy(&answer.stdout).into_owned();
    let mut lines = answered.lines().map(str::trim);
    let folder = lines.next().unwrap_or_default();
    if folder.is_empty() {
        let others = lines.next().unwrap_or_default().split_whitespace();
        return Err(RunError::NoTorch {
            python: python.to_owned(),
            others: others.map(str::to_owned).collect(),
        });
    }
    let version = Path::new(folder).join("version.py");
    let text = std::fs::read_to_string(&version).map_err(|source| RunError::IncompleteTorch {
        python: python.to_owned(),
        file: version,
        source,
    })?;
    let cuda = cuda_version(&text).ok_or_else(|| RunError::TorchWithoutCuda {
        python: python.to_owned(),
    })?;
    Ok(Torch { cuda })
}

/// The CUDA version in torch's `version.py`: `cuda: Optional[str] = '13.2'` gives 13020.
fn cuda_version(text: &str) -> Option<i32> {
    let line = text.lines().find(|line| line.starts_with("cuda"))?;
    let (_, value) = line.split_once('=')?;
    let value = value.trim().trim_matches(['\'', '"']);
    let (major, minor) = value.split_once('.')?;
    let major: i32 = major.parse().ok()?;
    let minor: i32 = minor.split('.').next()?.parse().ok()?;
    Some(major * 1000 + minor * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(files: &[(&str, &str, u32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text, mode) in files {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)).unwrap();
        }
        folder
    }

    fn started(folder: &Path, words: &[&str]) -> Vec<String> {
        let mut job = Job::new(words);
        job.folder = Some(folder.to_owned());
        job.environment = vec![("PATH".into(), folder.into())];
        job.start_scripts_with_python();
        let words = job.command.iter();
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn a_script_is_started_with_the_python_of_the_path() {
        let folder = folder_with(&[("python3", "", 0o755), ("train.py", "pass", 0o644)]);
        let path = folder.path();
        assert_eq!(
            started(path, &["train.py", "--x"]),
            ["python3", "train.py", "--x"]
        );
        assert_eq!(
            started(path, &["torchrun", "train.py"]),
            ["torchrun", "train.py"]
        );
        let both = folder_with(&[("python3", "", 0o755), ("python", "", 0o755)]);
        assert_eq!(started(both.path(), &["train.py"])[0], "python");
        let none = folder_with(&[("python3", "not executable", 0o644)]);
        assert_eq!(started(none.path(), &["train.py"])[0], "python");
    }

    #[test]
    fn a_script_that_names_its_interpreter_keeps_it() {
        let folder = folder_with(&[
            ("python3", "", 0o755),
            ("own.py", "#!/opt/python\n", 0o755),
            ("plain.py", "pass\n", 0o755),
        ]);
        let path = folder.path();
        assert_eq!(started(path, &["./own.py"]), ["./own.py"]);
        // The system could not start it, although it may be executed.
        assert_eq!(started(path, &["./plain.py"]), ["python3", "./plain.py"]);
    }

    #[test]
    fn a_script_that_cannot_begin_is_found_before_it_is_started() {
        let folder = folder_with(&[
            ("bad.py", "x = 1\ndef f(:\n", 0o644),
            ("good.py", "import nowhere\n", 0o644),
            ("app", "PK", 0o644),
        ]);
        let check = |words: &[&str]| {
            let mut job = Job::new(["python3"].iter().chain(words));
            job.folder = Some(folder.path().to_owned());
            check_script(&job).map_err(|error| error.to_string())
        };
        let bad = check(&["-u", "bad.py", "--x"]).unwrap_err();
        let start = "the script failed before using the GPU: SyntaxError (bad.py:2)";
        assert!(bad.starts_with(start), "{bad}");
        let none = check(&["none.py"]).unwrap_err();
        assert_eq!(none, "there is no script none.py");
        for words in [
            &["good.py"][..],
            &["-m", "bad"],
            &["-c", "def f(:"],
            &["."],
            &["app"],
        ] {
            assert_eq!(check(words), Ok(()), "{words:?}");
        }
    }

    #[test]
    fn the_cuda_version_is_read_as_torch_writes_it() {
        assert_eq!(cuda_version("cuda: Optional[str] = '13.2'\n"), Some(13020));
        assert_eq!(
            cuda_version("__version__ = '2.6.0'\ncuda = '12.4'\n"),
            Some(12040)
        );
        assert_eq!(cuda_version("cuda: Optional[str] = None\n"), None);
        assert_eq!(cuda_version(""), None);
    }
}
