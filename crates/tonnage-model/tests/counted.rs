// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counted from configurations equals what transformers created from them.
//!
//! `data/counted.json` was written by `tests/model/count_parameters.py`, which builds each model with transformers on
//! the meta device and counts there.

use std::collections::BTreeSet;

use serde_json::Value;
use tonnage_model::{count_shapes, families};

#[test]
fn every_family_has_the_parameters_that_transformers_creates() {
    let counted: Value = serde_json::from_str(include_str!("data/counted.json")).unwrap();
    let rows = counted["rows"].as_array().unwrap();
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for row in rows {
        let (name, config) = (row["name"].as_str().unwrap(), &row["config"]);
        let shapes = match count_shapes(config) {
            Ok(shapes) => shapes,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        seen.insert(config["model_type"].as_str().unwrap());
        // The first tokens are below every window.
        let per_token = shapes.cached_values(3) - shapes.cached_values(2);
        let mut compare = |key: &str, ours: u64| {
            if row[key].as_u64().is_some_and(|theirs| theirs != ours) {
                wrong.push(format!(
                    "{name}: {key} is {}, and {ours} was computed",
                    row[key]
                ));
            }
        };
        compare("parameters", shapes.parameters);
        compare("linear_weights", shapes.linear_weights);
        compare("linear_sides", shapes.linear_sides);
        // Falcon's newer form repeats its keys for all heads in the cache of transformers; the bound counts them once.
        if config["new_decoder_architecture"] != true {
            compare("cache_per_token", per_token);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows.len() > 80, "{} rows", rows.len());
    let all: BTreeSet<&str> = families().collect();
    assert_eq!(seen, all, "a family without a counted row");
}
