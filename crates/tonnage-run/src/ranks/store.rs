// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store in which the processes of torch.distributed meet, for a job of which only some ranks run.
//!
//! It implements the protocol of torch's `TCPStore`, and answers for the ranks that do not run. A key that a rank waits for
//! is answered as soon as no rank that runs can still set it: at once if it is for a group in which no other rank runs,
//! or whose first rank does not, which is the one to set it; else when each rank that runs waits or has gone. A key
//! that names a communicator of NCCL gets a name made from the key, so that all ranks of a group that run get the same;
//! any other key gets `1`. Where a rank's symmetric memory is gets the answer of a rank of its group that runs. A count
//! to which ranks add is complete at once. The hook reports who is in a group.
//!
//! Each rank has its own port, so that it is known who waits.
//!
//! Any user of the machine can connect to a port. A connection of another user is closed before anything is read. Ranks
//! unpickle objects that they find in the store: the keys of those, and of groups, contain a secret that only the
//! processes of the run have.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The first word of a client of torch 2.1 and later.
const VALIDATION: u32 = 0x3C85_F7CE;
/// Limits of torch's own server.
const LONGEST_KEY: u64 = 8 << 10;
const LONGEST_VALUE: u64 = 8 << 20;
const MOST_KEYS: u64 = 128 << 10;
/// All that is kept at a time.
const MOST_BYTES: usize = 512 << 20;
/// Connections of one rank at a time. Torch opens a few for each group; each has a thread here.
const MOST_CONNECTIONS: usize = 4096;
/// How often a connection is looked up that the system's table does not show: the table is not read at one moment.
const LOOKUPS: usize = 5;
/// How often one who waits looks whether its client has gone or given up.
const LOOK: Duration = Duration::from_millis(20);
/// Keys under which the hook reports who is in a group.
const GROUPS: &[u8] = b"tonnage-groups/";
/// Keys under which it passes on Python objects.
const OBJECTS: &[u8] = b"tonnage-objects/";
/// Part of the keys under which ranks publish where their symmetric memory is: `…/CUDASymmetricMemory/3/RANK`, with
/// the number of the exchange and the place in the group.
const SYMMETRIC_MEMORY: &str = "CUDASymmetricMemory/";
/// The size of the name of a communicator in NCCL.
const COMMUNICATOR_NAME: usize = 128;

const STOP_WAITING: u8 = 0;
const WAIT_CANCELED: u8 = 1;
const READY: u8 = 0;
const NOT_READY: u8 = 1;

/// The request of a client, by its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Query {
    Validate,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    GetNumKeys,
    DeleteKey,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
}

impl Query {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Query; 17] = [
            Query::Validate,
            Query::Set,
            Query::CompareSet,
            Query::Get,
            Query::Add,
            Query::Check,
            Query::Wait,
            Query::GetNumKeys,
            Query::DeleteKey,
            Query::Append,
            Query::MultiGet,
            Query::MultiSet,
            Query::CancelWait,
            Query::Ping,
            Query::QueuePush,
            Query::QueuePop,
            Query::QueueLen,
        ];
        ALL.get(usize::from(byte)).copied()
    }
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Store {
    ports: Vec<u16>,
    secret: String,
    ended: Arc<AtomicBool>,
}

/// 128 random bits as text.
fn random_secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl Store {
    /// Starts to serve a job of `world` ranks, of which `running` run, on machines of `gpus` GPUs each.
    pub(crate) fn start(world: u32, running: &[u32], gpus: u8) -> io::Result<Self> {
        let secret = random_secret()?;
        let shared = Arc::new(Shared {
            keys: Mutex::new(Keys {
                groups_prefix: [GROUPS, secret.as_bytes(), b"/"].concat(),
                world: i64::from(world),
                gpus: u32::from(gpus),
                running: running.iter().map(|&rank| Running::new(rank)).collect(),
                ..Keys::default()
            }),
            changed: Condvar::new(),
        });
        let ended = Arc::new(AtomicBool::new(false));
        let mut ports = Vec::with_capacity(running.len());
        for rank in 0..running.len() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            ports.push(listener.local_addr()?.port());
            let (shared, ended) = (Arc::clone(&shared), Arc::clone(&ended));
            thread::Builder::new()
                .name("tonnage-store".to_owned())
                .spawn(move || listen(&listener, rank, &shared, &ended))?;
        }
        Ok(Self {
            ports,
            secret,
            ended,
        })
    }

    /// The part of keys of groups and objects that prevents writes by another user.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The port for each rank that runs.
    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // The listener notices with the next client.
        for &port in &self.ports {
            drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
        }
    }
}

