// SPDX-License-Identifier: MIT OR Apache-2.0
//! The findings by their codes, each with the page that `tonnage explain CODE` shows.
//!
//! A code never changes its meaning and is never used again. 1xx says why a
//! request failed, 2xx what makes a peak.

use serde::Serialize;

/// One kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Code {
    /// `TN101`.
    pub code: &'static str,
    /// What it says in a few words.
    pub title: &'static str,
    /// What it means, how it is recognised and what helps.
    #[serde(skip)]
    pub page: &'static str,
}

macro_rules! codes {
    ($($name:ident $code:literal $title:literal $page:literal;)*) => {
        $(#[doc = $title] pub const $name: Code = Code { code: $code, title: $title, page: $page };)*

        /// Every code, in order.
        pub const ALL: &[Code] = &[$($name,)*];
    };
}

codes! {
    SHORT "TN101" "memory is truly short"
"The blocks that were alive, with the one asked for, need more than the device has. No setting of the allocator can
change that: even placed without a single hole they would not fit.

Recognised by: alive bytes + request + context + memory outside PyTorch > capacity.
What helps: fewer live bytes (the other findings say whose they are), or a larger device. The smallest device on which
the recording gets past this request is found by replay.";
    FRAGMENTED "TN102" "memory is fragmented"
"Enough memory is free, but in pieces: holes between live blocks, none large enough for the request. PyTorch cannot
give a segment back while one block in it lives.

Recognised by: alive bytes + request fit on the device, and most of what is held unused lies in segments with live
blocks (hard slack).
What helps: expandable_segments:True, which grows one segment instead of collecting many; other settings by
`tonnage tune`. Each is replayed on your recording before it is proposed.";
    STRANDED "TN103" "memory is stranded in another stream"
"PyTorch's allocator keeps the segments of each stream apart. Memory that was freed on one stream cannot serve a request
on another while a block in its segment lives.

Recognised by: alive bytes + request fit on the device, and most of what is held unused belongs to other streams.
What helps: allocate on one stream and use `record_stream` for the others; free the blocks that pin the other stream's
segments before the large request.";
    OUTSIDE "TN105" "memory is held outside PyTorch's allocator"
"Part of the device is taken by other processes, by more contexts than needed, or by libraries that ask the driver
directly. `nvidia-smi` counts it, `torch.cuda.memory_allocated` does not.

Recognised by: bytes the driver charged minus the segments of PyTorch, and other processes of the run on the same
device. A recording of one process shows only its own part. It is the class of a failure if the request would have
been served without them.
What helps: one device for each rank (`torch.cuda.set_device(local_rank)` before the first CUDA call, `map_location` in
`torch.load`), so that no other rank opens a context here.";
    LEAK "TN201" "memory grows with every step"
"Blocks that are made in each step stay alive in the next ones. Usual causes: summing losses without `.item()` (each
keeps its whole graph), appending outputs to a list, a hook or a closure that keeps a tensor.

Recognised by: in at least three passes in a row, blocks from the same line that live for three further passes or to
the end, and are neither weights, gradients, optimizer state, buffers nor a cache.
What helps: keep numbers instead of tensors: `.item()`, or `.detach().cpu()`. The peak without these blocks is computed
from the recording.";
    LONG_SAMPLE "TN202" "one long sample makes the peak"
"One pass needs much more than the others, because its batch is longer. Jobs then die after hours, at the first such
sample.

Recognised by: what one pass makes and holds at its own peak is at least 1.3 times the median of the other passes that
run the same line.
What helps: cap or bucket lengths, or batch by tokens. The peak of the other passes is in the recording.";
    LOSS_SPIKE "TN203" "logits and loss make the peak"
"The output of the last layer has one number for each token and each word of the vocabulary, and the loss makes several
copies of it: log-probabilities and their gradients, often in float32.

Recognised by: blocks made inside the loss functions of torch, and blocks of the same size made around them, hold at
least a tenth of the peak.
What helps: compute the loss in chunks of the tokens, each under checkpointing, or use a fused loss that never makes
the logits. The peak with chunks of an eighth is computed from the recording.";
    OPTIMIZER_STEP "TN204" "the optimizer makes the peak"
"An optimizer makes its state at the first step, so that the second step starts higher than the first; and the default
implementation on lists of tensors makes temporary copies as large as all gradients.

Recognised by: the peak, or the failure, lies in the optimizer's step, or in the first pass after its state was made.
What helps: `fused=True` or `foreach=False`, which make no temporary copies; an optimizer with a smaller state. The
peak without the temporary copies is computed from the recording.";
    EVALUATION "TN205" "evaluation makes the peak"
"The peak lies in a pass without gradients: its batch is larger than in training, or its outputs are collected on the
device until the end.

Recognised by: the peak lies in a phase without gradients of a recording that also trains, or blocks of several such
passes are alive at once.
What helps: move outputs to the host after each batch (`.cpu()`), reduce them first (`argmax`), use a smaller batch.
The peak without the collected outputs is computed from the recording.";
    CHECKPOINT_FILE "TN206" "saving or loading makes the peak"
"While a checkpoint is read or written, its tensors are on the device beside those of the model.

Recognised by: blocks made inside `torch.load` or `torch.save` hold at least a tenth of the peak.
What helps: `torch.load(..., map_location=\"cpu\")`, or `mmap=True`. The peak without these blocks is computed from the
recording.";
    KV_CACHE "TN207" "the KV cache makes the peak"
"Keys and values of all tokens so far are kept. They grow with batch × length, or are allocated for the longest length
at once.

Recognised by: tensors in caches hold at least a quarter of the peak.
What helps: a shorter maximal length, fewer sequences at once, a smaller type. The peak with half of the cache is
computed from the recording.";
    SPIKE "TN208" "one operation makes the peak"
"A single line makes temporary memory far above everything around it: a decoder at full resolution, a convolution's
workspace, a large intermediate product.

Recognised by: temporaries and workspaces of one line hold at least a quarter of the peak.
What helps: work in tiles or on fewer samples at a time. The peak with this line at half size is computed from the
recording.";
    TWO_COPIES "TN209" "an old copy is still referenced"
"Tensors of the same name and shape are alive twice: the model that was deleted is still referenced somewhere, by a
cache, a closure, a list, an exception's traceback.

Recognised by: torch named two live blocks with the same parameter.
What helps: drop the last reference before loading anew (`gc.get_referrers` finds it). The peak without the older copy
is computed from the recording.";
    CHECKPOINTING "TN210" "gradient checkpointing cannot lower this peak"
"Activations are recomputed already, and the peak lies elsewhere: in the optimizer's step, or in the loss.

Recognised by: blocks made inside `torch.utils.checkpoint`, and a peak in the optimizer's step.
What helps: what the other findings say; more checkpointing does not.";
}

/// The code with this name.
pub fn find(code: &str) -> Option<&'static Code> {
    ALL.iter()
        .find(|known| known.code.eq_ignore_ascii_case(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_their_pages_say_how_and_what() {
        for (index, code) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.code < code.code));
            assert!(code.page.contains("Recognised by:"), "{}", code.code);
            assert!(code.page.contains("What helps:"), "{}", code.code);
            assert_eq!(find(&code.code.to_lowercase()), Some(code));
        }
    }
}
