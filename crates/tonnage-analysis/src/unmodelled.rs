// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that were called and are not modelled, and the sizes that libraries would have reported through them on a
//! GPU.
//!
//! Before PyTorch allocates a workspace, it queries the size from the library. Without an answer, the block has
//! the wrong size or is missing, so figures that contain it are not exact. Such figures are identified by the functions
//! that the stand-in names as not modelled.

use std::collections::BTreeMap;

use tonnage_recording::{Event, Kind, StackTable};

/// Most names that are kept; no library has so many functions.
const MOST: usize = 1 << 16;

/// Functions that were called and are not modelled, with how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnmodelledCalls(BTreeMap<String, u64>);

impl UnmodelledCalls {
    /// Counts a row, if it is about such a function.
    pub fn add(&mut self, event: &Event, stacks: &StackTable) {
        if event.kind != Kind::Unmodelled {
            return;
        }
        let name = event.name.map_or("?", |name| stacks.text(name));
        if let Some(calls) = self.0.get_mut(name) {
            *calls = calls.saturating_add(event.size);
        } else if self.0.len() < MOST {
            self.0.insert(name.to_owned(), event.size);
        }
    }

    /// The names with their counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, &calls)| (name.as_str(), calls))
    }

    /// Sizes that a library would have reported on a GPU and that are not certain, a sentence each. Figures with
    /// such blocks are assumed, not exact.
    pub fn unknown_sizes(&self) -> Vec<String> {
        unknown_sizes(self.0.keys().map(String::as_str))
    }
}

/// Functions that return a size, and what is not known without their answer.
struct Asked {
    /// How their names begin.
    beginning: &'static str,
    /// Parts of a name of which it has one; none if the beginning is enough.
    parts: &'static [&'static str],
    /// The unknown.
    sentence: &'static str,
}

const ASKED: [Asked; 6] = [
    Asked {
        beginning: "cudnnBackendGetAttribute",
        parts: &[],
        sentence: "the workspaces of convolutions and attention: a cuDNN older than 9.8 does not report them without a \
                   GPU, and they are left out; install cuDNN 9.8 or newer (nvidia-cudnn-cu12 or -cu13) to have them exact",
    },
    Asked {
        beginning: "cudnnGetConvolution",
        parts: &[],
        sentence: "the workspaces of convolutions by cuDNN's older interface: they are left out",
    },
    Asked {
        beginning: "cudnnGetRNN",
        parts: &["TempSpaceSizes", "TrainingReserveSize", "WorkspaceSize"],
        sentence: "what cuDNN reserves for recurrent networks: what their equations have to keep is counted, which may \
                   be less",
    },
    Asked {
        beginning: "cudnnDropoutGetStatesSize",
        parts: &[],
        sentence: "the state of cuDNN's dropout: 24 KiB for each multiprocessor is assumed",
    },
    Asked {
        beginning: "cudnnGetCTCLoss",
        parts: &[],
        sentence: "the workspace of cuDNN's CTC loss: it is left out",
    },
    Asked {
        beginning: "cufft",
        // The creation of a plan returns how much it needs.
        parts: &["MakePlan", "GetSize", "Estimate"],
        sentence: "the workspaces of Fourier transforms (cuFFT): they are left out",
    },
];

/// Endings of functions that return a size, in all of CUDA's libraries, in lower case.
const ENDINGS: [&str; 5] = [
    "buffersize",
    "buffersizeext",
    "workspacesize",
    "getworksize",
    "spacesize",
];

impl Asked {
    fn is(&self, name: &str) -> bool {
        name.starts_with(self.beginning)
            && (self.parts.is_empty() || self.parts.iter().any(|part| name.contains(part)))
    }
}

/// The unknowns, a sentence each, by the names of the functions that were called and are not modelled, sorted.
fn unknown_sizes<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    for name in names {
        let lower = name.to_ascii_lowercase();
        if let Some(asked) = ASKED.iter().find(|asked| asked.is(name)) {
            sentences.push(asked.sentence.to_owned());
        } else if ENDINGS.iter().any(|ending| lower.ends_with(ending)) {
            others.push(name);
        }
    }
    // Names are sorted, so functions of one kind stand together.
    sentences.dedup();
    if !others.is_empty() {
        let more = others.len().saturating_sub(3);
        others.truncate(3);
        let rest = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        sentences.push(format!(
            "workspaces of which {}{rest} would report the size: they are left out",
            others.join(", ")
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe_unknowns(names: &[&str]) -> Vec<String> {
        let mut names = names.to_vec();
        names.sort_unstable();
        unknown_sizes(names.into_iter())
    }

    #[test]
    fn sizes_that_nobody_told_are_named_once() {
        assert_eq!(
            describe_unknowns(&["nvmlDeviceGetVbiosVersion", "cufftSetStream"]),
            [""; 0]
        );
        assert_eq!(
            describe_unknowns(&["cufftXtMakePlanMany", "cufftGetSize1d"]).len(),
            1
        );
        let old = describe_unknowns(&["cudnnBackendGetAttribute"]);
        assert!(old[0].contains("older than 9.8"), "{old:?}");
        let both = [
            "cudnnGetConvolutionForwardWorkspaceSize",
            "cudnnGetConvolutionBackwardDataWorkspaceSize",
        ];
        assert_eq!(describe_unknowns(&both).len(), 1);
        let recurrent =
            describe_unknowns(&["cudnnGetRNNTrainingReserveSize", "cudnnGetRNNWorkspaceSize"]);
        assert_eq!(recurrent.len(), 1);
        assert!(recurrent[0].contains("recurrent"), "{recurrent:?}");
        let solver = describe_unknowns(&[
            "cusolverDnDgesvd_bufferSize",
            "cusolverDnXgeev_bufferSize",
            "cusolverDnXsyevd_bufferSize",
            "cusparseSpMM_bufferSize",
        ]);
        assert_eq!(solver.len(), 1);
        assert!(solver[0].contains("and 1 more"), "{solver:?}");
    }
}
