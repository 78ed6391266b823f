// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recurrent networks: where each weight lies, and how much room they take.
//!
//! The weights are one block: the matrices of every layer and direction, input
//! gates before recurrent gates, then the biases in the same order. Torch
//! checks that gates follow one another. The size is the sum of the parts,
//! which torch relies on when it flattens the weights of a module.
//!
//! The space that a forward pass reserves for its backward pass is not documented; the
//! answer is what has to be kept by the equations, and named to the user.
//!
//! Torch up to 2.1 calls the interface of cuDNN 8 and older, which names the
//! input by a tensor in each call, and matrices and biases by functions of their
//! own. Both interfaces come to the same network here.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::{BAD_PARAM, SUCCESS, describe, element_size, guessed, shape};
use crate::ffi::{Out, Ptr};
use crate::fork::Lock;

/// Both the input's and the recurrent matrices have a bias, unless the program sets otherwise.
const BOTH_BIASES: i32 = 2;

#[derive(Clone, Copy, Default)]
struct Network {
    cell: i32,
    bias: i32,
    directions: usize,
    data_type: i32,
    input: usize,
    hidden: usize,
    /// The size of a layer's output: the projection, where there is one.
    output: usize,
    layers: usize,
}

#[derive(Clone, Copy, Default)]
struct Sequence {
    length: usize,
    batch: usize,
}

static NETWORKS: Lock<BTreeMap<Ptr, Network>> = Lock::new(BTreeMap::new());
static SEQUENCES: Lock<BTreeMap<Ptr, Sequence>> = Lock::new(BTreeMap::new());

fn networks() -> MutexGuard<'static, BTreeMap<Ptr, Network>> {
    NETWORKS.lock()
}

fn sequences() -> MutexGuard<'static, BTreeMap<Ptr, Sequence>> {
    SEQUENCES.lock()
}

impl Network {
    /// Gates of a cell: plain 1, LSTM 4, GRU 3.
    fn gates(&self) -> usize {
        match self.cell {
            2 => 4,
            3 => 3,
            _ => 1,
        }
    }

    fn has_projection(&self) -> bool {
        self.output != self.hidden
    }

    /// Matrices of a layer in one direction.
    fn matrices(&self) -> usize {
        2 * self.gates() + usize::from(self.has_projection())
    }

    /// Rows and columns of matrix `index` of a layer.
    fn matrix(&self, layer: usize, index: usize) -> (usize, usize) {
        let gates = self.gates();
        if index < gates {
            let first = layer < self.directions;
            let columns = if first {
                self.input
            } else {
                self.output * self.directions
            };
            (self.hidden, columns)
        } else if index < 2 * gates {
            (self.hidden, self.output)
        } else {
            (self.output, self.hidden)
        }
    }

    fn matrix_elements(&self, layer: usize, index: usize) -> usize {
        let (rows, columns) = self.matrix(layer, index);
        rows * columns
    }

    /// Whether matrix `index` has a bias: both kinds by default.
    fn has_bias(&self, index: usize) -> bool {
        let gates = self.gates();
        match self.bias {
            0 => false,
            1 => index < gates,
            3 => (gates..2 * gates).contains(&index),
            _ => index < 2 * gates,
        }
    }

    /// Layers, each direction counted by itself.
    fn all_layers(&self) -> usize {
        self.layers * self.directions
    }

    /// Elements before matrix `index` of `layer`.
    fn matrix_offset(&self, layer: usize, index: usize) -> usize {
        let before: usize = (0..layer)
            .flat_map(|layer| (0..self.matrices()).map(move |index| (layer, index)))
            .map(|(layer, index)| self.matrix_elements(layer, index))
            .sum();
        let within: usize = (0..index)
            .map(|index| self.matrix_elements(layer, index))
            .sum();
        before + within
    }

    fn biases(&self, up_to: usize) -> usize {
        (0..up_to).filter(|&index| self.has_bias(index)).count()
    }

    fn bias_offset(&self, layer: usize, index: usize) -> usize {
        let before = layer * self.biases(self.matrices()) + self.biases(index);
        self.matrix_offset(self.all_layers(), 0) + before * self.hidden
    }

