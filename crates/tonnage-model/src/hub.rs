// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads small files of a model from a Hugging Face hub, with limits of time and bytes.
//!
//! Nothing but configurations, indexes, and headers is requested: a header is a request for a range of bytes, and the
//! answer of a server that sends the whole file is cut off. `HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, and the token
//! of `hf auth login` mean the same as in huggingface_hub. A token is never sent to another host than the endpoint.

use std::fmt::Write as _;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::StatusCode;
use ureq::{Agent, config::RedirectAuthHeaders};

use crate::safetensors::{self, HeaderError, Stored};

/// The longest configuration or answer of the hub.
const LONGEST_TEXT: u64 = 4 << 20;
/// The longest index of the files of a model.
const LONGEST_INDEX: u64 = 32 << 20;
/// The part of a file that is requested first: most headers are shorter.
const FIRST_RANGE: u64 = 64 << 10;
/// The most files whose headers are read.
const MOST_FILES: usize = 256;
/// Requests at the same time.
const WORKERS: usize = 8;

/// Where the hub is, and how it is used.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The address of the hub.
    pub endpoint: String,
    /// The token of the user.
    pub token: Option<String>,
    /// Whether nothing may be requested.
    pub offline: bool,
    /// The directory of files that huggingface_hub has downloaded.
    pub cache: Option<PathBuf>,
    /// The time for all requests.
    pub timeout: Duration,
}

impl HubSettings {
    /// The settings that the environment has, by the rules of huggingface_hub.
    pub fn from_environment() -> Self {
        let read = |name: &str| std::env::var(name).ok().filter(|it| !it.trim().is_empty());
        let is_on = |name: &str| {
            let value = read(name).map(|it| it.trim().to_ascii_uppercase());
            value.is_some_and(|it| matches!(&*it, "1" | "ON" | "YES" | "TRUE"))
        };
        let home = read("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = read("XDG_CACHE_HOME").map(PathBuf::from);
            let caches = caches.or_else(|| Some(PathBuf::from(read("HOME")?).join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let cache = read("HF_HUB_CACHE").or_else(|| read("HUGGINGFACE_HUB_CACHE"));
        let cache = cache
            .map(PathBuf::from)
            .or_else(|| Some(home.clone()?.join("hub")));
        let token = read("HF_TOKEN").or_else(|| read("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| {
            if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
                return None;
            }
            let path = read("HF_TOKEN_PATH").map(PathBuf::from);
            std::fs::read_to_string(path.or_else(|| Some(home?.join("token")))?).ok()
        });
        let token = token.map(|token| token.trim().to_owned());
        let endpoint = read("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()),
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            cache,
            timeout: Duration::from_secs(20),
        }
    }
}

/// Why the hub gave no file.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The name is not one that the hub can have.
    #[error("{0:?} is not a path, and not a name of a model on the hub")]
    Name(String),
    /// The hub has no such model, or hides it from this user.
    #[error("the hub has no model {name:?}, or it is private{}", suggest(.similar))]
    Missing {
        /// The name.
        name: String,
        /// Names that are similar.
        similar: Vec<String>,
    },
    /// The model is on the hub, and its owner has not granted access to it.
    #[error("access to {0:?} is restricted: its owner grants it on request")]
    Gated(String),
    /// The token is not valid.
    #[error("the hub refused the token")]
    Token,
    /// The model has no such revision.
    #[error("{name:?} has no revision {revision:?}")]
    Revision {
        /// The model.
        name: String,
        /// The revision.
        revision: String,
    },
    /// Requests are switched off, and the file is not in the cache.
    #[error("{0:?} is not in the cache, and HF_HUB_OFFLINE forbids requests")]
    Offline(String),
    /// The hub did not answer in time, or the connection failed.
    #[error("{endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// The address of the hub.
        endpoint: String,
        /// The failure of the connection.
        reason: String,
    },
    /// The hub answered with an error.
    #[error("the hub answered with status {status} for {file}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The requested file.
        file: String,
    },
    /// The answer is longer than any real one.
    #[error("{file} is longer than {limit} bytes")]
    TooLong {
        /// The requested file.
        file: String,
        /// The limit.
        limit: u64,
    },
    /// A file is damaged.
    #[error("{file} is damaged: {reason}")]
    Damaged {
        /// The file.
        file: String,
        /// The problem.
        reason: String,
    },
}

