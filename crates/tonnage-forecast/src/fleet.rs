// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster at a glance: requested memory, memory left in pieces, waiting claims, and claims that could be placed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::kubernetes::Account;
use crate::ledger::PastRuns;
use crate::place::{Gpu, Job, place};

/// Version of the report's JSON.
pub const SCHEMA_VERSION: u32 = 1;

/// Sums over GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sums {
    /// GPUs.
    pub gpus: u64,
    /// GPUs that a job has a share of.
    pub in_use: u64,
    /// Their bytes.
    pub capacity: u64,
    /// Bytes that were requested and given.
    pub asked: u64,
    /// Bytes that are free on GPUs in use, in pieces of which each is too small for the smallest share that any job has
    /// or waits for.
    pub stranded: u64,
    /// All other free bytes.
    pub headroom: u64,
}

impl Sums {
    fn add(&mut self, gpu: &Gpu, smallest: u64) {
        self.gpus += 1;
        self.in_use += u64::from(gpu.used > 0);
        self.capacity = self.capacity.saturating_add(gpu.capacity);
        self.asked = self.asked.saturating_add(gpu.used);
        if gpu.used > 0 && gpu.free() < smallest {
            self.stranded = self.stranded.saturating_add(gpu.free());
        } else {
            self.headroom = self.headroom.saturating_add(gpu.free());
        }
    }
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Node {
    /// Its name.
    pub node: String,
    /// Its GPUs.
    #[serde(flatten)]
    pub sums: Sums,
}

/// A team: a namespace of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tenant {
    /// Its name.
    pub team: String,
    /// Shares of GPUs that it has.
    pub shares: u64,
    /// The part of them that is whole GPUs.
    pub whole: u64,
    /// Requested bytes.
    pub asked: u64,
    /// The mean use of one GPU by its jobs, where the ledger has it.
    pub used_by_a_job: Option<u64>,
    /// The request of these jobs.
    pub asked_by_a_job: Option<u64>,
    /// Claims that wait.
    pub waiting: u64,
}

/// A job that waits although there is a place for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pin {
    /// The claim.
    pub job: String,
    /// Its team.
    pub team: String,
    /// The machine.
    pub node: String,
    /// The GPUs to pin it to.
    pub gpus: Vec<String>,
    /// Bytes of each.
    pub bytes: u64,
}

/// A cluster at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    pub schema_version: u32,
    /// All GPUs.
    pub all: Sums,
    /// By machine, those with most stranded first.
    pub nodes: Vec<Node>,
    /// By team, the largest requests first.
    pub teams: Vec<Tenant>,
    /// Claims that wait.
    pub waiting: u64,
    /// Claims that request more of one GPU than any has, by name: they never start.
    pub impossible: Vec<String>,
    /// Where waiting jobs would have to be pinned so that more of them start than by first fit.
    pub pins: Vec<Pin>,
}

/// Looks at an account, with what jobs were seen to use if there is a ledger.
pub fn report(account: &Account, ledger: Option<&PastRuns>) -> Report {
    let shares = account.shares.iter().map(|share| share.bytes);
    let wanted = account.waiting.iter().map(|waiting| waiting.job.bytes);
    let smallest = shares.chain(wanted).min().unwrap_or(0);
    let mut all = Sums::default();
    let mut nodes: BTreeMap<&str, Sums> = BTreeMap::new();
    for gpu in &account.gpus {
        all.add(gpu, smallest);
        nodes.entry(&gpu.node).or_default().add(gpu, smallest);
    }
    let mut nodes: Vec<Node> = nodes
        .into_iter()
        .map(|(node, sums)| Node {
            node: node.to_owned(),
            sums,
        })
        .collect();
    nodes.sort_by_key(|node| std::cmp::Reverse(node.sums.stranded));
    let largest = account
        .gpus
        .iter()
        .map(|gpu| gpu.capacity)
        .max()
        .unwrap_or(0);
    let jobs: Vec<Job> = account
        .waiting
        .iter()
        .map(|waiting| waiting.job.clone())
        .collect();
    let placement = place(&account.gpus, &jobs);
    let pin = |&at: &usize| {
        let chosen = placement.places.get(at)?.as_ref()?;
        let node = account.gpus.get(*chosen.first()?)?.node.clone();
        Some(Pin {
            job: jobs[at].name.clone(),
            team: account.waiting[at].namespace.clone(),
            node,
            gpus: chosen
                .iter()
                .map(|&gpu| account.gpus[gpu].name.clone())
                .collect(),
            bytes: jobs[at].bytes,
        })
    };
    Report {
        schema_version: SCHEMA_VERSION,
        all,
        nodes,
        teams: teams(account, ledger),
        waiting: jobs.len() as u64,
        impossible: jobs
            .iter()
            .filter(|job| job.bytes > largest)
            .map(|job| job.name.clone())
            .collect(),
        pins: placement.pinned.iter().filter_map(pin).collect(),
    }
}

