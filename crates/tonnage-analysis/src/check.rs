// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets: what a command may take on a GPU, and what it took when it was last accepted.
//!
//! Limits are written by people in `tonnage.toml` or `pyproject.toml`; accepted
//! figures are written by `tonnage check --update` into `tonnage.lock`. A dry run
//! gives the same figures every time, so any increase over the accepted ones is a
//! change of the program (or of torch, which is then reported) and not noise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::diff::{Diff, Summary};

/// Version of the JSON that [`Checked`] serialises to, and of the lockfile.
pub const SCHEMA_VERSION: u32 = 1;

/// A size as people write it, `"36 GiB"`, or a number of bytes. Units are binary: KiB, MiB, GiB, TiB.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// With a unit.
    Text(String),
}

/// A command: one line, or a list of words. A file that ends in `.py` is run by `python`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum CommandLine {
    /// As typed.
    Line(String),
    /// Word by word.
    Words(Vec<String>),
}

/// One budget: a command, a GPU, and what it may take there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Its name, by which figures are kept; no two have the same.
    pub name: String,
    /// The command to run.
    pub run: CommandLine,
    /// On which GPU; `tonnage gpus` lists them.
    pub gpu: String,
    /// How many of them there are, at most 16.
    #[serde(default = "one")]
    pub gpus: u8,
    /// Memory of the GPU, instead of the catalogue's.
    pub capacity: Option<Size>,
    /// Memory that must stay free, instead of the most CUDA overhead seen on real GPUs.
    pub margin: Option<Size>,
    /// Limit on the largest sum of blocks.
    pub peak_allocated: Option<Size>,
    /// The older name of `peak_allocated`.
    pub peak: Option<Size>,
    /// Limit on what PyTorch holds from the driver.
    pub reserved: Option<Size>,
    /// Limit on what stays behind with each step.
    pub growth: Option<Size>,
}

impl Budget {
    /// A budget of one GPU, without limits.
    #[must_use]
    pub fn new(name: &str, run: CommandLine, gpu: &str) -> Self {
        Self {
            name: name.to_owned(),
            run,
            gpu: gpu.to_owned(),
            gpus: one(),
            capacity: None,
            margin: None,
            peak_allocated: None,
            peak: None,
            reserved: None,
            growth: None,
        }
    }
}

fn one() -> u8 {
    1
}

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The GPU of commands without `--gpu`; `tonnage gpus` lists them.
    pub gpu: Option<String>,
    /// The budgets.
    #[serde(default, rename = "budget")]
    pub budgets: Vec<Budget>,
}

/// The figures of each budget when it was last accepted. Written by `tonnage check --update`, to be committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lock {
    /// Version of this file: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub version: u32,
    /// By the name of the budget.
    #[serde(default)]
    pub budget: BTreeMap<String, Summary>,
}

/// The limits of a budget, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// On the largest sum of blocks.
    pub peak: Option<u64>,
    /// On what PyTorch holds from the driver.
    pub reserved: Option<u64>,
    /// On what stays behind with each step.
    pub growth: Option<u64>,
}

/// One figure and what it is held against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Figure {
    /// Which.
    pub name: &'static str,
    /// The measured figure.
    pub measured: u64,
    /// The accepted figure, if there is one.
    pub accepted: Option<u64>,
    /// The allowed figure, if there is a limit.
    pub limit: Option<u64>,
}

impl Figure {
    /// Whether it is above its limit.
    pub fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.measured > limit)
    }

    /// Whether it is above what was accepted.
    pub fn has_grown(&self) -> bool {
        self.accepted
            .is_some_and(|accepted| self.measured > accepted)
    }

    /// Whether it is below what was accepted.
    pub fn has_shrunk(&self) -> bool {
        self.accepted
            .is_some_and(|accepted| self.measured < accepted)
    }
}

/// The answer for a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Within its limits, and not above what was accepted.
    Holds,
    /// Within its limits; nothing was accepted yet.
    New,
    /// Above what was accepted.
    Grew,
    /// Above a limit.
    Over,
    /// Does not fit on the GPU at all.
    DoesNotFit,
    /// Ran to its end and left less than the margin: it may run out of memory on a real GPU.
    Uncertain,
    /// The command failed for another reason, or a figure that has a limit is not known.
    Failed,
}

impl Answer {
    /// Whether the gate opens.
    pub fn passes(self) -> bool {
        matches!(self, Self::Holds | Self::New)
    }
}

/// One budget, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Checked {
    /// Its name.
    pub name: String,
    /// Its GPU.
    pub gpu: String,
    /// The answer.
    pub answer: Answer,
    /// The figures that are known; none if the command failed.
    pub figures: Vec<Figure>,
    /// The changes since the figures were accepted.
    pub diff: Option<Diff>,
    /// Whether another torch made the accepted figures: theirs and this one.
    pub torch_changed: Option<(String, String)>,
    /// Why it failed, if it did.
    pub trouble: Option<String>,
}

