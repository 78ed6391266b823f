// SPDX-License-Identifier: MIT OR Apache-2.0
//! NCCL between the processes of a run, and between the devices of one.
//!
//! Communicators, groups and the calls are here; what they exchange, and when a
//! process waits for another, is in [`exchange`]. NCCL's own buffers depend on
//! the machine; none are charged, and [`nccl_buffers`] reports how much they take.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use tonnage_capture::note::Note;

use super::cudnn::real;
use super::nccl_buffers::{self, Communicator};
use super::{memory, stream};
use crate::exchange::{self, Kind, Operator, Place, Request, Type};
use crate::ffi::{ByValue, Out, OutArray, OutBytes, Ptr};
use crate::fork::Lock;
use crate::machine::{current, machine, use_current};
use crate::recorder::{remark_note, static_text};
use crate::region::Region;

const SUCCESS: i32 = 0;
const UNHANDLED_CUDA_ERROR: i32 = 1;
const SYSTEM_ERROR: i32 = 2;
const INTERNAL_ERROR: i32 = 3;
const INVALID_ARGUMENT: i32 = 4;

static COMMUNICATORS: Lock<BTreeMap<Ptr, Communicator>> = Lock::new(BTreeMap::new());
/// Windows: the memory each was registered for.
static WINDOWS: Lock<BTreeMap<Ptr, Ptr>> = Lock::new(BTreeMap::new());

fn communicators() -> MutexGuard<'static, BTreeMap<Ptr, Communicator>> {
    COMMUNICATORS.lock()
}

fn find_communicator(comm: Ptr) -> Option<Communicator> {
    communicators().get(&comm).copied()
}

fn register(communicator: Communicator) -> std::io::Result<Ptr> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // The buffers of NCCL are not charged, so the judge of the job must know of them.
    if communicator.ranks > 1 && !TOLD.swap(true, Ordering::Relaxed) {
        remark_note(&Note::Communicator(communicator.ranks as u64));
    }
    exchange::join(communicator.name, communicator.rank, communicator.ranks)?;
    let handle = Ptr::fresh();
    communicators().insert(handle, communicator);
    Ok(handle)
}

fn register_at(out: &Out<Ptr>, communicator: Communicator) -> i32 {
    match register(communicator) {
        Ok(handle) => {
            out.set(handle);
            SUCCESS
        }
        Err(_) => SYSTEM_ERROR,
    }
}

