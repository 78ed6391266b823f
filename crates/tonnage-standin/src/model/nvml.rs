// SPDX-License-Identifier: MIT OR Apache-2.0
//! NVML: the machine as `nvidia-smi` sees it, with all its devices.
//!
//! Queries for features that a device does not have (links, fabrics, partitions) are answered "not supported", which
//! every caller handles.
//! Sensors answer as those of an idle GPU, because many programs request them without expecting a refusal; that they
//! were queried is recorded, so that the verdict can report that the answers are made up.

use tonnage_capture::DeviceProfile;
use tonnage_capture::note::Note;

use std::ffi::CStr;
use std::time::Instant;

use crate::config;
use crate::ffi::{InOut, Out, OutArray, OutBytes, OutText, Plain, Ptr};
use crate::fork::{Lazy, Lock};
use crate::machine::{self, accounts, machine};
use crate::recorder;

const SUCCESS: i32 = 0;
const INVALID_ARGUMENT: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const NOT_FOUND: i32 = 6;
const INSUFFICIENT_SIZE: i32 = 7;
const DRIVER_NOT_LOADED: i32 = 9;
const TIMEOUT: i32 = 10;

const DEVICES: usize = 0x0d00_0000_0000;
const DEVICE_STEP: usize = 0x100;

type Answer<T = ()> = Result<T, i32>;

fn status(answer: Answer) -> i32 {
    answer.err().unwrap_or(SUCCESS)
}

fn handle(device: usize) -> Ptr {
    Ptr(DEVICES + (device + 1) * DEVICE_STEP)
}

/// The number and the profile behind a handle.
fn device(handle: Ptr) -> Answer<(usize, &'static DeviceProfile)> {
    let machine = machine().map_err(|_| DRIVER_NOT_LOADED)?;
    let number = (handle.0.wrapping_sub(DEVICES) / DEVICE_STEP).wrapping_sub(1);
    let profile = machine.config.devices.get(number);
    Ok((number, profile.ok_or(INVALID_ARGUMENT)?))
}

fn write(buffer: OutText, length: u32, text: &str) -> i32 {
    if (text.len() as u32) >= length {
        return INSUFFICIENT_SIZE;
    }
    buffer.set(text);
    SUCCESS
}

pub(crate) fn nvmlInit() -> i32 {
    status(machine().map(|_| ()).map_err(|_| DRIVER_NOT_LOADED))
}

pub(crate) use nvmlInit as nvmlInit_v2;

pub(crate) fn nvmlInitWithFlags(_flags: u32) -> i32 {
    nvmlInit()
}

pub(crate) fn nvmlShutdown() -> i32 {
    SUCCESS
}

pub(crate) fn nvmlErrorString(result: i32) -> Ptr {
    Ptr::text(match result {
        SUCCESS => c"Success",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        TIMEOUT => c"Timeout",
        _ => c"Unknown Error",
    })
}

/// A driver new enough for the CUDA version that torch was built for.
fn driver_version() -> &'static str {
    if machine().is_ok_and(machine::Machine::is_cuda_13) {
        "580.0"
    } else {
        "550.0"
    }
}

pub(crate) fn nvmlSystemGetDriverVersion(version: OutText, length: u32) -> i32 {
    write(version, length, driver_version())
}

pub(crate) fn nvmlSystemGetNVMLVersion(version: OutText, length: u32) -> i32 {
    let major = if machine().is_ok_and(machine::Machine::is_cuda_13) {
        13
    } else {
        12
    };
    write(version, length, &format!("{major}.{}", driver_version()))
}

pub(crate) fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) -> i32 {
    super::device::version(version)
}

pub(crate) use nvmlSystemGetCudaDriverVersion as nvmlSystemGetCudaDriverVersion_v2;

pub(crate) fn nvmlSystemGetProcessName(pid: u32, name: OutText, length: u32) -> i32 {
    let known = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    known.map_or(NOT_FOUND, |known| write(name, length, known.trim()))
}

pub(crate) fn nvmlDeviceGetCount(count: Out<u32>) -> i32 {
    status(machine().map_err(|_| DRIVER_NOT_LOADED).map(|machine| {
        count.set(machine.own.len() as u32);
    }))
}

