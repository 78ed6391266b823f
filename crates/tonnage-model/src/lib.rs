// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a model needs, from its name: read from small files, and computed as a lower bound.
//!
//! * `locate`: a name becomes a local directory, a file, an entry of the local cache, or a model on the hub;
//! * `hub`: small files of a hub, with limits of time and bytes;
//! * `safetensors`, `gguf`: headers of files of weights;
//! * `families`: parameters and caches from `config.json`, exactly as transformers builds the model;
//! * `recipes`: methods of training and inference as data, each a directory with a script for a GPU;
//! * `bound`: the least memory that a recipe needs;
//! * `estimate`: the answer for a model and a GPU.
//!
//! **Invariants:** nothing here prints, and no weights are downloaded. A computed figure is a lower bound, and lists
//! its parts; a family without a formula is reported as unknown.
#![forbid(unsafe_code)]

mod bound;
mod estimate;
mod families;
mod gguf;
mod hub;
mod locate;
mod recipes;
mod safetensors;
mod shapes;

pub use bound::{Bound, Evidence, Part, Settings, WeightType, bound, gguf_bound};
pub use estimate::{
    Estimate, EstimateError, GpuSize, OnGpu, Parameters, Request, Row, SCHEMA_VERSION, estimate,
};
pub use families::{ConfigError, count_shapes, families};
pub use gguf::{Gguf, GgufError, read_gguf};
pub use hub::{HubError, HubSettings, is_hub_name};
pub use locate::{LocateError, Model, Origin, locate};
pub use recipes::{Recipe, Task, Trained, recipe, recipes};
pub use safetensors::{HeaderError, Stored, read_header};
pub use shapes::{CacheLayers, Kind, Shapes};
