// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of a forecast, as each engine takes it.

use std::fmt::Write as _;

use serde::Serialize;
use thiserror::Error;
use tonnage_gpus::Catalogue;

use crate::forecast::{Forecast, MIB, Role};

/// An engine that keeps an account of GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// A ResourceClaimTemplate of Kubernetes: `capacity.requests.memory`.
    Dra,
    /// HAMi: limits of a container.
    Hami,
    /// KAI Scheduler: annotations of a pod.
    Kai,
    /// Volcano: limits of a container.
    Volcano,
    /// Slurm: options of sbatch and srun.
    Slurm,
    /// The smallest MIG profile that holds it.
    Mig,
}

/// The properties of a cluster that a dialect needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that a shard of Slurm stands for.
    pub shard: u64,
    /// The DeviceClass of the GPUs.
    pub device_class: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shard: 1 << 30,
            device_class: "gpu.nvidia.com".to_owned(),
        }
    }
}

/// A forecast in the words of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Emitted {
    /// The engine.
    pub dialect: Dialect,
    /// The text to paste.
    pub text: String,
    /// The limits of the text, a sentence each.
    pub notes: Vec<String>,
}

/// The reason why a forecast cannot be expressed for an engine.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmitError {
    /// There is nothing to request.
    #[error("the job does not fit: {0}")]
    DoesNotFit(String),
    /// No slice of the GPU is large enough.
    #[error("no MIG profile of {gpu} holds it")]
    NoProfile {
        /// The GPU.
        gpu: String,
    },
    /// A shard of no bytes.
    #[error("a shard stands for at least one byte")]
    NoShard,
}

impl EmitError {
    /// The next step.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::DoesNotFit(_) => {
                "make a forecast for a larger GPU, or find what makes it fit: `tonnage fit`"
            }
            Self::NoProfile { .. } => {
                "request a whole GPU, or share it by memory: --for dra, hami, kai, volcano, slurm"
            }
            Self::NoShard => "--shard 1GiB is usual",
        }
    }
}

/// Says a forecast to an engine.
pub fn emit(
    forecast: &Forecast,
    dialect: Dialect,
    options: &Options,
) -> Result<Emitted, EmitError> {
    let fullest = forecast.fullest();
    let request = forecast
        .request(fullest)
        .ok_or_else(|| EmitError::DoesNotFit(forecast.sentence()))?;
    let (mib, gpus) = (request / MIB, forecast.gpus());
    let mut notes = Vec::new();
    if forecast.roles.len() > 1 && dialect != Dialect::Dra {
        notes.push(format!(
            "every GPU is requested as {} uses it, the fullest; the others use less",
            fullest.name
        ));
    }
    let text = match dialect {
        Dialect::Dra => claim_template(forecast, options),
        Dialect::Hami => {
            notes.push("these limits belong to the container of the job".to_owned());
            format!(
                "resources:\n  limits:\n    nvidia.com/gpu: {gpus}\n    nvidia.com/gpumem: {mib}\n"
            )
        }
        Dialect::Kai => {
            notes.push(
                "these annotations belong to the pod; KAI counts, it does not enforce".to_owned(),
            );
            let several = match gpus {
                1 => String::new(),
                _ => format!("    gpu-fraction-num-devices: \"{gpus}\"\n"),
            };
            format!("metadata:\n  annotations:\n    gpu-memory: \"{mib}\"\n{several}")
        }
        Dialect::Volcano => {
            notes.push(
                "Volcano's device plugin counts in MiB unless it is started with a memory factor"
                    .to_owned(),
            );
            format!(
                "resources:\n  limits:\n    volcano.sh/vgpu-number: {gpus}\n    volcano.sh/vgpu-memory: {mib}\n"
            )
        }
        Dialect::Slurm => {
            let shards = shards(request, options.shard).ok_or(EmitError::NoShard)?;
            notes.push(
                "one task for each GPU; Slurm counts shards, it does not enforce them".to_owned(),
            );
            // Otherwise ranks that fit on one GPU together get the same one.
            let apart = match gpus {
                1 => "",
                _ => " --gres-flags=one-task-per-sharing",
            };
            format!("--ntasks={gpus} --tres-per-task=gres/shard:{shards}{apart}\n")
        }
        Dialect::Mig => {
            let catalogue = Catalogue::embedded();
            let gpu = &forecast.key.gpu;
            let mut slices: Vec<_> = catalogue
                .slices()
                .iter()
                .filter_map(|slice| {
                    Some((
                        slice.id.strip_prefix(gpu.as_str())?.strip_prefix('/')?,
                        slice,
                    ))
                })
                .filter(|(_, slice)| slice.total_memory.value >= request)
                .collect();
            slices.sort_by_key(|(_, slice)| slice.total_memory.value);
            let (profile, _) = slices
                .first()
                .ok_or_else(|| EmitError::NoProfile { gpu: gpu.clone() })?;
            notes.push(format!(
                "`tonnage run --gpu {gpu}/{profile}` tries it: a slice has a context of another size"
            ));
            format!("nvidia.com/mig-{profile}: {gpus}\n")
        }
    };
    Ok(Emitted {
        dialect,
        text,
        notes,
    })
}

