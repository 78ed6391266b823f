// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a model cannot be planned, and what to do about it.

use std::io;

use thiserror::Error;

/// Why a model cannot be planned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The file could not be read.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// The bytes are not a protobuf message.
    #[error("it is not an ONNX model, or damaged at byte {at}: {reason}")]
    Damaged {
        /// Where.
        at: u64,
        /// The problem.
        reason: &'static str,
    },
    /// There is no graph.
    #[error("it has no graph")]
    NoGraph,
    /// There is more than any model has.
    #[error("it has more than {most} {what}")]
    TooMuch {
        /// The offending item.
        what: &'static str,
        /// How many are read.
        most: u64,
    },
    /// An operator reads what nothing before it made.
    #[error("operator {operator} reads `{tensor}`, which nothing before it makes")]
    Order {
        /// Counted from 0.
        operator: u64,
        /// The tensor.
        tensor: String,
    },
    /// Two operators make the same tensor.
    #[error("`{tensor}` is made twice, the second time by operator {operator}")]
    Twice {
        /// Counted from 0.
        operator: u64,
        /// The tensor.
        tensor: String,
    },
    /// The model lacks the shape of a tensor.
    #[error("the shape of `{tensor}` is not known")]
    NoShape {
        /// The tensor.
        tensor: String,
    },
    /// A dimension has neither a value nor a name.
    #[error("dimension {index} of `{tensor}` is not known")]
    NoDimension {
        /// The tensor.
        tensor: String,
        /// Counted from 0.
        index: usize,
    },
    /// A dimension has a name only.
    #[error("dimension {index} of `{tensor}` is `{dimension}`, which has no value")]
    Symbolic {
        /// The tensor.
        tensor: String,
        /// Counted from 0.
        index: usize,
        /// Its name.
        dimension: String,
    },
    /// Bytes cannot be determined from the type.
    #[error("`{tensor}` is {what}, whose bytes are not known")]
    Type {
        /// The tensor.
        tensor: String,
        /// The type that it is instead.
        what: &'static str,
    },
    /// Its bytes are more than any memory has.
    #[error("`{tensor}` is larger than any memory")]
    TooLarge {
        /// The tensor.
        tensor: String,
    },
}

impl OnnxError {
    /// The fix.
    pub fn hint(&self) -> String {
        match self {
            Self::Io(_) => "check the file".to_owned(),
            Self::Damaged { .. } | Self::NoGraph | Self::TooMuch { .. } => {
                "check it with onnx.checker, or export it again".to_owned()
            }
            Self::Order { .. } | Self::Twice { .. } => {
                "operators must be sorted and each tensor made once; onnx.checker has details"
                    .to_owned()
            }
            Self::NoShape { .. } | Self::NoDimension { .. } => {
                "write the model anew with onnx.shape_inference.infer_shapes, with fixed shapes of its inputs"
                    .to_owned()
            }
            Self::Symbolic { dimension, .. } => format!("use --dim {dimension}=8, or whatever its value is"),
            Self::Type { .. } => "only tensors of numbers can be planned".to_owned(),
            Self::TooLarge { .. } => "check its shape, and the values of --dim".to_owned(),
        }
    }
}
