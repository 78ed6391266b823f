// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private pools, the scopes that route requests to them, and captures (specification 8).

use std::collections::{BTreeMap, BTreeSet};

use super::block::NONE;
use super::obtain::Request;
use super::size::SMALL_LIMIT;
use super::ska::{SkaMap, SkaSet};
use super::{
    Allocator, CaptureRule, Error, LARGE_POOL, Pool, PoolId, SMALL_POOL, ScopeRule, Sink, Undefined,
};
use crate::{Device, StreamId};

/// Which requests an allocation scope is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every request, as `use_mem_pool` on the calling thread.
    Everything,
    /// Requests on these streams, as a capture of them.
    Streams(Vec<StreamId>),
}

impl Scope {
    fn holds(&self, stream: StreamId) -> bool {
        match self {
            Self::Everything => true,
            Self::Streams(streams) => streams.contains(&stream),
        }
    }
}

/// One private pool.
#[derive(Clone, Debug)]
struct Private {
    id: PoolId,
    /// Graphs, `MemPool` objects and open scopes that need it.
    users: u64,
    /// Device calls that obtained memory minus those that gave some back. With
    /// expandable segments the two do not pair up (8.7), as in torch.
    segments: u64,
    small: u32,
    large: u32,
}

/// All private pools of an allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct Privates {
    all: Vec<Private>,
    vacant: Vec<u32>,
    by_id: BTreeMap<PoolId, u32>,
    /// Unused pools, whose memory may go back to the device.
    freeable: SkaMap<PoolId, u32>,
    no_split: BTreeSet<PoolId>,
    use_on_oom: SkaSet<PoolId>,
    /// Open scopes, the innermost last.
    scopes: Vec<(PoolId, Scope)>,
    pub(super) capturing: bool,
}

impl Privates {
    pub(super) fn any_no_split(&self) -> bool {
        !self.no_split.is_empty()
    }

    /// Whether a call that gives memory back keeps the count right; always for default pools.
    pub(super) fn may_uncount(&self, owner: u32) -> bool {
        owner == NONE || self.all[owner as usize].segments > 0
    }

    pub(super) fn uncount(&mut self, owner: u32) {
        if owner != NONE {
            self.all[owner as usize].segments -= 1;
        }
    }

    /// The first freeable pool from a slot on: its slot, id and index.
    pub(super) fn freeable_from(&self, slot: usize) -> Option<(usize, PoolId, u32)> {
        let at = self.freeable.occupied_from(slot)?;
        Some((at, self.freeable.key(at)?, *self.freeable.value(at)?))
    }

    /// The small and the large pool of a private pool.
    pub(super) fn pools(&self, owner: u32) -> (u32, u32) {
        let private = &self.all[owner as usize];
        (private.small, private.large)
    }

    /// Whether it counts no device call that was not undone.
    pub(super) fn is_unused(&self, owner: u32) -> bool {
        self.all[owner as usize].segments == 0
    }
}

impl<D: Device, S: Sink> Allocator<D, S> {
    /// Makes a private pool with one user, or adds a user to it
    /// (`torch.cuda.MemPool`, `graph_pool_handle`).
    pub fn create_pool(&mut self, pool: PoolId) -> Result<(), Error> {
        let Some(&owner) = self.private.by_id.get(&pool) else {
            self.add_private(pool, false);
            return Ok(());
        };
        let private = &mut self.private.all[owner as usize];
        if private.users == 0 {
            return Err(Error::Pool {
                pool,
                reason: "it is not in use any more",
            });
        }
        private.users += 1;
        Ok(())
    }

    /// Makes a private pool whose memory an allocator of the user provides (8.6).
    pub fn create_custom_pool(&mut self, pool: PoolId) -> Result<(), Error> {
        if self.private.by_id.contains_key(&pool) {
            return Err(Error::Pool {
                pool,
                reason: "it exists already",
            });
        }
        self.add_private(pool, true);
        Ok(())
    }