fn teams(account: &Account, ledger: Option<&PastRuns>) -> Vec<Tenant> {
    let names: BTreeSet<&str> = account
        .shares
        .iter()
        .map(|share| share.namespace.as_str())
        .chain(
            account
                .waiting
                .iter()
                .map(|waiting| waiting.namespace.as_str()),
        )
        .collect();
    let tenant = |team: &str| {
        let mine = || {
            account
                .shares
                .iter()
                .filter(|share| share.namespace == team)
        };
        let seen = ledger.and_then(|ledger| {
            let known =
                |one: &&crate::ledger::Team| one.team.as_deref() == Some(team) && one.jobs > 0;
            ledger.teams.iter().find(known)
        });
        Tenant {
            team: team.to_owned(),
            shares: mine().count() as u64,
            whole: mine().filter(|share| share.whole).count() as u64,
            asked: mine().map(|share| share.bytes).fold(0, u64::saturating_add),
            used_by_a_job: seen.map(|team| team.used),
            asked_by_a_job: seen.map(|team| team.asked),
            waiting: account
                .waiting
                .iter()
                .filter(|waiting| waiting.namespace == team)
                .count() as u64,
        }
    };
    let mut teams: Vec<Tenant> = names.into_iter().map(tenant).collect();
    teams.sort_by_key(|team| std::cmp::Reverse(team.asked));
    teams
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::{Share, Waiting};

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_stranded_and_who_would_not_have_to_wait() {
        let gpu = |name: &str, used: u64| Gpu {
            node: "n".to_owned(),
            name: name.to_owned(),
            capacity: 80 * GIB,
            used: used * GIB,
        };
        let share = |gpu: usize, gib: u64| Share {
            namespace: "a".to_owned(),
            gpu,
            bytes: gib * GIB,
            whole: gib == 80,
        };
        let wait = |name: &str, gib: u64| Waiting {
            namespace: "b".to_owned(),
            job: Job {
                name: name.to_owned(),
                gpus: 1,
                bytes: gib * GIB,
            },
        };
        let account = Account {
            gpus: vec![gpu("g0", 40), gpu("g1", 50), gpu("g2", 75)],
            shares: vec![share(0, 40), share(1, 50), share(2, 75)],
            waiting: vec![wait("first", 30), wait("second", 40), wait("never", 81)],
        };
        let report = report(&account, None);
        // 5 GiB on the last GPU are too little for any job.
        assert_eq!(
            (report.all.stranded / GIB, report.all.headroom / GIB),
            (5, 70)
        );
        assert_eq!(report.impossible, ["never"]);
        // First fit puts the first where the second has to go.
        let pins: Vec<_> = report
            .pins
            .iter()
            .map(|pin| (pin.job.as_str(), pin.gpus[0].as_str()))
            .collect();
        assert_eq!(pins, [("first", "g1"), ("second", "g0")]);
        assert_eq!(
            (report.teams[0].team.as_str(), report.teams[1].waiting),
            ("a", 3)
        );
    }
}
