// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters of kernels: how many bytes each has, by the image of the kernel.
//!
//! A launch passes the address of each parameter and no size. The sizes are in the section `.nv.info.<kernel>` of the
//! image. An image is read at the first launch of one of its kernels: a library has thousands. All images of a fat
//! binary have the same parameters, so the smallest that has the kernel is read, for whatever device it was built.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::Arc;

use super::images::{self, CONTAINER, MAX_IMAGES, NATIVE, PORTABLE};
use super::modules::{
    ELF, SECTION_HEAD, declaration, section_place, section_table, unpacked, without_comments,
};
use crate::ffi::{Arguments, Ptr, field};
use crate::fork::Lock;
use crate::uses;

/// Records of `.nv.info`: with a payload, and those that describe a parameter.
const SIZED: u8 = 4;
const PARAMETER: u8 = 0x17;
const LONG_PARAMETER: u8 = 0x45;
/// How the names of these sections begin.
const SECTION: &[u8] = b".nv.info.";

/// The parameters of a kernel that have room for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Position and size of each.
    sizes: Arc<[(u16, u32)]>,
    /// The layout of the first of them, for kernels of PyTorch that take lists of tensors.
    lists: Option<Lists>,
}

/// The struct by which PyTorch passes lists of tensors to a kernel: lists of addresses, as long as the longest may be,
/// and for each block of the grid the number of its tensor. Other words are of earlier work, so that
/// all words together would name memory that the kernel does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lists {
    /// Words of a list.
    length: usize,
    /// Words of all lists of addresses and sizes.
    words: usize,
    /// Where the numbers of the blocks begin, their bytes, and how many there is room for.
    blocks: (usize, usize, usize),
}

impl Lists {
    /// The lists of a kernel with this name whose first parameter has so many bytes; `None` if it is another kernel, or
    /// one of a version whose struct is another.
    fn from_name(name: &[u8], size: usize) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let (_, after) = name.split_once("multi_tensor_apply_kernel")?;
        let (before, after) = after.split_once("ListMetadataI")?;
        let depth: usize = after.split_once("Li")?.1.get(..1)?.parse().ok()?;
        let (has_scalars, has_steps) = (before.contains("Scalar"), before.contains("Fused"));
        let is_long = size > 1 << 13;
        let lengths = match (is_long, has_scalars) {
            (true, false) => [770, 448, 336, 252, 210],
            (true, true) => [672, 448, 336, 252, 210],
            (false, false) => [110, 64, 48, 36, 30],
            (false, true) => [96, 64, 48, 36, 30],
        };
        let length = *lengths.get(depth.checked_sub(1)?)?;
        let (room, number) = if is_long { (2240, 2) } else { (320, 1) };
        // Behind the numbers are those of chunks, and in structs without scalars one number more.
        let behind = room * (number + 4) + if has_scalars { 0 } else { 4 };
        let head = size.checked_sub(behind)? / 8 * 8;
        let words = length * (depth + 1 + usize::from(has_steps));
        let is_known = if has_scalars {
            head > words * 8
        } else {
            head == words * 8
        };
        is_known.then_some(Self {
            length,
            words,
            blocks: (head, number, room),
        })
    }

    /// The words that the blocks of a grid use.
    fn used(&self, bytes: &[u8], grid: u32) -> Vec<u64> {
        let (at, number, room) = self.blocks;
        let blocks = bytes.get(at..).unwrap_or_default().chunks_exact(number);
        let numbers = blocks
            .take(room.min(grid as usize))
            .map(|block| match *block {
                [low, high] => usize::from(u16::from_le_bytes([low, high])),
                [number] => usize::from(number),
                _ => 0,
            });
        let tensors = numbers.max().map_or(0, |last| last + 1);
        let words = bytes.as_chunks::<8>().0.iter().take(self.words).enumerate();
        let used = words.filter(|(index, _)| index % self.length < tensors);
        used.map(|(_, word)| u64::from_ne_bytes(*word)).collect()
    }
}
/// Parameters of kernels, by name.
pub(super) type Kernels = HashMap<Box<[u8]>, Parameters>;

/// The parts of a fat binary's images that have been read.
struct Binary {
    kernels: Kernels,
    /// How many of its images were read.
    images: usize,
}

/// Fat binaries of the program, by handle.
static BINARIES: Lock<BTreeMap<usize, Binary>> = Lock::new(BTreeMap::new());
/// Kernels that were launched or looked up; `None` where nothing is known of one.
static KERNELS: Lock<BTreeMap<Ptr, Option<Parameters>>> = Lock::new(BTreeMap::new());

/// The parameters of a kernel of a loaded module are these.
pub(super) fn register(kernel: Ptr, parameters: Option<Parameters>) {
    KERNELS.lock().insert(kernel, parameters);
}

/// A fat binary is gone, and its kernels with it.
pub(super) fn forget(handle: Ptr) {
    if BINARIES.lock().remove(&handle.0).is_some() {
        KERNELS.lock().clear();
    }
}

