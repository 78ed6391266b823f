// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of a graph: operators, values, initializers, and the bodies of `If`, `Loop` and `Scan`.
//!
//! Memory follows the names in the file, of which there are at most a million; messages inside of messages are
//! followed to a fixed depth.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use super::error::OnnxError;
use super::tensor::{Dimension, Size, Tensor, bits};
use super::wire::{Value, Wire};
use crate::plan::problems::GraphFacts;

/// Names of tensors; no graph has as many.
const MAX_TENSORS: usize = 1 << 20;
/// Graphs inside of graphs.
const MAX_DEPTH: u32 = 16;
/// Dimensions of a tensor.
const MAX_DIMENSIONS: usize = 64;

/// A model as far as it is read.
struct Model<'a, R> {
    wire: Wire<R>,
    dims: &'a [(String, u64)],
    tensors: Vec<Tensor>,
    numbers: HashMap<String, usize>,
    facts: GraphFacts,
}

/// Reads the graph of a model: its tensors, and what there is beside them.
pub(super) fn read<R: Read>(
    source: R,
    dims: &[(String, u64)],
) -> Result<(Vec<Tensor>, GraphFacts), OnnxError> {
    let mut model = Model {
        wire: Wire::new(source),
        dims,
        tensors: Vec::new(),
        numbers: HashMap::new(),
        facts: GraphFacts::default(),
    };
    let mut has_graph = false;
    while let Some((number, value)) = model.wire.field(u64::MAX)? {
        match (number, value) {
            (7, Value::Inner(end)) => {
                has_graph = true;
                model.graph(end)?;
            }
            (_, value) => model.wire.pass(value)?,
        }
    }
    if has_graph {
        Ok((model.tensors, model.facts))
    } else {
        Err(OnnxError::NoGraph)
    }
}

