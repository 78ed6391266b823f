// SPDX-License-Identifier: MIT OR Apache-2.0
//! NCCL without peers: every other rank looks like this one.
//!
//! Small payloads come back as if all ranks had sent the same, which is what
//! training where every rank does the same needs. NCCL's own buffers are
//! allocated inside the real library, by sizes that depend on the machine; none
//! are charged here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonnage_capture::RUN_VARIABLE;

use super::cudnn::real;
use super::memory;
use crate::ffi::{ByValue, Out, OutArray, OutBytes, Ptr};
use crate::machine::{current, machine, use_current};
use crate::recorder::{remark_note, static_text};
use crate::region::Region;
use crate::values;

const SUCCESS: i32 = 0;
const UNHANDLED_CUDA_ERROR: i32 = 1;
const INTERNAL_ERROR: i32 = 3;
const INVALID_ARGUMENT: i32 = 4;

#[derive(Clone, Copy)]
struct Communicator {
    ranks: usize,
    rank: usize,
    /// The visible number of the device that was current when it was made.
    device: i32,
    /// A number that all its ranks have, and no other communicator.
    name: u64,
    /// How often it was split.
    splits: u64,
    /// Whether `ranks` and `rank` are sure: after a split they follow from what
    /// the others ask for, and these may not be there.
    sure: bool,
}

static COMMUNICATORS: Mutex<BTreeMap<Ptr, Communicator>> = Mutex::new(BTreeMap::new());
/// Windows: the memory each was registered for.
static WINDOWS: Mutex<BTreeMap<Ptr, Ptr>> = Mutex::new(BTreeMap::new());

fn communicators() -> MutexGuard<'static, BTreeMap<Ptr, Communicator>> {
    COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn of(comm: Ptr) -> Option<Communicator> {
    communicators().get(&comm).copied()
}

fn register(communicator: Communicator) -> Ptr {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // The buffers of NCCL are not charged, so whoever judges the job must know of them.
    if communicator.ranks > 1 && !TOLD.swap(true, Ordering::Relaxed) {
        let note = format!("{{\"communicator\": {}}}", communicator.ranks);
        remark_note(note.as_bytes());
    }
    let handle = Ptr::fresh();
    communicators().insert(handle, communicator);
    handle
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
    out.set(register(Communicator {
        ranks: ranks as usize,
        rank: rank as usize,
        device: current() as i32,
        name: name_of(id),
        splits: 0,
        sure: true,
    }));
    SUCCESS
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
    id.put(0, &unique_id());
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
        let handle = register(Communicator {
            ranks: count as usize,
            rank: rank as usize,
            device,
            name,
            splits: 0,
            sure: true,
        });
        comms.set(rank as usize, handle);
    }
    SUCCESS
}

/// How long a split waits for the other ranks.
const SPLIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What each rank requests of a split, by rank: colour and key.
///
/// They meet in the run's folder, a file for each, as the real library meets
/// over the network. Ranks that do not come are missed once, then no more.
fn gather_requests(parent: &Communicator, colour: i32, key: i32) -> Option<Vec<(i32, i32)>> {
    static MISSED: AtomicBool = AtomicBool::new(false);
    let folder = PathBuf::from(std::env::var_os(RUN_VARIABLE)?);
    let path = |rank: usize| {
        folder.join(format!(
            "nccl-{:016x}-{}-{rank}",
            parent.name, parent.splits
        ))
    };
    // Written under another name first, so that no one reads half of it.
    let draft = path(parent.rank).with_extension("draft");
    std::fs::write(&draft, format!("{colour} {key}")).ok()?;
    std::fs::rename(&draft, path(parent.rank)).ok()?;
    let begin = Instant::now();
    let mut requests = Vec::with_capacity(parent.ranks);
    while requests.len() < parent.ranks {
        if let Ok(text) = std::fs::read_to_string(path(requests.len())) {
            let (colour, key) = text.split_once(' ')?;
            requests.push((colour.parse().ok()?, key.parse().ok()?));
        } else if MISSED.load(Ordering::Relaxed) || begin.elapsed() > SPLIT_TIMEOUT {
            MISSED.store(true, Ordering::Relaxed);
            return None;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Some(requests)
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
        sure: true,
        ..*parent
    })
}