fn find_parameters(kernel: Ptr) -> Option<Parameters> {
    if let Some(known) = KERNELS.lock().get(&kernel) {
        return known.clone();
    }
    let found = images::with_container(kernel, |handle, container, name| {
        let mut binaries = BINARIES.lock();
        let binary = binaries.entry(handle).or_insert_with(|| Binary {
            kernels: Kernels::new(),
            images: 0,
        });
        let images = by_size(container);
        loop {
            if let Some(parameters) = binary.kernels.get(name) {
                return Some(parameters.clone());
            }
            let (_, head, image) = images.get(binary.images)?;
            binary.images += 1;
            let kernels = unpacked(head, image).and_then(|image| of_image(&image));
            binary.kernels.extend(kernels.unwrap_or_default());
        }
    });
    let parameters = found.flatten();
    register(kernel, parameters.clone());
    parameters
}

/// Notes what a launch uses, by the addresses of its arguments, or by all of them in one piece.
pub(crate) fn launched(kernel: Ptr, grid: u32, arguments: Arguments, packed: Arguments) {
    if !uses::are_followed() {
        return;
    }
    // SAFETY: a driver's launch passes such a list, and none where each argument has an address.
    let words = unsafe { packed.packed_words() };
    if !words.is_empty() {
        return uses::touch(words.into_iter());
    }
    match find_parameters(kernel) {
        // SAFETY: a launch passes the address of each parameter of the kernel, which are as long as in its image.
        Some(parameters) => unsafe {
            let (first, others) = match (parameters.lists, &*parameters.sizes) {
                (Some(lists), [(0, size), others @ ..]) => {
                    let bytes = arguments.first_bytes(*size as usize);
                    (lists.used(bytes, grid), others)
                }
                (_, all) => (Vec::new(), all),
            };
            uses::touch(first.into_iter().chain(arguments.words(others)));
        },
        None => uses::note_unread(),
    }
}

/// Kind, head and bytes of each image, those of devices before the portable ones, the smallest first.
fn by_size(container: &[u8]) -> Vec<(u16, &[u8], &[u8])> {
    let mut found = Vec::new();
    let mut at = field::<u16>(container, 6).map_or(usize::MAX, usize::from);
    while let Some(head) = container.get(at..).filter(|rest| rest.len() >= 64) {
        let start = field::<u32>(head, 4).unwrap_or(0) as usize;
        let padded = field::<u64>(head, 8).and_then(|size| usize::try_from(size).ok());
        let end = padded.and_then(|size| start.checked_add(size));
        let (Some(kind), Some(end)) = (field::<u16>(head, 0), end) else {
            break;
        };
        let Some(image) = head.get(start..end).filter(|_| end > 0) else {
            break;
        };
        if (kind == NATIVE || kind == PORTABLE) && found.len() < MAX_IMAGES {
            found.push((kind, head, image));
        }
        at += end;
    }
    found.sort_by_key(|(kind, _, image)| (*kind != NATIVE, image.len()));
    found
}

/// The kernels of an image; `None` if it has a form that cannot be read.
pub(super) fn of_image(image: &[u8]) -> Option<Kernels> {
    if image.starts_with(&ELF) {
        return of_cubin(image);
    }
    if field::<u32>(image, 0) == Some(CONTAINER) {
        let mut kernels = Kernels::new();
        for (_, head, image) in by_size(image) {
            kernels.extend(of_image(&unpacked(head, image)?)?);
        }
        return Some(kernels);
    }
    of_ptx(image)
}

fn of_cubin(image: &[u8]) -> Option<Kernels> {
    let heads = image.get(section_table(image)?)?;
    let part = |section: &[u8]| {
        let (_, at, size) = section_place(section)?;
        image.get(at..at.checked_add(size)?)
    };
    let names = usize::from(field::<u16>(image, 62)?);
    let names = part(heads.chunks_exact(SECTION_HEAD).nth(names)?)?;
    let mut kernels = Kernels::new();
    for section in heads.chunks_exact(SECTION_HEAD) {
        let name = names.get(field::<u32>(section, 0)? as usize..)?;
        let name = name.split(|&byte| byte == 0).next()?;
        if let Some(name) = name.strip_prefix(SECTION) {
            kernels.insert(name.into(), of_records(name, part(section)?)?);
        }
    }
    Some(kernels)
}

/// The records that describe parameters: index, ordinal, offset, and a size.
fn of_records(name: &[u8], mut records: &[u8]) -> Option<Parameters> {
    let mut parameters = Vec::new();
    while let [form, what, low, high, rest @ ..] = records {
        records = rest;
        if *form != SIZED {
            continue;
        }
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (payload, rest) = records.split_at_checked(length)?;
        records = rest;
        let size = match *what {
            PARAMETER => field::<u32>(payload, 8)? >> 18,
            LONG_PARAMETER => field::<u32>(payload, 8)?,
            _ => continue,
        };
        parameters.push((field::<u16>(payload, 4)?, size));
    }
    Some(with_room(name, parameters))
}

