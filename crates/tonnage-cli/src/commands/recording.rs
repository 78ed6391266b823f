// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files in and out: recordings of any format, and outputs that are whole or not there.
//!
//! A foreign recording is imported into a temporary trace first, so that every command reads one format and may read
//! it as often as it needs.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;
use tonnage_analysis::unknown;
use tonnage_analysis::verdict::{Verdict, VerdictError, verdict, verdict_of_whole};
use tonnage_import::{DETECT_BYTES, Format, ImportError, detect};
use tonnage_recording::{ReadError, WriteError, Writer, second_recording};

use crate::output::{hinted, print_err};
use crate::progress::Reading;
use crate::{PRODUCER, Surroundings};

/// Every trace starts with the marker of an Arrow message.
const TRACE_MARK: [u8; 4] = [0xff; 4];
/// The name of standard input.
const STDIN: &str = "-";

/// The folder of the job, from which its own files are named.
pub(crate) fn job_folder(surroundings: &Surroundings) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    match &surroundings.folder {
        Some(folder) => folder.canonicalize().unwrap_or_else(|_| here.join(folder)),
        None => here,
    }
}

/// A file that is read as often as needed; standard input is kept in a temporary one for that.
pub(crate) struct Input {
    path: PathBuf,
    kept: Option<NamedTempFile>,
}

impl Input {
    /// The file of this name, or standard input for `-`.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let mut kept = None;
        if path == Path::new(STDIN) {
            let mut file = NamedTempFile::new().context("cannot make a temporary file")?;
            io::copy(&mut io::stdin().lock(), &mut file).context("cannot read standard input")?;
            kept = Some(file);
        }
        Ok(Self {
            path: path.to_owned(),
            kept,
        })
    }

    /// Opens it from its start, or returns why not.
    pub(crate) fn open(&self) -> Result<File> {
        let Some(kept) = &self.kept else {
            return open(&self.path);
        };
        kept.reopen().context("cannot read standard input again")
    }

    /// Its first bytes, which identify the format.
    pub(crate) fn head(&self) -> Result<Vec<u8>> {
        let mut first = Vec::new();
        let head = self
            .open()?
            .take(DETECT_BYTES as u64)
            .read_to_end(&mut first);
        head.with_context(|| format!("cannot read {}", named(&self.path)))?;
        Ok(first)
    }

    /// The foreign format of the file; none if it is a trace of tonnage.
    pub(crate) fn recognise(&self) -> Result<Option<Format>> {
        let first = self.head()?;
        if first.is_empty() {
            return Err(hinted(
                format!("{} is empty", named(&self.path)),
                "the recording was never written, or its copy failed; record or copy it again",
            ));
        }
        if first.starts_with(&TRACE_MARK) {
            return Ok(None);
        }
        match detect(&first) {
            Some(format) => Ok(Some(format)),
            None => Err(unreadable(&self.path, &ImportError::UnknownFormat)),
        }
    }

    /// Bytes in it.
    pub(crate) fn size(&self) -> u64 {
        let path = self.kept.as_ref().map_or(&*self.path, NamedTempFile::path);
        path.metadata().map_or(0, |metadata| metadata.len())
    }
}

/// The name of a file in a message.
pub(crate) fn named(path: &Path) -> String {
    if path == Path::new(STDIN) {
        return "standard input".to_owned();
    }
    path.display().to_string()
}

/// A recording that can be opened as a trace.
pub(crate) struct Recording {
    input: Input,
    /// Its format, if it is not a trace of tonnage.
    pub(crate) foreign: Option<Format>,
    imported: Option<NamedTempFile>,
    /// Where the recording of the whole job begins, if one follows.
    whole: Option<u64>,
}

impl Recording {
    /// Finds out what a file is, and imports it if it is not ours.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Self::from_input(Input::new(path)?)
    }

    /// The same for an input that was looked at before.
    pub(crate) fn from_input(input: Input) -> Result<Self> {
        let foreign = input.recognise()?;
        let imported = foreign.is_some().then(|| import(&input)).transpose()?;
        let whole = match foreign {
            Some(_) => None,
            None => second_recording(input.open()?)
                .with_context(|| format!("cannot read {}", named(&input.path)))?,
        };
        Ok(Self {
            input,
            foreign,
            imported,
            whole,
        })
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.input.size()
    }

    /// The trace, from its start.
    pub(crate) fn trace(&self) -> io::Result<Reading> {
        Reading::new(self.file()?)
    }

    fn file(&self) -> io::Result<File> {
        match self.imported.as_ref().or(self.input.kept.as_ref()) {
            Some(file) => file.reopen(),
            None => File::open(&self.input.path),
        }
    }

    /// The trace of the same job on a device without a limit, if the job did not fit and was run so.
    pub(crate) fn whole(&self) -> io::Result<Option<Reading>> {
        let Some(offset) = self.whole else {
            return Ok(None);
        };
        let mut file = self.file()?;
        file.seek(io::SeekFrom::Start(offset))?;
        Reading::new(file).map(Some)
    }

    /// The trace that goes furthest: of the whole job if there is one, else the only one.
    pub(crate) fn furthest(&self) -> io::Result<Reading> {
        match self.whole()? {
            Some(whole) => Ok(whole),
            None => self.trace(),
        }
    }

    /// How the job went, all of it.
    pub(crate) fn verdict(&self) -> Result<Verdict, VerdictError> {
        if self.has_whole() {
            verdict_of_whole(|| self.trace(), || self.furthest())
        } else {
            verdict(|| self.trace())
        }
    }

    /// Whether [`Recording::furthest`] is not the first trace.
    pub(crate) fn has_whole(&self) -> bool {
        self.whole.is_some()
    }
}

