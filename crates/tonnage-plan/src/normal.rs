// SPDX-License-Identifier: MIT OR Apache-2.0
//! The normalised problem: what every engine works on.
//!
//! A problem is normalised once. It is validated, buffers that must be placed as one become families, what has no
//! bytes is left out, and what is left are entries: each has one offset, a hull in time and size, an alignment and
//! perhaps a fixed offset. A [`Selection`] is the entries of one space, with what all of them have in common. Engines
//! take selections, or what is made of them, and never look at buffers again.
//!
//! In a problem of plain buffers in one space every buffer is an entry, and the columns of the problem serve as they
//! are: ten million buffers are planned in a gigabyte.

use std::borrow::Cow;

use crate::family::{self, Families, gcd};
use crate::flexible::{Piece, Shape};
use crate::problem::{BufferId, Invalid, MAX_BYTES, Problem, Space};
use crate::rigid::Rigid;

/// The unit of placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The buffer, or the first member of the family.
    pub(crate) id: BufferId,
    /// First moment.
    pub(crate) start: i64,
    /// First moment after the last.
    pub(crate) end: i64,
    /// Greatest size.
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
    is_family: bool,
}

/// A problem that makes sense, as entries.
#[derive(Debug)]
pub(crate) struct Normalized<'a> {
    problem: &'a Problem,
    pub(crate) families: Families,
    pub(crate) spaces: Vec<Space>,
    /// Ascending; `None` if every buffer is plain and of some size.
    entries: Option<Vec<Entry>>,
}

impl<'a> Normalized<'a> {
    /// Validates and normalises.
    pub(crate) fn new(problem: &'a Problem) -> Result<Self, Invalid> {
        problem.validate()?;
        let families = family::families(problem)?;
        let spaces = problem.spaces();
        family::refuse_contradictions(&families, &spaces)?;
        let is_plain = families.is_empty() && problem.sizes.iter().all(|size| *size > 0);
        let mut normalized = Self {
            problem,
            families,
            spaces,
            entries: None,
        };
        if !is_plain {
            normalized.entries = Some(normalized.list());
        }
        Ok(normalized)
    }

    fn list(&self) -> Vec<Entry> {
        let mut follows = vec![false; self.problem.len()];
        for (&first, family) in &self.families {
            for &member in &family.members {
                follows[member.index()] = member != first;
            }
        }
        let entry = |id: BufferId| match self.families.get(&id) {
            Some(family) => {
                let (first, last) = (family.pieces.first()?, family.pieces.last()?);
                let sizes = family.pieces.iter().map(|piece| piece.2);
                Some(Entry {
                    id,
                    start: first.0,
                    end: last.1,
                    size: sizes.max()?,
                    alignment: family.alignment,
                    fixed: family.fixed,
                    is_family: true,
                })
            }
            None if follows[id.index()] || self.problem.sizes[id.index()] == 0 => None,
            None => Some(self.plain(id)),
        };
        self.problem.ids().filter_map(entry).collect()
    }

    fn plain(&self, id: BufferId) -> Entry {
        let index = id.index();
        Entry {
            id,
            start: self.problem.starts[index],
            end: self.problem.ends[index],
            size: self.problem.sizes[index],
            alignment: self.problem.alignment(id),
            fixed: None,
            is_family: false,
        }
    }

    /// All entries, in the one space there is.
    pub(crate) fn all(&self) -> Selection<'_> {
        Selection::new(self, 0, self.entries.as_deref().map(Cow::Borrowed))
    }

    /// The entries that are wanted, in a space.
    pub(crate) fn select(&self, space: u16, wanted: impl Fn(BufferId) -> bool) -> Selection<'_> {
        let entries = match &self.entries {
            Some(entries) => {
                let inside = entries.iter().filter(|entry| wanted(entry.id));
                Some(inside.copied().collect())
            }
            None if self.problem.ids().all(&wanted) => None,
            None => {
                let inside = self.problem.ids().filter(|id| wanted(*id));
                Some(inside.map(|id| self.plain(id)).collect())
            }
        };
        Selection::new(self, usize::from(space), entries.map(Cow::Owned))
    }

    /// Whether a buffer and its family allow a space.
    pub(crate) fn permits(&self, id: BufferId, space: u16) -> bool {
        match self.families.get(&id) {
            Some(family) => family.may_lie_in(space),
            None => self
                .problem
                .extras
                .get(&id)
                .is_none_or(|extra| extra.spaces.is_empty() || extra.spaces.contains(&space)),
        }
    }

    /// How many buffers there are.
    pub(crate) fn buffers(&self) -> usize {
        self.problem.len()
    }

    /// Offsets before anything is planned: 0, or where a buffer must be.
    pub(crate) fn initial_offsets(&self) -> Vec<u64> {
        let mut offsets = vec![0; self.problem.len()];
        for family in self.families.values() {
            for &member in &family.members {
                offsets[member.index()] = family.fixed.unwrap_or(0);
            }
        }
        offsets
    }

    /// The cost of all buffers in their spaces.
    pub(crate) fn cost(&self, space: impl Fn(usize) -> usize) -> u128 {
        let sizes = self.problem.sizes.iter().enumerate();
        sizes
            .map(|(index, size)| u128::from(*size) * u128::from(self.spaces[space(index)].cost))
            .sum()
    }
}

