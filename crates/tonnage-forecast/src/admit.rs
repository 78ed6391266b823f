// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decision about a job that is submitted to a scheduler: the same rules for all of them.
//!
//! A number that is too low is worse than none, because it is not enforced. The mildest mode therefore only reports the
//! number; a person's own number is never lowered; and an unknown job requests whole GPUs where a number is required.

use serde::{Deserialize, Serialize};
use tonnage_text::bytes;

use crate::forecast::{Fits, Forecast};

/// The administrator's choice of what tonnage may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Say what is known; change nothing.
    #[default]
    Advise,
    /// Write the number where there is none; refuse what no GPU can hold.
    Fill,
    /// Also refuse numbers below the forecast, and give whole GPUs to jobs without one.
    Enforce,
}

/// The request of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing about GPU memory.
    Nothing,
    /// So many bytes of each GPU.
    Bytes(u64),
    /// Whole GPUs.
    WholeGpus,
}

/// The action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// No action and no message.
    None,
    /// Leave the job unchanged and show the message.
    Advise,
    /// Write the number into the job.
    Fill,
    /// Give the job whole GPUs, whatever their sizes.
    Whole,
    /// Refuse the job, with the message as the reason.
    Refuse,
}

/// The memory of the GPUs that a job may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the smallest.
    pub smallest: u64,
    /// Bytes of the largest.
    pub largest: u64,
}

impl Sizes {
    /// GPUs of one size.
    pub const fn same(bytes: u64) -> Self {
        Self {
            smallest: bytes,
            largest: bytes,
        }
    }
}

/// The decision about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Decision {
    /// The action to take.
    pub action: Action,
    /// Bytes for each GPU, where they are to be written.
    pub bytes: Option<u64>,
    /// The message for the person who submitted the job.
    pub message: String,
}

impl Decision {
    fn new(action: Action, message: String) -> Self {
        Self {
            action,
            bytes: None,
            message,
        }
    }
}

/// Decides about a job with this forecast, if there is one, on GPUs of these sizes.
pub fn decide(forecast: Option<&Forecast>, asked: Asked, sizes: Sizes, mode: Mode) -> Decision {
    let largest = sizes.largest;
    // A job that can never run is refused in every mode that may change something.
    let stop = match mode {
        Mode::Advise => Action::Advise,
        Mode::Fill | Mode::Enforce => Action::Refuse,
    };
    if let Asked::Bytes(bytes_asked) = asked
        && bytes_asked > largest
    {
        let (wanted, most) = (bytes(bytes_asked), bytes(largest));
        return Decision::new(
            stop,
            format!(
                "the job requests {wanted} of one GPU, the largest has {most}: it would never start"
            ),
        );
    }
    let Some(forecast) = forecast else {
        return unknown(asked, sizes, mode);
    };
    let sentence = forecast.sentence();
    let Some(request) = forecast.request(forecast.fullest()) else {
        return Decision::new(stop, format!("the job does not fit: {sentence}"));
    };
    if request > largest {
        let most = bytes(largest);
        return Decision::new(
            stop,
            format!("the job does not fit: {sentence}, the largest GPU here has {most}"),
        );
    }
    let wanted = bytes(request);
    match asked {
        Asked::Nothing if mode == Mode::Advise => Decision::new(
            Action::Advise,
            format!("the job needs {wanted} of each GPU: {sentence}"),
        ),
        Asked::Nothing => Decision {
            action: Action::Fill,
            bytes: Some(request),
            message: format!("requests {wanted} of each GPU: {sentence}"),
        },
        Asked::Bytes(less) if less < request => {
            let least = bytes(less);
            let action = match mode {
                Mode::Enforce => Action::Refuse,
                Mode::Advise | Mode::Fill => Action::Advise,
            };
            Decision::new(
                action,
                format!("the job requests {least} of each GPU and may take {wanted}: {sentence}"),
            )
        }
        Asked::Bytes(more) if more > request => Decision::new(
            Action::Advise,
            format!(
                "the job requests {} of each GPU, {wanted} suffice: {sentence}",
                bytes(more)
            ),
        ),
        Asked::Bytes(_) => Decision::new(Action::None, String::new()),
        Asked::WholeGpus if forecast.fits == Fits::Yes => Decision::new(
            Action::Advise,
            format!("the job takes whole GPUs, {wanted} of each suffice: {sentence}"),
        ),
        Asked::WholeGpus => Decision::new(Action::Advise, sentence),
    }
}

