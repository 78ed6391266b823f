// SPDX-License-Identifier: MIT OR Apache-2.0
//! The inputs of a forecast, so that it is found again for the same job and for no other.
//!
//! A key is computed from what is known before a job starts: its words, the container image, the files that the words
//! name, the settings of PyTorch's allocator. Modules that the script imports are not part of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Larger files are data, not code: they are not part of a key.
const MAX_SOURCE: u64 = 4 << 20;
/// So many files and bytes of one command are part of its key, in the order of its words; the others are data. A hook
/// reads them while a scheduler waits.
const MAX_SOURCES: usize = 32;
const MAX_SOURCE_BYTES: u64 = 16 << 20;
/// Names of a command that may be files: each is looked up.
const MAX_NAMES: usize = 1000;
/// The same of all commands of a job together; a command beyond these limits has no key.
const MAX_JOB_NAMES: usize = 2000;
const MAX_JOB_BYTES: u64 = 32 << 20;
/// Switches of Python that change nothing of what a script does to a GPU.
const IDLE_SWITCHES: [&str; 3] = ["-u", "-B", "-q"];
/// How many characters of a name are the digest of the job.
const JOB_DIGITS: usize = 16;
/// How many more are the digest of the whole key.
const KEY_DIGITS: usize = 8;
/// Settings of PyTorch's allocator, which decide how much it takes; the newer name first.
pub const ALLOCATOR_SETTINGS: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// The inputs of a forecast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobKey {
    /// The words of the command; its program without a folder.
    pub command: Vec<String>,
    /// The container image.
    pub image: Option<String>,
    /// The files that the words name, with their SHA-256.
    pub sources: BTreeMap<String, String>,
    /// Settings of PyTorch's allocator, if the environment has some.
    pub allocator: Option<String>,
    /// The start of the SHA-256 of what else a container is started with (its variables, its volumes), where the
    /// forecast holds for that only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// How many ranks the job has, where its command line does not contain it.
    pub world_size: Option<u32>,
    /// How many GPUs a process sees, where that was given.
    pub gpus: Option<u32>,
    /// The version of PyTorch.
    pub torch: String,
    /// The catalogue's name of the GPU.
    pub gpu: String,
}

impl JobKey {
    /// The key of a command that is started in `folder`. PyTorch's version and the GPU are left empty.
    pub fn of_command<W: AsRef<str>>(words: &[W], folder: &Path) -> Self {
        // One command stays below the limits of a job.
        let key = Self::of_command_within(words, folder, &mut SourceFiles::default());
        key.unwrap_or_else(|| Self::of_words(words))
    }

    /// The key of one of several commands; none if the commands together name more than is read for one job.
    pub fn of_command_within<W: AsRef<str>>(
        words: &[W],
        folder: &Path,
        files: &mut SourceFiles,
    ) -> Option<Self> {
        let mut key = Self::of_words(words);
        key.sources = sources(&key.command, folder, files)?;
        Some(key)
    }

    /// The key of a command whose files are not here: they lie in an image, or on another machine.
    pub fn of_words<W: AsRef<str>>(words: &[W]) -> Self {
        let mut command: Vec<String> = words.iter().map(|word| word.as_ref().to_owned()).collect();
        if let Some(first) = command.first_mut() {
            *first = program(first).to_owned();
        }
        if command.first().is_some_and(|first| first == "python") {
            let idle = command[1..].iter();
            let idle = idle.take_while(|word| IDLE_SWITCHES.contains(&word.as_str()));
            command.drain(1..=idle.count());
        }
        Self {
            command,
            ..Self::default()
        }
    }

    /// The name of a forecast with this key: that of the job, and the start of the SHA-256 of the key as JSON.
    pub fn name(&self) -> String {
        self.job_name() + &digest_of(self, KEY_DIGITS)
    }

    /// The start of the names of all forecasts of this job, so that they are found without a look at the others.
    pub fn job_name(&self) -> String {
        let job = (&self.command, &self.image, &self.sources, &self.allocator);
        match &self.environment {
            Some(environment) => digest_of(&(job, environment), JOB_DIGITS),
            None => digest_of(&job, JOB_DIGITS),
        }
    }

    /// Whether both are the same job, on whatever GPU and with whatever PyTorch. Numbers of ranks and of GPUs that only
    /// one of them knows do not matter.
    pub fn is_same_job(&self, other: &Self) -> bool {
        let differ =
            |a: Option<u32>, b: Option<u32>| matches!((a, b), (Some(a), Some(b)) if a != b);
        self.command == other.command
            && self.image == other.image
            && self.sources == other.sources
            && self.allocator == other.allocator
            && self.environment == other.environment
            && !differ(self.world_size, other.world_size)
            && !differ(self.gpus, other.gpus)
    }

