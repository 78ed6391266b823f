// SPDX-License-Identifier: MIT OR Apache-2.0
//! A forecast as the last words of a container.
//!
//! Kubernetes keeps up to 4 KiB that a container has written before it ended, in the status of its pod. A dry run in a
//! cluster reports its forecast that way: it needs no network, no volume and no right to write anything. The inputs of
//! the forecast are left out, because the controller that started the dry run knows them.

use serde::{Deserialize, Serialize};

use crate::forecast::{Evidence, Fits, Forecast, ForecastError, Role, SCHEMA_VERSION};
use crate::key::JobKey;

/// Bytes that Kubernetes keeps.
pub const MAX_MESSAGE: usize = 4096;
/// Characters of a reason why there is no forecast.
const MAX_REASON: usize = 1000;

/// The message of a dry run at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    schema_version: u32,
    /// The memory of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    forecast: Option<Figures>,
    /// Why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_forecast: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    torch: String,
    gpu: String,
    gpu_memory: u64,
    fits: Fits,
    roles: Vec<Role>,
    evidence: Vec<Evidence>,
    larger_gpus: Vec<String>,
    unknown: Vec<String>,
}

impl Message {
    /// That of a dry run which has found out what a job takes.
    pub fn from_forecast(forecast: &Forecast) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            forecast: Some(Figures {
                torch: forecast.key.torch.clone(),
                gpu: forecast.key.gpu.clone(),
                gpu_memory: forecast.gpu_memory,
                fits: forecast.fits,
                roles: forecast.roles.clone(),
                evidence: forecast.evidence.clone(),
                larger_gpus: forecast.larger_gpus.clone(),
                unknown: forecast.unknown.clone(),
            }),
            no_forecast: None,
        }
    }

    /// That of a dry run which has not.
    pub fn of_failure(reason: &str) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            forecast: None,
            no_forecast: Some(reason.chars().take(MAX_REASON).collect()),
        }
    }

    /// As JSON of at most [`MAX_MESSAGE`] bytes. Excess parts are left out, with a note: first the unknowns, then GPUs
    /// that use less than the fullest, which are then assumed to be as full.
    pub fn text(&self) -> String {
        let mut message = self.clone();
        let mut left_out = 0;
        loop {
            let text = serde_json::to_string(&message).unwrap_or_default();
            if text.len() <= MAX_MESSAGE {
                return text;
            }
            let Some(figures) = &mut message.forecast else {
                return Self::of_failure("its reason is unknown").text();
            };
            let spoken = figures.unknown.len() - usize::from(left_out > 0);
            if spoken > 0 {
                figures.unknown.truncate(spoken - 1);
                left_out += 1;
                figures
                    .unknown
                    .push(format!("and {left_out} more: `tonnage run` prints all"));
            } else if figures.roles.len() > 1 {
                let gpus = figures
                    .roles
                    .iter()
                    .fold(0_u32, |all, role| all.saturating_add(role.gpus));
                figures.roles.truncate(1);
                figures.roles[0].gpus = gpus;
                figures.roles[0].name = format!("each of {gpus} GPUs, by the fullest");
            } else {
                return Self::of_failure("its forecast is too long for Kubernetes").text();
            }
        }
    }

    /// Reads an untrusted message: the forecast of the job of this key on this GPU, or the reason why there is none.
    pub fn forecast(text: &str, mut key: JobKey) -> Result<Forecast, ForecastError> {
        let invalid = |reason: String| ForecastError::Invalid(reason);
        if text.is_empty() {
            return Err(invalid("the dry run reported nothing".to_owned()));
        }
        let message: Self =
            serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let figures = match (message.forecast, message.no_forecast) {
            (Some(figures), None) => figures,
            (None, Some(reason)) => return Err(ForecastError::NoAnswer(plain(&reason))),
            _ => return Err(invalid("it contains both or neither".to_owned())),
        };
        if figures.gpu != key.gpu {
            let (here, there) = (&key.gpu, &figures.gpu);
            return Err(invalid(format!("it is for {there}, not for {here}")));
        }
        key.torch = figures.torch;
        let forecast = Forecast {
            schema_version: message.schema_version,
            name: key.name(),
            family: key.family(),
            key,
            gpu_memory: figures.gpu_memory,
            fits: figures.fits,
            roles: figures.roles,
            evidence: figures.evidence,
            larger_gpus: figures.larger_gpus,
            unknown: figures.unknown,
        };
        forecast.check()?;
        Ok(forecast)
    }
}

/// One line, for a status.
fn plain(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_REASON)
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::forecast_of;

    const GIB: u64 = 1 << 30;

    /// The key as the caller of the dry run has it.
    fn key(of: &Forecast) -> JobKey {
        JobKey {
            torch: String::new(),
            ..of.key.clone()
        }
    }

    #[test]
    fn a_forecast_is_told_and_understood() {
        let forecast = forecast_of(&[30 * GIB, 20 * GIB]);
        let text = Message::from_forecast(&forecast).text();
        assert_eq!(Message::forecast(&text, key(&forecast)), Ok(forecast));
    }

    #[test]
    fn what_is_too_long_is_left_out_and_said() {
        let mut forecast = forecast_of(&[30 * GIB, 20 * GIB, 10 * GIB]);
        forecast.unknown = (0..100)
            .map(|at| format!("{at} {}", "ä".repeat(40)))
            .collect();
        let text = Message::from_forecast(&forecast).text();
        assert!(text.len() <= MAX_MESSAGE);
        let told = Message::forecast(&text, key(&forecast)).expect("a forecast");
        assert_eq!(told.roles, forecast.roles);
        let (last, rest) = told.unknown.split_last().expect("sentences");
        assert_eq!(rest, &forecast.unknown[..rest.len()]);
        let more = 100 - rest.len();
        assert!(last.starts_with(&format!("and {more} more")), "{last}");
        // Many kinds of GPUs become one, the fullest.
        let mut forecast = forecast_of(&(1..200).map(|at| at * GIB).collect::<Vec<_>>());
        forecast.unknown.clear();
        let text = Message::from_forecast(&forecast).text();
        assert!(text.len() <= MAX_MESSAGE);
        let told = Message::forecast(&text, key(&forecast)).expect("a forecast");
        assert_eq!(told.gpus(), forecast.gpus());
        assert_eq!(told.fullest().bound, forecast.fullest().bound);
    }

    #[test]
    fn what_somebody_else_has_written_is_no_forecast() {
        let forecast = forecast_of(&[30 * GIB]);
        let read = |text: &str| Message::forecast(text, key(&forecast)).expect_err("none");
        assert!(read("").to_string().contains("reported nothing"));
        assert!(read("Killed").to_string().contains("not a forecast"));
        let failed = read(&Message::of_failure("it failed with\nImportError").text());
        assert_eq!(
            failed,
            ForecastError::NoAnswer("it failed with ImportError".to_owned())
        );
        // A message of another GPU, of another version, and one that contradicts itself.
        let text = Message::from_forecast(&forecast).text();
        let other = JobKey {
            gpu: "t4".to_owned(),
            ..key(&forecast)
        };
        assert!(Message::forecast(&text, other).is_err());
        read(&text.replacen("\"schema_version\":1", "\"schema_version\":7", 1));
        read(&text.replacen("\"uncounted\":", "\"uncounted\":9999999999999999", 1));
        read(&text.replacen("\"fits\":", "\"fats\":", 1));
    }
}