pub(crate) use nvmlDeviceGetCount as nvmlDeviceGetCount_v2;

/// The handle of the first device for which `matches` returns true.
fn find(out: &Out<Ptr>, matches: impl Fn(usize) -> bool) -> i32 {
    status(
        machine()
            .map_err(|_| DRIVER_NOT_LOADED)
            .and_then(|machine| {
                let found = machine.own.clone().find(|&device| matches(device));
                out.set(handle(found.ok_or(NOT_FOUND)?));
                Ok(())
            }),
    )
}

pub(crate) fn nvmlDeviceGetHandleByIndex(index: u32, out: Out<Ptr>) -> i32 {
    let first = machine().map_or(0, |machine| machine.own.start);
    let answer = find(&out, |device| device - first == index as usize);
    if answer == NOT_FOUND {
        INVALID_ARGUMENT
    } else {
        answer
    }
}

pub(crate) use nvmlDeviceGetHandleByIndex as nvmlDeviceGetHandleByIndex_v2;

pub(crate) fn nvmlDeviceGetHandleByPciBusId(bus: Option<&CStr>, out: Out<Ptr>) -> i32 {
    // The domain may have four or eight digits.
    let asked = bus.unwrap_or_default().to_string_lossy().to_uppercase();
    find(&out, |device| asked.ends_with(&machine::bus_text(device)))
}

pub(crate) use nvmlDeviceGetHandleByPciBusId as nvmlDeviceGetHandleByPciBusId_v2;

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: Option<&CStr>, out: Out<Ptr>) -> i32 {
    let asked = uuid.unwrap_or_default().to_string_lossy();
    find(&out, |device| config::uuid_text(device) == asked)
}

pub(crate) fn nvmlDeviceGetHandleBySerial(_serial: Ptr, _out: Out<Ptr>) -> i32 {
    NOT_FOUND
}

pub(crate) fn nvmlDeviceGetName(handle: Ptr, name: OutText, length: u32) -> i32 {
    device(handle).map_or_else(
        |error| error,
        |(_, profile)| write(name, length, &profile.name),
    )
}

pub(crate) fn nvmlDeviceGetUUID(handle: Ptr, uuid: OutText, length: u32) -> i32 {
    device(handle).map_or_else(
        |error| error,
        |(number, _)| write(uuid, length, &config::uuid_text(number)),
    )
}

pub(crate) fn nvmlDeviceGetSerial(_handle: Ptr, _serial: OutText, _length: u32) -> i32 {
    NOT_SUPPORTED
}

/// Writes one property of a device.
fn report<T: Plain>(
    handle: Ptr,
    out: &Out<T>,
    fact: impl FnOnce(usize, &DeviceProfile) -> T,
) -> i32 {
    status(device(handle).map(|(number, profile)| out.set(fact(number, profile))))
}

pub(crate) fn nvmlDeviceGetIndex(handle: Ptr, index: Out<u32>) -> i32 {
    report(handle, &index, |number, _| number as u32)
}

pub(crate) use nvmlDeviceGetIndex as nvmlDeviceGetMinorNumber;