    /// The name under which jobs of one kind are added up: the script, or the module after `-m`, or the program.
    pub fn family(&self) -> String {
        let after_m = self.command.iter().skip_while(|word| *word != "-m").nth(1);
        let is_script = |word: &&String| {
            let path = Path::new(word.as_str());
            path.extension()
                .is_some_and(|extension| extension == "py" || extension == "sh")
        };
        let script = self.command.iter().find(is_script);
        let named = match (script, after_m) {
            (Some(script), _) => Path::new(script)
                .file_name()
                .map(|name| name.to_string_lossy().into_owned()),
            (None, Some(module)) => Some(module.clone()),
            (None, None) => self.command.first().cloned(),
        };
        named.unwrap_or_default()
    }
}

/// A program without its folder; all Pythons are one.
fn program(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    let is_version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
    match name.strip_prefix("python") {
        Some(version) if is_version(version) => "python",
        _ => name,
    }
}

/// Files that were read for the keys of a job, each once.
#[derive(Debug, Default)]
pub struct SourceFiles {
    /// The digests and sizes; none for names of other objects.
    read: HashMap<PathBuf, Option<(String, u64)>>,
    names: usize,
    bytes: u64,
}

impl SourceFiles {
    /// The digest of a file of at most `most` bytes and its size; none for other objects. An error is the limit of a
    /// job.
    fn digest(&mut self, path: PathBuf, most: u64) -> Result<Option<(String, u64)>, LimitReached> {
        if let Some(read) = self.read.get(&path) {
            let fitting = read.as_ref().filter(|(_, size)| *size <= most);
            return Ok(fitting.cloned());
        }
        if self.names == MAX_JOB_NAMES {
            return Err(LimitReached);
        }
        self.names += 1;
        // A pipe would be waited for.
        let size = path.metadata().ok().filter(std::fs::Metadata::is_file);
        let size = size.map(|file| file.len());
        let Some(size) = size.filter(|&size| size <= MAX_SOURCE) else {
            self.read.insert(path, None);
            return Ok(None);
        };
        if size > most {
            return Ok(None);
        }
        if self.bytes + size > MAX_JOB_BYTES {
            return Err(LimitReached);
        }
        let found = digest(&path).unwrap_or_default();
        self.bytes += found.as_ref().map_or(0, |(_, size)| *size);
        self.read.insert(path, found.clone());
        Ok(found)
    }
}

/// The commands of a job name more files, or more bytes, than are read for one job.
#[derive(Debug)]
struct LimitReached;

/// The files that words name, also as `--config=FILE`, with their digests; none beyond the limits of a job.
fn sources(
    words: &[String],
    folder: &Path,
    files: &mut SourceFiles,
) -> Option<BTreeMap<String, String>> {
    let (mut sources, mut names, mut bytes) = (BTreeMap::new(), HashSet::new(), 0);
    for word in words {
        let value = word.split_once('=').map(|(_, value)| value);
        for name in std::iter::once(word.as_str()).chain(value) {
            if sources.len() == MAX_SOURCES || names.len() == MAX_NAMES {
                return Some(sources);
            }
            if !names.insert(name) {
                continue;
            }
            let found = files.digest(folder.join(name), MAX_SOURCE_BYTES - bytes);
            if let Some((digest, size)) = found.ok()? {
                bytes += size;
                sources.insert(name.to_owned(), digest);
            }
        }
    }
    Some(sources)
}

/// The digest of a file and its size; none for one too large to be code.
fn digest(path: &Path) -> io::Result<Option<(String, u64)>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_SOURCE + 1)
        .read_to_end(&mut bytes)?;
    let size = bytes.len() as u64;
    Ok((size <= MAX_SOURCE).then(|| (hex(&Sha256::digest(&bytes)), size)))
}

/// The digest of what a container is started with, for [`JobKey::environment`].
pub fn environment_digest(value: &impl Serialize) -> String {
    digest_of(value, JOB_DIGITS)
}

