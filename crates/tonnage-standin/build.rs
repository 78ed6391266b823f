// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns the typed tables in `api/` into the C functions the stand-in exports.
//!
//! Every function has one line in a table: its parameters by type class, which
//! of them are written on the host, and whether it is modelled. From that line
//! come the C signature, the zeroing of every out-parameter before anything
//! else happens, the guard against panics, and the call into the model. So no
//! out-parameter can stay unwritten, and a model whose parameters do not match
//! its line does not compile. The format is described in `api/README.md`.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// The tables, in the order in which they are read.
const TABLES: &[&str] = &[
    "cudart",
    "cuda",
    "nvml",
    "cublas",
    "cublaslt",
    "cudnn",
    "cusolver",
    "cusparse",
    "cusparselt",
    "cufft",
    "curand",
    "nccl",
    "cupti",
];

struct Function {
    name: String,
    parameters: Vec<(String, String)>,
    returns: String,
    class: Class,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Model,
    Nothing,
    Unmodelled,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=api");
    // Set by `.ci/sanitize`.
    println!(
        "cargo::rustc-check-cfg=cfg(tonnage_sanitizer, values(\"address\", \"thread\"))"
    );
    // For a dependent that builds the library into itself.
    let here = std::env::current_dir().expect("a build has a folder");
    println!("cargo::metadata=source={}", here.display());
    // One copy of the library serves under three names; see `tonnage run`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtonnage_standin.so");
    let mut code = String::new();
    let mut names = Vec::new();
    let mut driver = String::new();
    for table in TABLES {
        let path = format!("api/{table}.api");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let functions = parse(&path, &text);
        let _ = writeln!(
            code,
            "/// Functions of `{path}`.\npub mod {table} {{ use super::*;"
        );
        for function in &functions {
            let id = names.len();
            emit(&mut code, table, function, id);
            if *table == "cuda" {
                let _ = writeln!(
                    driver,
                    "    Symbol {{ name: {:?}, function: cuda::{} as *const () }},",
                    function.name, function.name
                );
            }
            names.push(function.name.clone());
        }
        code.push_str("}\n");
    }
    let _ = writeln!(
        code,
        "/// Every function, by number.\npub(crate) static NAMES: [&str; {}] = {names:?};",
        names.len()
    );
    let _ = writeln!(
        code,
        "/// The driver's functions, for whoever asks for them by name.\n\
         pub(crate) static DRIVER: &[Symbol] = &[\n{driver}];"
    );
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("exports.rs"), code).expect("the target folder is writable");
}

fn parse(path: &str, text: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut default_return = "status".to_owned();
    for (index, line) in text.lines().enumerate() {
        let line = line.split(" #").next().unwrap_or("").trim();
        let fail = |why: &str| -> ! { panic!("{path}:{}: {why}: {line}", index + 1) };
        if line.is_empty() || line.starts_with('#') || line.starts_with("library ") {
            continue;
        }
        if let Some(class) = line.strip_prefix("returns ") {
            class.trim().clone_into(&mut default_return);
            continue;
        }
        let (line, class) = match line.rsplit_once(" = ") {
            Some((rest, "model")) => (rest, Class::Model),
            Some((rest, "noop")) => (rest, Class::Nothing),
            Some(_) => fail("unknown class"),
            None => (line, Class::Unmodelled),
        };
        let (signature, returns) = match line.rsplit_once(" -> ") {
            Some((signature, returns)) => (signature, returns.trim().to_owned()),
            None => (line, default_return.clone()),
        };
        let Some((name, parameters)) = signature
            .trim()
            .strip_suffix(')')
            .and_then(|s| s.split_once('('))
        else {
            fail("not a function")
        };
        let parameters = parameters
            .split(',')
            .map(str::trim)
            .filter(|parameter| !parameter.is_empty())
            .map(|parameter| match parameter.split_once(':') {
                Some((name, class)) => (name.trim().to_owned(), class.trim().to_owned()),
                None => fail("a parameter without a type"),
            })
            .collect();
        functions.push(Function {
            name: name.to_owned(),
            parameters,
            returns,
            class,
        });
    }
    functions
}

