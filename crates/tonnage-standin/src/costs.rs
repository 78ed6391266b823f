// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work that a process has the GPU do: operations of matrix products, bytes that are copied, kernels.
//!
//! The counts only grow. The Python hook reads them after steps of an optimizer, so that the cost of a step is a
//! difference.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ffi::OutArray;

/// The type that a matrix product computes with, as far as speed depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// 8 bits or fewer.
    Byte,
    /// 16 bits.
    Half,
    /// 32 bits.
    Single,
    /// 64 bits.
    Double,
    /// Two numbers of 32 bits.
    Complex,
    /// Two numbers of 64 bits.
    DoubleComplex,
}

impl Type {
    /// By CUDA's number of a data type.
    pub(crate) fn of_number(number: i32) -> Self {
        match number {
            0 => Self::Single,
            1 => Self::Double,
            4 => Self::Complex,
            5 => Self::DoubleComplex,
            // Integers of 8 and 4 bits, and floating-point numbers of 8, 6 and 4.
            3 | 7 | 8 | 9 | 16..=19 | 28.. => Self::Byte,
            _ => Self::Half,
        }
    }

    /// By the letter in the name of a function of cuBLAS.
    pub(crate) fn of_letter(letter: Option<char>) -> Self {
        match letter {
            Some('S') => Self::Single,
            Some('D') => Self::Double,
            Some('C') => Self::Complex,
            Some('Z') => Self::DoubleComplex,
            _ => Self::Half,
        }
    }
}

/// The operation that is counted.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
enum Count {
    /// Floating-point operations of products in 16 bits.
    Half = 0,
    /// In 32 bits.
    Single = 1,
    /// In 64 bits.
    Double = 2,
    /// Bytes copied from the host to a device.
    ToDevice = 3,
    /// Bytes copied from a device to the host.
    ToHost = 4,
    /// Bytes copied on a device or between two.
    OnDevice = 5,
    /// Kernels launched, without those of libraries that are replaced.
    Launches = 6,
    /// Matrix products.
    Products = 7,
    /// Executions of cuDNN, whose operations are not counted.
    Cudnn = 8,
    /// Kernels of attention, whose operations are counted as products.
    Attention = 9,
    /// Kernels of attention whose operations could not be counted.
    UnknownAttention = 10,
    /// Operations of products in 8 bits or fewer.
    Byte = 11,
    /// Operations inside kernels of attention, which are among those of their type. A kernel leaves out what a mask
    /// hides, so that it may do fewer.
    InAttention = 12,
}

const COUNTS: usize = Count::InAttention as usize + 1;

static COUNTED: [AtomicU64; COUNTS] = [const { AtomicU64::new(0) }; COUNTS];

fn add(count: Count, amount: u64) {
    COUNTED[count as usize].fetch_add(amount, Ordering::Relaxed);
}

/// Counts the operations of a matrix product: a multiplication and an addition for each element of `m × n × k`.
pub(crate) fn product(kind: Type, sizes: [u64; 4]) {
    count_operations(kind, sizes);
    add(Count::Products, 1);
}

/// Counts operations by their type, and returns how many there are.
fn count_operations(kind: Type, sizes: [u64; 4]) -> u64 {
    let elements = sizes
        .iter()
        .fold(1_u64, |all, size| all.saturating_mul(*size));
    let (count, operations) = match kind {
        Type::Byte => (Count::Byte, 2),
        Type::Half => (Count::Half, 2),
        Type::Single => (Count::Single, 2),
        Type::Double => (Count::Double, 2),
        Type::Complex => (Count::Single, 8),
        Type::DoubleComplex => (Count::Double, 8),
    };
    let operations = elements.saturating_mul(operations);
    add(count, operations);
    operations
}

/// Counts the products inside a kernel of attention.
pub(crate) fn attention(kind: Type, sizes: [u64; 4]) {
    let operations = count_operations(kind, sizes);
    add(Count::InAttention, operations);
    add(Count::Products, 1);
    add(Count::Attention, 1);
}

/// Counts a kernel of attention of unknown sizes.
pub(crate) fn unknown_attention() {
    add(Count::UnknownAttention, 1);
}

/// Counts bytes that are copied.
pub(crate) fn copied(to_device: bool, from_device: bool, bytes: usize) {
    let count = match (to_device, from_device) {
        (true, true) => Count::OnDevice,
        (true, false) => Count::ToDevice,
        (false, true) => Count::ToHost,
        (false, false) => return,
    };
    add(count, bytes as u64);
}

/// Counts a kernel.
pub(crate) fn launched() {
    add(Count::Launches, 1);
}

/// Counts an execution of cuDNN.
pub(crate) fn executed_cudnn() {
    add(Count::Cudnn, 1);
}

/// Writes the counts, in the order of [`Count`], and returns how many there are.
///
/// # Safety
/// `counts` is null or the address of `room` numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_costs(counts: *mut u64, room: usize) -> usize {
    // SAFETY: as the caller promises.
    let out = unsafe { OutArray::new(counts, room) };
    for (index, count) in COUNTED.iter().enumerate().take(out.len()) {
        out.set(index, count.load(Ordering::Relaxed));
    }
    COUNTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_products_are_known_by_number_and_by_letter() {
        assert_eq!(Type::of_number(14), Type::Half, "bfloat16");
        assert_eq!(Type::of_number(2), Type::Half, "float16");
        assert_eq!(Type::of_number(3), Type::Byte, "int8");
        assert_eq!(Type::of_number(28), Type::Byte, "float8_e4m3");
        assert_eq!(Type::of_number(0), Type::of_letter(Some('S')));
        assert_eq!(Type::of_number(1), Type::of_letter(Some('D')));
        assert_eq!(Type::of_letter(Some('H')), Type::Half);
    }
}
