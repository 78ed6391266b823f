// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose bytes: every block of a recording with its life, its category and how that is known.
//!
//! A dry run asks torch itself, at moments when torch knows: which tensors are
//! parameters, gradients and optimizer state, when a module is entered, when a
//! backward pass begins. Its recording carries the answers as `owner`, `mark_start`
//! and `mark_end` rows, and blocks named by them are [`Known::Exact`]. For all
//! other blocks the category follows from the phase in which they were born and
//! died, or from their stack, and is [`Known::Inferred`].
//!
//! Memory: one [`Holding`] for every block that ever lived, about 80 bytes each.

use serde::Serialize;
use tonnage_trace::{StackId, TextId};

/// What a block is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Category {
    /// Parameters of modules.
    Weights,
    /// Buffers of modules: running means, masks, position tables.
    Buffers,
    /// What the backward pass leaves in `.grad`.
    Gradients,
    /// What an optimizer keeps from step to step.
    OptimizerState,
    /// Made in the forward pass and kept for the backward pass.
    Activations,
    /// Made and given back within one phase.
    Temporaries,
    /// Scratch memory of libraries: cuBLAS, cuDNN.
    Workspaces,
    /// Keys and values kept from token to token.
    KvCache,
    /// Nothing above, or not known.
    #[default]
    Other,
}

impl Category {
    /// All of them, in the order of pictures and tables.
    pub const ALL: [Self; 9] = [
        Self::Weights,
        Self::Buffers,
        Self::Gradients,
        Self::OptimizerState,
        Self::Activations,
        Self::Temporaries,
        Self::Workspaces,
        Self::KvCache,
        Self::Other,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Buffers => "buffers",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activations => "activations",
            Self::Temporaries => "temporaries",
            Self::Workspaces => "workspaces",
            Self::KvCache => "KV cache",
            Self::Other => "other",
        }
    }

    /// The category with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|category| category.name() == name)
    }
}

/// How a category is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// Torch itself named the tensor in this block.
    Exact,
    /// From the phases in which the block was born and died, or from its stack.
    #[default]
    Inferred,
}

/// What a program was doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    /// Before anything else is known to have happened.
    #[default]
    Load,
    /// A forward pass with gradients.
    Forward,
    /// A backward pass.
    Backward,
    /// An optimizer's step.
    Step,
    /// A forward pass without gradients.
    Eval,
    /// Saving or loading a checkpoint.
    Save,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Load,
        Self::Forward,
        Self::Backward,
        Self::Step,
        Self::Eval,
        Self::Save,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Step => "step",
            Self::Eval => "eval",
            Self::Save => "save",
        }
    }
}

/// One block, from its birth to its death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The row that handed it out, from 0; 0 if it was there before the first row.
    pub born: u32,
    /// The row that took it back; [`Holding::ALIVE`] if none did.
    pub died: u32,
    /// First byte.
    pub address: u64,
    /// Bytes the block takes.
    pub bytes: u64,
    /// Bytes the program asked for.
    pub requested: u64,
    /// The stream it was requested on.
    pub stream: u64,
    /// Where it was requested.
    pub stack: Option<StackId>,
    /// The module in whose forward pass it was requested, by its path in the model.
    pub module: Option<TextId>,
    /// The tensor's name, where torch named it.
    pub name: Option<TextId>,
    /// Its type and shape, where torch told: `bfloat16[4096, 14336]`.
    pub shape: Option<TextId>,
    /// The step in which it was born, from 0.
    pub step: u32,
    /// What it is for.
    pub category: Category,
    /// How that is known.
    pub known: Known,
    /// The phase in which it was born.
    pub phase: Phase,
}

impl Holding {
    /// The death of a block that was never taken back.
    pub const ALIVE: u32 = u32::MAX;

    /// Whether it is alive just after this row.
    pub const fn alive_at(&self, row: u32) -> bool {
        self.born <= row && row < self.died
    }
}

/// Memory that the allocator holds from the driver: a segment, or a mapped part of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// The row that obtained it; 0 if it was there before the first row.
    pub born: u32,
    /// The row that gave it back; [`Holding::ALIVE`] if none did.
    pub died: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The stream it belongs to.
    pub stream: u64,
}

/// A phase, from one row to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseSpan {
    /// Which.
    pub phase: Phase,
    /// Its first row.
    pub from: u32,
    /// The row after its last.
    pub to: u32,
    /// The step it belongs to, from 0.
    pub step: u32,
}