fn with_room(name: &[u8], mut parameters: Vec<(u16, u32)>) -> Parameters {
    parameters.retain(|(_, size)| *size >= 8);
    parameters.sort_unstable();
    let first = parameters.first().filter(|(position, _)| *position == 0);
    Parameters {
        lists: first.and_then(|(_, size)| Lists::from_name(name, *size as usize)),
        sizes: parameters.into(),
    }
}

/// The entries of a text of PTX: `.entry name(.param .u64 one, .param .align 8 .b8 two[472])`.
fn of_ptx(text: &[u8]) -> Option<Kernels> {
    let text = without_comments(std::str::from_utf8(text).ok()?.trim_end_matches('\0'));
    if !text.contains(".version") {
        return None;
    }
    let mut kernels = Kernels::new();
    for entry in text.split(".entry").skip(1) {
        let body = entry.split(['{', ';']).next()?;
        let (name, list) = body.split_once('(').unwrap_or((body, ""));
        let list = list.split(')').next()?;
        let mut parameters = Vec::new();
        let declared = list.split(',').filter(|one| !one.trim().is_empty());
        for (position, one) in declared.enumerate() {
            let words = one.split_whitespace().filter(|word| *word != ".param");
            // A pointer may name its space: `.param .u64 .ptr .global .align 16 name`.
            let words: Vec<&str> = words
                .filter(|word| {
                    !matches!(*word, ".ptr" | ".global" | ".shared" | ".const" | ".local")
                })
                .collect();
            let (_, size) = declaration(words.into_iter())?;
            parameters.push((u16::try_from(position).ok()?, u32::try_from(size).ok()?));
        }
        let name = name.trim().as_bytes();
        kernels.insert(name.into(), with_room(name, parameters));
    }
    Some(kernels)
}

/// The parameters of the kernel with this name.
pub(super) fn named(kernels: &Kernels, name: &CStr) -> Option<Parameters> {
    kernels.get(name.to_bytes()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(what: u8, ordinal: u16, size: u32) -> Vec<u8> {
        let mut bytes = vec![SIZED, what, 12, 0, 0, 0, 0, 0];
        bytes.extend(ordinal.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(size.to_le_bytes());
        bytes
    }

    #[test]
    fn parameters_are_those_of_the_records() {
        let mut bytes = vec![3, 0x1b, 0xff, 0];
        bytes.extend(record(PARAMETER, 1, 472 << 18 | 0x1f000));
        bytes.extend(record(PARAMETER, 0, 4 << 18));
        bytes.extend(record(LONG_PARAMETER, 2, 30_242));
        let found = of_records(b"kernel", &bytes).expect("records");
        assert_eq!(*found.sizes, [(1, 472), (2, 30_242)]);
        bytes.truncate(bytes.len() - 1);
        assert_eq!(of_records(b"kernel", &bytes), None);
    }

    #[test]
    fn of_lists_of_tensors_only_what_the_grid_uses_counts() {
        // Sizes of kernels of torch 2.15, and of one with short lists.
        for (name, size, length, words) in [
            (
                "multi_tensor_apply_kernelINS1_18TensorListMetadataILi1E",
                25_768,
                770,
                1540,
            ),
            (
                "multi_tensor_apply_kernelINS1_18TensorListMetadataILi4E",
                23_528,
                252,
                1260,
            ),
            (
                "multi_tensor_apply_kernelINS1_32FusedOptimizerTensorListMetadataILi5E",
                25_208,
                210,
                1470,
            ),
            (
                "multi_tensor_apply_kernelINS1_28TensorListScalarListMetadataIdLi3E",
                26_880,
                336,
                1344,
            ),
            (
                "multi_tensor_apply_kernelINS1_18TensorListMetadataILi2E",
                3144,
                64,
                192,
            ),
        ] {
            let lists = Lists::from_name(name.as_bytes(), size).expect(name);
            assert_eq!((lists.length, lists.words), (length, words), "{name}");
            let mut bytes = vec![0x11; size];
            let (at, number, _) = lists.blocks;
            bytes[at..at + 3 * number].fill(0);
            bytes[at + 2 * number] = 1;
            assert_eq!(lists.used(&bytes, 3).len(), 2 * words / length, "{name}");
            assert_eq!(lists.used(&bytes, 2).len(), words / length, "{name}");
        }
        assert_eq!(Lists::from_name(b"elementwise_kernel", 25_768), None);
        assert_eq!(
            Lists::from_name(
                b"multi_tensor_apply_kernelINS1_18TensorListMetadataILi1E",
                25_000
            ),
            None
        );
    }

    #[test]
    fn parameters_are_those_of_ptx() {
        let text = b".version 8.7\n.target sm_90\n.visible .entry one(\n.param .u64 .ptr .global .align 16 a,\n\
            .param .u32 b,\n.param .align 8 .b8 c[472]\n)\n.maxntid 128\n{ ret; }\n.entry two() { }\0";
        let found = of_ptx(text).expect("PTX");
        assert_eq!(*found[b"one".as_slice()].sizes, [(0, 8), (2, 472)]);
        assert!(found[b"two".as_slice()].sizes.is_empty());
        assert!(of_ptx(b"no image").is_none());
    }
}