/// The start of the SHA-256 of a value as JSON.
fn digest_of(value: &impl Serialize, digits: usize) -> String {
    let json = serde_json::to_vec(value).unwrap_or_default();
    let mut digest = hex(&Sha256::digest(json));
    digest.truncate(digits);
    digest
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_job_and_not_where_its_python_lies() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("train.py"), "print(1)").expect("written");
        std::fs::write(folder.path().join("a.yaml"), "x: 1").expect("written");
        let key = |words: &[&str]| JobKey::of_command(words, folder.path());
        let first = key(&["/usr/bin/python3.11", "train.py", "--config=a.yaml"]);
        assert_eq!(first.command[0], "python");
        assert_eq!(
            first.sources.keys().collect::<Vec<_>>(),
            ["a.yaml", "train.py"]
        );
        assert_eq!(first.family(), "train.py");
        assert!(first.is_same_job(&key(&["python", "train.py", "--config=a.yaml"])));
        assert!(!first.is_same_job(&key(&["python", "train.py", "--config=a.yaml", "-v"])));
        // Another text is another job.
        std::fs::write(folder.path().join("a.yaml"), "x: 2").expect("written");
        let second = key(&["python", "train.py", "--config=a.yaml"]);
        assert!(!first.is_same_job(&second));
        assert_ne!(first.name(), second.name());
    }

    #[test]
    fn the_same_words_on_other_numbers_of_gpus_are_other_forecasts() {
        let key = |gpus| JobKey {
            gpus,
            ..JobKey::of_words(&["python", "train.py"])
        };
        let (one, two, any) = (key(Some(1)), key(Some(2)), key(None));
        assert_ne!(one.name(), two.name());
        assert_eq!(one.job_name(), two.job_name());
        assert!(!one.is_same_job(&two));
        assert!(any.is_same_job(&one) && any.is_same_job(&two));
    }

    #[test]
    fn families_are_named_by_what_runs() {
        let family = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            JobKey::of_command(&words, Path::new("/nowhere")).family()
        };
        assert_eq!(
            family("python3 -m vllm.entrypoints.api --model x"),
            "vllm.entrypoints.api"
        );
        assert_eq!(
            family("torchrun --nproc-per-node 8 src/train.py"),
            "train.py"
        );
        assert_eq!(family("vllm serve x"), "vllm");
    }

    #[test]
    fn the_files_of_a_key_are_read_once_and_within_limits() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, size: usize| {
            std::fs::write(folder.path().join(name), vec![b'x'; size]).expect("written");
        };
        write("big.bin", MAX_SOURCE as usize);
        let mut files = SourceFiles::default();
        let words = vec!["big.bin"; 8000];
        let key = JobKey::of_command_within(&words, folder.path(), &mut files).expect("a key");
        assert_eq!((key.sources.len(), files.bytes), (1, MAX_SOURCE));
        // Files behind the 32nd, or the 16 MiB, are data, in whatever order they lie on the disk.
        let names: Vec<String> = (0..40).map(|n| format!("{n}.py")).collect();
        for name in &names {
            write(name, 10);
        }
        let key = JobKey::of_command(&names, folder.path());
        assert_eq!(key.sources.len(), MAX_SOURCES);
        assert!(key.sources.contains_key("31.py") && !key.sources.contains_key("32.py"));
        let large: Vec<String> = (0..6).map(|n| format!("{n}.bin")).collect();
        for name in &large {
            write(name, MAX_SOURCE as usize);
        }
        assert_eq!(JobKey::of_command(&large, folder.path()).sources.len(), 4);
        // A later command of the same job: its files were read, then more than a job may name.
        let mut files = SourceFiles::default();
        let mut within = |words: &[String]| {
            JobKey::of_command_within(words, folder.path(), &mut files).map(|key| key.sources.len())
        };
        assert_eq!(within(&large), Some(4));
        assert_eq!(within(&large), Some(4));
        let more: Vec<String> = (0..MAX_JOB_NAMES).map(|n| format!("missing-{n}")).collect();
        assert_eq!(within(&more[..MAX_NAMES]), Some(0));
        assert_eq!(within(&more[MAX_NAMES..]), None);
    }

    #[test]
    fn switches_of_python_that_change_nothing_are_left_out() {
        let key = |line: &str| JobKey::of_words(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(key("python3 -u -B train.py -u"), key("python train.py -u"));
        assert_ne!(key("python -O train.py"), key("python train.py"));
        assert_ne!(key("torchrun -u train.py"), key("torchrun train.py"));
    }

    #[test]
    fn a_folder_or_a_device_is_no_source() {
        let key = JobKey::of_command(&["python", ".", "/dev/zero"], Path::new("/"));
        assert!(key.sources.is_empty());
    }
}
