// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters and the cache of a model, counted from its `config.json` as transformers builds it.
//!
//! Each family of models is one function, which lists the layers in the order of the model. A family that is missing
//! here is an answer ([`ConfigError::UnknownFamily`]), and never a guess. `tests/counted.rs` compares every family with
//! the parameters that transformers itself created on the meta device.
//!
//! Numbers are u128, and each number of a configuration is bounded, so that no product overflows.

use serde_json::{Map, Value};

use crate::shapes::{CacheLayers, Kind, Shapes};

/// The largest number that a configuration may have.
const LARGEST: u64 = 1 << 32;
/// The most layers of a model.
const MOST_LAYERS: u64 = 1 << 14;

/// Why a configuration gives no shapes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not a JSON object.
    #[error("not a JSON object: {0}")]
    NotJson(String),
    /// `model_type` is missing.
    #[error("it has no `model_type`")]
    NoFamily,
    /// A family that this crate does not know.
    #[error("tonnage has no formula for models of type {0:?}")]
    UnknownFamily(String),
    /// A key is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A key has a value that no model has.
    #[error("`{0}` has an impossible value")]
    Impossible(&'static str),
}

type Shaped<T = ()> = Result<T, ConfigError>;

/// Counts one family.
type Counter = fn(&mut Builder<'_>) -> Shaped;

/// Every family that is known, with its function.
const FAMILIES: &[(&str, Counter)] = &[
    ("bert", bert),
    ("bloom", bloom),
    ("deepseek_v2", deepseek),
    ("deepseek_v3", deepseek),
    ("distilbert", distilbert),
    ("falcon", falcon),
    ("gemma", gemma),
    ("gemma2", gemma),
    ("gemma3_text", gemma),
    ("gpt2", gpt2),
    ("gpt_neo", gpt_neo),
    ("gpt_neox", gpt_neox),
    ("gptj", gptj),
    ("granite", llama),
    ("llama", llama),
    ("mistral", llama),
    ("mixtral", mixture),
    ("olmo", olmo),
    ("olmo2", olmo),
    ("opt", opt),
    ("phi", phi),
    ("phi3", phi3),
    ("qwen2", llama),
    ("qwen2_moe", mixture),
    ("qwen3", llama),
    ("qwen3_moe", mixture),
    ("roberta", bert),
    ("smollm3", llama),
    ("stablelm", stablelm),
    ("starcoder2", starcoder2),
    ("t5", t5),
];

/// The names of all known families.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Counts the shapes of the model that `config.json` describes.
pub fn count_shapes(config: &Value) -> Result<Shapes, ConfigError> {
    let Some(values) = config.as_object() else {
        return Err(ConfigError::NotJson("another value".to_owned()));
    };
    let family = values.get("model_type").and_then(Value::as_str);
    let family = family.ok_or(ConfigError::NoFamily)?;
    let Some((name, count)) = FAMILIES.iter().find(|(name, _)| *name == family) else {
        let short = family.chars().take(60).collect();
        return Err(ConfigError::UnknownFamily(short));
    };
    let mut builder = Builder::new(name, values);
    count(&mut builder)?;
    builder.finish()
}

/// The shapes so far.
struct Builder<'a> {
    family: &'static str,
    values: &'a Map<String, Value>,
    kind: Kind,
    layers: u128,
    hidden: u128,
    vocabulary: u128,
    parameters: u128,
    linear_weights: u128,
    linear_sides: u128,
    experts: u128,
    cache: Vec<CacheLayers>,
}

/// Sizes of a decoder's attention.
#[derive(Clone, Copy)]
struct Heads {
    queries: u128,
    keys: u128,
    size: u128,
}

impl<'a> Builder<'a> {
    fn new(family: &'static str, values: &'a Map<String, Value>) -> Self {
        Self {
            family,
            values,
            kind: Kind::Decoder,
            layers: 0,
            hidden: 0,
            vocabulary: 0,
            parameters: 0,
            linear_weights: 0,
            linear_sides: 0,
            experts: 0,
            cache: Vec::new(),
        }
    }

