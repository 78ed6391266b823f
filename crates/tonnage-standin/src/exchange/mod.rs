// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exchange between the ranks of a run by NCCL.
//!
//! A GPU carries out a collective on a stream while the host goes on. So a call
//! publishes what its rank sends and returns (`records`), and what arrives is
//! *pending*: it is fetched when the program looks at it, by a copy to the host,
//! by an operator that the hook computes, or by waiting for the stream. There the
//! process waits for the ranks that have yet to call (`waiting`), as it would on
//! a GPU, and nowhere else.
//!
//! A pending result is written to its target and to wherever that was copied
//! since. Memory that is overwritten or freed is not waited for.
//!
//! A payload is at most [`LARGEST`] bytes from a rank, or as many
//! integers as [`LARGEST_INTEGERS`] (bytes as [`LARGEST_BYTES`]), as far as they are known or drawn. The rest that
//! arrives is unknown.
//!
//! Ranks may have called everything and still wait forever, because of the order of
//! their calls (`order`). The host looks for that where it waits.
//!
//! Where only some ranks of a job run, this rank waits for no other: every other rank is
//! taken to send what this one sends, so a sum over N ranks is N times its value.

mod awaited;
mod operators;
mod order;
mod pieces;
mod records;
mod waiting;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Result;
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use awaited::Awaited;
pub(crate) use operators::{Operator, Type, number};
use order::{Operation, Order};
use pieces::Piece;
pub(crate) use records::Kind;
use records::{Call, Owner, Payload, Reader, Record, Writer, common_spans};
use waiting::{Missing, Patience, Waiter};

use crate::ffi::{Ptr, guard, input_array};
use crate::fork::{Lazy, Lock};
use crate::values::{self, Arrivals};
use crate::{ledger, machine};

/// Payloads up to this size travel; of larger ones only the size does.
const LARGEST: usize = 4 << 20;

/// The same for integers, which are sizes and tokens: as many as the hook keeps.
const LARGEST_INTEGERS: usize = 32 << 20;

/// The same for bytes, which are Python objects.
const LARGEST_BYTES: usize = 256 << 20;

/// The same where this rank sends for all others, which may be many.
const LARGEST_ALONE: usize = 64 << 10;

/// A line of the script; the name is empty where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// An operation, as a rank requests it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// Where what is sent and what arrives lie, with all their bytes.
    pub(crate) send: (u64, usize),
    pub(crate) receive: (u64, usize),
    /// Elements by which the call counts, and their `ncclDataType_t`.
    pub(crate) count: usize,
    pub(crate) data_type: i32,
    /// The number of the operator, and what it does.
    pub(crate) operator: (i32, Option<Operator>),
    /// The root, or the other rank.
    pub(crate) root: i32,
    pub(crate) stream: Ptr,
}

/// How large a payload of this `ncclDataType_t` may be.
fn largest(data_type: i32) -> usize {
    match Type::from_number(data_type) {
        Some(of) if of.size() == 1 && of.is_integer() => LARGEST_BYTES,
        Some(of) if of.is_integer() => LARGEST_INTEGERS,
        _ => LARGEST,
    }
}

impl Request {
    /// The bytes that are sent, if there are at most so many.
    fn payload(&self, most: usize) -> Payload {
        let (address, length) = self.send;
        if self.kind == Kind::Receive || length > most {
            return Payload::default();
        }
        settle(address, length as u64, Patience::Soft);
        match values::read(address, length) {
            Some((bytes, spans)) => Payload {
                bytes: self.scaled(bytes),
                spans,
            },
            None => Payload::default(),
        }
    }

    /// The bytes that a rank sends where the operator multiplies them first, by a factor that may be the rank's own.
    fn scaled(&self, bytes: Vec<u8>) -> Vec<u8> {
        match (Type::from_number(self.data_type), self.operator.1) {
            (Some(of), Some(factor @ Operator::Scaled(_))) => {
                operators::reduce(&[&bytes], of, factor)
            }
            _ => bytes,
        }
    }
}

