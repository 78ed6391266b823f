// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of PyTorch's attention, whose operations are counted when they are launched.
//!
//! They are PyTorch's own and not a library's: all that is seen of them is a launch. Their names describe them, and
//! their one argument is a struct with the sizes. Where the sizes in it do not agree with the grid, the struct is not
//! the one that is known here: then nothing is counted but that there was such a kernel.

use std::collections::BTreeMap;
use std::ffi::CStr;

use crate::costs::{self, Type};
use crate::ffi::{Arguments, Dim3, Ptr, field};
use crate::fork::Lock;

/// How many bytes of the argument are read; each of the structs is longer.
const READ: usize = 200;

/// A kernel of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    FlashForward,
    FlashBackward,
    EfficientForward,
    EfficientBackward,
}

/// Parts of names, and whether the products are in 32 bits.
fn recognize_kernel(name: &str) -> Option<(Kernel, Type)> {
    let single = |name: &str| {
        if name.contains("_f32_") {
            Type::Single
        } else {
            Type::Half
        }
    };
    if name.contains("flash_fwd_kernel") || name.contains("flash_fwd_splitkv_kernel") {
        Some((Kernel::FlashForward, Type::Half))
    } else if name.contains("flash_bwd_dq_dk_dv_loop") {
        Some((Kernel::FlashBackward, Type::Half))
    } else if name.contains("fmha_cutlassF") {
        Some((Kernel::EfficientForward, single(name)))
    } else if name.contains("fmha_cutlassB") {
        Some((Kernel::EfficientBackward, single(name)))
    } else {
        None
    }
}

/// The kernels, by the address that launches them.
static KERNELS: Lock<BTreeMap<Ptr, (Kernel, Type)>> = Lock::new(BTreeMap::new());

/// A program has a kernel of this name.
pub(crate) fn register(host: Ptr, name: Option<&CStr>) {
    let name = name.and_then(|name| name.to_str().ok()).unwrap_or_default();
    if let Some(kernel) = recognize_kernel(name) {
        let mut kernels = KERNELS.lock();
        kernels.insert(host, kernel);
    }
}

/// A kernel is launched.
pub(crate) fn launched(host: Ptr, grid: Dim3, arguments: Arguments) {
    let kernels = KERNELS.lock();
    let Some(&(kernel, kind)) = kernels.get(&host) else {
        return;
    };
    drop(kernels);
    // SAFETY: kernels of these names take one struct that is longer.
    let parameters = unsafe { arguments.first::<READ>() };
    match parameters.and_then(|parameters| products(kernel, grid, &parameters)) {
        Some(sizes) => costs::attention(kind, sizes),
        None => costs::unknown_attention(),
    }
}

/// Elements of the products of a kernel: heads of all batches, queries, keys, and the sum of the inner sizes. As if no
/// position were masked.
fn products(kernel: Kernel, grid: Dim3, parameters: &[u8; READ]) -> Option<[u64; 4]> {
    let number = |at: usize| {
        let number: i32 = field(parameters, at)?;
        let number = u64::try_from(number).ok()?;
        (1..1 << 28).contains(&number).then_some(number)
    };
    let is = |extent: u32, size: u64| u64::from(extent) == size;
    let flash = |inner: u64| {
        let (heads, batches) = (number(96)?, number(176)?);
        let agrees = (is(grid.y, batches) && is(grid.z, heads))
            // Splits of the keys take the place of the batches.
            || is(grid.z, batches * heads);
        agrees.then_some([
            batches * heads,
            number(180)?,
            number(184)?,
            inner * number(192)?,
        ])
    };
    match kernel {
        // Scores and their sum over the values; the backward pass has the scores again and four more.
        Kernel::FlashForward => flash(2),
        Kernel::FlashBackward => flash(5),
        Kernel::EfficientForward => {
            let (queries, keys) = (number(104)?, number(108)?);
            let rows = [32, 64, 128];
            let agrees = rows.iter().any(|rows| is(grid.x, queries.div_ceil(*rows)));
            let heads = u64::from(grid.y) * u64::from(grid.z);
            agrees.then_some([heads, queries, keys, number(96)? + number(100)?])
        }
        Kernel::EfficientBackward => {
            let agrees = is(grid.y, number(160)?);
            let heads = u64::from(grid.y) * u64::from(grid.z);
            let inner = 3 * number(144)? + 2 * number(148)?;
            agrees.then_some([heads, number(152)?, number(156)?, inner])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struct_of(numbers: &[(usize, i32)]) -> [u8; READ] {
        let mut bytes = [0; READ];
        for (at, number) in numbers {
            bytes[*at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn sizes_are_taken_only_where_they_agree_with_the_grid() {
        let forward = struct_of(&[(96, 8), (176, 2), (180, 512), (184, 512), (192, 64)]);
        let grid = |x, y, z| Dim3 { x, y, z };
        let count = products(Kernel::FlashForward, grid(4, 2, 8), &forward);
        assert_eq!(count, Some([16, 512, 512, 128]));
        assert_eq!(
            products(Kernel::FlashForward, grid(4, 3, 8), &forward),
            None
        );
        let efficient = struct_of(&[(96, 64), (100, 32), (104, 100), (108, 200)]);
        let count = products(Kernel::EfficientForward, grid(2, 8, 2), &efficient);
        assert_eq!(count, Some([16, 100, 200, 96]));
        assert_eq!(
            products(Kernel::EfficientForward, grid(9, 8, 2), &efficient),
            None
        );
    }

    #[test]
    fn kernels_are_known_by_their_names() {
        assert_eq!(
            recognize_kernel("fmha_cutlassF_f32_aligned_64x64_rf_sm80"),
            Some((Kernel::EfficientForward, Type::Single))
        );
        assert_eq!(
            recognize_kernel("_ZN13pytorch_flash16flash_fwd_kernelI23Flash"),
            Some((Kernel::FlashForward, Type::Half))
        );
        assert_eq!(recognize_kernel("vectorized_elementwise_kernel"), None);
    }
}
