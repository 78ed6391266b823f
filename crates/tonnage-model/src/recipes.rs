// SPDX-License-Identifier: MIT OR Apache-2.0
//! Methods of training and inference as data: each is a directory of `recipes/` with a script and `recipe.toml`.
//!
//! The script is a program that runs unchanged on a GPU. `recipe.toml` describes it in words, and lists what the script
//! keeps in memory, from which `bound` computes a lower bound. A new recipe is a new directory and a line below.

use serde::Deserialize;

/// The task of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// It trains the model.
    Train,
    /// It generates text.
    Infer,
    /// It serves requests.
    Serve,
}

/// The parameters that a recipe trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trained {
    /// All.
    All,
    /// LoRA adapters in every linear layer.
    Adapters,
    /// None.
    Nothing,
}

/// A method, as `recipe.toml` has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name, which is also the name of its directory.
    #[serde(skip)]
    pub name: &'static str,
    /// The script.
    #[serde(skip)]
    pub script: &'static str,
    /// The method in words.
    pub about: String,
    /// The task.
    pub task: Task,
    /// The packages that the script imports.
    pub packages: Vec<String>,
    /// The contents of memory.
    pub memory: Memory,
}

/// The memory that a script uses for certain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The parameters that are trained.
    pub trained: Trained,
    /// Whether the weights of linear layers are stored in 4 bits (NF4, with double quantization).
    #[serde(default)]
    pub four_bits: bool,
    /// Bytes of optimizer state for each byte of a trained parameter.
    #[serde(default)]
    pub optimizer_ratio: u64,
    /// Bytes of an adapter's parameter.
    #[serde(default)]
    pub adapter_bytes: u64,
    /// The rank of adapters.
    #[serde(default)]
    pub rank: u64,
    /// Sequences of each sample of a batch.
    #[serde(default)]
    pub sequences: u64,
    /// Whether the inputs of all layers are kept for the backward pass.
    #[serde(default)]
    pub layer_inputs: bool,
    /// Bytes for each logit while the loss is computed.
    #[serde(default)]
    pub logit_bytes: u64,
    /// Sequences of each sample that have a cache of keys and values.
    #[serde(default)]
    pub cached_sequences: u64,
}

/// Each recipe: name, description, script.
const RECIPES: &[(&str, &str, &str)] = &[
    (
        "full",
        include_str!("../recipes/full/recipe.toml"),
        include_str!("../recipes/full/train.py"),
    ),
    (
        "lora",
        include_str!("../recipes/lora/recipe.toml"),
        include_str!("../recipes/lora/train.py"),
    ),
    (
        "qlora",
        include_str!("../recipes/qlora/recipe.toml"),
        include_str!("../recipes/qlora/train.py"),
    ),
    (
        "dpo",
        include_str!("../recipes/dpo/recipe.toml"),
        include_str!("../recipes/dpo/train.py"),
    ),
    (
        "grpo",
        include_str!("../recipes/grpo/recipe.toml"),
        include_str!("../recipes/grpo/train.py"),
    ),
    (
        "infer",
        include_str!("../recipes/infer/recipe.toml"),
        include_str!("../recipes/infer/generate.py"),
    ),
    (
        "serve",
        include_str!("../recipes/serve/recipe.toml"),
        include_str!("../recipes/serve/serve.py"),
    ),
];

/// Every recipe, in the order of the table.
///
/// The files are part of the crate and a test reads them, so there is no error to return.
pub fn recipes() -> Vec<Recipe> {
    let read = |(name, description, script): &(&'static str, &str, &'static str)| {
        let recipe: Result<Recipe, _> = toml::from_str(description);
        let mut recipe = recipe.expect("a test of this crate reads every recipe");
        (recipe.name, recipe.script) = (name, script);
        recipe
    };
    RECIPES.iter().map(read).collect()
}

/// The recipe of this name.
pub fn recipe(name: &str) -> Option<Recipe> {
    recipes().into_iter().find(|recipe| recipe.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_is_short_and_has_a_sentence() {
        for recipe in recipes() {
            let lines = recipe.script.lines().count();
            assert!((20..=90).contains(&lines), "{}: {lines} lines", recipe.name);
            assert!(
                recipe.script.contains("SPDX-License-Identifier"),
                "{}",
                recipe.name
            );
            assert!(
                !recipe.about.is_empty() && !recipe.packages.is_empty(),
                "{}",
                recipe.name
            );
        }
    }
}