pub(crate) fn nvmlDeviceGetPciInfo_v3(handle: Ptr, out: OutBytes<68>) -> i32 {
    status(device(handle).map(|(number, _)| {
        let text = machine::bus_text(number);
        out.write_at(0, text.as_bytes());
        out.put_i32(20, machine::bus(number));
        out.write_at(36, format!("0000{text}").as_bytes());
    }))
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(
    handle: Ptr,
    major: Out<i32>,
    minor: Out<i32>,
) -> i32 {
    report(handle, &minor, |_, profile| profile.minor);
    report(handle, &major, |_, profile| profile.major)
}

/// NVML's number for the architecture.
pub(crate) fn nvmlDeviceGetArchitecture(handle: Ptr, out: Out<u32>) -> i32 {
    report(handle, &out, |_, profile| {
        match (profile.major, profile.minor) {
            (7, 0..=2) => 5,
            (7, _) => 6,
            (8, 9) => 8,
            (8, _) => 7,
            (9, _) => 9,
            (10.., _) => 10,
            _ => u32::MAX,
        }
    })
}

pub(crate) fn nvmlDeviceGetBrand(handle: Ptr, out: Out<i32>) -> i32 {
    report(handle, &out, |_, profile| {
        if profile.name.contains("GeForce") {
            5
        } else {
            0
        }
    })
}

/// Arithmetic units, by the number that the architecture has in a multiprocessor.
pub(crate) fn nvmlDeviceGetNumGpuCores(handle: Ptr, out: Out<u32>) -> i32 {
    report(handle, &out, |_, profile| {
        let each = match (profile.major, profile.minor) {
            (7, _) | (8, 0) => 64,
            _ => 128,
        };
        profile.sm_count as u32 * each
    })
}

pub(crate) fn nvmlDeviceGetMemoryBusWidth(handle: Ptr, out: Out<u32>) -> i32 {
    report(handle, &out, |_, profile| profile.bus_width as u32)
}

pub(crate) fn nvmlDeviceGetAttributes_v2(_handle: Ptr, _out: OutBytes<40>) -> i32 {
    NOT_SUPPORTED
}

/// Total and free bytes of a device.
fn memory(handle: Ptr) -> Answer<(u64, u64)> {
    let (number, _) = device(handle)?;
    let (_, mut accounts) = accounts().map_err(|_| DRIVER_NOT_LOADED)?;
    let (free, total) = accounts.memory(number);
    Ok((total, free))
}

pub(crate) fn nvmlDeviceGetMemoryInfo(handle: Ptr, out: OutBytes<24>) -> i32 {
    status(memory(handle).map(|(total, free)| {
        out.put_u64(0, total);
        out.put_u64(8, free);
        out.put_u64(16, total - free);
    }))
}

pub(crate) fn nvmlDeviceGetMemoryInfo_v2(handle: Ptr, out: OutArray<u8>) -> i32 {
    status(memory(handle).map(|(total, free)| {
        out.write_at(8, total);
        out.write_at(16, 0_u64);
        out.write_at(24, free);
        out.write_at(32, total - free);
    }))
}

pub(crate) fn nvmlDeviceGetBAR1MemoryInfo(handle: Ptr, out: OutBytes<24>) -> i32 {
    nvmlDeviceGetMemoryInfo(handle, out)
}

/// Processes that hold memory: ours, and the others of this run as one line each.
fn processes<const N: usize>(handle: Ptr, count: &InOut<u32>, infos: &OutArray<[u8; N]>) -> i32 {
    let (number, _) = match device(handle) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let list = recorder::holders(number);
    let room = count.get().unwrap_or(0) as usize;
    count.set(list.len() as u32);
    if room < list.len() {
        return INSUFFICIENT_SIZE;
    }
    for (index, (pid, bytes)) in list.into_iter().enumerate() {
        let at = index * N;
        infos.write_at(at, pid);
        infos.write_at(at + 8, bytes);
        if N == 24 {
            infos.write_at(at + 16, u64::MAX); // no partition
        }
    }
    SUCCESS
}

pub(crate) fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Ptr,
    count: InOut<u32>,
    infos: OutArray<[u8; 24]>,
) -> i32 {
    processes(handle, &count, &infos)
}

pub(crate) use nvmlDeviceGetComputeRunningProcesses_v3 as nvmlDeviceGetComputeRunningProcesses_v2;

pub(crate) fn nvmlDeviceGetComputeRunningProcesses(
    handle: Ptr,
    count: InOut<u32>,
    infos: OutArray<[u8; 16]>,
) -> i32 {
    processes(handle, &count, &infos)
}

// Sensors and clocks: an idle GPU, with the clocks of the catalogue.

/// Degrees that an idle device reports.
const TEMPERATURE: u32 = 35;
/// Milliwatts that an idle device draws, and may draw. No catalogue has them for every board.
const POWER: u32 = 30_000;
const POWER_LIMIT: u32 = 300_000;

/// Tells, once for each, that the program requested something that a dry run makes up.
fn made_up(what: &'static str) {
    static TOLD: Lock<Vec<&str>> = Lock::new(Vec::new());
    let mut told = TOLD.lock();
    if !told.contains(&what) {
        told.push(what);
        recorder::remark_note(&Note::MadeUp(what.to_owned()));
    }
}