/// A rank of this process in a communicator.
struct Member {
    ranks: usize,
    /// How it reaches the others; `None` where they are taken to do what it does.
    link: Option<Link>,
    /// The messages that it has sent in the last group, if it has no link.
    echo: Vec<Sent>,
    /// Operations of all ranks so far.
    together: u64,
    /// The numbers of bytes sent and received so far, by the other rank.
    sent: BTreeMap<i32, u64>,
    received: BTreeMap<i32, u64>,
}

/// The file of a rank, and those of the others.
struct Link {
    writer: Writer,
    readers: BTreeMap<usize, Reader>,
}

/// A message of a rank that sends for the others, too.
struct Sent {
    group: u64,
    kind: Kind,
    peer: i32,
    size: usize,
    payload: Payload,
}

/// A name of a communicator and a rank of it: that of a [`Member`].
type Seat = (u64, usize);

/// An operation of this process that is not complete.
struct Pending {
    seat: Seat,
    call: Call,
    operator: Option<Operator>,
    /// Which operations were issued with it.
    group: u64,
    own: Payload,
    /// How many ranks are taken to send what this one does, itself among them.
    alike: usize,
    /// Bytes of one rank's part of the result.
    part: usize,
    pieces: Vec<Piece>,
    /// Whether a wait that the host of a GPU would not have was given up.
    given_up: bool,
}

/// The operations that this process has under way.
#[derive(Default)]
pub(crate) struct State {
    members: BTreeMap<Seat, Member>,
    /// By their order in this process.
    pending: BTreeMap<u64, Pending>,
    issued: u64,
    groups: u64,
    /// The operations that are pending when a stream, or an event, is waited for.
    streams: BTreeMap<Ptr, BTreeSet<u64>>,
    events: BTreeMap<Ptr, BTreeSet<u64>>,
    awaited: Awaited,
    order: Order,
}

static STATE: Lazy<Lock<State>> = Lazy::new();
/// How many operations are pending, so that the usual answer (none) needs no lock.
static PENDING: AtomicUsize = AtomicUsize::new(0);
/// Operations that were ever issued.
static ISSUED: AtomicU64 = AtomicU64::new(0);

fn state() -> MutexGuard<'static, State> {
    let state = STATE.get_or_init(|| Lock::forgotten_in_child(State::default(), forget));
    state.lock()
}

fn is_idle() -> bool {
    PENDING.load(Ordering::Relaxed) == 0
}

/// Whether this process has no part in any operation: most are alone.
fn is_alone() -> bool {
    ISSUED.load(Ordering::Relaxed) == 0
}

/// A forked child is not a rank.
pub(crate) fn forget() {
    *state() = State::default();
    PENDING.store(0, Ordering::Relaxed);
}

thread_local! {
    /// The place from which this thread's next operation is called, as the hook reports it.
    static PLACE: RefCell<Place> = const { RefCell::new(Place { file: String::new(), line: 0 }) };
}

/// Where the backward pass was called that runs, in which threads of PyTorch's issue operations.
static BACKWARD: Lock<Place> = Lock::new(Place {
    file: String::new(),
    line: 0,
});

/// A backward pass begins that this line of the script has called; it has ended if there is no file.
///
/// # Safety
/// `file` points to `length` readable bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_backward_place(file: *const u8, length: usize, line: u32) {
    guard((), || {
        // SAFETY: promised by the caller.
        let place = unsafe { read_place(file, length, line) };
        *BACKWARD.lock() = place;
    });
}

/// # Safety
/// `file` points to `length` readable bytes, or `length` is zero.
unsafe fn read_place(file: *const u8, length: usize, line: u32) -> Place {
    // SAFETY: promised by the caller.
    let file = unsafe { input_array(file, length) };
    Place {
        file: String::from_utf8_lossy(file).into_owned(),
        line,
    }
}

/// The next operation of this thread is called from this line of the script; from none that is known if there is no
/// file. How many operations there were so far.
///
/// # Safety
/// `file` points to `length` readable bytes, or `length` is zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tonnage_place(file: *const u8, length: usize, line: u32) -> u64 {
    guard(0, || {
        // SAFETY: promised by the caller.
        let place = unsafe { read_place(file, length, line) };
        let _ = PLACE.try_with(|slot| slot.replace(place));
        ISSUED.load(Ordering::Relaxed)
    })
}

