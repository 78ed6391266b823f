// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs with their times on GPUs of one kind, by first fit: how many GPUs were in use.

/// Parts of the time for which a replay reports the GPUs in use.
const SAMPLES: usize = 240;

/// A job of a replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) gpus: u32,
    /// Bytes of each GPU.
    pub(super) bytes: u64,
    pub(super) capacity: u64,
}

/// GPUs in use over time.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) most: u64,
    pub(super) gpu_seconds: f64,
    /// From each of these times on, so many GPUs more, or fewer.
    changes: Vec<(f64, i64)>,
}

impl Replayed {
    /// Replays of several pools as one.
    pub(super) fn together(all: &[Self]) -> Self {
        let mut changes: Vec<(f64, i64)> = all.iter().flat_map(|one| one.changes.clone()).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut in_use, mut most, mut at) = (0, 0, 0);
        while let Some(&(time, _)) = changes.get(at) {
            // All changes of a moment: a job that ends makes room for the one that starts.
            while let Some(&(_, change)) = changes.get(at).filter(|one| one.0 <= time) {
                in_use += change;
                at += 1;
            }
            most = most.max(in_use);
        }
        Self {
            most: u64::try_from(most).unwrap_or(0),
            gpu_seconds: all.iter().map(|one| one.gpu_seconds).sum(),
            changes,
        }
    }

    /// The most GPUs in use in each of equal parts of the time.
    pub(super) fn sampled(&self, start: f64, end: f64) -> Vec<u64> {
        let mut changes = self.changes.iter().peekable();
        let mut in_use = 0_i64;
        let sample = |at: usize| {
            let until = start + (end - start) * (at as f64 + 1.0) / SAMPLES as f64;
            let mut most = in_use;
            while let Some(&&(time, _)) = changes.peek().filter(|one| one.0 < until) {
                while let Some((_, change)) = changes.next_if(|one| one.0 <= time) {
                    in_use += change;
                }
                most = most.max(in_use);
            }
            u64::try_from(most).unwrap_or(0)
        };
        (0..SAMPLES).map(sample).collect()
    }
}

/// Free bytes of GPUs, with the most of every part of them, so that the first that fits is found at once.
#[derive(Debug)]
struct Gpus {
    /// A binary tree: the children of `n` are `2n` and `2n + 1`, the GPUs are the second half.
    most: Vec<u64>,
    /// GPUs before this one were in use once; the others are new.
    seen: usize,
    capacity: u64,
}

impl Gpus {
    fn new(capacity: u64) -> Self {
        Self {
            most: vec![0; 2],
            seen: 0,
            capacity,
        }
    }

    fn leaves(&self) -> usize {
        self.most.len() / 2
    }

    /// The first GPU from `from` on with so much free; one that was never in use if there is none.
    fn first(&mut self, from: usize, bytes: u64) -> usize {
        if let Some(found) = self.search(1, 0, self.leaves(), from, bytes) {
            return found;
        }
        let new = self.seen;
        self.seen += 1;
        if new >= self.leaves() {
            let free: Vec<u64> = self.most[self.leaves()..].to_vec();
            let leaves = self.leaves() * 2;
            self.most = vec![0; leaves * 2];
            self.most[leaves..leaves + free.len()].copy_from_slice(&free);
            for node in (1..leaves).rev() {
                self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
            }
        }
        self.set(new, self.capacity);
        new
    }

    fn search(
        &self,
        node: usize,
        low: usize,
        size: usize,
        from: usize,
        bytes: u64,
    ) -> Option<usize> {
        if low + size <= from || self.most[node] < bytes {
            return None;
        }
        if size == 1 {
            return (low < self.seen).then_some(low);
        }
        let half = size / 2;
        self.search(2 * node, low, half, from, bytes)
            .or_else(|| self.search(2 * node + 1, low + half, half, from, bytes))
    }

    fn free(&self, gpu: usize) -> u64 {
        self.most[self.leaves() + gpu]
    }

    fn set(&mut self, gpu: usize, free: u64) {
        let mut node = self.leaves() + gpu;
        self.most[node] = free;
        while node > 1 {
            node /= 2;
            self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]);
        }
    }
}

/// Replays the jobs of one kind of GPUs. Each starts when it did: on the first GPUs with room, or on new ones.
pub(super) fn replay(jobs: &[Demand]) -> Replayed {
    let capacity = jobs.first().map_or(0, |job| job.capacity);
    // Ends before starts of the same moment.
    let mut events: Vec<(f64, bool, usize)> = Vec::with_capacity(jobs.len() * 2);
    for (number, job) in jobs.iter().enumerate() {
        events.push((job.start, true, number));
        events.push((job.end, false, number));
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let mut gpus = Gpus::new(capacity);
    let mut shares: Vec<u32> = Vec::new();
    let mut placed: Vec<Vec<usize>> = vec![Vec::new(); jobs.len()];
    let mut replayed = Replayed::default();
    let (mut in_use, mut last) = (0_i64, 0.0);
    for (time, starts, number) in events {
        replayed.gpu_seconds += in_use as f64 * (time - last);
        last = time;
        let job = &jobs[number];
        let before = in_use;
        if starts {
            let mut from = 0;
            for _ in 0..job.gpus {
                let gpu = gpus.first(from, job.bytes);
                from = gpu + 1;
                gpus.set(gpu, gpus.free(gpu) - job.bytes);
                shares.resize(shares.len().max(gpu + 1), 0);
                in_use += i64::from(shares[gpu] == 0);
                shares[gpu] += 1;
                placed[number].push(gpu);
            }
        } else {
            for gpu in std::mem::take(&mut placed[number]) {
                gpus.set(gpu, gpus.free(gpu) + job.bytes);
                shares[gpu] -= 1;
                in_use -= i64::from(shares[gpu] == 0);
            }
        }
        if in_use != before {
            replayed.changes.push((time, in_use - before));
        }
    }
    replayed
}