/// The entries that are planned in one space.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    normalized: &'a Normalized<'a>,
    /// Ascending; `None` if they are all buffers of the problem.
    entries: Option<Cow<'a, [Entry]>>,
    /// The number of the space.
    pub(crate) number: usize,
    pub(crate) space: &'a Space,
    /// The common unit of all alignments.
    pub(crate) unit: u64,
    /// A multiple of all alignments, if there is one that is not absurd.
    pub(crate) multiple: Option<u64>,
    /// Whether no entry is a family.
    pub(crate) is_plain: bool,
    /// Whether nothing has a fixed offset and nothing is forbidden.
    pub(crate) is_free: bool,
}

impl<'a> Selection<'a> {
    fn new(
        normalized: &'a Normalized<'a>,
        number: usize,
        entries: Option<Cow<'a, [Entry]>>,
    ) -> Self {
        let space = &normalized.spaces[number];
        let mut selection = Self {
            normalized,
            entries,
            number,
            space,
            unit: 1,
            multiple: Some(1),
            is_plain: true,
            is_free: space.forbidden.iter().all(|range| range.start >= range.end),
        };
        if let Some(entries) = &selection.entries {
            selection.is_plain = entries.iter().all(|entry| !entry.is_family);
            selection.is_free &= entries.iter().all(|entry| entry.fixed.is_none());
        }
        if !normalized.problem.alignments.is_empty() {
            (selection.unit, selection.multiple) = selection.alignments();
        }
        selection
    }

    fn alignments(&self) -> (u64, Option<u64>) {
        let (mut unit, mut multiple) = (0, Some(1_u64));
        for Entry { alignment, .. } in self.iter() {
            unit = gcd(unit, alignment);
            multiple = multiple
                .and_then(|multiple| (multiple / gcd(multiple, alignment)).checked_mul(alignment));
        }
        let most = MAX_BYTES / (self.len() as u64 + 1);
        (unit.max(1), multiple.filter(|multiple| *multiple <= most))
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        let entries = self.entries.as_ref();
        entries.map_or(self.normalized.problem.len(), |entries| entries.len())
    }

    /// An entry by its place.
    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Entry {
        match &self.entries {
            Some(entries) => entries[index],
            None => self.normalized.plain(BufferId::new(index as u32)),
        }
    }

    /// All entries, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        (0..self.len()).map(|index| self.entry(index))
    }

    /// Times and sizes of an entry, ascending.
    pub(crate) fn pieces(&self, entry: &Entry) -> impl Iterator<Item = (i64, i64, u64)> {
        let whole = (!entry.is_family).then_some((entry.start, entry.end, entry.size));
        let family = entry
            .is_family
            .then(|| &self.normalized.families[&entry.id]);
        let pieces = family.map_or(&[][..], |family| &family.pieces);
        whole.into_iter().chain(pieces.iter().copied())
    }

    /// The buffer that has this size at a moment; of several the first.
    pub(crate) fn member_at(&self, entry: &Entry, moment: i64, size: u64) -> BufferId {
        let family = self.normalized.families.get(&entry.id);
        let members = family.map_or(&[][..], |family| &family.members);
        let found = members.iter().find(|member| {
            let buffer = self.normalized.problem.buffer(**member);
            buffer.size == size && buffer.start <= moment && moment < buffer.end
        });
        *found.unwrap_or(&entry.id)
    }

    /// Places an entry, with all members if it is a family.
    pub(crate) fn place(&self, offsets: &mut [u64], index: u32, offset: u64) {
        let Entry { id, is_family, .. } = self.entry(index as usize);
        if is_family {
            for member in &self.normalized.families[&id].members {
                offsets[member.index()] = offset;
            }
        } else {
            offsets[id.index()] = offset;
        }
    }

    /// The hulls as rigid items, with sizes rounded up to multiples of `step`.
    pub(crate) fn rigid(&self, step: u64) -> Rigid {
        Rigid::new(self.len(), |index| {
            let entry = self.entry(index);
            (entry.start, entry.end, entry.size.next_multiple_of(step))
        })
    }

    /// The entries with all of their pieces, and a moment of each section.
    pub(crate) fn shapes(&self) -> (Vec<Shape>, Vec<i64>) {
        let (mut pieces, mut owners) = (Vec::new(), Vec::new());
        let mut shapes = Vec::with_capacity(self.len());
        for (index, entry) in self.iter().enumerate() {
            pieces.extend(self.pieces(&entry));
            owners.resize(pieces.len(), index);
            shapes.push(Shape {
                pieces: Vec::new(),
                alignment: entry.alignment,
                fixed: entry.fixed,
            });
        }
        let rigid = Rigid::new(pieces.len(), |piece| pieces[piece]);
        for (item, &piece) in rigid.items.iter().zip(&rigid.entries) {
            shapes[owners[piece as usize]].pieces.push(Piece {
                start: item.start,
                end: item.end,
                size: item.size,
            });
        }
        (shapes, rigid.moments)
    }
}
