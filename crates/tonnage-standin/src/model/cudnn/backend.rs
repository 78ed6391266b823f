// SPDX-License-Identifier: MIT OR Apache-2.0
//! cuDNN's graphs: convolutions and attention.
//!
//! Which engine computes a graph, and how much workspace it wants, is decided by
//! cuDNN on the host. From 9.8 on it does so without a device, from a written
//! description of one ("deviceless ahead-of-time compilation" in its manual).
//! So graphs are built by the user's own library, which is loaded behind us:
//! wherever the program names its handle, which only exists here, the
//! description of the simulated device is passed instead. Nothing is executed.
//!
//! Without such a library descriptors only remember what was set, the
//! heuristics find one engine, and its plan needs no workspace; the verdict
//! then names the function.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use tonnage_capture::DeviceProfile;

use super::{NAMES, SUCCESS, cudnnGetVersion, guessed, real, stream_of};
use crate::ffi::{Out, OutArray, Ptr, field};
use crate::fork::{Lazy, Lock};
use crate::machine::{current, machine};
use crate::model::stream;
use crate::torch::own_workspace;

/// Kinds of descriptors that matter here.
mod kind {
    pub(super) const ENGINE: i32 = 2;
    pub(super) const HEURISTICS: i32 = 4;
    pub(super) const DEVICE: i32 = 38;
}

/// Names of attributes that matter here.
mod attribute {
    pub(super) const HEURISTICS_RESULTS: i32 = 202;
    pub(super) const HEURISTICS_DEVICE: i32 = 204;
    pub(super) const CONFIGURATION_ENGINE: i32 = 300;
    pub(super) const CONFIGURATION_KNOBS: i32 = 302;
    pub(super) const PLAN_HANDLE: i32 = 400;
    pub(super) const PLAN_WORKSPACE: i32 = 402;
    pub(super) const PLAN_DEVICE: i32 = 407;
    pub(super) const PACK_WORKSPACE: i32 = 1003;
    pub(super) const ENGINE_KNOBS: i32 = 1302;
    pub(super) const ENGINE_BEHAVIOUR: i32 = 1305;
    pub(super) const ENGINE_DEVICE: i32 = 1307;
    pub(super) const DEVICE_JSON: i32 = 2702;
}

/// Types of attributes that matter here.
mod typed {
    pub(super) const HANDLE: i32 = 0;
    pub(super) const DESCRIPTOR: i32 = 15;
    pub(super) const TEXT: i32 = 24;
}

/// Bytes of an element of an attribute, by its type.
pub(crate) fn attribute_element_size(of_type: i32) -> usize {
    match of_type {
        // Handles, 64-bit numbers, pointers, descriptors.
        typed::HANDLE | 3 | 5 | 6 | typed::DESCRIPTOR => 8,
        2 | typed::TEXT => 1,
        26 => 16,
        _ => 4,
    }
}

/// The first version that works without a device.
const DEVICELESS: usize = 90800;

type SetAttribute = unsafe extern "C" fn(Ptr, i32, i32, i64, *const u8) -> i32;
type GetAttribute = unsafe extern "C" fn(Ptr, i32, i32, i64, *mut i64, *mut u8) -> i32;

/// The functions of the user's library.
struct Library {
    create: unsafe extern "C" fn(i32, *mut Ptr) -> i32,
    destroy: unsafe extern "C" fn(Ptr) -> i32,
    set: SetAttribute,
    get: GetAttribute,
    finalize: unsafe extern "C" fn(Ptr) -> i32,
}

static LIBRARY: Lazy<Option<Library>> = Lazy::new();

/// The descriptor of each visible device that was needed so far.
static DEVICES: Lock<BTreeMap<usize, Ptr>> = Lock::new(BTreeMap::new());

/// Descriptors whose device must be set before they are finalised, with the attribute.
static AWAITING_DEVICE: Lock<BTreeMap<Ptr, i32>> = Lock::new(BTreeMap::new());

fn awaiting_device() -> MutexGuard<'static, BTreeMap<Ptr, i32>> {
    AWAITING_DEVICE.lock()
}

