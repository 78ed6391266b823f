// SPDX-License-Identifier: MIT OR Apache-2.0
//! The request of a Slurm job, in the words of its options.

/// GPUs and shards that a job requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Whole GPUs.
    pub(super) gpus: bool,
    /// No GPU, or a share of one by other means: `none`, `mps:50`.
    pub(super) is_settled: bool,
    /// Shards for each task.
    pub(super) per_task: Option<u64>,
    /// Shards of each node, which may be those of several GPUs.
    pub(super) per_node: Option<u64>,
}

impl Wanted {
    /// Reads options of gres and TRES with their names, `tres-per-task=gres/shard:42`. Without a name they are those of
    /// a task.
    pub(super) fn from_options(options: &[String]) -> Self {
        let mut wanted = Self::default();
        for option in options {
            let (name, value) = match option.split_once('=') {
                Some((name, value))
                    if name == "gres" || name.starts_with("tres-") || name.starts_with("gpus") =>
                {
                    (name, value)
                }
                _ => ("", option.as_str()),
            };
            if name.starts_with("gpus") {
                wanted.gpus = true;
                continue;
            }
            for part in value.split(',') {
                match resource(part) {
                    Some(("gpu", _)) => wanted.gpus = true,
                    Some(("mps" | "none", _)) => wanted.is_settled = true,
                    Some(("shard", count)) if matches!(name, "" | "tres-per-task") => {
                        wanted.per_task = Some(count);
                    }
                    Some(("shard", count)) => wanted.per_node = Some(count),
                    _ => {}
                }
            }
        }
        wanted
    }
}

/// The name and the count of `gres/shard:42`, `gres:shard:42`, `shard=42`, `shard:h100:42`, `gpu`.
fn resource(part: &str) -> Option<(&str, u64)> {
    let mut words = part
        .trim()
        .split([':', '/', '='])
        .filter(|word| *word != "gres");
    let name = words.next()?;
    // Without a count it is one; a type may stand between.
    Some((name, words.next_back().and_then(count).unwrap_or(1)))
}

/// A count as Slurm writes it, `2K` with its suffix. A count that overflows becomes the largest number.
fn count(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches(|c: char| "kmgtpKMGTP".contains(c));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousands = match word.as_bytes().get(digits.len()..)? {
        [] => 0,
        [suffix] => 1 + "kmgtp".find(char::from(suffix.to_ascii_lowercase()))?,
        _ => return None,
    };
    let number: u64 = digits.parse().unwrap_or(u64::MAX);
    Some((0..thousands).fold(number, |number, _| number.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(options: &[&str]) -> Wanted {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        Wanted::from_options(&options)
    }

    #[test]
    fn shards_are_read_in_the_words_of_all_versions() {
        for text in [
            "gres/shard:42",
            "gres:shard:42",
            "shard=42",
            "shard:h100:42",
            "gres/shard=42,cpu=4",
        ] {
            let per_node = wanted(&[&format!("gres={text}")]);
            assert_eq!(
                (per_node.per_task, per_node.per_node),
                (None, Some(42)),
                "{text}"
            );
            let per_task = wanted(&[&format!("tres-per-task={text}")]);
            assert_eq!(
                (per_task.per_task, per_task.per_node),
                (Some(42), None),
                "{text}"
            );
            assert_eq!(wanted(&[text]), per_task);
        }
        assert_eq!(wanted(&["gres=shard"]).per_node, Some(1));
        assert_eq!(wanted(&["gres=shard:2K"]).per_node, Some(2048));
        assert_eq!(
            wanted(&["gres=shard:99999999999999999999"]).per_node,
            Some(u64::MAX)
        );
        assert_eq!(wanted(&["gres=shard:999P"]).per_node, Some(999 << 50));
    }

    #[test]
    fn whole_gpus_are_asked_for_in_many_ways() {
        for option in [
            "gres=gpu",
            "gres=gres/gpu:h100:2",
            "gpus=2",
            "gpus-per-task=1",
            "tres-per-node=gres:gpu:1",
        ] {
            assert_eq!(
                wanted(&[option]),
                Wanted {
                    gpus: true,
                    ..Wanted::default()
                },
                "{option}"
            );
        }
        for settled in ["gres=none", "gres=mps:50", "tres-per-node=gres/mps:h100:50"] {
            let expected = Wanted {
                is_settled: true,
                ..Wanted::default()
            };
            assert_eq!(wanted(&[settled]), expected, "{settled}");
        }
        for nothing in [
            "",
            "gres=nic:2",
            "tres-per-task=cpu=4",
            "gres=shards:2",
            "gres=",
        ] {
            assert_eq!(wanted(&[nothing]), Wanted::default(), "{nothing}");
        }
    }
}
