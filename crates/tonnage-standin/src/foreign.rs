// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users of a device that a dry run cannot follow, identified by their callers.
//!
//! A CUDA runtime that is linked statically does not call the stand-in's runtime but the driver, and first requests its
//! undocumented tables. TensorFlow and JAX take most of a device when they start and divide it
//! themselves. Both are noticed here by the library that calls, and reported, because a verdict without them
//! would be wrong. Programs that use the shared runtime or the driver's documented functions are not among these.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use tonnage_capture::note::{Foreign, ForeignUse, Note};

use crate::fork::Lock;
use crate::recorder;

static TOLD: Lock<Vec<Foreign>> = Lock::new(Vec::new());

/// Frames of the stack that are looked at.
const FRAMES: usize = 48;
/// Frames among which there is one that is not ours.
const INNERMOST: usize = 16;

/// Packages by a part of the path of their libraries, and whether they divide the device themselves.
const PACKAGES: [(&str, &str, bool); 8] = [
    ("/tensorflow/", "TensorFlow", true),
    ("libtensorflow", "TensorFlow", true),
    ("/jax_plugins/", "JAX", true),
    ("/jax_cuda", "JAX", true),
    ("/jaxlib/", "JAX", true),
    ("/cupy", "CuPy", false),
    ("/onnxruntime/", "ONNX Runtime", false),
    ("/tensorrt", "TensorRT", false),
];

/// Libraries that belong to CUDA or torch. Their own static runtimes are never what a program computes with here:
/// the stand-in takes the calls that would use them; of CuTe's, the hook does.
const OURS: [&str; 14] = [
    "libtorch",
    "libc10",
    "libcublas",
    "libcudnn",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libcupti",
    "libcufile",
    "libcute_dsl_runtime",
    "libnccl",
    "libnv",
    "libtonnage_standin",
];

/// Records that a CUDA runtime other than the stand-in's requests the driver's undocumented tables.
pub(crate) fn runtime_started() {
    let callers = calling_libraries::<FRAMES>();
    if let Some(foreign) = judge(&callers, ForeignUse::Runtime) {
        tell(foreign);
    }
    let is_cupti = |path: &String| file_name(path).starts_with("libcupti");
    if callers.first().is_some_and(is_cupti) {
        cupti_started(&callers);
    }
}

/// CUPTI, loaded by its path, calls itself without end when it gets no table, until the stack is used up. That is
/// reported and the process ended before.
fn cupti_started(callers: &[String]) {
    static TIMES: AtomicU32 = AtomicU32::new(0);
    if TIMES.fetch_add(1, Ordering::Relaxed) < 200 || crate::ledger::folder().is_none() {
        return;
    }
    note(Foreign {
        name: "CUPTI".to_owned(),
        library: callers.first().cloned().unwrap_or_default(),
        how: ForeignUse::Runtime,
    });
    // SAFETY: ends the process without returning; what was recorded is written.
    unsafe { libc::_exit(2) };
}

/// Memory was taken by the driver's own function, as torch never does. Only the first few times are looked at: those
/// who divide a device themselves take it in few pieces.
pub(crate) fn driver_memory_taken() {
    static TIMES: AtomicU32 = AtomicU32::new(0);
    if TIMES.fetch_add(1, Ordering::Relaxed) < 16 {
        device_used();
    }
}

