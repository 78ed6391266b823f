// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that several processes share: each has a lease of some of its bytes.
//!
//! The leases are files of one folder, and the kernel reports which process is alive: a process
//! holds a lock on its file for as long as it lives, and loses it however it ends.
//! The next process that looks takes the file of a dead process away, and its bytes are
//! free. There is no server and no shared memory. Bytes of the device are
//! charged before they are obtained, and bytes that are given back are
//! refunded afterwards: a process that is killed between the two has at most more
//! on its lease than it had, and its lease ends with it.
//!
//! Processes that take no lease are not held to anything: the folder knows nothing
//! of them. A lock stays with a child that a process forks and that does not start
//! its own program, until both have ended.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tonnage_alloc::{
    Access, Contents, Device, DeviceAddr, DeviceError, EventId, PhysicalId, StreamId,
};
use tonnage_text::bytes;

use crate::sync::{self, Arc, Mutex};
use crate::{Error, Runtime};

/// How long other processes are waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often it is looked whether they gave something.
const GLANCE: Duration = Duration::from_millis(2);
/// The file that holds the bytes of the device. A process that changes anything has a lock on it.
const TOTAL: &str = "total";
const SUFFIX: &str = "lease";

/// Why there is no lease, or why it could not be queried.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum LeaseError {
    /// Names are letters, digits, `-` and `_`.
    #[error("{0:?} is not a name for a lease: use letters, digits, - and _")]
    Name(String),
    /// Another process that is alive has a lease of this name.
    #[error("another process has the lease {0}: give each process a separate name")]
    Taken(String),
    /// The folder was made for a device of another size.
    #[error("the folder is for a device of {folder} bytes, not of {given}: use another folder")]
    Total {
        /// Bytes that the folder is for.
        folder: u64,
        /// Bytes that were given.
        given: u64,
    },
    /// The quotas of all processes would be more than the device has.
    #[error("{0}")]
    Quotas(Box<Overcommitted>),
    /// This is a fork of the process that has the lease.
    #[error("the lease is of the process that this one was forked from: take one here")]
    Forked,
    /// A call of the system failed.
    #[error("{path}: {source}")]
    System {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The lease of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// Its name.
    pub name: String,
    /// The process.
    pub process: u32,
    /// Bytes that it holds.
    pub used: u64,
    /// Bytes that it may hold at most.
    pub quota: u64,
}

impl fmt::Display for LeaseInfo {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, quota) = (bytes(self.used), bytes(self.quota));
        let Self { name, process, .. } = self;
        write!(text, "{name} (process {process}) holds {used} of {quota}")
    }
}

/// A quota that does not fit beside those of other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overcommitted {
    /// The lease that was not taken.
    pub name: String,
    /// Its quota.
    pub quota: u64,
    /// The largest quota that fits.
    pub left: u64,
    /// The other processes.
    pub others: Vec<LeaseInfo>,
}

impl fmt::Display for Overcommitted {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (quota, left) = (bytes(self.quota), bytes(self.left));
        write!(
            text,
            "the quota of {}, {quota}, does not fit: {left} are left",
            self.name
        )?;
        if !self.others.is_empty() {
            write!(text, ", because {}", list(&self.others))?;
        }
        text.write_str("; use a smaller quota, or end another process")
    }
}

/// Leases in a sentence.
pub(crate) fn list(leases: &[LeaseInfo]) -> String {
    let leases: Vec<String> = leases.iter().map(LeaseInfo::to_string).collect();
    leases.join(", ")
}

/// The contents of a lease file.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Bytes that the process holds.
    used: u64,
    /// Bytes that it would like others to give back.
    wanted: u64,
    /// Bytes that it may hold at most.
    quota: u64,
    /// The process.
    process: u32,
}

