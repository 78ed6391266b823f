// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts for the torch policy: one call a line, what happened below it.
//!
//! The format is made to be written by whatever drives the real allocator. A
//! line that starts with `> ` is a call; the lines up to the next one are what
//! it must produce. `#` starts a comment line. Numbers are decimal, addresses
//! hexadecimal without `0x`. Calls:
//!
//! | call | meaning, and what torch calls it |
//! |---|---|
//! | `device TOTAL ascending\|descending` | first line: a device with that much memory, see [`Controlled`] |
//! | `device TOTAL … CONTEXT BASE SPAN` | the same with a context, and addresses from BASE (hexadecimal) on |
//! | `rules 2.15` | the release (optional, 2.15) |
//! | `settings TEXT` | starts the allocator with `PYTORCH_CUDA_ALLOC_CONF=TEXT` |
//! | `stream HANDLE NUMBER` | `cuda_stream` and `stream_id` of a stream |
//! | `fraction F` | `set_per_process_memory_fraction` |
//! | `update TEXT` | `_accelerator_setAllocatorSettings` |
//! | `malloc NAME BYTES HANDLE` | `raw_alloc_with_stream`; prints `= ADDR` |
//! | `malloc_at NAME BYTES HANDLE ADDR` | `allocateWithAddress`; prints `= ADDR` or `= none` |
//! | `free NAME` | `raw_delete` |
//! | `record NAME HANDLE` | `record_stream` |
//! | `hold HANDLE`, `let HANDLE` | from now on the stream's events wait; they and all later ones are done |
//! | `annotate NAME` | `_annotate_tensor` |
//! | `empty_cache` | `empty_cache` |
//! | `pool A B`, `pool_custom A B` | a `MemPool` object is made |
//! | `drop A B` | the `MemPool` object is destroyed, its cache emptied |
//! | `release A B` | one user less: the end of a graph |
//! | `begin A B`, `begin A B HANDLE…` | `_cuda_beginAllocateToPool` for everything, or for streams |
//! | `end A B` | `_cuda_endAllocateToPool`, without release |
//! | `no_split A B`, `use_on_oom A B`, `not_on_oom A B` | options of a pool |
//! | `capture on\|off` | the current stream is being captured |
//! | `reset_peak`, `reset_accumulated` | the counters |
//! | `show` | a snapshot: its event, every segment and block, every counter |
//!
//! The results of a call: its events as `ACTION ADDR BYTES HANDLE A.B`, then its result, which is `= …` for addresses,
//! `! settings`, `! oom`, `! rejected`, `! pool` where torch's own checks fail, or `! undefined …` after which the
//! script must end, because torch is undefined.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tonnage_alloc::torch::{
    Allocator, Error, Event, PoolId, PoolStat, Rules, Scope, Settings, Stat, Stats, Version,
};
use tonnage_alloc::{
    Access, AddressOrder, Device, DeviceAddr, DeviceError, EventId, PhysicalId, SimConfig,
    SimDevice, StreamId,
};

/// A simulated device whose events are done when the script completes them.
#[derive(Clone, Debug)]
pub(crate) struct Controlled {
    device: SimDevice,
    held: BTreeMap<StreamId, bool>,
    /// Events recorded on each stream, and how many of them are done.
    streams: BTreeMap<StreamId, (u64, u64)>,
    /// The moment that each event marks.
    events: BTreeMap<EventId, (StreamId, u64)>,
}

impl Controlled {
    /// Addresses start at 0x600000000000; half of 16 TiB is for reservations.
    pub(crate) fn new(total: u64, order: AddressOrder) -> Self {
        Self::over(SimDevice::new(SimConfig {
            total,
            context: 0,
            order,
            base: 0x6000_0000_0000,
            span: 16 << 40,
        }))
    }

    fn over(device: SimDevice) -> Self {
        Self {
            device,
            held: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
        }
    }

    /// Holds back the events of a stream, or lets go of them.
    pub(crate) fn hold(&mut self, stream: StreamId, hold: bool) {
        self.held.insert(stream, hold);
        if !hold {
            let (recorded, done) = self.streams.entry(stream).or_default();
            *done = *recorded;
        }
    }

    /// The books of the device below.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.device.check()
    }
}

impl Device for Controlled {
    fn total(&self) -> u64 {
        self.device.total()
    }
    fn free_bytes(&self) -> u64 {
        self.device.free_bytes()
    }
    fn granularity(&self) -> u64 {
        self.device.granularity()
    }
    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        self.device.malloc(size)
    }
    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        self.device.free(addr)
    }
    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        self.device.reserve(size)
    }
    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.device.unreserve(addr, size)
    }
    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        self.device.create(size)
    }
    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        self.device.release(memory)
    }
    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        self.device.map(addr, size, memory)
    }
    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.device.unmap(addr, size)
    }

    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError> {
        self.device.set_access(addr, size, access)
    }
    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.device.create_event()
    }
    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.events.remove(&event);
        self.device.destroy_event(event)
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let (recorded, done) = self.streams.entry(stream).or_default();
        *recorded += 1;
        if !self.held.get(&stream).copied().unwrap_or(false) {
            *done = *recorded;
        }
        self.events.insert(event, (stream, *recorded));
        self.device.record_event(event, stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        let (stream, number) = self.events[&event];
        Ok(self.streams[&stream].1 >= number)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        let (stream, number) = self.events[&event];
        let (_, done) = self.streams.entry(stream).or_default();
        *done = number.max(*done);
        Ok(())
    }
}

