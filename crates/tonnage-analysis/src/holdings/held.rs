// SPDX-License-Identifier: MIT OR Apache-2.0
//! The holder of a block, as Python itself reported it when queried.
//!
//! A census is a moment at which every live block was looked for among Python's
//! objects. Its rows name a holder: `name` is the variable or container as a user
//! would type it, with the function in round brackets where it is a local one;
//! `text` is the sort of holder and, after a space, the line to look at. After
//! that, each behind a tab, may stand the operation whose graph keeps the block (`-` if no graph saved it),
//! the type and shape of the tensor, and the hooks of a module that lead to it.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::Serialize;
use tonnage_recording::{StackTable, TextId};

use super::{Holdings, Place};

/// Stands for the operation where graphs were searched and none had saved the block.
const UNSAVED: &str = "-";

/// The sort of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// A variable refers to the tensor.
    Variable,
    /// A list does.
    List,
    /// A dictionary does.
    Dict,
    /// A tuple does.
    Tuple,
    /// A set does.
    Set,
    /// An attribute of an object does.
    Attribute,
    /// A function that remembers it.
    Closure,
    /// Only an autograd graph keeps it.
    Graph,
    /// It is a parameter or buffer of a module.
    Module,
    /// It belongs to the state of an optimizer.
    Optimizer,
    /// It is the gradient of a parameter.
    Grad,
    /// Only the traceback of an exception keeps it.
    Traceback,
    /// No object of Python refers to it.
    Nothing,
    /// An object that no name leads to.
    Other,
}

impl Sort {
    fn from_key(key: &str) -> Option<Self> {
        Some(match key {
            "variable" => Self::Variable,
            "list" => Self::List,
            "dict" => Self::Dict,
            "tuple" => Self::Tuple,
            "set" => Self::Set,
            "attribute" => Self::Attribute,
            "closure" => Self::Closure,
            "graph" => Self::Graph,
            "module" => Self::Module,
            "optimizer" => Self::Optimizer,
            "grad" => Self::Grad,
            "traceback" => Self::Traceback,
            "nothing" => Self::Nothing,
            "other" => Self::Other,
            _ => return None,
        })
    }

    /// Whether it is a container that a program fills.
    pub const fn is_container(self) -> bool {
        matches!(
            self,
            Self::List | Self::Dict | Self::Tuple | Self::Set | Self::Attribute
        )
    }
}

/// A moment at which Python was queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Its row; the answers follow it.
    pub row: u32,
    /// Why it was taken: `oom`, `peak`, `end`.
    pub reason: TextId,
}

/// One answer of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderRow {
    /// Its row.
    pub row: u32,
    /// The block, by its index among the blocks of its track.
    pub block: u32,
    /// The holder's name.
    pub name: TextId,
    /// Its sort and line.
    pub text: TextId,
}

/// The holder of a block. Two answers are equal if they name the same holder, whatever tensor of it they are about.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldBy {
    /// Its sort.
    pub sort: Sort,
    /// Its name as one would type it: `kept`, `self.cache`; empty if no name leads to it.
    pub name: String,
    /// The function whose local variable it is.
    pub function: Option<String>,
    /// The line to look at: where it is assigned or filled.
    pub place: Option<Place>,
    /// For a variable that only the traceback of an exception keeps: the name that holds the exception.
    pub exception: Option<String>,
    /// The operation whose graph keeps the block, where that was recorded: `SoftmaxBackward0`.
    #[serde(skip)]
    pub operation: Option<String>,
    /// Whether graphs were searched and none had saved the block.
    #[serde(skip)]
    pub unsaved: bool,
    /// Type and shape of the tensor, where torch reported them.
    #[serde(skip)]
    pub shape: Option<String>,
    /// The hooks of a module among which the function is that remembers it: `net.2._forward_hooks`.
    #[serde(skip)]
    pub hooks: Option<String>,
    /// Whether it is a local variable of a library's function, so that the script has no line to change.
    #[serde(skip)]
    pub in_library: bool,
}

