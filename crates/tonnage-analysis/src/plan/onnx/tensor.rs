// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tensors of a graph: what they are to it, and how many bytes they take.

/// The bytes of a tensor, as far as they are certain.
#[derive(Clone, Debug, Default)]
pub(super) enum Size {
    #[default]
    NoShape,
    Bytes(u64),
    NoDimension(usize),
    Symbolic(usize, String),
    Type(&'static str),
    TooLarge,
}

impl Size {
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(*bytes),
            _ => None,
        }
    }

    pub(super) fn from_shape(bits: u64, dimensions: &[Dimension]) -> Self {
        let mut elements = 1_u64;
        for (index, dimension) in dimensions.iter().enumerate() {
            let length = match dimension {
                Dimension::Value(length) => *length,
                Dimension::Name(name) => return Self::Symbolic(index, name.clone()),
                Dimension::None => return Self::NoDimension(index),
            };
            // A negative length is a huge one here.
            match elements.checked_mul(length) {
                Some(product) => elements = product,
                None => return Self::TooLarge,
            }
        }
        elements
            .checked_mul(bits)
            .map_or(Self::TooLarge, |bits| Self::Bytes(bits.div_ceil(8)))
    }
}

/// One length of a shape.
pub(super) enum Dimension {
    Value(u64),
    Name(String),
    None,
}

/// Bits of an element, by the number of its type.
pub(super) const fn bits(kind: u64) -> Result<u64, &'static str> {
    match kind {
        1 | 6 | 12 => Ok(32),
        2 | 3 | 9 | 17..=20 | 24 => Ok(8),
        4 | 5 | 10 | 16 => Ok(16),
        7 | 11 | 13 | 14 => Ok(64),
        15 => Ok(128),
        21..=23 => Ok(4),
        25 | 26 => Ok(2),
        27 | 28 => Ok(6),
        8 => Err("a tensor of texts"),
        _ => Err("of an unknown type"),
    }
}

/// The role of a tensor in the graph.
#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is in another field of the graph"
)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) made_by: Option<u64>,
    /// The first operator that reads it, and the last.
    pub(super) read_by: Option<(u64, u64)>,
    pub(super) is_output: bool,
    pub(super) is_input: bool,
    pub(super) is_initializer: bool,
    pub(super) is_constant: bool,
    /// Not the first output of its operator.
    pub(super) is_further: bool,
    pub(super) size: Size,
}