type Torch = Allocator<Controlled, Vec<Event>>;

/// A script being run.
#[derive(Default)]
pub(crate) struct Script {
    device: Option<Controlled>,
    rules: Rules,
    torch: Option<Torch>,
    live: BTreeMap<u64, DeviceAddr>,
    /// Events so far, for callers that count.
    pub(crate) events: u64,
    /// Whether the books are recounted after every call.
    pub(crate) check: bool,
}

impl Script {
    /// Runs one line and answers with what it and the calls in it produced.
    pub(crate) fn line(&mut self, line: &str) -> Result<String, String> {
        let Some(call) = line.strip_prefix("> ") else {
            return Ok(String::new());
        };
        let mut output = format!("{line}\n");
        let result = self
            .call(call, &mut output)
            .map_err(|problem| format!("{line}: {problem}"))?;
        if let Some(torch) = &mut self.torch {
            for event in torch.sink_mut().drain(..) {
                self.events += 1;
                let Event {
                    action,
                    addr,
                    size,
                    stream,
                    pool,
                } = event;
                let _ = writeln!(
                    output,
                    "{} {:x} {size} {} {}.{}",
                    action.name(),
                    addr.0,
                    stream.0,
                    pool.0,
                    pool.1
                );
            }
            if self.check {
                torch
                    .check()
                    .map_err(|problem| format!("{line}: {problem}"))?;
                torch.device().check()?;
            }
        }
        output.push_str(&result);
        Ok(output)
    }

