// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules and libraries that a program loads through the driver, and the variables in them.
//!
//! A program copies a variable's true size, which it knows from its source. The size comes from the image: the symbol
//! table of a cubin, the declarations of PTX, or either of them inside a fat binary. An image in another form leaves
//! the size unknown: such a variable gets more memory than any constant needs, and the call counts as not modelled.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;

use crate::ffi::{Out, Ptr, field};
use crate::fork::Lock;
use crate::machine::code;

use super::images::{CONTAINER, FatBinary, MAX_IMAGES, NATIVE, PORTABLE};
use super::parameters::{self, Kernels, Parameters};

/// Names and sizes of variables.
type Variables = BTreeMap<Vec<u8>, usize>;

/// Larger images are not read.
const LONGEST_IMAGE: usize = 1 << 30;

pub(super) const ELF: [u8; 4] = *b"\x7fELF";
const ELF_HEAD: usize = 64;
pub(super) const SECTION_HEAD: usize = 64;
const SYMBOL: usize = 24;
/// Types of sections: symbols, and space without bytes in the file.
const SYMBOL_TABLE: u32 = 2;
const NO_BITS: u32 = 8;
/// The type of a symbol that is a variable.
const OBJECT: u8 = 1;

/// How the image of a fat binary is compressed.
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;

/// The contents of a module's image; `None` where it could not be read.
struct Module {
    variables: Option<Variables>,
    kernels: Option<Kernels>,
}

/// The loaded modules, by handle.
static MODULES: Lock<BTreeMap<usize, Module>> = Lock::new(BTreeMap::new());

/// An image that a program loads.
#[derive(Clone, Copy, Debug)]
pub struct ModuleImage<'call>(&'call [u8]);

impl ModuleImage<'_> {
    /// Takes the image and finds its length.
    ///
    /// # Safety
    /// `address` is null or points to a whole image as the driver loads it: a cubin, a text of PTX that ends with a
    /// zero, or a fat binary with or without its wrapper. The caller does not change it during the call.
    pub unsafe fn new(address: *const u8) -> Self {
        if address.is_null() {
            return Self(&[]);
        }
        // SAFETY: promised by the caller: each kind of image has as many bytes as its own heads name, and the shortest
        // text of PTX is compared byte by byte up to its end.
        unsafe {
            if starts_with(address, &ELF) {
                let length = elf_length(|length| std::slice::from_raw_parts(address, length));
                return Self(
                    length.map_or(&[], |length| std::slice::from_raw_parts(address, length)),
                );
            }
            if let Some(container) = FatBinary::container_at(address) {
                return Self(container);
            }
            Self(CStr::from_ptr(address.cast()).to_bytes())
        }
    }
}

/// # Safety
/// The bytes up to the first that differs can be read.
unsafe fn starts_with(address: *const u8, mark: &[u8]) -> bool {
    // SAFETY: promised by the caller.
    let mut bytes = mark
        .iter()
        .enumerate()
        .map(|(at, byte)| unsafe { *address.add(at) == *byte });
    bytes.all(|same| same)
}

/// How long a cubin is, by its heads. `read` gives its first bytes.
fn elf_length<'a>(read: impl Fn(usize) -> &'a [u8]) -> Option<usize> {
    let table = section_table(read(ELF_HEAD))?;
    let mut length = table.end;
    for section in read(table.end).get(table)?.chunks_exact(SECTION_HEAD) {
        let (kind, at, size) = section_place(section)?;
        if kind != NO_BITS {
            length = length.max(at.checked_add(size)?);
        }
    }
    (length <= LONGEST_IMAGE).then_some(length)
}

/// Where the heads of the sections of a 64-bit file are.
pub(super) fn section_table(head: &[u8]) -> Option<std::ops::Range<usize>> {
    const WIDE: u8 = 2;
    let is_wide = field::<u8>(head, 4)? == WIDE;
    let at = usize::try_from(field::<u64>(head, 40)?).ok()?;
    let (size, count) = (field::<u16>(head, 58)?, field::<u16>(head, 60)?);
    let end = at.checked_add(usize::from(count) * SECTION_HEAD)?;
    (is_wide && usize::from(size) == SECTION_HEAD && end <= LONGEST_IMAGE).then_some(at..end)
}

/// Type, offset and size of a section.
pub(super) fn section_place(section: &[u8]) -> Option<(u32, usize, usize)> {
    let word = |at| usize::try_from(field::<u64>(section, at)?).ok();
    Some((field(section, 4)?, word(24)?, word(32)?))
}

