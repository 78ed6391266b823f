// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of `--json` matches the committed schemas, no field more and no field less.
//!
//! The published schemas allow fields that a later release adds. The checker here does not: a field that a schema does
//! not know fails, and so does a word of JSON Schema that the checker does not know. It shares no code with the crate
//! that makes the schemas.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tonnage_analysis::check::{Budget, CommandLine, Limits, judge};
use tonnage_analysis::diff::Summary;
use tonnage_analysis::holdings;
use tonnage_analysis::verdict::verdict;
use tonnage_recording::{Event, Kind, Meta, Pool, StackId, Trace, meta};

const MIB: u64 = 1 << 20;

const SNAPSHOT: &str = r#"{"segments": [{"device": 0, "address": 1048576, "total_size": 20971520, "stream": 0,
  "segment_type": "large", "blocks": [
    {"address": 1048576, "size": 20971520, "requested_size": 0, "state": "inactive", "frames": []}]}],
 "device_traces": [[
  {"action": "free_requested", "addr": 1048576, "size": 5000000, "stream": 0, "time_us": 10, "frames": []},
  {"action": "free_completed", "addr": 1048576, "size": 5000000, "stream": 0, "time_us": 11, "frames": []},
  {"action": "alloc", "addr": 1048576, "size": 6000000, "stream": 0, "time_us": 12, "frames": []},
  {"action": "free_requested", "addr": 1048576, "size": 6000000, "stream": 0, "time_us": 13, "frames": []},
  {"action": "free_completed", "addr": 1048576, "size": 6000000, "stream": 0, "time_us": 14, "frames": []}]]}"#;

/// The configuration of a small model, as transformers writes it.
const CONFIG: &[u8] = br#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "torch_dtype": "bfloat16"}"#;

/// Three jobs on two GPUs, of which the last waits, and would not have to.
const ACCOUNT: &str = r#"{"kind": "List", "items": [
  {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "n"},
    "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}, {"name": "gpu-1", "capacity": {"memory": {"value": "80Gi"}}}]}},
  {"kind": "ResourceClaim", "metadata": {"name": "a", "namespace": "a"}, "status": {"allocation": {"devices": {"results": [
    {"driver": "d", "pool": "n", "device": "gpu-0", "consumedCapacity": {"memory": "39Gi"}},
    {"driver": "d", "pool": "n", "device": "gpu-1", "consumedCapacity": {"memory": "49Gi"}}]}}}},
  {"kind": "ResourceClaim", "metadata": {"name": "b", "namespace": "b"}, "spec": {"devices": {"requests": [
    {"exactly": {"capacity": {"requests": {"memory": "30Gi"}}}}]}}},
  {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "b"}, "spec": {"devices": {"requests": [
    {"exactly": {"capacity": {"requests": {"memory": "39Gi"}}}}]}}}]}"#;

