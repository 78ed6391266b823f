// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device memory that NCCL's own buffers use, as far as it follows from its source.
//!
//! A communicator connects when it is first used, for what it is used for. Each
//! channel of a connection between two GPUs has a buffer for each of NCCL's three
//! protocols where it receives, and a small one where it sends, in whole pieces of
//! 2 MiB. Rings are certain; trees, the switch's own reductions and what crosses
//! machines depend on sizes and links that are unknown here. So this is a range,
//! which is reported and not charged.

use std::collections::{BTreeMap, BTreeSet};

use tonnage_capture::note::{Nccl, Note};

use crate::exchange::Kind;
use crate::fork::Lock;
use crate::machine::machine;
use crate::recorder::remark_note;

const MIB: u64 = 1 << 20;
const PIECE: u64 = 2 * MIB;
/// NCCL's defaults for the buffers of its protocols, and the variables that change them.
const PROTOCOLS: [(&str, u64); 3] = [
    ("NCCL_LL_BUFFSIZE", 512 << 10),
    ("NCCL_LL128_BUFFSIZE", 4_915_200),
    ("NCCL_BUFFSIZE", 4 * MIB),
];
/// Channels of the reductions in NVLink's switch, and bytes of each for each GPU in each direction.
const SWITCH: (u64, u64) = (16, MIB);
/// Channels that messages between two GPUs may take.
const MESSAGE_CHANNELS: u64 = 32;
/// Channels between GPUs without NVLink; their buffers may also be in the host's memory.
const PLAIN_CHANNELS: u64 = 4;
/// Messages that a channel carries at once where ranks are on several machines: channels are shared out so that all
/// peers fit.
const MESSAGES_AT_ONCE: u64 = 8;
/// The fewest channels that NCCL takes for one peer then, over its versions, without a setting for fewer.
const FEWEST_CHANNELS: u64 = 2;
/// Messages between machines go through buffers that all peers share: so many pieces for each channel, of so many
/// bytes, which a variable changes.
const SHARED_PIECES: u64 = 16;
const SHARED_PIECE: (&str, u64) = ("NCCL_P2P_NET_CHUNKSIZE", 128 << 10);
/// GPUs whose NVLink reaches into other machines.
const ACROSS_MACHINES: [&str; 3] = ["GH200", "GB200", "GB300"];

/// A rank of a communicator.
#[derive(Clone, Copy)]
pub(super) struct Communicator {
    pub(super) ranks: usize,
    pub(super) rank: usize,
    /// The visible number of the device that was current when it was made.
    pub(super) device: i32,
    /// A number that all its ranks have, and no other communicator.
    pub(super) name: u64,
    /// How often it was split.
    pub(super) splits: u64,
}

/// The properties that determine how large the buffers of a communicator are.
#[derive(Clone, Copy, Debug)]
struct Links {
    /// Channels by NVLink; 0 without.
    channels: u64,
    /// Whether its switch can reduce: Hopper and later.
    reduces: bool,
    /// Bytes of one channel to another GPU and back.
    connection: u64,
    /// Whether all ranks are on this machine.
    is_local: bool,
    /// GPUs of this machine, if some ranks must be on another, without NVLink to it.
    gpus_of_several: Option<u64>,
    /// Bytes of one of the buffers that messages between machines share.
    shared: u64,
}

/// The operations that a communicator has been used for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Uses {
    collectives: bool,
    all_reduces: bool,
    reduced_by_switch: bool,
    peers: BTreeSet<usize>,
}

impl Uses {
    fn add(&mut self, kind: Kind, peer: i32, ranks: usize) {
        match kind {
            Kind::Send | Kind::Receive => self.peers.extend(usize::try_from(peer)),
            Kind::AllToAll | Kind::Gather | Kind::Scatter => self.peers.extend(0..ranks - 1),
            Kind::Split => {}
            Kind::Broadcast | Kind::Reduce => self.collectives = true,
            Kind::AllGather | Kind::ReduceScatter => {
                (self.collectives, self.reduced_by_switch) = (true, true);
            }
            Kind::AllReduce => {
                (self.collectives, self.reduced_by_switch) = (true, true);
                self.all_reduces = true;
            }
        }
    }