/// A part of the ranks; where the others do not come, all of them, unsurely.
pub(crate) fn ncclCommSplit(comm: Ptr, colour: i32, key: i32, out: Out<Ptr>, _config: Ptr) -> i32 {
    let Some(parent) = of(comm) else {
        return INVALID_ARGUMENT;
    };
    if let Some(parent) = communicators().get_mut(&comm) {
        parent.splits += 1;
    }
    let requests = if parent.ranks == 1 {
        Some(vec![(colour, key)])
    } else {
        gather_requests(&parent, colour, key).filter(|_| parent.sure)
    };
    if colour >= 0 {
        let child = requests.and_then(|requests| part(&parent, &requests));
        let mut child = child.unwrap_or(Communicator {
            sure: false,
            ..parent
        });
        let name = format!("{:016x} {} {colour}", parent.name, parent.splits);
        child.name = name_of(name.as_bytes());
        child.splits = 0;
        out.set(register(child));
    }
    SUCCESS
}

pub(crate) fn ncclCommShrink(
    comm: Ptr,
    excluded: &[i32],
    _excluded_count: i32,
    out: Out<Ptr>,
    _config: Ptr,
    _flags: i32,
) -> i32 {
    let Some(parent) = of(comm) else {
        return INVALID_ARGUMENT;
    };
    let gone: Vec<usize> = excluded.iter().map(|&rank| rank as usize).collect();
    out.set(register(Communicator {
        ranks: parent.ranks.saturating_sub(gone.len()).max(1),
        rank: parent.rank - gone.iter().filter(|&&rank| rank < parent.rank).count(),
        name: name_of(format!("{:016x} less {gone:?}", parent.name).as_bytes()),
        splits: 0,
        ..parent
    }));
    SUCCESS
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
    communicators().remove(&comm);
    SUCCESS
}

pub(crate) use ncclCommDestroy as ncclCommAbort;

pub(crate) fn ncclCommFinalize(_comm: Ptr) -> i32 {
    SUCCESS
}