impl Entry {
    fn read(file: &File) -> io::Result<Self> {
        let mut bytes = [0; 32];
        file.read_exact_at(&mut bytes, 0)?;
        let numbers: [u64; 4] = std::array::from_fn(|place| {
            let bytes = bytes[8 * place..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        });
        let [used, wanted, quota, process] = numbers;
        Ok(Self {
            used,
            wanted,
            quota,
            process: process as u32,
        })
    }

    fn write(self, file: &File) -> io::Result<()> {
        let numbers = [self.used, self.wanted, self.quota, self.process.into()];
        file.write_all_at(&numbers.map(u64::to_le_bytes).concat(), 0)
    }
}

/// Bytes of a device that this process may hold, of those that all processes with a lease in a folder share.
///
/// ```
/// use std::sync::Arc;
/// use tonnage_device_host::HostDevice;
/// use tonnage_runtime::{Lease, Leased, Request, Runtime, Settings, StreamId};
///
/// let folder = std::env::temp_dir().join(format!("leases-{}", std::process::id()));
/// // 64 MiB for all processes, 48 of them for this one at most.
/// let lease = Arc::new(Lease::new(&folder, 64 << 20, "search", 48 << 20)?);
/// let device = Leased::new(HostDevice::new(64 << 20)?, Arc::clone(&lease));
/// let runtime = Runtime::new(device, Settings::default());
/// runtime.share(Arc::clone(&lease));
/// let block = runtime.alloc(Request::new(40 << 20, StreamId(0)))?;
/// assert_eq!(lease.used(), 40 << 20);
/// assert!(runtime.alloc(Request::new(10 << 20, StreamId(0))).is_err());
/// # drop(block);
/// # runtime.close()?;
/// # drop((runtime, lease));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    folder: PathBuf,
    name: String,
    total: u64,
    quota: u64,
    process: u32,
    own: Mutex<Own>,
}

#[derive(Debug)]
struct Own {
    /// Locked while something is changed.
    table: File,
    /// Locked as long as the process lives.
    file: File,
    used: u64,
    /// Bytes that were free when it was last looked.
    known_free: u64,
    /// Leases of dead processes that were taken away here.
    recovered: u64,
    patience: Duration,
}

/// The bytes that the others have.
#[derive(Clone, Debug, Default)]
struct Others {
    used: u64,
    wanted: u64,
    recovered: u64,
    leases: Vec<LeaseInfo>,
}

impl Lease {
    /// Takes a lease in a folder, which is made if there is none. `total` are the bytes that all processes share,
    /// `quota` those that this one may hold at most.
    ///
    /// # Errors
    /// If the name is invalid or taken, if the folder is for another device, or if the system fails.
    pub fn new(
        folder: impl AsRef<Path>,
        total: u64,
        name: &str,
        quota: u64,
    ) -> Result<Self, LeaseError> {
        Self::take(folder.as_ref(), total, name, quota, false)
    }

    /// The same, if the quotas of all processes fit on the device together: no other process can then hold memory that
    /// this quota promises, if all of them take their leases so.
    ///
    /// # Errors
    /// [`LeaseError::Quotas`] if they do not fit, and as [`new`](Self::new).
    pub fn guaranteed(
        folder: impl AsRef<Path>,
        total: u64,
        name: &str,
        quota: u64,
    ) -> Result<Self, LeaseError> {
        Self::take(folder.as_ref(), total, name, quota, true)
    }

