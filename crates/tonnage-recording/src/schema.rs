// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schema of the file, its version, and the rule of who may read what.
//!
//! A minor version appends columns or kinds; a reader of the same major version ignores columns it does not
//! know and counts rows of kinds it does not know. A major version changes the meaning of something, and a
//! reader refuses a later one.

use std::sync::Arc;

use arrow_array::StringArray;
use arrow_schema::{DataType, Field, Metadata, Schema};

use crate::{Kind, ReadError};

/// Value of the schema's metadata key `tonnage.format`.
pub const FORMAT: &str = "tonnage.trace";
/// Major version: a reader refuses a later one.
pub const FORMAT_MAJOR: u32 = 1;
/// Minor version: a reader accepts any.
pub const FORMAT_MINOR: u32 = 4;

const KEY_FORMAT: &str = "tonnage.format";
const KEY_VERSION: &str = "tonnage.version";
const KEY_PRODUCER: &str = "tonnage.producer";

/// The columns of the file, in order. The position is not part of the format; the name is.
pub(crate) fn columns() -> Vec<Field> {
    let kind = DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Utf8));
    vec![
        Field::new("kind", kind, false),
        Field::new("time_ns", DataType::Int64, true),
        Field::new("process", DataType::UInt32, false),
        Field::new("device", DataType::Int32, true),
        Field::new("stream", DataType::UInt64, true),
        Field::new("pool_first", DataType::UInt32, true),
        Field::new("pool_second", DataType::UInt32, true),
        Field::new("address", DataType::UInt64, true),
        Field::new("size", DataType::UInt64, true),
        Field::new("requested", DataType::UInt64, true),
        Field::new("free", DataType::UInt64, true),
        Field::new("handle", DataType::UInt64, true),
        Field::new("stack", DataType::UInt32, true),
        Field::new("id", DataType::UInt32, true),
        Field::new("line", DataType::UInt64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("file", DataType::Utf8, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("charged", DataType::UInt64, true),
        Field::new("in_use", DataType::UInt64, true),
        Field::new("uses", DataType::UInt32, true),
        Field::new("first_use", DataType::UInt32, true),
        Field::new("last_use", DataType::UInt32, true),
        Field::new("next_use", DataType::UInt32, true),
    ]
}

/// The schema a writer puts in front, with the producer's name and version.
pub(crate) fn schema(producer: &str) -> Schema {
    let metadata = [
        (KEY_FORMAT.to_owned(), FORMAT.to_owned()),
        (
            KEY_VERSION.to_owned(),
            format!("{FORMAT_MAJOR}.{FORMAT_MINOR}"),
        ),
        (KEY_PRODUCER.to_owned(), producer.to_owned()),
    ];
    Schema::new_with_metadata(columns(), metadata.into_iter().collect::<Metadata>())
}

/// The fixed dictionary of the `kind` column.
pub(crate) fn kinds() -> Arc<StringArray> {
    Arc::new(Kind::ALL.iter().map(|kind| Some(kind.name())).collect())
}

/// The description of a file in its header.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) version: (u32, u32),
    pub(crate) producer: String,
    /// For each of [`columns`], its position in the file.
    pub(crate) positions: Vec<Option<usize>>,
}

/// Checks that a schema is one this version reads.
pub(crate) fn check(schema: &Schema) -> Result<Header, ReadError> {
    let refuse = |reason: String| ReadError::NotATrace { reason };
    let metadata = schema.metadata();
    if metadata.get(KEY_FORMAT).map(String::as_str) != Some(FORMAT) {
        return Err(refuse(format!(
            "an Arrow stream without {KEY_FORMAT} = {FORMAT} in its schema"
        )));
    }
    let found = metadata.get(KEY_VERSION).map_or("", String::as_str);
    let version = found
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| {
            refuse(format!(
                "{KEY_VERSION} is {found:?} instead of a version such as 1.0"
            ))
        })?;
    if version.0 > FORMAT_MAJOR {
        return Err(ReadError::TooNew {
            found: found.to_owned(),
            supported: format!("{FORMAT_MAJOR}.x"),
        });
    }
    let mut positions = Vec::new();
    for column in columns() {
        let position = schema
            .fields()
            .iter()
            .position(|field| field.name() == column.name());
        if let Some(position) = position {
            let found = schema.field(position).data_type();
            if found != column.data_type() {
                return Err(refuse(format!(
                    "column {} is {found} instead of {}",
                    column.name(),
                    column.data_type()
                )));
            }
        } else if !column.is_nullable() {
            return Err(refuse(format!("column {} is missing", column.name())));
        }
        positions.push(position);
    }
    let producer = metadata.get(KEY_PRODUCER).cloned().unwrap_or_default();
    Ok(Header {
        version,
        producer,
        positions,
    })
}