/// Variables of an image; `None` if it has a form that cannot be read.
fn variables_of(image: &[u8]) -> Option<Variables> {
    if image.starts_with(&ELF) {
        return variables_of_cubin(image);
    }
    if field::<u32>(image, 0) == Some(CONTAINER) {
        return variables_of_container(image);
    }
    variables_of_ptx(image)
}

fn variables_of_cubin(image: &[u8]) -> Option<Variables> {
    let sections = image.get(section_table(image)?)?;
    let part = |section: &[u8]| {
        let (_, at, size) = section_place(section)?;
        image.get(at..at.checked_add(size)?)
    };
    let mut heads = sections.chunks_exact(SECTION_HEAD);
    let table = heads.find(|head| field::<u32>(head, 4) == Some(SYMBOL_TABLE))?;
    let names = field::<u32>(table, 40)? as usize;
    let names = part(sections.chunks_exact(SECTION_HEAD).nth(names)?)?;
    let mut variables = Variables::new();
    for symbol in part(table)?.chunks_exact(SYMBOL) {
        let (name, info) = (field::<u32>(symbol, 0)?, field::<u8>(symbol, 4)?);
        let size = usize::try_from(field::<u64>(symbol, 16)?).ok()?;
        if info & 0xf != OBJECT {
            continue;
        }
        let name = names.get(name as usize..)?;
        let name = name.split(|&byte| byte == 0).next()?;
        variables.insert(name.to_owned(), size);
    }
    Some(variables)
}

/// The images of a fat binary have the same variables, apart from those that one architecture leaves out.
fn variables_of_container(container: &[u8]) -> Option<Variables> {
    let mut at = usize::from(field::<u16>(container, 6)?);
    let mut variables = None;
    for _ in 0..MAX_IMAGES {
        let Some(head) = container.get(at..).filter(|rest| rest.len() >= 64) else {
            break;
        };
        let kind = field::<u16>(head, 0)?;
        let start = field::<u32>(head, 4)? as usize;
        let padded = usize::try_from(field::<u64>(head, 8)?).ok()?;
        let end = start.checked_add(padded)?;
        if end == 0 {
            break;
        }
        let image = head.get(start..end)?;
        if kind == NATIVE || kind == PORTABLE {
            let found = variables_of(&unpacked(head, image)?)?;
            variables.get_or_insert_with(Variables::new).extend(found);
        }
        at = at.checked_add(end)?;
    }
    variables
}

/// The bytes of an image of a fat binary, by its head.
pub(super) fn unpacked<'a>(head: &[u8], image: &'a [u8]) -> Option<std::borrow::Cow<'a, [u8]>> {
    let flags = field::<u64>(head, 40)?;
    if flags & (LZ4 | ZSTD) == 0 {
        return Some(image.into());
    }
    let (packed, length) = (field::<u32>(head, 16)?, field::<u64>(head, 56)?);
    let length = usize::try_from(length).ok()?;
    if flags & ZSTD != 0 {
        let mut bytes = Vec::new();
        let decoder =
            ruzstd::decoding::StreamingDecoder::new(image.get(..packed as usize)?).ok()?;
        let limit = length.min(LONGEST_IMAGE) as u64;
        decoder.take(limit).read_to_end(&mut bytes).ok()?;
        return (bytes.len() == length).then(|| bytes.into());
    }
    // LZ4 makes at most 255 bytes of one.
    if length > LONGEST_IMAGE.min(image.len().saturating_mul(255)) {
        return None;
    }
    let bytes = lz4_flex::block::decompress(image.get(..packed as usize)?, length).ok()?;
    Some(bytes.into())
}

/// Variables that a text of PTX declares; `None` if it is not one, or if a declaration cannot be read.
fn variables_of_ptx(text: &[u8]) -> Option<Variables> {
    let text = without_comments(std::str::from_utf8(text).ok()?.trim_end_matches('\0'));
    if !text.contains(".version") {
        return None;
    }
    let mut variables = Variables::new();
    // Initial values are in braces, as functions are.
    for statement in text.split([';', '{', '}']) {
        let statement = statement.split('=').next().unwrap_or_default();
        if statement.contains(".entry") || statement.contains(".func") {
            continue;
        }
        let mut words = statement.split_whitespace();
        if words.any(|word| matches!(word, ".global" | ".const")) {
            let (name, size) = declaration(words)?;
            variables.insert(name.into_bytes(), size);
        }
    }
    Some(variables)
}

pub(super) fn without_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        kept.push_str(&rest[..at]);
        rest = rest[at..]
            .find("*/")
            .map_or("", |end| &rest[at + end + 2..]);
    }
    kept.push_str(rest);
    let lines = kept.lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