/// Writes a made-up answer of a device that exists.
fn invent<T: Plain>(handle: Ptr, what: &'static str, out: &Out<T>, value: T) -> i32 {
    report(handle, out, |_, _| {
        made_up(what);
        value
    })
}

pub(crate) fn nvmlDeviceGetUtilizationRates(handle: Ptr, _out: OutBytes<8>) -> i32 {
    // Nothing is computed: both are zero, as they were before the call.
    status(device(handle).map(|_| made_up("utilisation")))
}

pub(crate) fn nvmlDeviceGetEncoderUtilization(handle: Ptr, out: Out<u32>, period: Out<u32>) -> i32 {
    period.set(167_000);
    invent(handle, "utilisation", &out, 0)
}

pub(crate) use nvmlDeviceGetEncoderUtilization as nvmlDeviceGetDecoderUtilization;

/// Returns the status that a driver uses if no samples were taken.
pub(crate) fn nvmlDeviceGetProcessUtilization(
    _handle: Ptr,
    _samples: Ptr,
    _count: Out<u32>,
    _since: u64,
) -> i32 {
    made_up("utilisation");
    NOT_FOUND
}

pub(crate) fn nvmlDeviceGetTemperature(handle: Ptr, _sensor: i32, out: Out<u32>) -> i32 {
    invent(handle, "temperature", &out, TEMPERATURE)
}

pub(crate) fn nvmlDeviceGetTemperatureV(handle: Ptr, out: OutArray<u8>) -> i32 {
    status(device(handle).map(|_| {
        made_up("temperature");
        out.write_at(8, TEMPERATURE);
    }))
}

/// Shutdown, slowdown, limit of the memory, limit of the GPU.
pub(crate) fn nvmlDeviceGetTemperatureThreshold(handle: Ptr, kind: i32, out: Out<u32>) -> i32 {
    let degrees = match kind {
        0 | 2 => 95,
        1 => 92,
        3 => 85,
        _ => return NOT_SUPPORTED,
    };
    invent(handle, "temperature limits", &out, degrees)
}

pub(crate) fn nvmlDeviceGetPowerUsage(handle: Ptr, out: Out<u32>) -> i32 {
    invent(handle, "power", &out, POWER)
}

/// Millijoules: the energy that an idle device has drawn since the first query.
pub(crate) fn nvmlDeviceGetTotalEnergyConsumption(handle: Ptr, out: Out<u64>) -> i32 {
    static FIRST: Lazy<Instant> = Lazy::new();
    let since = FIRST.get_or_find(Instant::now).elapsed();
    let joules = since.as_millis() as u64 * u64::from(POWER) / 1000;
    invent(handle, "energy", &out, joules)
}

pub(crate) fn nvmlDeviceGetPowerManagementMode(handle: Ptr, out: Out<i32>) -> i32 {
    report(handle, &out, |_, _| 1)
}

pub(crate) fn nvmlDeviceGetPowerManagementLimit(handle: Ptr, out: Out<u32>) -> i32 {
    invent(handle, "power limits", &out, POWER_LIMIT)
}

pub(crate) use {
    nvmlDeviceGetPowerManagementLimit as nvmlDeviceGetPowerManagementDefaultLimit,
    nvmlDeviceGetPowerManagementLimit as nvmlDeviceGetEnforcedPowerLimit,
};

pub(crate) fn nvmlDeviceGetPowerManagementLimitConstraints(
    handle: Ptr,
    least: Out<u32>,
    most: Out<u32>,
) -> i32 {
    most.set(POWER_LIMIT);
    invent(handle, "power limits", &least, POWER_LIMIT / 3)
}

/// The clock of the memory or of the multiprocessors, in MHz.
fn clock(handle: Ptr, kind: i32, out: &Out<u32>) -> i32 {
    if !(0..4).contains(&kind) {
        return INVALID_ARGUMENT;
    }
    report(handle, out, |_, profile| {
        let khz = if kind == 2 {
            profile.memory_clock_khz
        } else {
            profile.clock_khz
        };
        khz as u32 / 1000
    })
}

