// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns the typed tables in `api/` into the C functions the stand-in exports.
//!
//! Every function has one line in a table: its parameters by type class, which
//! of them are read or written on the host and how long they are, and whether it
//! is modelled. From that line come the C signature, the zeroing of every
//! out-parameter before anything else happens, the guard against panics, and the
//! call into the model with checked values instead of pointers. So no
//! out-parameter can stay unwritten, no model dereferences an address, and a
//! model whose parameters do not match its line does not compile. The format is
//! described in `api/README.md`.

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
    /// Does nothing but count the operations of a matrix product.
    Product,
    Nothing,
    Unmodelled,
}

fn main() {
    // Absolute, so that a target directory from another checkout does not keep the path below.
    let here = std::env::current_dir().expect("a build has a folder");
    for part in ["build.rs", "api"] {
        println!("cargo::rerun-if-changed={}", here.join(part).display());
    }
    // Set by `.ci/sanitize`.
    println!("cargo::rustc-check-cfg=cfg(tonnage_sanitizer, values(\"address\", \"thread\"))");
    // For a dependent that builds the library into itself.
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
        "/// The driver's functions, to be found by name.\n\
         pub(crate) static DRIVER: &[Symbol] = &[\n{driver}];"
    );
    let names = format!(
        "/// Every function of the tables, by number.\nstatic NAMES: [&str; {}] = {names:?};",
        names.len()
    );
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for (file, code) in [("exports.rs", code), ("names.rs", names)] {
        fs::write(Path::new(&out).join(file), code).expect("the target folder is writable");
    }
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
            Some((rest, "product")) => (rest, Class::Product),
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
            .and_then(|signature| signature.split_once('('))
        else {
            fail("not a function")
        };
        let parameters = split(parameters)
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

/// Splits at commas, except those between brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |letter| {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

fn bytes(class: &str) -> Option<&str> {
    let length = class.strip_prefix('[')?.strip_suffix(']')?;
    (!length.contains(['[', ']'])).then_some(length)
}

/// Element and length of an array class: `i32[count]`, `[24][count]`, `str[length]`.
fn array(class: &str) -> Option<(&str, &str)> {
    let (element, length) = class.strip_suffix(']')?.rsplit_once('[')?;
    (!element.is_empty()).then_some((element, length))
}

/// The Rust type of what a host address points to.
fn pointee(class: &str) -> String {
    match (bytes(class), class) {
        (Some(length), _) => format!("[u8; {length}]"),
        (None, "str") => "std::ffi::c_char".to_owned(),
        (None, "bytes") => "u8".to_owned(),
        (None, class) => scalar(class).to_owned(),
    }
}

fn c_type(class: &str) -> String {
    match class {
        "in fatbinary" => return "*const FatBinaryWrapper".to_owned(),
        "in image" => return "*const u8".to_owned(),
        "in arguments" => return "*const *const u8".to_owned(),
        "in copy2d" => return "*const [u8; 128]".to_owned(),
        "in copy3d" => return "*const [u8; 160]".to_owned(),
        class if class.starts_with("in memory[") || class.starts_with("in targets[") => {
            return "*const Ptr".to_owned();
        }
        class if class.starts_with("memory[") => return "Ptr".to_owned(),
        _ => {}
    }
    for (direction, pointer) in [("in ", "*const"), ("out ", "*mut"), ("inout ", "*mut")] {
        if let Some(rest) = class.strip_prefix(direction) {
            let element = array(rest).map_or(rest, |(element, _)| element);
            return format!("{pointer} {}", pointee(element));
        }
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
        "hostfn" => "Option<HostFunction>".to_owned(),
        "streamfn" => "Option<StreamCallback>".to_owned(),
        class => scalar(class).to_owned(),
    }
}

/// A parameter by its name, or a number.
fn argument(name: &str, parameters: &[(String, String)]) -> String {
    let position = parameters.iter().position(|(known, _)| known == name);
    match position {
        Some(index) => format!("p{index}"),
        None if name.parse::<usize>().is_ok() => name.to_owned(),
        None => panic!("unknown parameter: {name}"),
    }
}

/// The length of an array: a number, a parameter, or a function of parameters in `lengths`.
fn length(expression: &str, parameters: &[(String, String)]) -> String {
    if let Some((function, arguments)) =
        expression.strip_suffix(')').and_then(|e| e.split_once('('))
    {
        let arguments: Vec<String> = arguments
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(|name| argument(name, parameters))
            .collect();
        return format!("crate::lengths::{function}({})", arguments.join(", "));
    }
    match expression.parse::<usize>() {
        Ok(number) => number.to_string(),
        Err(_) => format!("Length::length(&{})", argument(expression, parameters)),
    }
}

