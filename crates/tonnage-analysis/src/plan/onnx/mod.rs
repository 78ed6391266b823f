// SPDX-License-Identifier: MIT OR Apache-2.0
//! ONNX models as planning problems: what the intermediate tensors of a graph take.
//!
//! The rule, which the result repeats in numbers: operators run in the order of the graph, one moment each. A tensor
//! lives from the operator that makes it up to and with the last one that reads it, an output of the graph to the
//! end, and each has its own memory: nothing is computed in place. Inputs of the graph, initializers and the outputs
//! of `Constant` operators belong to the caller and are counted, not planned. Bodies of `If`, `Loop` and `Scan` read
//! from the graph around them, which keeps what they read alive; what they make themselves is counted, not planned. So
//! are further outputs of an operator that nothing reads and whose shape was not inferred, such as the mask of a
//! dropout.
//!
//! Only the few relevant fields of the protobuf messages are read, by hand and from a stream: weights are passed
//! over and never held. Shapes must be known: a dimension with a name can be given, for others the error names the
//! dimension.
//!
//! * `wire` reads protobuf;
//! * `graph` reads the messages of a model;
//! * `tensor` is their description of a tensor.

mod error;
mod graph;
mod tensor;
mod wire;

use std::io::Read;

use tonnage_plan::{Buffer, Problem};
use tonnage_recording::StackTable;

use self::tensor::{Size, Tensor};
use super::problems::{GraphFacts, Name, Problems, Wanted};

pub use self::error::OnnxError;

/// Whether a file may be a model, by how it begins: the version of the format comes first, then another known field.
pub fn looks_like(first: &[u8]) -> bool {
    let fields = [0x12, 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42];
    matches!(first, [0x08, 1..=0x7f, next, ..] if fields.contains(next))
}

/// Reads the graph of a model; `dims` are values of dimensions that the model has names for.
pub fn problem<R: Read>(
    source: R,
    wanted: &Wanted,
    dims: &[(String, u64)],
) -> Result<Problems, OnnxError> {
    let (tensors, facts) = graph::read(source, dims)?;
    lifetimes(&tensors, facts, wanted)
}

/// The problem: everything that operators make.
fn lifetimes(
    tensors: &[Tensor],
    mut facts: GraphFacts,
    wanted: &Wanted,
) -> Result<Problems, OnnxError> {
    let mut texts = StackTable::new();
    let mut problem = wanted.capacity.map_or_else(Problem::new, Problem::fitting);
    let mut names = Vec::new();
    let end = facts.operators;
    let alignment = wanted.alignment.unwrap_or(1);
    for tensor in tensors {
        let given = tensor.is_input || tensor.is_initializer;
        if tensor.is_input && !tensor.is_initializer {
            facts.inputs += 1;
            let sum = &mut facts.input_bytes;
            *sum = sum.saturating_add(tensor.size.bytes().unwrap_or(0));
        }
        let name = || tensor.name.clone();
        let late = tensor
            .read_by
            .filter(|(first, _)| tensor.made_by.is_none_or(|made_by| made_by >= *first));
        if let Some((operator, _)) = late.filter(|_| !given) {
            let tensor = name();
            return Err(OnnxError::Order { operator, tensor });
        }
        let Some(made_by) = tensor.made_by else {
            continue;
        };
        if given {
            let (operator, tensor) = (made_by, name());
            return Err(OnnxError::Twice { operator, tensor });
        }
        if tensor.is_constant {
            facts.constants += 1;
            continue;
        }
        let is_read = tensor.is_output || tensor.read_by.is_some();
        if tensor.is_further && !is_read && tensor.size.bytes().is_none() {
            facts.unread += 1;
            continue;
        }
        let size = bytes(tensor)?;
        let last = tensor.read_by.map_or(made_by, |(_, last)| last);
        let until = if tensor.is_output { end } else { last + 1 };
        let lifetime = made_by.cast_signed()..until.cast_signed();
        problem.add(Buffer::new(size, lifetime).aligned(alignment));
        names.push(Name::Text(texts.intern(&tensor.name)));
    }
    Ok(Problems {
        graph: Some(facts),
        ..Problems::alone(problem, names, texts)
    })
}

/// The bytes of a tensor, or why they are not known.
fn bytes(tensor: &Tensor) -> Result<u64, OnnxError> {
    let name = || tensor.name.clone();
    match &tensor.size {
        Size::Bytes(bytes) => Ok(*bytes),
        Size::NoShape => Err(OnnxError::NoShape { tensor: name() }),
        Size::NoDimension(index) => Err(OnnxError::NoDimension {
            tensor: name(),
            index: *index,
        }),
        Size::Symbolic(index, dimension) => Err(OnnxError::Symbolic {
            tensor: name(),
            index: *index,
            dimension: dimension.clone(),
        }),
        Size::Type(what) => Err(OnnxError::Type {
            tensor: name(),
            what,
        }),
        Size::TooLarge => Err(OnnxError::TooLarge { tensor: name() }),
    }
}