impl<R: Read> Model<'_, R> {
    /// The number of a tensor; a new one if it is not known yet.
    fn number(&mut self, name: String) -> Result<usize, OnnxError> {
        if let Some(number) = self.numbers.get(&name) {
            return Ok(*number);
        }
        few(self.tensors.len())?;
        let number = self.tensors.len();
        self.tensors.push(Tensor {
            name: name.clone(),
            ..Tensor::default()
        });
        self.numbers.insert(name, number);
        Ok(number)
    }

    fn tensor(&mut self, name: String) -> Result<&mut Tensor, OnnxError> {
        let number = self.number(name)?;
        Ok(&mut self.tensors[number])
    }

    fn graph(&mut self, end: u64) -> Result<(), OnnxError> {
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Inner(end)) => self.operator(end)?,
                (5, Value::Inner(end)) => self.initializer(end)?,
                (15, Value::Inner(end)) => self.sparse(end)?,
                (11..=13, Value::Inner(end)) => {
                    let (name, size) = self.value(end)?;
                    if name.is_empty() {
                        continue;
                    }
                    let tensor = self.tensor(name)?;
                    tensor.is_input |= number == 11;
                    tensor.is_output |= number == 12;
                    if tensor.size.bytes().is_none() {
                        tensor.size = size;
                    }
                }
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok(())
    }

    fn operator(&mut self, end: u64) -> Result<(), OnnxError> {
        let operator = self.facts.operators;
        self.facts.operators += 1;
        // The outputs come before the kind of the operator, so they are remembered.
        let (mut made, mut kind, mut domain) = (Vec::new(), String::new(), String::new());
        let (mut free, mut has_output) = (Vec::new(), false);
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Inner(end)) => {
                    let name = self.wire.text(end)?;
                    self.reads(name, operator)?;
                }
                (2, Value::Inner(end)) => {
                    let name = self.wire.text(end)?;
                    // An output that is not wanted has no name.
                    let further = std::mem::replace(&mut has_output, true);
                    if !name.is_empty() {
                        let number = self.number(name)?;
                        let tensor = &mut self.tensors[number];
                        if tensor.made_by.replace(operator).is_some() {
                            let tensor = tensor.name.clone();
                            return Err(OnnxError::Twice { operator, tensor });
                        }
                        tensor.is_further = further;
                        made.push(number);
                    }
                }
                (4, Value::Inner(end)) => kind = self.wire.text(end)?,
                (7, Value::Inner(end)) => domain = self.wire.text(end)?,
                (5, Value::Inner(end)) => self.attribute(end, 0, &mut free)?,
                (_, value) => self.wire.pass(value)?,
            }
        }
        for name in free {
            self.reads(name, operator)?;
        }
        if kind == "Constant" && (domain.is_empty() || domain == "ai.onnx") {
            for number in made {
                self.tensors[number].is_constant = true;
            }
        }
        Ok(())
    }

    fn reads(&mut self, name: String, operator: u64) -> Result<(), OnnxError> {
        if name.is_empty() {
            return Ok(());
        }
        let tensor = self.tensor(name)?;
        let first = tensor.read_by.map_or(operator, |(first, _)| first);
        tensor.read_by = Some((first, operator));
        Ok(())
    }

    /// An attribute may be a graph; `free` takes what that reads from the one around it.
    fn attribute(&mut self, end: u64, depth: u32, free: &mut Vec<String>) -> Result<(), OnnxError> {
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (6 | 11, Value::Inner(end)) => {
                    if depth >= MAX_DEPTH {
                        return Err(OnnxError::TooMuch {
                            what: "graphs inside of each other",
                            most: MAX_DEPTH.into(),
                        });
                    }
                    let body = self.body(end, depth + 1)?;
                    self.facts.inner += body.made.len() as u64;
                    // A name of the body itself hides the same name around it.
                    let own = |name: &String| body.made.contains(name) || body.own.contains(name);
                    free.extend(body.read.into_iter().filter(|name| !own(name)));
                    few(free.len())?;
                }
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok(())
    }

    fn body(&mut self, end: u64, depth: u32) -> Result<Body, OnnxError> {
        let mut body = Body::default();
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Inner(end)) => {
                    while let Some((number, value)) = self.wire.field(end)? {
                        match (number, value) {
                            (1, Value::Inner(end)) => {
                                let name = self.wire.text(end)?;
                                body.read.push(name);
                            }
                            (2, Value::Inner(end)) => {
                                let name = self.wire.text(end)?;
                                body.made.insert(name);
                            }
                            (5, Value::Inner(end)) => {
                                self.attribute(end, depth, &mut body.read)?;
                            }
                            (_, value) => self.wire.pass(value)?,
                        }
                    }
                }
                (5, Value::Inner(end)) => {
                    let (name, _) = self.constant(end)?;
                    body.own.insert(name);
                }
                (11, Value::Inner(end)) => {
                    let (name, _) = self.value(end)?;
                    body.own.insert(name);
                }
                // An output of a body may be a tensor of the graph around it.
                (12, Value::Inner(end)) => {
                    let (name, _) = self.value(end)?;
                    body.read.push(name);
                }
                (_, value) => self.wire.pass(value)?,
            }
            few(body.read.len() + body.made.len() + body.own.len())?;
        }
        Ok(body)
    }

    fn initializer(&mut self, end: u64) -> Result<(), OnnxError> {
        let (name, size) = self.constant(end)?;
        self.facts.initializers += 1;
        let sum = &mut self.facts.initializer_bytes;
        *sum = sum.saturating_add(size.bytes().unwrap_or(0));
        if !name.is_empty() {
            self.tensor(name)?.is_initializer = true;
        }
        Ok(())
    }

    fn sparse(&mut self, end: u64) -> Result<(), OnnxError> {
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Inner(end)) => self.initializer(end)?,
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok(())
    }

    /// A tensor with its contents: its name and its size.
    fn constant(&mut self, end: u64) -> Result<(String, Size), OnnxError> {
        let (mut name, mut kind, mut dimensions) = (String::new(), 0, Vec::new());
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Number(length)) => self.dimension(&mut dimensions, length)?,
                (1, Value::Inner(end)) => {
                    while self.wire.at < end {
                        let length = self.wire.varint(end)?;
                        self.dimension(&mut dimensions, length)?;
                    }
                }
                (2, Value::Number(number)) => kind = number,
                (8, Value::Inner(end)) => name = self.wire.text(end)?,
                (_, value) => self.wire.pass(value)?,
            }
        }
        let size = bits(kind).map_or_else(Size::Type, |bits| Size::from_shape(bits, &dimensions));
        Ok((name, size))
    }

    fn dimension(&self, dimensions: &mut Vec<Dimension>, length: u64) -> Result<(), OnnxError> {
        self.room(dimensions)?;
        dimensions.push(Dimension::Value(length));
        Ok(())
    }

    fn room(&self, dimensions: &[Dimension]) -> Result<(), OnnxError> {
        if dimensions.len() >= MAX_DIMENSIONS {
            return Err(self.wire.damaged("a tensor has more than 64 dimensions"));
        }
        Ok(())
    }

    /// A name with a type: an input, an output, or what shape inference found.
    fn value(&mut self, end: u64) -> Result<(String, Size), OnnxError> {
        let (mut name, mut size) = (String::new(), Size::NoShape);
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Inner(end)) => name = self.wire.text(end)?,
                (2, Value::Inner(end)) => size = self.kind(end)?,
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok((name, size))
    }

    fn kind(&mut self, end: u64) -> Result<Size, OnnxError> {
        let mut size = Size::NoShape;
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Inner(end)) => size = self.shaped(end)?,
                (_, Value::Inner(end)) => {
                    match number {
                        4 => size = Size::Type("a sequence"),
                        5 => size = Size::Type("a map"),
                        7 => size = Size::Type("opaque"),
                        8 => size = Size::Type("a sparse tensor"),
                        9 => size = Size::Type("optional"),
                        _ => {}
                    }
                    self.wire.skip(end)?;
                }
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok(size)
    }

    /// The type of an element, and the shape if there is one.
    fn shaped(&mut self, end: u64) -> Result<Size, OnnxError> {
        let (mut kind, mut dimensions) = (0, None);
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Number(number)) => kind = number,
                (2, Value::Inner(end)) => {
                    let mut shape = Vec::new();
                    while let Some((number, value)) = self.wire.field(end)? {
                        match (number, value) {
                            (1, Value::Inner(end)) => {
                                self.room(&shape)?;
                                let dimension = self.length(end)?;
                                shape.push(dimension);
                            }
                            (_, value) => self.wire.pass(value)?,
                        }
                    }
                    dimensions = Some(shape);
                }
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok(match (bits(kind), dimensions) {
            (Err(what), _) => Size::Type(what),
            (Ok(_), None) => Size::NoShape,
            (Ok(bits), Some(dimensions)) => Size::from_shape(bits, &dimensions),
        })
    }

    fn length(&mut self, end: u64) -> Result<Dimension, OnnxError> {
        let mut dimension = Dimension::None;
        while let Some((number, value)) = self.wire.field(end)? {
            match (number, value) {
                (1, Value::Number(length)) => dimension = Dimension::Value(length),
                (2, Value::Inner(end)) => {
                    let name = self.wire.text(end)?;
                    let given = self.dims.iter().rfind(|(one, _)| *one == name);
                    dimension = match given {
                        Some((_, length)) => Dimension::Value(*length),
                        None if name.is_empty() => Dimension::None,
                        None => Dimension::Name(name),
                    };
                }
                (_, value) => self.wire.pass(value)?,
            }
        }
        Ok(dimension)
    }
}

/// The values that a body reads, makes, and owns.
#[derive(Default)]
struct Body {
    read: Vec<String>,
    made: HashSet<String>,
    own: HashSet<String>,
}

fn few(names: usize) -> Result<(), OnnxError> {
    if names < MAX_TENSORS {
        return Ok(());
    }
    Err(OnnxError::TooMuch {
        what: "names of tensors",
        most: MAX_TENSORS as u64,
    })
}
