// SPDX-License-Identifier: MIT OR Apache-2.0
//! JSON Schemas as they are published, and as tables that people read.
//!
//! The schemas come from doc comments, which were written for Rust: links between items become plain words here, and
//! paragraphs lose their line breaks.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

/// A schema and what it is of.
pub(crate) struct Named {
    /// The name of its file, without `.json`.
    pub(crate) name: &'static str,
    /// The subject: a call, or a file.
    pub(crate) of: &'static str,
    /// The schema.
    pub(crate) schema: Value,
}

impl Named {
    pub(crate) fn new(name: &'static str, of: &'static str, schema: schemars::Schema) -> Self {
        let mut schema = Value::from(schema);
        polish(&mut schema);
        schema["title"] = of.into();
        Self { name, of, schema }
    }

    pub(crate) fn of_result(result: tonnage_cli::Described) -> Self {
        Self::new(result.name, result.call, result.schema)
    }

    pub(crate) fn file(&self) -> String {
        format!("{}.json", self.name)
    }

    /// The root and every part with a name, as tables.
    pub(crate) fn tables(&self, text: &mut String) -> Result<()> {
        self.table(text, &self.schema)?;
        let Some(parts) = self.schema.get("$defs").and_then(Value::as_object) else {
            return Ok(());
        };
        for (name, part) in parts {
            let _ = writeln!(text, "### {}\n", self.heading(name));
            if let Some(about) = description(part) {
                let _ = writeln!(text, "{about}\n");
            }
            self.table(text, part)?;
        }
        Ok(())
    }

    fn heading(&self, part: &str) -> String {
        format!("{}: {part}", self.name)
    }

    fn table(&self, text: &mut String, schema: &Value) -> Result<()> {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            text.push_str("| field | type | meaning |\n|---|---|---|\n");
            self.rows(text, schema, properties)?;
            text.push('\n');
        }
        let choices = ["oneOf", "anyOf"]
            .into_iter()
            .find_map(|key| schema.get(key));
        if let Some(choices) = choices.and_then(Value::as_array) {
            text.push_str("One of:\n\n");
            for choice in choices {
                self.choice(text, choice)?;
            }
            text.push('\n');
        } else if schema.get("properties").is_none() {
            let _ = writeln!(text, "{}.\n", self.type_of(schema)?);
        }
        Ok(())
    }

    fn rows(&self, text: &mut String, schema: &Value, fields: &Map<String, Value>) -> Result<()> {
        let required = schema.get("required").and_then(Value::as_array);
        let required: Vec<&str> = required
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let place = |name: &str| required.iter().position(|other| *other == name);
        // Fields that must be there are listed in the order of the struct; properties are not.
        let mut ordered: Vec<(&String, &Value)> = fields.iter().collect();
        ordered.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
        for (name, field) in ordered {
            let kind = self.type_of(field)?;
            let mut about = description(field).unwrap_or_default();
            if place(name).is_none() {
                match field.get("default").filter(|default| is_plain(default)) {
                    Some(default) => {
                        let _ = write!(about, " Default: `{default}`.");
                    }
                    None => about += " May be absent.",
                }
            }
            let row = format!("| `{name}` | {kind} | {} |", about.trim());
            let _ = writeln!(text, "{row}");
        }
        Ok(())
    }

    /// One alternative: a word, or an object with its kind.
    fn choice(&self, text: &mut String, choice: &Value) -> Result<()> {
        let about = description(choice).map_or_else(String::new, |about| format!(": {about}"));
        if let Some(words) = choice.get("enum").and_then(Value::as_array) {
            for word in words {
                let _ = writeln!(text, "- `{word}`{about}");
            }
            return Ok(());
        }
        if let Some(word) = choice.get("const") {
            let _ = writeln!(text, "- `{word}`{about}");
            return Ok(());
        }
        let Some(fields) = choice.get("properties").and_then(Value::as_object) else {
            let _ = writeln!(text, "- {}{about}", self.type_of(choice)?);
            return Ok(());
        };
        let kind = fields.iter().find_map(|(name, field)| {
            let word = field.get("const")?;
            Some(format!("`{name}`: `{word}`"))
        });
        let kind = kind.unwrap_or_else(|| "an object".to_owned());
        let _ = writeln!(text, "- {kind}{about}");
        for (name, field) in fields {
            if field.get("const").is_none() {
                let about = description(field).unwrap_or_default();
                let _ = writeln!(text, "  - `{name}` ({}): {about}", self.type_of(field)?);
            }
        }
        Ok(())
    }

    /// The type of a value, in words.
    fn type_of(&self, schema: &Value) -> Result<String> {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let part = reference.strip_prefix("#/$defs/").context("a local part")?;
            return Ok(format!("[{part}](#{})", anchor(&self.heading(part))));
        }
        if let Some(word) = schema.get("const") {
            return Ok(format!("`{word}`"));
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            return Ok(words.join(" or "));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(choices) = schema.get(key).and_then(Value::as_array) {
                let choices: Result<Vec<String>> =
                    choices.iter().map(|choice| self.type_of(choice)).collect();
                return Ok(choices?.join(" or "));
            }
        }
        let names = match schema.get("type") {
            Some(Value::String(name)) => vec![name.as_str()],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => return Ok("anything".to_owned()),
        };
        let words: Result<Vec<String>> = names
            .into_iter()
            .map(|name| self.named_type(name, schema))
            .collect();
        Ok(words?.join(" or "))
    }

    fn named_type(&self, name: &str, schema: &Value) -> Result<String> {
        if let ("array", Some(items)) = (name, schema.get("prefixItems").and_then(Value::as_array))
        {
            let items: Result<Vec<String>> = items.iter().map(|item| self.type_of(item)).collect();
            return Ok(format!("({})", items?.join(", ")));
        }
        if let ("array", Some(items)) = (name, schema.get("items")) {
            return Ok(format!("array of {}", self.type_of(items)?));
        }
        if let ("object", Some(values)) = (name, schema.get("additionalProperties"))
            && values.is_object()
        {
            return Ok(format!("{}, by name", self.type_of(values)?));
        }
        Ok(name.to_owned())
    }
}