/// The host waits for all operations from this one on, counted as [`tonnage_place`] counts them. A barrier of
/// torch queries again and again whether it is done, which it always is here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_finish_from(first: u64) {
    guard((), || {
        state().awaited.wait_for_all();
        finish(|state| Some(state.pending.range(first..).map(|(&id, _)| id).collect()));
        look_for_circle();
    });
}

/// The line that calls what this thread issues now.
pub(crate) fn current_place() -> Place {
    let told = PLACE.try_with(|place| place.borrow().clone());
    match told.unwrap_or_default() {
        place if place.file.is_empty() => BACKWARD.lock().clone(),
        place => place,
    }
}

/// This process is `rank` of the communicator with this name.
pub(crate) fn join(name: u64, rank: usize, ranks: usize) -> Result<()> {
    let Some((folder, number)) = run() else {
        return Ok(());
    };
    let link = if machine::machine().is_ok_and(|machine| machine.config.absent_ranks) {
        None
    } else {
        let owner = Owner {
            number,
            world_rank: world_rank(),
        };
        let peers = (0..ranks).map(|peer| (peer, Reader::new(&folder, name, peer)));
        Some(Link {
            writer: Writer::open(&folder, name, rank, owner)?,
            readers: peers.collect(),
        })
    };
    let member = Member {
        ranks,
        link,
        echo: Vec::new(),
        together: 0,
        sent: BTreeMap::new(),
        received: BTreeMap::new(),
    };
    values::set_arrivals(&Exchange);
    state().members.insert((name, rank), member);
    Ok(())
}

/// This process's rank among all, as torch.distributed reported it; negative where it did not.
static WORLD_RANK: AtomicI64 = AtomicI64::new(-1);

/// This process has this rank among all.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_rank(rank: i64) {
    WORLD_RANK.store(rank, Ordering::Relaxed);
}

/// This process's rank among all, as torch.distributed or a launcher reports it.
fn world_rank() -> Option<i64> {
    let told = WORLD_RANK.load(Ordering::Relaxed);
    if told >= 0 {
        return Some(told);
    }
    std::env::var("RANK").ok()?.parse().ok()
}

/// The folder of the run, and the number of this process in it.
fn run() -> Option<(PathBuf, u64)> {
    Some((ledger::folder()?, ledger::ledger()?.number()?))
}

/// Whether `rank` has something to send.
fn sends(kind: Kind, rank: usize, root: i32) -> bool {
    match kind {
        Kind::Broadcast | Kind::Scatter => rank as i32 == root,
        Kind::Receive => false,
        _ => true,
    }
}

/// The ranks whose payloads `rank` needs, other than its own.
fn sources(kind: Kind, rank: usize, ranks: usize, root: i32) -> Vec<usize> {
    let is_root = rank as i32 == root;
    let root = usize::try_from(root).unwrap_or(0);
    match kind {
        Kind::Broadcast | Kind::Scatter if is_root => Vec::new(),
        Kind::Broadcast | Kind::Scatter | Kind::Receive => vec![root],
        Kind::Reduce | Kind::Gather if !is_root => Vec::new(),
        Kind::Send => Vec::new(),
        _ => (0..ranks).filter(|&peer| peer != rank).collect(),
    }
}

/// How many ranks read what `rank` sends.
fn readers(kind: Kind, rank: usize, ranks: usize, root: i32) -> usize {
    match kind {
        Kind::Send => 1,
        Kind::Receive => 0,
        Kind::Reduce | Kind::Gather => usize::from(rank as i32 != root),
        _ => ranks - 1,
    }
}

/// Issues operations together: all are published before any is looked at.
pub(crate) fn issue(requests: &[(Seat, Request, Place)]) -> Result<()> {
    let group = {
        let mut state = state();
        state.groups += 1;
        state.groups
    };
    let mut result = Ok(());
    for (seat, request, place) in requests {
        result = result.and(publish(*seat, request, place, group));
    }
    progress();
    result
}