fn import(input: &Input) -> Result<NamedTempFile> {
    let file = NamedTempFile::new().context("cannot make a temporary file")?;
    import_to(input, file).map(|(file, _)| file)
}

/// The result of an import.
pub(crate) struct Imported {
    /// Rows that are events or parts of a state.
    pub(crate) events: u64,
    /// Facts that the recording does not contain.
    pub(crate) unknown: Vec<String>,
}

/// Writes a foreign recording as a trace.
pub(crate) fn import_to<W: Write>(input: &Input, destination: W) -> Result<(W, Imported)> {
    let failed = |error: &WriteError| explained(error, error.hint());
    let mut writer = Writer::new(destination, PRODUCER).map_err(|error| failed(&error))?;
    let source = Reading::new(input.open()?)?;
    tonnage_import::import(source, 0, &mut writer)
        .map_err(|error| unreadable(&input.path, &error))?;
    let imported = Imported {
        events: writer.events(),
        unknown: unknown::list_unknowns(writer.facts()),
    };
    let destination = writer.finish().map_err(|error| failed(&error))?;
    Ok((destination, imported))
}

/// Opens a file, or returns why not.
fn open(path: &Path) -> Result<File> {
    let refused = |error: io::Error| {
        let reason = explained(&error, recordings_beside(path));
        reason.context(format!("cannot open {}", path.display()))
    };
    let file = File::open(path).map_err(refused)?;
    if file.metadata().map_err(refused)?.is_dir() {
        return Err(hinted(
            format!("{} is a folder", path.display()),
            recordings_beside(&path.join("any")),
        ));
    }
    Ok(file)
}

/// How many recordings a hint lists.
const LISTED: usize = 5;

/// The next step for a file that is missing: the recordings in its folder.
fn recordings_beside(path: &Path) -> String {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|file| file.extension().is_some_and(|it| it == "tonnage"))
        .filter_map(|file| Some(plain(&file.file_name()?.to_string_lossy())))
        .collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    match names.as_slice() {
        [] => "check the name; `tonnage run` writes a recording".to_owned(),
        names if more > 0 => format!("there are {} and {more} more", names.join(", ")),
        names => format!("there is {}", names.join(", ")),
    }
}

/// The words for a format.
pub(crate) const fn words(format: Format) -> &'static str {
    match format {
        Format::PytorchPickle => "PyTorch memory snapshot (pickle)",
        Format::PytorchJson => "PyTorch memory snapshot (JSON)",
        Format::RmmCsv => "log of RMM (CSV)",
        Format::PlannerCsv => "planning problem (CSV)",
        _ => "recording of another tool",
    }
}

fn unreadable(path: &Path, error: &ImportError) -> anyhow::Error {
    let is_script = path.extension().is_some_and(|it| it == "py");
    if is_script && matches!(error, ImportError::UnknownFormat) {
        let name = named(path);
        return hinted(
            format!("{name} is a script, not a recording"),
            format!("make a recording first: `tonnage run --gpu NAME {name}`"),
        );
    }
    let reason = explained(error, error.hint());
    reason.context(format!("cannot read {}", named(path)))
}

/// The same for a trace.
pub(crate) fn unreadable_trace(path: &Path, error: &ReadError) -> anyhow::Error {
    let reason = explained(error, error.hint());
    reason.context(format!("cannot read {}", named(path)))
}

/// A recording without what a command is about, which may be because its end is missing.
pub(crate) fn without(path: &Path, what: &str, is_truncated: bool, hint: &str) -> anyhow::Error {
    if is_truncated {
        return hinted(
            format!("{} is truncated and shows no {what}", named(path)),
            "the copy is not complete, or the recorder was ended early; copy it again or record again",
        );
    }
    hinted(format!("{} shows no {what}", named(path)), hint)
}