/// Name and size of a variable, by the words after its space.
pub(super) fn declaration<'a>(words: impl Iterator<Item = &'a str>) -> Option<(String, usize)> {
    let (mut element, mut count) = (0_usize, 1_usize);
    let mut words = words.peekable();
    while let Some(word) = words.next_if(|word| word.starts_with('.')) {
        match word {
            ".align" => drop(words.next()?),
            ".v2" => count = 2,
            ".v4" => count = 4,
            ".texref" | ".samplerref" | ".surfref" => element = 8,
            word if word.starts_with(".attribute") => {}
            word => {
                let bits = word.trim_start_matches(|letter: char| !letter.is_ascii_digit());
                element = bits.parse::<usize>().ok()? / 8;
            }
        }
    }
    let rest: String = words.collect();
    let mut parts = rest.split('[');
    let name = parts.next()?;
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_$%".contains(letter);
    for extent in parts {
        count = count.checked_mul(extent.strip_suffix(']')?.parse().ok()?)?;
    }
    let is_name = !name.is_empty() && name.chars().all(is_letter);
    is_name.then_some((name.to_owned(), element.checked_mul(count)?))
}

/// The description of a variable in a module's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    /// It has this many bytes.
    Sized(usize),
    /// The image cannot be read, or was never seen.
    Unknown,
    /// The image has no variable of this name.
    Missing,
}

pub(super) fn variable(module: Ptr, name: &[u8]) -> Variable {
    let modules = MODULES.lock();
    match modules.get(&module.0).map(|module| &module.variables) {
        None | Some(None) => Variable::Unknown,
        Some(Some(variables)) => variables
            .get(name)
            .map_or(Variable::Missing, |size| Variable::Sized(*size)),
    }
}

/// The parameters of a kernel of a module, where its image has them.
pub(super) fn parameters(module: Ptr, name: &CStr) -> Option<Parameters> {
    let modules = MODULES.lock();
    parameters::named(modules.get(&module.0)?.kernels.as_ref()?, name)
}

fn load_bytes(out: Out<Ptr>, image: &[u8]) -> i32 {
    let handle = Ptr::fresh();
    let module = Module {
        variables: variables_of(image),
        kernels: parameters::of_image(image),
    };
    let mut modules = MODULES.lock();
    modules.insert(handle.0, module);
    out.set(handle);
    code::SUCCESS
}

pub(crate) fn load(out: Out<Ptr>, image: ModuleImage) -> i32 {
    load_bytes(out, image.0)
}

/// A file that cannot be read leaves its variables unknown.
pub(crate) fn load_file(out: Out<Ptr>, path: Option<&CStr>) -> i32 {
    let path = OsStr::from_bytes(path.unwrap_or_default().to_bytes());
    let is_short = std::fs::metadata(path).is_ok_and(|file| file.len() <= LONGEST_IMAGE as u64);
    let image = is_short.then(|| std::fs::read(path).unwrap_or_default());
    load_bytes(out, &image.unwrap_or_default())
}

