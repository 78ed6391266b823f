// SPDX-License-Identifier: MIT OR Apache-2.0
//! ONNX models as planning problems: what the intermediate tensors of a graph take.
//!
//! The rule, which the result repeats in numbers: operators run in the order of the graph, one moment each. A tensor
//! lives from the operator that makes it up to and with the last one that reads it, an output of the graph to the
//! end, and each has memory of its own: nothing is computed in place. Inputs of the graph, initializers and the outputs
//! of `Constant` operators belong to the caller and are counted, not planned. Bodies of `If`, `Loop` and `Scan` read
//! from the graph around them, which keeps what they read alive; what they make themselves is counted, not planned. So
//! are further outputs of an operator that nothing reads and whose shape nobody inferred, such as the mask of a dropout.
//!
//! Only the few fields of the protobuf messages that say this are read, by hand and from a stream: weights are passed
//! over and never held. Shapes must be known: a dimension with a name can be given, for others the error says which.
//! Memory follows the names in the file, of which there are at most a million; messages inside of messages are
//! followed to a fixed depth.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read};

use serde::Serialize;
use thiserror::Error;
use tonnage_plan::{Buffer, Problem};
use tonnage_trace::StackTable;

use super::{Name, Problems, Wanted};

/// Bytes of a name; longer ones are refused.
const MAX_NAME: u64 = 1 << 12;
/// Names of tensors; no graph has as many.
const MAX_TENSORS: usize = 1 << 20;
/// Graphs inside of graphs.
const MAX_DEPTH: u32 = 16;
/// Dimensions of a tensor.
const MAX_DIMENSIONS: usize = 64;

/// What of a graph is not planned, and how much there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphFacts {
    /// Operators.
    pub operators: u64,
    /// Inputs of the graph that are no initializers.
    pub inputs: u64,
    /// Their bytes, of those with a known shape.
    pub input_bytes: u64,
    /// Initializers.
    pub initializers: u64,
    /// Their bytes.
    pub initializer_bytes: u64,
    /// Outputs of `Constant` operators.
    pub constants: u64,
    /// Tensors that bodies of `If`, `Loop` and `Scan` make.
    pub inner: u64,
    /// Further outputs of operators that nothing reads and whose shape is not known.
    pub unread: u64,
}

/// Why a model cannot be planned.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The file could not be read.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// The bytes are no protobuf message.
    #[error("it is no ONNX model, or damaged at byte {at}: {reason}")]
    Damaged {
        /// Where.
        at: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// There is no graph.
    #[error("it has no graph")]
    NoGraph,
    /// There is more than any model has.
    #[error("it has more than {most} {what}")]
    TooMuch {
        /// Of what.
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
    /// The model does not say the shape of a tensor.
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
    /// Bytes cannot be told from the type.
    #[error("`{tensor}` is {what}, whose bytes are not known")]
    Type {
        /// The tensor.
        tensor: String,
        /// What it is instead.
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
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Io(_) => "check the file".to_owned(),
            Self::Damaged { .. } | Self::NoGraph | Self::TooMuch { .. } => {
                "check it with onnx.checker, or export it again".to_owned()
            }
            Self::Order { .. } | Self::Twice { .. } => {
                "operators must be sorted and each tensor made once; onnx.checker says more"
                    .to_owned()
            }
            Self::NoShape { .. } | Self::NoDimension { .. } => {
                "write the model anew with onnx.shape_inference.infer_shapes, with fixed shapes of its inputs"
                    .to_owned()
            }
            Self::Symbolic { dimension, .. } => format!("say --dim {dimension}=8, or what it is"),
            Self::Type { .. } => "only tensors of numbers can be planned".to_owned(),
            Self::TooLarge { .. } => "check its shape, and the values of --dim".to_owned(),
        }
    }
}

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
    let mut model = Model {
        wire: Wire {
            source: BufReader::new(source),
            at: 0,
        },
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
    if !has_graph {
        return Err(OnnxError::NoGraph);
    }
    model.finish(wanted)
}

/// A field of a message; the bytes of an inner message are still to be read.
#[derive(Clone, Copy)]
enum Value {
    Number(u64),
    /// Where it ends.
    Inner(u64),
    /// Passed over already.
    Fixed,
}

/// The bytes of messages, one after the other.
struct Wire<R> {
    source: BufReader<R>,
    at: u64,
}

impl<R: Read> Wire<R> {
    fn damaged(&self, reason: &'static str) -> OnnxError {
        OnnxError::Damaged {
            at: self.at,
            reason,
        }
    }

    fn byte(&mut self) -> Result<Option<u8>, OnnxError> {
        let first = self.source.fill_buf()?.first().copied();
        if first.is_some() {
            self.source.consume(1);
            self.at += 1;
        }
        Ok(first)
    }

