// SPDX-License-Identifier: MIT OR Apache-2.0
//! The changes that a dry run can make to a program inside its process, without touching a file.
//!
//! Each is one module of `tonnage_hook.torch.changes`. Its front matter, TOML between two lines `+++`, describes the
//! change; the rest is the Python that makes it. The name of a change is the name of its module, with `-` for `_`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::error::RunError;
use crate::hook;

/// Every change, in the order in which people should try them.
const NAMES: &[&str] = &[
    "gradients-to-none",
    "evaluation-without-gradients",
    "optimizer-fused",
    "sdpa-attention",
    "optimizer-for-loop",
    "gradient-release",
    "autocast-bf16",
    "chunked-cross-entropy",
    "accumulate-2",
    "accumulate-8",
    "checkpoint-every-second-block",
    "checkpointing",
    "checkpoint-blocks",
    "offload-activations",
    "optimizer-on-host",
    "optimizer-8bit",
    "optimizer-paged-8bit",
    "optimizer-adafactor",
    "weights-bf16",
    "lora",
    "shard-gradients",
    "fully-shard",
];

/// A line that begins or ends the front matter of a file.
const FENCE: &str = "\n+++\n";

/// The effect of a change on the mathematics of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Maths {
    /// Nothing: the same numbers are computed.
    Nothing,
    /// The same formula, with another rounding.
    Rounding,
    /// Another algorithm, which may train differently.
    Algorithm,
}

impl Maths {
    /// In a few words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Rounding => "rounding",
            Self::Algorithm => "the algorithm",
        }
    }
}

/// A change that can be made to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Change {
    /// Its name on the command line.
    #[serde(skip_deserializing)]
    pub name: String,
    /// A title of a few words.
    pub title: String,
    /// Its effect on the mathematics.
    pub maths: Maths,
    /// At most one change of a group can be made.
    pub group: String,
    /// To what it applies.
    pub applies: String,
    /// Its cost in time, as a sentence.
    pub cost: String,
    /// Its effect, its savings and the way to write it by hand.
    pub page: String,
    /// Whether it spreads a model over the GPUs of the machine.
    #[serde(default)]
    pub shards: bool,
    /// Whether it saves much in many programs: it is tried before the others, alone and with others like it.
    #[serde(default)]
    pub strong: bool,
    /// Packages that the program's Python must have.
    #[serde(default)]
    pub packages: Vec<String>,
}

static ALL: LazyLock<Vec<Change>> =
    LazyLock::new(|| NAMES.iter().filter_map(|name| parse(name)).collect());

/// The text of the module that makes a change.
fn source(name: &str) -> Option<&'static str> {
    let module = name.replace('-', "_");
    hook::source(&format!("tonnage_hook/torch/changes/{module}.py"))
}

/// The change with a name; none if no module describes it, which a test excludes.
fn parse(name: &str) -> Option<Change> {
    let (_, rest) = source(name)?.split_once(FENCE)?;
    let (front, _) = rest.split_once(FENCE)?;
    let change: Change = toml::from_str(front).ok()?;
    Some(Change {
        name: name.to_owned(),
        page: change.page.trim().to_owned(),
        ..change
    })
}

/// Every change there is, in the order in which people should try them.
///
/// ```
/// let names: Vec<_> = tonnage_run::changes::all().iter().map(|change| &*change.name).collect();
/// assert!(names.contains(&"checkpoint-blocks"));
/// ```
pub fn all() -> &'static [Change] {
    &ALL
}

/// The change with this name.
///
/// ```
/// use tonnage_run::changes::{Maths, find};
///
/// assert_eq!(find("checkpoint-blocks")?.maths, Maths::Nothing);
/// assert!(find("checkpoint-block").unwrap_err().to_string().contains("did you mean checkpoint-blocks?"));
/// # Ok::<(), tonnage_run::RunError>(())
/// ```
pub fn find(name: &str) -> Result<&'static Change, RunError> {
    let found = all().iter().find(|change| change.name == name);
    found.ok_or_else(|| RunError::UnknownChange {
        name: name.to_owned(),
        near: near(name),
        known: all().iter().map(|change| &*change.name).collect(),
    })
}

/// The name of a change that is most like this one.
fn near(name: &str) -> Option<String> {
    let known = all().iter().map(|change| &change.name);
    let ranked = known.map(|known| (strsim::jaro_winkler(name, known), known));
    let best = ranked.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (best.0 > 0.8).then(|| best.1.clone())
}

/// Whether these changes can be made together.
pub(crate) fn validate(names: &[String]) -> Result<(), RunError> {
    let mut chosen: Vec<&Change> = Vec::new();
    for name in names {
        let change = find(name)?;
        if let Some(other) = chosen.iter().find(|other| other.group == change.group) {
            return Err(RunError::ChangesExclude {
                one: other.name.clone(),
                other: change.name.clone(),
            });
        }
        chosen.push(change);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_describes_its_change_in_full() {
        for name in NAMES {
            let change = parse(name).unwrap_or_else(|| panic!("{name} has no front matter"));
            let texts = [
                &change.title,
                &change.group,
                &change.applies,
                &change.cost,
                &change.page,
            ];
            assert!(texts.iter().all(|text| !text.trim().is_empty()), "{name}");
            assert!(change.cost.ends_with('.'), "{name}: a sentence");
            for part in ["Savings:", "Effect on the mathematics:", "By hand"] {
                assert!(change.page.contains(part), "{name} does not say {part:?}");
            }
            let source = source(name).expect("it was parsed");
            assert!(source.contains("\nclass Change("), "{name}");
        }
        assert_eq!(all().len(), NAMES.len());
    }

    #[test]
    fn every_module_of_the_package_is_listed_once() {
        let modules = hook::FILES
            .iter()
            .filter_map(|(path, _)| path.strip_prefix("tonnage_hook/torch/changes/"));
        let names = modules.filter_map(|file| file.strip_suffix(".py"));
        let names = names.filter(|name| *name != "__init__");
        let names: BTreeSet<_> = names.map(|name| name.replace('_', "-")).collect();
        let listed: BTreeSet<_> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(names, listed);
        assert_eq!(listed.len(), NAMES.len());
    }

    #[test]
    fn unknown_and_exclusive_changes_are_refused() {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(validate(&names(&["optimizer-fused", "autocast-bf16"])).is_ok());
        let twice = validate(&names(&["autocast-bf16", "autocast-bf16"]));
        assert!(twice.unwrap_err().to_string().contains("together"));
        let unlike = validate(&names(&["zzz"])).unwrap_err().to_string();
        assert_eq!(unlike, "no change is called \"zzz\"");
    }
}
