// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuDNN: versions, handles, descriptors that read back, and sizes.
//!
//! * [`real`] finds the user's own libraries, [`backend`] the convolutions and
//!   attention that torch builds as graphs;
//! * [`recurrent`] knows how the weights of recurrent networks lie in memory.
//!
//! Torch compares the version with the one it was built for, so it is queried from
//! the user's library. Sizes that only a library with a device can give are
//! answered with zero and named to the user.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::MutexGuard;

pub(crate) mod backend;
pub(crate) mod real;
pub(crate) mod recurrent;

pub(crate) use backend::{
    attribute_element_size, cudnnBackendCreateDescriptor, cudnnBackendDestroyDescriptor,
    cudnnBackendExecute, cudnnBackendFinalize, cudnnBackendGetAttribute, cudnnBackendInitialize,
    cudnnBackendSetAttribute,
};
pub(crate) use recurrent::{
    cudnnDestroyRNNDataDescriptor, cudnnDestroyRNNDescriptor, cudnnGetRNNLinLayerBiasParams,
    cudnnGetRNNLinLayerMatrixParams, cudnnGetRNNParamsSize, cudnnGetRNNTempSpaceSizes,
    cudnnGetRNNTrainingReserveSize, cudnnGetRNNWeightParams, cudnnGetRNNWeightSpaceSize,
    cudnnGetRNNWorkspaceSize, cudnnSetRNNBiasMode, cudnnSetRNNDataDescriptor,
    cudnnSetRNNDescriptor_v6, cudnnSetRNNDescriptor_v8, cudnnSetRNNProjectionLayers,
};

use crate::ffi::{Out, OutArray, OutText, Ptr};
use crate::fork::{Lazy, Lock};
use crate::machine::{current, machine};
use crate::recorder::{self, static_text};

pub(super) const SUCCESS: i32 = 0;
pub(super) const NOT_INITIALIZED: i32 = 1001;
pub(super) const BAD_PARAM: i32 = 2000;

pub(super) const NAMES: [&std::ffi::CStr; 2] = [c"libcudnn.so.9", c"libcudnn.so.8"];

// Versions.

pub(crate) fn cudnnGetVersion() -> usize {
    // Queried for every graph, so the answer is kept once there is one.
    static VERSION: Lazy<usize> = Lazy::new();
    VERSION
        .get_or_try_find(|| real::number(&NAMES, c"cudnnGetVersion"))
        .unwrap_or(90100)
}

pub(crate) fn cudnnGetCudartVersion() -> usize {
    real::number(&NAMES, c"cudnnGetCudartVersion")
        .unwrap_or_else(|| machine().map_or(0, |machine| machine.config.cuda_version as usize))
}

pub(crate) fn cudnnGetProperty(kind: i32, value: Out<i32>) -> i32 {
    let version = cudnnGetVersion() as i32;
    let simulated = match kind {
        0 => version / 10000,
        1 => version % 10000 / 100,
        _ => version % 100,
    };
    value.set(real::property(&NAMES, c"cudnnGetProperty", kind).unwrap_or(simulated));
    SUCCESS
}

pub(crate) fn cudnnGetMaxDeviceVersion() -> usize {
    real::number(&NAMES, c"cudnnGetMaxDeviceVersion").unwrap_or(1210)
}

pub(crate) fn cudnnGetErrorString(status: i32) -> Ptr {
    let name = match status {
        0 => "CUDNN_STATUS_SUCCESS",
        1001 => "CUDNN_STATUS_NOT_INITIALIZED",
        2000..=2999 => "CUDNN_STATUS_BAD_PARAM",
        3000..=3999 => "CUDNN_STATUS_NOT_SUPPORTED",
        4000..=4999 => "CUDNN_STATUS_INTERNAL_ERROR",
        5000..=5999 => "CUDNN_STATUS_EXECUTION_FAILED",
        _ => "CUDNN_STATUS_UNKNOWN",
    };
    Ptr::text(static_text(name.to_owned()))
}

/// The message of the user's library about the last graph it refused.
pub(crate) fn cudnnGetLastErrorString(message: OutText, _room: usize) {
    message.set("");
    if let Some(address) = real::function(&NAMES, c"cudnnGetLastErrorString") {
        // SAFETY: the same function, with the caller's buffer.
        unsafe {
            let ask: unsafe extern "C" fn(*mut c_char, usize) = std::mem::transmute(address);
            ask(message.as_mut_ptr(), message.room());
        }
    }
}

// Handles.

static STREAMS: Lock<BTreeMap<Ptr, Ptr>> = Lock::new(BTreeMap::new());

fn streams() -> MutexGuard<'static, BTreeMap<Ptr, Ptr>> {
    STREAMS.lock()
}

pub(super) fn stream_of(handle: Ptr) -> Ptr {
    streams().get(&handle).copied().unwrap_or_default()
}