    /// The least and the most that its buffers take.
    fn bytes(&self, links: Links, ranks: usize) -> (u64, u64) {
        let Links {
            channels,
            connection,
            ..
        } = links;
        let linked = channels > 0;
        let (most, messages) = if linked {
            (channels, MESSAGE_CHANNELS)
        } else {
            (PLAIN_CHANNELS, PLAIN_CHANNELS)
        };
        let (mut low, mut high) = (0, 0);
        if self.collectives {
            let ring = most * connection;
            high += ring;
            if linked && links.is_local {
                low += ring;
            }
        }
        // In a ring of two the tree has the same neighbours.
        if self.all_reduces && ranks > 2 {
            high += most * connection;
        }
        if self.reduced_by_switch && linked && links.reduces {
            high += SWITCH.0 * 2 * SWITCH.1 * (ranks as u64).min(8);
        }
        high += self.messages(links, ranks, messages);
        (low, high)
    }

    /// The most that the buffers of messages take, with so many channels for each peer on one machine.
    fn messages(&self, links: Links, ranks: usize, channels: u64) -> u64 {
        let peers = self.peers.len() as u64;
        let Some(gpus) = links.gpus_of_several else {
            return channels * links.connection * peers;
        };
        let near = peers.min(gpus.saturating_sub(1));
        let rounds = (ranks as u64).div_ceil(MESSAGES_AT_ONCE);
        let of_each = (channels / rounds).max(FEWEST_CHANNELS).min(channels);
        let mut bytes = near * of_each * links.connection;
        if peers > 0 {
            // One to receive, one to send, and one for each of the other GPUs here that sends through this one.
            bytes += (1 + gpus) * links.shared;
        }
        bytes
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

fn links(communicator: &Communicator) -> Option<Links> {
    let machine = machine().ok()?;
    let profile = machine.profile(communicator.device).ok()?;
    let is_set = |name: &str, value: u64| variable(name) == Some(value);
    let receives: u64 = PROTOCOLS
        .iter()
        .map(|&(name, default)| variable(name).unwrap_or(default).min(1 << 30))
        .sum();
    let mut channels = if is_set("NCCL_P2P_DISABLE", 1) {
        0
    } else {
        profile.nccl_channels
    };
    if let Some(most) = variable("NCCL_MAX_NCHANNELS").filter(|most| *most > 0) {
        channels = channels.min(most);
    }
    let reaches = |name: &&str| profile.name.contains(*name);
    let gpus = machine.gpus();
    // Variables may give each peer its own buffers, or more channels.
    let several = communicator.ranks > gpus
        && !ACROSS_MACHINES.iter().any(reaches)
        && !is_set("NCCL_NET_SHARED_BUFFERS", 0)
        && variable("NCCL_NCHANNELS_PER_NET_PEER").is_none();
    let (name, piece) = SHARED_PIECE;
    let piece = variable(name).unwrap_or(piece).min(1 << 30);
    Some(Links {
        channels,
        reduces: profile.major >= 9 && !is_set("NCCL_NVLS_ENABLE", 0),
        connection: (receives + 1).next_multiple_of(PIECE) + PIECE,
        is_local: communicator.ranks <= gpus && machine.is_alone(),
        gpus_of_several: several.then_some(gpus as u64),
        shared: MESSAGE_CHANNELS * SHARED_PIECES * piece,
    })
}

/// A communicator that is used: what for, and the least and the most that it takes on its device.
#[derive(Default)]
struct Used {
    uses: Uses,
    bytes: (u64, u64),
    device: i32,
}

/// By name and rank.
static USED: Lock<BTreeMap<(u64, usize), Used>> = Lock::new(BTreeMap::new());

/// Notes that a communicator is used, and reports how much those of the fullest device take if that is more than
/// before.
pub(super) fn note(communicator: &Communicator, kind: Kind, peer: i32) {
    if communicator.ranks < 2 {
        return;
    }
    let mut all = USED.lock();
    let key = (communicator.name, communicator.rank);
    let used = all.entry(key).or_default();
    let before = used.uses.clone();
    used.uses.add(kind, peer, communicator.ranks);
    if used.uses == before {
        return;
    }
    let Some(links) = links(communicator) else {
        return;
    };
    used.bytes = used.uses.bytes(links, communicator.ranks);
    used.device = communicator.device;
    // A process may be several ranks, each on its own device.
    let mut devices: BTreeMap<i32, (u64, u64, u64)> = BTreeMap::new();
    for used in all.values() {
        let (high, low, communicators) = devices.entry(used.device).or_default();
        (*low, *high) = (*low + used.bytes.0, *high + used.bytes.1);
        *communicators += 1;
    }
    let Some((high, low, communicators)) = devices.into_values().max() else {
        return;
    };
    remark_note(&Note::Nccl(Nccl {
        communicators,
        low,
        high,
    }));
}

/// Gives back the memory of a communicator; the reported maximum stays.
pub(super) fn forget(communicator: &Communicator) {
    let mut used = USED.lock();
    used.remove(&(communicator.name, communicator.rank));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes that NCCL 2.26 logged on eight H100: 10 MiB where it receives, 2 MiB where it sends
    /// (NVIDIA/nccl issue 1685).
    const LOGGED: u64 = 10_485_760 + 2_097_152;

    fn h100() -> Links {
        let receives: u64 = PROTOCOLS.iter().map(|(_, bytes)| bytes).sum();
        Links {
            channels: 24,
            reduces: true,
            connection: (receives + 1).next_multiple_of(PIECE) + PIECE,
            is_local: true,
            gpus_of_several: None,
            shared: MESSAGE_CHANNELS * SHARED_PIECES * SHARED_PIECE.1,
        }
    }

    fn used(kinds: &[Kind], ranks: usize) -> Uses {
        let mut uses = Uses::default();
        for kind in kinds {
            uses.add(*kind, 1, ranks);
        }
        uses
    }

    #[test]
    fn a_channel_takes_what_was_logged() {
        assert_eq!(h100().connection, LOGGED);
    }

    #[test]
    fn rings_are_certain_and_trees_are_not() {
        let uses = used(&[Kind::AllReduce, Kind::Broadcast], 8);
        let (low, high) = uses.bytes(h100(), 8);
        assert_eq!(low, 24 * LOGGED);
        assert_eq!(high, 2 * 24 * LOGGED + 256 * MIB);
        let (_, of_two) = uses.bytes(h100(), 2);
        assert_eq!(of_two, 24 * LOGGED + 64 * MIB, "one neighbour only");
    }

    #[test]
    fn an_all_to_all_connects_every_peer() {
        // 2.82 GB; 3.28 GB were read, with what else the first call of a process takes.
        let (low, high) = used(&[Kind::AllToAll], 8).bytes(h100(), 8);
        assert_eq!((low, high), (0, 7 * 32 * LOGGED));
        let messages = used(&[Kind::Send, Kind::Receive], 8).bytes(h100(), 8);
        assert_eq!(messages, (0, 32 * LOGGED));
    }

    #[test]
    fn peers_on_other_machines_share_buffers() {
        let across = Links {
            is_local: false,
            gpus_of_several: Some(8),
            ..h100()
        };
        let high = |kinds: &[Kind], ranks| used(kinds, ranks).bytes(across, ranks).1;
        // 32 channels for 64 ranks, eight of which one carries at once: four for each of seven neighbours. The others
        // share 32 × 16 pieces of 128 KiB, of each GPU that may send through this one, and of what is received.
        let shared = 9 * 64 * MIB;
        assert_eq!(high(&[Kind::AllToAll], 64), 7 * 4 * LOGGED + shared);
        // Not fewer than two channels, and not more than on one machine.
        assert_eq!(high(&[Kind::AllToAll], 1024), 7 * 2 * LOGGED + shared);
        assert_eq!(high(&[Kind::AllToAll], 16), 7 * 16 * LOGGED + shared);
        // A pipeline has few peers, any of which may be near.
        assert_eq!(high(&[Kind::Send], 64), 4 * LOGGED + shared);
        assert_eq!(high(&[Kind::Broadcast], 64), 24 * LOGGED);
    }

    #[test]
    fn nothing_is_certain_of_other_links() {
        let across = Links {
            is_local: false,
            ..h100()
        };
        let plain = Links {
            channels: 0,
            ..h100()
        };
        for links in [across, plain] {
            let (low, high) = used(&[Kind::AllGather], 4).bytes(links, 4);
            assert_eq!(low, 0);
            assert!(high > 0);
        }
    }
}