    fn add_private(&mut self, id: PoolId, custom: bool) {
        let owner = self.private.vacant.pop().unwrap_or_else(|| {
            self.private.all.push(Private {
                id,
                users: 0,
                segments: 0,
                small: NONE,
                large: NONE,
            });
            (self.private.all.len() - 1) as u32
        });
        let no_split = self.private.no_split.contains(&id);
        let [small, large] = [true, false].map(|small| {
            let pool = Pool {
                small,
                id,
                owner,
                custom,
                no_split,
                lanes: Vec::new(),
                searches: 0,
            };
            if let Some(index) = self.vacant_pools.pop() {
                self.pools[index as usize] = pool;
                index
            } else {
                self.pools.push(pool);
                (self.pools.len() - 1) as u32
            }
        });
        self.private.all[owner as usize] = Private {
            id,
            users: 1,
            segments: 0,
            small,
            large,
        };
        self.private.by_id.insert(id, owner);
    }

    /// One user less; without users the pool's memory may go back to the device
    /// (the end of a graph, or of a scope).
    pub fn release_pool_use(&mut self, pool: PoolId) -> Result<(), Error> {
        let unknown = Error::Pool {
            pool,
            reason: "it has no users",
        };
        let Some(&owner) = self.private.by_id.get(&pool) else {
            return Err(unknown);
        };
        let private = &mut self.private.all[owner as usize];
        private.users = private.users.checked_sub(1).ok_or(unknown)?;
        if private.users == 0 {
            self.private.freeable.insert(pool, owner);
            self.mark_no_split(pool, false);
        }
        Ok(())
    }

    /// The end of a `MemPool` object: one user less, what it caches goes back,
    /// and it helps out no more, even if a graph still uses it.
    pub fn destroy_pool(&mut self, pool: PoolId) -> Result<(), Error> {
        self.set_use_on_oom(pool, false);
        self.release_pool_use(pool)?;
        self.release_cached(pool)
    }

    /// Opens a scope: requests it is for go to `pool`, which gets one more user.
    pub fn begin_allocate_to_pool(&mut self, pool: PoolId, scope: Scope) -> Result<(), Error> {
        self.create_pool(pool)?;
        if self.private.scopes.iter().any(|(open, _)| *open == pool) {
            return Err(Error::Pool {
                pool,
                reason: "a scope for it is open already",
            });
        }
        self.private.scopes.push((pool, scope));
        Ok(())
    }

    /// Closes the scope of `pool`. The user it added stays: a scope of
    /// `use_mem_pool` takes it away at once, a graph when it is reset.
    pub fn end_allocate_to_pool(&mut self, pool: PoolId) -> Result<(), Error> {
        if self.settings.graph_capture_record_stream_reuse
            && let Some(&owner) = self.private.by_id.get(&pool)
        {
            self.settle_deferred_of(owner)?;
        }
        self.close_scope(pool)
    }

    fn close_scope(&mut self, pool: PoolId) -> Result<(), Error> {
        let open = |(open, _): &(PoolId, Scope)| *open == pool;
        let Some(place) = self.private.scopes.iter().position(open) else {
            return Err(Error::Pool {
                pool,
                reason: "no scope for it is open",
            });
        };
        self.private.scopes.remove(place);
        Ok(())
    }

    /// Says whether the stream that is current is being captured.
    pub fn set_capturing(&mut self, capturing: bool) {
        self.private.capturing = capturing;
    }

    /// Whether the allocator believes that a graph is being captured.
    pub(super) fn in_capture(&self) -> bool {
        match self.rules.capture {
            CaptureRule::RealCapture => self.private.capturing,
            CaptureRule::AnyScope => self.private.capturing || !self.private.scopes.is_empty(),
        }
    }

    /// Segments of the pool are never split (`MemPool(no_split=True)`).
    pub fn set_no_split(&mut self, pool: PoolId) {
        self.mark_no_split(pool, true);
    }

    fn mark_no_split(&mut self, pool: PoolId, no_split: bool) {
        if no_split {
            self.private.no_split.insert(pool);
        } else {
            self.private.no_split.remove(&pool);
        }
        let (small, large) = if pool == PoolId::DEFAULT {
            (SMALL_POOL, LARGE_POOL)
        } else if let Some(&owner) = self.private.by_id.get(&pool) {
            self.private.pools(owner)
        } else {
            return;
        };
        self.pools[small as usize].no_split = no_split;
        self.pools[large as usize].no_split = no_split;
    }

    /// Requests of the default pool may use free blocks of this one when the
    /// device has nothing left (`MemPool(use_on_oom=True)`).
    pub fn set_use_on_oom(&mut self, pool: PoolId, use_on_oom: bool) {
        if use_on_oom {
            self.private.use_on_oom.insert(pool, ());
        } else {
            self.private.use_on_oom.remove(pool);
        }
    }

