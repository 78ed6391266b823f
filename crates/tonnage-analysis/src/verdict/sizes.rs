// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes that libraries would have told on a GPU and that a dry run could not find out.
//!
//! A library is asked how much workspace it wants before PyTorch allocates it. Where nobody can answer, the block has the
//! wrong size or is missing, so figures that contain it are not exact. Which these are is seen by the functions that the
//! stand-in names as not modelled.

use std::collections::BTreeMap;

const RECURRENT: &str = "what cuDNN reserves for recurrent networks: what their equations have to keep is counted, which may be less";

/// Functions by their name or its beginning, with what they would have told.
const KNOWN: [(&str, &str); 8] = [
    (
        "cudnnBackendGetAttribute",
        "the workspaces of convolutions and attention: a cuDNN older than 9.8 does not tell them without a GPU, and they \
         are left out; install cuDNN 9.8 or newer (nvidia-cudnn-cu12 or -cu13) to have them exact",
    ),
    (
        "cudnnGetConvolution",
        "the workspaces of convolutions by cuDNN's older interface: they are left out",
    ),
    ("cudnnGetRNNTempSpaceSizes", RECURRENT),
    ("cudnnGetRNNTrainingReserveSize", RECURRENT),
    ("cudnnGetRNNWorkspaceSize", RECURRENT),
    (
        "cudnnDropoutGetStatesSize",
        "the state of cuDNN's dropout: 24 KiB for each multiprocessor is assumed",
    ),
    (
        "cudnnGetCTCLoss",
        "the workspace of cuDNN's CTC loss: it is left out",
    ),
    (
        "cufft",
        "the workspaces of Fourier transforms (cuFFT): they are left out",
    ),
];

/// Endings of functions that tell a size, in all of CUDA's libraries.
const ENDINGS: [&str; 5] = [
    "buffersize",
    "buffersizeext",
    "workspacesize",
    "getworksize",
    "spacesize",
];

/// Parts of the names of cuFFT's functions that tell a size.
const FFT: [&str; 3] = ["MakePlan", "GetSize", "Estimate"];

/// What is not known, a sentence each, by the functions that were called and are not modelled.
pub(super) fn find(unmodelled: &BTreeMap<String, u64>) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    for name in unmodelled.keys() {
        let tells_size = {
            let lower = name.to_ascii_lowercase();
            ENDINGS.iter().any(|ending| lower.ends_with(ending))
        };
        match KNOWN.iter().find(|(known, _)| name.starts_with(known)) {
            // Of cuFFT only what tells a size, which making a plan does.
            Some((known, _))
                if *known == "cufft" && !FFT.iter().any(|part| name.contains(part)) => {}
            Some((_, sentence)) => sentences.push((*sentence).to_owned()),
            None if tells_size => others.push(name),
            None => {}
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
            "workspaces of which {}{rest} would tell the size: they are left out",
            others.join(", ")
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(names: &[&str]) -> Vec<String> {
        find(&names.iter().map(|name| ((*name).to_owned(), 1)).collect())
    }

    #[test]
    fn sizes_that_nobody_told_are_named_once() {
        assert_eq!(
            told(&["nvmlDeviceGetVbiosVersion", "cufftSetStream"]),
            [""; 0]
        );
        assert_eq!(told(&["cufftXtMakePlanMany", "cufftGetSize1d"]).len(), 1);
        let old = told(&["cudnnBackendGetAttribute"]);
        assert!(old[0].contains("older than 9.8"), "{old:?}");
        let both = [
            "cudnnGetConvolutionForwardWorkspaceSize",
            "cudnnGetConvolutionBackwardDataWorkspaceSize",
        ];
        assert_eq!(told(&both).len(), 1);
        let recurrent = ["cudnnGetRNNTrainingReserveSize", "cudnnGetRNNWorkspaceSize"];
        assert_eq!(told(&recurrent), [RECURRENT]);
        let solver = told(&[
            "cusolverDnDgesvd_bufferSize",
            "cusolverDnXgeev_bufferSize",
            "cusolverDnXsyevd_bufferSize",
            "cusparseSpMM_bufferSize",
        ]);
        assert_eq!(solver.len(), 1);
        assert!(solver[0].contains("and 1 more"), "{solver:?}");
    }
}