    fn call(&mut self, call: &str, output: &mut String) -> Result<String, String> {
        let (verb, rest) = call.split_once(' ').unwrap_or((call, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| -> Result<u64, String> {
            let word = words.get(place).ok_or("a number is missing")?;
            word.parse().map_err(|_| format!("{word} is no number"))
        };
        let pool = || -> Result<PoolId, String> { Ok(PoolId(number(0)?, number(1)?)) };
        match verb {
            "device" => {
                let order = match words.get(1) {
                    Some(&"ascending") => AddressOrder::Ascending,
                    Some(&"descending") => AddressOrder::Descending,
                    _ => return Err("an order is missing".to_owned()),
                };
                let Some(base) = words.get(3) else {
                    self.device = Some(Controlled::new(number(0)?, order));
                    return Ok(String::new());
                };
                let mut device = SimDevice::new(SimConfig {
                    total: number(0)?,
                    context: number(2)?,
                    order,
                    base: u64::from_str_radix(base, 16).map_err(|_| "no address")?,
                    span: number(4)?,
                });
                device.open_context().map_err(|e| format!("{e}"))?;
                self.device = Some(Controlled::over(device));
                return Ok(String::new());
            }
            "rules" => {
                let (major, minor) = rest.split_once('.').ok_or("no version")?;
                let part = |text: &str| text.parse().map_err(|_| "no version".to_owned());
                self.rules = Rules::for_version(Version(part(major)?, part(minor)?));
                return Ok(String::new());
            }
            "settings" => {
                let settings: Settings = rest.parse().map_err(|e| format!("{e}"))?;
                let device = self.device.take().ok_or("no device")?;
                self.torch = Some(Allocator::with(device, settings, self.rules, Vec::new()));
                return Ok(String::new());
            }
            _ => {}
        }
        let torch = self.torch.as_mut().ok_or("no settings yet")?;
        let result = match verb {
            "stream" => {
                torch.set_stream_number(StreamId(number(0)?), number(1)?);
                Ok(())
            }
            "fraction" => {
                let fraction = rest.parse().map_err(|_| "no fraction")?;
                torch.set_memory_fraction(fraction)
            }
            "update" => {
                return Ok(match torch.update_settings(rest) {
                    Ok(()) => String::new(),
                    Err(_) => "! settings\n".to_owned(),
                });
            }
            "malloc" => match torch.malloc(number(1)?, StreamId(number(2)?)) {
                Ok(addr) => {
                    self.live.insert(number(0)?, addr);
                    return Ok(format!("= {:x}\n", addr.0));
                }
                Err(error) => Err(error),
            },
            "malloc_at" => {
                let word = words.get(3).ok_or("no address")?;
                let addr = u64::from_str_radix(word, 16).map_err(|_| "no address")?;
                match torch.malloc_at(number(1)?, StreamId(number(2)?), DeviceAddr(addr)) {
                    Ok(Some(addr)) => {
                        self.live.insert(number(0)?, addr);
                        return Ok(format!("= {:x}\n", addr.0));
                    }
                    Ok(None) => return Ok("= none\n".to_owned()),
                    Err(error) => Err(error),
                }
            }
            "free" => {
                let addr = self.live.remove(&number(0)?).ok_or("no such block")?;
                torch.free(addr)
            }
            "record" => {
                let addr = self.live.get(&number(0)?).ok_or("no such block")?;
                torch.record_stream(*addr, StreamId(number(1)?))
            }
            "annotate" => {
                let addr = self.live.get(&number(0)?).ok_or("no such block")?;
                torch.annotate(*addr)
            }
            "hold" | "let" => {
                let stream = StreamId(number(0)?);
                torch.device_mut().hold(stream, verb == "hold");
                Ok(())
            }
            "empty_cache" => torch.empty_cache(),
            "pool" => torch.create_pool(pool()?),
            "pool_custom" => torch.create_custom_pool(pool()?),
            "drop" => torch.destroy_pool(pool()?),
            "release" => torch.release_pool_use(pool()?),
            "begin" => {
                let streams: Vec<StreamId> = (2..words.len())
                    .map(|place| number(place).map(StreamId))
                    .collect::<Result<_, _>>()?;
                let scope = if streams.is_empty() {
                    Scope::Everything
                } else {
                    Scope::Streams(streams)
                };
                torch.begin_allocate_to_pool(pool()?, scope)
            }
            "end" => torch.end_allocate_to_pool(pool()?),
            "no_split" => {
                torch.set_no_split(pool()?);
                Ok(())
            }
            "use_on_oom" | "not_on_oom" => {
                torch.set_use_on_oom(pool()?, verb == "use_on_oom");
                Ok(())
            }
            "capture" => {
                torch.set_capturing(rest == "on");
                Ok(())
            }
            "reset_peak" => {
                torch.reset_peak_stats();
                Ok(())
            }
            "reset_accumulated" => {
                torch.reset_accumulated_stats();
                Ok(())
            }
            "show" => {
                show(torch, output);
                Ok(())
            }
            other => return Err(format!("{other} is no call")),
        };
        match result {
            Ok(()) => Ok(String::new()),
            Err(Error::OutOfMemory(_)) => Ok("! oom\n".to_owned()),
            Err(Error::Rejected { .. }) => Ok("! rejected\n".to_owned()),
            Err(Error::Pool { .. }) => Ok("! pool\n".to_owned()),
            Err(Error::Undefined(what)) => Ok(format!("! undefined {what:?}\n")),
            Err(other) => Err(format!("{other:?}")),
        }
    }
}

fn show(torch: &mut Torch, output: &mut String) {
    for segment in torch.snapshot() {
        let _ = writeln!(
            output,
            "segment {:x} {} {} {} {} {} {}.{} {} {}",
            segment.addr.0,
            segment.total_size,
            segment.allocated_size,
            segment.active_size,
            segment.requested_size,
            segment.stream.0,
            segment.pool.0,
            segment.pool.1,
            if segment.small { "small" } else { "large" },
            if segment.expandable {
                "expandable"
            } else {
                "plain"
            },
        );
        for block in segment.blocks {
            let _ = writeln!(
                output,
                "  {:x} {} {} {}",
                block.addr.0,
                block.size,
                block.requested_size,
                block.state.name()
            );
        }
    }
    show_stats(&torch.stats(), output);
}

fn show_stats(stats: &Stats, output: &mut String) {
    let one = |stat: &Stat| {
        let Stat {
            current,
            peak,
            allocated,
            freed,
        } = stat;
        format!("{current} {peak} {allocated} {freed}")
    };
    let three = |stat: &PoolStat| {
        let pools = [&stat.all, &stat.small_pool, &stat.large_pool].map(one);
        pools.join(" | ")
    };
    let by_pool = [
        ("allocation", &stats.allocation),
        ("segment", &stats.segment),
        ("active", &stats.active),
        ("inactive_split", &stats.inactive_split),
        ("allocated_bytes", &stats.allocated_bytes),
        ("reserved_bytes", &stats.reserved_bytes),
        ("active_bytes", &stats.active_bytes),
        ("inactive_split_bytes", &stats.inactive_split_bytes),
        ("requested_bytes", &stats.requested_bytes),
    ];
    for (name, stat) in by_pool {
        let _ = writeln!(output, "{name} {}", three(stat));
    }
    for (pool, stat) in &stats.reserved_bytes_by_private_pools {
        let _ = writeln!(output, "pool {}.{} {}", pool.0, pool.1, three(stat));
    }
    let _ = writeln!(
        output,
        "oversize_allocations {}",
        one(&stats.oversize_allocations)
    );
    let _ = writeln!(
        output,
        "oversize_segments {}",
        one(&stats.oversize_segments)
    );
    let _ = writeln!(
        output,
        "counts {} {} {} {} {} {} {}",
        stats.num_alloc_retries,
        stats.num_ooms,
        stats.num_sync_all_streams,
        stats.num_device_alloc,
        stats.num_device_free,
        stats.num_oom_rejections,
        stats.max_split_size
    );
}
