// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the text of `gpus.toml` to [`Gpu`] values.
//!
//! The file groups figures that were read together under one source; here each figure gets its
//! own copy of that source, and a figure given twice or not at all is refused.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{ComputeCapability, Figure, Gpu, Known, Limits, Peak};

/// Why a catalogue could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// Not TOML, or not this file's tables and keys.
    #[error("the catalogue is not readable: {0}")]
    Toml(#[from] toml::de::Error),
    /// A GPU names an architecture that has no table.
    #[error("{gpu} is of compute capability {arch:?}, which has no [arch.{arch:?}] table")]
    UnknownArch {
        /// The GPU's id.
        gpu: String,
        /// The architecture it names.
        arch: String,
    },
    /// An architecture's key is not a compute capability.
    #[error("[arch.{arch:?}] is not a compute capability such as \"9.0\"")]
    BadArch {
        /// The key as written.
        arch: String,
    },
    /// A figure is missing, or given by more than one group.
    #[error("{gpu} gives {figure} {times} times, not once")]
    Figure {
        /// The GPU's id.
        gpu: String,
        /// The figure's key.
        figure: &'static str,
        /// How many groups give it.
        times: usize,
    },
    /// A short name stands for a GPU that is not in the catalogue.
    #[error("the ambiguous name {name:?} lists {gpu:?}, which is not in the catalogue")]
    BadAmbiguous {
        /// The short name.
        name: String,
        /// The id it lists.
        gpu: String,
    },
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    ambiguous: BTreeMap<String, Vec<String>>,
    arch: BTreeMap<String, RawArch>,
    gpu: Vec<RawGpu>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArch {
    name: String,
    known: Known,
    source: String,
    shared_per_block: u64,
    shared_per_block_optin: u64,
    shared_per_sm: u64,
    shared_reserved_per_block: u64,
    registers_per_sm: u32,
    registers_per_block: u32,
    threads_per_sm: u32,
    blocks_per_sm: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGpu {
    id: String,
    #[serde(default)]
    aliases: Vec<String>,
    name: String,
    #[serde(default = "yes")]
    supported: bool,
    reason: Option<String>,
    marketed_gb: u32,
    arch: String,
    total_memory: RawFigure,
    context: RawFigure,
    nccl_channels: Option<RawFigure>,
    device: Vec<RawDevice>,
    #[serde(default)]
    peak: Vec<RawPeak>,
    #[serde(default)]
    slice: Vec<RawSlice>,
}

/// A MIG profile of a GPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlice {
    profile: String,
    sm_count: u32,
    /// How many of the eight parts of the memory it has.
    memory_eighths: u32,
    total_memory: RawFigure,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFigure {
    value: u64,
    known: Known,
    source: String,
}

/// Figures read together; a GPU has as many of these as it has sources.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    known: Known,
    source: String,
    sm_count: Option<u32>,
    l2_bytes: Option<u64>,
    memory_bus_bits: Option<u32>,
    memory_clock_khz: Option<u32>,
    clock_khz: Option<u32>,
}

/// Speeds that were published together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPeak {
    known: Known,
    source: String,
    flops_8: Option<u64>,
    flops_16: Option<u64>,
    flops_tf32: Option<u64>,
    flops_32: Option<u64>,
    flops_64: Option<u64>,
    memory_bytes: Option<u64>,
    host_bytes: Option<u64>,
}

fn yes() -> bool {
    true
}

/// The content of the file, in its order.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) gpus: Vec<Gpu>,
    /// MIG slices of them.
    pub(crate) slices: Vec<Gpu>,
    /// Short names that stand for several GPUs.
    pub(crate) ambiguous: BTreeMap<String, Vec<String>>,
}

/// Reads a whole catalogue.
pub(crate) fn parse(text: &str) -> Result<Parsed, CatalogueError> {
    let file: RawFile = toml::from_str(text)?;
    let mut gpus = Vec::with_capacity(file.gpu.len());
    let mut slices = Vec::new();
    for mut raw in file.gpu {
        let profiles = std::mem::take(&mut raw.slice);
        let whole = gpu(raw, &file.arch)?;
        slices.extend(profiles.iter().map(|profile| slice(&whole, profile)));
        gpus.push(whole);
    }
    for (name, ids) in &file.ambiguous {
        for id in ids {
            if !gpus.iter().any(|gpu: &Gpu| gpu.id == *id) {
                return Err(CatalogueError::BadAmbiguous {
                    name: name.clone(),
                    gpu: id.clone(),
                });
            }
        }
    }
    Ok(Parsed {
        gpus,
        slices,
        ambiguous: file.ambiguous,
    })
}

