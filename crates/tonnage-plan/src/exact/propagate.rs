// SPDX-License-Identifier: MIT OR Apache-2.0
//! Propagation: what follows from what is placed, and whether it can still fit.

use super::height::Height;
use super::search::{Part, Search};

impl<H: Height> Search<'_, H> {
    /// Raises the support of an item.
    pub(super) fn lift(&mut self, index: u32, level: H) {
        let old = self.support[index as usize];
        if old < level {
            self.trail.push((index, old));
            self.support[index as usize] = level;
            let item = self.items[index as usize];
            // Only where it was the one that kept the floor down.
            for section in item.start as usize..item.end as usize {
                let witness = self.witness[section];
                if self.floor[section] == old
                    && (witness == index || self.support[witness as usize] > old)
                {
                    self.dirty[section / 64] |= 1 << (section % 64);
                }
            }
        }
    }

    /// Raises floors until each is the least support of what is left there.
    pub(super) fn propagate(&mut self, cap: H) -> bool {
        loop {
            let mut changed = false;
            for word in 0..self.dirty.len() {
                while self.dirty[word] != 0 {
                    changed = true;
                    let section = word * 64 + self.dirty[word].trailing_zeros() as usize;
                    self.dirty[word] &= self.dirty[word] - 1;
                    if self.load[section] == H::default() {
                        continue;
                    }
                    let (from, to) = (
                        self.covers[section] as usize,
                        self.covers[section + 1] as usize,
                    );
                    let floor = self.floor[section];
                    let mut low = H::MAX;
                    for &index in &self.cover[from..to] {
                        let support = self.support[index as usize];
                        if support < low {
                            low = support;
                            self.witness[section] = index;
                            if low <= floor {
                                break;
                            }
                        }
                    }
                    if low <= floor {
                        continue;
                    }
                    if low + self.load[section] > cap {
                        self.weight[section] += 1.0;
                        self.dirty.fill(0);
                        return false;
                    }
                    // No support there is below it, so none has to rise.
                    self.floor[section] = low;
                }
            }
            if !changed {
                return true;
            }
        }
    }

    /// Whether in each section what is left can come to lie in the order of its supports.
    ///
    /// The lowest of those with at least some support lies no lower, and below it is only what has less; so the
    /// sections are machines, supports are release times, and the capacity is the deadline.
    pub(super) fn fits_in_order(&mut self, part: &Part<H>) -> bool {
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        let all = self.starts[part.from]..self.starts[part.to];
        sorted.extend(
            all.map(|index| (self.support[index as usize], index))
                .filter(|entry| entry.0 != H::MAX),
        );
        sorted.sort_unstable();
        let sections = part.from..part.to;
        self.finish[sections.clone()].copy_from_slice(&self.floor[sections.clone()]);
        for &(support, index) in &sorted {
            let item = &self.items[index as usize];
            for finish in &mut self.finish[item.start as usize..item.end as usize] {
                *finish = (*finish).max(support) + item.size;
            }
        }
        self.sorted = sorted;
        for section in sections {
            if self.finish[section] > part.cap {
                self.weight[section] += 1.0;
                return false;
            }
        }
        true
    }
}