fn suggest(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}

/// The small files of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct HubFiles {
    /// `config.json`.
    pub(crate) config: Option<Value>,
    /// The names of all files, where the hub lists them.
    pub(crate) names: Vec<String>,
    /// Sums of the headers of its safetensors files.
    pub(crate) stored: Option<Stored>,
    /// Why headers are missing, if the model has safetensors files.
    pub(crate) without_headers: Option<String>,
}

/// Whether the hub can have a model of this name: `name` or `owner/name`.
pub fn is_hub_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let is_part = |part: &&str| {
        let mut letters = part.chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric() || first == '_')
            && part.len() <= 96
            && !part.contains("..")
            && letters.all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
    };
    matches!(parts.len(), 1 | 2) && parts.iter().all(is_part)
}

/// Reads the small files of a model.
pub(crate) fn fetch(
    settings: &HubSettings,
    name: &str,
    revision: &str,
) -> Result<HubFiles, HubError> {
    if !is_hub_name(name) {
        return Err(HubError::Name(name.chars().take(120).collect()));
    }
    if settings.offline {
        return Err(HubError::Offline(name.to_owned()));
    }
    let hub = Hub::new(settings, name, revision);
    let (config, index, single, listed) = std::thread::scope(|scope| {
        let config = scope.spawn(|| hub.text("config.json", LONGEST_TEXT));
        let index = scope.spawn(|| hub.text("model.safetensors.index.json", LONGEST_INDEX));
        let single = scope.spawn(|| hub.header("model.safetensors"));
        let listed = hub.list();
        (join(config), join(index), join(single), listed)
    });
    let names = listed.unwrap_or_default();
    let config = match config? {
        Some(text) => Some(parse("config.json", &text)?),
        None => None,
    };
    let mut files = HubFiles {
        config,
        names,
        ..HubFiles::default()
    };
    // A header is more evidence for an answer that a configuration gives, too: its failure is a remark.
    let shards = match index {
        Ok(Some(text)) => Some(shards(&text)?),
        _ => None,
    };
    let stored = match shards {
        Some(shards) if shards.len() > MOST_FILES => {
            files.without_headers = Some(format!("the model has {} files", shards.len()));
            return Ok(files);
        }
        Some(shards) => hub.headers(&shards).map(Some),
        None => single,
    };
    match stored {
        Ok(stored) => files.stored = stored,
        Err(error) => files.without_headers = Some(error.to_string()),
    }
    Ok(files)
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn parse(file: &str, text: &[u8]) -> Result<Value, HubError> {
    serde_json::from_slice(text).map_err(|error| HubError::Damaged {
        file: file.to_owned(),
        reason: error.to_string(),
    })
}

/// The files that an index names, each once.
pub(crate) fn shards(index: &[u8]) -> Result<Vec<String>, HubError> {
    let file = "model.safetensors.index.json";
    let index = parse(file, index)?;
    let names = index.get("weight_map").and_then(Value::as_object);
    let names = names.ok_or_else(|| HubError::Damaged {
        file: file.to_owned(),
        reason: "`weight_map` is missing".to_owned(),
    })?;
    let mut shards: Vec<String> = names
        .values()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    shards.sort_unstable();
    shards.dedup();
    let is_file = |name: &String| is_hub_name(name);
    if shards.iter().all(is_file) {
        return Ok(shards);
    }
    Err(HubError::Damaged {
        file: file.to_owned(),
        reason: "it names a file outside the model".to_owned(),
    })
}

struct Hub<'a> {
    settings: &'a HubSettings,
    name: &'a str,
    revision: &'a str,
    agent: Agent,
    deadline: Instant,
}

