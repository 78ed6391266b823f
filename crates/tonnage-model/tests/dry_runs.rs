// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bound is below the peak of a dry run of its recipe, and not far below.
//!
//! `data/dry_runs.json` holds `peak_allocated` of `tonnage run --json` for the scripts of `recipes/`, with weights that
//! `recipes/weights.py` wrote for the configuration of `data/counted.json` with that name.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use serde_json::Value;
use tonnage_gpus::Catalogue;
use tonnage_model::{
    Estimate, HubSettings, Request, Settings, WeightType, bound, count_shapes, estimate, locate,
    recipe, recipes,
};

#[test]
fn bounds_hold_in_dry_runs() {
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let runs = read(include_str!("data/dry_runs.json"));
    let counted = read(include_str!("data/counted.json"));
    for run in runs["rows"].as_array().unwrap() {
        let configs = counted["rows"].as_array().unwrap();
        // A public configuration by its name, or that of a small model.
        let public = configs.iter().find(|row| row["name"] == run["config"]);
        let config = public.map_or(&run["config"], |row| &row["config"]);
        let shapes = count_shapes(config).unwrap();
        let settings = Settings {
            batch: run["batch"].as_u64().unwrap(),
            sequence: run["sequence"].as_u64().unwrap(),
            weights: WeightType::Float16,
        };
        let recipe = recipe(run["recipe"].as_str().unwrap()).unwrap();
        let bound = bound(&recipe, shapes.parameters, Some(&shapes), settings);
        let peak = run["peak_allocated"].as_u64().unwrap();
        assert!(bound.bytes <= peak, "{run}: the bound is {bound:?}");
        assert!(bound.bytes >= peak / 2, "{run}: the bound is {bound:?}");
    }
}

/// The estimate for a configuration in a local file.
fn estimated(config: &str, gpu: &str, batch: u64, sequence: u64) -> Estimate {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config).unwrap();
    let settings = HubSettings {
        endpoint: "http://127.0.0.1:1".to_owned(),
        token: None,
        offline: true,
        cache: None,
        timeout: std::time::Duration::from_secs(1),
    };
    let model = locate(path.to_str().unwrap(), "main", &settings).unwrap();
    let catalogue = Catalogue::embedded();
    let request = Request {
        recipes: recipes(),
        settings: Settings {
            batch,
            sequence,
            weights: WeightType::Float16,
        },
        quantized: None,
        gpu: Some(catalogue.find(gpu).unwrap()),
    };
    estimate(&model, &request, &catalogue).unwrap()
}

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "tie_word_embeddings": false, "max_position_embeddings": 8192}"#;

#[test]
fn limits_on_a_gpu_are_the_last_that_the_bound_allows() {
    let estimate = estimated(LLAMA, "rtx4090", 1, 2048);
    let row = |estimate: &Estimate, name: &str| {
        let row = estimate.rows.iter().find(|row| row.method == name).unwrap();
        row.on_gpu.clone().unwrap()
    };
    assert!(row(&estimate, "full").excluded);
    let lora = row(&estimate, "lora");
    assert!(!lora.excluded);
    let longest = lora.longest_sequence.unwrap();
    assert!(!row(&estimated(LLAMA, "rtx4090", 1, longest), "lora").excluded);
    assert!(row(&estimated(LLAMA, "rtx4090", 1, longest + 1), "lora").excluded);
    let batch = lora.largest_batch.unwrap();
    assert!(!row(&estimated(LLAMA, "rtx4090", batch, 2048), "lora").excluded);
    assert!(row(&estimated(LLAMA, "rtx4090", batch + 1, 2048), "lora").excluded);
}

#[test]
fn a_quantized_checkpoint_has_no_training_methods() {
    let quantized = LLAMA.replacen(
        '{',
        r#"{"quantization_config": {"quant_method": "gptq", "bits": 8},"#,
        1,
    );
    let estimate = estimated(&quantized, "rtx4090", 1, 2048);
    let methods: Vec<&str> = estimate.rows.iter().map(|row| &*row.method).collect();
    assert_eq!(methods, ["infer", "serve"]);
    // Eight bits of each weight, and keys and values of 2,047 tokens.
    let cache = 32 * 2 * 8 * 128 * 2 * 2047;
    assert_eq!(estimate.rows[0].needs_at_least.bytes, 8_030_261_248 + cache);
    assert!(
        estimate
            .remarks
            .iter()
            .any(|remark| remark.contains("gptq"))
    );
}
