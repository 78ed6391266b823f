// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the header of a GGUF file: its metadata, and the type and shape of each tensor, without the tensors.
//!
//! The header is hostile input. Counts and lengths are bounded before anything is allocated, values that are not needed
//! are skipped, and at most [`LONGEST_HEADER`] bytes are read.

use std::collections::BTreeMap;
use std::io::{self, Read};

use crate::safetensors::Stored;

/// The longest header that is read: vocabularies make up most of it.
const LONGEST_HEADER: u64 = 256 << 20;
const MOST_TENSORS: u64 = 1 << 17;
const MOST_KEYS: u64 = 1 << 14;
const LONGEST_NAME: u64 = 1 << 16;

/// Why a header cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be read, or ends too early.
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
    /// It is another format, or a damaged file.
    #[error("it is not a GGUF file that can be read: {0}")]
    Damaged(&'static str),
}

/// The content of a header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gguf {
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// Numbers of the metadata.
    pub numbers: BTreeMap<String, u64>,
    /// Lengths of lists of the metadata, and of lists of numbers the numbers.
    pub lists: BTreeMap<String, Vec<u64>>,
    /// The length of the list of tokens.
    pub vocabulary: Option<u64>,
    /// Its tensors.
    pub stored: Stored,
}

impl Gguf {
    /// A number of the architecture, such as `block_count`.
    pub fn number(&self, key: &str) -> Option<u64> {
        let architecture = self.architecture.as_deref()?;
        self.numbers.get(&format!("{architecture}.{key}")).copied()
    }

    /// A number for each layer, which the file has as one number or as a list.
    pub fn per_layer(&self, key: &str, layers: u64) -> Option<Vec<u64>> {
        let architecture = self.architecture.as_deref()?;
        let name = format!("{architecture}.{key}");
        if let Some(list) = self.lists.get(&name) {
            return (list.len() as u64 == layers).then(|| list.clone());
        }
        let layers = usize::try_from(layers)
            .ok()
            .filter(|layers| *layers <= 1 << 14)?;
        Some(vec![*self.numbers.get(&name)?; layers])
    }
}

/// Name, values of a block, and bytes of a block of each type of tensor, by its number in the format.
const TYPES: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

/// Reads the header from the start of a file.
pub fn read_gguf(file: impl Read) -> Result<Gguf, GgufError> {
    let mut reader = Reader(io::BufReader::new(file).take(LONGEST_HEADER));
    if reader.bytes::<4>()? != *b"GGUF" {
        return Err(GgufError::Damaged("it does not begin with GGUF"));
    }
    if !matches!(reader.word()?, 2 | 3) {
        return Err(GgufError::Damaged("its version is not 2 or 3"));
    }
    let (tensors, keys) = (reader.long()?, reader.long()?);
    if tensors > MOST_TENSORS || keys > MOST_KEYS {
        return Err(GgufError::Damaged(
            "it states an impossible number of tensors",
        ));
    }
    let mut gguf = Gguf::default();
    for _ in 0..keys {
        let key = reader.text()?;
        let kind = reader.word()?;
        reader.value(&mut gguf, &key, kind)?;
    }
    gguf.stored.files = 1;
    for _ in 0..tensors {
        let _name = reader.text()?;
        let dimensions = reader.word()?;
        if dimensions > 8 {
            return Err(GgufError::Damaged("a tensor has too many dimensions"));
        }
        let mut elements = 1_u64;
        for _ in 0..dimensions {
            elements = elements.saturating_mul(reader.long()?);
        }
        let kind = reader.word()?;
        let _offset = reader.long()?;
        let known = TYPES.iter().find(|(number, ..)| *number == kind);
        let (_, name, values, bytes) =
            known.ok_or(GgufError::Damaged("a tensor has a type that is not known"))?;
        let stored = &mut gguf.stored;
        stored.tensors += 1;
        stored.elements = stored.elements.saturating_add(elements);
        let size = (elements / values).saturating_mul(*bytes);
        stored.bytes = stored.bytes.saturating_add(size);
        let sum = stored
            .elements_by_type
            .entry((*name).to_owned())
            .or_default();
        *sum = sum.saturating_add(elements);
    }
    Ok(gguf)
}

struct Reader<R>(R);

