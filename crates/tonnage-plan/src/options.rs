// SPDX-License-Identifier: MIT OR Apache-2.0
//! How to plan: how long, on how many cores, with which heuristics, and who receives the progress.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where a search stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The space that is being planned.
    pub space: usize,
    /// The lowest peak so far.
    pub peak: u64,
    /// Its lower bound.
    pub lower_bound: u64,
    /// How many attempts have been made.
    pub attempts: u64,
}

/// Heuristics, each of which can be turned off: none may change whether an answer is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch, and all combinations are meant"
)]
pub struct Switches {
    /// Plan parts that share no moment on their own, and lay aside what lives all the time.
    pub decompose: bool,
    /// Fill the skyline from below, by several rules.
    pub dive: bool,
    /// In a dive, prefer what covers the moment with the least slack.
    pub tightest: bool,
    /// Dive again with the items where a dive failed moved up in the order.
    pub boost_failed: bool,
    /// Plan windows of time anew where a plan is too high.
    pub windows: bool,
    /// Search completely, with restarts.
    pub exact: bool,
    /// Remember which partial plans failed, and do not try them again.
    pub failure_cache: bool,
    /// Bound each moment by the order in which the remaining items can be placed there.
    pub order_bound: bool,
    /// Branch first where the search failed before.
    pub failure_weights: bool,
    /// Vary the restarts at random.
    pub noise: bool,
    /// Leave out, in some runs of the search, most choices that waste bytes. Such runs prove nothing.
    pub limited_branching: bool,
}

impl Switches {
    /// All of them on.
    pub const ALL: Self = Self::from_bits(u16::MAX);

    /// How many there are.
    pub const COUNT: u32 = 11;

    /// One switch for each bit; which is which may change.
    pub const fn from_bits(bits: u16) -> Self {
        Self {
            decompose: bits & 1 != 0,
            dive: bits & 2 != 0,
            tightest: bits & 4 != 0,
            boost_failed: bits & 8 != 0,
            exact: bits & 16 != 0,
            failure_cache: bits & 32 != 0,
            order_bound: bits & 64 != 0,
            failure_weights: bits & 128 != 0,
            noise: bits & 256 != 0,
            windows: bits & 512 != 0,
            limited_branching: bits & 1024 != 0,
        }
    }
}

/// Threads that search at most: each has a separate failure cache.
const MAX_THREADS: usize = 256;

/// How to plan.
///
/// ```
/// use std::time::Duration;
/// use tonnage_plan::{Buffer, Options, Problem, plan};
///
/// let mut problem = Problem::new();
/// problem.add(Buffer::new(8, 0..3));
/// let options = Options {
///     deadline: Some(Duration::from_secs(2)),
///     threads: 1,
///     progress: Some(&|progress| println!("peak {}", progress.peak)),
///     ..Options::default()
/// };
/// assert_eq!(plan(&problem, &options)?.peak(), 8);
/// # Ok::<(), tonnage_plan::Invalid>(())
/// ```
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The same seed gives the same plan, as long as no deadline passes and the number of threads is the same.
    pub seed: u64,
    /// How many threads search; 0 means one for each core. More than 256 are not used.
    pub threads: usize,
    /// When to stop with the best that was found.
    pub deadline: Option<Duration>,
    /// How many attempts a part may take before the best is accepted: the limit where no deadline is wanted.
    pub attempts: u64,
    /// Set from elsewhere to stop with the best that was found.
    pub cancel: Option<&'a AtomicBool>,
    /// Called when the best plan or the bound has become better.
    pub progress: Option<&'a (dyn Fn(&Progress) + Sync)>,
    /// Heuristics.
    pub switches: Switches,
}

impl Options<'_> {
    /// How many threads that is on this machine.
    pub(crate) fn thread_count(&self) -> usize {
        let threads = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        threads.min(MAX_THREADS)
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            seed: 1,
            threads: 0,
            deadline: None,
            attempts: 400,
            cancel: None,
            progress: None,
            switches: Switches::ALL,
        }
    }
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Options")
            .field("seed", &self.seed)
            .field("threads", &self.threads)
            .field("deadline", &self.deadline)
            .field("attempts", &self.attempts)
            .field("switches", &self.switches)
            .finish_non_exhaustive()
    }
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock<'a> {
    end: Option<Instant>,
    cancel: Option<&'a AtomicBool>,
}

impl<'a> Clock<'a> {
    pub(crate) fn new(options: &Options<'a>) -> Self {
        Self {
            // A deadline beyond the range of the clock counts as missing.
            end: options
                .deadline
                .and_then(|deadline| Instant::now().checked_add(deadline)),
            cancel: options.cancel,
        }
    }

    /// A clock without a deadline.
    pub(crate) const fn never() -> Clock<'static> {
        Clock {
            end: None,
            cancel: None,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        let cancelled = self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed));
        cancelled || self.end.is_some_and(|end| Instant::now() >= end)
    }
}