/// A number from the bytes that name a communicator (FNV-1a).
fn name_of(id: &[u8]) -> u64 {
    id.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn open(out: &Out<Ptr>, ranks: i32, id: &[u8], rank: i32) -> i32 {
    if use_current().is_err() {
        return UNHANDLED_CUDA_ERROR;
    }
    if ranks < 1 || !(0..ranks).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    let communicator = Communicator {
        ranks: ranks as usize,
        rank: rank as usize,
        device: current() as i32,
        name: name_of(id),
        splits: 0,
    };
    register_at(out, communicator)
}

pub(crate) fn ncclGetVersion(version: Out<i32>) -> i32 {
    let mut found = 22703;
    if let Some(address) = real::function(&[c"libnccl.so.2"], c"ncclGetVersion") {
        // SAFETY: the same function of the real library, which only writes
        // the version it was built as.
        unsafe {
            let ask: unsafe extern "C" fn(*mut i32) -> i32 = std::mem::transmute(address);
            ask(&raw mut found);
        }
    }
    version.set(found);
    SUCCESS
}

/// A name that no other communicator of this machine has: a mark, the process
/// and a count.
fn unique_id() -> [u8; 128] {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut id = [0; 128];
    id[..8].copy_from_slice(b"tonnage\0");
    id[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
    id[16..24].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    id
}

pub(crate) fn ncclGetUniqueId(id: OutBytes<128>) -> i32 {
    id.write_at(0, &unique_id());
    SUCCESS
}

pub(crate) fn ncclCommGetUniqueId(_comm: Ptr, id: OutBytes<128>) -> i32 {
    ncclGetUniqueId(id)
}

pub(crate) fn ncclCommInitRank(comm: Out<Ptr>, ranks: i32, id: ByValue<128>, rank: i32) -> i32 {
    open(&comm, ranks, &id.0, rank)
}

pub(crate) fn ncclCommInitRankConfig(
    comm: Out<Ptr>,
    ranks: i32,
    id: ByValue<128>,
    rank: i32,
    _config: Ptr,
) -> i32 {
    open(&comm, ranks, &id.0, rank)
}

pub(crate) fn ncclCommInitRankScalable(
    comm: Out<Ptr>,
    ranks: i32,
    rank: i32,
    _ids: i32,
    id: Option<[u8; 128]>,
    _config: Ptr,
) -> i32 {
    open(&comm, ranks, &id.unwrap_or([0; 128]), rank)
}

pub(crate) fn ncclCommInitAll(comms: OutArray<Ptr>, count: i32, devices: &[i32]) -> i32 {
    let Ok(machine) = machine() else {
        return UNHANDLED_CUDA_ERROR;
    };
    let name = name_of(&unique_id());
    for rank in 0..count.max(0) {
        let device = devices.get(rank as usize).copied().unwrap_or(rank);
        if machine.physical(device).is_err() {
            return INVALID_ARGUMENT;
        }
        let Ok(handle) = register(Communicator {
            ranks: count as usize,
            rank: rank as usize,
            device,
            name,
            splits: 0,
        }) else {
            return SYSTEM_ERROR;
        };
        comms.set(rank as usize, handle);
    }
    SUCCESS
}

/// The ranks of `parent` with the same colour as this one, in the order of their keys.
fn part(parent: &Communicator, requests: &[(i32, i32)]) -> Option<Communicator> {
    let (colour, _) = requests.get(parent.rank).copied()?;
    let mut ranks: Vec<(i32, usize)> = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| request.0 == colour)
        .map(|(rank, request)| (request.1, rank))
        .collect();
    ranks.sort_unstable();
    let rank = ranks.iter().position(|&(_, rank)| rank == parent.rank)?;
    Some(Communicator {
        ranks: ranks.len(),
        rank,
        ..*parent
    })
}

/// A part of the ranks. Waits for all of them, as the real library does.
pub(crate) fn ncclCommSplit(comm: Ptr, colour: i32, key: i32, out: Out<Ptr>, _config: Ptr) -> i32 {
    let Some(parent) = find_communicator(comm) else {
        return INVALID_ARGUMENT;
    };
    if let Some(parent) = communicators().get_mut(&comm) {
        parent.splits += 1;
    }
    let Ok(requests) = exchange::split((parent.name, parent.rank), colour, key) else {
        return SYSTEM_ERROR;
    };
    if colour < 0 {
        return SUCCESS;
    }
    let Some(mut child) = part(&parent, &requests) else {
        return INTERNAL_ERROR;
    };
    let name = format!("{:016x} {} {colour}", parent.name, parent.splits);
    child.name = name_of(name.as_bytes());
    child.splits = 0;
    register_at(&out, child)
}

pub(crate) fn ncclCommShrink(
    comm: Ptr,
    excluded: &[i32],
    _excluded_count: i32,
    out: Out<Ptr>,
    _config: Ptr,
    _flags: i32,
) -> i32 {
    let Some(parent) = find_communicator(comm) else {
        return INVALID_ARGUMENT;
    };
    let gone: Vec<usize> = excluded.iter().map(|&rank| rank as usize).collect();
    let child = Communicator {
        ranks: parent.ranks.saturating_sub(gone.len()).max(1),
        rank: parent.rank - gone.iter().filter(|&&rank| rank < parent.rank).count(),
        name: name_of(format!("{:016x} less {gone:?}", parent.name).as_bytes()),
        splits: 0,
        ..parent
    };
    register_at(&out, child)
}

pub(crate) fn ncclCommGrow(
    _comm: Ptr,
    ranks: i32,
    id: Option<[u8; 128]>,
    rank: i32,
    out: Out<Ptr>,
    _config: Ptr,
) -> i32 {
    open(&out, ranks, &id.unwrap_or([0; 128]), rank)
}

pub(crate) fn ncclCommDestroy(comm: Ptr) -> i32 {
    if let Some(gone) = communicators().remove(&comm) {
        nccl_buffers::forget(&gone);
    }
    SUCCESS
}

pub(crate) use ncclCommDestroy as ncclCommAbort;

pub(crate) fn ncclCommFinalize(_comm: Ptr) -> i32 {
    SUCCESS
}

fn about(comm: Ptr, out: &Out<i32>, what: impl FnOnce(Communicator) -> i32) -> i32 {
    let Some(communicator) = find_communicator(comm) else {
        return INVALID_ARGUMENT;
    };
    out.set(what(communicator));
    SUCCESS
}

pub(crate) fn ncclCommCount(comm: Ptr, count: Out<i32>) -> i32 {
    about(comm, &count, |comm| comm.ranks as i32)
}

pub(crate) fn ncclCommUserRank(comm: Ptr, rank: Out<i32>) -> i32 {
    about(comm, &rank, |comm| comm.rank as i32)
}

pub(crate) fn ncclCommCuDevice(comm: Ptr, device: Out<i32>) -> i32 {
    about(comm, &device, |comm| comm.device)
}

pub(crate) fn ncclCommGetAsyncError(_comm: Ptr, _error: Out<i32>) -> i32 {
    SUCCESS
}

pub(crate) fn ncclGetErrorString(result: i32) -> Ptr {
    let text = match result {
        0 => "no error",
        1 => "unhandled cuda error",
        2 => "unhandled system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "remote process exited or there was a network error",
        7 => "NCCL operation in progress",
        _ => "unknown result code",
    };
    Ptr::text(static_text(text.to_owned()))
}

pub(crate) fn ncclGetLastError(_comm: Ptr) -> Ptr {
    Ptr::text(c"")
}

// Memory.

pub(crate) fn ncclMemAlloc(out: Out<u64>, size: usize) -> i32 {
    if memory::malloc(out, size) == 0 {
        SUCCESS
    } else {
        UNHANDLED_CUDA_ERROR
    }
}

pub(crate) fn ncclMemFree(address: Ptr) -> i32 {
    if memory::free(address.0 as u64) == 0 {
        SUCCESS
    } else {
        UNHANDLED_CUDA_ERROR
    }
}

/// The memory that a communicator uses itself: not modelled, hence nothing.
pub(crate) fn ncclCommMemStats(_comm: Ptr, _what: i32, _value: Out<u64>) -> i32 {
    SUCCESS
}

pub(crate) fn ncclCommWindowRegister(
    _comm: Ptr,
    buffer: Ptr,
    _size: usize,
    window: Out<Ptr>,
    _flags: i32,
) -> i32 {
    let handle = Ptr::fresh();
    let mut windows = WINDOWS.lock();
    windows.insert(handle, buffer);
    window.set(handle);
    SUCCESS
}

pub(crate) fn ncclWinGetUserPtr(_comm: Ptr, window: Ptr, out: Out<Ptr>) -> i32 {
    let windows = WINDOWS.lock();
    out.set(windows.get(&window).copied().unwrap_or_default());
    SUCCESS
}

// Collectives.

/// Bytes of `count` elements of an `ncclDataType_t`.
pub(crate) fn bytes(count: usize, data_type: i32) -> usize {
    let element = Type::from_number(data_type).map_or(0, Type::size);
    count.saturating_mul(element)
}

/// How many ranks a communicator has.
pub(crate) fn ranks(comm: Ptr) -> usize {
    find_communicator(comm).map_or(1, |comm| comm.ranks)
}

/// A call that is part of a group.
struct Call {
    comm: Ptr,
    request: Request,
    place: Place,
}

struct Group {
    depth: usize,
    calls: Vec<Call>,
}

thread_local! {
    static GROUP: RefCell<Group> = const {
        RefCell::new(Group {
            depth: 0,
            calls: Vec::new(),
        })
    };
}

/// Does `act` with this thread's group. A thread that ends has none any more, and gets an error.
fn with_group<R>(act: impl FnOnce(&mut Group) -> R) -> Option<R> {
    GROUP.try_with(|group| act(&mut group.borrow_mut())).ok()
}

/// Issues a call, or keeps it until the outermost group ends.
fn call(comm: Ptr, request: Request) -> i32 {
    let Some(communicator) = find_communicator(comm) else {
        return INVALID_ARGUMENT;
    };
    if Type::from_number(request.data_type).is_none() {
        return INVALID_ARGUMENT;
    }
    nccl_buffers::note(&communicator, request.kind, request.root);
    let call = Call {
        comm,
        request,
        place: exchange::current_place(),
    };
    let alone = with_group(|group| {
        if group.depth == 0 {
            return Some(call);
        }
        group.calls.push(call);
        None
    });
    match alone {
        Some(None) => SUCCESS,
        Some(Some(call)) => issue(vec![call]),
        None => INTERNAL_ERROR,
    }
}

fn issue(calls: Vec<Call>) -> i32 {
    let seat = |comm: Communicator| (comm.name, comm.rank);
    let requests: Vec<_> = calls
        .into_iter()
        // In a graph it would happen at a launch.
        .filter(|call| !stream::note_work(call.request.stream))
        .filter_map(|call| {
            Some((
                seat(find_communicator(call.comm)?),
                call.request,
                call.place,
            ))
        })
        .collect();
    match exchange::issue(&requests) {
        Ok(()) => SUCCESS,
        Err(_) => SYSTEM_ERROR,
    }
}

pub(crate) fn ncclGroupStart() -> i32 {
    let counted = with_group(|group| group.depth += 1);
    counted.map_or(INTERNAL_ERROR, |()| SUCCESS)
}

pub(crate) fn ncclGroupEnd() -> i32 {
    let calls = with_group(|group| {
        group.depth = group.depth.saturating_sub(1);
        match group.depth {
            0 => std::mem::take(&mut group.calls),
            _ => Vec::new(),
        }
    });
    let Some(calls) = calls else {
        return INTERNAL_ERROR;
    };
    issue(calls)
}

/// Where a region is, and how long.
fn range(region: Region) -> (u64, usize) {
    (region.address().0 as u64, region.len())
}

/// A request without operator or root.
fn request(kind: Kind, send: Region, receive: Region, stream: Ptr) -> Request {
    Request {
        kind,
        send: range(send),
        receive: range(receive),
        count: 0,
        data_type: 0,
        operator: (-1, None),
        root: -1,
        stream,
    }
}

// Operators of the program's, by their number: what each multiplies by.

static FACTORS: Lock<BTreeMap<i32, f64>> = Lock::new(BTreeMap::new());

fn factors() -> MutexGuard<'static, BTreeMap<i32, f64>> {
    FACTORS.lock()
}

