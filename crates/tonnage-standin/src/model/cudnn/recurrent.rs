// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recurrent networks: where each weight lies, and how much room they take.
//!
//! The weights are one block: the matrices of every layer and direction, input
//! gates before recurrent gates, then the biases in the same order. Torch
//! checks that gates follow one another. The size is the sum of the parts,
//! which torch relies on when it flattens the weights of a module.
//!
//! What a forward pass reserves for its backward pass is not documented; the
//! answer is what has to be kept by the equations, and named to the user.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BAD_PARAM, SUCCESS, describe, element_size, guessed};
use crate::ffi::{Out, Ptr};

#[derive(Clone, Copy, Default)]
struct Network {
    cell: i32,
    bias: i32,
    directions: usize,
    data_type: i32,
    input: usize,
    hidden: usize,
    /// What a layer puts out: the projection, where there is one.
    output: usize,
    layers: usize,
}

#[derive(Clone, Copy, Default)]
struct Sequence {
    length: usize,
    batch: usize,
}

static NETWORKS: Mutex<BTreeMap<Ptr, Network>> = Mutex::new(BTreeMap::new());
static SEQUENCES: Mutex<BTreeMap<Ptr, Sequence>> = Mutex::new(BTreeMap::new());

fn networks() -> MutexGuard<'static, BTreeMap<Ptr, Network>> {
    NETWORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sequences() -> MutexGuard<'static, BTreeMap<Ptr, Sequence>> {
    SEQUENCES.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Workspace: what the input makes of every gate. Reserved in training: gates,
/// state and output of every step (a GRU also keeps its recurrent candidate).
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
    let steps = sequence.length * sequence.batch * network.hidden;
    let element = element_size(network.data_type);
    workspace.set(steps * network.directions * network.gates() * element);
    if mode == 1 {
        let kept = match network.cell {
            2 => 6,
            3 => 5,
            _ => 2,
        };
        reserve.set(steps * network.all_layers() * kept * element);
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
}
