// SPDX-License-Identifier: MIT OR Apache-2.0
//! The length of host memory that a caller passes, where no single parameter has it.
//!
//! The tables in `api/` name these functions as the length of an array. They
//! state what the C interface documents for the other arguments, and nothing
//! else: what is longer than the answer is never read or written.

pub(crate) use crate::ffi::pointer_attribute;
use crate::ffi::{Length, Ptr};
use crate::machine::{Machine, machine};
use crate::model::{cublas, cudnn, cusparse, nccl};
pub(crate) use crate::region::pitched;

fn is_cuda_13() -> bool {
    machine().is_ok_and(Machine::is_cuda_13)
}

/// One, if the parameter exists in the program's version of the interface: CUDA 13 and later.
pub(crate) fn cuda_13() -> usize {
    usize::from(is_cuda_13())
}

/// The same for what is a parameter up to CUDA 12.
pub(crate) fn before_cuda_13() -> usize {
    usize::from(!is_cuda_13())
}

/// Bytes of an attribute of a memory pool: reuse policies are `int`, the rest 64 bits.
pub(crate) fn pool_attribute(attribute: i32) -> usize {
    match attribute {
        1..=3 => 4,
        4..=8 => 8,
        _ => 0,
    }
}

/// How much of a cuBLAS result of `length` lies on the host: all or nothing.
pub(crate) fn cublas_result(handle: Ptr, length: usize) -> usize {
    if cublas::result_is_on_host(handle) {
        length
    } else {
        0
    }
}

/// Bytes of a cuBLAS result of this `cudaDataType`, if it lies on the host.
pub(crate) fn cublas_typed_result(handle: Ptr, data_type: i32) -> usize {
    cublas_result(handle, cublas::element_size(data_type))
}

/// One, if a result of cuSPARSE lies on the host.
pub(crate) fn cusparse_result(handle: Ptr) -> usize {
    usize::from(cusparse::on_host(handle))
}

/// Bytes of the elements of an attribute of a cuDNN descriptor.
pub(crate) fn cudnn_elements(of_type: i32, count: i64) -> usize {
    count
        .length()
        .saturating_mul(cudnn::attribute_element_size(of_type))
}

/// Bytes of `count` elements of this size.
pub(crate) fn elements(count: usize, size: usize) -> usize {
    count.saturating_mul(size)
}

/// Bytes from the first to the last element of a matrix, column after column.
pub(crate) fn cublas_matrix<N: Length + Copy>(
    rows: N,
    columns: N,
    element: N,
    leading: N,
) -> usize {
    let element = element.length();
    let pitch = leading.length().saturating_mul(element);
    pitched(
        pitch,
        rows.length().saturating_mul(element),
        columns.length(),
    )
}

/// Bytes from the first to the last element of a vector.
pub(crate) fn cublas_vector<N: Length + Copy>(count: N, element: N, stride: N) -> usize {
    let element = element.length();
    pitched(
        stride.length().saturating_mul(element),
        element,
        count.length(),
    )
}

/// Bytes of `count` elements of an `ncclDataType_t`.
pub(crate) fn nccl_bytes(count: usize, data_type: i32) -> usize {
    nccl::bytes(count, data_type)
}

/// Bytes of `count` elements for every rank of a communicator.
pub(crate) fn nccl_all_ranks(count: usize, data_type: i32, comm: Ptr) -> usize {
    nccl_bytes(count, data_type).saturating_mul(nccl::ranks(comm))
}