impl PartialEq for HeldBy {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for HeldBy {}

impl Ord for HeldBy {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for HeldBy {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl HeldBy {
    fn key(&self) -> (Sort, &str, Option<&str>, Option<&Place>) {
        let function = self.function.as_deref();
        (self.sort, &self.name, function, self.place.as_ref())
    }

    /// Reads an answer of a census.
    pub(super) fn parse(name: &str, text: &str) -> Option<Self> {
        let mut parts = text.split('\t');
        let head = parts.next().unwrap_or("");
        let told = |part: Option<&str>| part.filter(|part| !part.is_empty()).map(str::to_owned);
        let operation = told(parts.next());
        let unsaved = operation.as_deref() == Some(UNSAVED);
        let operation = operation.filter(|_| !unsaved);
        let shape = told(parts.next());
        let hooks = told(parts.next());
        let in_library = parts.next() == Some("library");
        let (sort, place) = head.split_once(' ').unwrap_or((head, ""));
        let sort = Sort::from_key(sort)?;
        let (name, exception) = match name.split_once(" by ") {
            Some((name, exception)) if sort == Sort::Traceback => (name, Some(exception)),
            _ => (name, None),
        };
        let (name, function) = match name.split_once(" (") {
            Some((name, rest)) => {
                let function = rest.split(')').next().unwrap_or("");
                (name, Some(function).filter(|function| !function.is_empty()))
            }
            None => (name, None),
        };
        let place = place.rsplit_once(':').and_then(|(file, line)| {
            Some(Place {
                file: file.to_owned(),
                line: line.trim().parse().ok()?,
                function: function.unwrap_or("<module>").to_owned(),
            })
        });
        Some(Self {
            sort,
            name: name.to_owned(),
            function: function.map(str::to_owned),
            place,
            exception: exception.map(str::to_owned),
            operation,
            unsaved,
            shape,
            hooks,
            in_library,
        })
    }

    /// A reference cycle whose members are not known.
    pub(crate) fn unknown_cycle() -> Self {
        Self {
            sort: Sort::Other,
            name: "<cycle: >".to_owned(),
            function: None,
            place: None,
            exception: None,
            operation: None,
            unsaved: false,
            shape: None,
            hooks: None,
            in_library: false,
        }
    }

    /// The class of a model that no name leads to: the hook calls it `<Sequential>`.
    pub fn class_without_name(&self) -> Option<&str> {
        self.name.strip_prefix('<')?.strip_suffix('>')
    }

    /// The members of a reference cycle that no name leads to: the hook calls it `<cycle: ctx.out of Swish>`.
    pub fn cycle(&self) -> Option<&str> {
        self.class_without_name()?.strip_prefix("cycle: ")
    }

    /// Whether a name that the program can use leads to the holder.
    pub fn is_named(&self) -> bool {
        !self.name.is_empty() && self.class_without_name().is_none()
    }

    /// `kept` in evaluate(), as sentences name it.
    pub fn describe_holder(&self) -> String {
        let what = if self.name.is_empty() {
            "something without a name".to_owned()
        } else if self.cycle() == Some("") {
            return "a reference cycle".to_owned();
        } else if let Some(members) = self.cycle() {
            return format!("a reference cycle ({members})");
        } else if let Some(class) = self.class_without_name() {
            return format!("a {class} that no variable names");
        } else {
            format!("`{}`", self.name)
        };
        match &self.function {
            Some(function) => format!("{what} in {function}()"),
            None => what,
        }
    }
}

/// Whether anything trains a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelState {
    /// An optimizer has some of its parameters, or they have gradients.
    Trained,
    /// No parameter wants a gradient.
    Frozen,
    /// Parameters want gradients, but nothing ever made one.
    Untrained,
}

/// A model, as Python named it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Model {
    /// Its name, as holders of its blocks have it.
    pub name: String,
    /// The function whose local variable it is.
    pub function: Option<String>,
    /// Whether anything trains it.
    pub state: ModelState,
}

impl Model {
    /// Reads `frozen ref`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (state, name) = text.split_once(' ')?;
        let state = match state {
            "trained" => ModelState::Trained,
            "frozen" => ModelState::Frozen,
            "untrained" => ModelState::Untrained,
            _ => return None,
        };
        let held = HeldBy::parse(name, "module")?;
        Some(Self {
            name: held.name,
            function: held.function,
            state,
        })
    }
}