/// An operator by its number, and the number that all ranks have for it.
fn operator(number: i32) -> (i32, Option<Operator>) {
    if let Some(operator) = Operator::from_number(number) {
        return (number, Some(operator));
    }
    let factor = factors().get(&number).copied();
    (FIRST_FACTOR, factor.map(Operator::Scaled))
}

/// The first number that is not one of NCCL's own operators.
const FIRST_FACTOR: i32 = 5;

pub(crate) fn ncclRedOpCreatePreMulSum(
    op: Out<i32>,
    scalar: Region,
    data_type: i32,
    _residence: i32,
    _comm: Ptr,
) -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(FIRST_FACTOR);
    let mut bytes = [0_u8; 8];
    // SAFETY: as many bytes as there are, which live as long as the copy.
    let here = unsafe { Region::new(Ptr(bytes.as_mut_ptr() as usize), bytes.len()) };
    if memory::copy(here, scalar, Ptr::NULL) != 0 {
        return UNHANDLED_CUDA_ERROR;
    }
    let factor = Type::from_number(data_type).and_then(|of| exchange::number(&bytes, of));
    let Some(factor) = factor else {
        return INVALID_ARGUMENT;
    };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    factors().insert(number, factor);
    op.set(number);
    SUCCESS
}

pub(crate) fn ncclRedOpDestroy(op: i32, _comm: Ptr) -> i32 {
    factors().remove(&op);
    SUCCESS
}

