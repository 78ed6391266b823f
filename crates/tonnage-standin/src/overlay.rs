// SPDX-License-Identifier: MIT OR Apache-2.0
//! A view of the file system in which the job's writes go to a directory of the run.
//!
//! One process of a run, the keeper, makes a mount namespace with overlay mounts over everything a job may write to.
//! The first processes of the job join that namespace before their `main`, and all further processes inherit it. The
//! kernel then redirects every write, whichever way a program makes it.
//!
//! Mounts need the capability CAP_SYS_ADMIN. A user namespace would grant it to every user, but there a write into a
//! directory of another group fails with EOVERFLOW, so that jobs would fail which run without protection. If mounts are
//! not possible, the keeper fails, and the command protects files in another way.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tonnage_capture::{
    FILES_ENTER_MAKE, FILES_ENTER_VARIABLE, FILES_ERROR, FILES_THROUGH, FILES_UPPER, FILES_VARIABLE,
};

use crate::ffi::guard;
use crate::protect;

/// The exit code of a process that cannot be protected: it must not run.
const UNPROTECTED: i32 = 125;

/// Trees of the kernel and of services: they are not files of the user, and sockets in an overlay cannot be reached.
const SYSTEM: [&str; 4] = ["/dev", "/proc", "/sys", "/run"];

/// A larger file that is its own mount is not copied: the preloaded library redirects writes then.
const LARGEST_COPY: u64 = 1 << 30;

/// File systems without files of a user.
const PSEUDO: [&str; 20] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// Runs before `main`, while the process has one thread: only then may it change its namespaces.
#[used]
#[unsafe(link_section = ".init_array")]
static ENTER_AT_START: extern "C" fn() = enter_at_start;

extern "C" fn enter_at_start() {
    let entered = guard(false, enter);
    if !entered {
        // SAFETY: ends the process, as C's own function does.
        unsafe { libc::syscall(libc::SYS_exit_group, UNPROTECTED) };
    }
}

/// Enters the view that the environment names now, for a child of a fork server: 0, or 1 if that failed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tonnage_enter_files() -> i32 {
    let entered = guard(false, enter);
    // Without mounts the library itself redirects writes, and the variables name another directory now.
    protect::read_again();
    i32::from(!entered)
}

/// Enters the view that the environment names; whether the process may go on.
fn enter() -> bool {
    let Some(which) = std::env::var_os(FILES_ENTER_VARIABLE) else {
        return true;
    };
    // SAFETY: the process has one thread, so no other thread reads the environment.
    unsafe { std::env::remove_var(FILES_ENTER_VARIABLE) };
    let directory = PathBuf::from(std::env::var_os(FILES_VARIABLE).unwrap_or_default());
    let entered = if which == FILES_ENTER_MAKE {
        make(&directory)
    } else {
        join(&which)
    };
    if let Err(reason) = &entered {
        let _ = fs::write(directory.join(FILES_ERROR), reason.to_string());
    }
    entered.is_ok()
}

/// Why a view cannot be made or joined.
#[derive(Debug)]
struct Failure {
    action: String,
    source: io::Error,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}: {}", self.action, self.source)
    }
}

trait Explain<T> {
    /// Adds the action that failed.
    fn during(self, action: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T> Explain<T> for io::Result<T> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|source| Failure {
            action: action(),
            source,
        })
    }
}

/// Joins the namespaces of the keeper and returns to the working directory there.
fn join(keeper: &OsStr) -> Result<(), Failure> {
    let of = |process: &OsStr, kind: &str| Path::new("/proc").join(process).join("ns").join(kind);
    let itself = OsStr::new("self");
    let link = |process, kind| fs::read_link(of(process, kind));
    let failed = || "join the protected view".to_owned();
    let theirs = link(keeper, "mnt").during(failed)?;
    if link(itself, "mnt").is_ok_and(|mine| mine == theirs) {
        return Ok(());
    }
    let folder = std::env::current_dir().during(|| "find the working directory".to_owned())?;
    let mount = File::open(of(keeper, "mnt")).during(failed)?;
    // SAFETY: the descriptor is open.
    check(unsafe { libc::setns(mount.as_raw_fd(), libc::CLONE_NEWNS) }).during(failed)?;
    std::env::set_current_dir(&folder).during(|| format!("return to {}", folder.display()))
}

