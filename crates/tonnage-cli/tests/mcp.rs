// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage mcp` from the other end of its pipes: hostile messages, what a job does to the streams, and how it ends.
//!
//! The messages are written by hand, so nothing here is read by the SDK that wrote it. The official client, with torch,
//! is in `tests/mcp`.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A server and its pipes.
struct Server {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Server {
    fn start(folder: &Path) -> Self {
        // Cargo puts the library of a dependency beside the test, and beside the command only when it is to be built.
        let standin = std::env::current_exe()
            .unwrap()
            .with_file_name("libtonnage_standin.so");
        let mut process = Command::new(env!("CARGO_BIN_EXE_tonnage"))
            // Tests read what their jobs write.
            .env("TONNAGE_PASS_THROUGH", std::env::temp_dir())
            .arg("mcp")
            .current_dir(folder)
            .env("NO_COLOR", "1")
            .env("TONNAGE_GPU", "h100-80gb")
            .env("TONNAGE_STANDIN", standin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        Self {
            input: process.stdin.take(),
            process,
            lines,
        }
    }

    /// A server that was greeted.
    fn greeted(folder: &Path) -> Self {
        let mut server = Self::start(folder);
        let client = json!({"name": "test", "version": "0"});
        let hello =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let reply = server.ask(0, "initialize", &hello);
        assert_eq!(reply["result"]["serverInfo"]["name"], "tonnage");
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        server
    }

    fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    /// The next message. Whatever comes is one: stdout is for nothing else.
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(Duration::from_mins(1)).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, id: u32, method: &str, params: &Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        loop {
            let message = self.next();
            if message["id"] == id {
                return message;
            }
        }
    }

    fn call(&mut self, id: u32, name: &str, arguments: &Value) -> Value {
        let params = json!({"name": name, "arguments": arguments});
        self.ask(id, "tools/call", &params)
    }

    /// Closes its input: the exit code, its stderr, and how long it takes.
    fn leave(mut self) -> (Option<i32>, String, Duration) {
        let since = Instant::now();
        drop(self.input.take());
        let mut told = String::new();
        let mut stderr = self.process.stderr.take().unwrap();
        stderr.read_to_string(&mut told).unwrap();
        let code = self.process.wait().unwrap().code();
        (code, told, since.elapsed())
    }
}

fn text(message: &Value) -> &str {
    message["result"]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn hostile_messages_get_an_error_or_nothing_and_the_server_goes_on() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::greeted(folder.path());
    // No JSON, no text, JSON that is not a message.
    server.send_bytes(b"{\"jsonrpc\": \n");
    server.send_bytes(b"\xff\xfe\x00\n\n");
    server.send_bytes(b"[1, 2]\n");
    assert_eq!(server.next()["error"]["code"], -32600);
    server.send_bytes(format!("{}\n", "[".repeat(100_000)).as_bytes());
    // A line that never ends.
    let mut endless = vec![b'x'; 17 << 20];
    endless.push(b'\n');
    server.send_bytes(&endless);

    let unknown = server.ask(1, "tools/burn", &json!({}));
    assert_eq!(unknown["error"]["code"], -32601);
    let unknown = server.call(2, "burn", &json!({}));
    let message = unknown["error"]["message"].as_str().unwrap();
    assert!(message.contains("run, fit, check, explain, replay, gpus"));
    let wrong = server.ask(3, "tools/call", &json!({"name": 7}));
    assert!(wrong["error"].is_object(), "{wrong}");

    // A mistake that an assistant can mend is returned as the result of a tool.
    for (id, tool, arguments, sentence) in [
        (
            10,
            "run",
            json!({"command": "train.py"}),
            "expected a sequence",
        ),
        (11, "run", json!({}), "missing field `command`"),
        (
            12,
            "run",
            json!({"command": []}),
            "there is no command to run",
        ),
        (
            13,
            "run",
            json!({"command": ["true"], "gpu": 4}),
            "invalid type: integer `4`",
        ),
        (
            14,
            "run",
            json!({"command": ["true"], "gpus": 900}),
            "invalid value: integer `900`",
        ),
        (
            15,
            "run",
            json!({"command": ["true"], "batch": 4}),
            "no parameter \"batch\"",
        ),
        (
            16,
            "run",
            json!({"command": ["true"], "gpu": "--json"}),
            "called \"--json\"",
        ),
        (
            17,
            "run",
            json!({"command": ["true"], "directory": "/nowhere"}),
            "no folder /nowhere",
        ),
        (18, "explain", json!({"what": "--help"}), "--help"),
        (
            19,
            "replay",
            json!({"file": "none.tonnage"}),
            "none.tonnage",
        ),
        (20, "check", json!({}), "no tonnage.toml"),
        (21, "fit", json!({"command": ["true", "{n=9..1}"]}), "{"),
        (22, "gpus", json!({"name": "h9000"}), "h9000"),
    ] {
        let reply = server.call(id, tool, &arguments);
        assert_eq!(
            reply["result"]["isError"], true,
            "{tool} {arguments}: {reply}"
        );
        assert!(
            text(&reply).contains(sentence),
            "{tool} {arguments}: {reply}"
        );
    }

    let gpus = server.call(30, "gpus", &json!({"name": "h100"}));
    assert_eq!(gpus["result"]["isError"], false);
    assert_eq!(
        gpus["result"]["structuredContent"]["gpu"]["id"],
        "h100-80gb"
    );
    let (code, told, _) = server.leave();
    assert_eq!(code, Some(0));
    assert!(told.contains("more than 16 MiB"), "{told}");
    assert!(!told.contains("panicked"), "{told}");
}

#[test]
fn the_streams_of_a_job_are_not_those_of_the_protocol() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::greeted(folder.path());
    // It would wait forever if it read the protocol's input.
    let command = [
        "sh",
        "-c",
        "cat; echo from the job; echo and more >&2; exit 3",
    ];
    let reply = server.call(1, "run", &json!({"command": command}));
    assert_eq!(reply["result"]["isError"], true);
    let printed = reply["result"]["content"][1]["text"].as_str().unwrap();
    assert!(printed.ends_with("from the job\nand more"), "{printed}");
    let recording = folder.path().join("run.tonnage");
    assert!(!recording.exists(), "it failed before it used a GPU");