/// A variable that a loop assigns in every iteration, and whose result of the iteration before no code reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastResult {
    /// Its name, as holders have it.
    pub name: String,
    /// The function whose local variable it is.
    pub function: Option<String>,
    /// The variables to delete: it, and others that hold the same.
    pub variables: String,
    /// The line that reads it last.
    pub read_at: Place,
}

impl LastResult {
    /// Reads `out (main) = out, logits /job/train.py:12`, or what takes that back: `out (main) = `.
    pub(super) fn parse(text: &str) -> Option<(HeldBy, Option<Self>)> {
        let (name, rest) = text.split_once(" = ")?;
        let held = HeldBy::parse(name, "variable")?;
        let read = rest.rsplit_once(':').and_then(|(rest, line)| {
            // A path may have spaces in it; names have none after their commas.
            let at = rest.find(" /").or_else(|| rest.rfind(' '))?;
            Some(Self {
                name: held.name.clone(),
                function: held.function.clone(),
                variables: rest[..at].to_owned(),
                read_at: Place {
                    file: rest[at + 1..].to_owned(),
                    line: line.parse().ok()?,
                    function: held.function.clone().unwrap_or("<module>".to_owned()),
                },
            })
        });
        Some((held, read))
    }

    /// Whether a holder is this variable.
    pub fn is(&self, held: &HeldBy) -> bool {
        self.name == held.name && self.function == held.function
    }
}

impl Holdings {
    /// The holders that blocks have at a row, by the index of the block: the answer of the census nearest to
    /// it. An answer that it did not repeat is from an earlier census.
    pub fn holders_near(&self, row: u32, stacks: &StackTable) -> HashMap<u32, HeldBy> {
        let nearest =
            (0..self.censuses.len()).min_by_key(|&at| self.censuses[at].row.abs_diff(row));
        let until = nearest.and_then(|at| self.censuses.get(at + 1));
        let until = until.map_or(u32::MAX, |census| census.row);
        let mut known: HashMap<(TextId, TextId), Option<HeldBy>> = HashMap::new();
        let mut holders = HashMap::new();
        for told in &self.holders {
            // The answer of a later census, for a block that only it knows.
            if told.row >= until && holders.contains_key(&told.block) {
                continue;
            }
            let held = known
                .entry((told.name, told.text))
                .or_insert_with(|| HeldBy::parse(stacks.text(told.name), stacks.text(told.text)));
            if let Some(held) = held {
                holders.insert(told.block, held.clone());
            }
        }
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_read_with_its_function_and_its_line() {
        let held = HeldBy::parse("kept (evaluate)", "list /job/eval.py:2").expect("a holder");
        assert_eq!((held.sort, held.name.as_str()), (Sort::List, "kept"));
        assert_eq!(held.describe_holder(), "`kept` in evaluate()");
        let place = held.place.expect("a line");
        assert_eq!((place.file.as_str(), place.line), ("/job/eval.py", 2));
        let held = HeldBy::parse("total", "graph t.py:9\tSoftmaxBackward0\tfloat32[4, 4]");
        let held = held.expect("a holder");
        assert_eq!(held.operation.as_deref(), Some("SoftmaxBackward0"));
        assert_eq!(held.shape.as_deref(), Some("float32[4, 4]"));
        assert!(!held.unsaved);
        let held = HeldBy::parse("y", "variable t.py:9\t-\tfloat32[4, 4]").expect("a holder");
        assert!(held.unsaved && held.operation.is_none());
        assert_eq!(
            HeldBy::parse("", "nothing").map(|held| held.place),
            Some(None)
        );
        assert_eq!(HeldBy::parse("x", "magic t.py:1"), None);
        let model = Model::parse("frozen ref (main)").expect("a model");
        assert_eq!(
            (model.name.as_str(), model.state),
            ("ref", ModelState::Frozen)
        );
    }
}
