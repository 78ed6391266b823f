// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams, events, capture and graphs.
//!
//! Work is done the moment it is requested, so streams are always idle and
//! events always done, unless the GPU is taken to be behind ([`lag`]),
//! a collective comes first that no thread has waited for, or a test holds a stream
//! back. The rest is identity (unique handles,
//! which torch's trace shows) and capture: a stream that captures pulls others
//! in through events, and the end of the capture ends it for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tonnage_capture::note::Note;

use crate::exchange;
use crate::ffi::{HostFunction, InOut, Out, OutArray, Plain, Ptr, StreamCallback};
use crate::foreign;
use crate::fork::Lock;
use crate::lag::{self, Lag, is_behind};
use crate::machine::{Answer, code, current, machine, status, use_current};
use crate::uses;

/// Time that is reported between two events. A kernel takes no time
/// here; a whole millisecond keeps programs that repeat until enough time has
/// passed from repeating forever.
const ELAPSED_MS: f32 = 1.0;

#[derive(Clone, Copy, Default)]
struct Stream {
    device: usize,
    priority: i32,
    flags: u32,
    /// The capture this stream takes part in, or 0.
    capture: u64,
}

#[derive(Default)]
struct Graph {
    /// Handles of its nodes; made when work is captured.
    nodes: usize,
    /// The memory that its work uses.
    addresses: BTreeSet<u64>,
    objects: Vec<Ptr>,
}

struct UserObject {
    references: u32,
    destroy: Option<HostFunction>,
    data: Ptr,
}

#[derive(Default)]
struct Streams {
    known: BTreeMap<Ptr, Stream>,
    /// The capture in which an event was last recorded, or 0.
    events: BTreeMap<Ptr, u64>,
    graphs: BTreeMap<Ptr, Graph>,
    /// The memory that graphs use which can be launched.
    launchable: BTreeMap<Ptr, BTreeSet<u64>>,
    /// Running captures: number to the graph it makes and the stream that began it.
    captures: BTreeMap<u64, (Ptr, Ptr)>,
    /// The captures in which something was called that cannot be captured.
    invalidated: BTreeSet<u64>,
    next_capture: u64,
    objects: BTreeMap<Ptr, UserObject>,
    /// The work that was recorded since a stream was first held back.
    held: Held,
}

/// Events that are not done at once: see [`tonnage_hold_stream`].
#[derive(Default)]
struct Held {
    streams: BTreeMap<Ptr, HeldStream>,
    /// The stream an event was last recorded on, and its number there.
    events: BTreeMap<Ptr, (Ptr, u64)>,
}

#[derive(Default)]
struct HeldStream {
    held: bool,
    recorded: u64,
    done: u64,
}

impl Held {
    fn record(&mut self, event: Ptr, stream: Ptr) {
        let on = self.streams.entry(stream).or_default();
        on.recorded += 1;
        if !on.held {
            on.done = on.recorded;
        }
        self.events.insert(event, (stream, on.recorded));
    }

    fn is_done(&self, event: Ptr) -> bool {
        let recorded = self.events.get(&event);
        recorded.is_none_or(|(stream, number)| self.streams[stream].done >= *number)
    }

    /// Waiting for an event is waiting for all events before it on its stream.
    fn wait(&mut self, event: Ptr) {
        if let Some(&(stream, number)) = self.events.get(&event)
            && let Some(on) = self.streams.get_mut(&stream)
        {
            on.done = on.done.max(number);
        }
    }
}

/// Set by the first [`tonnage_hold_stream`]: before it, no event need be remembered.
static HOLDING: AtomicBool = AtomicBool::new(false);

static STREAMS: Lock<Option<Streams>> = Lock::new(None);
/// How many captures run, so that the usual answer (none) needs no lock.
static CAPTURING: AtomicUsize = AtomicUsize::new(0);

fn with<R>(act: impl FnOnce(&mut Streams) -> R) -> R {
    let mut streams: MutexGuard<'_, Option<Streams>> = STREAMS.lock();
    act(streams.get_or_insert_default())
}

