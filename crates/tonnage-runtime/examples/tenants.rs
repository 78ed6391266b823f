// SPDX-License-Identifier: MIT OR Apache-2.0
//! Three services share an arena of host memory, each on a thread and with a
//! separate quota: `cargo run -p tonnage-runtime --example tenants`.
//!
//! On a GPU, `CudaDevice` of the crate `tonnage-device-cuda` takes the place of
//! `HostDevice`; nothing else changes.

use std::sync::Arc;

use tonnage_device_host::HostDevice;
use tonnage_runtime::{Error, Runtime, Settings, StreamId, Tenant};

const MIB: u64 = 1 << 20;

/// One service: it keeps a few buffers and requests more now and then.
fn serve(
    runtime: &Runtime<HostDevice>,
    tenant: &Arc<Tenant>,
    stream: StreamId,
    size: u64,
) -> Result<(u64, u64), Error> {
    let mut front = runtime.front(stream);
    let (mut served, mut refused) = (0, 0);
    let mut buffers = Vec::new();
    for round in 0..200_u64 {
        match front.alloc_for(tenant, size + round % 5 * 4096) {
            Ok(mut buffer) => {
                let text = format!("{} {round}", tenant.name());
                buffer.write(0, text.as_bytes())?;
                served += 1;
                buffers.push((buffer, text));
            }
            // Above its quota. Others do not notice.
            Err(Error::Quota { .. }) => refused += 1,
            Err(error) => return Err(error),
        }
        if buffers.len() > 12 || (round % 3 == 0 && !buffers.is_empty()) {
            let (buffer, text) = buffers.swap_remove(round as usize % buffers.len());
            let mut bytes = vec![0; text.len()];
            buffer.read(0, &mut bytes)?;
            assert_eq!(bytes, text.as_bytes(), "somebody else wrote to the buffer");
        }
    }
    Ok((served, refused))
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), Error> {
    let arena = HostDevice::new(64 * MIB)?;
    let runtime = Runtime::new(arena, Settings::default());
    let tenants = [
        (Tenant::new("search", 24 * MIB), MIB),
        (Tenant::new("images", 12 * MIB), 2 * MIB),
        (Tenant::new("batch", 20 * MIB), 64 << 10),
    ];
    let results = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..)
            .zip(&tenants)
            .map(|(stream, (tenant, size))| {
                let runtime = &runtime;
                scope.spawn(move || serve(runtime, tenant, StreamId(stream), *size))
            })
            .collect();
        let results = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        results.collect::<Vec<_>>()
    });
    for ((tenant, _), result) in tenants.iter().zip(results) {
        let Ok(result) = result else {
            panic!("the thread of {} ended", tenant.name());
        };
        let (served, refused) = result?;
        println!(
            "{:8} quota {:3} MiB, at most {:6.2} MiB used, {served} buffers, {refused} refused",
            tenant.name(),
            tenant.quota() / MIB,
            tenant.peak() as f64 / MIB as f64,
        );
        assert!(tenant.peak() <= tenant.quota());
        assert_eq!(tenant.used(), 0);
    }
    let statistics = runtime.statistics()?;
    println!(
        "arena    at most {} MiB reserved for {:.2} MiB allocated, {} pages moved",
        statistics.reserved.peak / MIB,
        statistics.allocated.peak as f64 / MIB as f64,
        statistics.pages_moved,
    );
    runtime.close()?;
    assert_eq!(runtime.statistics()?.reserved.now, 0);
    Ok(())
}