/// Publishes what a rank sends; what arrives is pending from here on.
fn publish(seat: Seat, request: &Request, place: &Place, group: u64) -> Result<()> {
    let (kind, root) = (request.kind, request.root);
    let (_, rank) = seat;
    let linked = state()
        .members
        .get(&seat)
        .map(|member| member.link.is_some());
    let Some(linked) = linked else {
        // A child of a process that was a rank, or one that the ledger has no room for.
        values::forget(request.receive.0, request.receive.1 as u64);
        return Ok(());
    };
    let own = if sends(kind, rank, root) || !linked {
        let most = largest(request.data_type);
        request.payload(if linked { most } else { LARGEST_ALONE })
    } else {
        Payload::default()
    };
    let mut state = state();
    let State { members, order, .. } = &mut *state;
    let Some(member) = members.get_mut(&seat) else {
        return Ok(());
    };
    let call = Call {
        kind,
        number: member.count(kind, root),
        count: request.count as u64,
        data_type: request.data_type,
        operator: request.operator.0,
        root,
        place: place.clone(),
    };
    let ranks = member.ranks;
    if linked && let Some((folder, process)) = run() {
        let operation = Operation {
            communicator: seat.0,
            rank,
            ranks,
            world_rank: world_rank().unwrap_or(rank as i64),
            kind,
            root,
            number: call.number,
            place: call.place.clone(),
        };
        order.issue((&folder, process), same(request.stream), operation, group)?;
    }
    match &mut member.link {
        Some(link) if kind != Kind::Receive => {
            let readers = readers(kind, rank, ranks, root);
            link.writer.publish(&call, &own, readers)?;
        }
        None if kind == Kind::Send || (kind == Kind::Broadcast && rank as i32 == root) => {
            member.echo.retain(|sent| sent.group == group);
            member.echo.push(Sent {
                group,
                kind,
                peer: root,
                size: request.send.1,
                payload: own.clone(),
            });
        }
        _ => {}
    }
    drop(state);
    let (address, length) = request.receive;
    let receives = match kind {
        Kind::Send | Kind::Split => false,
        Kind::Reduce | Kind::Gather => rank as i32 == root,
        _ => length > 0,
    };
    let lost = kind.reduces() && own.is_unknown();
    let part = match kind {
        Kind::AllGather | Kind::Gather | Kind::AllToAll => length / ranks,
        _ => length,
    };
    let mut pieces = Vec::new();
    if receives {
        values::forget(address, length as u64);
        if !lost && part <= largest(request.data_type) {
            pieces.push(Piece {
                address,
                length: length as u64,
                offset: 0,
                doubted: false,
            });
        }
    }
    add(
        request.stream,
        Pending {
            seat,
            call,
            operator: request.operator.1.map(Operator::after_scaling),
            group,
            own,
            alike: if linked { 1 } else { ranks },
            part,
            pieces,
            given_up: false,
        },
    );
    Ok(())
}

impl Member {
    /// The number of an operation that is issued now.
    fn count(&mut self, kind: Kind, peer: i32) -> u64 {
        let counter = match kind {
            Kind::Send => self.sent.entry(peer).or_default(),
            Kind::Receive => self.received.entry(peer).or_default(),
            _ => &mut self.together,
        };
        *counter += 1;
        *counter - 1
    }
}

fn add(stream: Ptr, pending: Pending) {
    let mut state = state();
    let id = state.issued;
    state.issued += 1;
    ISSUED.store(state.issued, Ordering::Relaxed);
    state.pending.insert(id, pending);
    // It comes after all that the stream has to do already.
    state.streams.entry(same(stream)).or_default().insert(id);
    state.awaited.issue(same(stream));
    PENDING.store(state.pending.len(), Ordering::Relaxed);
}

/// The default stream has two names.
fn same(stream: Ptr) -> Ptr {
    if stream.0 == 1 { Ptr::NULL } else { stream }
}

/// Completes what can be without waiting, from the oldest on.
fn progress() {
    let mut state = state();
    while let Some((&id, _)) = state.pending.first_key_value() {
        if let Err(missing) = state.try_complete(id) {
            if missing.instead.is_some() {
                drop(state);
                waiting::end_for(&missing);
            }
            break;
        }
    }
}

