// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names and texts of the status codes that the runtime and the driver share.

/// Code, the runtime's name, the driver's name and the text of each status
/// the stand-in can answer with.
const ERRORS: &[(i32, &str, &str, &str)] = &[
    (0, "cudaSuccess", "CUDA_SUCCESS", "no error"),
    (
        13,
        "cudaErrorInvalidSymbol",
        "CUDA_ERROR_UNKNOWN",
        "invalid device symbol",
    ),
    (
        1,
        "cudaErrorInvalidValue",
        "CUDA_ERROR_INVALID_VALUE",
        "invalid argument",
    ),
    (
        2,
        "cudaErrorMemoryAllocation",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "out of memory",
    ),
    (
        3,
        "cudaErrorInitializationError",
        "CUDA_ERROR_NOT_INITIALIZED",
        "initialization error",
    ),
    (
        100,
        "cudaErrorNoDevice",
        "CUDA_ERROR_NO_DEVICE",
        "no CUDA-capable device is detected",
    ),
    (
        101,
        "cudaErrorInvalidDevice",
        "CUDA_ERROR_INVALID_DEVICE",
        "invalid device ordinal",
    ),
    (
        201,
        "cudaErrorDeviceUninitialized",
        "CUDA_ERROR_INVALID_CONTEXT",
        "invalid device context",
    ),
    (
        209,
        "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device",
    ),
    (
        400,
        "cudaErrorInvalidResourceHandle",
        "CUDA_ERROR_INVALID_HANDLE",
        "invalid resource handle",
    ),
    (
        500,
        "cudaErrorSymbolNotFound",
        "CUDA_ERROR_NOT_FOUND",
        "named symbol not found",
    ),
    (
        600,
        "cudaErrorNotReady",
        "CUDA_ERROR_NOT_READY",
        "device not ready",
    ),
    (
        801,
        "cudaErrorNotSupported",
        "CUDA_ERROR_NOT_SUPPORTED",
        "operation not supported",
    ),
    (
        900,
        "cudaErrorStreamCaptureUnsupported",
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing",
    ),
    (
        901,
        "cudaErrorStreamCaptureInvalidated",
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "operation failed due to a previous error during capture",
    ),
    (
        999,
        "cudaErrorUnknown",
        "CUDA_ERROR_UNKNOWN",
        "unknown error",
    ),
];

/// The entry of a status; that of an unknown error if there is none.
pub(super) fn find_error(status: i32) -> &'static (i32, &'static str, &'static str, &'static str) {
    let known = ERRORS.iter().find(|known| known.0 == status);
    known.unwrap_or(&ERRORS[ERRORS.len() - 1])
}
