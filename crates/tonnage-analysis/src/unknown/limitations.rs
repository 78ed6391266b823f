// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limitations of a recording that have a code.

use serde::{Deserialize, Serialize};
use tonnage_alloc::torch::Version;
use tonnage_recording::{Meta, meta};

use tonnage_recording::facts::LIMITATION;

/// The code of a recording by a release of PyTorch that tonnage was not verified with.
const NEWER_TORCH: &str = "TN304";

/// A limitation: a part of the recording that tonnage could not make as on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Limitation {
    /// Its code, such as `TN301`.
    pub code: String,
    /// The unknown property, and the reason.
    pub message: String,
    /// Whether figures are assumed because of it, and not exact.
    #[serde(default)]
    pub affects_figures: bool,
}

impl Limitation {
    /// The limitations of all processes, each once, by code.
    ///
    /// ```
    /// use tonnage_recording::facts::LIMITATION;
    /// use tonnage_analysis::unknown::Limitation;
    /// use tonnage_recording::Meta;
    ///
    /// let text = r#"{"code":"TN301","message":"which blocks are live","affects_figures":true}"#;
    /// let fact = |process| Meta { process, name: LIMITATION.to_owned(), text: text.to_owned() };
    /// let limitations = Limitation::all(&[fact(0), fact(1)]);
    /// assert_eq!(limitations.len(), 1);
    /// assert_eq!(limitations[0].sentence(), "which blocks are live (TN301)");
    /// ```
    pub fn all(facts: &[Meta]) -> Vec<Self> {
        let written = facts.iter().filter(|fact| fact.name == LIMITATION);
        let mut limitations: Vec<Self> = written
            .filter_map(|fact| serde_json::from_str(&fact.text).ok())
            .collect();
        let versions = facts.iter().filter(|fact| fact.name == meta::TORCH_VERSION);
        limitations.extend(versions.filter_map(|fact| Self::of_newer_torch(&fact.text)));
        limitations.sort_by(|a, b| (&a.code, &a.message).cmp(&(&b.code, &b.message)));
        limitations.dedup();
        limitations
    }

    /// The limitation of a recording by a newer PyTorch than tonnage was verified with.
    fn of_newer_torch(version: &str) -> Option<Self> {
        let Version(major, minor) = Version::VERIFIED;
        Version::parse(version)?.is_unverified().then(|| Self {
            code: NEWER_TORCH.to_owned(),
            message: format!(
                "whether all figures are right for PyTorch {version}: the newest release that tonnage was verified \
                 with is {major}.{minor}"
            ),
            affects_figures: false,
        })
    }

    /// The limitation as every answer shows it.
    pub fn sentence(&self) -> String {
        format!("{} ({})", self.message, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_torch(version: &str) -> Vec<Limitation> {
        Limitation::all(&[Meta {
            process: 0,
            name: meta::TORCH_VERSION.to_owned(),
            text: version.to_owned(),
        }])
    }

    #[test]
    fn a_newer_torch_is_reported_and_an_older_one_is_not() {
        let Version(major, minor) = Version::VERIFIED;
        for known in [format!("{major}.{minor}.0+cu130"), "2.1.2".to_owned()] {
            assert_eq!(of_torch(&known), []);
        }
        for newer in [
            format!("{major}.{}.0a0+git1", minor + 1),
            format!("{}.0.0", major + 1),
        ] {
            let limitations = of_torch(&newer);
            assert_eq!(limitations[0].code, "TN304");
            assert!(limitations[0].message.contains(&newer));
        }
    }
}
