// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of functions that an ELF file exports, as far as `attach` needs them.

use std::collections::BTreeMap;

/// A type of file that is loaded at its own addresses.
const FIXED: u64 = 2;
/// The type of a section with exported symbols.
const EXPORTED: u64 = 11;
/// Bytes of a symbol.
const SYMBOL: usize = 24;

/// The exported functions among `names`, by their distance from the beginning of the file in memory.
pub(super) struct Exports {
    pub(super) found: BTreeMap<String, u64>,
    /// Whether the addresses are absolute.
    pub(super) is_fixed: bool,
}

/// Reads a file of 64 bits, little-endian. `None` for any other, and for a damaged one.
pub(super) fn exports(file: &[u8], names: &[&str]) -> Option<Exports> {
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (sections, count) = (number(file, 40, 8)?, number(file, 60, 2)?);
    let section = |index: u64| sections.checked_add(index.checked_mul(64)?);
    let mut found = BTreeMap::new();
    for index in 0..count {
        let at = section(index)?;
        if number(file, at.checked_add(4)?, 4)? != EXPORTED {
            continue;
        }
        let (symbols, bytes) = (number(file, at + 24, 8)?, number(file, at + 32, 8)?);
        let texts = number(file, section(number(file, at + 40, 4)?)? + 24, 8)?;
        let begin = usize::try_from(symbols).ok()?;
        let end = begin.checked_add(usize::try_from(bytes).ok()?)?;
        for symbol in file.get(begin..end)?.chunks_exact(SYMBOL) {
            let (name, place) = (number(symbol, 0, 4)?, number(symbol, 8, 8)?);
            let at = usize::try_from(texts.checked_add(name)?).ok()?;
            let text = file.get(at..)?;
            let of = |name: &&&str| {
                place != 0 && text.starts_with(name.as_bytes()) && text.get(name.len()) == Some(&0)
            };
            if let Some(name) = names.iter().find(of) {
                found.insert((*name).to_owned(), place);
            }
        }
    }
    Some(Exports {
        found,
        is_fixed: number(file, 16, 2)? == FIXED,
    })
}

/// A number of `size` bytes.
fn number(file: &[u8], at: u64, size: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = file.get(at..at.checked_add(size)?)?;
    let digits = bytes.iter().rev();
    Some(digits.fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_found_and_damage_is_none() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut files = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        let libc = files.find(|file| file.contains("/libc")).unwrap();
        let bytes = std::fs::read(libc).unwrap();
        let all = exports(&bytes, &["mmap", "no_such_function"]).unwrap();
        assert!(all.found["mmap"] > 0 && all.found.len() == 1 && !all.is_fixed);
        assert!(exports(b"text", &["mmap"]).is_none());
        for length in [6, 64, 100, bytes.len() / 2] {
            // A cut file must not panic.
            _ = exports(&bytes[..length], &["mmap"]);
        }
        let mut wrong = bytes.clone();
        wrong[40..48].fill(0xff);
        assert!(exports(&wrong, &["mmap"]).is_none());
    }
}
