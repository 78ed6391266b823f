// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that come before a dry run: the options, the machine, the script, its torch.

use std::path::{Path, PathBuf};

use crate::error::RunError;
use crate::job::Job;
use crate::options::Options;
use crate::python::{self, Torch};

/// Whether the job can be run dry here, and with which torch.
pub(crate) fn prepare(job: &Job, options: &Options) -> Result<Torch, RunError> {
    options.validate()?;
    if !options.allow_real_gpu {
        refuse_real_gpu(&SIGNS_OF_A_GPU)?;
    }
    python::check_script(job)?;
    Torch::find(job)
}

/// Files of the NVIDIA driver on a machine with a device.
const SIGNS_OF_A_GPU: [&str; 3] = [
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/proc/driver/nvidia/version",
];

/// The file that shows a real NVIDIA driver on this machine, if there is one.
pub fn real_gpu() -> Option<PathBuf> {
    let mut signs = SIGNS_OF_A_GPU.iter().map(Path::new);
    let found = signs.find(|sign| sign.exists());
    found.map(Path::to_owned)
}

/// A dry run beside a real device would show programs a device that is not the one they find in other ways.
fn refuse_real_gpu(signs: &[&str]) -> Result<(), RunError> {
    match signs.iter().map(Path::new).find(|sign| sign.exists()) {
        Some(sign) => Err(RunError::RealGpu {
            sign: sign.to_owned(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_a_real_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_string_lossy().into_owned();
        let missing = folder.path().join("nvidia0");
        let missing = missing.to_string_lossy().into_owned();
        assert!(refuse_real_gpu(&[&missing]).is_ok());
        let refusal = refuse_real_gpu(&[&missing, &here]).unwrap_err();
        assert!(refusal.to_string().contains("a real NVIDIA device"));
    }
}