/// Whether a value matches a schema, without further fields.
struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    /// The problems of the value at `at`.
    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Value::Object(words) = schema else {
            return match schema {
                Value::Bool(true) => Ok(()),
                _ => Err(format!("{at}: nothing is allowed here")),
            };
        };
        for (word, said) in words {
            let holds = match word.as_str() {
                // Words for people, and words that are checked together with the fields and items.
                "$schema"
                | "$defs"
                | "title"
                | "description"
                | "default"
                | "format"
                | "required"
                | "additionalProperties"
                | "minItems"
                | "maxItems" => true,
                "$ref" => {
                    let path = said.as_str().unwrap().strip_prefix('#').unwrap();
                    let part = self.root.pointer(path);
                    let part = part.ok_or(format!("{at}: {path} is not in the schema"))?;
                    self.check(part, value, at)?;
                    true
                }
                "type" => has_type(said, value),
                "const" => said == value,
                "enum" => said.as_array().unwrap().contains(value),
                "minimum" => value.as_f64().is_none_or(|it| it >= said.as_f64().unwrap()),
                "maximum" => value.as_f64().is_none_or(|it| it <= said.as_f64().unwrap()),
                "pattern" => {
                    assert_eq!(said, r"^[0-9]+\.[0-9]+$", "the one pattern there is");
                    let parts: Vec<&str> = value.as_str().unwrap().split('.').collect();
                    parts.len() == 2 && parts.iter().all(|part| part.parse::<u32>().is_ok())
                }
                "anyOf" | "oneOf" => {
                    let choices = said.as_array().unwrap().iter();
                    let fit = choices.map(|choice| self.check(choice, value, at));
                    let (fit, wrong): (Vec<_>, Vec<_>) = fit.partition(Result::is_ok);
                    if fit.is_empty() || (word == "oneOf" && fit.len() > 1) {
                        return Err(format!("{at}: {} of {word} fit: {wrong:?}", fit.len()));
                    }
                    true
                }
                "properties" => {
                    self.fields(schema, value, at)?;
                    true
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(said, item, &format!("{at}[{index}]"))?;
                    }
                    true
                }
                "prefixItems" => {
                    let (schemas, items) = (said.as_array().unwrap(), value.as_array());
                    for (index, item) in items.into_iter().flatten().enumerate() {
                        let schema = schemas.get(index).unwrap_or(&Value::Bool(false));
                        self.check(schema, item, &format!("{at}[{index}]"))?;
                    }
                    items.is_none_or(|items| items.len() == schemas.len())
                }
                _ => return Err(format!("{at}: the checker does not know {word}")),
            };
            if !holds {
                return Err(format!("{at}: {value} is not {word} {said}"));
            }
        }
        if !words.contains_key("properties")
            && let (Some(values), Value::Object(object)) =
                (words.get("additionalProperties"), value)
        {
            for (name, value) in object {
                self.check(values, value, &format!("{at}.{name}"))?;
            }
        }
        Ok(())
    }

    fn fields(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Value::Object(object) = value else {
            return Ok(()); // The type determines whether it must be one.
        };
        for (name, value) in object {
            let field = schema["properties"].get(name);
            let field = field.ok_or(format!("{at}.{name}: the schema does not know it"))?;
            self.check(field, value, &format!("{at}.{name}"))?;
        }
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten() {
            if !object.contains_key(name.as_str().unwrap()) {
                return Err(format!("{at}: {name} is missing"));
            }
        }
        Ok(())
    }
}

fn has_type(names: &Value, value: &Value) -> bool {
    if let Value::Array(names) = names {
        return names.iter().any(|name| has_type(name, value));
    }
    match names.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        name => panic!("no type is called {name}"),
    }
}

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schemas")
}