/// A job of which nothing is known.
fn unknown(asked: Asked, sizes: Sizes, mode: Mode) -> Decision {
    match (asked, mode) {
        // A number would be that of the largest GPU, which the smaller ones do not have.
        (Asked::Nothing, Mode::Enforce) if sizes.smallest < sizes.largest => Decision::new(
            Action::Whole,
            "no forecast of this job: it takes whole GPUs, of whichever size".to_owned(),
        ),
        (Asked::Nothing, Mode::Enforce) => Decision {
            action: Action::Fill,
            bytes: Some(sizes.largest),
            message: "no forecast of this job: it requests whole GPUs".to_owned(),
        },
        (Asked::Nothing, Mode::Advise | Mode::Fill) => {
            Decision::new(Action::Advise, "no forecast of this job".to_owned())
        }
        (Asked::Bytes(_) | Asked::WholeGpus, _) => Decision::new(Action::None, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::tests::{forecast_of, too_large};

    const GIB: u64 = 1 << 30;

    #[test]
    fn every_mode_for_every_request() {
        use Action::{Advise as Tell, Fill as Write, None as Nothing, Refuse};
        use Mode::{Advise, Enforce, Fill};
        let forecast = forecast_of(&[30 * GIB]);
        let action = |asked, mode| {
            let decision = decide(Some(&forecast), asked, Sizes::same(80 * GIB), mode);
            (decision.action, decision.bytes.map(|bytes| bytes / GIB))
        };
        for (asked, expected) in [
            (
                Asked::Nothing,
                [(Tell, None), (Write, Some(31)), (Write, Some(31))],
            ),
            (
                Asked::Bytes(10 * GIB),
                [(Tell, None), (Tell, None), (Refuse, None)],
            ),
            (
                Asked::Bytes(31 * GIB),
                [(Nothing, None), (Nothing, None), (Nothing, None)],
            ),
            (
                Asked::Bytes(60 * GIB),
                [(Tell, None), (Tell, None), (Tell, None)],
            ),
            (
                Asked::Bytes(96 * GIB),
                [(Tell, None), (Refuse, None), (Refuse, None)],
            ),
            (Asked::WholeGpus, [(Tell, None), (Tell, None), (Tell, None)]),
        ] {
            let said = [Advise, Fill, Enforce].map(|mode| action(asked, mode));
            assert_eq!(said, expected, "{asked:?}");
        }
    }

    #[test]
    fn what_no_gpu_can_hold_is_refused_with_the_reason() {
        for mode in [Mode::Fill, Mode::Enforce] {
            let decision = decide(
                Some(&too_large()),
                Asked::Nothing,
                Sizes::same(80 * GIB),
                mode,
            );
            assert_eq!(decision.action, Action::Refuse);
            assert!(
                decision.message.contains("97.00 GiB"),
                "{}",
                decision.message
            );
            // A job for larger GPUs than this cluster has.
            let small = decide(
                Some(&forecast_of(&[30 * GIB])),
                Asked::Nothing,
                Sizes::same(24 * GIB),
                mode,
            );
            assert_eq!(small.action, Action::Refuse);
        }
    }

    #[test]
    fn a_job_without_a_forecast_gets_whole_gpus_where_a_number_is_demanded() {
        let sizes = Sizes::same(80 * GIB);
        let decision = decide(None, Asked::Nothing, sizes, Mode::Enforce);
        assert_eq!(
            (decision.action, decision.bytes),
            (Action::Fill, Some(80 * GIB))
        );
        assert_eq!(decide(None, Asked::Nothing, sizes, Mode::Fill).bytes, None);
        assert_eq!(
            decide(None, Asked::Bytes(GIB), sizes, Mode::Enforce).action,
            Action::None
        );
        // No number holds for GPUs of two sizes.
        let mixed = Sizes {
            smallest: 44 * GIB,
            largest: 140 * GIB,
        };
        let decision = decide(None, Asked::Nothing, mixed, Mode::Enforce);
        assert_eq!((decision.action, decision.bytes), (Action::Whole, None));
    }
}
