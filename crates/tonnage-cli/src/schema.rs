// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON Schemas of what commands print with `--json`, from the structs that they print.
//!
//! Only `tonnage-reference` uses them (feature `schema`); the command itself does not know them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use tonnage_analysis::{diff, explain, plan, replay, tune, verify};

use crate::commands;

/// One result and its schema.
#[derive(Clone, Debug)]
pub struct Described {
    /// The name of the schema.
    pub name: &'static str,
    /// The command that prints the result, as it is typed.
    pub call: &'static str,
    /// The schema of the result.
    pub schema: Schema,
}

/// The result of every command that has one, in the order of the commands.
pub fn schemas() -> Vec<Described> {
    vec![
        describe_schema::<commands::run::Judged>("run", "tonnage run --json -- COMMAND"),
        describe_schema::<verify::Verification>("verify", "tonnage verify --json -- COMMAND"),
        describe_schema::<tonnage_fit::Fit>("fit", "tonnage fit --json -- COMMAND"),
        describe_schema::<tonnage_fit::Serving>(
            "serve-fit",
            "tonnage fit --json -- vllm serve MODEL",
        ),
        describe_schema::<tonnage_model::Estimate>("model", "tonnage model --json NAME"),
        describe_schema::<commands::gpus::All<'_>>("gpus", "tonnage gpus --json"),
        describe_schema::<commands::gpus::One<'_>>("gpu", "tonnage gpus --json NAME"),
        describe_schema::<commands::doctor::Diagnosis>("doctor", "tonnage doctor --json"),
        describe_schema::<commands::info::All>("info", "tonnage info --json FILE"),
        describe_schema::<replay::Report>("replay", "tonnage replay --json FILE"),
        describe_schema::<plan::Report>("plan", "tonnage plan --json INPUT"),
        describe_schema::<replay::RuntimePlan>(
            "runtime-plan",
            "tonnage plan --for-runtime --json RECORDING",
        ),
        describe_schema::<tune::Tuned>("tune", "tonnage replay --search --json FILE"),
        describe_schema::<explain::Explanation>("explain", "tonnage explain --json FILE"),
        describe_schema::<commands::explain::Meaning>("finding", "tonnage explain --json CODE"),
        describe_schema::<commands::explain::ChangePage>("change", "tonnage explain --json CHANGE"),
        describe_schema::<diff::Diff>("diff", "tonnage diff --json BEFORE AFTER"),
        describe_schema::<commands::check::All<'_>>("check", "tonnage check --json"),
        describe_schema::<tonnage_forecast::Forecast>(
            "forecast",
            "tonnage forecast make --json -- COMMAND",
        ),
        describe_schema::<commands::forecast::Comparison>(
            "forecast-compare",
            "tonnage forecast compare --json BEFORE AFTER",
        ),
        describe_schema::<tonnage_forecast::emit::Emitted>(
            "forecast-emit",
            "tonnage forecast emit --json --for ENGINE FORECAST",
        ),
        describe_schema::<commands::forecast::Found>(
            "forecast-find",
            "tonnage forecast find --json -- COMMAND",
        ),
        describe_schema::<tonnage_forecast::ledger::Observation>(
            "forecast-learn",
            "tonnage forecast learn --json --job ID FILE",
        ),
        describe_schema::<tonnage_forecast::fleet::Report>(
            "fleet-report",
            "tonnage fleet report --json FILE",
        ),
        describe_schema::<tonnage_forecast::review::Review>(
            "fleet-review",
            "tonnage fleet review --json FILE",
        ),
        describe_schema::<tonnage_forecast::ledger::PastRuns>(
            "forecast-ledger",
            "tonnage forecast ledger --json",
        ),
        describe_schema::<commands::forecast::learn_from::Learned>(
            "forecast-learn-from",
            "tonnage forecast learn-from --json FILE",
        ),
        describe_schema::<commands::forecast::upkeep::Forgotten>(
            "forecast-forget",
            "tonnage forecast forget --json FORECAST",
        ),
        describe_schema::<commands::forecast::upkeep::Pruning>(
            "forecast-prune",
            "tonnage forecast prune --json --older-than DAYS",
        ),
        describe_schema::<commands::report::Figures<'_>>("report", "tonnage report --json FILE"),
    ]
}

fn describe_schema<T: JsonSchema>(name: &'static str, call: &'static str) -> Described {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    Described {
        name,
        call,
        schema: settings.into_generator().into_root_schema_for::<T>(),
    }
}