/// A MIG slice, which is like the GPU it is a part of except for its size.
fn slice(whole: &Gpu, raw: &RawSlice) -> Gpu {
    const MIB: u64 = 1 << 20;
    let profile = &raw.profile;
    let assumed = |value: u64, source: String| Figure {
        value,
        source,
        known: Known::Assumed,
    };
    let part = |value: u64| value * u64::from(raw.memory_eighths) / 8;
    let sms = u64::from(whole.sm_count.value).max(1);
    let context = whole.context.value * u64::from(raw.sm_count) / sms / MIB * MIB;
    let bus = part(u64::from(whole.memory_bus_bits.value));
    // "1g.10gb" is 10 GB on the box.
    let size = profile.split_once('.').map_or("", |(_, size)| size);
    let marketed = size.trim_end_matches("gb").parse();
    let read = raw.total_memory.known == Known::Read;
    Gpu {
        id: format!("{}/{profile}", whole.id),
        aliases: whole
            .aliases
            .iter()
            .map(|alias| format!("{alias}/{profile}"))
            .chain([format!("{} {profile}", whole.id)])
            .collect(),
        name: format!("{} MIG {profile}", whole.name),
        marketed_gb: marketed.unwrap_or(whole.marketed_gb),
        total_memory: figure(&raw.total_memory),
        context: assumed(
            context,
            format!(
                "{} MiB: {} MiB of the whole {} × {} / {sms} SMs",
                context / MIB,
                whole.context.value / MIB,
                whole.id,
                raw.sm_count
            ),
        ),
        sm_count: if read {
            Figure {
                value: raw.sm_count,
                source: tidy(&raw.total_memory.source),
                known: Known::Read,
            }
        } else {
            Figure {
                value: raw.sm_count,
                source: "by the profiles of NVIDIA's MIG User Guide; not read from a driver"
                    .to_owned(),
                known: Known::Assumed,
            }
        },
        l2_bytes: assumed(
            part(whole.l2_bytes.value),
            format!("{}/8 of the whole {}", raw.memory_eighths, whole.id),
        ),
        memory_bus_bits: Figure {
            value: u32::try_from(bus).unwrap_or(whole.memory_bus_bits.value),
            source: format!("{}/8 of the whole {}", raw.memory_eighths, whole.id),
            known: Known::Assumed,
        },
        // NCCL does not connect parts.
        nccl_channels: None,
        // Nothing is published of a part.
        peak: Peak::default(),
        ..whole.clone()
    }
}

fn gpu(raw: RawGpu, archs: &BTreeMap<String, RawArch>) -> Result<Gpu, CatalogueError> {
    let Some(arch) = archs.get(&raw.arch) else {
        return Err(CatalogueError::UnknownArch {
            gpu: raw.id,
            arch: raw.arch,
        });
    };
    let Ok(compute_capability) = raw.arch.parse::<ComputeCapability>() else {
        return Err(CatalogueError::BadArch { arch: raw.arch });
    };
    let groups = &raw.device;
    Ok(Gpu {
        sm_count: only(&raw.id, "sm_count", groups, |group| group.sm_count)?,
        l2_bytes: only(&raw.id, "l2_bytes", groups, |group| group.l2_bytes)?,
        memory_bus_bits: only(&raw.id, "memory_bus_bits", groups, |group| {
            group.memory_bus_bits
        })?,
        memory_clock_khz: only(&raw.id, "memory_clock_khz", groups, |group| {
            group.memory_clock_khz
        })?,
        clock_khz: only(&raw.id, "clock_khz", groups, |group| group.clock_khz)?,
        peak: peak(&raw.id, &raw.peak)?,
        limits: limits(arch),
        architecture: arch.name.clone(),
        compute_capability,
        total_memory: figure(&raw.total_memory),
        context: figure(&raw.context),
        nccl_channels: raw.nccl_channels.as_ref().map(figure),
        id: raw.id,
        aliases: raw.aliases,
        name: raw.name,
        supported: raw.supported,
        reason: raw.reason,
        marketed_gb: raw.marketed_gb,
    })
}

fn figure(raw: &RawFigure) -> Figure<u64> {
    Figure {
        value: raw.value,
        source: tidy(&raw.source),
        known: raw.known,
    }
}

/// The one group that gives a figure: two would leave it unsaid which source is meant.
fn only<T>(
    gpu: &str,
    figure: &'static str,
    groups: &[RawDevice],
    pick: impl Fn(&RawDevice) -> Option<T>,
) -> Result<Figure<T>, CatalogueError> {
    let mut found: Vec<Figure<T>> = groups
        .iter()
        .filter_map(|group| {
            pick(group).map(|value| Figure {
                value,
                source: tidy(&group.source),
                known: group.known,
            })
        })
        .collect();
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        (last, rest) => Err(CatalogueError::Figure {
            gpu: gpu.to_owned(),
            figure,
            times: rest + usize::from(last.is_some()),
        }),
    }
}

/// The speeds of a GPU: each at most once.
fn peak(gpu: &str, groups: &[RawPeak]) -> Result<Peak, CatalogueError> {
    let one = |figure: &'static str, pick: &dyn Fn(&RawPeak) -> Option<u64>| {
        let mut given = groups.iter().filter_map(|group| {
            pick(group).map(|value| Figure {
                value,
                source: tidy(&group.source),
                known: group.known,
            })
        });
        let first = given.next();
        match given.count() {
            0 => Ok(first),
            more => Err(CatalogueError::Figure {
                gpu: gpu.to_owned(),
                figure,
                times: more + 1,
            }),
        }
    };
    Ok(Peak {
        flops_8: one("flops_8", &|group| group.flops_8)?,
        flops_16: one("flops_16", &|group| group.flops_16)?,
        flops_tf32: one("flops_tf32", &|group| group.flops_tf32)?,
        flops_32: one("flops_32", &|group| group.flops_32)?,
        flops_64: one("flops_64", &|group| group.flops_64)?,
        memory_bytes: one("memory_bytes", &|group| group.memory_bytes)?,
        host_bytes: one("host_bytes", &|group| group.host_bytes)?,
    })
}