impl Streams {
    fn capture_of(&self, stream: Ptr) -> u64 {
        self.known.get(&stream).map_or(0, |stream| stream.capture)
    }
}

/// Whether any stream captures a graph now.
pub(crate) fn capturing() -> bool {
    CAPTURING.load(Ordering::Relaxed) != 0
}

/// A stream of the current device.
fn key(stream: Ptr) -> lag::Key {
    let device = if stream.is_null() { current() } else { 0 };
    (device, stream)
}

/// The host has waited for all streams, as CUDA does before memory goes back to the driver.
pub(crate) fn catch_up() {
    if is_behind() {
        lag::with(Lag::wait_for_all);
    }
}

/// Notes work given to a stream; whether it was captured instead of done.
pub(crate) fn note_work(stream: Ptr) -> bool {
    if CAPTURING.load(Ordering::Relaxed) == 0 && !is_behind() {
        return false;
    }
    with(|streams| {
        let capture = streams.capture_of(stream);
        let Some((graph, _)) = streams.captures.get(&capture).copied() else {
            if is_behind() {
                lag::with(|lag| lag.launch(key(stream)));
            }
            return false;
        };
        if let Some(graph) = streams.graphs.get_mut(&graph) {
            graph.nodes += 1;
        }
        true
    })
}

pub(crate) fn create(out: Out<Ptr>, flags: u32, priority: i32) -> i32 {
    status(use_current().map(|_| {
        let handle = Ptr::fresh();
        let stream = Stream {
            device: current(),
            priority: priority.clamp(-5, 0),
            flags,
            capture: 0,
        };
        with(|streams| streams.known.insert(handle, stream));
        out.set(handle);
    }))
}

pub(crate) fn create_plain(out: Out<Ptr>) -> i32 {
    create(out, 0, 0)
}

pub(crate) fn create_flags(out: Out<Ptr>, flags: u32) -> i32 {
    create(out, flags, 0)
}

pub(crate) fn destroy(stream: Ptr) -> i32 {
    with(|streams| streams.known.remove(&stream));
    code::SUCCESS
}

/// Whether a stream is idle: always, unless it is behind.
///
/// Also where it has yet to meet other ranks, because torch's allocator queries the same of events, and what it does
/// must not depend on how fast the other ranks are.
pub(crate) fn done(stream: Ptr) -> i32 {
    if is_behind() && lag::with(|lag| !lag.is_idle(key(stream))) {
        return code::NOT_READY;
    }
    machine_status()
}

fn machine_status() -> i32 {
    status(machine().map(|_| ()))
}

/// Waits for a stream: other ranks keep it busy, or it is behind. A stream that captures cannot be waited for, and its
/// capture is void.
pub(crate) fn wait_for_stream(stream: Ptr) -> i32 {
    if let Some((capture, _)) = info(stream) {
        with(|streams| streams.invalidated.insert(capture));
        return code::CAPTURE_UNSUPPORTED;
    }
    exchange::finish_stream(stream);
    if is_behind() {
        lag::with(|lag| lag.wait_for_stream(key(stream)));
    }
    machine_status()
}

pub(crate) fn synchronize() -> i32 {
    exchange::finish_all();
    catch_up();
    status(use_current().map(|_| ()))
}

fn about<T: Plain>(stream: Ptr, out: &Out<T>, what: impl FnOnce(Stream) -> T) -> i32 {
    let known = with(|streams| streams.known.get(&stream).copied());
    out.set(what(known.unwrap_or(Stream {
        device: current(),
        ..Stream::default()
    })));
    code::SUCCESS
}

pub(crate) fn priority(stream: Ptr, out: Out<i32>) -> i32 {
    about(stream, &out, |stream| stream.priority)
}

pub(crate) fn flags(stream: Ptr, out: Out<u32>) -> i32 {
    about(stream, &out, |stream| stream.flags)
}

