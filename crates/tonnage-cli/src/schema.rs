// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON Schemas of what commands print with `--json`, from the structs that they print.
//!
//! Only `tonnage-reference` asks for them (feature `schema`); the command itself does not know them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use tonnage_analysis::{diff, explain, plan, replay, tune, verify};

use crate::commands;

/// One result and its schema.
#[derive(Clone, Debug)]
pub struct Described {
    /// What the schema is called.
    pub name: &'static str,
    /// What prints the result, as it is typed.
    pub call: &'static str,
    /// The schema of the result.
    pub schema: Schema,
}

/// The result of every command that has one, in the order of the commands.
pub fn schemas() -> Vec<Described> {
    vec![
        of::<commands::run::Judged>("run", "tonnage run --json -- COMMAND"),
        of::<verify::Verification>("verify", "tonnage verify --json -- COMMAND"),
        of::<tonnage_fit::Fit>("fit", "tonnage fit --json -- COMMAND"),
        of::<tonnage_fit::Serving>("serve-fit", "tonnage fit --json -- vllm serve MODEL"),
        of::<commands::gpus::All<'_>>("gpus", "tonnage gpus --json"),
        of::<commands::gpus::One<'_>>("gpu", "tonnage gpus --json NAME"),
        of::<commands::doctor::Diagnosis>("doctor", "tonnage doctor --json"),
        of::<commands::info::All>("info", "tonnage info --json FILE"),
        of::<replay::Report>("replay", "tonnage replay --json FILE"),
        of::<plan::Report>("plan", "tonnage plan --json INPUT"),
        of::<replay::RuntimePlan>(
            "runtime-plan",
            "tonnage plan --for-runtime --json RECORDING",
        ),
        of::<tune::Tuned>("tune", "tonnage replay --search --json FILE"),
        of::<explain::Explanation>("explain", "tonnage explain --json FILE"),
        of::<commands::explain::Meaning>("finding", "tonnage explain --json CODE"),
        of::<commands::explain::ChangePage>("change", "tonnage explain --json CHANGE"),
        of::<diff::Diff>("diff", "tonnage diff --json BEFORE AFTER"),
        of::<commands::check::All<'_>>("check", "tonnage check --json"),
        of::<tonnage_forecast::Forecast>("forecast", "tonnage forecast make --json -- COMMAND"),
        of::<commands::forecast::Comparison>(
            "forecast-compare",
            "tonnage forecast compare --json BEFORE AFTER",
        ),
        of::<tonnage_forecast::emit::Emitted>(
            "forecast-emit",
            "tonnage forecast emit --json --for ENGINE FORECAST",
        ),
        of::<commands::forecast::Found>("forecast-find", "tonnage forecast find --json -- COMMAND"),
        of::<tonnage_forecast::ledger::Observation>(
            "forecast-learn",
            "tonnage forecast learn --json --job ID FILE",
        ),
        of::<tonnage_forecast::fleet::Report>("fleet-report", "tonnage fleet report --json FILE"),
        of::<tonnage_forecast::ledger::PastRuns>(
            "forecast-ledger",
            "tonnage forecast ledger --json",
        ),
        of::<commands::report::Figures<'_>>("report", "tonnage report --json FILE"),
    ]
}

fn of<T: JsonSchema>(name: &'static str, call: &'static str) -> Described {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    Described {
        name,
        call,
        schema: settings.into_generator().into_root_schema_for::<T>(),
    }
}