/// Makes the view for a run whose changes go to `directory`.
fn make(directory: &Path) -> Result<(), Failure> {
    let through = read_through(directory)?;
    let mounts = read_mounts().during(|| "read the mounts".to_owned())?;
    let view = View {
        directory,
        through,
        mounts,
    };
    // SAFETY: changes the namespace of this process, which has one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })
        .during(|| "make a mount namespace".to_owned())?;
    make_private()?;
    view.replace_root()
}

fn read_through(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let path = directory.join(FILES_THROUGH);
    let text = fs::read(&path).during(|| format!("read {}", path.display()))?;
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let system = SYSTEM.iter().map(PathBuf::from);
    Ok(lines
        .map(|line| PathBuf::from(OsStr::from_bytes(line)))
        .chain(system)
        .collect())
}

/// Keeps our mounts from the rest of the system, and its later mounts from us.
fn make_private() -> Result<(), Failure> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    mount(None, Path::new("/"), None, flags, None).during(|| "make mounts private".to_owned())
}

/// A mount that the process sees.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    kind: String,
    read_only: bool,
}

impl Mount {
    /// Whether a user may have files there, and the job may write to them.
    fn is_writable(&self) -> bool {
        !PSEUDO.contains(&self.kind.as_str()) && !self.read_only
    }
}

fn read_mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_mounts(&fs::read("/proc/self/mountinfo")?))
}

/// The mounts by their paths, parents first; of several at one path the one on top.
fn parse_mounts(text: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(dash) = words.iter().position(|word| *word == b"-") else {
            continue;
        };
        let (Some(point), Some(options), Some(kind)) =
            (words.get(4), words.get(5), words.get(dash + 1))
        else {
            continue;
        };
        let point = PathBuf::from(unescape(point));
        mounts.retain(|mount| mount.point != point);
        mounts.push(Mount {
            point,
            kind: String::from_utf8_lossy(kind).into_owned(),
            read_only: options
                .split(|byte| *byte == b',')
                .any(|word| word == b"ro"),
        });
    }
    mounts.sort_by(|one, other| one.point.cmp(&other.point));
    mounts
}

/// The kernel writes spaces and the like as three octal digits.
fn unescape(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

struct View<'a> {
    directory: &'a Path,
    through: Vec<PathBuf>,
    mounts: Vec<Mount>,
}

impl View<'_> {
    fn is_through(&self, path: &Path) -> bool {
        self.through.iter().any(|prefix| path.starts_with(prefix))
    }

    /// Mounts an overlay of all file systems aside, and makes it the root.
    fn replace_root(&self) -> Result<(), Failure> {
        let root = self.directory.join("root");
        fs::create_dir_all(&root).during(|| format!("make {}", root.display()))?;
        self.mount_overlay(Path::new("/"), &root)?;
        let mut bound: Vec<&Path> = Vec::new();
        for mount in &self.mounts {
            let point = mount.point.as_path();
            let covered = bound.iter().any(|prefix| point.starts_with(prefix));
            if covered || point == Path::new("/") || point.starts_with(&root) {
                continue;
            }
            let is_redirected = mount.is_writable() && !self.is_through(point);
            if is_redirected && point.is_dir() {
                self.mount_overlay(point, &inside(&root, point))?;
            } else if is_redirected && point.is_file() {
                self.mount_copy(point, &inside(&root, point))?;
            } else {
                bind(point, &inside(&root, point), libc::MS_REC)?;
                bound.push(point);
            }
        }
        for path in &self.through {
            if path.exists() && !bound.iter().any(|prefix| path.starts_with(prefix)) {
                // The directory of the run contains the new root, which must not contain itself.
                let recursive = if root.starts_with(path) {
                    0
                } else {
                    libc::MS_REC
                };
                bind(path, &inside(&root, path), recursive)?;
            }
        }
        std::env::set_current_dir(&root).during(|| format!("enter {}", root.display()))?;
        // SAFETY: both paths are texts that end with a zero byte.
        let moved = unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) };
        check(moved as i32).during(|| "change the root".to_owned())?;
        // SAFETY: the path is a text that ends with a zero byte.
        check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) })
            .during(|| "leave the old root".to_owned())?;
        std::env::set_current_dir("/").during(|| "enter the new root".to_owned())
    }

    /// Mounts an overlay of `lower` at `target`; changes go to the directory of the run, under the path of `lower`.
    fn mount_overlay(&self, lower: &Path, target: &Path) -> Result<(), Failure> {
        let failed = || format!("mount an overlay of {}", lower.display());
        let upper = self.make_upper(lower).during(failed)?;
        let work = self.directory.join("work");
        fs::create_dir_all(&work).during(failed)?;
        let number = fs::read_dir(&work).during(failed)?.count();
        let work = work.join(number.to_string());
        fs::create_dir(&work).during(failed)?;
        let mut options = OsString::from("lowerdir=");
        options.push(escape(lower));
        options.push(",upperdir=");
        options.push(escape(&upper));
        options.push(",workdir=");
        options.push(escape(&work));
        // Directories can be renamed, as without an overlay. An index would refuse a second mount, whose changes lie
        // below those of the first.
        options.push(",redirect_dir=on,index=off");
        let kind = Some("overlay");
        mount(kind, target, kind, 0, Some(&options)).during(failed)
    }

    /// Mounts a copy of a file that is its own mount, as containers have them: an overlay is of directories only.
    /// The copy lies aside, because every file in the directory for changes counts as one that the job wrote.
    fn mount_copy(&self, file: &Path, target: &Path) -> Result<(), Failure> {
        let failed = || format!("copy {}", file.display());
        let metadata = fs::metadata(file).during(failed)?;
        if metadata.len() > LARGEST_COPY {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge)).during(failed);
        }
        let copies = self.directory.join("copies");
        fs::create_dir_all(&copies).during(failed)?;
        let number = fs::read_dir(&copies).during(failed)?.count();
        let copy = copies.join(number.to_string());
        fs::copy(file, &copy).during(failed)?;
        copy_attributes(file, &copy).during(failed)?;
        bind(&copy, target, 0)
    }

    /// The directory for changes of `lower`. An overlay takes the attributes of its root from it.
    fn make_upper(&self, lower: &Path) -> io::Result<PathBuf> {
        let mut upper = self.directory.join(FILES_UPPER);
        let mut real = PathBuf::from("/");
        fs::create_dir_all(&upper)?;
        copy_attributes(&real, &upper)?;
        for part in lower.strip_prefix("/").unwrap_or(lower) {
            upper.push(part);
            real.push(part);
            match fs::create_dir(&upper) {
                Ok(()) => copy_attributes(&real, &upper)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(upper)
    }
}

fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::metadata(from)?;
    std::os::unix::fs::chown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    let times = fs::FileTimes::new()
        .set_accessed(metadata.accessed()?)
        .set_modified(metadata.modified()?);
    File::open(to)?.set_times(times)
}

