// SPDX-License-Identifier: MIT OR Apache-2.0
//! The best item in a box: which unplaced item, with start and end in given ranges, has the greatest key?
//!
//! A k-d tree over (start, end), because queries come from valleys, which are intervals of every width. Its shape
//! follows from the number of items alone, so nothing but bounds and keys is stored: about 28 bytes for an item, leaves
//! included. The shape is built once; a dive under another rule only gives the items new keys.

use crate::rigid::Item;

/// Items of a leaf: as many as fit in one line of a cache, so that a leaf costs one miss.
const LEAF: usize = 4;

/// The key of a removed item.
const GONE: f32 = f32::NEG_INFINITY;

/// Bounds of what a node still holds, and the greatest key in it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    start_min: u32,
    start_max: u32,
    end_min: u32,
    end_max: u32,
    lifetime_min: u32,
    best: f32,
}

impl Node {
    const EMPTY: Self = Self {
        start_min: u32::MAX,
        start_max: 0,
        end_min: u32::MAX,
        end_max: 0,
        lifetime_min: u32::MAX,
        best: GONE,
    };

    fn from_entries(entries: &[Entry]) -> Self {
        let present = entries.iter().filter(|entry| entry.key > GONE);
        present.fold(Self::EMPTY, |node, entry| {
            node.with(&Self {
                start_min: entry.start,
                start_max: entry.start,
                end_min: entry.end,
                end_max: entry.end,
                lifetime_min: entry.end - entry.start,
                best: entry.key,
            })
        })
    }

    fn with(&self, other: &Self) -> Self {
        Self {
            start_min: self.start_min.min(other.start_min),
            start_max: self.start_max.max(other.start_max),
            end_min: self.end_min.min(other.end_min),
            end_max: self.end_max.max(other.end_max),
            lifetime_min: self.lifetime_min.min(other.lifetime_min),
            best: self.best.max(other.best),
        }
    }
}

/// A place in the tree.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    end: u32,
    item: u32,
    key: f32,
}

/// A question: starts in `start.0..=start.1`, ends in `end.0..=end.1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) start: (u32, u32),
    pub(crate) end: (u32, u32),
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    entries: Vec<Entry>,
    nodes: Vec<Node>,
    /// Levels above the leaves.
    depth: u32,
}

impl Tree {
    pub(crate) fn new(items: &[Item]) -> Self {
        let mut entries: Vec<Entry> = items
            .iter()
            .zip(0..)
            .map(|(item, index)| Entry {
                start: item.start,
                end: item.end,
                item: index,
                key: GONE,
            })
            .collect();
        let mut depth = 0;
        while entries.len() >> depth > LEAF {
            depth += 1;
        }
        let mut tree = Self {
            nodes: vec![Node::EMPTY; (2 << depth) - 1],
            entries: Vec::new(),
            depth,
        };
        shape(&mut entries, depth, 0);
        tree.entries = entries;
        tree
    }

    /// Gives every item its key, all of them present. Keys are finite. Tells where each item is, for [`Self::remove`].
    pub(crate) fn fill(&mut self, mut key: impl FnMut(u32) -> f32) {
        for entry in &mut self.entries {
            entry.key = key(entry.item);
        }
        let (from, to) = (0, self.entries.len());
        self.total(0, 0, from, to);
    }

    fn total(&mut self, node: usize, level: u32, from: usize, to: usize) -> Node {
        let total = if level == self.depth {
            Node::from_entries(&self.entries[from..to])
        } else {
            let middle = from + (to - from) / 2;
            let left = self.total(2 * node + 1, level + 1, from, middle);
            left.with(&self.total(2 * node + 2, level + 1, middle, to))
        };
        self.nodes[node] = total;
        total
    }

    /// Takes the item with the greatest key in the area out of the tree.
    pub(crate) fn take(&mut self, area: Area) -> Option<u32> {
        let mut best = (GONE, usize::MAX, 0);
        self.seek(&area, 0, 0, 0, self.entries.len(), &mut best);
        let (_, at, leaf) = best;
        let entry = self.entries.get_mut(at)?;
        entry.key = GONE;
        let item = entry.item;
        // The leaf's range follows from the way down to it.
        let mut node = leaf;
        let (mut from, mut to) = (0, self.entries.len());
        for level in (0..self.depth).rev() {
            let middle = from + (to - from) / 2;
            if ((leaf + 1) >> level) & 1 == 0 {
                to = middle;
            } else {
                from = middle;
            }
        }
        // Bounds shrink with what is left, or late questions would look into many that hold nothing for them.
        let mut now = Node::from_entries(&self.entries[from..to]);
        loop {
            if self.nodes[node] == now {
                break;
            }
            self.nodes[node] = now;
            if node == 0 {
                break;
            }
            node = (node - 1) / 2;
            now = self.nodes[2 * node + 1].with(&self.nodes[2 * node + 2]);
        }
        Some(item)
    }

    fn seek(
        &self,
        area: &Area,
        node: usize,
        level: u32,
        from: usize,
        to: usize,
        best: &mut (f32, usize, usize),
    ) {
        if level == self.depth {
            for (entry, at) in self.entries[from..to].iter().zip(from..) {
                if entry.key > best.0
                    && area.start.0 <= entry.start
                    && entry.start <= area.start.1
                    && area.end.0 <= entry.end
                    && entry.end <= area.end.1
                {
                    *best = (entry.key, at, node);
                }
            }
            return;
        }
        let middle = from + (to - from) / 2;
        let (left, right) = (2 * node + 1, 2 * node + 2);
        let left_first = self.nodes[left].best >= self.nodes[right].best;
        for is_left in [left_first, !left_first] {
            let (child, from, to) = if is_left {
                (left, from, middle)
            } else {
                (right, middle, to)
            };
            let bounds = &self.nodes[child];
            if bounds.best > best.0
                && bounds.start_max >= area.start.0
                && bounds.start_min <= area.start.1
                && bounds.end_max >= area.end.0
                && bounds.end_min <= area.end.1
                && bounds.lifetime_min <= area.end.1 - area.start.0
            {
                self.seek(area, child, level + 1, from, to, best);
            }
        }
    }
}

/// Sorts the entries so that each half of a half, and so on, is close together.
fn shape(entries: &mut [Entry], depth: u32, level: u32) {
    if level == depth {
        return;
    }
    let middle = entries.len() / 2;
    if level.is_multiple_of(2) {
        entries.select_nth_unstable_by_key(middle, |entry| (entry.start, entry.end, entry.item));
    } else {
        entries.select_nth_unstable_by_key(middle, |entry| {
            (entry.end - entry.start, entry.start, entry.item)
        });
    }
    let (left, right) = entries.split_at_mut(middle);
    shape(left, depth, level + 1);
    shape(right, depth, level + 1);
}