/// That it runs at its full clock is made up; how high that is, is not.
pub(crate) fn nvmlDeviceGetClockInfo(handle: Ptr, kind: i32, out: Out<u32>) -> i32 {
    made_up("clocks");
    clock(handle, kind, &out)
}

pub(crate) fn nvmlDeviceGetMaxClockInfo(handle: Ptr, kind: i32, out: Out<u32>) -> i32 {
    clock(handle, kind, &out)
}

pub(crate) use {
    nvmlDeviceGetClockInfo as nvmlDeviceGetApplicationsClock,
    nvmlDeviceGetMaxClockInfo as nvmlDeviceGetDefaultApplicationsClock,
};

pub(crate) fn nvmlDeviceGetClock(handle: Ptr, kind: i32, _which: i32, out: Out<u32>) -> i32 {
    nvmlDeviceGetClockInfo(handle, kind, out)
}

/// P8: idle.
pub(crate) fn nvmlDeviceGetPerformanceState(handle: Ptr, out: Out<i32>) -> i32 {
    invent(handle, "performance state", &out, 8)
}

pub(crate) use nvmlDeviceGetPerformanceState as nvmlDeviceGetPowerState;

/// The reason for low clocks: the GPU is idle.
pub(crate) fn nvmlDeviceGetCurrentClocksEventReasons(handle: Ptr, out: Out<u64>) -> i32 {
    invent(handle, "performance state", &out, 1)
}

pub(crate) use nvmlDeviceGetCurrentClocksEventReasons as nvmlDeviceGetCurrentClocksThrottleReasons;

/// Boards for desktops have fans; those for servers are cooled by the server.
fn fans(profile: &DeviceProfile) -> u32 {
    let desktop = ["GeForce", "RTX", "Quadro", "TITAN"];
    if desktop.iter().any(|word| profile.name.contains(word)) {
        2
    } else {
        0
    }
}

pub(crate) fn nvmlDeviceGetNumFans(handle: Ptr, out: Out<u32>) -> i32 {
    report(handle, &out, |_, profile| fans(profile))
}

pub(crate) fn nvmlDeviceGetFanSpeed(handle: Ptr, out: Out<u32>) -> i32 {
    match device(handle) {
        Ok((_, profile)) if fans(profile) == 0 => NOT_SUPPORTED,
        _ => invent(handle, "fan speed", &out, 30),
    }
}

pub(crate) fn nvmlDeviceGetFanSpeed_v2(handle: Ptr, fan: u32, out: Out<u32>) -> i32 {
    match device(handle) {
        Ok((_, profile)) if fan >= fans(profile).max(1) => INVALID_ARGUMENT,
        _ => nvmlDeviceGetFanSpeed(handle, out),
    }
}

/// The generation of PCI Express that the architecture has.
pub(crate) fn nvmlDeviceGetMaxPcieLinkGeneration(handle: Ptr, out: Out<u32>) -> i32 {
    report(handle, &out, |_, profile| match profile.major {
        ..=7 => 3,
        8 => 4,
        _ => 5,
    })
}

pub(crate) use {
    nvmlDeviceGetMaxPcieLinkGeneration as nvmlDeviceGetGpuMaxPcieLinkGeneration,
    nvmlDeviceGetMaxPcieLinkGeneration as nvmlDeviceGetCurrPcieLinkGeneration,
};

pub(crate) fn nvmlDeviceGetMaxPcieLinkWidth(handle: Ptr, out: Out<u32>) -> i32 {
    invent(handle, "width of the PCIe link", &out, 16)
}

pub(crate) use nvmlDeviceGetMaxPcieLinkWidth as nvmlDeviceGetCurrPcieLinkWidth;

pub(crate) fn nvmlDeviceGetPcieThroughput(handle: Ptr, _counter: i32, out: Out<u32>) -> i32 {
    invent(handle, "PCIe throughput", &out, 0)
}

pub(crate) fn nvmlDeviceGetPersistenceMode(handle: Ptr, out: Out<i32>) -> i32 {
    report(handle, &out, |_, _| 1)
}