    /// The pool for a request of `size` bytes: that of a matching scope, else the default one.
    #[inline]
    pub(super) fn route(&self, size: u64, stream: StreamId) -> Result<u32, Error> {
        if !self.private.scopes.is_empty()
            && let Some(id) = self.scope_for(stream)
        {
            return self.pool_of(id, size);
        }
        Ok(if size <= SMALL_LIMIT {
            SMALL_POOL
        } else {
            LARGE_POOL
        })
    }

    #[cold]
    fn scope_for(&self, stream: StreamId) -> Option<PoolId> {
        let holds = |(_, scope): &&(PoolId, Scope)| scope.holds(stream);
        let scopes = &self.private.scopes;
        let found = match self.rules.scope {
            ScopeRule::Innermost => scopes.iter().rev().find(holds),
            ScopeRule::Outermost => scopes.iter().find(holds),
        };
        found.map(|&(id, _)| id)
    }

    /// The pool with a name, for a request of `size` bytes. It must have a user,
    /// or it could be deleted while it serves the request.
    pub(super) fn pool_of(&self, pool: PoolId, size: u64) -> Result<u32, Error> {
        let (small, large) = if pool == PoolId::DEFAULT {
            (SMALL_POOL, LARGE_POOL)
        } else {
            let owner = self.private.by_id.get(&pool);
            let used = owner.filter(|&&owner| self.private.all[owner as usize].users > 0);
            let reason = "it is not in use";
            let owner = used.ok_or(Error::Pool { pool, reason })?;
            self.private.pools(*owner)
        };
        Ok(if size <= SMALL_LIMIT { small } else { large })
    }

    /// Searches the pools that serve as overflow of the default one (3.1, step 7a).
    pub(super) fn search_overflow_pools(
        &mut self,
        request: &Request,
    ) -> Result<Option<u32>, Error> {
        if self.pools[request.pool as usize].owner != NONE {
            return Ok(None);
        }
        let stream = self.lanes[request.lane as usize].stream;
        let ids: Vec<PoolId> = self.private.use_on_oom.keys().collect();
        for id in ids {
            // torch opens a scope for the search, which revives a deleted pool.
            self.begin_allocate_to_pool(id, Scope::Everything)?;
            let pool = self.pool_of(id, request.size)?;
            let lane = self.lane(pool, stream);
            let found = self.search(lane, request.size, false);
            if found.is_some() {
                // torch may complete deferred frees here, which then merge with
                // the block just found (flagged when they were deferred).
                self.close_scope(id)?;
                self.release_pool_use(id)?;
                return Ok(found);
            }
            self.end_allocate_to_pool(id)?;
            self.release_pool_use(id)?;
        }
        Ok(None)
    }

    /// One more device call that obtained memory for a private pool.
    pub(super) fn count_private(&mut self, pool: u32) {
        let owner = self.pools[pool as usize].owner;
        if owner != NONE {
            self.private.all[owner as usize].segments += 1;
        }
    }

    /// Bytes in free blocks of all private pools.
    pub(super) fn cached_in_private_pools(&self) -> u64 {
        self.private
            .by_id
            .values()
            .map(|&owner| self.private.pools(owner))
            .flat_map(|(small, large)| [small, large])
            .flat_map(|pool| self.free_blocks(pool))
            .map(|block| self.blocks[block].size)
            .sum()
    }

    /// Deletes a private pool without users and without device calls to undo.
    pub(super) fn delete_private(&mut self, slot: usize, owner: u32) -> Result<(), Error> {
        let private = &self.private.all[owner as usize];
        let (id, pools) = (private.id, [private.small, private.large]);
        self.private.by_id.remove(&id);
        self.private.freeable.remove_at(slot);
        let lanes = |pool: u32| {
            self.pools[pool as usize]
                .lanes
                .iter()
                .map(|&(_, lane)| lane)
        };
        let lanes: Vec<u32> = pools.into_iter().flat_map(lanes).collect();
        if self
            .blocks
            .iter()
            .any(|(_, block)| lanes.contains(&block.lane))
        {
            // The count differed; torch's blocks point at freed memory now.
            return Err(self.flag(Undefined::PoolDeletedInUse));
        }
        self.vacant_lanes.extend(lanes);
        self.vacant_pools.extend(pools);
        self.private.vacant.push(owner);
        Ok(())
    }
}
