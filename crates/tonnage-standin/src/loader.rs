// SPDX-License-Identifier: MIT OR Apache-2.0
//! NCCL and the CUDA runtime for programs that load them by their path.
//!
//! Being loaded first is enough for every program that is linked with a library.
//! vLLM and others open `libnccl.so.2` and `libcudart.so` themselves and query
//! them for their functions, and would get those of the real ones, which cannot
//! work without a GPU. So `dlopen` is taken over, for these names. A runtime that
//! is linked statically is not reached this way; `foreign` reports it.
//!
//! The loader searches where the caller's library specifies, and knows the caller by
//! the address it returns to. Hence [`dlopen`] does not call the real function,
//! it jumps there.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::foreign::file_of;
use crate::fork::Lazy;
use crate::{ffi, ledger, protect};

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The result for [`dlopen`]: which file to open, and the real function.
#[repr(C)]
struct Redirected {
    path: *const c_char,
    open: *const c_void,
}

/// Stands before the loader's function of this name.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) extern "C" fn dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rsi",
        "call {}",
        "pop rsi",
        "mov rdi, rax",
        "jmp rdx",
        sym redirect,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "str x1, [sp, 16]",
        "bl {}",
        "mov x9, x1",
        "ldr x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x9",
        sym redirect,
    );
}

extern "C" fn redirect(path: *const c_char, flags: c_int) -> Redirected {
    static REAL: Lazy<usize> = Lazy::new();
    let real = REAL.get_or_find(|| {
        // SAFETY: the name is zero-terminated; only queries an address.
        unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) as usize }
    });
    let open = real as *const c_void;
    let path = ffi::guard(path, || {
        // SAFETY: the caller's own zero-terminated text, or null.
        let name = unsafe { ffi::input_text(path) };
        let Some(standin) = name
            .filter(|name| is_replaced(name, flags))
            .and_then(own_path)
        else {
            // The loader keeps the name of a library that the job made, and so does this process.
            let made = name.and_then(protect::location);
            return made.map_or(path, |made| made.into_raw().cast_const());
        };
        // The real one is loaded all the same: others may count on it by its name.
        // SAFETY: the real function, called as the program would have.
        unsafe {
            let open = std::mem::transmute::<*const c_void, Open>(open);
            open(path, flags);
        }
        standin.as_ptr()
    });
    Redirected { path, open }
}

/// Whether this library takes the place of the one with this name. A caller that only queries whether it exists gets
/// the truth.
fn is_replaced(path: &CStr, flags: c_int) -> bool {
    is_named(path) && flags & libc::RTLD_NOLOAD == 0 && ledger::folder().is_some()
}

/// Whether the file is one that programs open themselves, in any version; pip's runtime has a hash in its name in some.
fn is_named(path: &CStr) -> bool {
    let file = Path::new(OsStr::from_bytes(path.to_bytes())).file_name();
    let names: [&[u8]; 3] = [b"libnccl.so", b"libcudart.so", b"libcudart-"];
    file.is_some_and(|file| names.iter().any(|name| file.as_bytes().starts_with(name)))
}

/// The file of this library.
fn own_path(_: &CStr) -> Option<&'static CStr> {
    static PATH: Lazy<Option<&'static CStr>> = Lazy::new();
    PATH.get_or_find(|| {
        let path = CString::new(file_of(is_replaced as *const c_void)?.1).ok()?;
        Some(Box::leak(path.into_boxed_c_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nccl_and_the_runtime_are_replaced() {
        for name in [
            c"libnccl.so.2",
            c"/usr/lib/libcudart.so.12",
            c"libcudart.so",
            c"/torch/lib/libcudart-9335f6a2.so.12",
        ] {
            assert!(is_named(name), "{name:?}");
        }
        for name in [
            c"libcuda.so.1",
            c"libnccl-net.so",
            c"/libcudart.so.12/x",
            c"libcudart_static.a",
        ] {
            assert!(!is_named(name), "{name:?}");
        }
        // Outside of a run nothing is.
        assert!(!is_replaced(c"libnccl.so.2", libc::RTLD_NOW));
        // SAFETY: no name is the program itself.
        let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
        assert!(!program.is_null(), "the real function is reached");
    }
}