impl<'a> Hub<'a> {
    fn new(settings: &'a HubSettings, name: &'a str, revision: &'a str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(5)
            // A renamed model redirects on the hub; its files are elsewhere and need no token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(Duration::from_secs(10)))
            .user_agent(concat!("tonnage/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Self {
            settings,
            name,
            revision,
            agent,
            deadline: Instant::now() + settings.timeout,
        }
    }

    /// Sends a request, and reads at most `limit` bytes of the answer. None stands for a file that is missing.
    fn get(
        &self,
        url: &str,
        file: &str,
        range: Option<u64>,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, HubError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.unreachable("it did not answer in time"));
        }
        let mut request = self
            .agent
            .get(url)
            .config()
            .timeout_global(Some(left))
            .build();
        if let Some(token) = &self.settings.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(length) = range {
            request = request.header("Range", format!("bytes=0-{}", length.saturating_sub(1)));
        }
        let response = request
            .call()
            .map_err(|error| self.unreachable(&error.to_string()))?;
        let status = response.status();
        let code = response.headers().get("x-error-code");
        let code = code
            .and_then(|code| code.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        match (status, &*code) {
            (status, _) if status.is_success() => {}
            (_, "GatedRepo") | (StatusCode::FORBIDDEN, _) => {
                return Err(HubError::Gated(self.name.to_owned()));
            }
            (_, "RevisionNotFound") => {
                return Err(HubError::Revision {
                    name: self.name.to_owned(),
                    revision: self.revision.to_owned(),
                });
            }
            (_, "EntryNotFound") => return Ok(None),
            // The hub answers 401 for models that are missing, so that private ones stay hidden.
            (StatusCode::NOT_FOUND, "") if file != LISTING => return Ok(None),
            (StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND, _) => {
                let refused = self.settings.token.is_some() && status == StatusCode::UNAUTHORIZED;
                if refused && code != "RepoNotFound" {
                    return Err(HubError::Token);
                }
                return Err(HubError::Missing {
                    name: self.name.to_owned(),
                    similar: Vec::new(),
                });
            }
            (status, _) => {
                return Err(HubError::Status {
                    status: status.as_u16(),
                    file: file.to_owned(),
                });
            }
        }
        let mut bytes = Vec::new();
        let body = response.into_body().into_reader();
        // A range is cut where it ends, also of a server that sends the whole file.
        let most = range.unwrap_or(limit + 1);
        let read = body.take(most).read_to_end(&mut bytes);
        read.map_err(|error| self.unreachable(&error.to_string()))?;
        if range.is_none() && bytes.len() as u64 > limit {
            return Err(HubError::TooLong {
                file: file.to_owned(),
                limit,
            });
        }
        Ok(Some(bytes))
    }

    fn unreachable(&self, reason: &str) -> HubError {
        HubError::Unreachable {
            endpoint: self.settings.endpoint.clone(),
            reason: reason.to_owned(),
        }
    }

    fn address(&self, file: &str) -> String {
        let (endpoint, name) = (&self.settings.endpoint, self.name);
        format!("{endpoint}/{name}/resolve/{}/{file}", escape(self.revision))
    }

    fn text(&self, file: &str, limit: u64) -> Result<Option<Vec<u8>>, HubError> {
        match self.get(&self.address(file), file, None, limit) {
            Err(HubError::Missing { name, .. }) => Err(HubError::Missing {
                similar: self.similar(),
                name,
            }),
            other => other,
        }
    }