pub(crate) fn device(stream: Ptr, out: Out<i32>) -> i32 {
    about(stream, &out, |stream| stream.device as i32)
}

pub(crate) fn id(stream: Ptr, out: Out<u64>) -> i32 {
    out.set(stream.0 as u64);
    code::SUCCESS
}

/// Calls the host function now, unless it is captured.
pub(crate) fn host_function(stream: Ptr, function: Option<HostFunction>, data: Ptr) -> i32 {
    let Some(function) = function else {
        return code::INVALID_VALUE;
    };
    if !note_work(stream) {
        // SAFETY: the program's function, called with the argument it was given to us with.
        unsafe { function(data) };
    }
    code::SUCCESS
}

pub(crate) fn host_function_mode(
    stream: Ptr,
    function: Option<HostFunction>,
    data: Ptr,
    _mode: u32,
) -> i32 {
    host_function(stream, function, data)
}

pub(crate) fn callback(
    stream: Ptr,
    function: Option<StreamCallback>,
    data: Ptr,
    _flags: u32,
) -> i32 {
    let Some(function) = function else {
        return code::INVALID_VALUE;
    };
    if !note_work(stream) {
        // SAFETY: the program's function, called with the argument it was given to us with.
        unsafe { function(stream, code::SUCCESS, data) };
    }
    code::SUCCESS
}

// Events.

pub(crate) fn create_event(out: Out<Ptr>, _flags: u32) -> i32 {
    status(use_current().map(|_| out.set(Ptr::fresh())))
}

pub(crate) fn create_event_plain(out: Out<Ptr>) -> i32 {
    create_event(out, 0)
}

pub(crate) fn destroy_event(event: Ptr) -> i32 {
    exchange::forget_event(event);
    if CAPTURING.load(Ordering::Relaxed) > 0 {
        with(|streams| streams.events.remove(&event));
    }
    if HOLDING.load(Ordering::Relaxed) {
        with(|streams| streams.held.events.remove(&event));
    }
    if is_behind() {
        lag::with(|lag| lag.forget(event));
    }
    code::SUCCESS
}

pub(crate) fn record(event: Ptr, stream: Ptr) -> i32 {
    exchange::record(event, stream);
    if CAPTURING.load(Ordering::Relaxed) > 0 {
        with(|streams| {
            let capture = streams.capture_of(stream);
            streams.events.insert(event, capture);
        });
    }
    if HOLDING.load(Ordering::Relaxed) {
        with(|streams| streams.held.record(event, stream));
    }
    if is_behind() {
        lag::with(|lag| lag.record(event, key(stream)));
    }
    code::SUCCESS
}

pub(crate) fn record_flags(event: Ptr, stream: Ptr, _flags: u32) -> i32 {
    record(event, stream)
}

/// A stream that waits for an event of a capture joins the capture.
pub(crate) fn wait(stream: Ptr, event: Ptr, _flags: u32) -> i32 {
    exchange::follow(stream, event);
    if CAPTURING.load(Ordering::Relaxed) > 0 {
        with(|streams| {
            let capture = streams.events.get(&event).copied().unwrap_or(0);
            if streams.captures.contains_key(&capture) {
                let joined = streams.known.entry(stream).or_default();
                joined.capture = capture;
            }
        });
    }
    if is_behind() {
        lag::with(|lag| lag.follow(key(stream), event));
    }
    code::SUCCESS
}

/// The library with PyTorch's allocator.
const TORCH_ALLOCATOR: &str = "/libc10_cuda.so";

/// PyTorch's allocator queries whether another stream is done with a block that was freed: what it reserves depends on
/// how far the GPU is behind, which is reported once.
fn note_question() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.load(Ordering::Relaxed) && foreign::is_called_by(TORCH_ALLOCATOR) {
        TOLD.store(true, Ordering::Relaxed);
        let lag = machine().map_or(0, |machine| machine.config.lag);
        crate::recorder::remark_note(&Note::FreesWait(lag));
    }
}