/// The user's library, if it can do without a device.
fn library() -> Option<&'static Library> {
    let library = LIBRARY.get_or_init(|| {
        if cudnnGetVersion() < DEVICELESS {
            return None;
        }
        let find = |name| real::function(&NAMES, name);
        let create = find(c"cudnnBackendCreateDescriptor")?;
        let destroy = find(c"cudnnBackendDestroyDescriptor")?;
        let set = find(c"cudnnBackendSetAttribute")?;
        let get = find(c"cudnnBackendGetAttribute")?;
        let finalize = find(c"cudnnBackendFinalize")?;
        // SAFETY: the functions of these names, whose signatures are fixed for
        // all of cuDNN 9.
        let library = unsafe {
            Library {
                create: std::mem::transmute::<usize, unsafe extern "C" fn(i32, *mut Ptr) -> i32>(
                    create,
                ),
                destroy: std::mem::transmute::<usize, unsafe extern "C" fn(Ptr) -> i32>(destroy),
                set: std::mem::transmute::<usize, SetAttribute>(set),
                get: std::mem::transmute::<usize, GetAttribute>(get),
                finalize: std::mem::transmute::<usize, unsafe extern "C" fn(Ptr) -> i32>(finalize),
            }
        };
        // A library that does not understand the description is of no use.
        library.device().map(|_| library)
    });
    library.as_ref()
}