    fn finish(self) -> Shaped<Shapes> {
        let narrow = |number: u128| u64::try_from(number).ok().filter(|it| *it < 1 << 60);
        let narrow = |number| narrow(number).ok_or(ConfigError::Impossible("hidden_size"));
        let longest = ["max_position_embeddings", "n_positions", "seq_length"];
        let longest = longest
            .iter()
            .find_map(|key| self.values.get(*key)?.as_u64());
        Ok(Shapes {
            family: self.family.to_owned(),
            kind: self.kind,
            layers: narrow(self.layers)?,
            hidden: narrow(self.hidden)?,
            vocabulary: narrow(self.vocabulary)?,
            longest: longest.filter(|it| (1..LARGEST).contains(it)),
            parameters: narrow(self.parameters)?,
            linear_weights: narrow(self.linear_weights)?,
            linear_sides: narrow(self.linear_sides)?,
            expert_weights: narrow(self.experts)?,
            cache: self.cache,
        })
    }

    /// The number under one of several keys, of which the first is the usual one. Null counts as missing.
    fn maybe(&self, keys: &[&'static str]) -> Shaped<Option<u128>> {
        for key in keys {
            match self.values.get(*key) {
                None | Some(Value::Null) => {}
                Some(value) => {
                    let number = value.as_u64().filter(|number| *number < LARGEST);
                    return number
                        .map(|it| Some(it.into()))
                        .ok_or(ConfigError::Impossible(key));
                }
            }
        }
        Ok(None)
    }

    fn number(&self, keys: &[&'static str]) -> Shaped<u128> {
        self.maybe(keys)?.ok_or(ConfigError::Missing(keys[0]))
    }

    fn number_or(&self, keys: &[&'static str], default: u128) -> Shaped<u128> {
        Ok(self.maybe(keys)?.unwrap_or(default))
    }

    fn flag(&self, key: &'static str, default: bool) -> bool {
        self.values
            .get(key)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }

    /// Reads the sizes that every family has, and adds the embeddings of tokens.
    fn start(&mut self, hidden: &[&'static str], layers: &[&'static str]) -> Shaped {
        self.hidden = self.number(hidden)?;
        self.layers = self.number(layers)?;
        self.vocabulary = self.number(&["vocab_size"])?;
        if self.layers > MOST_LAYERS.into() {
            return Err(ConfigError::Impossible("num_hidden_layers"));
        }
        if self.hidden == 0 {
            return Err(ConfigError::Impossible("hidden_size"));
        }
        self.parameters += self.vocabulary * self.hidden;
        Ok(())
    }

    /// Adds so many linear layers.
    fn linear(&mut self, inputs: u128, outputs: u128, bias: bool, times: u128) {
        self.linear_weights += inputs * outputs * times;
        self.linear_sides += (inputs + outputs) * times;
        self.parameters += (inputs * outputs + if bias { outputs } else { 0 }) * times;
    }

    /// Adds vectors and tables: norms, biases, positions.
    fn tables(&mut self, size: u128, times: u128) {
        self.parameters += size * times;
    }

    /// Adds the output layer, unless it shares the embeddings.
    fn head(&mut self, ties: bool) {
        if !self.flag("tie_word_embeddings", ties) {
            self.parameters += self.vocabulary * self.hidden;
        }
    }

    fn heads(&self, queries: &[&'static str]) -> Shaped<Heads> {
        let queries = self.number(queries)?;
        if queries == 0 {
            return Err(ConfigError::Impossible("num_attention_heads"));
        }
        let size = match (self.maybe(&["head_dim"])?, self.family) {
            (Some(size), _) => size,
            (None, "qwen3") => 128,
            (None, "gemma" | "gemma2" | "gemma3_text") => 256,
            (None, _) => self.hidden / queries,
        };
        let keys = self.number_or(&["num_key_value_heads"], queries)?;
        Ok(Heads {
            queries,
            keys,
            size,
        })
    }

    /// Adds attention with separate matrices in every layer, and its cache.
    fn attention(&mut self, heads: Heads, qkv_bias: bool, output_bias: bool) -> Shaped {
        let (hidden, layers) = (self.hidden, self.layers);
        let (queries, keys) = (heads.queries * heads.size, heads.keys * heads.size);
        self.linear(hidden, queries, qkv_bias, layers);
        self.linear(hidden, keys, qkv_bias, 2 * layers);
        self.linear(queries, hidden, output_bias, layers);
        self.caches(2 * keys)
    }

    /// Adds the cache of all layers; each gains so many values with a token.
    fn caches(&mut self, values: u128) -> Shaped {
        let values =
            u64::try_from(values).map_err(|_| ConfigError::Impossible("num_key_value_heads"))?;
        let layers = self.layers as u64;
        let window = self.number_or(&["sliding_window"], 0)? as u64;
        let sliding = if window == 0 {
            0
        } else {
            self.sliding_layers(layers)?
        };
        for (layers, window) in [(layers - sliding, None), (sliding, Some(window))] {
            if layers > 0 {
                self.cache.push(CacheLayers {
                    layers,
                    values_per_token: values,
                    window,
                });
            }
        }
        Ok(())
    }

    /// How many layers see a window only. A cache keeps no more than the window of them.
    fn sliding_layers(&self, layers: u64) -> Shaped<u64> {
        if let Some(types) = self.values.get("layer_types").and_then(Value::as_array) {
            let sliding = types
                .iter()
                .filter(|it| it.as_str() == Some("sliding_attention"));
            return Ok((sliding.count() as u64).min(layers));
        }
        Ok(match self.family {
            "qwen2" | "qwen3" | "qwen2_moe" | "qwen3_moe"
                if !self.flag("use_sliding_window", false) =>
            {
                0
            }
            // Layers of a mixture may all slide; of the others those from `max_window_layers` on.
            "qwen2" | "qwen3" => {
                layers.saturating_sub(self.number_or(&["max_window_layers"], 28)? as u64)
            }
            "gemma2" => layers.div_ceil(2),
            "gemma3_text" => {
                let pattern = self.number_or(&["sliding_window_pattern"], 6)?.max(1) as u64;
                layers - layers / pattern
            }
            _ => layers,
        })
    }

    /// Adds the three matrices of a gated feed-forward layer.
    fn gated(&mut self, inner: u128, bias: bool, times: u128) {
        self.linear(self.hidden, inner, bias, 2 * times);
        self.linear(inner, self.hidden, bias, times);
    }

    /// Adds the two matrices of a plain one.
    fn plain(&mut self, inner: u128, bias: bool, times: u128) {
        self.linear(self.hidden, inner, bias, times);
        self.linear(inner, self.hidden, bias, times);
    }

    /// Adds the experts and the router of so many layers. Their matrices are joined in one tensor each, so they are not
    /// linear layers, which adapters and 4-bit weights apply to.
    fn experts(&mut self, experts: u128, inner: u128, times: u128) {
        let weights = 3 * self.hidden * inner * experts * times;
        self.experts += weights;
        self.parameters += weights + experts * self.hidden * times;
    }

    /// Adds norms with weights and biases.
    fn layer_norms(&mut self, times: u128) {
        self.tables(2 * self.hidden, times);
    }
}

const HIDDEN: &[&str] = &["hidden_size", "n_embd", "n_embed", "d_model", "dim"];
const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
const HEADS: &[&str] = &["num_attention_heads", "n_head", "num_heads", "n_heads"];
const INNER: &[&str] = &[
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "hidden_dim",
    "d_ff",
];

/// Llama, and families that differ from it in biases and norms.
fn llama(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    let bias = it.flag("attention_bias", false);
    let (qkv_bias, output_bias) = if it.family == "qwen2" {
        (true, false)
    } else {
        (bias, bias)
    };
    it.attention(heads, qkv_bias, output_bias)?;
    let inner = it.number(INNER)?;
    it.gated(inner, it.flag("mlp_bias", false), it.layers);
    if it.family == "qwen3" {
        it.tables(2 * heads.size, it.layers);
    }
    it.tables(it.hidden, 2 * it.layers + 1);
    it.head(it.family == "smollm3");
    Ok(())
}

/// Gemma 1 to 3, of which the later ones have norms behind the layers, too.
fn gemma(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    let bias = it.flag("attention_bias", false);
    it.attention(heads, bias, bias)?;
    let inner = it.number(INNER)?;
    it.gated(inner, false, it.layers);
    let norms = if it.family == "gemma" { 2 } else { 4 };
    if it.family == "gemma3_text" {
        it.tables(2 * heads.size, it.layers);
    }
    it.tables(it.hidden, norms * it.layers + 1);
    it.head(true);
    Ok(())
}

/// Mixtures of experts: Mixtral and Qwen's.
fn mixture(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    let bias = it.flag("attention_bias", false);
    let qkv_bias = if it.family == "qwen2_moe" {
        it.flag("qkv_bias", true)
    } else {
        bias
    };
    it.attention(heads, qkv_bias, bias && it.family == "qwen3_moe")?;
    let inner = it.number(INNER)?;
    let experts = it.number(&["num_experts", "num_local_experts"])?;
    if it.family == "mixtral" {
        it.experts(experts, inner, it.layers);
    } else {
        let sparse = sparse_layers(it, experts)?;
        it.gated(inner, false, it.layers - sparse);
        let expert = it.number(&["moe_intermediate_size"])?;
        it.experts(experts, expert, sparse);
        if it.family == "qwen2_moe" {
            let shared = it.number(&["shared_expert_intermediate_size"])?;
            it.gated(shared, false, sparse);
            it.linear(it.hidden, 1, false, sparse);
        } else {
            it.tables(2 * heads.size, it.layers);
        }
    }
    it.tables(it.hidden, 2 * it.layers + 1);
    it.head(false);
    Ok(())
}

/// How many layers of Qwen's mixtures have experts.
fn sparse_layers(it: &Builder<'_>, experts: u128) -> Shaped<u128> {
    let step = it.number_or(&["decoder_sparse_step"], 1)?;
    let dense: Vec<u64> = match it.values.get("mlp_only_layers").and_then(Value::as_array) {
        Some(layers) => layers.iter().filter_map(Value::as_u64).collect(),
        None => Vec::new(),
    };
    if experts == 0 || step == 0 || dense.len() as u64 > MOST_LAYERS {
        return Ok(0);
    }
    let sparse = |layer: &u64| !dense.contains(layer) && u128::from(layer + 1).is_multiple_of(step);
    Ok((0..it.layers as u64).filter(sparse).count() as u128)
}

/// DeepSeek 2 and 3: attention through a small space, which is what the cache keeps, and experts.
fn deepseek(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let (hidden, layers) = (it.hidden, it.layers);
    let heads = it.number(HEADS)?;
    let bias = it.flag("attention_bias", false);
    let (nope, rope) = (
        it.number(&["qk_nope_head_dim"])?,
        it.number(&["qk_rope_head_dim"])?,
    );
    let (latent, value) = (it.number(&["kv_lora_rank"])?, it.number(&["v_head_dim"])?);
    let queries = heads * (nope + rope);
    match it.maybe(&["q_lora_rank"])? {
        Some(rank) => {
            it.linear(hidden, rank, bias, layers);
            it.tables(rank, layers);
            it.linear(rank, queries, false, layers);
        }
        None => it.linear(hidden, queries, false, layers),
    }
    it.linear(hidden, latent + rope, bias, layers);
    it.tables(latent, layers);
    it.linear(latent, heads * (nope + value), false, layers);
    it.linear(heads * value, hidden, bias, layers);
    it.caches(latent + rope)?;
    let dense = it.number(&["first_k_dense_replace"])?.min(layers);
    let inner = it.number(INNER)?;
    it.gated(inner, false, dense);
    let sparse = layers - dense;
    if sparse > 0 {
        let expert = it.number(&["moe_intermediate_size"])?;
        let shared = it.number_or(&["n_shared_experts"], 0)?;
        it.gated(expert * shared, false, sparse);
        let experts = it.number(&["n_routed_experts"])?;
        it.experts(experts, expert, sparse);
    }
    it.tables(hidden, 2 * layers + 1);
    it.head(false);
    Ok(())
}

/// OLMo without parameters in its norms, and OLMo 2 with norms of queries and keys.
fn olmo(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    let bias = it.flag("attention_bias", false);
    it.attention(heads, bias, bias)?;
    let inner = it.number(INNER)?;
    it.gated(inner, false, it.layers);
    if it.family == "olmo2" {
        it.tables((heads.queries + heads.keys) * heads.size, it.layers);
        it.tables(it.hidden, 2 * it.layers + 1);
    }
    it.head(false);
    Ok(())
}

fn stablelm(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    it.attention(heads, it.flag("use_qkv_bias", false), false)?;
    let inner = it.number(INNER)?;
    it.gated(inner, false, it.layers);
    if it.flag("qk_layernorm", false) {
        it.tables((heads.queries + heads.keys) * heads.size, it.layers);
    }
    let norms = if it.flag("use_parallel_residual", false) {
        1
    } else {
        2
    };
    it.layer_norms(norms * it.layers + 1);
    it.head(false);
    Ok(())
}

fn starcoder2(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    let bias = it.flag("use_bias", true);
    it.attention(heads, bias, bias)?;
    let inner = it.number(INNER)?;
    it.plain(inner, bias, it.layers);
    it.layer_norms(2 * it.layers + 1);
    it.head(true);
    Ok(())
}

/// Phi 1 and 2: one norm before attention and feed-forward, which run side by side.
fn phi(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    it.attention(heads, true, true)?;
    let inner = it.number(INNER)?;
    it.plain(inner, true, it.layers);
    if it.flag("qk_layernorm", false) {
        it.tables(4 * heads.size, it.layers);
    }
    it.layer_norms(it.layers + 1);
    it.head(false);
    it.tables(it.vocabulary, 1);
    Ok(())
}

fn phi3(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.heads(HEADS)?;
    let keys = heads.keys * heads.size;
    it.linear(
        it.hidden,
        heads.queries * heads.size + 2 * keys,
        false,
        it.layers,
    );
    it.linear(heads.queries * heads.size, it.hidden, false, it.layers);
    it.caches(2 * keys)?;
    let inner = it.number(INNER)?;
    it.linear(it.hidden, 2 * inner, false, it.layers);
    it.linear(inner, it.hidden, false, it.layers);
    it.tables(it.hidden, 2 * it.layers + 1);
    it.head(false);
    Ok(())
}

/// Attention of one matrix for queries, keys, and values, and of another for the output.
fn joined(it: &mut Builder<'_>, bias: bool) -> Shaped {
    it.linear(it.hidden, 3 * it.hidden, bias, it.layers);
    it.linear(it.hidden, it.hidden, bias, it.layers);
    it.caches(2 * it.hidden)
}

fn gpt2(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let positions = it.number(&["n_positions", "max_position_embeddings"])?;
    it.tables(it.hidden, positions);
    joined(it, true)?;
    let inner = it.number_or(INNER, 4 * it.hidden)?;
    it.plain(inner, true, it.layers);
    it.layer_norms(2 * it.layers + 1);
    it.head(true);
    Ok(())
}

fn gpt_neo(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let positions = it.number(&["max_position_embeddings"])?;
    it.tables(it.hidden, positions);
    it.linear(it.hidden, it.hidden, false, 3 * it.layers);
    it.linear(it.hidden, it.hidden, true, it.layers);
    it.caches(2 * it.hidden)?;
    let inner = it.number_or(INNER, 4 * it.hidden)?;
    it.plain(inner, true, it.layers);
    it.layer_norms(2 * it.layers + 1);
    it.head(true);
    Ok(())
}

fn gptj(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    it.linear(it.hidden, it.hidden, false, 4 * it.layers);
    it.caches(2 * it.hidden)?;
    let inner = it.number_or(INNER, 4 * it.hidden)?;
    it.plain(inner, true, it.layers);
    it.layer_norms(it.layers + 1);
    it.head(false);
    it.tables(it.vocabulary, 1);
    Ok(())
}

fn gpt_neox(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    joined(it, it.flag("attention_bias", true))?;
    let inner = it.number(INNER)?;
    it.plain(inner, true, it.layers);
    it.layer_norms(2 * it.layers + 1);
    it.head(false);
    Ok(())
}

fn falcon(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let heads = it.number(HEADS)?;
    if heads == 0 {
        return Err(ConfigError::Impossible("num_attention_heads"));
    }
    let size = it.hidden / heads;
    let (is_new, bias) = (
        it.flag("new_decoder_architecture", false),
        it.flag("bias", false),
    );
    let keys = match (is_new, it.flag("multi_query", true)) {
        (true, _) => it.number_or(&["num_kv_heads"], heads)?,
        (false, true) => 1,
        (false, false) => heads,
    };
    it.linear(it.hidden, (heads + 2 * keys) * size, bias, it.layers);
    it.linear(it.hidden, it.hidden, bias, it.layers);
    // Transformers repeats the keys of the newer form for all heads, and vLLM does not: the smaller cache is counted.
    it.caches(2 * keys * size)?;
    let inner = it.number_or(&["ffn_hidden_size"], 4 * it.hidden)?;
    it.plain(inner, bias, it.layers);
    let norms = if is_new {
        it.number_or(&["num_ln_in_parallel_attn"], 2)?
    } else if it.flag("parallel_attn", true) {
        1
    } else {
        2
    };
    it.layer_norms(norms.min(2) * it.layers + 1);
    it.head(true);
    Ok(())
}

fn opt(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    let embedded = it.number_or(&["word_embed_proj_dim"], it.hidden)?;
    if embedded != it.hidden {
        it.parameters = it.vocabulary * embedded;
        it.linear(embedded, it.hidden, false, 1);
        it.linear(it.hidden, embedded, false, 1);
    }
    let positions = it.number(&["max_position_embeddings"])?;
    it.tables(it.hidden, positions + 2);
    let bias = it.flag("enable_bias", true);
    it.linear(it.hidden, it.hidden, bias, 4 * it.layers);
    it.caches(2 * it.hidden)?;
    let inner = it.number(&["ffn_dim"])?;
    it.plain(inner, bias, it.layers);
    let ends = it.flag("do_layer_norm_before", true) && !it.flag("_remove_final_layer_norm", false);
    if it.flag("layer_norm_elementwise_affine", true) {
        it.layer_norms(2 * it.layers + u128::from(ends));
    }
    if !it.flag("tie_word_embeddings", true) {
        it.parameters += it.vocabulary * embedded;
    }
    Ok(())
}

fn bloom(it: &mut Builder<'_>) -> Shaped {
    it.start(HIDDEN, LAYERS)?;
    it.layer_norms(1);
    joined(it, true)?;
    it.plain(4 * it.hidden, true, it.layers);
    it.layer_norms(2 * it.layers + 1);
    it.head(true);
    Ok(())
}

/// BERT and RoBERTa, with the layers that predict masked words.
fn bert(it: &mut Builder<'_>) -> Shaped {
    it.kind = Kind::Encoder;
    it.start(HIDDEN, LAYERS)?;
    let positions = it.number(&["max_position_embeddings"])?;
    let types = it.number_or(&["type_vocab_size"], 2)?;
    it.tables(it.hidden, positions + types);
    encoder(it)
}

fn distilbert(it: &mut Builder<'_>) -> Shaped {
    it.kind = Kind::Encoder;
    it.start(&["dim", "hidden_size"], &["n_layers", "num_hidden_layers"])?;
    let positions = it.number(&["max_position_embeddings"])?;
    it.tables(it.hidden, positions);
    encoder(it)
}

/// The layers of an encoder, behind its embeddings.
fn encoder(it: &mut Builder<'_>) -> Shaped {
    it.linear(it.hidden, it.hidden, true, 4 * it.layers);
    let inner = it.number(&["intermediate_size", "hidden_dim"])?;
    it.plain(inner, true, it.layers);
    it.layer_norms(2 * it.layers + 1);
    // The head: one layer, its norm, and a bias for each word.
    it.linear(it.hidden, it.hidden, true, 1);
    it.layer_norms(1);
    it.tables(it.vocabulary, 1);
    it.head(true);
    Ok(())
}

/// T5, whose output layer transformers always builds with the embeddings' weights.
fn t5(it: &mut Builder<'_>) -> Shaped {
    it.kind = Kind::EncoderDecoder;
    it.start(&["d_model"], &["num_layers"])?;
    let (encoders, decoders) = (it.layers, it.number_or(&["num_decoder_layers"], it.layers)?);
    if decoders > MOST_LAYERS.into() {
        return Err(ConfigError::Impossible("num_decoder_layers"));
    }
    let (heads, size) = (it.number(&["num_heads"])?, it.number(&["d_kv"])?);
    let width = heads * size;
    let attentions = encoders + 2 * decoders;
    it.linear(it.hidden, width, false, 3 * attentions);
    it.linear(width, it.hidden, false, attentions);
    let inner = it.number(&["d_ff"])?;
    let projection = it.values.get("feed_forward_proj").and_then(Value::as_str);
    if projection.is_some_and(|it| it.starts_with("gated-")) {
        it.gated(inner, false, encoders + decoders);
    } else {
        it.plain(inner, false, encoders + decoders);
    }
    let buckets = it.number_or(&["relative_attention_num_buckets"], 32)?;
    it.tables(buckets * heads, 2);
    it.tables(it.hidden, 2 * encoders + 3 * decoders + 2);
    // The decoder's own keys and values; those of the encoder's output are not counted.
    it.layers = decoders;
    it.caches(2 * width)?;
    it.layers = encoders + decoders;
    Ok(())
}
