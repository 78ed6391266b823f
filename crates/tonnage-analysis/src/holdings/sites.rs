// SPDX-License-Identifier: MIT OR Apache-2.0
//! The meaning of a stack for a block: the user's line, and hints at phase and category.
//!
//! The hints serve recordings that carry no word of torch itself, such as
//! snapshots from production. They rest on files and functions of PyTorch and
//! on names that training loops commonly use; what they yield is inferred.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tonnage_recording::{Frame, StackId, StackTable};

use super::{Category, Phase};

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// The file, as Python names it.
    pub file: String,
    /// The line.
    pub line: u64,
    /// The function.
    pub function: String,
}

/// Characters of the name of a file that Inductor wrote: `c`, and a digest of 256 bits in base 32.
const DIGEST: usize = 52;

/// Whether a file is the user's, and not of Python or of an installed package.
pub fn is_users(file: &str) -> bool {
    let library = ["/site-packages/", "/dist-packages/", "/lib/python3"];
    // A script may have no extension; C++ frames have other ones, or none and `??`.
    let python = is_python(file) || !file.contains(['.', '?']);
    let installed = library.iter().any(|part| file.contains(part));
    python && !installed && !is_generated(file) && !file.starts_with('<') && !file.is_empty()
}

/// Whether a file is code that Inductor wrote: `qr/cqrs….py`, named by a digest, in a folder named by its beginning.
pub fn is_generated(file: &str) -> bool {
    let path = Path::new(file);
    let folder = path.parent().and_then(Path::file_name);
    let (Some(folder), Some(name)) = (folder, path.file_stem()) else {
        return false;
    };
    let (folder, name) = (folder.as_encoded_bytes(), name.as_encoded_bytes());
    let digest = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() == DIGEST && name[1..].starts_with(folder) && name.iter().all(digest)
}

/// Whether a file has the name of a file of Python; a frame of C++ has not.
pub(crate) fn is_python(file: &str) -> bool {
    Path::new(file)
        .extension()
        .is_some_and(|extension| extension == "py")
}

/// The folder that all files of the user's code in some stacks lie in, without a slash at its end; empty if there is
/// none. Names from there are the same wherever a program was checked out.
pub fn own_folder(stacks: &StackTable, seen: impl Iterator<Item = StackId>) -> String {
    let mut common: Option<PathBuf> = None;
    let seen: BTreeSet<StackId> = seen.collect();
    for frame in seen.into_iter().flat_map(|stack| stacks.frames(stack)) {
        let file = Path::new(frame.file);
        if !is_users(frame.file) || !file.is_absolute() {
            continue;
        }
        let folder = file.parent().unwrap_or(Path::new("/"));
        common = Some(match common {
            None => folder.to_owned(),
            Some(common) => {
                let shared = common.ancestors().find(|above| folder.starts_with(above));
                shared.map_or_else(PathBuf::new, Path::to_owned)
            }
        });
    }
    common.map_or_else(String::new, |folder| folder.to_string_lossy().into_owned())
}

/// The innermost line of the user's code in a stack, or the innermost line of Python; none without either.
pub fn site(stacks: &StackTable, stack: Option<StackId>) -> Option<Place> {
    let place = |frame: Frame<'_>| Place {
        file: frame.file.to_owned(),
        line: frame.line,
        function: frame.function.to_owned(),
    };
    let stack = stack?;
    let users = stacks.frames(stack).find(|frame| is_users(frame.file));
    let python = |frame: &Frame<'_>| is_python(frame.file);
    users
        .or_else(|| stacks.frames(stack).find(python))
        .map(place)
}

