// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a model by what a person types, and reads its small files.
//!
//! A path that exists is local; everything else is a name on the hub, of which files in the local cache are used first.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::families::{ConfigError, count_shapes};
use crate::gguf::{Gguf, GgufError, read_gguf};
use crate::hub::{self, HubError, HubSettings};
use crate::safetensors::{HeaderError, Stored, read_header};
use crate::shapes::Shapes;

/// The longest configuration or index.
const LONGEST_TEXT: u64 = 32 << 20;

/// Where the files of a model were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A local directory or file.
    Local,
    /// The local cache of huggingface_hub.
    Cache,
    /// The hub.
    Hub,
}

/// The small files of a model, read.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name as it was typed.
    pub name: String,
    /// Where its files were read.
    pub origin: Origin,
    /// The directory or file, if it is local.
    pub path: Option<PathBuf>,
    /// `config.json`.
    pub config: Option<Value>,
    /// Its shapes, or why they are not known.
    pub shapes: Result<Shapes, ConfigError>,
    /// Sums of the headers of its safetensors or GGUF files.
    pub stored: Option<Stored>,
    /// The header of a GGUF file.
    pub gguf: Option<Gguf>,
    /// Why headers are missing.
    pub without_headers: Option<String>,
}

impl Model {
    /// The method that quantized the stored weights, by the configuration.
    pub fn quantization(&self) -> Option<String> {
        let quantization = self.config.as_ref()?.get("quantization_config")?;
        let method = quantization.get("quant_method").and_then(Value::as_str);
        Some(method.unwrap_or("unknown").chars().take(40).collect())
    }

    /// No fewer bits than these hold a quantized weight, by the configuration.
    pub(crate) fn least_bits(&self) -> u64 {
        let quantization = self
            .config
            .as_ref()
            .and_then(|config| config.get("quantization_config"));
        let bits = quantization.and_then(|it| it.get("bits")?.as_u64());
        match (bits, self.quantization().as_deref()) {
            (Some(bits @ 1..=8), _) => bits,
            (_, Some("fp8")) => 8,
            (_, Some("mxfp4")) => 4,
            _ => 1,
        }
    }
}

/// Why a model gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// A path that does not exist.
    #[error("{}: no such file or directory", .0.display())]
    NoSuchPath(PathBuf),
    /// A local file cannot be read.
    #[error("{} cannot be read", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A local file is damaged.
    #[error("{} is damaged: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The hub gave no answer.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The model has neither a configuration nor a header.
    #[error("{name} has no config.json, safetensors file, or GGUF file{}", list(.files))]
    NothingToRead {
        /// The model.
        name: String,
        /// Some of its files.
        files: Vec<String>,
    },
}

fn list(files: &[String]) -> String {
    if files.is_empty() {
        return String::new();
    }
    format!("; it has {}", files.join(", "))
}

/// Finds the model of this name and reads its small files.
pub fn locate(name: &str, revision: &str, settings: &HubSettings) -> Result<Model, LocateError> {
    let path = Path::new(name);
    if path.is_dir() {
        return read_directory(name, path, Origin::Local);
    }
    if path.exists() {
        return read_file(name, path);
    }
    let ending = path
        .extension()
        .and_then(|it| it.to_str())
        .unwrap_or_default();
    let is_path =
        name.starts_with(['/', '.', '~']) || matches!(ending, "json" | "gguf" | "safetensors");
    if is_path {
        return Err(LocateError::NoSuchPath(path.to_owned()));
    }
    if let Some(folder) = cached(settings, name, revision)
        && let Ok(model) = read_directory(name, &folder, Origin::Cache)
    {
        return Ok(model);
    }
    let files = hub::fetch(settings, name, revision)?;
    if files.config.is_none() && files.stored.is_none() {
        return Err(LocateError::NothingToRead {
            name: name.to_owned(),
            files: files.names.into_iter().take(8).collect(),
        });
    }
    Ok(Model {
        name: name.to_owned(),
        origin: Origin::Hub,
        path: None,
        shapes: shapes(files.config.as_ref()),
        config: files.config,
        stored: files.stored,
        gguf: None,
        without_headers: files.without_headers,
    })
}

fn shapes(config: Option<&Value>) -> Result<Shapes, ConfigError> {
    config.map_or(Err(ConfigError::NoFamily), count_shapes)
}

/// The directory of a model's revision in the cache of huggingface_hub.
fn cached(settings: &HubSettings, name: &str, revision: &str) -> Option<PathBuf> {
    if !hub::is_hub_name(name) || !hub::is_hub_name(revision) {
        return None;
    }
    let folder = settings
        .cache
        .as_ref()?
        .join(format!("models--{}", name.replace('/', "--")));
    let commit = std::fs::read_to_string(folder.join("refs").join(revision));
    let commit = commit.unwrap_or_else(|_| revision.to_owned());
    let commit = commit.trim();
    let snapshot = folder.join("snapshots").join(commit);
    (hub::is_hub_name(commit) && snapshot.is_dir()).then_some(snapshot)
}