/// Whether a default is worth showing in a table.
fn is_plain(default: &Value) -> bool {
    default.is_number() || default.is_boolean()
}

/// The description of a schema, fit for a table.
fn description(schema: &Value) -> Option<String> {
    let text = schema.get("description")?.as_str()?;
    Some(text.replace("\n\n", " ").replace('|', "\\|"))
}

/// The anchor of a heading, as forges make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars()
        .filter(|&c| c.is_alphanumeric() || c == '-' || c == '_')
        .collect()
}

/// Makes descriptions readable outside of Rust.
fn polish(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let constant = object.get("const").map(Value::to_string);
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = readable(text, constant.as_deref());
            }
            object.values_mut().for_each(polish);
        }
        Value::Array(items) => items.iter_mut().for_each(polish),
        _ => {}
    }
}

/// One line a paragraph, and no links to items of Rust.
fn readable(text: &str, constant: Option<&str>) -> String {
    let text = match constant {
        Some(constant) => text.replace("[`SCHEMA_VERSION`]", constant),
        None => text.to_owned(),
    };
    let paragraphs = text
        .split("\n\n")
        .map(|paragraph| paragraph.replace('\n', " "));
    let text = paragraphs.collect::<Vec<_>>().join("\n\n");
    let text = text
        .replace("`None` if", "null if")
        .replace("`None`", "null");
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("[`") {
        plain += &rest[..start];
        rest = &rest[start + 1..];
        let Some(end) = rest.find("`]") else {
            plain.push('[');
            break;
        };
        plain += &rest[..=end];
        rest = &rest[end + 2..];
        if let Some(target) = rest.strip_prefix('(')
            && let Some(end) = target.find(')')
        {
            rest = &target[end + 1..];
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_lose_what_only_rust_understands() {
        let text = "Why not, when\n[`supported`](Self::supported) is false; see [`Gpu`].\n\n`None` if not known.";
        assert_eq!(
            readable(text, None),
            "Why not, when `supported` is false; see `Gpu`.\n\nnull if not known."
        );
        assert_eq!(
            readable("Version: [`SCHEMA_VERSION`].", Some("3")),
            "Version: 3."
        );
        assert_eq!(readable("an array [`u8", None), "an array [`u8");
    }

    #[test]
    fn anchors_are_those_of_forges() {
        assert_eq!(
            anchor("TN101: memory is truly short"),
            "tn101-memory-is-truly-short"
        );
        assert_eq!(anchor("run: DeviceUse"), "run-deviceuse");
    }
}