fn schema(name: &str) -> Value {
    let path = schemas().join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn fault(name: &str, value: &Value) -> Option<String> {
    let root = schema(name);
    Checker { root: &root }.check(&root, value, name).err()
}

/// Runs the command in `folder`; what it prints.
fn printed(folder: &Path, arguments: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tonnage"))
        .env("TONNAGE_GPU", "h100-80gb")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        // Nothing here touches a device, so any file will do for the library.
        .env("TONNAGE_STANDIN", folder.join("tonnage.toml"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| {
        let told = String::from_utf8_lossy(&output.stderr);
        panic!("tonnage {arguments}: {error}\n{text}\n{told}")
    })
}

/// A small training run of three steps on a device of 1 GiB; the last of them may fail.
fn trained(activations: u64, fails: bool) -> Trace {
    let mut trace = Trace::new("tonnage 0.1.0");
    for (name, text) in [
        (meta::COMMAND, "python train.py"),
        ("run.ending", if fails { "exit 1" } else { "exit 0" }),
        (meta::TORCH_VERSION, "2.15.0"),
        (meta::GPU_NAME, "NVIDIA A100-SXM4-40GB"),
        ("gpu.id", "a100-40gb"),
        (meta::GPU_CAPACITY, "1073741824"),
        ("gpu.capacity.known", "given"),
        (meta::GPU_CONTEXT, "104857600"),
        (meta::ALLOCATOR_CONF, "expandable_segments:False"),
        ("unmodelled.cufftXtMalloc", "3"),
        ("unknown.0", "the stacks of 3 allocations and frees"),
    ] {
        trace.meta.push(Meta {
            process: 0,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }
    let line = |trace: &mut Trace, line| {
        let stacks = &mut trace.stacks;
        let (function, file) = (stacks.intern("main"), stacks.intern("/home/me/train.py"));
        let frame = stacks.frame(function, file, line);
        stacks.push_stack(&[frame])
    };
    let mut time = 0;
    let mut row = |trace: &mut Trace, kind, address, size, stack: Option<StackId>| {
        time += 1000;
        trace.events.push(Event {
            address: address * MIB,
            size: size * MIB,
            requested: if kind == Kind::Alloc { size * MIB } else { 0 },
            pool: (kind == Kind::Alloc).then(Pool::default),
            stack,
            time: Some(time),
            ..Event::new(kind)
        });
    };
    let note = |trace: &mut Trace, kind, name: &str, text: &str| {
        let (name, text) = (trace.stacks.intern(name), trace.stacks.intern(text));
        trace.events.push(Event {
            name: Some(name),
            text: Some(text),
            ..Event::new(kind)
        });
    };
    row(&mut trace, Kind::DriverContext, 0, 100, None);
    row(&mut trace, Kind::SegmentAlloc, 2, 200, None);
    let weights = line(&mut trace, 4);
    row(&mut trace, Kind::Alloc, 2, 200, weights);
    note(
        &mut trace,
        Kind::Owner,
        "head.weight",
        "weights float32[8192, 6400]",
    );
    row(&mut trace, Kind::SegmentAlloc, 1024, activations, None);
    let forward = line(&mut trace, 9);
    for _ in 0..3 {
        note(&mut trace, Kind::MarkStart, "forward", "phase");
        note(&mut trace, Kind::MarkStart, "layers.0", "module");
        row(&mut trace, Kind::Alloc, 1024, activations, forward);
        note(&mut trace, Kind::MarkEnd, "layers.0", "module");
        note(&mut trace, Kind::MarkEnd, "forward", "phase");
        row(&mut trace, Kind::FreeRequested, 1024, activations, None);
        row(&mut trace, Kind::FreeCompleted, 1024, activations, None);
    }
    if fails {
        let stack = line(&mut trace, 12);
        row(&mut trace, Kind::Oom, 0, 900, stack);
    }
    trace
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    for (name, trace) in [
        ("train.tonnage", trained(256, false)),
        ("after.tonnage", trained(300, false)),
        ("oom.tonnage", trained(256, true)),
    ] {
        put(name, &trace.write(Vec::new()).unwrap());
    }
    let mut real = trained(256, false);
    for (name, text) in [
        ("gpu.name", "NVIDIA GeForce RTX 3090"),
        ("gpu.capacity", "25286672384"),
        ("gpu.capacity.known", "measured"),
    ] {
        real.meta.push(tonnage_recording::Meta {
            process: 0,
            name: name.to_owned(),
            text: text.to_owned(),
        });
    }
    put("real.tonnage", &real.write(Vec::new()).unwrap());
    put("snapshot.json", SNAPSHOT.as_bytes());
    put("account.json", ACCOUNT.as_bytes());
    put("config.json", CONFIG);
    put(
        "jobs.csv",
        b"job,team,gpus,start,end,used,state\n1,a,2,0,3600,20GiB,failed\n2,b,1,0,7200,,completed\n",
    );
    put("buffers.csv", b"id,lower,upper,size\na,0,5,100\nb,2,9,50\n");
    put(
        "tonnage.toml",
        b"[[budget]]\nname = \"nothing\"\nrun = \"true\"\ngpu = \"a100-40gb\"\npeak = \"1 GiB\"\n",
    );
    folder
}

#[test]
fn what_commands_print_is_as_the_schemas_say() {
    let folder = folder();
    let forecast = printed(
        folder.path(),
        "forecast from --json --store st train.tonnage",
    );
    let forecast = forecast["name"].as_str().unwrap();
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    let of_forecasts = [
        (
            "forecast",
            format!("forecast show --json --store st {forecast}"),
        ),
        ("forecast", "forecast from --json after.tonnage".to_owned()),
        (
            "forecast-compare",
            format!(
                "forecast compare --json --store st {forecast} st/forecasts/{}/{forecast}.json",
                &forecast[..3]
            ),
        ),
        (
            "forecast-emit",
            format!("forecast emit --json --for dra --store st {forecast}"),
        ),
        (
            "forecast-find",
            "forecast find --json --store st -- python train.py".to_owned(),
        ),
        (
            "forecast-learn",
            format!(
                "forecast learn --json --store st --job 1 --team a --asked 1GiB --used 600MiB --forecast {forecast}"
            ),
        ),
        (
            "fleet-report",
            "fleet report --json --store st account.json".to_owned(),
        ),
        (
            "fleet-review",
            "fleet review --json --gpu h100 jobs.csv".to_owned(),
        ),
        (
            "forecast-ledger",
            "forecast ledger --json --store st".to_owned(),
        ),
        (
            "forecast-learn-from",
            "forecast learn-from --json --store st --gpu h100 jobs.csv".to_owned(),
        ),
        (
            "forecast-prune",
            "forecast prune --json --store st --older-than 1".to_owned(),
        ),
        (
            "forecast-forget",
            "forecast forget --json --store st --job 1".to_owned(),
        ),
    ];
    let others = [
        ("run", "run --json -o run.tonnage -- true"),
        ("run", "run --json --force -o run.tonnage -- false"),
        (
            "verify",
            "verify --json --recorded real.tonnage -o verify.json -- true",
        ),
        ("fit", "fit --json -- true {batch=1,2}"),
        ("fit", "fit --json --gpu t4,a100-40gb -- true"),
        // A server that ends without a word of its KV cache.
        ("serve-fit", "serve-fit --json -- true vllm serve model"),
        ("model", "model --json --gpu rtx4090 config.json"),
        ("gpus", "gpus --json"),
        ("gpu", "gpus --json h100"),
        (
            "info",
            "info --json train.tonnage oom.tonnage snapshot.json buffers.csv",
        ),
        ("replay", "replay --json train.tonnage"),
        (
            "replay",
            "replay --json oom.tonnage --capacity 300MiB --alloc recorded --alloc plan --alloc bfc",
        ),
        ("replay", "replay --json snapshot.json"),
        ("plan", "plan --json buffers.csv"),
        ("plan", "plan --json buffers.csv --capacity 1"),
        ("plan", "plan --json train.tonnage --step --deadline 1"),
        (
            "runtime-plan",
            "plan --for-runtime -o train.plan --json train.tonnage",
        ),
        (
            "replay",
            "replay --json train.tonnage --alloc tonnage --plan train.plan",
        ),
        ("tune", "replay --search --json train.tonnage"),
        (
            "tune",
            "replay --search --json oom.tonnage --capacity 300MiB",
        ),
        ("explain", "explain --json train.tonnage"),
        ("explain", "explain --json oom.tonnage"),
        ("explain", "explain --json snapshot.json"),
        ("finding", "explain --json TN101"),
        ("change", "explain --json checkpoint-blocks"),
        ("diff", "diff --json train.tonnage after.tonnage"),
        ("check", "check --json"),
        ("doctor", "doctor --json"),
        ("report", "report --json train.tonnage"),
        ("report", "report --json --text oom.tonnage"),
    ];
    let others = others.map(|(name, call)| (name, call.to_owned()));
    for (name, call) in others.into_iter().chain(of_forecasts) {
        seen.insert(format!("{name}.json"));
        let value = printed(folder.path(), &call);
        faults.extend(fault(name, &value).map(|fault| format!("tonnage {call}: {fault}")));
    }
    assert!(faults.is_empty(), "{faults:#?}");
    let files = std::fs::read_dir(schemas()).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: BTreeSet<String> = files.collect();
    // They are read, not printed.
    for name in ["configuration.json", "lock.json"] {
        assert!(files.remove(name));
    }
    assert_eq!(
        seen, files,
        "a schema that no call above is checked against"
    );
}

/// Output that only a dry run of torch prints, from recordings: tests/torch has the runs.
#[test]
fn verdicts_and_budgets_are_as_the_schemas_say() {
    let summary = |trace: &Trace| {
        let bytes = trace.write(Vec::new()).unwrap();
        let read = holdings::read(bytes.as_slice()).unwrap();
        Summary::from_recording(&read, "").unwrap()
    };
    for fails in [false, true] {
        let bytes = trained(256, fails).write(Vec::new()).unwrap();
        let verdict = verdict(|| Ok(bytes.as_slice())).unwrap();
        assert_eq!(verdict.devices[0].out_of_memory.is_some(), fails);
        let mut value = serde_json::to_value(&verdict).unwrap();
        value["recording"] = "train.tonnage".into();
        value["cause"] = serde_json::Value::Null;
        assert_eq!(fault("run", &value), None);
    }
    let budget = Budget::new(
        "train",
        CommandLine::Line("python train.py".to_owned()),
        "a100-40gb",
    );
    let limits = Limits {
        peak: Some(500 * MIB),
        ..Limits::default()
    };
    let mut before = summary(&trained(256, false));
    let after = summary(&trained(300, false));
    before.torch = "2.14.0".to_owned();
    let checked = judge(&budget, limits, &after, Some(&before));
    assert!(checked.diff.is_some() && checked.torch_changed.is_some());
    let value = json!({"schema_version": 1, "budgets": [checked]});
    assert_eq!(fault("check", &value), None);
    let lock = json!({"version": 1, "budget": {"train": after}});
    assert_eq!(fault("lock", &lock), None);
}

#[test]
fn a_configuration_is_as_the_schema_says() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/budget/tonnage.toml");
    let example = std::fs::read_to_string(example).unwrap();
    let value: toml::Value = toml::from_str(&example).unwrap();
    let mut value = serde_json::to_value(value).unwrap();
    assert_eq!(fault("configuration", &value), None);
    value["budget"][0]["run"] = json!(["python", "train.py"]);
    value["budget"][0]["peak"] = json!(1 << 30);
    assert_eq!(fault("configuration", &value), None);
    value["budget"][0]["peek"] = json!("1 GiB");
    assert!(fault("configuration", &value).unwrap().contains("peek"));
}

#[test]
fn the_checker_finds_what_is_missing_other_and_too_much() {
    let folder = folder();
    let good = printed(folder.path(), "diff --json train.tonnage after.tonnage");
    assert_eq!(fault("diff", &good), None);
    let spoilt = |spoil: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        spoil(&mut value);
        fault("diff", &value).unwrap()
    };
    let fault = spoilt(&|value| value["totals"][1]["new"] = 1.into());
    assert_eq!(fault, "diff.totals[1].new: the schema does not know it");
    let fault = spoilt(&|value| value["totals"][0]["before"] = "1".into());
    assert_eq!(
        fault,
        "diff.totals[0].before: \"1\" is not type \"integer\""
    );
    let fault = spoilt(&|value| drop(value.as_object_mut().unwrap().remove("phases")));
    assert_eq!(fault, "diff: \"phases\" is missing");
    let fault = spoilt(&|value| value["schema_version"] = 2.into());
    assert!(
        fault.starts_with("diff.schema_version: 2 is not const"),
        "{fault}"
    );
}
