// SPDX-License-Identifier: MIT OR Apache-2.0
//! Some ranks of a job of many: which run, on which machine, and with which environment.
//!
//! Each rank that runs is its own process, started as `torchrun` would start it. Messages that it would get from ranks
//! that do not run are made up: by [`store`] when processes meet, by the stand-in's NCCL in collectives.

pub(crate) mod store;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use tonnage_capture::MACHINE_VARIABLE;

use crate::error::RunError;
use crate::job::Job;

/// Which ranks of a job run.
///
/// ```
/// use tonnage_run::World;
///
/// let world = World::new(512, [7, 0])?;
/// assert_eq!(world.ranks(), [0, 7]);
/// assert!(World::new(512, [512]).is_err());
/// # Ok::<(), tonnage_run::RunError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    size: u32,
    ranks: Vec<u32>,
}

impl World {
    /// The largest number of ranks a job can have.
    pub const LARGEST: u32 = 1 << 20;

    /// A job of `size` ranks, of which `ranks` run.
    ///
    /// # Errors
    ///
    /// If no rank runs, or one that the job does not have.
    pub fn new(size: u32, ranks: impl IntoIterator<Item = u32>) -> Result<Self, RunError> {
        let mut ranks: Vec<u32> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        if let Some(&rank) = ranks.iter().find(|&&rank| rank >= size) {
            return Err(RunError::NoSuchRank { rank, size });
        }
        if ranks.is_empty() || size > Self::LARGEST {
            return Err(RunError::NoRanks {
                size,
                most: Self::LARGEST,
            });
        }
        Ok(Self { size, ranks })
    }

    /// How many ranks the job has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The ranks that run, in order.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The machines on which ranks run, in order, where each has `gpus` GPUs.
    pub(crate) fn machines(&self, gpus: u8) -> Vec<u32> {
        let mut machines: Vec<u32> = self
            .ranks
            .iter()
            .map(|rank| rank / u32::from(gpus))
            .collect();
        machines.dedup();
        machines
    }

    /// The variables that `torchrun` would set for a rank whose store is at `port`, and for the hook the port and
    /// the secret of the store. Other users cannot read the environment of a process.
    pub(crate) fn environment(
        &self,
        rank: u32,
        gpus: u8,
        port: u16,
        secret: &str,
    ) -> Vec<(OsString, OsString)> {
        let gpus_each = u32::from(gpus);
        let machine = rank / gpus_each;
        let place = self.machines(gpus).binary_search(&machine).unwrap_or(0);
        let ranks_here = gpus_each.min(self.size - machine * gpus_each);
        let numbers = [
            ("RANK", rank),
            ("WORLD_SIZE", self.size),
            ("LOCAL_RANK", rank % gpus_each),
            ("LOCAL_WORLD_SIZE", ranks_here),
            ("GROUP_RANK", machine),
            ("GROUP_WORLD_SIZE", self.size.div_ceil(gpus_each)),
            ("NODE_RANK", machine),
            ("ROLE_RANK", rank),
            ("ROLE_WORLD_SIZE", self.size),
            ("MASTER_PORT", u32::from(port)),
            ("TORCHELASTIC_RESTART_COUNT", 0),
            ("TORCHELASTIC_MAX_RESTARTS", 0),
            (MACHINE_VARIABLE, place as u32),
        ];
        let store = format!("{port}:{secret}");
        let texts = [
            (STORE_VARIABLE, store.as_str()),
            ("MASTER_ADDR", "127.0.0.1"),
            ("ROLE_NAME", "default"),
            ("TORCHELASTIC_RUN_ID", "none"),
            // Nobody but us serves the store.
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ];
        let numbers = numbers.map(|(name, number)| (name.into(), number.to_string().into()));
        let texts = texts.map(|(name, text)| (name.into(), text.into()));
        numbers.into_iter().chain(texts).collect()
    }
}

/// The port and the secret of the store, for the hook: a script may set `MASTER_PORT` itself.
const STORE_VARIABLE: &str = "TONNAGE_STORE";

/// Options of `torchrun` without a value.
const SWITCHES: [&str; 6] = [
    "standalone",
    "no-python",
    "run-path",
    "m",
    "module",
    "enable-numa-binding",
];

/// A command that was started by `torchrun`, and the arguments of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// The command of one rank.
    pub command: Vec<OsString>,
    /// Machines, if they were given as a number.
    pub nodes: Option<u32>,
    /// Ranks on each machine, if they were given as a number.
    pub ranks_per_node: Option<u32>,
    /// Whether a script, a module or a program follows the options.
    pub has_script: bool,
}

impl Launched {
    /// The number of ranks, if the options give both factors of it.
    pub fn size(&self) -> Option<u32> {
        Some(self.nodes?.saturating_mul(self.ranks_per_node?))
    }
}