impl State {
    /// Completes an operation if all ranks that it needs have called.
    fn try_complete(&mut self, id: u64) -> std::result::Result<(), Box<Missing>> {
        let Some(pending) = self.pending.get(&id) else {
            return Ok(());
        };
        let Some(member) = self.members.get_mut(&pending.seat) else {
            self.remove(id);
            return Ok(());
        };
        let (_, rank) = pending.seat;
        let call = &pending.call;
        let wanted = !pending.pieces.is_empty();
        let mut parts: BTreeMap<usize, Payload> = BTreeMap::new();
        if member.link.is_none() {
            parts = member.echoed(rank, pending);
        } else {
            let peers = sources(call.kind, rank, member.ranks, call.root);
            for &peer in &peers {
                member.find(rank, peer, call, pending.seat)?;
            }
            for &peer in &peers {
                if let Some(payload) = member.take(rank, peer, call, wanted) {
                    parts.insert(peer, payload);
                }
            }
        }
        if let Some(pending) = self.remove(id)
            && wanted
        {
            pending.write(parts);
        }
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id);
        PENDING.store(self.pending.len(), Ordering::Relaxed);
        let oldest = self
            .pending
            .first_key_value()
            .map_or(u64::MAX, |(&id, _)| id);
        for ids in self.streams.values_mut().chain(self.events.values_mut()) {
            ids.remove(&id);
            *ids = ids.split_off(&oldest);
        }
        self.streams.retain(|_, ids| !ids.is_empty());
        self.events.retain(|_, ids| !ids.is_empty());
        pending
    }
}

impl Member {
    /// Whether a rank has called its side of an operation.
    fn find(
        &mut self,
        rank: usize,
        peer: usize,
        call: &Call,
        seat: Seat,
    ) -> std::result::Result<(), Box<Missing>> {
        let link = self.link.as_mut();
        let Some(reader) = link.and_then(|link| link.readers.get_mut(&peer)) else {
            return Ok(());
        };
        if reader.find(rank, call).is_none() {
            let _ = reader.read_on();
        }
        let found = reader.find(rank, call).map(|record| &record.call);
        if found.is_some_and(|other| call.agrees(other)) {
            return Ok(());
        }
        Err(Box::new(Missing {
            seat,
            ranks: self.ranks,
            peer,
            owner: reader.owner(),
            call: call.clone(),
            instead: found.cloned(),
        }))
    }

    /// Takes what a rank sent in an operation.
    fn take(&mut self, rank: usize, peer: usize, call: &Call, wanted: bool) -> Option<Payload> {
        let reader = self.link.as_mut()?.readers.get_mut(&peer)?;
        let record = reader.remove(rank, call)?;
        Some(reader.take(record, wanted))
    }

    /// The payloads of all ranks, if each sends what this one does. Values of another rank are not known.
    fn echoed(&self, rank: usize, pending: &Pending) -> BTreeMap<usize, Payload> {
        let mut parts = self.echoes(rank, pending);
        let is_mixed = self.ranks > 1 && pending.call.kind.reduces();
        for (&peer, payload) in &mut parts {
            if peer != rank || is_mixed {
                payload.doubt();
            }
        }
        parts
    }

    fn echoes(&self, rank: usize, pending: &Pending) -> BTreeMap<usize, Payload> {
        let call = &pending.call;
        let peer = usize::try_from(call.root).unwrap_or(0);
        let sent = |kind: Kind, peer: i32| {
            let mut sent = self.echo.iter().filter(|sent| sent.group == pending.group);
            sent.find(|sent| (sent.kind, sent.peer, sent.size) == (kind, peer, pending.part))
        };
        let own = rank as i32;
        match call.kind {
            Kind::Receive => {
                // The part that it sends to itself, or else to that peer.
                let sent = sent(Kind::Send, own).or_else(|| sent(Kind::Send, call.root));
                sent.map(|sent| (peer, sent.payload.clone()))
                    .into_iter()
                    .collect()
            }
            Kind::Broadcast => {
                // Many in a group are how torch gathers, one from each rank: the others send what this one does.
                let sent = sent(Kind::Broadcast, own).map(|sent| &sent.payload);
                BTreeMap::from([(peer, sent.unwrap_or(&pending.own).clone())])
            }
            // It counts for each of them.
            kind if kind.reduces() => BTreeMap::from([(rank, pending.own.clone())]),
            // Only the root has what is scattered.
            Kind::Scatter if rank != peer => BTreeMap::new(),
            _ => (0..self.ranks)
                .map(|peer| (peer, pending.own.clone()))
                .collect(),
        }
    }
}