/// Somebody opened the context of a device, or took memory of it.
pub(crate) fn device_used() {
    let callers = calling_libraries::<FRAMES>();
    if let Some(foreign) = judge(&callers, ForeignUse::Memory) {
        tell(foreign);
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn package(path: &str) -> Option<(&'static str, bool)> {
    let found = PACKAGES.iter().find(|(part, ..)| path.contains(part));
    found.map(|(_, name, divides)| (*name, *divides))
}

/// Whether a library is CUDA Python's of the driver, which looks up every function by its name and has no runtime.
fn looks_up_all(path: &str) -> bool {
    path.contains("/cuda/bindings/") && file_name(path).contains("driver.")
}

/// Whether calls from these libraries, the innermost first, are those of a library that cannot be followed.
fn judge(callers: &[String], how: ForeignUse) -> Option<Foreign> {
    let first = callers.first()?;
    if OURS.iter().any(|ours| file_name(first).starts_with(ours)) || looks_up_all(first) {
        return None;
    }
    let known = callers.iter().find_map(|path| Some((path, package(path)?)));
    match (how, known) {
        (_, Some((path, (name, divides)))) if how == ForeignUse::Runtime || divides => {
            Some(Foreign {
                name: name.to_owned(),
                library: path.clone(),
                how: if divides { ForeignUse::Memory } else { how },
            })
        }
        (ForeignUse::Runtime, None) => Some(Foreign {
            name: match file_name(first) {
                runtime if runtime.starts_with("libcudart") => "a CUDA runtime".to_owned(),
                name => name.to_owned(),
            },
            library: first.clone(),
            how,
        }),
        _ => None,
    }
}

fn tell(foreign: Foreign) {
    let divides = foreign.how == ForeignUse::Memory;
    note(foreign);
    if divides && crate::ledger::folder().is_some() && !has_torch() {
        // Nothing that it would do from here on could be judged, and it may take hours.
        // SAFETY: ends the process without returning; what was recorded is written.
        unsafe { libc::_exit(2) };
    }
}

/// Records a user of a device, once.
fn note(foreign: Foreign) {
    let mut told = TOLD.lock();
    if !told.contains(&foreign) {
        recorder::remark_note(&Note::Foreign(foreign.clone()));
        told.push(foreign);
    }
}

/// Whether torch is in this process.
fn has_torch() -> bool {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: only queries whether a library is loaded, by a zero-terminated name.
    unsafe { !libc::dlopen(c"libc10.so".as_ptr(), flags).is_null() }
}

/// Where an address lies: the beginning of the file in memory, and its path.
pub(crate) fn file_of(address: *const c_void) -> Option<(usize, String)> {
    let mut about = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `about` is ours to write; any address may be queried.
    let found = unsafe { libc::dladdr(address, &raw mut about) } != 0;
    if !found || about.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own zero-terminated text.
    let path = unsafe { CStr::from_ptr(about.dli_fname) };
    Some((
        about.dli_fbase as usize,
        path.to_string_lossy().into_owned(),
    ))
}

/// Whether the function of this library that runs was called by a file of this name.
pub(crate) fn is_called_by(name: &str) -> bool {
    let callers = calling_libraries::<INNERMOST>();
    callers.first().is_some_and(|path| path.ends_with(name))
}

/// Files by an address in their code. The loader goes through all symbols of a file to answer, which takes
/// milliseconds in torch's, and callers are few.
static FILES: Lock<BTreeMap<usize, Option<(usize, String)>>> = Lock::new(BTreeMap::new());

/// More addresses than these are not kept.
const MOST_FILES: usize = 1 << 14;

/// The same as [`file_of`], for an address that was called from: what is loaded there stays there.
fn file_of_caller(address: *const c_void) -> Option<(usize, String)> {
    if let Some(known) = FILES.lock().get(&(address as usize)) {
        return known.clone();
    }
    // The loader may be busy with another thread: a fork must not wait for that.
    let found = file_of(address);
    let mut files = FILES.lock();
    if files.len() < MOST_FILES {
        files.insert(address as usize, found.clone());
    }
    found
}

/// The files on the stack other than this library, the innermost first, each once; among so many frames.
fn calling_libraries<const MOST: usize>() -> Vec<String> {
    let mut frames = [std::ptr::null_mut::<c_void>(); MOST];
    // SAFETY: the array has room for this many addresses.
    let length = unsafe { libc::backtrace(frames.as_mut_ptr(), MOST as i32) };
    let ours = file_of_caller(file_of as *const c_void).map(|(base, _)| base);
    let mut files: Vec<String> = Vec::new();
    for frame in &frames[..usize::try_from(length).unwrap_or(0).min(MOST)] {
        if let Some((base, path)) = file_of_caller(*frame)
            && Some(base) != ours
            && !files.contains(&path)
        {
            files.push(path);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(callers: &[&str], how: ForeignUse) -> Option<(String, ForeignUse)> {
        let callers: Vec<String> = callers.iter().map(|&path| path.to_owned()).collect();
        judge(&callers, how).map(|foreign| (foreign.name, foreign.how))
    }

    #[test]
    fn a_runtime_is_named_by_the_package_that_brings_it() {
        let cupy = "/site-packages/cupy_backends/cuda/api/runtime.so";
        let runtime = "/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12";
        let expected = Some(("CuPy".to_owned(), ForeignUse::Runtime));
        assert_eq!(
            judged(&[cupy, "/usr/bin/python3"], ForeignUse::Runtime),
            expected
        );
        assert_eq!(judged(&[runtime, cupy], ForeignUse::Runtime), expected);
        let by_path = Some(("a CUDA runtime".to_owned(), ForeignUse::Runtime));
        assert_eq!(
            judged(&[runtime, "/usr/bin/python3"], ForeignUse::Runtime),
            by_path
        );
        let program = Some(("train".to_owned(), ForeignUse::Runtime));
        assert_eq!(judged(&["./train"], ForeignUse::Runtime), program);
    }

    #[test]
    fn libraries_of_cuda_and_torch_are_no_strangers() {
        let torch = "/site-packages/torch/lib/libtorch_cuda.so";
        let cudnn = "/site-packages/nvidia/cudnn/lib/libcudnn_graph.so.9";
        assert_eq!(judged(&[cudnn, torch], ForeignUse::Runtime), None);
        assert_eq!(judged(&[torch], ForeignUse::Memory), None);
        assert_eq!(judged(&[], ForeignUse::Runtime), None);
        let bindings =
            "/x/site-packages/cuda/bindings/_internal/driver.cpython-312-x86_64-linux-gnu.so";
        assert_eq!(judged(&[bindings], ForeignUse::Runtime), None);
    }

    #[test]
    fn only_those_that_divide_the_device_are_noticed_by_its_use() {
        let tensorflow = "/site-packages/tensorflow/libtensorflow_cc.so.2";
        let jax = "/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so";
        assert_eq!(
            judged(&[tensorflow], ForeignUse::Memory),
            Some(("TensorFlow".to_owned(), ForeignUse::Memory))
        );
        assert_eq!(
            judged(&[jax], ForeignUse::Runtime),
            Some(("JAX".to_owned(), ForeignUse::Memory))
        );
        assert_eq!(judged(&["./stress"], ForeignUse::Memory), None);
        assert_eq!(
            judged(&["/site-packages/cupy/x.so"], ForeignUse::Memory),
            None
        );
    }

    #[test]
    fn callers_are_found_and_this_library_is_not_among_them() {
        // The test's own program is "this library" here, so only the C library is left.
        assert!(
            calling_libraries::<FRAMES>()
                .iter()
                .all(|path| path.contains(".so"))
        );
    }
}