    fn take(
        folder: &Path,
        total: u64,
        name: &str,
        quota: u64,
        guaranteed: bool,
    ) -> Result<Self, LeaseError> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        if name.is_empty() || name.len() > 200 || !name.chars().all(fits) {
            return Err(LeaseError::Name(name.to_owned()));
        }
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let path = folder.join(TOTAL);
        let table = open(&path).map_err(failed(&path))?;
        table.lock().map_err(failed(&path))?;
        // From here to the end no other process looks or changes anything; an early return closes the file.
        let mut bytes = [0; 8];
        match table.read_exact_at(&mut bytes, 0) {
            Ok(()) if u64::from_le_bytes(bytes) != total => {
                return Err(LeaseError::Total {
                    folder: u64::from_le_bytes(bytes),
                    given: total,
                });
            }
            Ok(()) => {}
            // A new folder, or the process that made it was killed before it wrote.
            Err(_) => table
                .write_all_at(&total.to_le_bytes(), 0)
                .map_err(failed(&path))?,
        }
        let path = folder.join(format!("{name}.{SUFFIX}"));
        let file = open(&path).map_err(failed(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LeaseError::Taken(name.to_owned())),
            Err(TryLockError::Error(source)) => return Err(LeaseError::System { path, source }),
        }
        let process = std::process::id();
        if guaranteed {
            let Others { leases: others, .. } = read_leases(folder, name)?;
            let promised = others.iter().map(|lease| lease.quota);
            let left = total.saturating_sub(promised.fold(0, u64::saturating_add));
            if quota > left {
                // The file goes before another process can look at it.
                fs::remove_file(&path).map_err(failed(&path))?;
                let name = name.to_owned();
                return Err(LeaseError::Quotas(Box::new(Overcommitted {
                    name,
                    quota,
                    left,
                    others,
                })));
            }
        }
        let entry = Entry {
            quota: quota.min(total),
            process,
            ..Entry::default()
        };
        entry.write(&file).map_err(failed(&path))?;
        table.unlock().map_err(failed(&path))?;
        let lease = Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
            total,
            quota: quota.min(total),
            process,
            own: Mutex::new(Own {
                table,
                file,
                used: 0,
                known_free: 0,
                recovered: 0,
                patience: PATIENCE,
            }),
        };
        lease.free()?;
        Ok(lease)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that this process may hold at most.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Bytes that it holds.
    pub fn used(&self) -> u64 {
        sync::locked(&self.own).used
    }

    /// Leases of processes that had ended without giving them back, and that were taken away here.
    pub fn recovered(&self) -> u64 {
        sync::locked(&self.own).recovered
    }

    /// Bytes that no process has, within the quota. Leases of processes that ended are taken away first.
    ///
    /// # Errors
    /// If the system fails.
    pub fn free(&self) -> Result<u64, LeaseError> {
        let mut own = sync::locked(&self.own);
        self.change(&mut own, |_, _| Ok(()))?;
        Ok(own.known_free)
    }

    /// Looks at the others, and lets no other process look or change anything meanwhile.
    fn change<T>(
        &self,
        own: &mut Own,
        act: impl FnOnce(&mut Own, &Others) -> Result<T, LeaseError>,
    ) -> Result<T, LeaseError> {
        if std::process::id() != self.process {
            return Err(LeaseError::Forked);
        }
        let path = self.folder.join(TOTAL);
        own.table.lock().map_err(failed(&path))?;
        let done = read_leases(&self.folder, &self.name).and_then(|others| {
            own.recovered += others.recovered;
            let done = act(own, &others);
            own.known_free = self.left(own, &others);
            done
        });
        own.table.unlock().map_err(failed(&path))?;
        done
    }

    fn write(&self, own: &Own, wanted: u64) -> Result<(), LeaseError> {
        let path = self.folder.join(format!("{}.{SUFFIX}", self.name));
        let entry = Entry {
            used: own.used,
            wanted,
            quota: self.quota,
            process: self.process,
        };
        entry.write(&own.file).map_err(failed(&path))
    }

    /// Charges bytes before they are obtained; `false` if there are not so many.
    fn charge(&self, bytes: u64) -> Result<bool, LeaseError> {
        let mut own = sync::locked(&self.own);
        self.change(&mut own, |own, others| {
            if bytes > self.left(own, others) {
                return Ok(false);
            }
            own.used += bytes;
            self.write(own, 0).inspect_err(|_| own.used -= bytes)?;
            Ok(true)
        })
    }

    /// Gives bytes back after they were.
    fn refund(&self, bytes: u64) {
        let mut own = sync::locked(&self.own);
        own.used = own.used.saturating_sub(bytes);
        // Where this fails, others see too much in use, until the next change of the lease.
        let _ = self.change(&mut own, |own, _| self.write(own, 0));
    }

    /// Bytes that are free, within the quota.
    fn left(&self, own: &Own, others: &Others) -> u64 {
        let left = self.total.saturating_sub(others.used + own.used);
        left.min(self.quota.saturating_sub(own.used))
    }

    /// The leases of other processes that are alive.
    ///
    /// # Errors
    /// If the system fails.
    pub fn others(&self) -> Result<Vec<LeaseInfo>, LeaseError> {
        let mut own = sync::locked(&self.own);
        self.change(&mut own, |_, others| Ok(others.leases.clone()))
    }

    /// Bytes that other processes would like to have.
    ///
    /// # Errors
    /// If the system fails.
    pub fn wanted_by_others(&self) -> Result<u64, LeaseError> {
        let mut own = sync::locked(&self.own);
        self.change(&mut own, |_, others| Ok(others.wanted))
    }

    /// How long other processes are waited for before a request is refused; 200 ms unless this is called.
    pub fn set_patience(&self, patience: Duration) {
        sync::locked(&self.own).patience = patience;
    }

    /// Requests bytes from the others beyond those that are free and waits until there are so many, but not forever; what
    /// came of it, in words.
    pub(crate) fn ask(&self, missing: u64) -> Result<String, LeaseError> {
        let name = &self.name;
        let quota = self.quota;
        let (target, until) = {
            let mut own = sync::locked(&self.own);
            self.change(&mut own, |own, _| self.write(own, missing))?;
            let target = own.known_free.saturating_add(missing);
            if own.used.saturating_add(target) > quota {
                self.change(&mut own, |own, _| self.write(own, 0))?;
                return Ok(format!(
                    "other processes were not queried, because the quota of {name} is {quota} bytes"
                ));
            }
            (target, Instant::now() + own.patience)
        };
        let mut free = self.free()?;
        while free < target && Instant::now() < until {
            std::thread::sleep(GLANCE);
            free = self.free()?;
        }
        let mut own = sync::locked(&self.own);
        self.change(&mut own, |own, _| self.write(own, 0))?;
        let free = own.known_free;
        Ok(format!(
            "other processes were queried, and {free} bytes are free for {name}"
        ))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut own = sync::locked(&self.own);
        let path = self.folder.join(format!("{}.{SUFFIX}", self.name));
        // A file that stays is taken away by the next process that looks.
        let _ = self.change(&mut own, |_, _| {
            fs::remove_file(&path).map_err(failed(&path))
        });
    }
}