pub(crate) fn ncclAllReduce(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    op: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        operator: operator(op),
        ..request(Kind::AllReduce, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclBroadcast(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        root,
        ..request(Kind::Broadcast, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclBcast(
    buffer: Region,
    count: usize,
    data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    ncclBroadcast(buffer, buffer, count, data_type, root, comm, stream)
}

pub(crate) fn ncclReduce(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    op: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        operator: operator(op),
        root,
        ..request(Kind::Reduce, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclAllGather(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        ..request(Kind::AllGather, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclReduceScatter(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    op: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        operator: operator(op),
        ..request(Kind::ReduceScatter, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclAlltoAll(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        ..request(Kind::AllToAll, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclGather(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        root,
        ..request(Kind::Gather, send, receive, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclScatter(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        root,
        ..request(Kind::Scatter, send, receive, stream)
    };
    call(comm, request)
}

/// A message to or from another rank.
fn message(
    kind: Kind,
    buffer: Region,
    count: usize,
    data_type: i32,
    peer: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let request = Request {
        count,
        data_type,
        root: peer,
        ..request(kind, buffer, buffer, stream)
    };
    call(comm, request)
}

pub(crate) fn ncclSend(
    buffer: Region,
    count: usize,
    data_type: i32,
    peer: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    message(Kind::Send, buffer, count, data_type, peer, comm, stream)
}

pub(crate) fn ncclRecv(
    buffer: Region,
    count: usize,
    data_type: i32,
    peer: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    message(Kind::Receive, buffer, count, data_type, peer, comm, stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_orders_its_ranks_by_key() {
        let parent = Communicator {
            ranks: 4,
            rank: 2,
            device: 0,
            name: 1,
            splits: 0,
        };
        let requests = [(0, 9), (1, 0), (0, 3), (-1, 0)];
        let part = part(&parent, &requests).expect("rank 2 asked for colour 0");
        assert_eq!((part.ranks, part.rank), (2, 0), "key 3 comes before key 9");
    }

    #[test]
    fn names_differ() {
        assert_ne!(unique_id(), unique_id());
        assert_ne!(name_of(b"a"), name_of(b"b"));
    }
}