fn listen(listener: &TcpListener, rank: usize, shared: &Arc<Shared>, ended: &AtomicBool) {
    for stream in listener.incoming() {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of file descriptors, most likely: that may pass.
            thread::sleep(LOOK);
            continue;
        };
        // Another user gets nothing, not even an error.
        let is_full = shared.lock().running[rank].connections >= MOST_CONNECTIONS;
        if is_full || !is_own_user(&stream) {
            continue;
        }
        let shared = Arc::clone(shared);
        let serve = move || {
            // A client that breaks off, or sends a request that no torch sends, loses its connection and nothing else.
            let _ = Client::new(stream, rank, &shared).and_then(|mut client| client.serve());
        };
        let _ = thread::Builder::new()
            .name("tonnage-store".to_owned())
            .spawn(serve);
    }
}

/// Whether the process at the other end of a connection on this machine is one of this user. Where the system has no
/// table of connections, the secret alone protects the run.
fn is_own_user(stream: &TcpStream) -> bool {
    let (Ok(peer), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else {
        return false;
    };
    let own = rustix::process::geteuid().as_raw();
    for _ in 0..LOOKUPS {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
        if tables.iter().all(Result::is_err) {
            return true;
        }
        let mut tables = tables.iter().flatten();
        if let Some(user) = tables.find_map(|table| user_of(table, peer, here)) {
            return user == own;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The user of the socket at `local` that is connected to `remote`, by the system's table of connections: a head, then
/// a line for each socket with its number, both addresses in hexadecimal digits, and its user as the eighth word.
/// Addresses count, too: 127.0.0.2 may have a socket at the same port.
fn user_of(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let is_at = |word: &str, address: SocketAddr| {
        let (SocketAddr::V4(address), Some((host, port))) = (address, word.split_once(':')) else {
            return false;
        };
        let digits = format!("{:08X}", u32::from_ne_bytes(address.ip().octets()));
        // An IPv6 socket has the IPv4 address within an IPv6 one.
        let is_host = host
            .strip_prefix("0000000000000000FFFF0000")
            .unwrap_or(host)
            == digits;
        is_host && u16::from_str_radix(port, 16) == Ok(address.port())
    };
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = is_at(words.get(1)?, local) && is_at(words.get(2)?, remote);
        found.then(|| words.get(7)?.parse().ok())?
    })
}

struct Shared {
    keys: Mutex<Keys>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values that were set.
#[derive(Debug, Default)]
struct Keys {
    world: i64,
    /// The beginning of the keys under which the hook reports who is in a group.
    groups_prefix: Vec<u8>,
    /// GPUs of a machine.
    gpus: u32,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Bytes of all of it.
    bytes: usize,
    running: Vec<Running>,
    waits_begun: u64,
    /// The ranks of each group, by its name.
    groups: BTreeMap<String, Vec<u32>>,
}

/// A rank that runs.
#[derive(Debug)]
struct Running {
    rank: u32,
    /// Whether it was ever connected.
    came: bool,
    connections: usize,
    /// The keys that each of its waiting connections waits for, by a number.
    waits: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Running {
    fn new(rank: u32) -> Self {
        Self {
            rank,
            came: false,
            connections: 0,
            waits: BTreeMap::new(),
        }
    }

    /// Whether it has ended.
    fn has_gone(&self) -> bool {
        self.came && self.connections == 0
    }
}

impl Keys {
    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        if let Some(name) = key.strip_prefix(self.groups_prefix.as_slice()) {
            let name = String::from_utf8_lossy(name).into_owned();
            let ranks = String::from_utf8_lossy(&value);
            let ranks = ranks.split(',').filter_map(|rank| rank.parse().ok());
            self.groups.insert(name, ranks.collect());
        }
        let old = self.values.get(&key).map_or(0, |old| key.len() + old.len());
        let bytes = self.bytes - old + key.len() + value.len();
        if bytes > MOST_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes = bytes;
        self.values.insert(key, value);
        Ok(())
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|it| !it.is_empty())
    }

    /// Counts on. Ranks that are not there are taken to have counted, too.
    fn add(&mut self, key: Vec<u8>, count: i64) -> io::Result<i64> {
        let text = self.values.get(&key).map(|it| String::from_utf8_lossy(it));
        let old: i64 = text.and_then(|it| it.parse().ok()).unwrap_or(0);
        let mut sum = old.saturating_add(count);
        if count > 0 {
            sum = sum.max(self.world);
        }
        self.set(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    fn compare_set(&mut self, key: Vec<u8>, old: Vec<u8>, new: Vec<u8>) -> io::Result<Vec<u8>> {
        match self.values.get(&key) {
            None if !old.is_empty() => Ok(old),
            Some(now) if *now != old => Ok(now.clone()),
            _ => {
                self.set(key, new.clone())?;
                Ok(new)
            }
        }
    }

    fn push(&mut self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        if self.bytes + value.len() > MOST_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes += value.len();
        self.queues.entry(key).or_default().push_back(value);
        Ok(())
    }

    /// Whether the one that is `place` among those that run is answered for those that do not.
    fn is_answered(&self, key: &[u8], place: usize) -> bool {
        if let Some(substitute) = self.substitute(key) {
            return self.has(&substitute.key);
        }
        let own = self.running[place].rank;
        if let Some(group) = self.group_of(key) {
            let alone = !group.iter().any(|&rank| rank != own && self.runs(rank));
            if alone || group.first().is_some_and(|&first| !self.runs(first)) {
                return true;
            }
        }
        // The first of all that wait: that may let it set what the others wait for.
        let mut running = self.running.iter();
        running.all(|it| self.waits(it) || it.has_gone())
            && self.running.iter().position(|it| self.waits(it)) == Some(place)
    }

    fn runs(&self, rank: u32) -> bool {
        self.running.iter().any(|it| it.rank == rank)
    }

    /// The rank whose location of symmetric memory answers a query of a rank: its own if it runs, else that of the next
    /// one of the group that does. Ranks pass descriptors on to the next, so each that runs then gets as many as it
    /// sends.
    fn substitute(&self, key: &[u8]) -> Option<Substitute> {
        let text = str::from_utf8(key).ok()?;
        let (front, rest) = text.rsplit_once(SYMMETRIC_MEMORY)?;
        let (exchange, place) = rest.split_once('/')?;
        let place: usize = place.parse().ok()?;
        let all;
        let group = if let Some(group) = self.group_of(front.as_bytes()) {
            group
        } else {
            all = (0..self.world as u32).collect();
            &all
        };
        let rank = *group.get(place)?;
        let mut others = (place..group.len()).chain(0..place);
        let next = others.find(|&other| self.runs(group[other]))?;
        let machine = |rank: &u32| rank / self.gpus;
        Some(Substitute {
            rank: group[next],
            instead_of: rank,
            on_one_machine: group.iter().all(|other| machine(other) == machine(&rank)),
            key: format!("{front}{SYMMETRIC_MEMORY}{exchange}/{next}").into_bytes(),
        })
    }

    /// Whether a rank waits for a key that was never set. One that has not noticed yet that it was set may set the
    /// next.
    fn waits(&self, rank: &Running) -> bool {
        let mut waits = rank.waits.values();
        waits.any(|asked| asked.iter().any(|key| !self.has(key)))
    }

    /// The ranks of the group that a key is of: one part of it is the group's name.
    fn group_of(&self, key: &[u8]) -> Option<&Vec<u32>> {
        if key.starts_with(OBJECTS) {
            return None;
        }
        let text = String::from_utf8_lossy(key);
        // Torch puts the names of outer groups in front. The last part is the key itself, which may be a number too.
        let mut prefixes = text.split('/').rev().skip(1);
        prefixes.find_map(|part| self.groups.get(part))
    }

    /// Sets the value that a missing rank would have set.
    fn answer(&mut self, key: &[u8]) -> io::Result<()> {
        let value = if key.starts_with(OBJECTS) {
            // The hook makes an error of it: objects cannot be made up.
            b"none".to_vec()
        } else if let Some(substitute) = self.substitute(key) {
            let said = self.values.get(&substitute.key).cloned();
            substitute.placed(said.unwrap_or_default(), self.gpus)
        } else if names_communicator(key) {
            communicator_name(key)
        } else {
            b"1".to_vec()
        };
        self.set(key.to_vec(), value)
    }
}

/// A rank that runs, whose answer is given for one that does not.
struct Substitute {
    rank: u32,
    instead_of: u32,
    /// Whether all ranks of the group are on one machine.
    on_one_machine: bool,
    /// Under which key it answers.
    key: Vec<u8>,
}

impl Substitute {
    /// Its answer, as from the GPU of the other rank. A request to meet begins with the number of the GPU and of the
    /// process; whatever else ranks exchange is shorter, or a handle of a fabric. Without a fabric memory cannot be had
    /// from another machine: a group of several machines finds no process to talk to.
    fn placed(&self, mut said: Vec<u8>, gpus: u32) -> Vec<u8> {
        const FABRIC_HANDLE: usize = 64;
        if said.len() < 40 || said.len() == FABRIC_HANDLE {
            return said;
        }
        let gpu = if self.on_one_machine {
            self.instead_of % gpus
        } else {
            said[4..8].fill(0);
            // A number that no GPU of this machine has: torch refuses two ranks on one.
            self.instead_of + gpus
        };
        if said[..4] == (self.rank % gpus).to_ne_bytes() {
            said[..4].copy_from_slice(&gpu.to_ne_bytes());
        }
        said
    }
}

/// Whether a key is one under which torch passes on the name of a communicator.
///
/// It is `…/nccl_storekey_0_1` in torch 2.15, `…/UniqueNCCLID:0` or a number or two, `0` and `0:1`, before.
fn names_communicator(key: &[u8]) -> bool {
    let text = String::from_utf8_lossy(key).to_ascii_lowercase();
    let last = text.rsplit('/').next().unwrap_or_default();
    let is_numbers = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b':')
    };
    last.contains("nccl") || last.contains("uid") || is_numbers(last)
}

/// A name that all who request the key get, and no others.
fn communicator_name(key: &[u8]) -> Vec<u8> {
    let mut name = b"tonnage\0".to_vec();
    for number in 0_u8..15 {
        let mut hasher = DefaultHasher::new();
        (number, key).hash(&mut hasher);
        name.extend(hasher.finish().to_le_bytes());
    }
    debug_assert_eq!(name.len(), COMMUNICATOR_NAME);
    name
}

/// A connection.
struct Client<'a> {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    rank: usize,
    shared: &'a Shared,
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.shared.lock().running[self.rank].connections -= 1;
        self.shared.changed.notify_all();
    }
}