/// The bytes that other processes have. The lease of one that has ended goes.
fn read_leases(folder: &Path, name: &str) -> Result<Others, LeaseError> {
    let mut others = Others::default();
    let own = format!("{name}.{SUFFIX}");
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        let is_lease = path.extension().is_some_and(|end| end == SUFFIX);
        if !is_lease || path.file_name().is_some_and(|name| name == own.as_str()) {
            continue;
        }
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(LeaseError::System { path, source }),
        };
        match file.try_lock() {
            Ok(()) => {
                fs::remove_file(&path).map_err(failed(&path))?;
                others.recovered += 1;
            }
            Err(TryLockError::WouldBlock) => {
                let entry = Entry::read(&file).map_err(failed(&path))?;
                others.used = others.used.saturating_add(entry.used);
                others.wanted = others.wanted.saturating_add(entry.wanted);
                let name = path.file_stem().unwrap_or_default();
                others.leases.push(LeaseInfo {
                    name: name.to_string_lossy().into_owned(),
                    process: entry.process,
                    used: entry.used,
                    quota: entry.quota,
                });
            }
            Err(TryLockError::Error(source)) => {
                return Err(LeaseError::System { path, source });
            }
        }
    }
    Ok(others)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LeaseError {
    let path = path.to_owned();
    move |source| LeaseError::System { path, source }
}

/// A device of which this process uses no more than its lease, if it has one.
#[derive(Debug)]
pub struct Leased<D> {
    inner: D,
    lease: Option<Arc<Lease>>,
    physical: BTreeMap<PhysicalId, u64>,
    allocations: BTreeMap<DeviceAddr, u64>,
}

impl<D: Device> Leased<D> {
    /// The same device, within a lease.
    pub fn new(inner: D, lease: Arc<Lease>) -> Self {
        Self::within_lease(inner, Some(lease))
    }

    /// The same device, all of it.
    pub fn alone(inner: D) -> Self {
        Self::within_lease(inner, None)
    }

    fn within_lease(inner: D, lease: Option<Arc<Lease>>) -> Self {
        Self {
            inner,
            lease,
            physical: BTreeMap::new(),
            allocations: BTreeMap::new(),
        }
    }

    /// The device itself.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The device itself.
    pub fn inner_mut(&mut self) -> &mut D {
        &mut self.inner
    }

    /// Obtains bytes within the lease.
    fn within<T>(
        &mut self,
        size: u64,
        obtain: impl FnOnce(&mut D) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let Some(lease) = self.lease.clone() else {
            return obtain(&mut self.inner);
        };
        match lease.charge(size) {
            Ok(true) => {}
            Ok(false) => {
                return Err(DeviceError::OutOfMemory {
                    requested: size,
                    free: self.free_bytes(),
                });
            }
            Err(error) => {
                let code = match error {
                    LeaseError::System { source, .. } => source.raw_os_error().unwrap_or(-1),
                    _ => -1,
                };
                return Err(DeviceError::Driver {
                    call: "the folder of leases",
                    code,
                });
            }
        }
        obtain(&mut self.inner).inspect_err(|_| lease.refund(size))
    }
}

