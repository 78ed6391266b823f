// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer about a claim: reported, written or refused.

use serde_json::Value;
use tonnage_forecast::admit::{Action, Asked, Mode, decide};
use tonnage_forecast::{Fits, Forecast};

use crate::claim::{self, Request, Unreadable};
use crate::devices::Gpus;
use crate::forecasts::Forecasts;
use crate::job::{FORECAST, Job};
use crate::objects::ResourceClaim;

/// The annotation of a claim with the decision.
pub const MESSAGE: &str = "tonnage.dev/message";

/// The message for a claim whose pod waits.
const HELD: &str = "a dry run is finding out what the job takes; the pod waits for it";

/// The administrator's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The permissions of tonnage.
    pub mode: Mode,
    /// The driver of the GPUs: other devices have memory, too.
    pub driver: String,
    /// The device classes of the GPUs.
    pub classes: Vec<String>,
}

/// The knowledge about the job for which a claim is made.
#[derive(Clone, Debug)]
pub enum Known {
    /// It was read from its pod.
    Job(Box<Job>),
    /// Its pod does not define it; the reason in words.
    Not(String),
    /// Its pod could not be read, and may be later; the reason in words.
    NotNow(String),
    /// Its forecast is being made, and its pod waits for it.
    Later,
}

/// The answer to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Why the claim is refused.
    pub refused: Option<String>,
    /// The message for one that is not.
    pub warning: Option<String>,
    /// Changes to the claim, as JSON Patch.
    pub patch: Vec<Value>,
    /// The forecast that was used.
    pub forecast: Option<String>,
    /// Bytes of each GPU that were written.
    pub written: Option<u64>,
}

impl Answer {
    fn refuse(reason: String) -> Self {
        Self {
            refused: Some(reason),
            ..Self::default()
        }
    }

    fn warn(warning: String) -> Self {
        Self {
            warning: Some(warning),
            ..Self::default()
        }
    }
}

/// Answers about a claim.
pub fn answer(
    claim: &ResourceClaim,
    known: &Known,
    forecasts: &[&Forecasts],
    gpus: &Gpus,
    settings: &Settings,
) -> Answer {
    let mode = settings.mode;
    let requests = match claim::requests(&claim.spec, &settings.driver, &settings.classes) {
        Ok(requests) => requests,
        Err(Unreadable(reason)) if mode == Mode::Advise => return Answer::warn(reason),
        Err(Unreadable(reason)) => return Answer::refuse(reason),
    };
    if requests.is_empty() {
        return Answer::default();
    }
    let Some(sizes) = gpus.sizes else {
        let reason = format!("no GPU of {} has reported its memory yet", settings.driver);
        return match mode {
            Mode::Enforce => Answer::refuse(format!("{reason}, so no number can be given")),
            Mode::Advise | Mode::Fill => Answer::warn(reason),
        };
    };
    // A number that a person has written needs no forecast, and is compared with one all the same.
    let is_asked = |request: &Request| request.asked != Asked::Nothing;
    let (forecast, why_not) = match known {
        Known::Later if !requests.iter().all(is_asked) => {
            return Answer::refuse(HELD.to_owned());
        }
        Known::Later => (None, "its forecast is being made".to_owned()),
        Known::Job(job) => {
            let found: Vec<&Forecast> = forecasts.iter().flat_map(|all| all.find(job)).collect();
            match choose(&found, gpus, sizes.largest) {
                Ok(forecast) => (Some(forecast), String::new()),
                Err(reason) if !reason.is_empty() => (None, reason),
                Err(_) => {
                    let tried = forecasts.iter().find_map(|all| all.why_not(job));
                    (None, tried.unwrap_or_default().to_owned())
                }
            }
        }
        // A claim is written once: what is not known now would be a whole GPU for as long as the pod lives.
        Known::NotNow(reason) if mode == Mode::Enforce => return Answer::refuse(reason.clone()),
        Known::Not(reason) | Known::NotNow(reason) => (None, reason.clone()),
    };
    let mut messages: Vec<String> = Vec::new();
    let mut answer = Answer {
        forecast: forecast.map(|forecast| forecast.name.clone()),
        ..Answer::default()
    };
    for request in &requests {
        let decision = decide(forecast, request.asked, sizes, mode);
        if decision.action == Action::None {
            continue;
        }
        let message = match why_not.as_str() {
            "" => decision.message,
            reason => format!("{} ({reason})", decision.message),
        };
        match decision.action {
            Action::Refuse => return Answer::refuse(message),
            // Without a number the scheduler finds a GPU of any size, and the driver gives all of it.
            Action::Whole if !gpus.whole_by_default => {
                return Answer::refuse(format!(
                    "{message}; but {} gives a claim without a number only a part: write a number or the class of \
                     whole GPUs",
                    settings.driver
                ));
            }
            Action::Fill => {
                answer
                    .patch
                    .extend(decision.bytes.map(|bytes| request.write(bytes)));
                answer.written = answer.written.max(decision.bytes);
            }
            Action::Advise | Action::Whole | Action::None => {}
        }
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    if messages.is_empty() {
        return answer;
    }
    if let Some(forecast) = forecast {
        let others: Vec<&str> = gpus
            .products
            .iter()
            .filter(|id| **id != forecast.key.gpu)
            .map(String::as_str)
            .collect();
        if !others.is_empty() {
            messages.push(format!(
                "the forecast is for {}; here are also {}",
                forecast.key.gpu,
                others.join(", ")
            ));
        }
    }
    if let (Some(_), Known::Job(job)) = (forecast, known) {
        messages.extend(job.unknown.map(str::to_owned));
    }
    let message = messages.join("; ");
    let mut annotations = vec![(MESSAGE, message.as_str())];
    annotations.extend(answer.forecast.as_deref().map(|name| (FORECAST, name)));
    answer.patch.extend(claim::annotate(claim, &annotations));
    answer.warning = Some(message);
    answer
}

/// The forecast that holds for whichever GPU the scheduler takes; or, in words, why there is none.
fn choose<'a>(found: &[&'a Forecast], gpus: &Gpus, largest: u64) -> Result<&'a Forecast, String> {
    if found.is_empty() {
        return Err(String::new());
    }
    let here: Vec<&Forecast> = found
        .iter()
        .copied()
        .filter(|one| gpus.products.contains(&one.key.gpu))
        .collect();
    // The one with the largest request: the scheduler may take any GPU that has this much.
    let fitting = here.iter().copied().filter(|one| one.fits != Fits::No);
    if let Some(most) = fitting.max_by_key(|one| one.request(one.fullest())) {
        return Ok(most);
    }
    let covers_all = !here.is_empty()
        && gpus
            .products
            .iter()
            .all(|id| here.iter().any(|one| one.key.gpu == *id));
    let least = |one: &&Forecast| one.fullest().peak;
    match here.iter().copied().min_by_key(|one| least(one)) {
        // No GPU here holds what it takes at least.
        Some(one) if covers_all || least(&one) > largest => Ok(one),
        _ => {
            let names: Vec<&str> = found.iter().map(|one| one.key.gpu.as_str()).collect();
            let here: Vec<&str> = gpus.products.iter().map(String::as_str).collect();
            Err(format!(
                "there is one for {}, GPUs here are {}",
                names.join(", "),
                here.join(", ")
            ))
        }
    }
}