    /// The header of a safetensors file.
    fn header(&self, file: &str) -> Result<Option<Stored>, HubError> {
        let damaged = |error: HeaderError| HubError::Damaged {
            file: file.to_owned(),
            reason: error.to_string(),
        };
        let address = self.address(file);
        let Some(mut bytes) = self.get(&address, file, Some(FIRST_RANGE), FIRST_RANGE)? else {
            return Ok(None);
        };
        let first = bytes.first_chunk().copied().unwrap_or_default();
        let length = safetensors::header_length(first).map_err(damaged)? + 8;
        if length > bytes.len() as u64 {
            bytes = self
                .get(&address, file, Some(length), length)?
                .unwrap_or_default();
        }
        safetensors::read_header(&bytes[..])
            .map(Some)
            .map_err(damaged)
    }

    /// The sum of the headers of several files.
    fn headers(&self, files: &[String]) -> Result<Stored, HubError> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut sum = Stored::default();
            while let Some(file) =
                files.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
            {
                let header = self.header(file)?;
                let missing = || HubError::Damaged {
                    file: file.clone(),
                    reason: "the index names it, and it is missing".to_owned(),
                };
                sum.add(&header.ok_or_else(missing)?);
            }
            Ok(sum)
        };
        let sums = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..WORKERS.min(files.len()))
                .map(|_| scope.spawn(work))
                .collect();
            workers
                .into_iter()
                .map(join)
                .collect::<Result<Vec<_>, HubError>>()
        })?;
        let mut stored = Stored::default();
        for sum in &sums {
            stored.add(sum);
        }
        Ok(stored)
    }

    /// The names of the model's files.
    fn list(&self) -> Result<Vec<String>, HubError> {
        let (endpoint, name) = (&self.settings.endpoint, self.name);
        let url = format!(
            "{endpoint}/api/models/{name}/revision/{}",
            escape(self.revision)
        );
        let Some(text) = self.get(&url, LISTING, None, LONGEST_TEXT)? else {
            return Ok(Vec::new());
        };
        let listed = parse(LISTING, &text)?;
        let files = listed.get("siblings").and_then(Value::as_array);
        let names = files
            .into_iter()
            .flatten()
            .filter_map(|file| file.get("rfilename")?.as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Names on the hub that are similar to a missing one; none if the hub does not answer.
    fn similar(&self) -> Vec<String> {
        let (owner, name) = self.name.split_once('/').unwrap_or(("", self.name));
        let endpoint = &self.settings.endpoint;
        let mut found: Vec<String> = Vec::new();
        // The whole name, and its beginning: the search finds names that contain the words.
        let half: String = name.chars().take(name.len().div_ceil(2).max(3)).collect();
        for words in [name, &half] {
            let url = format!(
                "{endpoint}/api/models?search={}&limit=20&sort=downloads",
                escape(words)
            );
            let text = self.get(&url, LISTING, None, LONGEST_TEXT).ok().flatten();
            let models: Option<Value> = text.and_then(|text| serde_json::from_slice(&text).ok());
            let models = models.as_ref().and_then(Value::as_array);
            let names = models
                .into_iter()
                .flatten()
                .filter_map(|model| model.get("id")?.as_str());
            found.extend(names.filter(|it| is_hub_name(it)).map(str::to_owned));
        }
        let wanted = self.name.to_lowercase();
        let likeness = |id: &String| {
            let id = id.to_lowercase();
            let whole = strsim::normalized_levenshtein(&id, &wanted);
            let last = id.rsplit('/').next().unwrap_or_default();
            let last = strsim::normalized_levenshtein(last, &name.to_lowercase());
            let same_owner =
                !owner.is_empty() && id.starts_with(&format!("{}/", owner.to_lowercase()));
            whole.max(last * 0.95) + if same_owner { 0.05 } else { 0.0 }
        };
        found.sort_unstable();
        found.dedup();
        found.retain(|id| likeness(id) > 0.6);
        found.sort_by(|one, two| likeness(two).total_cmp(&likeness(one)));
        found.truncate(3);
        found
    }
}

/// The listing of a model's files, in messages.
const LISTING: &str = "the list of files";

/// Characters of an address that have a meaning there, in their other form.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
