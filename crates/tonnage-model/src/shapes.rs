// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sizes of a model that decide its memory.

use serde::Serialize;

/// How a model is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Writes text: each token sees the ones before.
    Decoder,
    /// Reads text and writes none.
    Encoder,
    /// Reads a text and writes another.
    EncoderDecoder,
}

/// Layers with the same cache of keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CacheLayers {
    /// How many layers.
    pub layers: u64,
    /// How many values each of them keeps for a token.
    pub values_per_token: u64,
    /// The window of a layer, which keeps no more tokens. None stands for all tokens.
    pub window: Option<u64>,
}

/// The sizes of a model, counted from its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shapes {
    /// `model_type` of the configuration.
    pub family: String,
    /// How the model is built.
    pub kind: Kind,
    /// Its layers.
    pub layers: u64,
    /// The width of the states between layers.
    pub hidden: u64,
    /// The size of its vocabulary.
    pub vocabulary: u64,
    /// The longest sequence that the configuration names.
    pub longest: Option<u64>,
    /// All parameters, those that layers share counted once.
    pub parameters: u64,
    /// Weights of linear layers, without the output layer: QLoRA stores these in 4 bits.
    pub linear_weights: u64,
    /// The sum of inputs and outputs of these layers: LoRA adds this many parameters for each rank.
    pub linear_sides: u64,
    /// Weights of experts that are joined in one tensor.
    pub expert_weights: u64,
    /// The cache of keys and values; empty for an encoder.
    pub cache: Vec<CacheLayers>,
}

impl Shapes {
    /// Values in the cache of a sequence of so many tokens.
    pub fn cached_values(&self, tokens: u64) -> u64 {
        let layers = self.cache.iter().map(|cache| {
            // A layer with a window keeps one token less than the window.
            let window = cache
                .window
                .map_or(u64::MAX, |window| window.saturating_sub(1));
            let values = cache.layers.saturating_mul(cache.values_per_token);
            values.saturating_mul(tokens.min(window))
        });
        layers.fold(0, u64::saturating_add)
    }

    /// Parameters of adapters of this rank in every linear layer.
    pub fn adapter_parameters(&self, rank: u64) -> u64 {
        self.linear_sides.saturating_mul(rank)
    }
}