/// How a parameter that is a host address is turned into a value that is safe to use.
fn conversion(index: usize, class: &str, parameters: &[(String, String)]) -> Option<String> {
    let p = format!("p{index}");
    match class {
        "in fatbinary" => return Some(format!("FatBinary::new({p})")),
        "in image" => return Some(format!("ModuleImage::new({p})")),
        "in arguments" => return Some(format!("Arguments::new({p})")),
        "in copy2d" => return Some(format!("Copy2D::new({p})")),
        "in copy3d" => return Some(format!("Copy3D::new({p})")),
        _ => {}
    }
    if let Some(("memory", size)) = array(class) {
        let length = length(size, parameters);
        return Some(format!("Region::new({p}, {length})"));
    }
    if let Some((list @ ("in memory" | "in targets"), beside)) = array(class) {
        let list = if list == "in memory" {
            "Regions"
        } else {
            "AttributeTargets"
        };
        return Some(format!(
            "{list}::new({p}, {})",
            argument(beside, parameters)
        ));
    }
    let (direction, rest) = class.split_once(' ')?;
    let sized = array(rest).map(|(element, size)| (element, length(size, parameters)));
    Some(match (direction, rest, sized) {
        ("in", "str", _) => format!("input_text({p})"),
        ("in", _, Some((_, length))) => format!("input_array({p}, {length})"),
        ("in", _, None) => format!("input({p})"),
        ("out", _, Some(("str", length))) => format!("OutText::new({p}, {length})"),
        ("out", _, Some((_, length))) => format!("OutArray::new({p}, {length})"),
        ("out", rest, None) if bytes(rest).is_some() => format!("OutBytes::new({p})"),
        ("out", _, None) => format!("Out::new({p})"),
        ("inout", _, None) => format!("InOut::new({p})"),
        _ => return None,
    })
}

/// Counts a matrix product. Its type is that of `A` where it is given, else the letter after `cublas`.
fn product(name: &str, parameters: &[(String, String)]) -> String {
    if name.starts_with("cudnn") {
        return "crate::costs::executed_cudnn()".to_owned();
    }
    let of = |name: &str| {
        let position = parameters.iter().position(|(known, _)| known == name);
        position.map(|index| format!("p{index} as u64"))
    };
    let sizes = ["m", "n", "k"].map(|size| of(size).expect("a product has m, n and k"));
    let batch = of("batchCount").unwrap_or_else(|| "1".to_owned());
    let kind = parameters.iter().position(|(known, _)| known == "Atype");
    let kind = kind.map_or_else(
        || {
            let letter = name.trim_start_matches("cublas").chars().next();
            format!("Type::of_letter({letter:?})")
        },
        |index| format!("Type::of_number(p{index})"),
    );
    format!(
        "crate::costs::product(crate::costs::{kind}, [{}, {batch}])",
        sizes.join(", ")
    )
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
    // A library uses all memory it is given. The tables of the driver and the runtime name the functions that use it.
    let is_library = !["cudart", "cuda", "nvml", "cupti"].contains(&table);
    let addresses: Vec<String> = (parameters.iter().enumerate())
        .filter(|_| is_library)
        .filter_map(|(index, (_, class))| match c_type(class).as_str() {
            "Ptr" => Some(format!("p{index}.0 as u64")),
            "u64" => Some(format!("p{index}")),
            pointer if pointer.starts_with('*') => Some(format!("p{index} as u64")),
            _ => None,
        })
        .collect();
    if !addresses.is_empty() {
        let addresses = addresses.join(", ");
        let _ = writeln!(
            body,
            "        crate::uses::touch([{addresses}].into_iter());"
        );
    }
    // Arrays later: their length may be behind another parameter. Lists last: they are beside an array.
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|&index| {
        let class = &parameters[index].1;
        let is_list = class.starts_with("in memory[") || class.starts_with("in targets[");
        (is_list, class.contains('['))
    });
    for index in order {
        let parameter = &parameters[index].1;
        // Where nothing is modelled, nothing is read, and only what is always written is written.
        let is_array = parameter.starts_with("out ") && array(&parameter[4..]).is_some();
        let is_used = *class == Class::Model || (parameter.starts_with("out ") && !is_array);
        let Some(checked) = conversion(index, parameter, parameters).filter(|_| is_used) else {
            continue;
        };
        let _ = writeln!(
            body,
            "        // SAFETY: the table states that the caller passes null or a host \
             address of this type and length.\n        let p{index} = unsafe {{ {checked} }};"
        );
        // An attribute of a description may be an address.
        if is_library && parameter.starts_with("in bytes[") {
            let _ = writeln!(body, "        crate::uses::touch_bytes(p{index});");
        }
        // Where the address stands in it is not known: it is found again in what a kernel gets.
        if *class == Class::Nothing
            && let Some(address) = parameters
                .iter()
                .position(|(name, _)| name == "globalAddress")
        {
            let _ = writeln!(body, "        p{index}.put_u64(0, p{address}.0 as u64);");
        }
        // A stub that makes something still gives it its own name.
        if parameter == "out handle" && *class != Class::Model {
            let _ = writeln!(body, "        p{index}.set(Ptr::fresh());");
        }
    }
    let arguments: Vec<String> = (0..parameters.len())
        .map(|index| format!("p{index}"))
        .collect();
    let result = match class {
        Class::Model => {
            let call = format!("crate::model::{table}::{name}({})", arguments.join(", "));
            // The runtime remembers its last error; a query is not an error.
            if *table == *"cudart" && returns == "status" && !name.ends_with("LastError") {
                format!("crate::model::cudart::remember({call})")
            } else {
                call
            }
        }
        Class::Product => format!("{{ {}; {success} }}", product(name, parameters)),
        Class::Nothing => success.to_owned(),
        // NVML has a word for what it does not know, and its callers expect it.
        Class::Unmodelled if table == "nvml" => format!("{{ count_unmodelled({id}); 3 }}"),
        Class::Unmodelled => format!("{{ count_unmodelled({id}); {success} }}"),
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
