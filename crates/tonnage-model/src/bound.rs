// SPDX-License-Identifier: MIT OR Apache-2.0
//! The least memory that a recipe needs for a model: a lower bound, computed from shapes.
//!
//! A bound is the sum of what is in memory at one moment of the recipe for certain, and the moment with the largest sum
//! is the answer. Everything that depends on kernels, on the allocator, or on the order of frees is left out, so a run
//! needs more. `tests/model` compares bounds with dry runs of the recipes.

use serde::Serialize;

use crate::gguf::Gguf;
use crate::recipes::{Recipe, Task, Trained};
use crate::shapes::Shapes;

/// The basis of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// From a dry run of the recipe.
    Run,
    /// A lower bound, computed from shapes.
    Computed,
    /// From the header of a file.
    Read,
}

/// The type of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32 bits.
    Float32,
    /// 16 bits: bfloat16 or float16.
    Float16,
    /// 8 bits (bitsandbytes) in linear layers.
    Int8,
    /// 4 bits (NF4 of bitsandbytes) in linear layers.
    Nf4,
}

/// The settings of a bound.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Samples of a batch, or requests at the same time.
    pub batch: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// The type of weights.
    pub weights: WeightType,
}

/// One kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
}

/// The least memory that a recipe needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bound {
    /// The sum of the parts.
    pub bytes: u64,
    /// The moment at which they are in memory together.
    pub moment: &'static str,
    /// The parts.
    pub parts: Vec<Part>,
}

impl Bound {
    /// Gives the weights another size.
    pub(crate) fn replace_weights(&mut self, bytes: u64) {
        for part in &mut self.parts {
            if part.name == "weights" {
                self.bytes = (self.bytes - part.bytes).saturating_add(bytes);
                part.bytes = bytes;
            }
        }
    }

    fn at(moment: &'static str, parts: &[(&'static str, u64)]) -> Self {
        let parts: Vec<Part> = parts
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|&(name, bytes)| Part { name, bytes })
            .collect();
        let bytes = parts
            .iter()
            .fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        Self {
            bytes,
            moment,
            parts,
        }
    }
}

/// Bytes of weights of which `linear` are in linear layers.
fn weight_bytes(parameters: u64, linear: u64, weights: WeightType) -> u64 {
    let linear = linear.min(parameters);
    let rest = (parameters - linear).saturating_mul(2);
    match weights {
        WeightType::Float32 => parameters.saturating_mul(4),
        WeightType::Float16 => parameters.saturating_mul(2),
        WeightType::Int8 => rest.saturating_add(linear),
        // Half a byte for each weight, a byte for each block of 64, and 4 bytes for each 256 blocks.
        WeightType::Nf4 => rest.saturating_add(linear / 2 + linear / 64 + linear / (64 * 256) * 4),
    }
}

/// The least memory of a recipe for a model with these shapes, or with so many parameters where nothing else is known.
pub fn bound(
    recipe: &Recipe,
    parameters: u64,
    shapes: Option<&Shapes>,
    settings: Settings,
) -> Bound {
    let memory = &recipe.memory;
    let weights = if memory.four_bits {
        WeightType::Nf4
    } else {
        settings.weights
    };
    // Experts in joined tensors may be quantized or not, so the smaller size is counted. Without shapes, all may be.
    let linear = shapes.map_or(parameters, |it| {
        it.linear_weights.saturating_add(it.expert_weights)
    });
    let stored = weight_bytes(parameters, linear, weights);
    let value_bytes = if weights == WeightType::Float32 { 4 } else { 2 };
    let adapters = match (memory.trained, shapes) {
        (Trained::Adapters, Some(shapes)) => shapes.adapter_parameters(memory.rank),
        _ => 0,
    };
    let adapter_bytes = adapters.saturating_mul(memory.adapter_bytes);
    let trained = match memory.trained {
        Trained::All => stored,
        Trained::Adapters => adapter_bytes,
        Trained::Nothing => 0,
    };
    let optimizer = trained.saturating_mul(memory.optimizer_ratio);
    let sequences = settings.batch.saturating_mul(memory.sequences.max(1));
    let tokens = sequences.saturating_mul(settings.sequence);
    let cached = settings.batch.saturating_mul(memory.cached_sequences);
    let cache = shapes.map_or(0, |shapes| {
        // The cache does not have the last generated token.
        let values = shapes.cached_values(settings.sequence.saturating_sub(1));
        cached.saturating_mul(values).saturating_mul(value_bytes)
    });
    let weights = ("weights", stored);
    let adapters = ("adapters", adapter_bytes);
    let state = ("optimizer state", optimizer);
    if recipe.task != Task::Train {
        let moment = match recipe.task {
            Task::Serve => "while requests of full length are served",
            _ => "at the last generated token",
        };
        return Bound::at(moment, &[weights, ("KV cache", cache)]);
    }
    let inputs = shapes.filter(|_| memory.layer_inputs).map_or(0, |shapes| {
        let values = shapes
            .layers
            .saturating_mul(shapes.hidden)
            .saturating_mul(tokens);
        values.saturating_mul(value_bytes)
    });
    let logits = shapes.map_or(0, |shapes| {
        let values = shapes.vocabulary.saturating_mul(tokens);
        values.saturating_mul(memory.logit_bytes)
    });
    let moments = [
        Bound::at(
            "when the optimizer updates the parameters",
            &[weights, adapters, state, ("gradients", trained)],
        ),
        Bound::at(
            "at the loss of the second step",
            &[
                weights,
                adapters,
                state,
                ("layer inputs", inputs),
                ("logits", logits),
            ],
        ),
        Bound::at(
            "at the last generated token of the second step",
            &[weights, adapters, state, ("KV cache", cache)],
        ),
    ];
    let [first, others @ ..] = moments;
    let larger = |one: Bound, other: Bound| if one.bytes >= other.bytes { one } else { other };
    others.into_iter().fold(first, larger)
}

/// The least memory of llama.cpp with all layers on the GPU: the tensors of the file, and a cache of 16 bits.
pub fn gguf_bound(gguf: &Gguf, settings: Settings) -> Bound {
    let parts = [
        ("weights", gguf.stored.bytes),
        ("KV cache", gguf_cache(gguf, settings).unwrap_or(0)),
    ];
    Bound::at("while requests of full length are served", &parts)
}

fn gguf_cache(gguf: &Gguf, settings: Settings) -> Option<u64> {
    let layers = gguf.number("block_count")?;
    // Keys of a small space, and layers with a window or a state, need less than the formula gives.
    let is_other = [
        "attention.kv_lora_rank",
        "attention.sliding_window",
        "ssm.state_size",
        "full_attention_interval",
    ];
    if is_other
        .iter()
        .any(|key| gguf.number(key).is_some_and(|number| number > 0))
    {
        return None;
    }
    let heads = gguf.number("attention.head_count");
    let size = || Some(gguf.number("embedding_length")? / heads.filter(|heads| *heads > 0)?);
    let keys = gguf.number("attention.key_length").or_else(size)?;
    let values = gguf.number("attention.value_length").or_else(size)?;
    let per_layer = gguf.per_layer("attention.head_count_kv", layers);
    let per_layer = per_layer.or_else(|| gguf.per_layer("attention.head_count", layers))?;
    let per_token = per_layer.iter().fold(0_u64, |sum, heads| {
        sum.saturating_add(heads.saturating_mul(keys.saturating_add(values)))
    });
    let tokens = settings.batch.saturating_mul(settings.sequence);
    Some(per_token.saturating_mul(tokens).saturating_mul(2))
}
