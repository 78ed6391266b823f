// SPDX-License-Identifier: MIT OR Apache-2.0
//! The observed jobs in the format of Prometheus.
//!
//! Labels have no more values than there are jobs, processes and devices at a time: a job has a small number instead of
//! a name, so that series do not grow with the number of past jobs.

use std::time::{SystemTime, UNIX_EPOCH};

use tonnage_forecast::Forecast;
use tonnage_http::metrics::{Exposition, Kind, Number};

use crate::seen::{Device, Job, Process, Seen};

/// A metric of what a process has of a device.
struct OfDevice {
    name: &'static str,
    help: &'static str,
    pick: fn(&Device) -> Option<u64>,
}

const OF_DEVICES: [OfDevice; 10] = [
    OfDevice {
        name: "tonnage_allocated_bytes",
        help: "The memory that PyTorch has allocated to the program.",
        pick: |device| device.allocated,
    },
    OfDevice {
        name: "tonnage_peak_allocated_bytes",
        help: "The most that PyTorch has handed out so far.",
        pick: |device| device.peak_allocated,
    },
    OfDevice {
        name: "tonnage_reserved_bytes",
        help: "The device memory that PyTorch holds.",
        pick: |device| device.reserved,
    },
    OfDevice {
        name: "tonnage_peak_reserved_bytes",
        help: "The most that PyTorch has held so far.",
        pick: |device| device.peak_reserved,
    },
    OfDevice {
        name: "tonnage_inactive_split_bytes",
        help: "The free memory in PyTorch's segments that are partly in use.",
        pick: |device| device.inactive_split,
    },
    OfDevice {
        name: "tonnage_used_bytes",
        help: "The device memory of the process, with its context.",
        pick: |device| device.used,
    },
    OfDevice {
        name: "tonnage_peak_used_bytes",
        help: "The most of it so far; on a GPU the most at any reading, of which there are about two a second.",
        pick: |device| device.peak_used,
    },
    OfDevice {
        name: "tonnage_overhead_bytes",
        help: "The memory of the process outside PyTorch: its context, kernels, libraries and their buffers.",
        pick: |device| Some(device.used?.saturating_sub(device.reserved?)),
    },
    OfDevice {
        name: "tonnage_device_used_bytes",
        help: "The device memory in use by all processes, as the device reported it to this process.",
        pick: |device| device.in_use,
    },
    OfDevice {
        name: "tonnage_device_memory_bytes",
        help: "The memory of the device.",
        pick: |device| device.total,
    },
];

/// Renders the observations of one moment. The bound of a forecast is reported for jobs of its family on its kind of
/// GPU.
pub fn of_jobs(to: &mut Exposition, seen: &Seen, forecast: Option<&Forecast>, now: SystemTime) {
    let mut running = to.metric(
        "tonnage_job_running",
        Kind::Gauge,
        "Whether the job runs; 0 for a while after its end.",
    );
    for job in &seen.jobs {
        with_labels(job, None, None, |labels| {
            running.add(labels, u64::from(job.is_running));
        });
    }
    for metric in OF_DEVICES {
        let mut samples = to.metric(metric.name, Kind::Gauge, metric.help);
        each_device(seen, |job, process, device| {
            if let Some(value) = (metric.pick)(device) {
                with_labels(job, Some(process), Some(device), |labels| {
                    samples.add(labels, value);
                });
            }
        });
    }
    let mut bounds = to.metric(
        "tonnage_job_bound_bytes",
        Kind::Gauge,
        "The upper bound that was forecast for the fullest GPU of the job.",
    );
    each_device(seen, |job, process, device| {
        let of_job = forecast.filter(|one| one.family == job.family && one.key.gpu == device.gpu);
        if let Some(bound) = of_job.and_then(|one| one.fullest().bound) {
            with_labels(job, Some(process), Some(device), |labels| {
                bounds.add(labels, bound);
            });
        }
    });
    let mut ooms = to.metric(
        "tonnage_process_oom_total",
        Kind::Counter,
        "How often PyTorch ran out of memory in the process, whether the program went on or not.",
    );
    each_device(seen, |job, process, device| {
        with_labels(job, Some(process), Some(device), |labels| {
            ooms.add(labels, device.ooms);
        });
    });
    of_recordings(to, seen);
    of_exporter(to, seen, now);
}

fn of_recordings(to: &mut Exposition, seen: &Seen) {
    let mut of_processes = |name: &str, help: &str, pick: fn(&Process) -> Option<Number>| {
        let mut samples = to.metric(name, Kind::Gauge, help);
        for job in &seen.jobs {
            for process in &job.processes {
                if let Some(value) = pick(process) {
                    with_labels(job, Some(process), None, |labels| {
                        samples.add(labels, value);
                    });
                }
            }
        }
    };
    of_processes(
        "tonnage_recording_complete",
        "Whether all that the process did is recorded: nothing was lost, and its end was not cut off.",
        |process| Some(u64::from(process.is_complete).into()),
    );
    of_processes(
        "tonnage_recording_last_event_timestamp_seconds",
        "When the process last recorded something, in seconds since 1970.",
        |process| process.last_event.map(|at| seconds(at).into()),
    );
}

fn of_exporter(to: &mut Exposition, seen: &Seen, now: SystemTime) {
    let mut tell = |name: &str, help: &str, value: Number| {
        to.metric(name, Kind::Gauge, help).add(&[], value);
    };
    tell(
        "tonnage_watch_folder_found",
        "Whether the folder that is watched is there and can be read.",
        u64::from(seen.found).into(),
    );
    tell(
        "tonnage_watch_damaged_files",
        "Files of jobs that make no sense.",
        seen.damaged.into(),
    );
    tell(
        "tonnage_watch_skipped_files",
        "Folders and files of jobs that are not read because there are too many.",
        seen.skipped.into(),
    );
    tell(
        "tonnage_watch_last_read_timestamp_seconds",
        "When the folder was last read, in seconds since 1970.",
        seconds(now).into(),
    );
}

fn seconds(at: SystemTime) -> f64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Thousandths, which is as exact as the times of files are everywhere.
    since.as_millis() as f64 / 1000.0
}

fn each_device(seen: &Seen, mut tell: impl FnMut(&Job, &Process, &Device)) {
    for job in &seen.jobs {
        for process in &job.processes {
            for device in &process.devices {
                tell(job, process, device);
            }
        }
    }
}

fn with_labels(
    job: &Job,
    process: Option<&Process>,
    device: Option<&Device>,
    tell: impl FnOnce(&[(&str, &str)]),
) {
    let run = job.number.to_string();
    let number = process.map(|process| process.number.to_string());
    let rank = process.map(|process| process.rank.map(|rank| rank.to_string()));
    let index = device.map(|device| device.number.to_string());
    let mut labels = vec![
        ("run", run.as_str()),
        ("family", &job.family),
        ("source", job.source.word()),
    ];
    labels.extend(number.as_deref().map(|number| ("process", number)));
    // A label without a value is omitted, and a metric has the same for all.
    labels.extend(
        rank.as_ref()
            .map(|rank| ("rank", rank.as_deref().unwrap_or_default())),
    );
    if let (Some(device), Some(index)) = (device, &index) {
        labels.extend([
            ("device", index.as_str()),
            ("gpu", &device.gpu),
            ("gpu_uuid", &device.uuid),
        ]);
    }
    tell(&labels);
}
