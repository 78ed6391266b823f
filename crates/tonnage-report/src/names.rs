// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths as short as they stay distinct, and no longer than a stranger may see.
//!
//! A report is sent around. The folders above a project name people, customers and machines, so they are left out
//! unless requested; below a library's root nothing is private, so `torch/nn/functional.py` stays whole.

use tonnage_analysis::holdings::is_generated;
use tonnage_recording::{StackId, StackTable};

/// Folders in which libraries live: what follows them is public.
const LIBRARIES: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3."];
/// Parts of a path that name a person, with the folder before them.
const HOMES: [&str; 2] = ["home", "Users"];

/// Whether a file is the user's, and not of Python, of an installed package or of a compiled library.
pub(crate) fn is_own(path: &str) -> bool {
    let code = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let extension = code.rsplit_once('.').map(|(_, extension)| extension);
    let python = extension.is_none_or(|extension| extension == "py");
    // C++ writes `??` for an unknown name.
    let known = !code.is_empty() && code != "??" && !path.starts_with('<');
    let library = LIBRARIES.iter().any(|library| path.contains(library));
    python && known && !library && !is_generated(path)
}

/// A path without what a stranger need not know: at most the folder and the file.
pub(crate) fn shortened(path: &str) -> String {
    for library in LIBRARIES {
        if let Some((_, inside)) = path.rsplit_once(library) {
            let version = library.ends_with('.');
            // `/lib/python3.12/json/decoder.py`: the version is not a folder of the library.
            let inside = if version {
                inside.split_once('/').map_or(inside, |(_, rest)| rest)
            } else {
                inside
            };
            return inside.to_owned();
        }
    }
    if path.starts_with('<') {
        return path.to_owned();
    }
    let parts: Vec<&str> = path
        .split(['/', '\\'])
        .filter(|part| !part.is_empty())
        .collect();
    let named = parts
        .iter()
        .position(|part| HOMES.contains(part))
        .map_or(0, |home| home + 2);
    let absolute = path.starts_with(['/', '\\']) || path.contains(":\\");
    // A path that was relative already names only the project.
    let from = if absolute {
        named.max(parts.len().saturating_sub(2))
    } else {
        parts.len().saturating_sub(3)
    };
    let from = from.min(parts.len().saturating_sub(1));
    parts[from..].join("/")
}

/// The line that identifies a stack, without its folders: the innermost of the user's code, else the innermost that is
/// known.
pub fn own_line(stacks: &StackTable, stack: StackId) -> Option<String> {
    let own = stacks.frames(stack).find(|frame| is_own(frame.file));
    let known = || stacks.frames(stack).find(|frame| frame.file != "??");
    let frame = own.or_else(known).or_else(|| stacks.top(stack))?;
    let file = shortened(frame.file);
    let file = file.rsplit('/').next().unwrap_or(&file);
    Some(format!("{file}:{} {}", frame.line, frame.function))
}

/// A sentence or command with the folders of its absolute paths left out.
pub(crate) fn without_folders(text: &str) -> String {
    let words: Vec<String> = text
        .split(' ')
        .map(|word| {
            let Some(at) = word.find('/') else {
                return word.to_owned();
            };
            let (before, path) = word.split_at(at);
            // A path, and not a fraction or a path within a project.
            let begins = before
                .chars()
                .next_back()
                .is_none_or(|c| "=(['\"`".contains(c));
            match path.rsplit('/').find(|part| !part.is_empty()) {
                Some(last) if begins => format!("{before}{last}"),
                _ => word.to_owned(),
            }
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_what_helps_and_no_one_s_name() {
        for (long, short) in [
            (
                "/opt/venv/lib/python3.12/site-packages/torch/nn/functional.py",
                "torch/nn/functional.py",
            ),
            ("/usr/lib/python3.12/json/decoder.py", "json/decoder.py"),
            ("/home/alice/train.py", "train.py"),
            ("/home/alice/secret/llm/train.py", "llm/train.py"),
            ("/train.py", "train.py"),
            ("src/models/llama/attention.py", "models/llama/attention.py"),
            ("<frozen runpy>", "<frozen runpy>"),
            ("C:\\Users\\bob\\x.py", "x.py"),
            ("", ""),
            ("/", ""),
        ] {
            assert_eq!(shortened(long), short, "{long}");
        }
    }

    #[test]
    fn own_code_is_told_from_libraries() {
        for own in ["/home/alice/train.py", "model/attention.py", "script"] {
            assert!(is_own(own), "{own}");
        }
        for other in [
            "/venv/lib/python3.12/site-packages/torch/nn/functional.py",
            "/usr/lib/python3.12/runpy.py",
            "/tmp/torchinductor_alice/qr/cqrstuvwxyz234567abcdefghijklmnopqrstuvwxyz234567abc.py",
            "<frozen runpy>",
            "??",
            "CUDACachingAllocator.cpp",
            "",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn commands_and_sentences_keep_all_but_folders() {
        for (long, short) in [
            (
                "/usr/bin/python /home/alice/train.py --data=/mnt/x/y --lr 1/2",
                "python train.py --data=y --lr 1/2",
            ),
            (
                "28 blocks from `/home/alice/train.py:30` (/srv/b.py) in torch/nn/x.py",
                "28 blocks from `train.py:30` (b.py) in torch/nn/x.py",
            ),
            ("/ and //", "/ and //"),
        ] {
            assert_eq!(without_folders(long), short);
        }
    }
}