    let elsewhere = TempDir::new().unwrap();
    let arguments = json!({
        "command": ["sh", "-c", "pwd > here; echo $WORD > word"],
        "directory": elsewhere.path(), "env": {"WORD": "set"}, "output": "x.tonnage",
    });
    let reply = server.call(2, "run", &arguments);
    assert_eq!(reply["result"]["isError"], false, "{reply}");
    let read = |name| std::fs::read_to_string(elsewhere.path().join(name)).unwrap();
    assert_eq!(
        Path::new(read("here").trim()),
        elsewhere.path().canonicalize().unwrap()
    );
    assert_eq!(read("word"), "set\n");
    assert!(elsewhere.path().join("x.tonnage").exists());
    let (code, told, _) = server.leave();
    assert_eq!((code, told.contains("from the job")), (Some(0), false));
}

/// A command that reports that it runs, and then only waits.
fn waiting() -> [&'static str; 3] {
    [
        "sh",
        "-c",
        "trap 'echo ended > ended; exit 1' INT TERM; echo $$ > started; while :; do sleep 0.1; done",
    ]
}

fn wait_for(path: &Path) {
    let since = Instant::now();
    while !path.exists() {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "{} is not there",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_job_ends_with_its_call_its_time_or_its_client() {
    let folder = TempDir::new().unwrap();
    let made = |name: &str| folder.path().join(name);
    let forget = || {
        std::fs::remove_file(made("started")).unwrap();
        std::fs::remove_file(made("ended")).unwrap();
    };
    let mut server = Server::greeted(folder.path());
    let call = json!({"name": "run", "arguments": {"command": waiting()}});
    server.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}));
    wait_for(&made("started"));
    let cancelled = json!({"requestId": 1, "reason": "not needed"});
    server
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}));
    wait_for(&made("ended"));
    forget();

    let limited = json!({"command": waiting(), "time_limit_seconds": 1});
    let reply = server.call(2, "run", &limited);
    assert_eq!(reply["result"]["isError"], true);
    let content = reply["result"]["content"].as_array().unwrap();
    let last = content.last().unwrap()["text"].as_str().unwrap();
    assert!(
        last.contains("time limit of 1 s") && last.contains("next step"),
        "{reply}"
    );
    forget();

    server.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}));
    wait_for(&made("started"));
    let (code, _, took) = server.leave();
    assert!(made("ended").exists());
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(10), "{took:?}");
    forget();

    // A client that has no patience sends a signal.
    let mut server = Server::greeted(folder.path());
    server.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call}));
    wait_for(&made("started"));
    let process = server.process.id().to_string();
    assert!(
        Command::new("kill")
            .arg(process)
            .status()
            .unwrap()
            .success()
    );
    wait_for(&made("ended"));
    let (code, ..) = server.leave();
    assert_eq!(code, Some(0));
}

#[test]
fn who_does_not_speak_the_protocol_is_told_so() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let (code, told, _) = server.leave();
    assert_eq!((code, told.as_str()), (Some(0), ""));

    let mut server = Server::start(folder.path());
    server.send(&json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    let (code, told, _) = server.leave();
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("not the beginning of the Model Context Protocol"),
        "{told}"
    );
    assert!(told.contains("hint"), "{told}");
}