fn read_directory(name: &str, folder: &Path, origin: Origin) -> Result<Model, LocateError> {
    let config = match read_text(&folder.join("config.json"))? {
        Some(text) => Some(parse(&folder.join("config.json"), &text)?),
        None => None,
    };
    let index = folder.join("model.safetensors.index.json");
    let mut files: Vec<PathBuf> = match read_text(&index)? {
        Some(text) => hub::shards(&text)?
            .iter()
            .map(|file| folder.join(file))
            .collect(),
        None => vec![folder.join("model.safetensors")],
    };
    // Headers of some files are not an answer: the others were not downloaded.
    let mut without_headers = None;
    if let Some(missing) = files.iter().find(|file| !file.exists()) {
        if files.len() > 1 {
            without_headers = Some(format!("{} is missing", missing.display()));
        }
        files.clear();
    }
    let mut stored = Stored::default();
    for file in &files {
        stored.add(&read_stored(file)?);
    }
    if config.is_none() && files.is_empty() {
        let ggufs = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let mut names: Vec<_> = ggufs
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        let mut ggufs = names
            .iter()
            .filter(|name| Path::new(name).extension().is_some_and(|it| it == "gguf"));
        if let (Some(one), None) = (ggufs.next(), ggufs.next()) {
            return read_file(name, &folder.join(one));
        }
        names.truncate(8);
        return Err(LocateError::NothingToRead {
            name: name.to_owned(),
            files: names,
        });
    }
    Ok(Model {
        name: name.to_owned(),
        origin,
        path: Some(folder.to_owned()),
        shapes: shapes(config.as_ref()),
        config,
        stored: (!files.is_empty()).then_some(stored),
        gguf: None,
        without_headers,
    })
}

/// Reads a single file: a GGUF file, a safetensors file, or a configuration.
fn read_file(name: &str, path: &Path) -> Result<Model, LocateError> {
    let mut model = Model {
        name: name.to_owned(),
        origin: Origin::Local,
        path: Some(path.to_owned()),
        config: None,
        shapes: Err(ConfigError::NoFamily),
        stored: None,
        gguf: None,
        without_headers: None,
    };
    // A pipe would block, and a device may have no end.
    if !path.is_file() {
        return Err(damaged(path, "it is not a regular file"));
    }
    let mut first = Vec::new();
    let mut file = File::open(path).map_err(|source| io_error(path, source))?;
    (&mut file)
        .take(4)
        .read_to_end(&mut first)
        .map_err(|source| io_error(path, source))?;
    if first == b"GGUF" {
        let file = File::open(path).map_err(|source| io_error(path, source))?;
        let gguf = read_gguf(file).map_err(|error| match error {
            GgufError::Io(source) => io_error(path, source),
            GgufError::Damaged(_) => damaged(path, &error.to_string()),
        })?;
        model.stored = Some(gguf.stored.clone());
        model.gguf = Some(gguf);
    } else if path.extension().is_some_and(|it| it == "safetensors") {
        model.stored = Some(read_stored(path)?);
    } else {
        let text = read_text(path)?.unwrap_or_default();
        let config = parse(path, &text)?;
        model.shapes = shapes(Some(&config));
        model.config = Some(config);
    }
    Ok(model)
}

fn read_stored(path: &Path) -> Result<Stored, LocateError> {
    let file = File::open(path).map_err(|source| io_error(path, source))?;
    read_header(io::BufReader::new(file)).map_err(|error| match error {
        HeaderError::Io(source) => io_error(path, source),
        other => damaged(path, &other.to_string()),
    })
}

/// The text of a file; none if the file is missing.
fn read_text(path: &Path) -> Result<Option<Vec<u8>>, LocateError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(path, source)),
    };
    let mut text = Vec::new();
    let read = file.take(LONGEST_TEXT + 1).read_to_end(&mut text);
    read.map_err(|source| io_error(path, source))?;
    if text.len() as u64 > LONGEST_TEXT {
        return Err(damaged(path, "it is too long for a configuration"));
    }
    Ok(Some(text))
}

fn parse(path: &Path, text: &[u8]) -> Result<Value, LocateError> {
    serde_json::from_slice(text).map_err(|error| damaged(path, &error.to_string()))
}

fn io_error(path: &Path, source: io::Error) -> LocateError {
    LocateError::Io {
        path: path.to_owned(),
        source,
    }
}

fn damaged(path: &Path, reason: &str) -> LocateError {
    LocateError::Damaged {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}