/// A device as cuDNN wants it described. Its debug log names what it misses.
fn description(profile: &DeviceProfile, driver: i32) -> String {
    serde_json::json!({
        "version": 1,
        "deviceName": profile.name,
        "cudaDeviceId": 0,
        "deviceVer": profile.major * 100 + profile.minor * 10,
        "driverVer": driver,
        "multiProcessorCount": profile.sm_count,
        "totalGlobalMem": profile.total,
        "maxSharedMemoryPerBlock": profile.shared_per_block,
        "maxSharedMemoryPerBlockOptin": profile.shared_per_block_optin,
        "reservedSharedMemoryPerBlock": profile.shared_reserved,
        "regsPerBlock": profile.registers,
        "maxRegistersPerSM": profile.registers,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": profile.threads_per_sm,
        "maxCtasPerSM": profile.blocks_per_sm,
        "maxGridSize": [i32::MAX, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "warpSize": 32,
        "l2CacheSize": profile.l2,
        "smClockRateKHz": profile.clock_khz,
        "memClockRateKHz": profile.memory_clock_khz,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
    })
    .to_string()
}

impl Library {
    /// The descriptor of this thread's device.
    fn device(&self) -> Option<Ptr> {
        let number = current();
        let mut devices = DEVICES.lock();
        if let Some(&device) = devices.get(&number) {
            return Some(device);
        }
        let machine = machine().ok()?;
        let profile = machine.profile(number as i32).ok()?;
        let text = description(profile, machine.config.cuda_version);
        let mut device = Ptr::NULL;
        // SAFETY: as the interface demands: a place for the descriptor, then
        // the text with its length.
        let status = unsafe {
            (self.create)(kind::DEVICE, &raw mut device);
            (self.set)(
                device,
                attribute::DEVICE_JSON,
                typed::TEXT,
                text.len() as i64,
                text.as_ptr(),
            );
            (self.finalize)(device)
        };
        if status != SUCCESS {
            return None;
        }
        devices.insert(number, device);
        Some(device)
    }

    /// Sets the device of a descriptor.
    fn set_device(&self, descriptor: Ptr, name: i32) -> i32 {
        let device = self.device().unwrap_or_default();
        let at = (&raw const device).cast();
        // SAFETY: one descriptor, which lives until the call is over.
        unsafe { (self.set)(descriptor, name, typed::DESCRIPTOR, 1, at) }
    }
}

pub(crate) fn cudnnBackendCreateDescriptor(of_kind: i32, out: Out<Ptr>) -> i32 {
    let Some(library) = library() else {
        return stub::create(&out);
    };
    let mut descriptor = Ptr::NULL;
    // SAFETY: a place for the descriptor.
    let status = unsafe { (library.create)(of_kind, &raw mut descriptor) };
    let name = match of_kind {
        kind::HEURISTICS => Some(attribute::HEURISTICS_DEVICE),
        kind::ENGINE => Some(attribute::ENGINE_DEVICE),
        _ => None,
    };
    if let Some(name) = name
        && status == SUCCESS
    {
        awaiting_device().insert(descriptor, name);
    }
    out.set(descriptor);
    status
}

pub(crate) fn cudnnBackendDestroyDescriptor(descriptor: Ptr) -> i32 {
    let Some(library) = library() else {
        return stub::destroy(descriptor);
    };
    awaiting_device().remove(&descriptor);
    // SAFETY: a descriptor of this library, as the interface demands.
    unsafe { (library.destroy)(descriptor) }
}

pub(crate) fn cudnnBackendInitialize(_descriptor: Ptr) -> i32 {
    SUCCESS
}

pub(crate) fn cudnnBackendSetAttribute(
    descriptor: Ptr,
    name: i32,
    of_type: i32,
    count: i64,
    elements: &[u8],
) -> i32 {
    if name == attribute::PACK_WORKSPACE
        && let Some(workspace) = field::<u64>(elements, 0)
    {
        own_workspace(workspace, "cuDNN");
    }
    let Some(library) = library() else {
        return stub::set(descriptor, name, count, elements);
    };
    if of_type == typed::HANDLE {
        return if name == attribute::PLAN_HANDLE {
            library.set_device(descriptor, attribute::PLAN_DEVICE)
        } else {
            SUCCESS
        };
    }
    let elements = if elements.is_empty() {
        std::ptr::null()
    } else {
        elements.as_ptr()
    };
    // SAFETY: the caller's arguments, as they came.
    unsafe { (library.set)(descriptor, name, of_type, count, elements) }
}

pub(crate) fn cudnnBackendGetAttribute(
    descriptor: Ptr,
    name: i32,
    of_type: i32,
    requested: i64,
    count: Out<i64>,
    elements: OutArray<u8>,
) -> i32 {
    let Some(library) = library() else {
        return stub::get(descriptor, name, &count, &elements);
    };
    let mut given = 0;
    // SAFETY: the caller's arguments, with our place for the count.
    let status = unsafe {
        (library.get)(
            descriptor,
            name,
            of_type,
            requested,
            &raw mut given,
            elements.as_mut_ptr(),
        )
    };
    count.set(given);
    status
}

pub(crate) fn cudnnBackendFinalize(descriptor: Ptr) -> i32 {
    let Some(library) = library() else {
        return SUCCESS;
    };
    let wants = awaiting_device().remove(&descriptor);
    if let Some(name) = wants {
        library.set_device(descriptor, name);
    }
    // SAFETY: a descriptor of this library, as the interface demands.
    unsafe { (library.finalize)(descriptor) }
}

pub(crate) fn cudnnBackendExecute(handle: Ptr, _plan: Ptr, _pack: Ptr) -> i32 {
    stream::note_work(stream_of(handle));
    crate::recorder::report_launch();
    crate::costs::executed_cudnn();
    SUCCESS
}

/// The answers without a library that can do without a device.
mod stub {
    use super::{BTreeMap, Lock, MutexGuard, Out, OutArray, Ptr, SUCCESS, attribute, guessed};

    type Attributes = BTreeMap<i32, (i64, Vec<u8>)>;

    static DESCRIPTORS: Lock<BTreeMap<Ptr, Attributes>> = Lock::new(BTreeMap::new());

    fn descriptors() -> MutexGuard<'static, BTreeMap<Ptr, Attributes>> {
        DESCRIPTORS.lock()
    }

    pub(super) fn create(out: &Out<Ptr>) -> i32 {
        let handle = Ptr::fresh();
        descriptors().insert(handle, Attributes::new());
        out.set(handle);
        SUCCESS
    }

    pub(super) fn destroy(descriptor: Ptr) -> i32 {
        descriptors().remove(&descriptor);
        SUCCESS
    }

    pub(super) fn set(descriptor: Ptr, name: i32, count: i64, elements: &[u8]) -> i32 {
        let mut descriptors = descriptors();
        let attributes = descriptors.entry(descriptor).or_default();
        attributes.insert(name, (count, elements.to_vec()));
        SUCCESS
    }

    pub(super) fn get(
        descriptor: Ptr,
        name: i32,
        count: &Out<i64>,
        elements: &OutArray<u8>,
    ) -> i32 {
        match name {
            // These go into descriptors that the caller made: there is one.
            attribute::HEURISTICS_RESULTS | attribute::CONFIGURATION_ENGINE => {
                count.set(1);
                return SUCCESS;
            }
            // Knobs and notes: none.
            attribute::CONFIGURATION_KNOBS
            | attribute::ENGINE_KNOBS..=attribute::ENGINE_BEHAVIOUR => return SUCCESS,
            attribute::PLAN_WORKSPACE => guessed("cudnnBackendGetAttribute"),
            _ => {}
        }
        let known = descriptors()
            .get(&descriptor)
            .and_then(|attributes| attributes.get(&name).cloned());
        let (known_count, bytes) = known.unwrap_or_else(|| (1, vec![0; 8]));
        count.set(known_count);
        elements.set_all(&bytes);
        SUCCESS
    }
}
