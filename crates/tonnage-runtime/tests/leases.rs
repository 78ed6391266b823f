// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that share a device: leases that hold, memory that is requested and
//! given, and processes that are killed at any moment.
//!
//! The other processes are this very program: the test `tenant` does what the
//! environment specifies, and nothing without it.
#![expect(clippy::unwrap_used, reason = "a call that fails fails the test")]
#![cfg(not(feature = "shuttle"))]

mod raw;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raw::{free, visit};
use tonnage_alloc::tonnage::{SearchStep, Settings};
use tonnage_alloc::{DeviceAddr, Request, StreamId};
use tonnage_device_host::HostDevice;
use tonnage_runtime::{Error, Lease, LeaseError, Leased, Runtime};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 256 * MIB;
const ROLE: &str = "TONNAGE_TEST_TENANT";

fn ask(bytes: u64) -> Request {
    Request::new(bytes, StreamId(0))
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tonnage-leases-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn shared(folder: &Path, name: &str, quota: u64) -> (Runtime<Leased<HostDevice>>, Arc<Lease>) {
    let lease = Arc::new(Lease::new(folder, TOTAL, name, quota).unwrap());
    let device = Leased::new(HostDevice::new(TOTAL).unwrap(), Arc::clone(&lease));
    let runtime = Runtime::new(device, Settings::default());
    runtime.share(Arc::clone(&lease));
    (runtime, lease)
}

/// Another process.
struct Tenant {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Tenant {
    fn start(folder: &Path, name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tenant", "--nocapture", "--test-threads=1"])
            .env(ROLE, folder.join(name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Sends a word and waits for the answer.
    fn tell(&mut self, word: &str) -> String {
        writeln!(self.input, "{word}").unwrap();
        self.input.flush().unwrap();
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the process ended"
            );
            // The test harness writes, too.
            if let Some((_, answer)) = line.trim().split_once("answer: ") {
                return answer.to_owned();
            }
        }
    }

    /// `kill -9`.
    fn kill(mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(!status.success());
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        // A test that has failed leaves no process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The action of another process: `alloc BYTES`, `free`, `answer`, `churn`.
#[test]
fn tenant() {
    let Some(role) = std::env::var_os(ROLE).map(PathBuf::from) else {
        return;
    };
    let (folder, name) = (role.parent().unwrap(), role.file_name().unwrap());
    let (runtime, _lease) = shared(folder, name.to_str().unwrap(), TOTAL);
    let mut blocks: Vec<DeviceAddr> = Vec::new();
    let mut answering = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let bytes: u64 = number.parse().unwrap();
        let answer = match word {
            "alloc" => match runtime.alloc_raw(ask(bytes)) {
                Ok(block) => {
                    let byte = [0x5A; 4096];
                    let written = visit(&runtime, |device| device.inner_mut().write(block, &byte));
                    written.unwrap().unwrap();
                    blocks.push(block);
                    "served".to_owned()
                }
                Err(error) => error.to_string(),
            },
            "free" => {
                for block in blocks.drain(..) {
                    free(&runtime, block).unwrap();
                }
                "freed".to_owned()
            }
            "answer" => {
                answering = Some(runtime.answer_recalls(Duration::from_millis(2)));
                "answering".to_owned()
            }
            "churn" => {
                println!("answer: churning");
                let mut seed = bytes;
                loop {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    match (seed >> 60) % 4 {
                        0 | 1 => {
                            if let Ok(block) = runtime.alloc_raw(ask((1 + (seed >> 40) % 24) * MIB))
                            {
                                blocks.push(block);
                            }
                        }
                        2 => {
                            if let Some(block) = blocks.pop() {
                                free(&runtime, block).unwrap();
                            }
                        }
                        _ => runtime.empty_cache().unwrap(),
                    }
                    if blocks.len() > 20 {
                        free(&runtime, blocks.swap_remove(0)).unwrap();
                    }
                }
            }
            other => panic!("{other}"),
        };
        println!("answer: {answer}");
    }
    drop(answering);
}

#[test]
fn kill_9_of_a_tenant_returns_its_bytes() {
    let folder = Folder::new("killed");
    let (runtime, lease) = shared(&folder.0, "here", TOTAL);
    let mut other = Tenant::start(&folder.0, "other");
    assert_eq!(other.tell(&format!("alloc {}", 200 * MIB)), "served");
    let refused = match runtime.alloc_raw(ask(100 * MIB)) {
        Err(Error::OutOfMemory(refused)) => *refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused.shortage.others(), Some(200 * MIB), "{refused}");
    assert_eq!(refused.shortage.missing, 44 * MIB);
    assert!(
        refused
            .tried
            .iter()
            .any(|tried| tried.step == SearchStep::Leases),
        "{refused}"
    );
    other.kill();
    let block = runtime.alloc_raw(ask(250 * MIB)).unwrap();
    assert_eq!((lease.used(), lease.recovered()), (250 * MIB, 1));
    free(&runtime, block).unwrap();
    // The name is free again, too.
    let mut other = Tenant::start(&folder.0, "other");
    assert!(
        other
            .tell(&format!("alloc {}", 100 * MIB))
            .contains("out of memory")
    );
    runtime.close().unwrap();
    assert_eq!(other.tell(&format!("alloc {}", 250 * MIB)), "served");
    other.kill();
}

#[test]
fn a_process_gives_what_it_does_not_use_when_another_one_asks() {
    let folder = Folder::new("asked");
    let (runtime, lease) = shared(&folder.0, "here", TOTAL);
    let mut other = Tenant::start(&folder.0, "other");
    for _ in 0..2 {
        assert_eq!(other.tell(&format!("alloc {}", 100 * MIB)), "served");
    }
    assert_eq!(other.tell("free"), "freed");
    // It keeps what it freed, until it gets a request and answers.
    assert!(runtime.alloc_raw(ask(100 * MIB)).is_err());
    assert_eq!(other.tell("answer"), "answering");
    lease.set_patience(Duration::from_secs(30));
    runtime.alloc_raw(ask(100 * MIB)).unwrap();
    let search_steps = runtime.statistics().unwrap().search_steps;
    assert_eq!(
        (
            search_steps.tried(SearchStep::Leases),
            search_steps.helped(SearchStep::Leases)
        ),
        (2, 1)
    );
    // It keeps the memory in use.
    lease.set_patience(Duration::from_millis(50));
    assert_eq!(other.tell(&format!("alloc {}", 140 * MIB)), "served");
    assert!(runtime.alloc_raw(ask(60 * MIB)).is_err());
    other.kill();
}

#[test]
fn processes_that_are_killed_at_any_moment_leave_nothing() {
    let folder = Folder::new("any");
    let (runtime, lease) = shared(&folder.0, "here", TOTAL);
    let mut seed = 7_u64;
    for round in 0..12_u64 {
        let names = ["one", "two"];
        let mut tenants = names.map(|name| Tenant::start(&folder.0, name));
        for tenant in &mut tenants {
            assert_eq!(tenant.tell(&format!("churn {round}")), "churning");
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let until = Instant::now() + Duration::from_micros(500 + (seed >> 40) % 20_000);
        while Instant::now() < until {
            // The sum of the leases is never above the device.
            if let Ok(block) = runtime.alloc_raw(ask(16 * MIB)) {
                free(&runtime, block).unwrap();
            }
            runtime.empty_cache().unwrap();
        }
        for tenant in tenants {
            tenant.kill();
        }
        assert_eq!(lease.free().unwrap(), TOTAL, "after round {round}");
    }
    // The last one of each round; the other may have been found by it.
    assert!((12..=24).contains(&lease.recovered()));
    assert_eq!(runtime.check(), Ok(()));
}

#[test]
fn leases_together_are_never_more_than_the_device() {
    let folder = Folder::new("sum");
    let (first, first_lease) = shared(&folder.0, "first", TOTAL);
    let (second, second_lease) = shared(&folder.0, "second", 100 * MIB);
    assert!(matches!(
        Lease::new(&folder.0, TOTAL, "first", 1),
        Err(LeaseError::Taken(_))
    ));
    assert!(matches!(
        Lease::new(&folder.0, 2 * TOTAL, "x", 1),
        Err(LeaseError::Total { .. })
    ));
    for name in ["", "a/b", "..", "a b"] {
        assert!(matches!(
            Lease::new(&folder.0, TOTAL, name, 1),
            Err(LeaseError::Name(_))
        ));
    }
    let mut blocks = Vec::new();
    loop {
        let served = [
            first.alloc_raw(ask(6 * MIB)),
            second.alloc_raw(ask(6 * MIB)),
        ];
        assert!(first_lease.used() + second_lease.used() <= TOTAL);
        assert!(second_lease.used() <= 100 * MIB);
        let [mine, other] = served.map(Result::ok);
        if mine.is_none() && other.is_none() {
            break;
        }
        blocks.push((mine, other));
    }
    assert_eq!(
        second_lease.used(),
        96 * MIB,
        "sixteen blocks fit its quota"
    );
    assert_eq!(first_lease.used(), 156 * MIB, "and 26 the rest");
    let said = second.alloc_raw(ask(6 * MIB)).unwrap_err().to_string();
    assert!(
        said.contains("the quota of second is 104857600 bytes"),
        "{said}"
    );
    for (mine, other) in blocks {
        mine.map(|block| free(&first, block)).transpose().unwrap();
        other.map(|block| free(&second, block)).transpose().unwrap();
    }
    first.close().unwrap();
    second.close().unwrap();
    assert_eq!((first_lease.used(), second_lease.used()), (0, 0));
    drop((first, second, second_lease));
    assert_eq!(first_lease.free().unwrap(), TOTAL);
    assert_eq!(
        first_lease.recovered(),
        0,
        "who ends in order leaves nothing to take away"
    );
}

#[test]
fn guaranteed_quotas_fit_on_the_device_together() {
    let folder = Folder::new("guaranteed");
    let take = |name, quota| Lease::guaranteed(&folder.0, TOTAL, name, quota);
    let training = take("train", 160 * MIB).unwrap();
    let refused = take("eval", 100 * MIB).unwrap_err();
    let process = std::process::id();
    assert_eq!(
        refused.to_string(),
        format!(
            "the quota of eval, 100.00 MiB, does not fit: 96.00 MiB are left, because train (process {process}) holds 0 B \
             of 160.00 MiB; use a smaller quota, or end another process"
        )
    );
    // The refused lease left nothing behind, and its name is free.
    let eval = take("eval", 96 * MIB).unwrap();
    let other = &eval.others().unwrap()[0];
    assert_eq!((other.name.as_str(), other.quota), ("train", 160 * MIB));
    drop(training);
    assert!(take("train", 161 * MIB).is_err() && take("train", 160 * MIB).is_ok());
}