impl Reader {
    fn find(&self, rank: usize, call: &Call) -> Option<&Record> {
        if call.kind != Kind::Receive {
            return self.together.get(&call.number);
        }
        let mut sent = self.sent.get(&(rank as i32))?.iter();
        sent.find(|record| record.call.number == call.number)
    }

    fn remove(&mut self, rank: usize, call: &Call) -> Option<Record> {
        if call.kind != Kind::Receive {
            return self.together.remove(&call.number);
        }
        let sent = self.sent.get_mut(&(rank as i32))?;
        let at = sent
            .iter()
            .position(|record| record.call.number == call.number)?;
        sent.remove(at)
    }
}

impl Pending {
    /// Writes what has arrived: `parts` are the payloads of other ranks.
    fn write(mut self, mut parts: BTreeMap<usize, Payload>) {
        let (_, rank) = self.seat;
        if sends(self.call.kind, rank, self.call.root) && self.call.kind != Kind::Send {
            // Parts that stand for absent ranks have this one's already, as an assumption.
            let own = std::mem::take(&mut self.own);
            parts.entry(rank).or_insert(own);
        }
        for (at, part) in self.results(rank, &parts) {
            for span in &part.spans {
                let length = (span.end - span.start) as u64;
                let inside =
                    |piece: &Piece| piece.inside_of_result((at + span.start) as u64, length);
                for piece in self.pieces.iter().filter_map(inside) {
                    let from = piece.offset as usize - at;
                    let bytes = &part.bytes[from..from + piece.length as usize];
                    values::write(piece.address, bytes, span.known && !piece.doubted);
                }
            }
        }
    }

    /// The parts of the result: where each is, and what is known of it.
    fn results(&self, rank: usize, parts: &BTreeMap<usize, Payload>) -> Vec<(usize, Payload)> {
        let own = |payload: &Payload| payload.part(rank * self.part, self.part);
        let first = parts.values().next();
        let whole = match self.call.kind {
            Kind::AllGather | Kind::Gather => {
                let each = parts.iter();
                return each
                    .map(|(rank, part)| (rank * self.part, part.clone()))
                    .collect();
            }
            Kind::AllToAll => {
                let each = parts.iter();
                return each
                    .map(|(rank, part)| (rank * self.part, own(part)))
                    .collect();
            }
            Kind::AllReduce | Kind::Reduce => self.reduced(&parts.values().collect::<Vec<_>>()),
            Kind::ReduceScatter => {
                let owned: Vec<Payload> = parts.values().map(own).collect();
                self.reduced(&owned.iter().collect::<Vec<_>>())
            }
            Kind::Scatter => first.map(own),
            Kind::Broadcast | Kind::Receive => first.cloned(),
            Kind::Send | Kind::Split => None,
        };
        whole.map(|whole| (0, whole)).into_iter().collect()
    }

    fn reduced(&self, parts: &[&Payload]) -> Option<Payload> {
        let of = Type::from_number(self.call.data_type)?;
        let spans = common_spans(parts, of.size());
        if spans.is_empty() {
            return None;
        }
        let each = parts.iter().map(|part| part.bytes.as_slice());
        let bytes: Vec<&[u8]> = each
            .flat_map(|bytes| std::iter::repeat_n(bytes, self.alike))
            .collect();
        let bytes = operators::reduce(&bytes, of, self.operator?);
        Some(Payload { bytes, spans })
    }
}

// Where the program looks at memory or waits.