/// A module's path with `*` for every number, so that layers are one.
pub fn pattern(path: &str) -> String {
    let parts = path.split('.').map(|part| {
        if part.chars().all(|c| c.is_ascii_digit()) {
            "*"
        } else {
            part
        }
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The hints in a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) phase: Option<Phase>,
    pub(super) category: Option<Category>,
    /// Whether it has no frame of Python at all.
    pub(super) nowhere: bool,
}

/// The hints of stacks, each looked at once.
#[derive(Debug, Default)]
pub(super) struct Hints {
    known: HashMap<StackId, Hint>,
}

impl Hints {
    pub(super) fn read_stack(&mut self, stacks: &StackTable, stack: StackId) -> Hint {
        *self
            .known
            .entry(stack)
            .or_insert_with(|| hint(stacks, stack))
    }
}

fn hint(stacks: &StackTable, stack: StackId) -> Hint {
    let mut hint = Hint {
        nowhere: true,
        ..Hint::default()
    };
    let mut moves = false;
    for (depth, frame) in stacks.frames(stack).enumerate() {
        let (file, function) = (frame.file, frame.function);
        // C++ makes the buckets, called from here, the second time when the order of the gradients is known.
        if depth == 0
            && file.ends_with("torch/nn/parallel/distributed.py")
            && matches!(function, "_ddp_init_helper" | "_pre_forward")
        {
            hint.category = Some(Category::Gradients);
        }
        let python = is_python(file);
        hint.nowhere &= !python;
        let torch = file.contains("torch/");
        let phase = if torch && file.contains("/optim/") {
            Some(Phase::Step)
        } else if function == "_engine_run_backward" || function.contains("autograd::Engine") {
            Some(Phase::Backward)
        } else if file.ends_with("torch/serialization.py") {
            Some(Phase::Save)
        } else if python && !torch && is_users(file) {
            match function {
                // A function `step` is often a whole training step or a move in an environment.
                "optimizer_step" => Some(Phase::Step),
                "evaluate" | "eval" | "validate" | "validation" | "generate" | "inference" => {
                    Some(Phase::Eval)
                }
                "forward" => Some(Phase::Forward),
                _ => None,
            }
        } else if file.ends_with("nn/modules/module.py") && function == "_call_impl" {
            Some(Phase::Forward)
        } else {
            None
        };
        // Outer frames decide: a forward pass inside `generate` is one without gradients, an
        // optimizer inside a forward pass does not occur.
        if phase.is_some() && hint.phase != Some(Phase::Step) {
            hint.phase = phase;
        }
        if function == "_init_group" {
            hint.category = Some(Category::OptimizerState);
        }
        moves |= torch && matches!(function, "_apply" | "to_empty" | "reset_parameters");
        moves |= file.ends_with("torch/nn/parameter.py");
        moves |= python && function == "__init__" && torch && file.contains("/nn/modules/");
        if function.contains("AccumulateGrad") {
            hint.category = Some(Category::Gradients);
        }
        if file.ends_with("cache_utils.py") && function == "update" {
            hint.category = Some(Category::KvCache);
        }
    }
    if moves && hint.category.is_none() && hint.phase.is_none() {
        hint.category = Some(Category::Weights);
        hint.phase = Some(Phase::Load);
    }
    hint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_step_is_an_optimizers_step_inside_torchs_wrapper_only() {
        let mut stacks = StackTable::new();
        let mut phase = |innermost_first: &[(&str, &str)]| {
            let frames: Vec<_> = innermost_first
                .iter()
                .map(|(function, file)| {
                    let (function, file) = (stacks.intern(function), stacks.intern(file));
                    stacks.frame(function, file, 1)
                })
                .collect();
            let stack = stacks.push_stack(&frames).expect("a stack");
            hint(&stacks, stack).phase
        };
        let wrapper = ("wrapper", "/x/site-packages/torch/optim/optimizer.py");
        assert_eq!(
            phase(&[("step", "train.py"), ("<module>", "train.py")]),
            None
        );
        assert_eq!(
            phase(&[("step", "lion.py"), wrapper, ("step", "train.py")]),
            Some(Phase::Step)
        );
    }

    #[test]
    fn files_of_a_compiler_are_told_from_files_of_the_user() {
        let name = "cqrstuvwxyz234567abcdefghijklmnopqrstuvwxyz234567abc";
        assert!(is_generated(&format!(
            "/tmp/torchinductor_alice/qr/{name}.py"
        )));
        for own in [
            format!("/home/alice/{name}.py"),
            format!("/home/alice/qr/{}.py", &name[..51]),
            "/home/alice/ra/train.py".to_owned(),
            "train.py".to_owned(),
            String::new(),
        ] {
            assert!(!is_generated(&own), "{own}");
        }
    }
}
