// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that start PyTorch, by their names, and what starts them.

use std::path::Path;

/// Programs that start PyTorch.
pub(super) const PROGRAMS: [&str; 6] = [
    "python",
    "torchrun",
    "accelerate",
    "deepspeed",
    "vllm",
    "lightning",
];

/// The launcher of a command, which decides how often it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartedBy {
    /// Once.
    Script,
    /// By `srun`, with the number of its options, otherwise once for each task of the job.
    Srun(Option<u32>),
}

/// The name of a program without its folder.
pub(super) fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

pub(super) fn starts_torch(name: &str) -> bool {
    PROGRAMS.iter().any(|known| name.starts_with(known)) || is_python_file(name)
}

pub(super) fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|one| one == extension)
}

pub(super) fn is_python_file(name: &str) -> bool {
    has_extension(name, "py")
}

/// Whether a text names a program that starts PyTorch, or a script, anywhere.
pub(super) fn names_program(text: &str) -> bool {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "_./+-".contains(c);
    text.split(|c| !is_of_path(c)).map(name_of).any(|name| {
        let is_version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
        let mut programs = PROGRAMS.iter().filter_map(|known| name.strip_prefix(known));
        programs.any(is_version) || is_python_file(name) || has_extension(name, "sh")
    })
}