    fn elements(&self) -> usize {
        self.bias_offset(self.all_layers(), 0)
    }
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnSetRNNDescriptor_v8(
    network: Ptr,
    _algorithm: i32,
    cell: i32,
    bias: i32,
    direction: i32,
    _input_mode: i32,
    data_type: i32,
    _precision: i32,
    _math: i32,
    input: i32,
    hidden: i32,
    projection: i32,
    layers: i32,
    _dropout: Ptr,
    _flags: u32,
) -> i32 {
    let described = Network {
        cell,
        bias,
        directions: if direction == 1 { 2 } else { 1 },
        data_type,
        input: input.max(0) as usize,
        hidden: hidden.max(0) as usize,
        output: if projection > 0 { projection } else { hidden }.max(0) as usize,
        layers: layers.max(0) as usize,
    };
    networks().insert(network, described);
    SUCCESS
}

pub(crate) fn cudnnDestroyRNNDescriptor(network: Ptr) -> i32 {
    networks().remove(&network);
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnSetRNNDataDescriptor(
    data: Ptr,
    _data_type: i32,
    _layout: i32,
    length: i32,
    batch: i32,
    _vector: i32,
    _lengths: Ptr,
    _padding: Ptr,
) -> i32 {
    let sequence = Sequence {
        length: length.max(0) as usize,
        batch: batch.max(0) as usize,
    };
    sequences().insert(data, sequence);
    SUCCESS
}

pub(crate) fn cudnnDestroyRNNDataDescriptor(data: Ptr) -> i32 {
    sequences().remove(&data);
    SUCCESS
}

fn network(descriptor: Ptr) -> Option<Network> {
    networks().get(&descriptor).copied()
}

pub(crate) fn cudnnGetRNNWeightSpaceSize(_handle: Ptr, descriptor: Ptr, size: Out<usize>) -> i32 {
    let Some(network) = network(descriptor) else {
        return BAD_PARAM;
    };
    size.set(network.elements() * element_size(network.data_type));
    SUCCESS
}

impl Network {
    /// Bytes of workspace for so many steps of all sequences: what the input makes of every gate.
    fn workspace(&self, steps: usize) -> usize {
        steps * self.hidden * self.directions * self.gates() * element_size(self.data_type)
    }

    /// Bytes reserved in training: gates, state and output of every step (a GRU also keeps its recurrent candidate).
    fn reserve(&self, steps: usize) -> usize {
        let kept = match self.cell {
            2 => 6,
            3 => 5,
            _ => 2,
        };
        steps * self.hidden * self.all_layers() * kept * element_size(self.data_type)
    }
}

pub(crate) fn cudnnGetRNNTempSpaceSizes(
    _handle: Ptr,
    descriptor: Ptr,
    mode: i32,
    data: Ptr,
    workspace: Out<usize>,
    reserve: Out<usize>,
) -> i32 {
    guessed("cudnnGetRNNTempSpaceSizes");
    let (Some(network), Some(sequence)) = (network(descriptor), sequences().get(&data).copied())
    else {
        return BAD_PARAM;
    };
    let steps = sequence.length * sequence.batch;
    workspace.set(network.workspace(steps));
    if mode == 1 {
        reserve.set(network.reserve(steps));
    }
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnGetRNNWeightParams(
    _handle: Ptr,
    descriptor: Ptr,
    layer: i32,
    size: usize,
    weights: Ptr,
    index: i32,
    matrix: Ptr,
    matrix_address: Out<Ptr>,
    bias: Ptr,
    bias_address: Out<Ptr>,
) -> i32 {
    let Some(network) = network(descriptor) else {
        return BAD_PARAM;
    };
    let (layer, index) = (layer.max(0) as usize, index.max(0) as usize);
    let element = element_size(network.data_type);
    if layer >= network.all_layers() || network.elements() * element > size {
        return BAD_PARAM;
    }
    if index < network.matrices() {
        let (rows, columns) = network.matrix(layer, index);
        describe(matrix, network.data_type, &[1, rows as i32, columns as i32]);
        let offset = network.matrix_offset(layer, index) * element;
        matrix_address.set(Ptr(weights.0 + offset));
    } else {
        describe(matrix, network.data_type, &[0, 0, 0]);
    }
    if network.has_bias(index) {
        describe(bias, network.data_type, &[1, network.hidden as i32, 1]);
        let offset = network.bias_offset(layer, index) * element;
        bias_address.set(Ptr(weights.0 + offset));
    } else {
        describe(bias, network.data_type, &[0, 0, 0]);
    }
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnSetRNNDescriptor_v6(
    _handle: Ptr,
    network: Ptr,
    hidden: i32,
    layers: i32,
    _dropout: Ptr,
    _input_mode: i32,
    direction: i32,
    cell: i32,
    _algorithm: i32,
    precision: i32,
) -> i32 {
    let hidden = hidden.max(0) as usize;
    let described = Network {
        cell,
        bias: BOTH_BIASES,
        directions: if direction == 1 { 2 } else { 1 },
        data_type: precision,
        input: 0,
        hidden,
        output: hidden,
        layers: layers.max(0) as usize,
    };
    networks().insert(network, described);
    SUCCESS
}

/// The recurrent projection; one of the output is not supported by cuDNN either.
pub(crate) fn cudnnSetRNNProjectionLayers(
    _handle: Ptr,
    descriptor: Ptr,
    recurrent: i32,
    _output: i32,
) -> i32 {
    match networks().get_mut(&descriptor) {
        Some(network) => {
            if recurrent > 0 {
                network.output = recurrent as usize;
            }
            SUCCESS
        }
        None => BAD_PARAM,
    }
}

pub(crate) fn cudnnSetRNNBiasMode(descriptor: Ptr, mode: i32) -> i32 {
    match networks().get_mut(&descriptor) {
        Some(network) => {
            network.bias = mode;
            SUCCESS
        }
        None => BAD_PARAM,
    }
}

/// The network with the input that a tensor of one step has: its second size, and its type.
fn with_input(descriptor: Ptr, step: Ptr) -> Option<Network> {
    let (data_type, sizes) = shape(step)?;
    let input = sizes.get(1).copied().unwrap_or(0).max(0) as usize;
    network(descriptor).map(|network| Network {
        data_type,
        input,
        ..network
    })
}

pub(crate) fn cudnnGetRNNParamsSize(
    _handle: Ptr,
    descriptor: Ptr,
    step: Ptr,
    size: Out<usize>,
    data_type: i32,
) -> i32 {
    let Some(network) = with_input(descriptor, step) else {
        return BAD_PARAM;
    };
    size.set(network.elements() * element_size(data_type));
    SUCCESS
}

/// The network and its steps, of all sequences together: each step has a tensor, whose first size is its batch.
fn with_steps(descriptor: Ptr, steps: &[Ptr]) -> Option<(Network, usize)> {
    let network = with_input(descriptor, *steps.first()?)?;
    let batch = |step: &Ptr| {
        let first = shape(*step).and_then(|(_, sizes)| sizes.first().copied());
        first.unwrap_or(0).max(0) as usize
    };
    Some((network, steps.iter().map(batch).sum()))
}

pub(crate) fn cudnnGetRNNWorkspaceSize(
    _handle: Ptr,
    descriptor: Ptr,
    _length: i32,
    steps: &[Ptr],
    size: Out<usize>,
) -> i32 {
    guessed("cudnnGetRNNWorkspaceSize");
    let Some((network, steps)) = with_steps(descriptor, steps) else {
        return BAD_PARAM;
    };
    size.set(network.workspace(steps));
    SUCCESS
}

pub(crate) fn cudnnGetRNNTrainingReserveSize(
    _handle: Ptr,
    descriptor: Ptr,
    _length: i32,
    steps: &[Ptr],
    size: Out<usize>,
) -> i32 {
    guessed("cudnnGetRNNTrainingReserveSize");
    let Some((network, steps)) = with_steps(descriptor, steps) else {
        return BAD_PARAM;
    };
    size.set(network.reserve(steps));
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnGetRNNLinLayerMatrixParams(
    _handle: Ptr,
    descriptor: Ptr,
    layer: i32,
    step: Ptr,
    _weights_described: Ptr,
    weights: Ptr,
    index: i32,
    matrix: Ptr,
    address: Out<Ptr>,
) -> i32 {
    let (layer, index) = (layer.max(0) as usize, index.max(0) as usize);
    let Some(network) = with_input(descriptor, step) else {
        return BAD_PARAM;
    };
    if layer >= network.all_layers() || index >= network.matrices() {
        return BAD_PARAM;
    }
    let (rows, columns) = network.matrix(layer, index);
    describe(matrix, network.data_type, &[1, rows as i32, columns as i32]);
    let offset = network.matrix_offset(layer, index) * element_size(network.data_type);
    address.set(Ptr(weights.0 + offset));
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn cudnnGetRNNLinLayerBiasParams(
    _handle: Ptr,
    descriptor: Ptr,
    layer: i32,
    step: Ptr,
    _weights_described: Ptr,
    weights: Ptr,
    index: i32,
    bias: Ptr,
    address: Out<Ptr>,
) -> i32 {
    let (layer, index) = (layer.max(0) as usize, index.max(0) as usize);
    let Some(network) = with_input(descriptor, step) else {
        return BAD_PARAM;
    };
    if layer >= network.all_layers() || !network.has_bias(index) {
        return BAD_PARAM;
    }
    describe(bias, network.data_type, &[1, network.hidden as i32, 1]);
    let offset = network.bias_offset(layer, index) * element_size(network.data_type);
    address.set(Ptr(weights.0 + offset));
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_the_whole() {
        let network = Network {
            cell: 2,
            bias: 2,
            directions: 2,
            data_type: 0,
            input: 10,
            hidden: 20,
            output: 20,
            layers: 2,
        };
        // nn.LSTM(10, 20, 2, bidirectional=True) has this many parameters.
        let layer = |input: usize| 2 * (80 * input + 80 * 20 + 2 * 80);
        assert_eq!(network.elements(), layer(10) + layer(40));
        assert_eq!(network.matrix_offset(0, 1), 200);
        assert_eq!(network.bias_offset(3, 8), network.elements());
    }

    #[test]
    fn both_interfaces_describe_the_same_network() {
        let (old, new, step) = (Ptr(0x51), Ptr(0x52), Ptr(0x53));
        let weights = Ptr(1 << 20);
        describe(step, 0, &[16, 10, 1]);
        let lstm = 2;
        cudnnSetRNNDescriptor_v6(Ptr::NULL, old, 20, 2, Ptr::NULL, 0, 1, lstm, 0, 0);
        cudnnSetRNNDescriptor_v8(new, 0, lstm, 2, 1, 0, 0, 0, 0, 10, 20, 20, 2, Ptr::NULL, 0);
        let (mut size_old, mut size_new) = (0_usize, 0_usize);
        // SAFETY: local variables, here and below.
        let [out_old, out_new] =
            unsafe { [Out::new(&raw mut size_old), Out::new(&raw mut size_new)] };
        assert_eq!(
            cudnnGetRNNParamsSize(Ptr::NULL, old, step, out_old, 0),
            SUCCESS
        );
        assert_eq!(cudnnGetRNNWeightSpaceSize(Ptr::NULL, new, out_new), SUCCESS);
        assert_eq!(size_old, size_new);
        let (matrix, bias) = (Ptr(0x54), Ptr(0x55));
        for (layer, index) in [(0, 0), (1, 3), (3, 7)] {
            let mut found = [Ptr::NULL; 4];
            let [a, b, c, d] = &mut found;
            // SAFETY: as above.
            let [a, b, c, d] = unsafe {
                [
                    Out::new(&raw mut *a),
                    Out::new(&raw mut *b),
                    Out::new(&raw mut *c),
                    Out::new(&raw mut *d),
                ]
            };
            let filter = Ptr::NULL;
            cudnnGetRNNLinLayerMatrixParams(
                Ptr::NULL,
                old,
                layer,
                step,
                filter,
                weights,
                index,
                matrix,
                a,
            );
            cudnnGetRNNLinLayerBiasParams(
                Ptr::NULL,
                old,
                layer,
                step,
                filter,
                weights,
                index,
                bias,
                b,
            );
            cudnnGetRNNWeightParams(
                Ptr::NULL,
                new,
                layer,
                size_new,
                weights,
                index,
                matrix,
                c,
                bias,
                d,
            );
            assert_eq!(found[..2], found[2..]);
            assert_ne!(found[0], Ptr::NULL);
        }
        cudnnDestroyRNNDescriptor(old);
        let mut none = 0;
        // SAFETY: as above.
        let out = unsafe { Out::new(&raw mut none) };
        assert_eq!(
            cudnnGetRNNParamsSize(Ptr::NULL, old, step, out, 0),
            BAD_PARAM
        );
    }
}
