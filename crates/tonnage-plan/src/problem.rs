// SPDX-License-Identifier: MIT OR Apache-2.0
//! A planning problem: buffers, the spaces they may lie in, and the constraints between them.
//!
//! Columns instead of a list of structs, because a recording of ten million buffers is planned in a gigabyte: what
//! every buffer has takes 24 bytes, and what few have (gaps, a fixed offset, a choice of spaces) is kept aside.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Most buffers of one problem; indices are 32 bits wide.
pub const MAX_BUFFERS: usize = 1 << 30;

/// Most bytes that all buffers of one problem may have together, so that no sum overflows.
pub const MAX_BYTES: u64 = 1 << 60;

/// A buffer of a problem: the order in which it was added, from 0.
///
/// ```
/// use tonnage_plan::{Buffer, Problem};
///
/// let mut problem = Problem::new();
/// let first = problem.add(Buffer::new(1024, 0..2));
/// let second = problem.add(Buffer::new(512, 1..3));
/// assert_eq!((first.index(), second.index()), (0, 1));
/// assert_eq!(problem.buffer(second).size, 512);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(u32);

impl BufferId {
    /// The buffer at an index, for callers that count for themselves.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its index in columns such as [`Plan::offsets`](crate::Plan::offsets).
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A buffer: how much, when, and where it may lie.
///
/// ```
/// use tonnage_plan::{Buffer, Options, Problem, plan};
///
/// let mut problem = Problem::new();
/// problem.add(Buffer::new(100, 0..9).aligned(16).with_gap(3..6));
/// // It fits into the gap, so both take the same bytes.
/// problem.add(Buffer::new(80, 4..6));
/// // Something else uses this range all the time.
/// problem.add(Buffer::new(16, 0..9).fixed_at(112));
/// let plan = plan(&problem, &Options::default())?;
/// assert_eq!(plan.offsets, [0, 0, 112]);
/// # Ok::<(), tonnage_plan::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes.
    pub size: u64,
    /// The first moment it is in use.
    pub start: i64,
    /// The first moment it is no longer in use: a buffer that starts then may take its place.
    pub end: i64,
    /// Its offset is a multiple of this.
    pub alignment: u64,
    /// Times within its lifetime in which its contents do not matter, so that others may use its place.
    pub gaps: Vec<Range<i64>>,
    /// The offset it must have.
    pub offset: Option<u64>,
    /// The spaces it may lie in, by number; empty means any.
    pub spaces: Vec<u16>,
}

impl Buffer {
    /// A buffer that may lie anywhere.
    pub const fn new(size: u64, lifetime: Range<i64>) -> Self {
        Self {
            size,
            start: lifetime.start,
            end: lifetime.end,
            alignment: 1,
            gaps: Vec::new(),
            offset: None,
            spaces: Vec::new(),
        }
    }

    /// With an alignment.
    #[must_use]
    pub const fn aligned(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }

    /// At a fixed offset.
    #[must_use]
    pub const fn fixed_at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// With one more gap.
    #[must_use]
    pub fn with_gap(mut self, gap: Range<i64>) -> Self {
        self.gaps.push(gap);
        self
    }

    /// In one of these spaces only.
    #[must_use]
    pub fn in_spaces(mut self, spaces: &[u16]) -> Self {
        self.spaces = spaces.to_vec();
        self
    }
}

/// A memory that buffers can be placed in.
///
/// ```
/// use tonnage_plan::{Buffer, Options, Problem, Space, plan};
///
/// // A small fast memory, and a large one in which every byte costs more.
/// let mut problem = Problem::new();
/// let fast = problem.add_space(Space::with_capacity(1024));
/// let slow = problem.add_space(Space { cost: 10, ..Space::default() });
/// let small = problem.add(Buffer::new(1000, 0..4));
/// let large = problem.add(Buffer::new(4000, 0..4));
/// let plan = plan(&problem, &Options::default())?;
/// assert_eq!((plan.space(small), plan.space(large)), (fast, slow));
/// assert_eq!(plan.cost, 40_000);
/// # Ok::<(), tonnage_plan::Invalid>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// How much it has; `None` requests the least peak.
    pub capacity: Option<u64>,
    /// The cost of a byte of a buffer here; buffers go where they cost least as long as there is room.
    pub cost: u64,
    /// Ranges of offsets that nothing may use at any time.
    pub forbidden: Vec<Range<u64>>,
}