/// An error of a library with its reasons in one line, and its hint.
pub(crate) fn explained(error: &dyn Error, hint: impl Into<String>) -> anyhow::Error {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(": ");
        message.push_str(&cause.to_string());
        source = cause.source();
    }
    hinted(message, hint)
}

/// Where a command writes: nothing is there until all of it is.
pub(crate) enum Output {
    Stdout,
    /// A device or pipe, which cannot be replaced.
    Direct(File),
    File {
        temporary: NamedTempFile,
        path: PathBuf,
        force: bool,
    },
}

impl Output {
    /// Prepares to write `path`, or what `-` means; refuses to overwrite unless forced.
    pub(crate) fn create(path: &Path, force: bool) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let failed = || format!("cannot write {}", path.display());
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                return Err(hinted(
                    format!("{} is a folder", path.display()),
                    "name a file with -o",
                ));
            }
            Ok(metadata) if !metadata.is_file() => {
                let file = File::options().write(true).open(path);
                return file.map(Self::Direct).with_context(failed);
            }
            Ok(_) if !force => return Err(taken(path)),
            _ => {}
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return Err(hinted(
                format!("the folder {} does not exist", folder.display()),
                "create it first, or name another file with -o",
            ));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tonnage-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // As any new file: the user's mask decides, not the privacy of temporary files.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        // The kind alone: the message names a temporary file that the user did not request.
        let temporary = builder.tempfile_in(folder);
        let temporary = temporary.map_err(|error| io::Error::from(error.kind()));
        let temporary = temporary.with_context(failed)?;
        Ok(Self::File {
            temporary,
            path: path.to_owned(),
            force,
        })
    }

    /// The file that is being written, which stands elsewhere until it is finished; none for a pipe or a device.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File { temporary, .. } => Some(temporary.path()),
            Self::Stdout | Self::Direct(_) => None,
        }
    }

    /// The same, to be written to.
    pub(crate) fn file(&self) -> Option<&File> {
        match self {
            Self::File { temporary, .. } => Some(temporary.as_file()),
            Self::Stdout | Self::Direct(_) => None,
        }
    }

    /// Gives the file another name than it was created for.
    pub(crate) fn rename(&mut self, to: &Path) {
        if let Self::File { path, .. } = self {
            to.clone_into(path);
        }
    }

    /// A buffered way to write to it.
    pub(crate) fn writer(&self) -> Result<BufWriter<Box<dyn Write>>> {
        let writer: Box<dyn Write> = match self {
            Self::Stdout => Box::new(io::stdout()),
            Self::Direct(file) => Box::new(file.try_clone()?),
            Self::File { temporary, .. } => Box::new(temporary.as_file().try_clone()?),
        };
        Ok(BufWriter::with_capacity(256 << 10, writer))
    }

    /// Writes all of it, and puts it in its place.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<()> {
        let mut writer = self.writer()?;
        writer.write_all(bytes)?;
        writer.flush()?;
        drop(writer);
        self.finish()?;
        Ok(())
    }

    /// Puts the finished file in its place and returns its size, if it is a file.
    pub(crate) fn finish(self) -> Result<Option<u64>> {
        let Self::File {
            temporary,
            path,
            force,
        } = self
        else {
            return Ok(None);
        };
        let size = temporary
            .as_file()
            .metadata()
            .map(|metadata| metadata.len());
        let placed = if force {
            temporary.persist(&path)
        } else {
            temporary.persist_noclobber(&path)
        };
        match placed {
            Ok(_) => Ok(size.ok()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(taken(&path)),
            Err(error) => {
                Err(error.error).with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }
}

fn taken(path: &Path) -> anyhow::Error {
    hinted(
        format!("{} already exists", path.display()),
        "overwrite it with --force, or name another file",
    )
}

/// The name of an output: in the current folder, the input's name with another extension.
pub(crate) fn derived(input: &Path, extension: &str) -> PathBuf {
    let input = if input == Path::new(STDIN) {
        Path::new("stdin")
    } else {
        input
    };
    let stem = input.file_stem().unwrap_or(input.as_os_str());
    let mut name = stem.to_owned();
    name.push(extension);
    PathBuf::from(name)
}

/// Says so where an answer is about the whole job and not about what was recorded up to the failure.
pub(crate) fn tell_of_the_whole(recording: &Recording) {
    if recording.has_whole() {
        print_err(
            "the job ran out of memory; this is about all of it, as it ran on a GPU without a limit",
        );
    }
}

/// Tells what could not be kept or had to be assumed.
pub(crate) fn tell_notes(title: &str, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    print_err(&format!("  {title}:"));
    for note in notes {
        print_err(&format!("    {}", plain(note)));
    }
}

/// A text of a file as one line that does nothing to a terminal.
pub(crate) fn plain(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    let mut line: String = text
        .chars()
        .take(MAX_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        line.push('…');
    }
    line
}
