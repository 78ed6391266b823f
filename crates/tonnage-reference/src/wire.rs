// SPDX-License-Identifier: MIT OR Apache-2.0
//! `wire.py` of the hook: what Python and Rust exchange in a process of a job.
//!
//! Constants and the types of notes come from `tonnage-capture`, the signatures of functions from the source of the
//! stand-in, which defines them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};
use tonnage_capture::blocks::{ENTRY, NoteKind, PREFIX, WINDOW};
use tonnage_capture::note::Note;
use tonnage_capture::{LOG_PREFIX, log};

/// `wire.py`, in the folder of the repository.
pub const FILE: &str = "crates/tonnage-run/src/hook/tonnage_hook/wire.py";
/// The source of the functions.
const STANDIN: &str = "crates/tonnage-standin/src";

const HEAD: &str = r#"# SPDX-License-Identifier: MIT OR Apache-2.0
# Made from the code by `cargo run --bin tonnage-reference`; edits are lost.
"""Constants, functions and notes by which the hook and the stand-in exchange facts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from typing_extensions import NotRequired, TypedDict

"#;

const BIND: &str = r#"

def bind(library: Any, *names: str) -> None:
    """Gives functions of a library their signatures."""
    import ctypes

    for name in names:
        arguments, result = FUNCTIONS[name]
        function = getattr(library, name)
        function.argtypes = [getattr(ctypes, kind) for kind in arguments]
        function.restype = result and getattr(ctypes, result)
"#;

/// The text of `wire.py`, for the repository in the folder `root`.
pub fn module(root: &Path) -> Result<String> {
    let mut text = HEAD.to_owned();
    types(&mut text)?;
    text.push_str("\n\n");
    let kinds = [
        ("START", NoteKind::Start),
        ("END", NoteKind::End),
        ("MOMENT", NoteKind::Moment),
        ("OWNER", NoteKind::Owner),
        ("HOLDER", NoteKind::Holder),
        ("OWNER_LIST", NoteKind::Owners),
        ("OUT_OF_MEMORY", NoteKind::OutOfMemory),
    ];
    text.push_str("# Tags of records in the log of a process.\n");
    for (name, tag) in [
        ("RECORD_START", log::START),
        ("RECORD_TORCH", log::TORCH),
        ("RECORD_NOTE", log::NOTE),
        ("RECORD_TEXT", log::TEXT),
        ("RECORD_OWNERS", log::OWNERS),
    ] {
        writeln!(text, "{name} = {tag}")?;
    }
    text.push_str("\n# Kinds of notes in the file of blocks.\n");
    for (name, kind) in kinds {
        writeln!(text, "{name} = {}", kind as u8)?;
    }
    text.push_str("\n# Files of a process.\n");
    writeln!(text, "LOG_PREFIX = {LOG_PREFIX:?}")?;
    writeln!(text, "BLOCKS_PREFIX = {PREFIX:?}")?;
    writeln!(text, "BLOCKS_ENTRY = {ENTRY}\nBLOCKS_WINDOW = {WINDOW}")?;
    text.push_str(
        "\n# Functions of the stand-in: types of `ctypes` of the arguments, and of the result.\n",
    );
    text.push_str("FUNCTIONS: dict[str, tuple[tuple[str, ...], str | None]] = {\n");
    for (name, (arguments, result)) in functions(&root.join(STANDIN))? {
        let quoted: Vec<String> = arguments.iter().map(|kind| format!("{kind:?}")).collect();
        let comma = if quoted.len() == 1 { "," } else { "" };
        let result = result.map_or_else(|| "None".to_owned(), |kind| format!("{kind:?}"));
        writeln!(
            text,
            "    {name:?}: (({}{comma}), {result}),",
            quoted.join(", ")
        )?;
    }
    text.push_str("}\n");
    text.push_str(BIND);
    Ok(text)
}

/// The notes as typed dictionaries: one for all kinds, and one for each struct.
fn types(text: &mut String) -> Result<()> {
    let schema = Value::from(schemars::schema_for!(Note));
    let parts = schema.get("$defs").and_then(Value::as_object);
    let (enums, structs): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .flatten()
        .partition(|(_, part)| part.get("properties").is_none());
    for (name, part) in enums {
        let words = words(part).with_context(|| format!("{name} is not a choice of words"))?;
        writeln!(text, "    {name} = Literal[{}]\n", words.join(", "))?;
    }
    for (name, part) in structs {
        dictionary(text, name, part)?;
    }
    let kinds = schema.get("oneOf").and_then(Value::as_array);
    text.push_str("    class Notes(TypedDict, total=False):\n");
    let mut fields = Map::new();
    let mut inline = String::new();
    for kind in kinds.context("notes are alternatives")? {
        for (name, field) in kind["properties"].as_object().context("a note has a key")? {
            let mut field = field.clone();
            if field.get("properties").is_some() {
                let class = class_name(name);
                dictionary(&mut inline, &class, &field)?;
                field = serde_json::json!({ "$ref": format!("#/$defs/{class}") });
            }
            fields.insert(name.clone(), field);
        }
    }
    let head = text.split_off(text.len() - "    class Notes(TypedDict, total=False):\n".len());
    text.push_str(&inline);
    text.push_str(&head);
    for (name, field) in &fields {
        writeln!(text, "        {name}: {}", type_of(field)?)?;
    }
    Ok(())
}

/// The words of an enum without fields.
fn words(schema: &Value) -> Option<Vec<String>> {
    let word = |value: &Value| value.as_str().map(|word| format!("{word:?}"));
    match (schema.get("enum"), schema.get("oneOf")) {
        (Some(words), _) => words.as_array()?.iter().map(word).collect(),
        (_, Some(choices)) => choices
            .as_array()?
            .iter()
            .map(|choice| word(choice.get("const")?))
            .collect(),
        _ => None,
    }
}

fn dictionary(text: &mut String, name: &str, schema: &Value) -> Result<()> {
    let fields = schema["properties"]
        .as_object()
        .context("a struct has fields")?;
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| {
        required.is_some_and(|names| names.iter().any(|other| other.as_str() == Some(name)))
    };
    writeln!(text, "    class {name}(TypedDict):")?;
    for (name, field) in fields {
        let kind = type_of(field)?;
        if is_required(name) {
            writeln!(text, "        {name}: {kind}")?;
        } else {
            writeln!(text, "        {name}: NotRequired[{kind}]")?;
        }
    }
    text.push('\n');
    Ok(())
}

fn class_name(note: &str) -> String {
    let mut letters = note.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

/// The type of a value in Python.
fn type_of(schema: &Value) -> Result<String> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return Ok(reference.trim_start_matches("#/$defs/").to_owned());
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema.get(key).and_then(Value::as_array) {
            let choices: Result<Vec<String>> = choices.iter().map(type_of).collect();
            return Ok(choices?.join(" | "));
        }
    }
    let names = match schema.get("type") {
        Some(Value::String(name)) => vec![name.as_str()],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => return Ok("Any".to_owned()),
    };
    let named = |name: &str| -> Result<String> {
        Ok(match name {
            "string" => "str".to_owned(),
            "integer" => "int".to_owned(),
            "boolean" => "bool".to_owned(),
            "number" => "float".to_owned(),
            "null" => "None".to_owned(),
            "array" => match (schema.get("prefixItems"), schema.get("items")) {
                (Some(Value::Array(items)), _) => {
                    let items: Result<Vec<String>> = items.iter().map(type_of).collect();
                    format!("tuple[{}]", items?.join(", "))
                }
                (_, Some(items)) => format!("list[{}]", type_of(items)?),
                _ => "list[Any]".to_owned(),
            },
            "object" => match schema.get("additionalProperties") {
                Some(values @ Value::Object(_)) => format!("dict[str, {}]", type_of(values)?),
                _ => "dict[str, Any]".to_owned(),
            },
            _ => bail!("{name} has no type in Python"),
        })
    };
    let names: Result<Vec<String>> = names.into_iter().map(named).collect();
    Ok(names?.join(" | "))
}

type Signature = (Vec<&'static str>, Option<&'static str>);

/// The functions `tonnage_*` that the files below a folder export.
fn functions(folder: &Path) -> Result<BTreeMap<String, Signature>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                read_functions(&fs::read_to_string(&path)?, &mut found)
                    .with_context(|| path.display().to_string())?;
            }
        }
    }
    Ok(found)
}

fn read_functions(source: &str, found: &mut BTreeMap<String, Signature>) -> Result<()> {
    const START: &str = "extern \"C\" fn tonnage_";
    for part in source.split(START).skip(1) {
        let (name, rest) = part.split_once('(').context("a function has arguments")?;
        let (arguments, rest) = rest.split_once(')').context("the arguments end")?;
        let (result, _) = rest.split_once('{').context("a function has a body")?;
        let kinds = arguments
            .split(',')
            .filter(|argument| !argument.trim().is_empty());
        let kinds = kinds.map(|argument| {
            let (_, kind) = argument.split_once(':').context("an argument has a type")?;
            ctypes_of(kind.trim())
        });
        let result = result
            .trim()
            .strip_prefix("->")
            .map(|kind| ctypes_of(kind.trim()));
        let signature = (kinds.collect::<Result<_>>()?, result.transpose()?);
        found.insert(format!("tonnage_{name}"), signature);
    }
    Ok(())
}

fn ctypes_of(kind: &str) -> Result<&'static str> {
    Ok(match kind {
        "bool" => "c_bool",
        "u8" => "c_uint8",
        "u32" => "c_uint32",
        "i32" => "c_int32",
        "u64" => "c_uint64",
        "i64" => "c_int64",
        "usize" => "c_size_t",
        "*const u8" => "c_char_p",
        _ if kind.starts_with('*') || kind.starts_with("Option<") || kind == "Ptr" => "c_void_p",
        _ => bail!("{kind} has no type in ctypes"),
    })
}