fn limits(arch: &RawArch) -> Limits {
    let source = tidy(&arch.source);
    let known = arch.known;
    let wide = |value: u64| Figure {
        value,
        source: source.clone(),
        known,
    };
    let narrow = |value: u32| Figure {
        value,
        source: source.clone(),
        known,
    };
    Limits {
        shared_per_block: wide(arch.shared_per_block),
        shared_per_block_optin: wide(arch.shared_per_block_optin),
        shared_per_sm: wide(arch.shared_per_sm),
        shared_reserved_per_block: wide(arch.shared_reserved_per_block),
        registers_per_sm: narrow(arch.registers_per_sm),
        registers_per_block: narrow(arch.registers_per_block),
        threads_per_sm: narrow(arch.threads_per_sm),
        blocks_per_sm: narrow(arch.blocks_per_sm),
    }
}

/// One line of text: the file wraps long sources, a reader of the figure should not see where.
fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
[ambiguous]

[arch."9.0"]
name = "Hopper"
known = "read"
source = "a document"
shared_per_block = 1
shared_per_block_optin = 1
shared_per_sm = 1
shared_reserved_per_block = 1
registers_per_sm = 1
registers_per_block = 1
threads_per_sm = 1
blocks_per_sm = 1

[[gpu]]
id = "one"
name = "One"
marketed_gb = 1
arch = "9.0"
total_memory = { value = 1, known = "read", source = "here" }
context = { value = 1, known = "assumed", source = "there" }

[[gpu.device]]
known = "read"
source = """
two
lines"""
sm_count = 1
l2_bytes = 1
memory_bus_bits = 1
memory_clock_khz = 1
clock_khz = 1
"#;

    #[test]
    fn a_small_file_is_read_and_its_sources_are_one_line() {
        let gpus = parse(SMALL).unwrap().gpus;
        assert_eq!(gpus.len(), 1);
        assert_eq!(gpus[0].sm_count.source, "two lines");
        assert!(gpus[0].supported);
    }

    #[test]
    fn a_figure_given_twice_is_refused() {
        let twice = format!(
            "{SMALL}\n[[gpu.device]]\nknown = \"read\"\nsource = \"again\"\nsm_count = 2\n"
        );
        let error = parse(&twice).unwrap_err();
        assert_eq!(error.to_string(), "one gives sm_count 2 times, not once");
    }

    #[test]
    fn a_figure_left_out_is_refused() {
        let error = parse(&SMALL.replace("l2_bytes = 1\n", "")).unwrap_err();
        assert_eq!(error.to_string(), "one gives l2_bytes 0 times, not once");
    }

    #[test]
    fn a_speed_may_be_left_out_and_is_given_once() {
        assert_eq!(parse(SMALL).unwrap().gpus[0].peak, Peak::default());
        let group = |figure: &str| {
            format!("\n[[gpu.peak]]\nknown = \"read\"\nsource = \"sheet\"\n{figure} = 7\n")
        };
        let both = format!("{SMALL}{}{}", group("flops_16"), group("host_bytes"));
        let peak = parse(&both).unwrap().gpus[0].peak.clone();
        assert_eq!(peak.flops_16.map(|figure| figure.value), Some(7));
        assert_eq!(peak.flops_32, None);
        let twice = format!("{SMALL}{}{}", group("flops_16"), group("flops_16"));
        let error = parse(&twice).unwrap_err();
        assert_eq!(error.to_string(), "one gives flops_16 2 times, not once");
    }

    #[test]
    fn an_architecture_without_a_table_is_refused() {
        let error = parse(&SMALL.replace("arch = \"9.0\"", "arch = \"9.9\"")).unwrap_err();
        assert!(
            matches!(error, CatalogueError::UnknownArch { .. }),
            "{error}"
        );
    }

    #[test]
    fn an_architecture_that_is_no_capability_is_refused() {
        let error = parse(&SMALL.replace("\"9.0\"", "\"hopper\"")).unwrap_err();
        assert!(matches!(error, CatalogueError::BadArch { .. }), "{error}");
    }

    #[test]
    fn a_short_name_for_nothing_is_refused() {
        let error = parse(&SMALL.replace("[ambiguous]", "[ambiguous]\na = [\"two\"]")).unwrap_err();
        assert!(
            matches!(error, CatalogueError::BadAmbiguous { .. }),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let error = parse(&SMALL.replace("sm_count = 1", "sm_cuont = 1")).unwrap_err();
        assert!(matches!(error, CatalogueError::Toml(_)), "{error}");
    }
}