impl<R: Read> Reader<R> {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn word(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn long(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn skip(&mut self, length: u64) -> Result<(), GgufError> {
        let skipped = io::copy(&mut (&mut self.0).take(length), &mut io::sink())?;
        if skipped == length {
            return Ok(());
        }
        Err(GgufError::Damaged("it ends within its header"))
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let length = self.long()?;
        if length > LONGEST_NAME {
            return Err(GgufError::Damaged("a name is too long"));
        }
        let mut bytes = Vec::new();
        (&mut self.0).take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(GgufError::Damaged("it ends within a name"));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A number of this type of the format; nothing for floating-point numbers and flags.
    fn number(&mut self, kind: u32) -> Result<Option<u64>, GgufError> {
        Ok(match kind {
            0 => Some(self.bytes::<1>()?[0].into()),
            2 => Some(u16::from_le_bytes(self.bytes()?).into()),
            4 => Some(self.word()?.into()),
            10 => Some(self.long()?),
            1 => u64::try_from(i8::from_le_bytes(self.bytes()?)).ok(),
            3 => u64::try_from(i16::from_le_bytes(self.bytes()?)).ok(),
            5 => u64::try_from(i32::from_le_bytes(self.bytes()?)).ok(),
            11 => u64::try_from(i64::from_le_bytes(self.bytes()?)).ok(),
            7 => {
                self.skip(1)?;
                None
            }
            6 => {
                self.skip(4)?;
                None
            }
            12 => {
                self.skip(8)?;
                None
            }
            _ => return Err(GgufError::Damaged("a value has a type that is not known")),
        })
    }

    fn value(&mut self, gguf: &mut Gguf, key: &str, kind: u32) -> Result<(), GgufError> {
        match kind {
            8 if key == "general.architecture" => gguf.architecture = Some(self.text()?),
            8 if key == "general.name" => gguf.name = Some(self.text()?),
            8 => {
                let length = self.long()?;
                self.skip(length)?;
            }
            9 => self.list(gguf, key)?,
            kind => {
                if let Some(number) = self.number(kind)? {
                    gguf.numbers.insert(key.to_owned(), number);
                }
            }
        }
        Ok(())
    }

    fn list(&mut self, gguf: &mut Gguf, key: &str) -> Result<(), GgufError> {
        let kind = self.word()?;
        let length = self.long()?;
        if key == "tokenizer.ggml.tokens" {
            gguf.vocabulary = Some(length);
        }
        let mut numbers = Vec::new();
        // Each element has a byte at least, so a false length ends with the header.
        for _ in 0..length {
            if kind == 8 {
                let length = self.long()?;
                self.skip(length)?;
            } else if kind == 9 {
                return Err(GgufError::Damaged("a list holds lists"));
            } else if let Some(number) = self.number(kind)?
                && numbers.len() < 1 << 14
            {
                numbers.push(number);
            }
        }
        if length <= 1 << 14 && numbers.len() as u64 == length {
            gguf.lists.insert(key.to_owned(), numbers);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }

    /// A file of the format, as its specification has it.
    fn file() -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(2_u64.to_le_bytes());
        bytes.extend(4_u64.to_le_bytes());
        text(&mut bytes, "general.architecture");
        bytes.extend(8_u32.to_le_bytes());
        text(&mut bytes, "llama");
        text(&mut bytes, "llama.block_count");
        bytes.extend(4_u32.to_le_bytes());
        bytes.extend(32_u32.to_le_bytes());
        text(&mut bytes, "llama.rope.freq_base");
        bytes.extend(6_u32.to_le_bytes());
        bytes.extend(1e4_f32.to_le_bytes());
        text(&mut bytes, "tokenizer.ggml.tokens");
        bytes.extend(9_u32.to_le_bytes());
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend(2_u64.to_le_bytes());
        text(&mut bytes, "a");
        text(&mut bytes, "b");
        for (name, shape, kind) in [("w", [256_u64, 4], 12_u32), ("n", [64, 1], 0)] {
            text(&mut bytes, name);
            bytes.extend(2_u32.to_le_bytes());
            bytes.extend(shape[0].to_le_bytes());
            bytes.extend(shape[1].to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(0_u64.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn types_and_metadata_are_read() {
        let gguf = read_gguf(&file()[..]).unwrap();
        assert_eq!(gguf.number("block_count"), Some(32));
        assert_eq!(gguf.vocabulary, Some(2));
        assert_eq!(gguf.stored.elements, 1024 + 64);
        assert_eq!(gguf.stored.bytes, 4 * 144 + 256);
        assert_eq!(gguf.per_layer("block_count", 2), Some(vec![32, 32]));
    }

    #[test]
    fn every_cut_and_every_changed_byte_gives_an_answer() {
        let file = file();
        for end in 0..file.len() {
            assert!(read_gguf(&file[..end]).is_err(), "{end}");
        }
        for at in 0..file.len() {
            for value in [0, 127, 255] {
                let mut changed = file.clone();
                changed[at] = value;
                let _ = read_gguf(&changed[..]);
            }
        }
    }
}
