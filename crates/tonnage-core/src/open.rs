// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens any recording: our own file or a foreign one, told by its first bytes.
//!
//! A foreign recording is imported once, into memory, and is a trace from then
//! on; our own file is read from disk each time. Either can be read as often as
//! an analysis needs, so nothing else has to know where a recording came from.

use std::fs::File;
use std::io::{Cursor, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tonnage_import::{DETECT_BYTES, Format, ImportError, detect};
use tonnage_trace::{ReadError, Reader, WriteError, Writer};

/// Why a recording could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A foreign recording cannot be imported.
    #[error("{path} cannot be imported")]
    Import {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ImportError,
    },
    /// Our own file cannot be read.
    #[error("{path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ReadError,
    },
}

#[derive(Clone, Debug)]
enum Source {
    File,
    /// The trace that a foreign recording became.
    Imported(Arc<[u8]>),
}

/// A recording that can be read any number of times.
#[derive(Clone, Debug)]
pub struct Recording {
    path: PathBuf,
    source: Source,
    /// The foreign format, if it is one.
    pub format: Option<Format>,
}

impl Recording {
    /// Opens a file; a foreign one is imported now.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let cannot = |source| OpenError::File {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(cannot)?;
        let mut first = Vec::new();
        let start = file.by_ref().take(DETECT_BYTES as u64);
        { start }.read_to_end(&mut first).map_err(cannot)?;
        let Some(format) = detect(&first) else {
            return Ok(Self {
                path: path.to_owned(),
                source: Source::File,
                format: None,
            });
        };
        file.rewind().map_err(cannot)?;
        let bytes = imported(file).map_err(|source| OpenError::Import {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            source: Source::Imported(bytes.into()),
            format: Some(format),
        })
    }

    /// A recording that is in memory as a trace file.
    pub fn of_trace(bytes: Vec<u8>) -> Self {
        Self {
            path: PathBuf::from("memory"),
            source: Source::Imported(bytes.into()),
            format: None,
        }
    }

    /// The file it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it from its start.
    pub fn read(&self) -> Result<Reader<Box<dyn Read>>, OpenError> {
        let source: Box<dyn Read> = match &self.source {
            Source::Imported(bytes) => Box::new(Cursor::new(Arc::clone(bytes))),
            Source::File => {
                let file = File::open(&self.path).map_err(|source| OpenError::File {
                    path: self.path.clone(),
                    source,
                })?;
                Box::new(file)
            }
        };
        Reader::new(source).map_err(|source| self.unreadable(source))
    }

    /// The error of a row that cannot be read.
    pub fn unreadable(&self, source: ReadError) -> OpenError {
        OpenError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

fn imported(file: File) -> Result<Vec<u8>, ImportError> {
    let written = |source: WriteError| ImportError::from(source);
    let producer = concat!("tonnage ", env!("CARGO_PKG_VERSION"));
    let mut writer = Writer::new(Vec::new(), producer).map_err(written)?;
    tonnage_import::import(file, 0, &mut writer)?;
    writer.finish().map_err(written)
}