/// Waits for an operation.
fn complete(id: u64, patience: Patience) {
    let mut waiter = Waiter::new(patience);
    loop {
        let missing = match state().try_complete(id) {
            Ok(()) => return,
            Err(missing) => missing,
        };
        if !waiter.wait(&missing) {
            // A caller that reads it, or waits for its stream, still waits for it.
            if let Some(pending) = state().pending.get_mut(&id) {
                pending.given_up = true;
            }
            return;
        }
    }
}

/// Waits for what is yet to arrive in a range of device memory.
pub(crate) fn settle(address: u64, size: u64, patience: Patience) {
    if is_idle() {
        return;
    }
    let touched: Vec<u64> = {
        let state = state();
        let touches = |pending: &Pending| {
            let mut pieces = pending.pieces.iter();
            let waits = patience == Patience::Firm || !pending.given_up;
            waits && pieces.any(|piece| piece.overlaps(address, size))
        };
        let pending = state.pending.iter();
        pending
            .filter(|(_, pending)| touches(pending))
            .map(|(&id, _)| id)
            .collect()
    };
    for id in touched {
        complete(id, patience);
    }
}

/// The exchange between ranks, as memory of this process sees it.
struct Exchange;

impl Arrivals for Exchange {
    fn before_read(&self, address: u64, size: u64) {
        settle(address, size, Patience::Firm);
    }

    fn before_use(&self, address: u64, size: u64) {
        settle(address, size, Patience::Soft);
    }

    fn overwritten(&self, address: u64, size: u64) {
        if !is_idle() && size > 0 {
            state().cut(address, size);
        }
    }

    fn doubted(&self, address: u64, size: u64) {
        if is_idle() {
            return;
        }
        for pending in state().pending.values_mut() {
            let pieces = std::mem::take(&mut pending.pieces);
            for piece in pieces {
                pending.pieces.extend(piece.outside(address, size));
                let inside = piece.inside(address, size);
                pending.pieces.extend(inside.map(|piece| Piece {
                    doubted: true,
                    ..piece
                }));
            }
        }
    }

    fn copied(&self, to: u64, from: u64, size: u64) {
        if is_idle() || size == 0 {
            return;
        }
        let mut state = state();
        let mut found: Vec<(u64, Piece)> = Vec::new();
        for (&id, pending) in &state.pending {
            let pieces = pending.pieces.iter();
            found.extend(pieces.filter_map(|piece| Some((id, piece.inside(from, size)?))));
        }
        let covered: u64 = found.iter().map(|(_, piece)| piece.length).sum();
        if covered < size {
            // In parts it is there already: the rest is waited for, so that all of it is copied as it is.
            drop(state);
            self.before_use(from, size);
            self.overwritten(to, size);
            return;
        }
        state.cut(to, size);
        for (id, piece) in found {
            let address = piece.address - from + to;
            if let Some(pending) = state.pending.get_mut(&id) {
                pending.pieces.push(Piece { address, ..piece });
            }
        }
    }
}

impl State {
    fn cut(&mut self, address: u64, size: u64) {
        for pending in self.pending.values_mut() {
            if pending
                .pieces
                .iter()
                .any(|piece| piece.overlaps(address, size))
            {
                let pieces = std::mem::take(&mut pending.pieces);
                let rest = pieces.iter().flat_map(|piece| piece.outside(address, size));
                pending.pieces = rest.collect();
            }
        }
    }
}

/// An event was recorded on a stream.
pub(crate) fn record(event: Ptr, stream: Ptr) {
    if is_alone() {
        return;
    }
    let mut state = state();
    state.awaited.record(event, same(stream));
    state.order.record(event, same(stream));
    match state.streams.get(&same(stream)).cloned() {
        Some(ids) => state.events.insert(event, ids),
        None => state.events.remove(&event),
    };
}

/// A stream waits for an event.
pub(crate) fn follow(stream: Ptr, event: Ptr) {
    if is_alone() {
        return;
    }
    let mut state = state();
    state.awaited.wait_for_event(event);
    state.order.follow(same(stream), event);
    if let Some(ids) = state.events.get(&event).cloned() {
        state.streams.entry(same(stream)).or_default().extend(ids);
    }
}

