// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue as a whole: the embedded file, and finding a GPU in it by name.

use std::collections::BTreeMap;
use std::fmt;

use crate::Gpu;
use crate::parse::{self, CatalogueError};
use crate::suggest::{distance, normalise};

/// The data, part of the binary so that no file has to be found at run time.
const EMBEDDED: &str = include_str!("../gpus.toml");

/// How many suggestions an error carries at most.
const SUGGESTIONS: usize = 3;

/// Characters of an unknown name that an error repeats.
const REPEATED: usize = 60;

/// The GPUs tonnage knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    gpus: Vec<Gpu>,
    /// MIG slices, which are found by name and not listed among the GPUs.
    slices: Vec<Gpu>,
    /// Short names that stand for several GPUs, normalised, with the ids in the file's order.
    ambiguous: BTreeMap<String, Vec<String>>,
}

impl Catalogue {
    /// The catalogue that comes with this crate.
    ///
    /// The file is part of the crate and a test reads it, so there is no error to return.
    pub fn embedded() -> Self {
        Self::parse(EMBEDDED).expect("the embedded catalogue is read by this crate's tests")
    }

    /// A catalogue from the text of a file like `gpus.toml`.
    pub fn parse(text: &str) -> Result<Self, CatalogueError> {
        let parsed = parse::parse(text)?;
        let ambiguous = parsed.ambiguous;
        let ambiguous = ambiguous
            .into_iter()
            .map(|(name, ids)| (normalise(&name), ids))
            .collect();
        Ok(Self {
            gpus: parsed.gpus,
            slices: parsed.slices,
            ambiguous,
        })
    }

    /// Every GPU, in the file's order.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// MIG slices of GPUs, in the file's order.
    ///
    /// ```
    /// let catalogue = tonnage_gpus::Catalogue::embedded();
    /// let slice = catalogue.find("h100/1g.10gb")?;
    /// assert_eq!(slice.name, "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    /// assert_eq!(slice.sm_count.value, 16);
    /// assert!(catalogue.slices().contains(slice));
    /// # Ok::<(), tonnage_gpus::UnknownGpu>(())
    /// ```
    pub fn slices(&self) -> &[Gpu] {
        &self.slices
    }

    /// The GPU or MIG slice of this id, alias or driver's name, ignoring case, `-`, `_` and spaces.
    ///
    /// A GPU that is in the catalogue but not supported is found too; look at [`Gpu::supported`]. A short name that
    /// stands for GPUs of different capacity (`a100`) is an error that lists them, because either answer would be wrong
    /// for half of the users.
    pub fn find(&self, name: &str) -> Result<&Gpu, UnknownGpu> {
        let wanted = normalise(name);
        // An empty key must not match an empty alias, should a file ever hold one.
        if !wanted.is_empty()
            && let Some(gpu) = self
                .gpus
                .iter()
                .chain(&self.slices)
                .find(|gpu| keys(gpu).any(|key| normalise(key) == wanted))
        {
            return Ok(gpu);
        }
        if let Some(ids) = self.ambiguous.get(&wanted) {
            return Err(UnknownGpu {
                asked: name.to_owned(),
                ambiguous: true,
                candidates: ids.clone(),
            });
        }
        Err(UnknownGpu {
            asked: name.to_owned(),
            ambiguous: false,
            candidates: self.closest(&wanted),
        })
    }

    /// The GPU that a driver calls by this name, and of these the one whose memory is nearest to what was measured.
    pub fn measured(&self, name: &str, capacity: u64) -> Option<&Gpu> {
        let same = self.gpus.iter().filter(|gpu| gpu.name == name);
        same.min_by_key(|gpu| gpu.total_memory.value.abs_diff(capacity))
    }

