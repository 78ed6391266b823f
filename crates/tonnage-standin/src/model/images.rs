// SPDX-License-Identifier: MIT OR Apache-2.0
//! For which devices the kernels of a program were built.
//!
//! Libraries query the architecture that a kernel was built for, and choose by it; a number they were never built
//! for leaves them without a choice, and they fail. A device takes the nearest image of its own generation that is not
//! newer than itself, or a portable one; so the answer is read from the images themselves. Tens of thousands of kernels
//! register at start-up: only addresses are kept, and images are read at the first query.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

use crate::ffi::{Plain, Ptr};
use crate::fork::Lock;

/// The marks at the beginning of a fat binary and of the images in it.
const WRAPPER: u32 = 0x4662_43b1;
pub(super) const CONTAINER: u32 = 0xba55_ed50;
/// Kinds of images: portable code, and code of one architecture.
pub(super) const PORTABLE: u16 = 1;
pub(super) const NATIVE: u16 = 2;
/// More images than any binary has; what is longer is not read on.
pub(super) const MAX_IMAGES: usize = 256;

/// The header that a compiler puts before a fat binary: a mark, a version and the address of the container.
#[derive(Debug)]
#[repr(C)]
pub struct FatBinaryWrapper {
    mark: u32,
    version: u32,
    container: *const u8,
    unused: *const u8,
}

/// A fat binary of the program, which lasts until the program unregisters it.
#[derive(Debug)]
pub struct FatBinary(*const FatBinaryWrapper);

// SAFETY: the binary is constant data, which any thread may read.
unsafe impl Send for FatBinary {}

impl FatBinary {
    /// Takes the address and reads nothing yet.
    ///
    /// # Safety
    /// `wrapper` is null or points to a fat binary, as compilers make them, that is not changed and
    /// stays where it is for as long as this value.
    pub unsafe fn new(wrapper: *const FatBinaryWrapper) -> Self {
        Self(wrapper)
    }

    /// The container at an address, whole, with or without its wrapper; `None` if it is not a fat binary.
    ///
    /// # Safety
    /// `address` points to at least eight bytes or to a text with a zero at its end; where it points to a fat binary,
    /// that is whole and is not changed for as long as the result is used.
    pub(super) unsafe fn container_at<'a>(address: *const u8) -> Option<&'a [u8]> {
        let marks = |address: *const u8, mark: u32| {
            let mut bytes = mark.to_le_bytes().into_iter().enumerate();
            // SAFETY: promised by the caller; a text ends with a zero, which no mark has.
            bytes.all(|(at, byte)| unsafe { *address.add(at) } == byte)
        };
        let mut address = address;
        if marks(address, WRAPPER) {
            // SAFETY: promised by the caller: it is a wrapper.
            address = unsafe { address.cast::<FatBinaryWrapper>().read_unaligned() }.container;
        }
        if address.is_null() || !marks(address, CONTAINER) {
            return None;
        }
        let container = Container(address);
        let length = head_and(container.read::<u16>(6).into(), container.read(8))?;
        isize::try_from(length).ok()?;
        // SAFETY: promised by the caller: a container has as many bytes as its head names.
        Some(unsafe { std::slice::from_raw_parts(address, length) })
    }

    /// Kind and architecture of each image; none if it is not a fat binary.
    fn images(&self) -> Vec<(u16, i32)> {
        let mut found = Vec::new();
        // SAFETY: promised to `new`.
        let Some(wrapper) = (unsafe { self.0.as_ref() }) else {
            return found;
        };
        if wrapper.mark != WRAPPER || wrapper.container.is_null() {
            return found;
        }
        let container = Container(wrapper.container);
        if container.read::<u32>(0) != CONTAINER {
            return found;
        }
        let head = usize::from(container.read::<u16>(6));
        let Some(end) = head_and(head, container.read(8)) else {
            return found;
        };
        let mut at: usize = head;
        while at < end && found.len() < MAX_IMAGES {
            let (kind, head) = (container.read(at), container.read::<u32>(at + 4));
            let (size, built) = (container.read(at + 8), container.read::<u32>(at + 28));
            if let Ok(built) = i32::try_from(built) {
                found.push((kind, built));
            }
            match head_and(head as usize, size) {
                Some(length) if length > 0 => at = at.saturating_add(length),
                _ => break,
            }
        }
        found
    }
}

/// The container of a fat binary, read at places that its own heads name.
struct Container(*const u8);

impl Container {
    fn read<T: Plain>(&self, offset: usize) -> T {
        // SAFETY: `FatBinary::new` was promised a container as compilers make them: its heads name
        // places inside of it.
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }
}

/// Handles of fat binaries with the binary, and kernels with their handle and name.
struct Images {
    binaries: BTreeMap<usize, FatBinary>,
    /// The last is the address of the kernel's name, which is in the binary.
    kernels: Vec<(usize, usize, usize)>,
    is_sorted: bool,
}

static IMAGES: Lock<Images> = Lock::new(Images {
    binaries: BTreeMap::new(),
    kernels: Vec::new(),
    is_sorted: true,
});

/// A handle for a fat binary.
pub(super) fn register_binary(binary: FatBinary) -> Ptr {
    let handle = Ptr::fresh();
    let mut images = IMAGES.lock();
    images.binaries.insert(handle.0, binary);
    handle
}

/// A fat binary is gone with its library.
pub(super) fn unregister_binary(handle: Ptr) {
    let mut images = IMAGES.lock();
    images.binaries.remove(&handle.0);
    drop(images);
    super::parameters::forget(handle);
}