pub(crate) fn load_with_options(
    out: Out<Ptr>,
    image: ModuleImage,
    _count: u32,
    _options: Ptr,
    _values: Ptr,
) -> i32 {
    load(out, image)
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn load_library(
    out: Out<Ptr>,
    image: ModuleImage,
    _options: Ptr,
    _values: Ptr,
    _count: u32,
    _library_options: Ptr,
    _library_values: Ptr,
    _library_count: u32,
) -> i32 {
    load(out, image)
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn load_library_file(
    out: Out<Ptr>,
    path: Option<&CStr>,
    _options: Ptr,
    _values: Ptr,
    _count: u32,
    _library_options: Ptr,
    _library_values: Ptr,
    _library_count: u32,
) -> i32 {
    load_file(out, path)
}

pub(super) fn forget(module: Ptr) {
    MODULES.lock().remove(&module.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_number(bytes: &mut [u8], at: usize, value: u64, length: usize) {
        bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
    }

    /// A 64-bit ELF file with a symbol table: each symbol with its type and size.
    fn cubin(symbols: &[(&str, u8, u64)]) -> Vec<u8> {
        let mut names = vec![0_u8];
        let mut table = vec![0_u8; SYMBOL];
        for (name, kind, size) in symbols {
            let mut symbol = [0_u8; SYMBOL];
            write_number(&mut symbol, 0, names.len() as u64, 4);
            symbol[4] = 0x10 | kind;
            write_number(&mut symbol, 16, *size, 8);
            table.extend(symbol);
            names.extend(name.bytes().chain([0]));
        }
        let mut file = vec![0_u8; ELF_HEAD];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        let (table_at, names_at) = (file.len(), file.len() + table.len());
        file.extend(&table);
        file.extend(&names);
        let heads = file.len();
        for (kind, at, size, link) in [
            (SYMBOL_TABLE, table_at, table.len(), 1),
            (3, names_at, names.len(), 0),
            // Space for variables, far beyond the end of the file.
            (NO_BITS, heads, 1 << 40, 0),
        ] {
            let mut head = [0_u8; SECTION_HEAD];
            write_number(&mut head, 4, kind.into(), 4);
            write_number(&mut head, 24, at as u64, 8);
            write_number(&mut head, 32, size as u64, 8);
            write_number(&mut head, 40, link, 4);
            file.extend(head);
        }
        write_number(&mut file, 40, heads as u64, 8);
        write_number(&mut file, 58, SECTION_HEAD as u64, 2);
        write_number(&mut file, 60, 3, 2);
        file
    }

    fn container(images: &[(u64, Vec<u8>, usize)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (flags, image, unpacked) in images {
            let mut head = [0_u8; 64];
            write_number(&mut head, 0, NATIVE.into(), 2);
            write_number(&mut head, 4, 64, 4);
            write_number(&mut head, 8, image.len().next_multiple_of(8) as u64, 8);
            write_number(&mut head, 16, image.len() as u64, 4);
            write_number(&mut head, 40, *flags, 8);
            write_number(&mut head, 56, *unpacked as u64, 8);
            body.extend(head);
            body.extend(image);
            body.resize(body.len().next_multiple_of(8), 0);
        }
        let mut container = vec![0_u8; 16];
        write_number(&mut container, 0, CONTAINER.into(), 4);
        write_number(&mut container, 6, 16, 2);
        write_number(&mut container, 8, body.len() as u64, 8);
        container.extend(body);
        container
    }

    /// A block of LZ4 that is literals alone.
    fn lz4(bytes: &[u8]) -> Vec<u8> {
        let mut block = vec![0xf0];
        let mut rest = bytes.len() - 15;
        while rest >= 255 {
            block.push(255);
            rest -= 255;
        }
        block.push(rest as u8);
        block.extend(bytes);
        block
    }

    fn sizes(image: &[u8]) -> Option<Vec<(String, usize)>> {
        let named = |(name, size)| (String::from_utf8(name).unwrap(), size);
        variables_of(image).map(|found| found.into_iter().map(named).collect())
    }

    #[test]
    fn sizes_of_variables_are_those_of_the_image() {
        let file = cubin(&[
            ("table", OBJECT, 40_000),
            ("kernel", 2, 128),
            ("flag", OBJECT, 4),
        ]);
        let expected = Some(vec![("flag".to_owned(), 4), ("table".to_owned(), 40_000)]);
        assert_eq!(sizes(&file), expected);
        assert_eq!(elf_length(|length| &file[..length]), Some(file.len()));
        let plain = container(&[(0, file.clone(), 0)]);
        assert_eq!(sizes(&plain), expected);
        let packed = container(&[(LZ4, lz4(&file), file.len())]);
        assert_eq!(sizes(&packed), expected);
        let other = container(&[(ZSTD, lz4(&file), file.len())]);
        assert_eq!(sizes(&other), None, "a form that is not read");
    }

    #[test]
    fn sizes_of_variables_are_those_of_ptx() {
        let text = b".version 8.7\n.target sm_90\n.address_size 64\n\n/* .global .b8 no[1]; */\n\
            .visible .global .align 16 .b8 table[40000];\n.const .align 4 .u32 three[3] = {1, 2, 3};\n\
            .global .v4 .f32 rows[2][3];\n.visible .global .attribute(.managed) .align 8 .u64 pointer = 0;\n\
            .visible .entry k(.param .u64 .ptr .global .align 1 k_param_0)\n{\n ld.global.u32 %r1, [%rd1];\n}\n\0";
        let named = |(name, size): (&str, usize)| (name.to_owned(), size);
        let expected = [
            ("pointer", 8),
            ("rows", 96),
            ("table", 40_000),
            ("three", 12),
        ];
        assert_eq!(sizes(text), Some(expected.map(named).to_vec()));
        assert_eq!(sizes(b".version 8.7 .extern .global .b8 open[];"), None);
        assert_eq!(sizes(b"no image"), None);
    }

    #[test]
    fn broken_images_are_unknown_and_do_not_panic() {
        let file = cubin(&[("table", OBJECT, 40_000)]);
        let packed = container(&[(LZ4, lz4(&file), file.len())]);
        let mut seed = 1_u64;
        for image in [&file, &packed] {
            for cut in 0..image.len() {
                let _ = variables_of(&image[..cut]);
            }
            for _ in 0..20_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let mut broken = image.clone();
                let at = (seed >> 33) as usize % broken.len();
                broken[at] = (seed >> 20) as u8;
                let _ = variables_of(&broken);
            }
        }
    }
}
