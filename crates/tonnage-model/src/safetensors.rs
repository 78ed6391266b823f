// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the header of a safetensors file: the name, type, and shape of each tensor, without the tensors.
//!
//! The header is hostile input. Its length is bounded, and sums saturate.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Serialize;
use serde_json::Value;

/// The longest header that is read.
pub(crate) const LONGEST_HEADER: u64 = 32 << 20;

/// Why a header cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The file could not be read, or ends too early.
    #[error("the file cannot be read")]
    Io(#[from] std::io::Error),
    /// The header is longer than any real one.
    #[error("its header has {0} bytes, and at most {LONGEST_HEADER} are read")]
    TooLong(u64),
    /// The header is damaged.
    #[error("its header is damaged: {0}")]
    Damaged(&'static str),
}

/// Sums of the tensors of a model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stored {
    /// Files that were read.
    pub files: u64,
    /// Their tensors.
    pub tensors: u64,
    /// Elements of these, without buffers that are not parameters.
    pub elements: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Elements of each type, by the name that the format has for it.
    pub elements_by_type: BTreeMap<String, u64>,
}

impl Stored {
    /// Adds the tensors of another file.
    pub fn add(&mut self, other: &Self) {
        self.files = self.files.saturating_add(other.files);
        self.tensors = self.tensors.saturating_add(other.tensors);
        self.elements = self.elements.saturating_add(other.elements);
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (name, elements) in &other.elements_by_type {
            let sum = self.elements_by_type.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*elements);
        }
    }

    /// The type of most elements.
    pub fn usual_type(&self) -> Option<&str> {
        let most = self
            .elements_by_type
            .iter()
            .max_by_key(|(_, elements)| **elements);
        most.map(|(name, _)| name.as_str())
    }

    /// Whether types other than floating-point numbers of 16 or 32 bits are stored: the weights are quantized.
    pub fn is_quantized(&self) -> bool {
        let plain =
            |name: &String| matches!(&**name, "F64" | "F32" | "F16" | "BF16" | "BOOL" | "I64");
        !self.elements_by_type.keys().all(plain)
    }
}

/// The length of the header that the first eight bytes name.
pub(crate) fn header_length(first: [u8; 8]) -> Result<u64, HeaderError> {
    let length = u64::from_le_bytes(first);
    if length > LONGEST_HEADER {
        return Err(HeaderError::TooLong(length));
    }
    Ok(length)
}

/// Reads the header from the start of a file.
pub fn read_header(mut file: impl Read) -> Result<Stored, HeaderError> {
    let mut first = [0; 8];
    file.read_exact(&mut first)?;
    let length = header_length(first)?;
    // Grows with what is there: a short file with a long header costs nothing.
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header)?;
    if header.len() as u64 != length {
        return Err(HeaderError::Damaged(
            "it is shorter than its first bytes state",
        ));
    }
    sum_tensors(&header)
}

fn sum_tensors(header: &[u8]) -> Result<Stored, HeaderError> {
    let values: Value =
        serde_json::from_slice(header).map_err(|_| HeaderError::Damaged("it is not JSON"))?;
    let tensors = values
        .as_object()
        .ok_or(HeaderError::Damaged("it is not a JSON object"))?;
    let mut stored = Stored {
        files: 1,
        ..Stored::default()
    };
    for (name, tensor) in tensors {
        if name == "__metadata__" {
            continue;
        }
        let kind = tensor.get("dtype").and_then(Value::as_str);
        let shape = tensor.get("shape").and_then(Value::as_array);
        let offsets = tensor.get("data_offsets").and_then(Value::as_array);
        let (Some(kind), Some(shape), Some(offsets)) = (kind, shape, offsets) else {
            return Err(HeaderError::Damaged(
                "a tensor has no type, shape, or place",
            ));
        };
        let offset = |index: usize| offsets.get(index).and_then(Value::as_u64);
        let (Some(start), Some(end)) = (offset(0), offset(1)) else {
            return Err(HeaderError::Damaged("the place of a tensor is not a range"));
        };
        let elements = shape
            .iter()
            .map(Value::as_u64)
            .try_fold(1_u64, |product, size| Some(product.saturating_mul(size?)));
        let elements = elements.ok_or(HeaderError::Damaged("a shape has no numbers"))?;
        stored.tensors += 1;
        stored.bytes = stored.bytes.saturating_add(end.saturating_sub(start));
        let sum = stored
            .elements_by_type
            .entry(kind.chars().take(16).collect())
            .or_default();
        *sum = sum.saturating_add(elements);
        if !is_buffer(name) {
            stored.elements = stored.elements.saturating_add(elements);
        }
    }
    Ok(stored)
}

/// Whether the tensor is a buffer that older files have: a mask, positions, or frequencies.
fn is_buffer(name: &str) -> bool {
    let ends = [
        "attn.bias",
        "attn.masked_bias",
        "attention.bias",
        "attention.masked_bias",
        "rotary_emb.inv_freq",
        "position_ids",
        "e_score_correction_bias",
    ];
    ends.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes
    }

    #[test]
    fn tensors_are_summed_and_buffers_left_out() {
        let header = r#"{"__metadata__": {"format": "pt"},
            "h.0.attn.bias": {"dtype": "F32", "shape": [1, 1, 2, 2], "data_offsets": [0, 16]},
            "w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [16, 46]},
            "s": {"dtype": "BF16", "shape": [], "data_offsets": [46, 48]}}"#;
        let stored = read_header(&file(header)[..]).unwrap();
        assert_eq!((stored.tensors, stored.elements, stored.bytes), (3, 16, 48));
        assert_eq!(stored.usual_type(), Some("BF16"));
        assert!(!stored.is_quantized());
    }

    #[test]
    fn hostile_headers_are_errors() {
        let long = u64::MAX.to_le_bytes();
        assert!(matches!(
            read_header(&long[..]),
            Err(HeaderError::TooLong(_))
        ));
        for bytes in [
            &b"1234567"[..],
            &file("{}")[..9],
            &file("[]"),
            &file("{"),
            &file(r#"{"w": 1}"#),
            &file(r#"{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 1]}}"#),
            &file(r#"{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}"#),
        ] {
            assert!(read_header(bytes).is_err());
        }
        let huge =
            r#"{"w": {"dtype": "F32", "shape": [9999999999, 9999999999], "data_offsets": [9, 1]}}"#;
        assert_eq!(read_header(&file(huge)[..]).unwrap().elements, u64::MAX);
    }
}