impl Space {
    /// A space of this capacity.
    pub const fn with_capacity(capacity: u64) -> Self {
        Self {
            capacity: Some(capacity),
            cost: 0,
            forbidden: Vec::new(),
        }
    }
}

/// Properties of only few buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) gaps: Vec<Range<i64>>,
    pub(crate) offset: Option<u64>,
    pub(crate) spaces: Vec<u16>,
}

/// Buffers to be placed. Spaces are known by the order in which they were added, from 0.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    pub(crate) sizes: Vec<u64>,
    pub(crate) starts: Vec<i64>,
    pub(crate) ends: Vec<i64>,
    /// Empty as long as every alignment is 1.
    pub(crate) alignments: Vec<u64>,
    pub(crate) extras: BTreeMap<BufferId, Extra>,
    pub(crate) aliases: Vec<(BufferId, BufferId)>,
    pub(crate) spaces: Vec<Space>,
}

impl Problem {
    /// A problem without buffers, in one unlimited space: the least peak is requested.
    pub fn new() -> Self {
        Self::default()
    }

    /// A problem without buffers, in one space of this capacity.
    pub fn fitting(capacity: u64) -> Self {
        Self {
            spaces: vec![Space::with_capacity(capacity)],
            ..Self::default()
        }
    }

    /// Makes room for as many buffers at once.
    pub fn reserve(&mut self, buffers: usize) {
        self.sizes.reserve_exact(buffers);
        self.starts.reserve_exact(buffers);
        self.ends.reserve_exact(buffers);
    }

    /// Adds a buffer.
    pub fn add(&mut self, buffer: Buffer) -> BufferId {
        let index = self.sizes.len();
        // A problem with that many buffers is too large; planning it returns an error.
        let id = BufferId(u32::try_from(index).unwrap_or(u32::MAX));
        self.sizes.push(buffer.size);
        self.starts.push(buffer.start);
        self.ends.push(buffer.end);
        if buffer.alignment != 1 && self.alignments.is_empty() {
            self.alignments = vec![1; index];
        }
        if buffer.alignment != 1 || !self.alignments.is_empty() {
            self.alignments.push(buffer.alignment);
        }
        if !buffer.gaps.is_empty() || buffer.offset.is_some() || !buffer.spaces.is_empty() {
            let extra = Extra {
                gaps: buffer.gaps,
                offset: buffer.offset,
                spaces: buffer.spaces,
            };
            self.extras.insert(id, extra);
        }
        id
    }

    /// Adds a space and returns its number. A problem without any has one that is unlimited.
    pub fn add_space(&mut self, space: Space) -> usize {
        self.spaces.push(space);
        self.spaces.len() - 1
    }

    /// Demands that two buffers start at the same byte, whether they live at the same time or not: for results that
    /// are computed in place, and for values that are handed on.
    ///
    /// ```
    /// use tonnage_plan::{Buffer, Options, Problem, plan};
    ///
    /// let mut problem = Problem::new();
    /// let input = problem.add(Buffer::new(64, 0..2));
    /// let output = problem.add(Buffer::new(64, 1..3));
    /// problem.alias(input, output);
    /// let plan = plan(&problem, &Options::default())?;
    /// assert_eq!(plan.offset(input), plan.offset(output));
    /// assert_eq!(plan.peak(), 64);
    /// # Ok::<(), tonnage_plan::Invalid>(())
    /// ```
    pub fn alias(&mut self, one: BufferId, other: BufferId) {
        self.aliases.push((one, other));
    }

    /// How many buffers there are.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// All buffers, in the order in which they were added.
    pub fn ids(&self) -> impl Iterator<Item = BufferId> + use<> {
        (0..self.sizes.len() as u32).map(BufferId)
    }

    /// A buffer, put together again.
    ///
    /// # Panics
    /// If the problem has no such buffer.
    pub fn buffer(&self, id: BufferId) -> Buffer {
        let index = id.index();
        let extra = self.extras.get(&id).cloned().unwrap_or_default();
        Buffer {
            size: self.sizes[index],
            start: self.starts[index],
            end: self.ends[index],
            alignment: self.alignment(id),
            gaps: extra.gaps,
            offset: extra.offset,
            spaces: extra.spaces,
        }
    }

