// SPDX-License-Identifier: MIT OR Apache-2.0
//! The notes that the hook writes are those that a recording is made from.
#![expect(clippy::unwrap_used, reason = "a hook that cannot be read has failed")]

use std::path::{Path, PathBuf};

use tonnage_capture::note::Note;

/// The files of Python in a directory.
fn find_sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| {
            if path.is_dir() {
                find_sources(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .collect()
}

/// The reason why a note is not one, given its JSON.
fn find_refusal(json: &str) -> String {
    match serde_json::from_str::<Note>(json) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

fn is_kind(name: &str) -> bool {
    !find_refusal(&format!(r#"{{"{name}": null}}"#)).contains("unknown variant")
}

fn read_word(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The keys of the dictionary that the text begins with.
fn read_keys(text: &str) -> Vec<&str> {
    let mut keys = Vec::new();
    let (mut depth, mut from) = (0, None);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            '"' if depth == 1 => match from.take() {
                None => from = Some(at + 1),
                Some(from) if text[at + 1..].starts_with(':') => keys.push(&text[from..at]),
                Some(_) => {}
            },
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    keys
}

#[test]
fn every_note_of_the_hook_is_known() {
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hook");
    let (mut kinds, mut fields) = (0, 0);
    for path in find_sources(&hook) {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut places: Vec<usize> = text.match_indices("note(").map(|(at, _)| at + 5).collect();
        places.extend(
            text.match_indices(r#"json.dumps({""#)
                .map(|(at, _)| at + 13),
        );
        for at in places {
            let name = read_word(&text[at..]);
            let rest = &text[at + name.len()..];
            if rest.starts_with('=') || rest.starts_with("\":") {
                assert!(is_kind(name), "{}: {name}", path.display());
                kinds += 1;
            }
        }
        // A dictionary with the name of a kind holds its fields.
        for (at, found) in text.match_indices("={").chain(text.match_indices(" = {")) {
            let begin =
                text[..at].rfind(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
            let name = &text[begin.map_or(0, |begin| begin + 1)..at];
            if name.is_empty() || name == "change" || !is_kind(name) {
                continue;
            }
            for key in read_keys(&text[at + found.len() - 1..]) {
                let why = find_refusal(&format!(r#"{{"{name}": {{"{key}": []}}}}"#));
                assert!(
                    !why.contains("unknown field"),
                    "{}: {name}.{key}",
                    path.display()
                );
                fields += 1;
            }
        }
    }
    assert!(
        kinds >= 20 && fields >= 20,
        "{kinds} kinds, {fields} fields"
    );
}
