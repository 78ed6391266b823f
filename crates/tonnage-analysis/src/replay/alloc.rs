// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocators by name: what can be replayed, and how far the result can be trusted.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;
use tonnage_alloc::tonnage::AllocatorPlan;
use tonnage_alloc::torch::{Settings, SettingsError, Version};

/// An allocator to replay.
///
/// ```
/// use tonnage_alloc::torch::Version;
/// use tonnage_analysis::replay::{Alloc, AllocError, Fidelity};
///
/// let alloc: Alloc = "torch:expandable_segments:True".parse()?;
/// assert_eq!(alloc, Alloc::expandable());
/// assert_eq!(alloc.fidelity(Some(Version::VERIFIED)), Fidelity::Exact);
/// assert_eq!(alloc.fidelity(Some(Version(2, 99))), Fidelity::Assumed);
/// assert!("malloc".parse::<Alloc>().is_err());
/// # Ok::<(), AllocError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alloc {
    /// The one of the recording, with its setting.
    Recorded,
    /// PyTorch's with this `PYTORCH_CUDA_ALLOC_CONF`.
    Torch(Box<TorchConf>),
    /// The driver's stream-ordered pools, as an approximation.
    CudaMallocAsync,
    /// Best fit with coalescing, as TensorFlow and JAX do, as an approximation.
    Bfc,
    /// tonnage's own.
    Tonnage,
    /// tonnage's own, following a plan.
    Planned(Arc<AllocatorPlan>),
    /// No allocator: an offline placement that knows every lifetime in advance.
    Plan,
}

/// A value of `PYTORCH_CUDA_ALLOC_CONF` that PyTorch takes. Two are the same if they are written the same.
#[derive(Clone, Debug, Default)]
pub struct TorchConf {
    pub(super) text: String,
    pub(super) settings: Settings,
}

impl TorchConf {
    /// The text, as it can be pasted.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The option that it sets.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl FromStr for TorchConf {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        Ok(Self {
            text: text.to_owned(),
            settings: text.parse()?,
        })
    }
}

impl PartialEq for TorchConf {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for TorchConf {}

impl Alloc {
    /// PyTorch's with these settings.
    pub fn torch(conf: &str) -> Result<Self, AllocError> {
        let parsed = conf.parse();
        let parsed = parsed.map_err(|source| AllocError::Settings {
            conf: conf.to_owned(),
            source,
        })?;
        Ok(Self::Torch(Box::new(parsed)))
    }

    /// PyTorch's with expandable segments.
    pub fn expandable() -> Self {
        let settings = Settings {
            expandable_segments: true,
            ..Settings::default()
        };
        Self::Torch(Box::new(TorchConf {
            text: "expandable_segments:True".to_owned(),
            settings,
        }))
    }

    /// How far a replay of a recording by this release of PyTorch can be trusted.
    pub fn fidelity(&self, release: Option<Version>) -> Fidelity {
        match self {
            Self::Recorded | Self::Torch(_) if release.is_some_and(Version::is_unverified) => {
                Fidelity::Assumed
            }
            Self::Recorded | Self::Torch(_) => Fidelity::Exact,
            Self::Tonnage | Self::Planned(_) => Fidelity::InStep,
            Self::CudaMallocAsync | Self::Bfc => Fidelity::Approximation,
            Self::Plan => Fidelity::Offline,
        }
    }

    /// The default allocator of a replay.
    pub fn usual() -> Vec<Self> {
        vec![
            Self::Recorded,
            Self::Torch(Box::default()),
            Self::expandable(),
            Self::CudaMallocAsync,
            Self::Bfc,
        ]
    }
}

impl fmt::Display for Alloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded => f.write_str("recorded"),
            Self::Torch(conf) if conf.text.is_empty() => f.write_str("torch"),
            Self::Torch(conf) => write!(f, "torch:{}", conf.text),
            Self::CudaMallocAsync => f.write_str("cuda-malloc-async"),
            Self::Bfc => f.write_str("bfc"),
            Self::Tonnage => f.write_str("tonnage"),
            Self::Planned(_) => f.write_str("tonnage, with the plan"),
            Self::Plan => f.write_str("plan"),
        }
    }
}

/// Not an allocator.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AllocError {
    /// No such name.
    #[error(
        "no allocator is called `{0}`; use recorded, torch, torch:SETTINGS, cuda-malloc-async, bfc, tonnage or plan"
    )]
    Unknown(String),
    /// PyTorch would refuse the settings.
    #[error("PyTorch refuses the settings `{conf}`: {source}")]
    Settings {
        /// The given text.
        conf: String,
        /// Why.
        source: SettingsError,
    },
}

impl FromStr for Alloc {
    type Err = AllocError;

    fn from_str(text: &str) -> Result<Self, AllocError> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("recorded", "") => Ok(Self::Recorded),
            ("cuda-malloc-async", "") => Ok(Self::CudaMallocAsync),
            ("bfc", "") => Ok(Self::Bfc),
            ("tonnage", "") => Ok(Self::Tonnage),
            ("plan", "") => Ok(Self::Plan),
            ("torch", conf) => Self::torch(conf),
            _ => Err(AllocError::Unknown(text.to_owned())),
        }
    }
}

/// How far a result can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fidelity {
    /// The behavior of PyTorch, event for event.
    Exact,
    /// The rules of the newest verified release of PyTorch. The recording is of a newer release, whose rules may
    /// differ.
    Assumed,
    /// The behavior of tonnage's allocator, call for call, if every stream has done its work when the allocator queries
    /// it. A stream that lags behind costs memory or waiting.
    InStep,
    /// The rules of this allocator are not documented, or simplified here.
    Approximation,
    /// An offline placement: not a run of an allocator.
    Offline,
}