pub(crate) fn cudnnCreate(handle: Out<Ptr>) -> i32 {
    if machine().is_err() {
        return NOT_INITIALIZED;
    }
    let new = Ptr::fresh();
    streams().insert(new, Ptr::NULL);
    handle.set(new);
    SUCCESS
}

pub(crate) fn cudnnDestroy(handle: Ptr) -> i32 {
    streams().remove(&handle);
    SUCCESS
}

pub(crate) fn cudnnSetStream(handle: Ptr, stream: Ptr) -> i32 {
    streams().insert(handle, stream);
    SUCCESS
}

pub(crate) fn cudnnGetStream(handle: Ptr, stream: Out<Ptr>) -> i32 {
    stream.set(stream_of(handle));
    SUCCESS
}

// Sizes.

/// Names a function to the user, once, whose answer is a guess.
pub(super) fn guessed(name: &'static str) {
    static NAMED: Lock<Vec<&str>> = Lock::new(Vec::new());
    let mut named = NAMED.lock();
    if !named.contains(&name) {
        named.push(name);
        recorder::note_unmodelled(name);
    }
}

/// A generator for each of the threads that cuDNN starts on every
/// multiprocessor; how many is not documented, so this is a guess.
pub(crate) fn cudnnDropoutGetStatesSize(_handle: Ptr, size: Out<usize>) -> i32 {
    guessed("cudnnDropoutGetStatesSize");
    let multiprocessors = machine()
        .and_then(|machine| machine.profile(current() as i32))
        .map_or(1, |profile| profile.sm_count as usize);
    size.set(multiprocessors * 512 * 48);
    SUCCESS
}

/// Normalisation over batches takes no workspace that is known of.
#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    _handle: Ptr,
    _mode: i32,
    _ops: i32,
    _x: Ptr,
    _z: Ptr,
    _y: Ptr,
    _scale: Ptr,
    _activation: Ptr,
    _size: Out<usize>,
) -> i32 {
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    _handle: Ptr,
    _mode: i32,
    _ops: i32,
    _x: Ptr,
    _y: Ptr,
    _dy: Ptr,
    _dz: Ptr,
    _dx: Ptr,
    _scale: Ptr,
    _activation: Ptr,
    _size: Out<usize>,
) -> i32 {
    SUCCESS
}

pub(crate) fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    _handle: Ptr,
    _mode: i32,
    _ops: i32,
    _activation: Ptr,
    _x: Ptr,
    _size: Out<usize>,
) -> i32 {
    SUCCESS
}

/// Torch builds convolutions as graphs; the older way is answered with zero.
pub(crate) fn cudnnGetConvolutionForwardWorkspaceSize(
    _handle: Ptr,
    _x: Ptr,
    _w: Ptr,
    _convolution: Ptr,
    _y: Ptr,
    _algorithm: i32,
    _size: Out<usize>,
) -> i32 {
    guessed("cudnnGetConvolutionForwardWorkspaceSize");
    SUCCESS
}

pub(crate) fn cudnnGetConvolutionBackwardDataWorkspaceSize(
    _handle: Ptr,
    _w: Ptr,
    _dy: Ptr,
    _convolution: Ptr,
    _dx: Ptr,
    _algorithm: i32,
    _size: Out<usize>,
) -> i32 {
    guessed("cudnnGetConvolutionBackwardDataWorkspaceSize");
    SUCCESS
}