/// A kernel of a fat binary, by the address that programs know it by.
pub(super) fn register_kernel(handle: Ptr, host: Ptr, name: Option<&CStr>) {
    let mut images = IMAGES.lock();
    let name = name.map_or(0, |name| name.as_ptr() as usize);
    images.kernels.push((host.0, handle.0, name));
    images.is_sorted = false;
}

/// The image of a kernel that a device of this architecture runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Image {
    /// Code for this architecture.
    Native(i32),
    /// Portable code of this version, translated for the device.
    Portable(i32),
    /// There is nothing that it could run.
    Missing,
    /// The kernel was never registered: the driver's own way of loading was used.
    Unknown,
}

impl Images {
    /// The binary of a kernel, with the binary's handle and the address of the kernel's name.
    fn find(&mut self, kernel: Ptr) -> Option<(usize, &FatBinary, usize)> {
        if !self.is_sorted {
            self.kernels.sort_unstable();
            self.is_sorted = true;
        }
        let found = self.kernels.partition_point(|(host, ..)| *host < kernel.0);
        let &(host, handle, name) = self.kernels.get(found)?;
        let binary = self.binaries.get(&handle)?;
        (host == kernel.0).then_some((handle, binary, name))
    }
}

/// The image of a kernel that a device would take.
pub(super) fn select_image(kernel: Ptr, device: i32) -> Image {
    let mut images = IMAGES.lock();
    let found = images.find(kernel);
    found.map_or(Image::Unknown, |(_, binary, _)| {
        choose(&binary.images(), device)
    })
}

/// Reads the fat binary of a kernel: its handle, its bytes and the name of the kernel.
pub(super) fn with_container<R>(
    kernel: Ptr,
    read: impl FnOnce(usize, &[u8], &[u8]) -> R,
) -> Option<R> {
    let mut images = IMAGES.lock();
    let (handle, binary, name) = images.find(kernel)?;
    if binary.0.is_null() || name == 0 {
        return None;
    }
    // SAFETY: promised to `new`, and the name is in the same binary, which is registered still: the lock is held.
    let (container, name) = unsafe {
        let container = FatBinary::container_at(binary.0.cast())?;
        (container, CStr::from_ptr(name as *const c_char).to_bytes())
    };
    Some(read(handle, container, name))
}

/// The nearest of the device's own generation, else the newest portable one that is not newer.
fn choose(images: &[(u16, i32)], device: i32) -> Image {
    if images.is_empty() {
        return Image::Unknown;
    }
    let of_kind = |kind: u16| images.iter().filter(move |image| image.0 == kind);
    let native = of_kind(NATIVE).map(|image| image.1);
    let native = native.filter(|built| built / 10 == device / 10 && *built <= device);
    let portable = of_kind(PORTABLE).map(|image| image.1);
    let portable = portable.filter(|built| *built <= device);
    match (native.max(), portable.max()) {
        (Some(built), _) => Image::Native(built),
        (None, Some(built)) => Image::Portable(built),
        (None, None) => Image::Missing,
    }
}

fn head_and(head: usize, size: u64) -> Option<usize> {
    head.checked_add(usize::try_from(size).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fat binary with these images, each with some bytes of code.
    fn binary(images: &[(u16, u32)]) -> (Vec<u64>, Vec<u8>) {
        let mut body = Vec::new();
        for (kind, built) in images {
            let mut head = vec![0_u8; 64];
            head[0..2].copy_from_slice(&kind.to_le_bytes());
            head[4..8].copy_from_slice(&64_u32.to_le_bytes());
            head[8..16].copy_from_slice(&24_u64.to_le_bytes());
            head[28..32].copy_from_slice(&built.to_le_bytes());
            head.extend([0x55; 24]);
            body.extend(head);
        }
        let mut container = Vec::new();
        container.extend(CONTAINER.to_le_bytes());
        container.extend(1_u16.to_le_bytes());
        container.extend(16_u16.to_le_bytes());
        container.extend((body.len() as u64).to_le_bytes());
        container.extend(body);
        let wrapper = vec![u64::from(WRAPPER) | 1 << 32, container.as_ptr() as u64, 0];
        (wrapper, container)
    }

    #[test]
    fn a_device_takes_the_nearest_image_of_its_generation() {
        let built = [
            (NATIVE, 75),
            (NATIVE, 80),
            (NATIVE, 86),
            (NATIVE, 90),
            (PORTABLE, 90),
        ];
        let (wrapper, _container) = binary(&built);
        // SAFETY: a whole binary, which lives until the end of the test.
        let handle = register_binary(unsafe { FatBinary::new(wrapper.as_ptr().cast()) });
        let kernel = Ptr(0x1234_5678);
        register_kernel(handle, kernel, None);
        assert_eq!(select_image(kernel, 89), Image::Native(86));
        assert_eq!(select_image(kernel, 86), Image::Native(86));
        assert_eq!(select_image(kernel, 80), Image::Native(80));
        assert_eq!(select_image(kernel, 90), Image::Native(90));
        assert_eq!(select_image(kernel, 120), Image::Portable(90));
        assert_eq!(select_image(kernel, 70), Image::Missing);
        assert_eq!(select_image(Ptr(1), 89), Image::Unknown);
        unregister_binary(handle);
        assert_eq!(select_image(kernel, 89), Image::Unknown);
    }

    #[test]
    fn what_is_no_fat_binary_says_nothing() {
        let zeros = [0_u64; 8];
        // SAFETY: both may be read, and neither names a container.
        let [other, null] = unsafe {
            [
                FatBinary::new(zeros.as_ptr().cast()),
                FatBinary::new(std::ptr::null()),
            ]
        };
        assert_eq!(other.images(), []);
        assert_eq!(null.images(), []);
    }
}