/// Whether an event is done: always, unless its stream is behind or held back, or a collective is before it that no
/// thread has waited for. Torch's allocator does not get that answer: what it does must not depend on how fast other
/// ranks are.
pub(crate) fn query_event(event: Ptr) -> i32 {
    note_question();
    if !exchange::is_awaited(event)
        && !foreign::is_called_by(TORCH_ALLOCATOR)
        && exchange::tell_not_awaited(event)
    {
        return code::NOT_READY;
    }
    if HOLDING.load(Ordering::Relaxed) && with(|streams| !streams.held.is_done(event)) {
        return code::NOT_READY;
    }
    if is_behind() && lag::with(|lag| !lag.is_done(event)) {
        return code::NOT_READY;
    }
    machine_status()
}

pub(crate) fn wait_for_event(event: Ptr) -> i32 {
    exchange::finish_event(event);
    if HOLDING.load(Ordering::Relaxed) {
        with(|streams| streams.held.wait(event));
    }
    if is_behind() {
        lag::with(|lag| lag.wait_for_event(event));
    }
    machine_status()
}

/// Holds a stream back, or lets go of it: for tests of programs that query
/// whether work is done. Events recorded on a held stream are not done until
/// a thread waits for them or for a later one, or the stream is let go.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_hold_stream(stream: Ptr, hold: bool) {
    crate::ffi::guard((), || {
        with(|streams| {
            HOLDING.store(true, Ordering::Relaxed);
            let stream = streams.held.streams.entry(stream).or_default();
            stream.held = hold;
            if !hold {
                stream.done = stream.recorded;
            }
        });
    });
}

pub(crate) fn elapsed(ms: Out<f32>, _start: Ptr, _end: Ptr) -> i32 {
    ms.set(ELAPSED_MS);
    code::SUCCESS
}

// Capture.