impl<D: Device> Device for Leased<D> {
    fn total(&self) -> u64 {
        let quota = self.lease.as_ref().map_or(u64::MAX, |lease| lease.quota);
        self.inner.total().min(quota)
    }

    fn free_bytes(&self) -> u64 {
        let known = match &self.lease {
            Some(lease) => sync::locked(&lease.own).known_free,
            None => u64::MAX,
        };
        self.inner.free_bytes().min(known)
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn malloc(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        let addr = self.within(size, |inner| inner.malloc(size))?;
        if self.lease.is_some() {
            self.allocations.insert(addr, size);
        }
        Ok(addr)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), DeviceError> {
        self.inner.free(addr)?;
        if let (Some(lease), Some(size)) = (&self.lease, self.allocations.remove(&addr)) {
            lease.refund(size);
        }
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<DeviceAddr, DeviceError> {
        self.inner.reserve(size)
    }

    fn unreserve(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.inner.unreserve(addr, size)
    }

    fn create(&mut self, size: u64) -> Result<PhysicalId, DeviceError> {
        let memory = self.within(size, |inner| inner.create(size))?;
        if self.lease.is_some() {
            self.physical.insert(memory, size);
        }
        Ok(memory)
    }

    fn release(&mut self, memory: PhysicalId) -> Result<(), DeviceError> {
        self.inner.release(memory)?;
        if let (Some(lease), Some(size)) = (&self.lease, self.physical.remove(&memory)) {
            lease.refund(size);
        }
        Ok(())
    }

    fn map(&mut self, addr: DeviceAddr, size: u64, memory: PhysicalId) -> Result<(), DeviceError> {
        self.inner.map(addr, size, memory)
    }

    fn unmap(&mut self, addr: DeviceAddr, size: u64) -> Result<(), DeviceError> {
        self.inner.unmap(addr, size)
    }

    fn set_access(
        &mut self,
        addr: DeviceAddr,
        size: u64,
        access: Access,
    ) -> Result<(), DeviceError> {
        self.inner.set_access(addr, size, access)
    }

    fn create_event(&mut self) -> Result<EventId, DeviceError> {
        self.inner.create_event()
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.inner.destroy_event(event)
    }

    fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.record_event(event, stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.inner.query_event(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.inner.wait_event(event)
    }
}

impl<D: Contents> Contents for Leased<D> {
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.inner.synchronize()
    }

    fn download(&mut self, from: DeviceAddr, to: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.download(from, to)
    }

    fn upload(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), DeviceError> {
        self.inner.upload(to, from)
    }
}

/// Answers other processes until it is dropped; made by [`Runtime::answer_recalls`].
#[derive(Debug)]
#[must_use = "other processes are answered only while this is there"]
pub struct Recalls {
    ended: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Recalls {
    fn drop(&mut self) {
        // A thread that has ended by itself needs no word.
        let _ = self.ended.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<D: Device> Runtime<D> {
    /// Reports which lease the device is held to, so that other processes are queried before a request is refused.
    pub fn share(&self, lease: Arc<Lease>) {
        *sync::locked(&self.0.lease) = Some(lease);
    }

    /// Gives back what this process does not use, if another one would like to have memory; how many bytes went back.
    ///
    /// # Errors
    /// If the device or the system fails.
    pub fn answer_recall(&self) -> Result<u64, Error> {
        let Some(lease) = sync::locked(&self.0.lease).clone() else {
            return Ok(0);
        };
        let refused = |error: LeaseError| Error::Refused(error.to_string());
        if lease.wanted_by_others().map_err(refused)? == 0 {
            return Ok(0);
        }
        let before = lease.used();
        self.empty_cache()?;
        Ok(before.saturating_sub(lease.used()))
    }
}

impl<D: Device + 'static> Runtime<D> {
    /// Calls [`answer_recall`](Self::answer_recall) again and again, on its own thread.
    pub fn answer_recalls(&self, every: Duration) -> Recalls {
        let (ended, ends) = std::sync::mpsc::channel();
        let runtime = self.clone();
        let thread = std::thread::spawn(move || {
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = ends.recv_timeout(every) {
                // A step that fails now is tried again; the program itself gets the error when it requests memory.
                let _ = runtime.answer_recall();
            }
        });
        Recalls {
            ended,
            thread: Some(thread),
        }
    }
}