fn about(comm: Ptr, out: &Out<i32>, what: impl FnOnce(Communicator) -> i32) -> i32 {
    let Some(communicator) = of(comm) else {
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

/// What a communicator uses itself: not modelled, hence nothing.
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
    let mut windows = WINDOWS.lock().unwrap_or_else(PoisonError::into_inner);
    windows.insert(handle, buffer);
    window.set(handle);
    SUCCESS
}

pub(crate) fn ncclWinGetUserPtr(_comm: Ptr, window: Ptr, out: Out<Ptr>) -> i32 {
    let windows = WINDOWS.lock().unwrap_or_else(PoisonError::into_inner);
    out.set(windows.get(&window).copied().unwrap_or_default());
    SUCCESS
}

// Collectives.

/// Bytes of `count` elements of an `ncclDataType_t`.
pub(crate) fn bytes(count: usize, data_type: i32) -> usize {
    let element = match data_type {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        4 | 5 | 8 => 8,
        _ => 4,
    };
    count.saturating_mul(element)
}

fn copy(to: Region, from: Region, stream: Ptr) -> i32 {
    if to.address() == from.address() || memory::copy(to, from, stream) == 0 {
        SUCCESS
    } else {
        UNHANDLED_CUDA_ERROR
    }
}

/// What arrives here is unknown.
fn forget(region: Region) {
    values::forget(region.address().0 as u64, region.len() as u64);
}

/// How many ranks a communicator has, as far as that is sure: with an unsure
/// count, writing beyond a buffer is worse than writing too little.
pub(crate) fn known_ranks(comm: Ptr) -> usize {
    let comm = of(comm).filter(|comm| comm.sure);
    comm.map_or(1, |comm| comm.ranks)
}

/// Copies one block to a place for each rank.
fn spread(to: Region, from: Region, comm: Ptr, stream: Ptr) -> i32 {
    if of(comm).is_none() {
        return INVALID_ARGUMENT;
    }
    // Gathering in place is common: the own block lies where it belongs, and
    // must be read before anything is written over it; copies go outwards.
    (0..known_ranks(comm))
        .map_while(|rank| to.part(rank * from.len(), from.len()))
        .map(|place| copy(place, from, stream))
        .find(|&status| status != SUCCESS)
        .unwrap_or(SUCCESS)
}

/// The block of `size` bytes that is this rank's among equal ones.
fn own(from: Region, size: usize, comm: Ptr) -> Region {
    let rank = of(comm)
        .filter(|comm| comm.sure)
        .map_or(0, |comm| comm.rank);
    from.part(rank.saturating_mul(size), size).unwrap_or(from)
}

pub(crate) fn ncclAllReduce(
    send: Region,
    receive: Region,
    _count: usize,
    _data_type: i32,
    _op: i32,
    _comm: Ptr,
    stream: Ptr,
) -> i32 {
    copy(receive, send, stream)
}

/// Alone, a broadcast brings what this rank has itself. Many in a group are how
/// torch gathers: one with each rank as its root.
pub(crate) fn ncclBroadcast(
    send: Region,
    receive: Region,
    _count: usize,
    _data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let broadcast = Broadcast {
        send,
        receive,
        root,
        comm,
        stream,
    };
    with_group(|group| {
        if group.depth == 0 {
            return copy(receive, send, stream);
        }
        group.broadcasts.push(broadcast);
        SUCCESS
    })
}

pub(crate) fn ncclBcast(
    _buffer: Ptr,
    _count: usize,
    _data_type: i32,
    _root: i32,
    _comm: Ptr,
    _stream: Ptr,
) -> i32 {
    SUCCESS
}

#[expect(clippy::too_many_arguments, reason = "the C interface has as many")]
pub(crate) fn ncclReduce(
    send: Region,
    receive: Region,
    _count: usize,
    _data_type: i32,
    _op: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    if of(comm).is_some_and(|comm| comm.rank as i32 != root) {
        return SUCCESS;
    }
    copy(receive, send, stream)
}

pub(crate) fn ncclAllGather(
    send: Region,
    receive: Region,
    _count: usize,
    _data_type: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    spread(receive, send, comm, stream)
}

pub(crate) fn ncclReduceScatter(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    _op: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    copy(receive, own(send, bytes(count, data_type), comm), stream)
}

/// What every rank sends to this one is what this one sends to itself.
pub(crate) fn ncclAlltoAll(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let own = own(send, bytes(count, data_type), comm);
    spread(receive, own, comm, stream)
}

pub(crate) fn ncclGather(
    send: Region,
    receive: Region,
    _count: usize,
    _data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    if of(comm).is_some_and(|comm| comm.rank as i32 != root) {
        return SUCCESS;
    }
    spread(receive, send, comm, stream)
}

/// Only the root has what is scattered; the others receive something unknown.
pub(crate) fn ncclScatter(
    send: Region,
    receive: Region,
    count: usize,
    data_type: i32,
    root: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    if of(comm).is_some_and(|comm| comm.rank as i32 != root) {
        forget(receive);
        return SUCCESS;
    }
    copy(receive, own(send, bytes(count, data_type), comm), stream)
}

// Messages between two ranks, which meet when the outermost group ends.

#[derive(Clone, Copy)]
struct Message {
    buffer: Region,
    peer: i32,
    comm: Ptr,
    stream: Ptr,
}

#[derive(Clone, Copy)]
struct Broadcast {
    send: Region,
    receive: Region,
    root: i32,
    comm: Ptr,
    stream: Ptr,
}

struct Group {
    depth: usize,
    sent: Vec<Message>,
    awaited: Vec<Message>,
    broadcasts: Vec<Broadcast>,
}

thread_local! {
    static GROUP: RefCell<Group> = const {
        RefCell::new(Group {
            depth: 0,
            sent: Vec::new(),
            awaited: Vec::new(),
            broadcasts: Vec::new(),
        })
    };
}

/// Does `act` with this thread's group. A thread that ends has none any more, and gets an error.
fn with_group(act: impl FnOnce(&mut Group) -> i32) -> i32 {
    let result = GROUP.try_with(|group| act(&mut group.borrow_mut()));
    result.unwrap_or(INTERNAL_ERROR)
}

/// Other roots send what this rank sends as a root, where it is of the same size.
fn spread_roots(broadcasts: &[Broadcast]) -> i32 {
    let mut status = SUCCESS;
    for broadcast in broadcasts {
        let own = of(broadcast.comm).map_or(-1, |comm| comm.rank as i32);
        let mine = broadcasts.iter().find(|mine| {
            mine.root == own
                && mine.comm == broadcast.comm
                && mine.send.len() == broadcast.send.len()
        });
        let from = mine.map_or(broadcast.send, |mine| mine.send);
        let result = copy(broadcast.receive, from, broadcast.stream);
        status = status.max(result);
    }
    status
}

/// Gives each awaited message what this rank sends to itself, or else to that
/// peer, if it is of the same size; otherwise what arrives is unknown.
fn deliver(sent: &mut Vec<Message>, awaited: &[Message]) -> i32 {
    let mut status = SUCCESS;
    for message in awaited {
        let own = of(message.comm).map_or(-1, |comm| comm.rank as i32);
        let fits = |peer: i32| {
            move |sent: &Message| {
                sent.peer == peer
                    && sent.comm == message.comm
                    && sent.buffer.len() == message.buffer.len()
            }
        };
        let to_self = sent.iter().position(fits(own));
        let found = to_self.or_else(|| sent.iter().position(fits(message.peer)));
        let Some(index) = found else {
            forget(message.buffer);
            continue;
        };
        let from = sent[index].buffer;
        let result = copy(message.buffer, from, message.stream);
        if message.peer == sent[index].peer {
            sent.remove(index);
        }
        status = status.max(result);
    }
    status
}

fn post(message: Message, list: impl FnOnce(&mut Group) -> &mut Vec<Message>) -> i32 {
    with_group(|group| {
        list(group).push(message);
        if group.depth > 0 {
            return SUCCESS;
        }
        let awaited = std::mem::take(&mut group.awaited);
        deliver(&mut std::mem::take(&mut group.sent), &awaited)
    })
}

pub(crate) fn ncclSend(
    buffer: Region,
    _count: usize,
    _data_type: i32,
    peer: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let message = Message {
        buffer,
        peer,
        comm,
        stream,
    };
    post(message, |group| &mut group.sent)
}

pub(crate) fn ncclRecv(
    buffer: Region,
    _count: usize,
    _data_type: i32,
    peer: i32,
    comm: Ptr,
    stream: Ptr,
) -> i32 {
    let message = Message {
        buffer,
        peer,
        comm,
        stream,
    };
    post(message, |group| &mut group.awaited)
}

pub(crate) fn ncclGroupStart() -> i32 {
    with_group(|group| {
        group.depth += 1;
        SUCCESS
    })
}

pub(crate) fn ncclGroupEnd() -> i32 {
    with_group(|group| {
        group.depth = group.depth.saturating_sub(1);
        if group.depth > 0 {
            return SUCCESS;
        }
        let gathered = spread_roots(&std::mem::take(&mut group.broadcasts));
        let awaited = std::mem::take(&mut group.awaited);
        gathered.max(deliver(&mut std::mem::take(&mut group.sent), &awaited))
    })
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
            sure: true,
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