/// Takes `torchrun`, or `python -m torch.distributed.run`, off a command; `None` if it does not begin with it.
pub fn launched(job: &Job) -> Result<Option<Launched>, RunError> {
    let words = &job.command;
    let text = |at: usize| words.get(at).and_then(|word| word.to_str());
    let Some(program) = words.first() else {
        return Ok(None);
    };
    let name = Path::new(program).file_name().and_then(OsStr::to_str);
    let module = |at| text(at) == Some("torch.distributed.run");
    let (python, mut at) = match name {
        Some("torchrun") => {
            let python = crate::python::interpreter_of(job)?;
            (python.map_or("python".into(), Into::into), 1)
        }
        Some(name) if name.starts_with("python") && text(1) == Some("-m") && module(2) => {
            (program.clone(), 3)
        }
        _ => return Ok(None),
    };
    let mut found = Launched::default();
    let (mut is_module, mut is_program) = (false, false);
    while let Some(word) = text(at).filter(|word| word.starts_with('-')) {
        at += 1;
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word, None),
        };
        let option = option.trim_start_matches('-').replace('_', "-");
        if SWITCHES.contains(&&*option) {
            is_module |= option == "m" || option == "module";
            is_program |= option == "no-python";
            continue;
        }
        let value = value.or_else(|| {
            at += 1;
            text(at - 1)
        });
        let number = value.and_then(|value| value.parse().ok());
        match &*option {
            "nnodes" => found.nodes = number,
            "nproc-per-node" => found.ranks_per_node = number,
            _ => {}
        }
    }
    if !is_program {
        found.command.extend([python, "-u".into()]);
        if is_module {
            found.command.push("-m".into());
        }
    }
    found.has_script = at < words.len();
    found.command.extend(words.iter().skip(at).cloned());
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(world: &World, rank: u32, gpus: u8, name: &str) -> String {
        let all = world.environment(rank, gpus, 1234, "secret");
        let found = all.iter().find(|(key, _)| key == name).unwrap();
        found.1.to_string_lossy().into_owned()
    }

    #[test]
    fn a_rank_has_the_environment_that_torchrun_gives_it() {
        let world = World::new(20, [0, 9, 17]).unwrap();
        let of = |rank, name| variable(&world, rank, 8, name);
        assert_eq!(of(9, "RANK"), "9");
        assert_eq!(of(9, "LOCAL_RANK"), "1");
        assert_eq!(of(9, "GROUP_RANK"), "1");
        assert_eq!(of(9, "LOCAL_WORLD_SIZE"), "8");
        // The last machine is not full.
        assert_eq!(of(17, "LOCAL_WORLD_SIZE"), "4");
        assert_eq!(of(17, "GROUP_WORLD_SIZE"), "3");
        assert_eq!(of(17, MACHINE_VARIABLE), "2");
        let last = World::new(20, [17]).unwrap();
        assert_eq!(variable(&last, 17, 8, MACHINE_VARIABLE), "0");
    }

    #[test]
    fn ranks_that_the_job_does_not_have_are_refused() {
        assert!(World::new(4, [4]).is_err());
        assert!(World::new(4, []).is_err());
        assert!(World::new(0, []).is_err());
        assert_eq!(World::new(4, [3, 1, 3]).unwrap().ranks(), [1, 3]);
    }

    #[test]
    fn torchrun_is_taken_off_a_command() {
        let of = |line: &str| {
            let mut words: Vec<_> = line.split(' ').collect();
            words[0] = match words[0] {
                "python" => "/bin/python3",
                other => other,
            };
            launched(&Job::new(words)).unwrap()
        };
        let found =
            of("python -m torch.distributed.run --nnodes 64 --nproc_per_node=8 train.py --x 1");
        let found = found.unwrap();
        assert_eq!((found.nodes, found.ranks_per_node), (Some(64), Some(8)));
        assert_eq!(found.command[1..], ["-u", "train.py", "--x", "1"]);
        assert_eq!(found.size(), Some(512));
        let found =
            of("python -m torch.distributed.run --standalone --nnodes=1:4 -m pack.train -y");
        let found = found.unwrap();
        assert_eq!(found.nodes, None, "a range is not a number");
        assert_eq!(found.command[1..], ["-u", "-m", "pack.train", "-y"]);
        let found =
            of("python -m torch.distributed.run --no-python ./train.sh --nnodes 3").unwrap();
        assert_eq!(found.command, ["./train.sh", "--nnodes", "3"]);
        assert_eq!(found.nodes, None);
        assert_eq!(found.size(), None);
        let has_script = |line| of(line).unwrap().has_script;
        assert!(has_script("python -m torch.distributed.run train.py -u"));
        assert!(!has_script(
            "python -m torch.distributed.run --nnodes train.py"
        ));
        assert!(!has_script("python -m torch.distributed.run -m"));
        assert_eq!(of("python train.py"), None);
    }
}