/// GeForce boards cannot correct errors of their memory in a way that NVML could switch.
pub(crate) fn nvmlDeviceGetEccMode(handle: Ptr, now: Out<i32>, next: Out<i32>) -> i32 {
    match device(handle) {
        Ok((_, profile)) if profile.name.contains("GeForce") => NOT_SUPPORTED,
        _ => {
            next.set(1);
            invent(handle, "error correction", &now, 1)
        }
    }
}

// Features that these devices do not have.

/// A device that belongs to no fabric reports it with state 0, at byte 28.
pub(crate) fn nvmlDeviceGetGpuFabricInfoV(_handle: Ptr, out: OutArray<u8>) -> i32 {
    out.write_at(28, 0_u8);
    SUCCESS
}

pub(crate) fn nvmlDeviceGetGpuFabricInfo(_handle: Ptr, _out: OutBytes<28>) -> i32 {
    SUCCESS
}

pub(crate) fn nvmlDeviceGetNvLinkState(_handle: Ptr, _link: u32, _out: Out<i32>) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceGetNvLinkVersion(_handle: Ptr, _link: u32, _out: Out<u32>) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceGetNvLinkCapability(
    _handle: Ptr,
    _link: u32,
    _capability: i32,
    _out: Out<u32>,
) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    _handle: Ptr,
    _link: u32,
    _out: OutBytes<68>,
) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceGetNvLinkRemotePciInfo(_handle: Ptr, _link: u32, _out: Ptr) -> i32 {
    NOT_SUPPORTED
}

pub(crate) use nvmlDeviceGetNvLinkState as nvmlDeviceGetNvLinkRemoteDeviceType;

pub(crate) fn nvmlDeviceGetP2PStatus(_one: Ptr, _other: Ptr, _kind: i32, _out: Out<i32>) -> i32 {
    SUCCESS
}

pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(_one: Ptr, _other: Ptr, out: Out<i32>) -> i32 {
    out.set(40); // below one socket
    SUCCESS
}

pub(crate) fn nvmlDeviceGetCpuAffinity(_handle: Ptr, _length: u32, _set: Ptr) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceGetCpuAffinityWithinScope(
    _handle: Ptr,
    _length: u32,
    _set: Ptr,
    _scope: u32,
) -> i32 {
    NOT_SUPPORTED
}

pub(crate) use nvmlDeviceGetCpuAffinityWithinScope as nvmlDeviceGetMemoryAffinity;

pub(crate) fn nvmlDeviceGetNumaNodeId(_handle: Ptr, _out: Out<u32>) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(_handle: Ptr, _out: Out<u32>) -> i32 {
    SUCCESS
}

pub(crate) fn nvmlDeviceGetMigMode(_handle: Ptr, _now: Out<u32>, _next: Out<u32>) -> i32 {
    NOT_SUPPORTED
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    _handle: Ptr,
    _index: u32,
    _out: Out<Ptr>,
) -> i32 {
    NOT_FOUND
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Ptr, out: Out<Ptr>) -> i32 {
    out.set(handle);
    SUCCESS
}

pub(crate) fn nvmlDeviceGetGpuInstanceId(_handle: Ptr, _out: Out<u32>) -> i32 {
    NOT_SUPPORTED
}

pub(crate) use nvmlDeviceGetGpuInstanceId as nvmlDeviceGetComputeInstanceId;

pub(crate) fn nvmlEventSetWait_v2(_set: Ptr, _out: OutBytes<32>, _timeout: u32) -> i32 {
    TIMEOUT
}

pub(crate) fn nvmlEventSetWait(_set: Ptr, _out: Ptr, _timeout: u32) -> i32 {
    TIMEOUT
}

/// Marks each value as unknown, at byte 28 of its 40.
pub(crate) fn nvmlDeviceGetFieldValues(
    _handle: Ptr,
    _count: i32,
    values: OutArray<[u8; 40]>,
) -> i32 {
    for index in 0..values.len() {
        values.write_at(index * 40 + 28, NOT_SUPPORTED);
    }
    SUCCESS
}

pub(crate) fn nvmlDeviceGetSamples(
    _handle: Ptr,
    _kind: i32,
    _since: u64,
    _type: Out<i32>,
    count: InOut<u32>,
    _samples: Ptr,
) -> i32 {
    count.set(0);
    NOT_SUPPORTED
}