    /// All buffers, put together again.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        self.ids().map(|id| self.buffer(id))
    }

    /// The spaces; at least one.
    pub fn spaces(&self) -> Vec<Space> {
        if self.spaces.is_empty() {
            vec![Space::default()]
        } else {
            self.spaces.clone()
        }
    }

    /// The pairs that start at the same byte.
    pub fn aliases(&self) -> impl Iterator<Item = (BufferId, BufferId)> {
        self.aliases.iter().copied()
    }

    pub(crate) fn alignment(&self, id: BufferId) -> u64 {
        self.alignments.get(id.index()).copied().unwrap_or(1)
    }

    /// Whether the problem makes sense at all.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        if self.len() > MAX_BUFFERS || self.spaces.len() > usize::from(u16::MAX) {
            return Err(Invalid::TooMany);
        }
        let mut total = 0_u64;
        for buffer in self.ids() {
            let bad = |reason| Err(Invalid::Buffer { buffer, reason });
            if self.starts[buffer.index()] >= self.ends[buffer.index()] {
                return bad("its lifetime ends before it starts");
            }
            let alignment = self.alignment(buffer);
            if alignment == 0 || alignment > MAX_BYTES {
                return bad("its alignment is not between 1 and 2^60");
            }
            // Rounded up, since alignment may take that much.
            let rounded = self.sizes[buffer.index()].checked_next_multiple_of(alignment);
            total = match rounded.and_then(|rounded| total.checked_add(rounded)) {
                Some(total) if total <= MAX_BYTES => total,
                _ => return Err(Invalid::TooLarge),
            };
        }
        for (&buffer, extra) in &self.extras {
            let bad = |reason| Err(Invalid::Buffer { buffer, reason });
            if extra.gaps.iter().any(|gap| gap.start >= gap.end) {
                return bad("one of its gaps ends before it starts");
            }
            if let Some(offset) = extra.offset {
                if offset % self.alignment(buffer) != 0 {
                    return bad("its fixed offset is not a multiple of its alignment");
                }
                if offset > MAX_BYTES {
                    return Err(Invalid::TooLarge);
                }
            }
            let spaces = self.spaces.len().max(1);
            if extra
                .spaces
                .iter()
                .any(|space| usize::from(*space) >= spaces)
            {
                return bad("it may lie in a space that does not exist");
            }
        }
        for space in &self.spaces {
            if space.forbidden.iter().any(|range| range.end > MAX_BYTES) {
                return Err(Invalid::TooLarge);
            }
        }
        for &(one, other) in &self.aliases {
            if one.max(other).index() >= self.len() {
                return Err(Invalid::NoSuchBuffer {
                    buffer: one.max(other),
                });
            }
        }
        Ok(())
    }
}

/// Why a problem cannot be planned at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalid {
    /// A buffer contradicts itself.
    Buffer {
        /// Which one.
        buffer: BufferId,
        /// In which way.
        reason: &'static str,
    },
    /// An alias names a buffer that was not added.
    NoSuchBuffer {
        /// Which one.
        buffer: BufferId,
    },
    /// Two buffers that must start at the same byte cannot.
    Alias {
        /// The one.
        one: BufferId,
        /// The other.
        other: BufferId,
        /// Why not.
        reason: &'static str,
    },
    /// Two buffers with fixed offsets use the same byte at the same time.
    Fixed {
        /// The one.
        one: BufferId,
        /// The other.
        other: BufferId,
        /// When.
        moment: i64,
    },
    /// More than 2^30 buffers, or more than 65,535 spaces.
    TooMany,
    /// More than 2^60 bytes together.
    TooLarge,
}

impl fmt::Display for Invalid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { buffer, reason } => write!(formatter, "buffer {buffer}: {reason}"),
            Self::NoSuchBuffer { buffer } => {
                write!(
                    formatter,
                    "an alias names buffer {buffer}, which is not there"
                )
            }
            Self::Alias { one, other, reason } => {
                write!(
                    formatter,
                    "buffers {one} and {other} cannot start at the same byte: {reason}"
                )
            }
            Self::Fixed { one, other, moment } => write!(
                formatter,
                "the fixed offsets of buffers {one} and {other} overlap at {moment}"
            ),
            Self::TooMany => write!(formatter, "more than 2^30 buffers or 65,535 spaces"),
            Self::TooLarge => write!(formatter, "more than 2^60 bytes"),
        }
    }
}

impl std::error::Error for Invalid {}