fn begin_capture(stream: Ptr, graph: Ptr) -> Answer {
    // The default streams cannot be captured.
    if stream.0 <= 2 {
        return Err(code::CAPTURE_UNSUPPORTED);
    }
    with(|streams| {
        if streams.capture_of(stream) != 0 {
            return Err(code::INVALID_VALUE);
        }
        streams.next_capture += 1;
        let capture = streams.next_capture;
        streams.captures.insert(capture, (graph, stream));
        streams.graphs.entry(graph).or_default();
        streams.known.entry(stream).or_default().capture = capture;
        CAPTURING.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) fn begin(stream: Ptr, _mode: i32) -> i32 {
    status(begin_capture(stream, Ptr::fresh()))
}

pub(crate) fn begin_plain(stream: Ptr) -> i32 {
    begin(stream, 0)
}

pub(crate) fn begin_to_graph(
    stream: Ptr,
    graph: Ptr,
    _after: Ptr,
    _edges: Ptr,
    _count: usize,
    _mode: i32,
) -> i32 {
    status(begin_capture(stream, graph))
}

pub(crate) fn end(stream: Ptr, out: Out<Ptr>) -> i32 {
    status(with(|streams| {
        let capture = streams.capture_of(stream);
        let (graph, _) = streams
            .captures
            .remove(&capture)
            .ok_or(code::CAPTURE_INVALIDATED)?;
        for other in streams.known.values_mut() {
            if other.capture == capture {
                other.capture = 0;
            }
        }
        CAPTURING.fetch_sub(1, Ordering::Relaxed);
        if streams.invalidated.remove(&capture) {
            return Err(code::CAPTURE_INVALIDATED);
        }
        out.set(graph);
        Ok(())
    }))
}

/// Capture and graph of a stream, if it captures.
fn info(stream: Ptr) -> Option<(u64, Ptr)> {
    if CAPTURING.load(Ordering::Relaxed) == 0 {
        return None;
    }
    with(|streams| {
        let capture = streams.capture_of(stream);
        let (graph, _) = streams.captures.get(&capture)?;
        Some((capture, *graph))
    })
}

pub(crate) fn is_capturing(stream: Ptr, out: Out<i32>) -> i32 {
    out.set(i32::from(info(stream).is_some()));
    code::SUCCESS
}

/// The oldest form of the question.
pub(crate) fn capture_info(stream: Ptr, status_out: Out<i32>, id: Out<u64>) -> i32 {
    if let Some((capture, _)) = info(stream) {
        status_out.set(1);
        id.set(capture);
    }
    code::SUCCESS
}

pub(crate) fn capture_info_v2(
    stream: Ptr,
    status_out: Out<i32>,
    id: Out<u64>,
    graph: Out<Ptr>,
    _after: Out<Ptr>,
    _count: Out<usize>,
) -> i32 {
    if let Some((_, captured)) = info(stream) {
        graph.set(captured);
    }
    capture_info(stream, status_out, id)
}

pub(crate) fn capture_info_v3(
    stream: Ptr,
    status_out: Out<i32>,
    id: Out<u64>,
    graph: Out<Ptr>,
    after: Out<Ptr>,
    _edges: Out<Ptr>,
    count: Out<usize>,
) -> i32 {
    capture_info_v2(stream, status_out, id, graph, after, count)
}

/// The runtime's form, which has seven parameters in CUDA 13 and three before:
/// the last four are written only where the caller passes them.
pub(crate) fn capture_info_runtime(
    stream: Ptr,
    status_out: Out<i32>,
    id: Out<u64>,
    graph: OutArray<Ptr>,
    after: OutArray<Ptr>,
    edges: OutArray<Ptr>,
    count: OutArray<usize>,
) -> i32 {
    graph.set(0, info(stream).map_or(Ptr::NULL, |(_, graph)| graph));
    after.set(0, Ptr::NULL);
    edges.set(0, Ptr::NULL);
    count.set(0, 0);
    capture_info(stream, status_out, id)
}

thread_local! {
    static MODE: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
}

pub(crate) fn exchange_mode(mode: InOut<i32>) -> i32 {
    if let Some(new) = mode.get() {
        mode.set(MODE.replace(new));
    }
    code::SUCCESS
}

// Graphs.

pub(crate) fn create_graph(out: Out<Ptr>, _flags: u32) -> i32 {
    let graph = Ptr::fresh();
    with(|streams| streams.graphs.insert(graph, Graph::default()));
    out.set(graph);
    code::SUCCESS
}

pub(crate) fn destroy_graph(graph: Ptr) -> i32 {
    let objects = with(|streams| streams.graphs.remove(&graph)).unwrap_or_default();
    for object in objects.objects {
        release_object(object, 1);
    }
    code::SUCCESS
}

/// Blocks begin at multiples of this: of several addresses closer than that, one is kept.
const BLOCK: u64 = 512;

/// Adds the addresses to every graph that is being captured: a call of a library does not name its stream.
pub(crate) fn note_captured(addresses: &[u64]) {
    if !capturing() {
        return;
    }
    with(|streams| {
        for (graph, _) in streams.captures.values() {
            if let Some(graph) = streams.graphs.get_mut(graph) {
                let starts = addresses.iter().map(|address| address / BLOCK * BLOCK);
                graph.addresses.extend(starts);
            }
        }
    });
}

pub(crate) fn instantiate(out: Out<Ptr>, graph: Ptr, _flags: u64) -> i32 {
    let exec = Ptr::fresh();
    with(|streams| {
        let known = streams.graphs.get(&graph);
        if let Some(addresses) = known.map(|graph| graph.addresses.clone()) {
            streams.launchable.insert(exec, addresses);
        }
    });
    out.set(exec);
    code::SUCCESS
}

pub(crate) fn instantiate_parameters(out: Out<Ptr>, graph: Ptr, parameters: OutArray<u8>) -> i32 {
    parameters.write_at(16, Ptr::NULL); // the node in error
    parameters.write_at(24, 0_i32); // the result
    instantiate(out, graph, 0)
}

pub(crate) fn instantiate_log(
    out: Out<Ptr>,
    graph: Ptr,
    _error: Out<Ptr>,
    _log: Ptr,
    _length: usize,
) -> i32 {
    instantiate(out, graph, 0)
}

pub(crate) fn launch_graph(graph: Ptr, stream: Ptr) -> i32 {
    note_work(stream);
    crate::recorder::report_launch();
    let used = with(|streams| streams.launchable.get(&graph).cloned());
    uses::touch(used.unwrap_or_default().into_iter());
    code::SUCCESS
}

pub(crate) fn destroy_exec(exec: Ptr) -> i32 {
    with(|streams| streams.launchable.remove(&exec));
    code::SUCCESS
}

/// The nodes of a graph: never none, because an empty graph is worth a warning.
pub(crate) fn nodes(graph: Ptr, nodes: OutArray<Ptr>, count: InOut<usize>) -> i32 {
    let have = with(|streams| {
        streams
            .graphs
            .get(&graph)
            .map_or(1, |graph| graph.nodes.max(1))
    });
    let give = nodes.len().min(have);
    if nodes.is_null() {
        count.set(have);
        return code::SUCCESS;
    }
    for index in 0..give {
        nodes.set(index, Ptr(graph.0 + index + 1));
    }
    count.set(give);
    code::SUCCESS
}

pub(crate) fn node_type(_node: Ptr, out: Out<i32>) -> i32 {
    out.set(0); // a kernel
    code::SUCCESS
}

/// Nodes stand alone: no neighbours are known.
pub(crate) fn no_neighbours(count: &InOut<usize>) -> i32 {
    count.set(0);
    code::SUCCESS
}

pub(crate) fn add_node(out: Out<Ptr>, graph: Ptr) -> i32 {
    with(|streams| streams.graphs.entry(graph).or_default().nodes += 1);
    out.set(Ptr::fresh());
    code::SUCCESS
}

// Objects that live as long as a graph.

pub(crate) fn create_object(
    out: Out<Ptr>,
    data: Ptr,
    destroy: Option<HostFunction>,
    references: u32,
    _flags: u32,
) -> i32 {
    let handle = Ptr::fresh();
    let object = UserObject {
        references,
        destroy,
        data,
    };
    with(|streams| streams.objects.insert(handle, object));
    out.set(handle);
    code::SUCCESS
}

pub(crate) fn retain_object(object: Ptr, count: u32) -> i32 {
    with(|streams| {
        if let Some(object) = streams.objects.get_mut(&object) {
            object.references += count;
        }
    });
    code::SUCCESS
}

pub(crate) fn release_object(object: Ptr, count: u32) -> i32 {
    let dead = with(|streams| {
        let held = streams.objects.get_mut(&object)?;
        held.references = held.references.saturating_sub(count);
        (held.references == 0).then(|| streams.objects.remove(&object))?
    });
    if let Some(UserObject {
        destroy: Some(destroy),
        data,
        ..
    }) = dead
    {
        // SAFETY: the program's function, called with what it was given to us for, once, when
        // nothing refers to the object any more.
        unsafe { destroy(data) };
    }
    code::SUCCESS
}

/// A graph takes a hold on an object; with flag 1 it takes over the caller's.
pub(crate) fn graph_retain_object(graph: Ptr, object: Ptr, count: u32, flags: u32) -> i32 {
    if flags & 1 == 0 {
        retain_object(object, count);
    }
    with(|streams| {
        let graph = streams.graphs.entry(graph).or_default();
        graph.objects.extend((0..count).map(|_| object));
    });
    code::SUCCESS
}

pub(crate) fn graph_release_object(graph: Ptr, object: Ptr, count: u32) -> i32 {
    let released = with(|streams| {
        let Some(graph) = streams.graphs.get_mut(&graph) else {
            return 0;
        };
        let mut left = count;
        graph.objects.retain(|&held| {
            let drop = held == object && left > 0;
            left -= u32::from(drop);
            !drop
        });
        count - left
    });
    release_object(object, released)
}