impl<'a> Client<'a> {
    fn new(stream: TcpStream, rank: usize, shared: &'a Shared) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let mut keys = shared.lock();
        let own = &mut keys.running[rank];
        own.came = true;
        own.connections += 1;
        drop(keys);
        Ok(Self {
            reader: BufReader::new(stream.try_clone()?),
            stream,
            rank,
            shared,
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let [byte] = self.array()?;
            match Query::from_byte(byte).ok_or(io::ErrorKind::InvalidData)? {
                Query::Validate => {
                    if u32::from_le_bytes(self.array()?) != VALIDATION {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
                Query::Ping => {
                    let nonce: [u8; 4] = self.array()?;
                    self.stream.write_all(&nonce)?;
                }
                Query::Set => {
                    let (key, value) = (self.key()?, self.value()?);
                    self.change(|keys| keys.set(key, value))?;
                }
                Query::MultiSet => {
                    for _ in 0..self.key_count()? {
                        let (key, value) = (self.key()?, self.value()?);
                        self.change(|keys| keys.set(key, value))?;
                    }
                }
                Query::CompareSet => {
                    let (key, old, new) = (self.key()?, self.value()?, self.value()?);
                    let now = self.change(|keys| keys.compare_set(key, old, new))?;
                    self.send_value(&now)?;
                }
                Query::Get => {
                    let key = self.key()?;
                    let value = self.shared.lock().values.get(&key).cloned();
                    self.send_value(&value.unwrap_or_default())?;
                }
                Query::MultiGet => {
                    for key in self.keys()? {
                        let value = self.shared.lock().values.get(&key).cloned();
                        self.send_value(&value.unwrap_or_default())?;
                    }
                }
                Query::Add => {
                    let key = self.key()?;
                    let count = i64::from_le_bytes(self.array()?);
                    let sum = self.change(|keys| keys.add(key, count))?;
                    self.stream.write_all(&sum.to_le_bytes())?;
                }
                Query::Append => {
                    let (key, more) = (self.key()?, self.value()?);
                    self.change(|keys| {
                        let mut value = keys.values.get(&key).cloned().unwrap_or_default();
                        value.extend(more);
                        keys.set(key, value)
                    })?;
                }
                Query::Check => {
                    let asked = self.keys()?;
                    let keys = self.shared.lock();
                    let has_all = asked.iter().all(|key| keys.has(key));
                    drop(keys);
                    let answer = if has_all { READY } else { NOT_READY };
                    self.stream.write_all(&[answer])?;
                }
                Query::Wait => {
                    let asked = self.keys()?;
                    if self.wait(&asked)? {
                        self.stream.write_all(&[STOP_WAITING])?;
                    }
                }
                Query::CancelWait => self.stream.write_all(&[WAIT_CANCELED])?,
                Query::GetNumKeys => {
                    let count = self.shared.lock().values.len() as i64;
                    self.stream.write_all(&count.to_le_bytes())?;
                }
                Query::DeleteKey => {
                    let key = self.key()?;
                    let deleted = self.change(|keys| {
                        let old = keys.values.remove(&key);
                        keys.bytes -= old.as_ref().map_or(0, |old| key.len() + old.len());
                        Ok(i64::from(old.is_some()))
                    })?;
                    self.stream.write_all(&deleted.to_le_bytes())?;
                }
                Query::QueuePush => {
                    let (key, value) = (self.key()?, self.value()?);
                    self.change(|keys| keys.push(key, value))?;
                }
                Query::QueuePop => {
                    let key = self.key()?;
                    let mut keys = self.shared.lock();
                    let queue = keys.queues.entry(key).or_default();
                    let length = queue.len() as i64;
                    let value = queue.pop_front();
                    keys.bytes -= value.as_ref().map_or(0, Vec::len);
                    drop(keys);
                    self.stream.write_all(&length.to_le_bytes())?;
                    if let Some(value) = value {
                        self.send_value(&value)?;
                    }
                }
                Query::QueueLen => {
                    let key = self.key()?;
                    let length = self.shared.lock().queues.get(&key).map_or(0, VecDeque::len);
                    self.stream.write_all(&(length as i64).to_le_bytes())?;
                }
            }
        }
    }

    /// Changes the values, and notifies the ranks that wait.
    fn change<T>(&self, act: impl FnOnce(&mut Keys) -> io::Result<T>) -> io::Result<T> {
        let result = act(&mut self.shared.lock());
        self.shared.changed.notify_all();
        result
    }

    /// Waits for all of the keys; `false` if the client does not want to wait any longer.
    fn wait(&mut self, asked: &[Vec<u8>]) -> io::Result<bool> {
        let mut keys = self.shared.lock();
        if asked.iter().all(|key| keys.has(key)) {
            return Ok(true);
        }
        let number = keys.waits_begun;
        keys.waits_begun += 1;
        keys.running[self.rank].waits.insert(number, asked.to_vec());
        let result = loop {
            let missing: Vec<_> = asked.iter().filter(|key| !keys.has(key)).collect();
            if missing.is_empty() {
                break Ok(true);
            }
            let due = |key: &&Vec<u8>| keys.is_answered(key, self.rank);
            let due: Vec<_> = missing.into_iter().filter(due).collect();
            if !due.is_empty() {
                if let Err(error) = due.iter().try_for_each(|key| keys.answer(key)) {
                    break Err(error);
                }
                continue;
            }
            let woken = self.shared.changed.wait_timeout(keys, LOOK);
            keys = woken.unwrap_or_else(PoisonError::into_inner).0;
            match self.has_more_to_say() {
                Ok(true) => break Ok(false),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
        };
        keys.running[self.rank].waits.remove(&number);
        drop(keys);
        self.shared.changed.notify_all();
        result
    }

    /// Whether the client has sent something while it waits for an answer: that it waits no longer.
    fn has_more_to_say(&self) -> io::Result<bool> {
        if !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Bytes with their count in front.
    fn bytes(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let length = u64::from_le_bytes(self.array()?);
        if length > most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        // Room is made for what arrives, not for what was announced.
        if (&mut self.reader).take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    /// A key, without the `/` that torch's clients put in front of each.
    fn key(&mut self) -> io::Result<Vec<u8>> {
        let mut key = self.bytes(LONGEST_KEY)?;
        if key.first() == Some(&b'/') {
            key.remove(0);
        }
        Ok(key)
    }

    fn value(&mut self) -> io::Result<Vec<u8>> {
        self.bytes(LONGEST_VALUE)
    }

    fn key_count(&mut self) -> io::Result<u64> {
        let count = u64::from_le_bytes(self.array()?);
        if count > MOST_KEYS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(count)
    }

    fn keys(&mut self) -> io::Result<Vec<Vec<u8>>> {
        (0..self.key_count()?).map(|_| self.key()).collect()
    }

    fn send_value(&mut self, value: &[u8]) -> io::Result<()> {
        self.stream.write_all(&(value.len() as u64).to_le_bytes())?;
        self.stream.write_all(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(store: &Store, rank: usize) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, store.ports()[rank])).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        let mut stream = stream;
        stream.write_all(&[0]).unwrap();
        stream.write_all(&VALIDATION.to_le_bytes()).unwrap();
        stream
    }

    fn text(bytes: &[u8]) -> Vec<u8> {
        let mut all = (bytes.len() as u64).to_le_bytes().to_vec();
        all.extend(bytes);
        all
    }

    fn groups(store: &Store, name: &str) -> Vec<u8> {
        format!("tonnage-groups/{}/{name}", store.secret()).into_bytes()
    }

    /// A key as torch's clients send it.
    fn sent(key: &[u8]) -> Vec<u8> {
        text(&[b"/", key].concat())
    }

    fn set_query(key: &[u8], value: &[u8]) -> Vec<u8> {
        [vec![1], sent(key), text(value)].concat()
    }

    fn wait_query(key: &[u8]) -> Vec<u8> {
        [vec![6], 1_u64.to_le_bytes().to_vec(), sent(key)].concat()
    }

    fn set(stream: &mut TcpStream, key: &[u8], value: &[u8]) {
        stream.write_all(&set_query(key, value)).unwrap();
    }

    fn start_wait(stream: &mut TcpStream, key: &[u8]) {
        stream.write_all(&wait_query(key)).unwrap();
    }

    fn byte(stream: &mut TcpStream) -> u8 {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    fn get(stream: &mut TcpStream, key: &[u8]) -> Vec<u8> {
        stream.write_all(&[3]).unwrap();
        stream.write_all(&sent(key)).unwrap();
        let mut length = [0; 8];
        stream.read_exact(&mut length).unwrap();
        let mut value = vec![0; u64::from_le_bytes(length) as usize];
        stream.read_exact(&mut value).unwrap();
        value
    }

    fn add(stream: &mut TcpStream, key: &[u8], count: i64) -> i64 {
        stream.write_all(&[4]).unwrap();
        stream.write_all(&sent(key)).unwrap();
        stream.write_all(&count.to_le_bytes()).unwrap();
        let mut sum = [0; 8];
        stream.read_exact(&mut sum).unwrap();
        i64::from_le_bytes(sum)
    }

    #[test]
    fn one_rank_alone_is_answered_at_once() {
        let store = Store::start(512, &[0], 8).unwrap();
        let mut rank = connect(&store, 0);
        set(&mut rank, b"mine", b"value");
        assert_eq!(get(&mut rank, b"mine"), b"value");
        start_wait(&mut rank, b"default_pg/0//cuda//0/nccl_storekey_0_3");
        assert_eq!(byte(&mut rank), STOP_WAITING);
        let name = get(&mut rank, b"default_pg/0//cuda//0/nccl_storekey_0_3");
        assert_eq!(name.len(), COMMUNICATOR_NAME);
        assert!(name.starts_with(b"tonnage\0"));
        start_wait(&mut rank, b"store_based_barrier_key:1:last_worker");
        assert_eq!(byte(&mut rank), STOP_WAITING);
        assert_eq!(
            get(&mut rank, b"store_based_barrier_key:1:last_worker"),
            b"1"
        );
        assert_eq!(add(&mut rank, b"barrier", 1), 512);
        assert_eq!(add(&mut rank, b"barrier", 0), 512);
        assert_eq!(add(&mut rank, b"fresh", 0), 0);
    }

    #[test]
    fn what_another_rank_says_is_waited_for() {
        let store = Store::start(512, &[0, 5], 8).unwrap();
        let (mut one, mut other) = (connect(&store, 0), connect(&store, 1));
        start_wait(&mut other, b"from one");
        thread::sleep(3 * LOOK);
        set(&mut one, b"from one", b"hello");
        assert_eq!(byte(&mut other), STOP_WAITING);
        assert_eq!(get(&mut other, b"from one"), b"hello");
        // Both wait: no rank that runs can still set it. The first goes on, and sets what the second waits for.
        start_wait(&mut other, b"from one, later");
        start_wait(&mut one, b"from nobody");
        assert_eq!(byte(&mut one), STOP_WAITING);
        set(&mut one, b"from one, later", b"again");
        assert_eq!(byte(&mut other), STOP_WAITING);
        assert_eq!(get(&mut other, b"from one, later"), b"again");
    }

    #[test]
    fn a_group_whose_first_rank_does_not_run_is_answered_at_once() {
        let store = Store::start(16, &[0, 4, 15], 8).unwrap();
        let (mut first, mut last) = (connect(&store, 0), connect(&store, 2));
        set(&mut last, &groups(&store, "5"), b"3,7,11,15");
        set(&mut last, &groups(&store, "6"), b"1,4,15");
        for key in [b"default_pg/5//cuda//0", b"default_pg/6//cuda//0"] {
            start_wait(&mut last, key);
            assert_eq!(byte(&mut last), STOP_WAITING);
        }
        // In this one the first rank runs, and is waited for, also for its sixth communicator.
        set(&mut last, &groups(&store, "7"), b"0,4,15");
        for key in [b"default_pg/7//cuda//0", b"default_pg/7//cuda//5"] {
            start_wait(&mut last, key);
            thread::sleep(3 * LOOK);
            set(&mut first, key, b"name");
            assert_eq!(byte(&mut last), STOP_WAITING);
            assert_eq!(get(&mut last, key), b"name");
        }
    }

    #[test]
    fn who_has_been_told_and_has_not_gone_on_yet_may_still_speak() {
        let store = Store::start(16, &[0, 5], 8).unwrap();
        let (mut one, mut other) = (connect(&store, 0), connect(&store, 1));
        for round in 0..40 {
            let (to, back) = (format!("to {round}"), format!("back {round}"));
            start_wait(&mut other, to.as_bytes());
            thread::sleep(Duration::from_millis(1));
            // The key that the other waits for, and at once a wait for its answer.
            let both = [
                set_query(to.as_bytes(), b"hello"),
                wait_query(back.as_bytes()),
            ]
            .concat();
            one.write_all(&both).unwrap();
            assert_eq!(byte(&mut other), STOP_WAITING);
            thread::sleep(Duration::from_millis(1));
            one.set_nonblocking(true).unwrap();
            assert!(one.peek(&mut [0]).is_err(), "answered in round {round}");
            one.set_nonblocking(false).unwrap();
            set(&mut other, back.as_bytes(), b"and back");
            assert_eq!(byte(&mut one), STOP_WAITING);
        }
    }

    #[test]
    fn who_has_gone_is_not_waited_for() {
        let store = Store::start(16, &[0, 5], 8).unwrap();
        let (first, mut last) = (connect(&store, 0), connect(&store, 1));
        start_wait(&mut last, b"key");
        thread::sleep(3 * LOOK);
        drop(first);
        assert_eq!(byte(&mut last), STOP_WAITING);
        start_wait(&mut last, b"tonnage-objects/1/0/count");
        assert_eq!(byte(&mut last), STOP_WAITING);
        assert_eq!(get(&mut last, b"tonnage-objects/1/0/count"), b"none");
    }

    #[test]
    fn who_gives_up_waiting_is_heard() {
        let store = Store::start(4, &[0, 1], 8).unwrap();
        let mut one = connect(&store, 0);
        start_wait(&mut one, b"never");
        thread::sleep(3 * LOOK);
        one.write_all(&[12]).unwrap();
        assert_eq!(byte(&mut one), WAIT_CANCELED);
        set(&mut one, b"key", b"value");
        assert_eq!(get(&mut one, b"key"), b"value");
    }

    #[test]
    fn nonsense_costs_the_connection_only() {
        let store = Store::start(4, &[0], 8).unwrap();
        for hostile in [
            vec![200],
            [vec![1], u64::MAX.to_le_bytes().to_vec()].concat(),
            [vec![6], u64::MAX.to_le_bytes().to_vec()].concat(),
        ] {
            let mut client = connect(&store, 0);
            client.write_all(&hostile).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "{hostile:?}");
        }
        let mut client = connect(&store, 0);
        set(&mut client, b"key", b"value");
        assert_eq!(get(&mut client, b"key"), b"value");
    }

    #[test]
    fn a_group_is_taken_from_those_only_who_know_the_secret() {
        let store = Store::start(16, &[0, 15], 8).unwrap();
        let (_first, mut last) = (connect(&store, 0), connect(&store, 1));
        for key in [
            "tonnage-groups/5",
            "tonnage-groups//5",
            "tonnage-groups/0/5",
        ] {
            set(&mut last, key.as_bytes(), b"3,15");
        }
        start_wait(&mut last, b"default_pg/5//cuda//0");
        thread::sleep(3 * LOOK);
        last.set_nonblocking(true).unwrap();
        assert!(last.peek(&mut [0]).is_err(), "nobody told of the group");
        last.set_nonblocking(false).unwrap();
        set(&mut connect(&store, 1), &groups(&store, "5"), b"3,15");
        assert_eq!(byte(&mut last), STOP_WAITING);
        let other = Store::start(16, &[0], 8).unwrap();
        assert_ne!(store.secret(), other.secret());
        assert_eq!(store.secret().len(), 32);
    }

    #[test]
    fn a_connection_of_another_user_is_closed_unread() {
        use std::os::unix::process::CommandExt as _;
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
            0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n   \
            1: 0200007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2 1\n   \
            2: 0100007F:C350 0200007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 2 1\n   \
            3: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 2 1\n   \
            4: 0000000000000000FFFF00000100007F:C351 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 \
            00:00000000 00000000  1002        0 2 1\n";
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert_eq!(user_of(table, address(50000), address(8080)), Some(1000));
        assert_eq!(user_of(table, address(8080), address(50000)), Some(0));
        assert_eq!(user_of(table, address(50001), address(8080)), Some(1002));
        assert_eq!(user_of(table, address(1), address(8080)), None);
        let store = Store::start(4, &[0], 8).unwrap();
        let port = store.ports()[0];
        // Pings, and prints what comes back.
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} && printf '\\015abcd' >&3 && timeout 10 head -c 4 <&3"
        );
        let ping = |command: &mut std::process::Command| {
            command.args(["-c", &script]).output().unwrap().stdout
        };
        assert_eq!(ping(&mut std::process::Command::new("bash")), b"abcd");
        // Only root can become another user.
        if rustix::process::geteuid().is_root() {
            assert_eq!(ping(std::process::Command::new("bash").uid(65534)), b"");
        }
    }

    #[test]
    fn random_bytes_cost_the_connection_only() {
        let store = Store::start(4, &[0], 8).unwrap();
        let mut seed = 1_u64;
        for round in 0..300 {
            let mut client = connect(&store, 0);
            let mut bytes = Vec::new();
            while bytes.len() < 64 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Numbers of queries, and lengths that are small or absurd.
                bytes.push((seed >> 33) as u8 % 20);
                let length = if seed >> 60 == 0 {
                    seed
                } else {
                    (seed >> 40) % 8
                };
                bytes.extend(length.to_le_bytes());
                bytes.extend(&seed.to_le_bytes()[..(seed >> 50) as usize % 8]);
            }
            client.write_all(&bytes).unwrap();
            if round % 2 == 0 {
                drop(client);
            } else {
                client.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = client.take(1 << 20).read_to_end(&mut Vec::new());
            }
        }
        let mut client = connect(&store, 0);
        set(&mut client, b"still there", b"value");
        assert_eq!(get(&mut client, b"still there"), b"value");
    }

    #[test]
    fn symmetric_memory_of_a_rank_that_does_not_run_is_that_of_the_next_one_that_does() {
        let store = Store::start(16, &[1, 3], 8).unwrap();
        let (mut one, mut three) = (connect(&store, 0), connect(&store, 1));
        set(&mut one, &groups(&store, "tp"), b"0,1,2,3");
        set(
            &mut one,
            &groups(&store, "0"),
            b"0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        );
        let request = |gpu: u32, process: u32| {
            let mut request = [gpu.to_ne_bytes(), process.to_ne_bytes()].concat();
            request.resize(40, 7);
            request
        };
        // The number of the exchange is the name of a group, too.
        let key = |group: &str, place: u32| {
            format!("/{group}//cuda//CUDASymmetricMemory/0/{place}").into_bytes()
        };
        set(&mut three, &key("tp", 3), &request(3, 300));
        set(&mut one, &key("tp", 1), &request(1, 100));
        start_wait(&mut one, &key("tp", 2));
        assert_eq!(byte(&mut one), STOP_WAITING);
        assert_eq!(get(&mut one, &key("tp", 2)), request(2, 300));
        start_wait(&mut three, &key("tp", 0));
        assert_eq!(byte(&mut three), STOP_WAITING);
        assert_eq!(get(&mut three, &key("tp", 0)), request(0, 100));
        // The memory of a group of two machines is not available.
        set(&mut three, &key("0", 3), &request(3, 300));
        start_wait(&mut three, &key("0", 2));
        assert_eq!(byte(&mut three), STOP_WAITING);
        assert_eq!(get(&mut three, &key("0", 2)), request(10, 0));
    }

    #[test]
    fn symmetric_memory_of_a_rank_that_runs_is_waited_for() {
        let store = Store::start(4, &[0, 1], 8).unwrap();
        let (mut zero, mut one) = (connect(&store, 0), connect(&store, 1));
        let key = b"CUDASymmetricMemory/0/1";
        start_wait(&mut zero, key);
        start_wait(&mut one, b"CUDASymmetricMemory/0/0");
        set(&mut connect(&store, 1), key, b"there");
        assert_eq!(byte(&mut zero), STOP_WAITING);
        assert_eq!(get(&mut zero, key), b"there");
    }

    #[test]
    fn keys_that_name_communicators_are_told_from_others() {
        for key in [
            "default_pg/0//cuda//0/nccl_storekey_0_0",
            "default_pg/0//cuda//0",
            "0//cuda//0:1",
            "x/UniqueNCCLID:3",
        ] {
            assert!(names_communicator(key.as_bytes()), "{key}");
        }
        for key in ["store_based_barrier_key:1", "worker_count", "init/"] {
            assert!(!names_communicator(key.as_bytes()), "{key}");
        }
    }
}