    fn varint(&mut self, end: u64) -> Result<u64, OnnxError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            if self.at >= end {
                return Err(self.damaged("a number reaches beyond its message"));
            }
            let Some(byte) = self.byte()? else {
                return Err(self.damaged("it ends within a number"));
            };
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged("a number has more than 64 bits"))
    }

    /// The next field of the message that ends there; `None` at its end.
    fn field(&mut self, end: u64) -> Result<Option<(u64, Value)>, OnnxError> {
        if self.at >= end || end == u64::MAX && self.source.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let tag = self.varint(end)?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint(end)?),
            2 => {
                let length = self.varint(end)?;
                match self.at.checked_add(length) {
                    Some(inner) if inner <= end && inner < u64::MAX => Value::Inner(inner),
                    _ => return Err(self.damaged("a field reaches beyond its message")),
                }
            }
            kind @ (1 | 5) => {
                let length = if kind == 1 { 8 } else { 4 };
                if end - self.at < length {
                    return Err(self.damaged("a field reaches beyond its message"));
                }
                self.skip(self.at + length)?;
                Value::Fixed
            }
            _ => return Err(self.damaged("a field has an unknown kind")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn skip(&mut self, end: u64) -> Result<(), OnnxError> {
        let length = end.saturating_sub(self.at);
        let passed = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
        self.at += passed;
        if passed < length {
            return Err(self.damaged("it ends within a field"));
        }
        Ok(())
    }

    /// Passes over a field that nobody asks for.
    fn pass(&mut self, value: Value) -> Result<(), OnnxError> {
        match value {
            Value::Inner(end) => self.skip(end),
            Value::Number(_) | Value::Fixed => Ok(()),
        }
    }

    fn text(&mut self, end: u64) -> Result<String, OnnxError> {
        let length = end.saturating_sub(self.at);
        if length > MAX_NAME {
            return Err(self.damaged("a name is longer than 4 KiB"));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        self.source.by_ref().take(length).read_to_end(&mut bytes)?;
        self.at += bytes.len() as u64;
        if (bytes.len() as u64) < length {
            return Err(self.damaged("it ends within a name"));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What is known about the bytes of a tensor.
#[derive(Clone, Debug, Default)]
enum Size {
    #[default]
    NoShape,
    Bytes(u64),
    NoDimension(usize),
    Symbolic(usize, String),
    Type(&'static str),
    TooLarge,
}

impl Size {
    fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(*bytes),
            _ => None,
        }
    }

    fn of(bits: u64, dimensions: &[Dimension]) -> Self {
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

enum Dimension {
    Value(u64),
    Name(String),
    None,
}

/// Bits of an element, by the number of its type.
const fn bits(kind: u64) -> Result<u64, &'static str> {
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

/// What a tensor is to the graph.
#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is said by another field of the graph"
)]
struct Tensor {
    name: String,
    made_by: Option<u64>,
    /// The first operator that reads it, and the last.
    read_by: Option<(u64, u64)>,
    is_output: bool,
    is_input: bool,
    is_initializer: bool,
    is_constant: bool,
    /// Not the first output of its operator.
    is_further: bool,
    size: Size,
}

struct Model<'a, R> {
    wire: Wire<R>,
    dims: &'a [(String, u64)],
    tensors: Vec<Tensor>,
    numbers: HashMap<String, usize>,
    facts: GraphFacts,
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
                    // What the body has itself hides what is around it.
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
        let size = bits(kind).map_or_else(Size::Type, |bits| Size::of(bits, &dimensions));
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
            (Ok(bits), Some(dimensions)) => Size::of(bits, &dimensions),
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

    /// The problem: everything that operators make.
    fn finish(mut self, wanted: &Wanted) -> Result<Problems, OnnxError> {
        let mut texts = StackTable::new();
        let mut problem = wanted.capacity.map_or_else(Problem::new, Problem::fitting);
        let mut names = Vec::new();
        let end = self.facts.operators;
        let alignment = wanted.alignment.unwrap_or(1);
        for tensor in &self.tensors {
            let given = tensor.is_input || tensor.is_initializer;
            if tensor.is_input && !tensor.is_initializer {
                self.facts.inputs += 1;
                let sum = &mut self.facts.input_bytes;
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
                self.facts.constants += 1;
                continue;
            }
            let is_read = tensor.is_output || tensor.read_by.is_some();
            if tensor.is_further && !is_read && tensor.size.bytes().is_none() {
                self.facts.unread += 1;
                continue;
            }
            let size = match &tensor.size {
                Size::Bytes(bytes) => *bytes,
                Size::NoShape => return Err(OnnxError::NoShape { tensor: name() }),
                Size::NoDimension(index) => {
                    let (tensor, index) = (name(), *index);
                    return Err(OnnxError::NoDimension { tensor, index });
                }
                Size::Symbolic(index, dimension) => {
                    return Err(OnnxError::Symbolic {
                        tensor: name(),
                        index: *index,
                        dimension: dimension.clone(),
                    });
                }
                Size::Type(what) => {
                    let (tensor, what) = (name(), *what);
                    return Err(OnnxError::Type { tensor, what });
                }
                Size::TooLarge => return Err(OnnxError::TooLarge { tensor: name() }),
            };
            let last = tensor.read_by.map_or(made_by, |(_, last)| last);
            let until = if tensor.is_output { end } else { last + 1 };
            let life = made_by.cast_signed()..until.cast_signed();
            problem.add(Buffer::new(size, life).aligned(alignment));
            names.push(Name::Text(texts.intern(&tensor.name)));
        }
        Ok(Problems {
            graph: Some(self.facts),
            ..Problems::alone(problem, names, texts)
        })
    }
}

/// What a body reads, makes, and has of its own.
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