/// An absolute path below another root.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A path as a value among the options of an overlay, where colons and commas separate values.
fn escape(path: &Path) -> OsString {
    let mut bytes = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b':' | b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(*byte);
    }
    OsString::from_vec(bytes)
}

fn bind(source: &Path, target: &Path, recursive: libc::c_ulong) -> Result<(), Failure> {
    let flags = libc::MS_BIND | recursive;
    mount(source.to_str(), target, None, flags, None)
        .during(|| format!("keep {} as it is", target.display()))
}

fn mount(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
    options: Option<&OsStr>,
) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let source = source.map(|source| text(source.as_bytes())).transpose()?;
    let target = text(target.as_os_str().as_bytes())?;
    let kind = kind.map(|kind| text(kind.as_bytes())).transpose()?;
    let options = options
        .map(|options| text(options.as_bytes()))
        .transpose()?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |it| it.as_ptr());
    // SAFETY: every argument is null or a text that ends with a zero byte and outlives the call.
    check(unsafe {
        libc::mount(
            pointer(&source),
            target.as_ptr(),
            pointer(&kind),
            flags,
            pointer(&options).cast(),
        )
    })
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_the_kernel_writes_them() {
        let text = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            30 27 0:27 / /data/my\\040files rw - nfs4 host:/x rw\n\
            28 27 0:25 / /opt/sdk ro,nosuid master:3 - tmpfs none ro\n\
            31 27 0:28 / /opt/sdk rw shared:1 master:2 - xfs /dev/vdb rw\n\
            broken line\n";
        let mounts = parse_mounts(text);
        let seen: Vec<_> = mounts
            .iter()
            .map(|mount| (mount.point.to_str().unwrap(), mount.kind.as_str()))
            .collect();
        let expected = [
            ("/", "ext4"),
            ("/data/my files", "nfs4"),
            ("/opt/sdk", "xfs"),
        ];
        assert_eq!(seen, expected);
        assert!(!mounts[2].read_only);
    }

    #[test]
    fn paths_are_values_of_options() {
        assert_eq!(escape(Path::new("/a,b:c\\d")), "/a\\,b\\:c\\\\d");
        assert_eq!(unescape(b"/a\\134b\\"), "/a\\b\\");
    }
}