    /// The supported GPUs that hold a job which needs `need` bytes, `context` of them for its context, the smallest
    /// first. On another GPU the context takes what it takes there.
    pub fn that_hold(&self, need: u64, context: u64) -> Vec<&Gpu> {
        let holds = |gpu: &&Gpu| {
            let need = need.saturating_sub(context);
            gpu.supported && need.saturating_add(gpu.context.value) <= gpu.total_memory.value
        };
        let mut holding: Vec<&Gpu> = self.gpus.iter().filter(holds).collect();
        holding.sort_by_key(|gpu| (gpu.total_memory.value, &gpu.id));
        holding
    }

    /// The ids most like a normalised name, closest first; none when nothing is close.
    fn closest(&self, wanted: &str) -> Vec<String> {
        let length = wanted.chars().count();
        if length < 2 {
            return Vec::new();
        }
        // After a GPU's name and a slash, only one of its slices can be meant.
        if let Some((whole, _)) = wanted.split_once('/') {
            let whole = |slice: &&Gpu| {
                let first = |key: &str| key.split_once('/').map(|(whole, _)| normalise(whole));
                keys(slice).any(|key| first(key).as_deref() == Some(whole))
            };
            let slices = self.slices.iter().filter(whole);
            return slices.map(|slice| slice.id.clone()).collect();
        }
        // A third of the name may be wrong: "h10" finds h100, "banana" finds nothing.
        let tolerance = (length / 3).max(1);
        let mut scored: Vec<(usize, &str)> = self
            .gpus
            .iter()
            .filter_map(|gpu| {
                keys(gpu)
                    .filter_map(|key| score(wanted, &normalise(key), tolerance))
                    .min()
                    .map(|score| (score, gpu.id.as_str()))
            })
            .collect();
        // Stable, so that equally close GPUs stay in the file's order.
        scored.sort_by_key(|&(score, _)| score);
        // At least the family of "rtx9999" is right.
        let family: String = wanted.chars().take_while(|it| it.is_alphabetic()).collect();
        if scored.is_empty() && family.len() > 2 && family != wanted {
            let of_family = self.gpus.iter().filter(|gpu| gpu.id.starts_with(&family));
            scored.extend(of_family.map(|gpu| (distance(wanted, &gpu.id), gpu.id.as_str())));
            scored.sort_by_key(|&(apart, id)| (apart, std::cmp::Reverse(id)));
        }
        scored
            .into_iter()
            .take(SUGGESTIONS)
            .map(|(_, id)| id.to_owned())
            .collect()
    }
}

/// All the names a GPU answers to.
fn keys(gpu: &Gpu) -> impl Iterator<Item = &str> {
    [gpu.id.as_str(), gpu.name.as_str()]
        .into_iter()
        .chain(gpu.aliases.iter().map(String::as_str))
}

/// How unlike a key is, or nothing when it is too unlike to suggest.
fn score(wanted: &str, key: &str, tolerance: usize) -> Option<usize> {
    let apart = distance(wanted, key);
    if apart <= tolerance {
        return Some(apart);
    }
    // A name left unfinished ("rtx40") or padded ("h100x8") is not a typing mistake, but its meaning is plain; it ranks
    // after every near miss.
    let part = key.starts_with(wanted) || (key.len() > 2 && wanted.starts_with(key));
    part.then_some(tolerance + 1)
}

/// No single GPU of the catalogue has the given name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct UnknownGpu {
    /// The name as it was given.
    pub asked: String,
    /// Whether the name stands for several GPUs, rather than for none.
    pub ambiguous: bool,
    /// Ids to offer instead: all that an ambiguous name stands for, or the closest few.
    pub candidates: Vec<String>,
}

impl fmt::Display for UnknownGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut asked: String = self.asked.chars().take(REPEATED).collect();
        if asked.len() < self.asked.len() {
            asked.push('…');
        }
        let offered = or(&self.candidates);
        if self.ambiguous {
            write!(f, "{asked:?} stands for more than one GPU: use {offered}")
        } else if self.candidates.is_empty() {
            write!(f, "no GPU in the catalogue is called {asked:?}")
        } else {
            write!(
                f,
                "no GPU in the catalogue is called {asked:?}; did you mean {offered}?"
            )
        }
    }
}

/// "a", "a or b", "a, b or c".
fn or(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