/// How many shards hold so many bytes; none if a shard stands for nothing.
pub fn shards(bytes: u64, shard: u64) -> Option<u64> {
    (shard > 0).then(|| bytes.div_ceil(shard))
}

fn claim_template(forecast: &Forecast, options: &Options) -> String {
    let mut text = format!(
        "apiVersion: resource.k8s.io/v1\n\
         kind: ResourceClaimTemplate\n\
         metadata:\n  \
           name: {}\n  \
           annotations:\n    \
             tonnage.dev/forecast: \"{}\"\n\
         spec:\n  \
           spec:\n    \
             devices:\n      \
               requests:\n",
        label(&forecast.family),
        forecast.name
    );
    let one = forecast.roles.len() == 1;
    for (number, role) in forecast.roles.iter().enumerate() {
        let name = if one {
            "gpu".to_owned()
        } else {
            format!("gpu-{number}")
        };
        request(&mut text, forecast, role, &name, options);
    }
    text
}

fn request(text: &mut String, forecast: &Forecast, role: &Role, name: &str, options: &Options) {
    let mib = forecast.request(role).unwrap_or(forecast.gpu_memory) / MIB;
    let _ = write!(
        text,
        "      - name: {name} # {}\n        exactly:\n          deviceClassName: {}\n          count: {}\n          \
         capacity:\n            requests:\n              memory: {mib}Mi\n",
        role.name, options.device_class, role.gpus
    );
}

/// A family as the name of an object: lower case, letters, digits and hyphens.
fn label(family: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = family.chars().take(50).map(plain).collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "job".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::{forecast_of, too_large};

    const GIB: u64 = 1 << 30;

    #[test]
    fn every_dialect_of_one_gpu_and_of_two_roles() {
        let dialects = [
            Dialect::Dra,
            Dialect::Hami,
            Dialect::Kai,
            Dialect::Volcano,
            Dialect::Slurm,
            Dialect::Mig,
        ];
        let mut said = String::new();
        for (name, forecast) in [
            ("one GPU", forecast_of(&[30 * GIB + 5])),
            ("two roles", forecast_of(&[30 * GIB, 40 * GIB, 30 * GIB])),
            ("does not fit", too_large()),
        ] {
            for dialect in dialects {
                let _ = writeln!(said, "=== {name}, {dialect:?}");
                match emit(&forecast, dialect, &Options::default()) {
                    Ok(emitted) => {
                        said.push_str(&emitted.text);
                        for note in emitted.notes {
                            let _ = writeln!(said, "({note})");
                        }
                    }
                    Err(error) => {
                        let _ = writeln!(said, "error: {error}");
                    }
                }
            }
        }
        insta::assert_snapshot!(said);
    }

    #[test]
    fn a_shard_is_never_too_small() {
        assert_eq!(shards(GIB, GIB), Some(1));
        assert_eq!(shards(GIB + 1, GIB), Some(2));
        assert_eq!(shards(1, 0), None);
    }
}
