// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes which hosts the program connects to.
//!
//! `connect` and `getaddrinfo` of C are the way of Python and of native libraries alike, so both stand here in front of
//! C's own. Each name and each address is noted once; `tonnage-run` finds the name that belongs to an address. Programs
//! that call the system without C, as those in Go do, are not seen.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use tonnage_capture::REMOTE_HOSTS_VARIABLE;
use tonnage_capture::note::Note;

use crate::ffi::guard;
use crate::fork::Lazy;
use crate::{protect, recorder};

type Connect = unsafe extern "C" fn(c_int, *const libc::sockaddr, libc::socklen_t) -> c_int;
type Resolve = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const libc::addrinfo,
    *mut *mut libc::addrinfo,
) -> c_int;

/// How many names and addresses are noted at most.
const MOST: usize = 1024;
/// How many addresses of a name are noted at most.
const MOST_ADDRESSES: usize = 32;

/// Hashes of what was noted. A lock could be held by another thread at a fork.
static NOTED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// Stands before C's `connect`.
///
/// # Safety
/// The requirement of `connect`: `address` points to `length` readable bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(
    socket: c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> c_int {
    static REAL: Lazy<Option<Connect>> = Lazy::new();
    let real = REAL.get_or_find(|| {
        // SAFETY: looks up a symbol by a text that ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"connect".as_ptr()) };
        // SAFETY: the function of C has this type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Connect>(found) })
    });
    let Some(real) = real else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: promised by the caller.
    if let Some(result) = unsafe { protect::connect_to_own(socket, address.cast(), length) } {
        return result;
    }
    // SAFETY: promised by the caller.
    let result = unsafe { real(socket, address, length) };
    let error = errno();
    if result == 0 || error == libc::EINPROGRESS {
        guard((), || {
            // SAFETY: C has accepted the address, so it is readable.
            if let Some((ip, port)) = unsafe { internet_address(address, length) }
                && (is_remote(ip) || leads_elsewhere(socket, ip))
                && is_stream(socket)
            {
                note(&Note::Connected { address: ip, port });
            }
        });
        set_errno(error);
    }
    result
}

/// Stands before C's `getaddrinfo`.
///
/// # Safety
/// The requirements of `getaddrinfo`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const libc::addrinfo,
    found: *mut *mut libc::addrinfo,
) -> c_int {
    static REAL: Lazy<Option<Resolve>> = Lazy::new();
    let real = REAL.get_or_find(|| {
        // SAFETY: looks up a symbol by a text that ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getaddrinfo".as_ptr()) };
        // SAFETY: the function of C has this type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Resolve>(found) })
    });
    let Some(real) = real else {
        return libc::EAI_FAIL;
    };
    // SAFETY: promised by the caller.
    let result = unsafe { real(node, service, hints, found) };
    if result == 0 && !node.is_null() && !found.is_null() {
        guard((), || {
            // SAFETY: C has read the name, which ends with a zero byte.
            let name = unsafe { CStr::from_ptr(node) };
            // SAFETY: C has written a list to `found`, which the caller owns.
            let mut addresses = unsafe { listed_addresses(*found) };
            addresses.sort_unstable();
            addresses.dedup();
            if let Ok(name) = name.to_str()
                && name.parse::<IpAddr>().is_err()
                && !addresses.iter().all(IpAddr::is_loopback)
            {
                let name = name.to_owned();
                note(&Note::Resolved { name, addresses });
            }
        });
    }
    result
}

/// The addresses of a list.
///
/// # Safety
/// `entry` is null or a list of `getaddrinfo`.
unsafe fn listed_addresses(mut entry: *const libc::addrinfo) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    while !entry.is_null() && addresses.len() < MOST_ADDRESSES {
        // SAFETY: promised by the caller; each entry leads to the next.
        let info = unsafe { &*entry };
        // SAFETY: the address of an entry has the length that the entry names.
        addresses
            .extend(unsafe { internet_address(info.ai_addr, info.ai_addrlen) }.map(|(ip, _)| ip));
        entry = info.ai_next;
    }
    addresses
}

/// The IP address and the port of a socket address; `None` for one of another family.
///
/// # Safety
/// `address` is null or points to `length` readable bytes.
unsafe fn internet_address(
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> Option<(IpAddr, u16)> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the family is in front and readable; the address need not be aligned.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: this many bytes are readable.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some((ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: this many bytes are readable.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical();
            Some((ip, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// Whether an address of this machine counts as another one, for a test.
fn is_remote(ip: IpAddr) -> bool {
    std::env::var(REMOTE_HOSTS_VARIABLE)
        .is_ok_and(|list| list.split(',').any(|one| one.parse() == Ok(ip)))
}

/// Whether a connection leaves this machine: one that does not has the same address at both ends.
fn leads_elsewhere(socket: c_int, ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return false;
    }
    let mut own = std::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `own` has room for any address, and `length` names its size.
    let known = unsafe { libc::getsockname(socket, own.as_mut_ptr().cast(), &raw mut length) } == 0;
    // SAFETY: C has written `length` bytes.
    let own = unsafe { internet_address(own.as_ptr().cast(), length) };
    !known || own.is_none_or(|(own, _)| own != ip)
}

fn is_stream(socket: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `kind` has room for the answer, whose size `length` names.
    let known = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &raw mut length,
        )
    };
    known == 0 && kind == libc::SOCK_STREAM
}

fn note(note: &Note) {
    if is_first(&note.to_json()) {
        recorder::remark_note(note);
    }
}

/// Whether something is noted for the first time, and there is room for it.
fn is_first(json: &[u8]) -> bool {
    let mut hasher = DefaultHasher::new();
    json.hash(&mut hasher);
    let hash = hasher.finish() | 1;
    for place in 0..MOST {
        let entry = &NOTED[(hash as usize + place) % MOST];
        match entry.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(known) if known == hash => return false,
            Err(_) => {}
        }
    }
    false
}

fn errno() -> c_int {
    // SAFETY: C's place for the number of an error is always readable.
    unsafe { *libc::__errno_location() }
}

fn set_errno(error: c_int) {
    // SAFETY: C's place for the number of an error is always writable.
    unsafe { *libc::__errno_location() = error };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_address_is_read_only_as_far_as_it_is_long() {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 443_u16.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(Ipv4Addr::new(192, 0, 2, 7)).to_be(),
            },
            sin_zero: [0; 8],
        };
        let pointer = (&raw const address).cast();
        let read = |length| {
            // SAFETY: the address is at least this long.
            unsafe { internet_address(pointer, length) }
        };
        assert_eq!(read(16), Some((Ipv4Addr::new(192, 0, 2, 7).into(), 443)));
        assert_eq!(read(8), None);
        assert_eq!(read(1), None);
    }

    #[test]
    fn a_host_is_noted_once() {
        assert!(is_first(b"one"));
        assert!(!is_first(b"one"));
        assert!(is_first(b"two"));
    }
}