pub(crate) fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
    _handle: Ptr,
    _x: Ptr,
    _dy: Ptr,
    _convolution: Ptr,
    _dw: Ptr,
    _algorithm: i32,
    _size: Out<usize>,
) -> i32 {
    guessed("cudnnGetConvolutionBackwardFilterWorkspaceSize");
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnGetCTCLossWorkspaceSize(
    _handle: Ptr,
    _probabilities: Ptr,
    _gradients: Ptr,
    _labels: Ptr,
    _label_lengths: Ptr,
    _input_lengths: Ptr,
    _algorithm: i32,
    _loss: Ptr,
    _size: Out<usize>,
) -> i32 {
    guessed("cudnnGetCTCLossWorkspaceSize");
    SUCCESS
}

pub(crate) fn cudnnGetCTCLossWorkspaceSize_v8(
    _handle: Ptr,
    _algorithm: i32,
    _loss: Ptr,
    _probabilities: Ptr,
    _gradients: Ptr,
    _size: Out<usize>,
) -> i32 {
    guessed("cudnnGetCTCLossWorkspaceSize_v8");
    SUCCESS
}

// The older choice of a convolution's algorithm.

/// Bytes of a result.
const ALGORITHM: usize = 48;

/// One result: algorithm 1, which every kind of convolution has, with success,
/// no time and no workspace; deterministic, by default arithmetic.
fn one_algorithm(requested: i32, returned: &Out<i32>, results: &OutArray<[u8; ALGORITHM]>) -> i32 {
    if requested < 1 {
        return BAD_PARAM;
    }
    results.set(0, [0; ALGORITHM]);
    results.write_at(0, 1_i32);
    results.write_at(24, 1_i32);
    returned.set(1);
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn choose(
    _handle: Ptr,
    _first: Ptr,
    _second: Ptr,
    _convolution: Ptr,
    _third: Ptr,
    requested: i32,
    returned: Out<i32>,
    results: OutArray<[u8; ALGORITHM]>,
) -> i32 {
    one_algorithm(requested, &returned, &results)
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn find(
    _handle: Ptr,
    _first: Ptr,
    _first_data: Ptr,
    _second: Ptr,
    _second_data: Ptr,
    _convolution: Ptr,
    _third: Ptr,
    _third_data: Ptr,
    requested: i32,
    returned: Out<i32>,
    results: OutArray<[u8; ALGORITHM]>,
    _workspace: Ptr,
    _workspace_size: usize,
) -> i32 {
    one_algorithm(requested, &returned, &results)
}

pub(crate) use {
    choose as cudnnGetConvolutionBackwardDataAlgorithm_v7,
    choose as cudnnGetConvolutionBackwardFilterAlgorithm_v7,
    choose as cudnnGetConvolutionForwardAlgorithm_v7,
    find as cudnnFindConvolutionBackwardDataAlgorithmEx,
    find as cudnnFindConvolutionBackwardFilterAlgorithmEx,
    find as cudnnFindConvolutionForwardAlgorithmEx,
};

// Tensors and filters, as they were described.

#[derive(Clone, Default)]
pub(super) struct Tensor {
    pub(super) data_type: i32,
    pub(super) format: i32,
    pub(super) sizes: Vec<i32>,
    pub(super) strides: Vec<i32>,
}

static TENSORS: Lock<BTreeMap<Ptr, Tensor>> = Lock::new(BTreeMap::new());

fn tensors() -> MutexGuard<'static, BTreeMap<Ptr, Tensor>> {
    TENSORS.lock()
}

/// Type and sizes of a tensor that was described.
pub(super) fn shape(tensor: Ptr) -> Option<(i32, Vec<i32>)> {
    let tensors = tensors();
    let tensor = tensors.get(&tensor)?;
    Some((tensor.data_type, tensor.sizes.clone()))
}

/// Describes a tensor whose elements lie one after the other.
pub(super) fn describe(tensor: Ptr, data_type: i32, sizes: &[i32]) {
    let mut strides = vec![1; sizes.len()];
    for index in (1..sizes.len()).rev() {
        strides[index - 1] = strides[index] * sizes[index];
    }
    let described = Tensor {
        data_type,
        format: 0,
        sizes: sizes.to_vec(),
        strides,
    };
    tensors().insert(tensor, described);
}

pub(crate) fn cudnnSetTensorNdDescriptor(
    tensor: Ptr,
    data_type: i32,
    _count: i32,
    sizes: &[i32],
    strides: &[i32],
) -> i32 {
    let described = Tensor {
        data_type,
        format: 0,
        sizes: sizes.to_vec(),
        strides: strides.to_vec(),
    };
    tensors().insert(tensor, described);
    SUCCESS
}

pub(crate) fn cudnnGetTensorNdDescriptor(
    tensor: Ptr,
    _requested: i32,
    data_type: Out<i32>,
    count: Out<i32>,
    sizes: OutArray<i32>,
    strides: OutArray<i32>,
) -> i32 {
    let known = tensors().get(&tensor).cloned().unwrap_or_default();
    data_type.set(known.data_type);
    count.set(known.sizes.len() as i32);
    sizes.set_all(&known.sizes);
    strides.set_all(&known.strides);
    SUCCESS
}

pub(crate) fn cudnnSetFilterNdDescriptor(
    filter: Ptr,
    data_type: i32,
    format: i32,
    _count: i32,
    sizes: &[i32],
) -> i32 {
    describe(filter, data_type, sizes);
    if let Some(filter) = tensors().get_mut(&filter) {
        filter.format = format;
    }
    SUCCESS
}

pub(crate) fn cudnnGetFilterNdDescriptor(
    filter: Ptr,
    _requested: i32,
    data_type: Out<i32>,
    format: Out<i32>,
    count: Out<i32>,
    sizes: OutArray<i32>,
) -> i32 {
    let known = tensors().get(&filter).cloned().unwrap_or_default();
    data_type.set(known.data_type);
    format.set(known.format);
    count.set(known.sizes.len() as i32);
    sizes.set_all(&known.sizes);
    SUCCESS
}

pub(crate) fn cudnnDestroyTensorDescriptor(tensor: Ptr) -> i32 {
    tensors().remove(&tensor);
    SUCCESS
}

pub(crate) use cudnnDestroyTensorDescriptor as cudnnDestroyFilterDescriptor;

/// Bytes of an element of a `cudnnDataType_t`.
pub(super) fn element_size(data_type: i32) -> usize {
    match data_type {
        1 | 10 | 20 => 8,
        2 | 9 => 2,
        3 | 6 | 11..=13 | 15 | 22 | 23 => 1,
        21 => 16,
        _ => 4,
    }
}