/// The Rust type of a scalar class, and of what an out-parameter points to.
fn scalar(class: &str) -> &str {
    match class {
        "i8" | "u8" | "i16" | "u16" | "i32" | "u32" | "i64" | "u64" | "usize" | "isize" | "f32"
        | "f64" => class,
        "ptr" | "handle" => "Ptr",
        _ => panic!("unknown type class: {class}"),
    }
}

fn bytes(class: &str) -> Option<&str> {
    class.strip_prefix('[')?.strip_suffix(']')
}

fn c_type(class: &str) -> String {
    if let Some(rest) = class.strip_prefix("out ") {
        return match bytes(rest) {
            Some(length) => format!("*mut [u8; {length}]"),
            None => format!("*mut {}", scalar(rest)),
        };
    }
    if let Some(rest) = class.strip_prefix("inout ") {
        return format!("*mut {}", scalar(rest));
    }
    if let Some(length) = class
        .strip_prefix("bytes[")
        .and_then(|c| c.strip_suffix(']'))
    {
        return format!("ByValue<{length}>");
    }
    match class {
        "mut ptr" => "Ptr".to_owned(),
        "dim3" => "Dim3".to_owned(),
        "complex64" => "Complex64".to_owned(),
        "complex128" => "Complex128".to_owned(),
        class => scalar(class).to_owned(),
    }
}

fn emit(code: &mut String, table: &str, function: &Function, id: usize) {
    let Function {
        name,
        parameters,
        returns,
        class,
    } = function;
    let (return_type, success, failure) = match returns.as_str() {
        "status" => ("i32", "0", "FAILED"),
        "void" => ("()", "()", "()"),
        "ptr" | "str" => ("Ptr", "Ptr::NULL", "Ptr::NULL"),
        "f32" => ("f32", "0.0", "0.0"),
        other => (scalar(other), "0", "0"),
    };
    let signature: Vec<String> = parameters
        .iter()
        .enumerate()
        .map(|(index, (_, class))| format!("p{index}: {}", c_type(class)))
        .collect();
    let mut body = String::new();
    let mut arguments = Vec::new();
    for (index, (_, class)) in parameters.iter().enumerate() {
        let wrapper = match class.as_str() {
            class if class.starts_with("out [") => "OutBytes",
            class if class.starts_with("out ") => "Out",
            class if class.starts_with("inout ") => "InOut",
            _ => {
                arguments.push(format!("p{index}"));
                continue;
            }
        };
        let _ = writeln!(
            body,
            "        // SAFETY: the table says that the caller passes null or a host \
             address of this type.\n        let p{index} = unsafe {{ {wrapper}::new(p{index}) }};"
        );
        // A stub that makes something still gives it a name of its own.
        if class == "out handle" && function.class != Class::Model {
            let _ = writeln!(body, "        p{index}.set(Ptr::fresh());");
        }
        arguments.push(format!("p{index}"));
    }
    let result = match class {
        Class::Model => {
            let call = format!("crate::model::{table}::{name}({})", arguments.join(", "));
            // The runtime remembers its last error; asking for it is no error.
            if *table == *"cudart" && returns == "status" && !name.ends_with("LastError") {
                format!("crate::model::cudart::remember({call})")
            } else {
                call
            }
        }
        Class::Nothing => success.to_owned(),
        // NVML has a word for what it does not know, and its callers expect it.
        Class::Unmodelled if table == "nvml" => format!("{{ unmodelled({id}); 3 }}"),
        Class::Unmodelled => format!("{{ unmodelled({id}); {success} }}"),
    };
    let _ = writeln!(
        code,
        "    /// `{name}`.\n    ///\n    /// # Safety\n    /// As the C interface demands.\n    \
         #[unsafe(no_mangle)]\n    \
         pub unsafe extern \"C\" fn {name}({}) -> {return_type} {{\n        \
         guard({failure}, || {{\n{body}        {result}\n        }})\n    }}",
        signature.join(", ")
    );
}