/// Said of a limit that nothing can be held against.
const UNKNOWN_GROWTH: &str =
    "growth per step has a limit and is not known: it takes a run with three steps of an optimizer";

/// Holds what was measured against the limits and what was accepted.
pub fn judge(
    budget: &Budget,
    limits: Limits,
    measured: &Summary,
    accepted: Option<&Summary>,
) -> Checked {
    let figure = |name, measured, accepted, limit| Figure {
        name,
        measured,
        accepted,
        limit,
    };
    let growth = measured.growth_per_step.map(|measured| {
        let accepted = accepted.and_then(|summary| summary.growth_per_step);
        figure("growth per step", measured, accepted, limits.growth)
    });
    let figures: Vec<Figure> = [
        figure(
            "peak allocated",
            measured.peak_allocated,
            accepted.map(|summary| summary.peak_allocated),
            limits.peak,
        ),
        figure(
            "peak reserved",
            measured.peak_reserved,
            accepted.map(|summary| summary.peak_reserved),
            limits.reserved,
        ),
    ]
    .into_iter()
    .chain(growth)
    .collect();
    let is_unknown = limits.growth.is_some() && measured.growth_per_step.is_none();
    let answer = if figures.iter().any(Figure::is_over) {
        Answer::Over
    } else if is_unknown {
        Answer::Failed
    } else if figures.iter().any(Figure::has_grown) {
        Answer::Grew
    } else if accepted.is_none() {
        Answer::New
    } else {
        Answer::Holds
    };
    let torch_changed = accepted
        .filter(|accepted| accepted.torch != measured.torch)
        .map(|accepted| (accepted.torch.clone(), measured.torch.clone()));
    Checked {
        name: budget.name.clone(),
        gpu: budget.gpu.clone(),
        answer,
        figures,
        diff: accepted.map(|accepted| Diff::between(accepted, measured)),
        torch_changed,
        trouble: (answer == Answer::Failed).then(|| UNKNOWN_GROWTH.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget::new(
            "small",
            CommandLine::Line("python train.py".to_owned()),
            "a100-40gb",
        )
    }

    fn summary(peak: u64) -> Summary {
        Summary {
            peak_allocated: peak,
            peak_reserved: 2 * peak,
            ..Summary::default()
        }
    }

    #[test]
    fn a_byte_above_what_was_accepted_closes_the_gate() {
        let judged = |measured: u64, accepted: Option<u64>, peak: Option<u64>| {
            let limits = Limits {
                peak,
                ..Limits::default()
            };
            let accepted = accepted.map(summary);
            judge(&budget(), limits, &summary(measured), accepted.as_ref()).answer
        };
        assert_eq!(judged(100, None, None), Answer::New);
        assert_eq!(judged(100, Some(100), None), Answer::Holds);
        assert_eq!(judged(99, Some(100), None), Answer::Holds);
        assert_eq!(judged(101, Some(100), None), Answer::Grew);
        assert_eq!(judged(101, Some(101), Some(100)), Answer::Over);
        assert_eq!(judged(100, Some(100), Some(100)), Answer::Holds);
        assert!(!Answer::Grew.passes() && Answer::New.passes());
    }

    #[test]
    fn a_growth_that_is_not_known_keeps_to_no_limit() {
        let limits = Limits {
            growth: Some(0),
            ..Limits::default()
        };
        let judged = |limits, growth_per_step| {
            let measured = Summary {
                growth_per_step,
                ..summary(1)
            };
            let checked = judge(&budget(), limits, &measured, Some(&summary(1)));
            (checked.answer, checked.figures.len(), checked.trouble)
        };
        assert_eq!(judged(limits, Some(0)), (Answer::Holds, 3, None));
        assert_eq!(judged(limits, Some(1)).0, Answer::Over);
        let unknown = (Answer::Failed, 2, Some(UNKNOWN_GROWTH.to_owned()));
        assert_eq!(judged(limits, None), unknown);
        assert_eq!(judged(Limits::default(), None), (Answer::Holds, 2, None));
    }

    #[test]
    fn another_torch_is_said() {
        let mut measured = summary(1);
        measured.torch = "2.16.0".to_owned();
        let mut accepted = summary(1);
        accepted.torch = "2.15.0".to_owned();
        let checked = judge(&budget(), Limits::default(), &measured, Some(&accepted));
        assert_eq!(
            checked.torch_changed,
            Some(("2.15.0".to_owned(), "2.16.0".to_owned()))
        );
    }
}
