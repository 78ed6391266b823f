// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that uses the GPU with the crate cudarc and takes its memory from
//! tonnage's allocator: two streams of cudarc share one range of addresses, and
//! pages move when memory is in the wrong place.
//!
//! On a machine with a GPU: `cargo run -p tonnage-device-cuda --example cudarc`.
//! Without one, in a dry run: build it, then `tonnage run --gpu rtx3090 --
//! target/debug/examples/cudarc`.
#![expect(
    unsafe_code,
    reason = "a device trusts its handles, and cudarc takes memory of others only so"
)]

use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use tonnage_device_cuda::CudaDevice;
use tonnage_runtime::{Block, Request, Runtime, Settings, StreamId};

/// Floats on the GPU, in memory of tonnage's allocator. cudarc copies to and from them as with its own.
struct Floats {
    /// cudarc's view of the memory, which is never dropped: cudarc would give it to the driver.
    slice: ManuallyDrop<CudaSlice<f32>>,
    block: Block<CudaDevice>,
}

impl Floats {
    fn new(
        memory: &Runtime<CudaDevice>,
        stream: &Arc<CudaStream>,
        count: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let name = StreamId(stream.cu_stream() as u64);
        let bytes = (count * size_of::<f32>()) as u64;
        let block = memory.alloc(Request::new(bytes, name))?;
        // SAFETY: the block lives as long as the slice, has that many bytes and no other user. Its content is not read
        // before a write.
        let slice = unsafe { stream.upgrade_device_ptr(block.addr().0, count) };
        let slice = ManuallyDrop::new(slice);
        Ok(Self { slice, block })
    }

    /// Another stream reads or writes it, too: it is not used again before that stream is done.
    fn used_on(&mut self, stream: &CudaStream) -> Result<(), Box<dyn Error>> {
        let name = StreamId(stream.cu_stream() as u64);
        Ok(self.block.record_stream(name)?)
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // cudarc forgets the memory, and gives back the events that it keeps for it; the block frees it.
        slice.leak();
    }
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let (first, second) = (context.new_stream()?, context.new_stream()?);
    // SAFETY: the streams are cudarc's, which outlive the blocks; addresses come from the allocator.
    let device = unsafe { CudaDevice::new(0) }?;
    let memory = Runtime::new(device, Settings::default());

    let numbers: Vec<f32> = (0..4096_u16).map(f32::from).collect();
    let mut input = Floats::new(&memory, &first, numbers.len())?;
    first.memcpy_htod(&numbers, &mut *input.slice)?;
    first.synchronize()?;
    let mut copy = Floats::new(&memory, &second, numbers.len())?;
    second.memcpy_dtod(&*input.slice, &mut *copy.slice)?;
    input.used_on(&second)?;
    drop(input);
    let back = second.clone_dtoh(&*copy.slice)?;
    assert_eq!(back, numbers, "the copy has what was written");

    // Every other block is freed; the next request is larger than any hole.
    let mut blocks = Vec::new();
    for number in 0..64 {
        let stream = [&first, &second][number % 2];
        blocks.push(Floats::new(&memory, stream, 4 << 20)?);
    }
    let mut number = 0;
    blocks.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    let large = Floats::new(&memory, &first, 32 * (4 << 20))?;
    let now = memory.statistics()?;
    println!(
        "{} MiB live, {} MiB reserved, {} pages moved",
        now.allocated.now >> 20,
        now.reserved.now >> 20,
        now.pages_moved
    );
    drop((large, blocks, copy));
    memory.close()?;
    let left = memory.statistics()?;
    println!(
        "{} blocks and {} bytes are left",
        left.blocks, left.reserved.now
    );
    Ok(())
}