/// Forgets an event that was destroyed.
pub(crate) fn forget_event(event: Ptr) {
    if is_alone() {
        return;
    }
    let mut state = state();
    state.events.remove(&event);
    state.awaited.forget(event);
    state.order.forget_event(event);
}

/// Whether a thread or stream has waited for all operations that an event comes after.
pub(crate) fn is_awaited(event: Ptr) -> bool {
    is_alone() || state().awaited.is_done(event)
}

/// Records that a caller gets "not done" for an event because [`is_awaited`] reports it; whether that is so. It is done
/// for a caller that queries again and again.
pub(crate) fn tell_not_awaited(event: Ptr) -> bool {
    state().awaited.tell(event)
}

fn finish(ids: impl FnOnce(&State) -> Option<BTreeSet<u64>>) {
    if is_idle() {
        return;
    }
    let ids = ids(&state());
    for id in ids.unwrap_or_default() {
        complete(id, Patience::Firm);
    }
}

/// The host waits for the GPU: ranks that wait in a circle never go on.
fn look_for_circle() {
    let circle = {
        let mut state = state();
        if state.order.is_checked() {
            return;
        }
        run().and_then(|(folder, _)| state.order.circle(&folder))
    };
    if let Some(circle) = circle {
        waiting::end_in_circle(&circle);
    }
}

/// The host waits for a stream.
pub(crate) fn finish_stream(stream: Ptr) {
    if is_alone() {
        return;
    }
    state().awaited.wait_for_stream(same(stream));
    finish(|state| state.streams.get(&same(stream)).cloned());
    look_for_circle();
    state().order.finish_stream(same(stream));
}

/// The host waits for an event.
pub(crate) fn finish_event(event: Ptr) {
    if is_alone() {
        return;
    }
    state().awaited.wait_for_event(event);
    finish(|state| state.events.get(&event).cloned());
    look_for_circle();
    state().order.finish_event(event);
}

/// The host waits for everything.
pub(crate) fn finish_all() {
    if is_alone() {
        return;
    }
    state().awaited.wait_for_all();
    finish(|state| Some(state.pending.keys().copied().collect()));
    look_for_circle();
    state().order.finish_all();
}

/// The colour and key that every rank passes to a split, by rank. Waits for all of them.
pub(crate) fn split(seat: Seat, colour: i32, key: i32) -> Result<Vec<(i32, i32)>> {
    let (id, ranks) = {
        let mut state = state();
        let Some(member) = state.members.get_mut(&seat) else {
            return Ok(Vec::new());
        };
        let call = Call {
            kind: Kind::Split,
            number: member.count(Kind::Split, -1),
            count: 0,
            data_type: -1,
            operator: -1,
            root: -1,
            place: current_place(),
        };
        let bytes = [colour.to_le_bytes(), key.to_le_bytes()].concat();
        let payload = Payload::from_known(bytes);
        let ranks = member.ranks;
        let Some(link) = &mut member.link else {
            // All others want what this one wants: the communicator as it is.
            return Ok((0..ranks).map(|rank| (colour, rank as i32)).collect());
        };
        link.writer.publish(&call, &payload, ranks - 1)?;
        (call, ranks)
    };
    let mut waiter = Waiter::new(Patience::Firm);
    let mut requests = vec![(colour, key); ranks];
    for peer in (0..ranks).filter(|&peer| peer != seat.1) {
        loop {
            let missing = {
                let mut state = state();
                let Some(member) = state.members.get_mut(&seat) else {
                    return Ok(Vec::new());
                };
                match member.find(seat.1, peer, &id, seat) {
                    Ok(()) => {
                        let payload = member.take(seat.1, peer, &id, true);
                        requests[peer] = payload.and_then(|it| request(&it)).unwrap_or((-1, 0));
                        break;
                    }
                    Err(missing) => missing,
                }
            };
            if !waiter.wait(&missing) {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
        }
    }
    Ok(requests)
}

/// Colour and key of a rank that splits.
fn request(payload: &Payload) -> Option<(i32, i32)> {
    match payload.bytes.as_chunks::<4>().0 {
        &[colour, key] => Some((i32::from_le_bytes(colour), i32::from_le_bytes(key))),
        _ => None,
    }
}
