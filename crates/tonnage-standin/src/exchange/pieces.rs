// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where results are to be written that have yet to arrive.

/// A part of a result that is yet to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u64,
    /// Where it is in the result.
    pub(super) offset: u64,
    /// Whether a kernel has changed it since, unseen.
    pub(super) doubted: bool,
}

impl Piece {
    pub(super) fn end(&self) -> u64 {
        self.address + self.length
    }

    pub(super) fn overlaps(&self, address: u64, size: u64) -> bool {
        self.address < address.saturating_add(size) && address < self.end()
    }

    /// The part of it inside a range.
    pub(super) fn inside(&self, address: u64, size: u64) -> Option<Self> {
        let start = self.address.max(address);
        let end = self.end().min(address.saturating_add(size));
        (start < end).then(|| Self {
            address: start,
            length: end - start,
            offset: self.offset + (start - self.address),
            doubted: self.doubted,
        })
    }

    /// The parts of it outside of a range.
    pub(super) fn outside(&self, address: u64, size: u64) -> impl Iterator<Item = Self> {
        let end = address.saturating_add(size);
        let before = self.inside(0, address);
        let after = self.inside(end, u64::MAX - end);
        before.into_iter().chain(after)
    }

    /// The part of it whose place in the result is inside a range.
    pub(super) fn inside_of_result(&self, offset: u64, length: u64) -> Option<Self> {
        let start = self.offset.max(offset);
        let end = (self.offset + self.length).min(offset + length);
        (start < end).then(|| Self {
            address: self.address + (start - self.offset),
            length: end - start,
            offset: start,
            doubted: self.doubted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Piece = Piece {
        address: 100,
        length: 50,
        offset: 8,
        doubted: false,
    };

    fn split_piece(piece: Piece) -> (u64, u64, u64) {
        (piece.address, piece.length, piece.offset)
    }

    #[test]
    fn a_piece_is_cut_by_what_is_written_over_it() {
        let rest: Vec<_> = PIECE.outside(110, 20).map(split_piece).collect();
        assert_eq!(rest, [(100, 10, 8), (130, 20, 38)]);
        assert_eq!(PIECE.inside(110, 20).map(split_piece), Some((110, 20, 18)));
        assert_eq!(PIECE.outside(90, 100).count(), 0);
        assert_eq!(
            PIECE.outside(0, 100).map(split_piece).collect::<Vec<_>>(),
            [(100, 50, 8)]
        );
        assert!(!PIECE.overlaps(150, 10) && PIECE.overlaps(149, 1));
    }

    #[test]
    fn a_piece_takes_its_part_of_the_result() {
        assert_eq!(
            PIECE.inside_of_result(0, 20).map(split_piece),
            Some((100, 12, 8))
        );
        assert_eq!(
            PIECE.inside_of_result(20, 1000).map(split_piece),
            Some((112, 38, 20))
        );
        assert_eq!(PIECE.inside_of_result(58, 10), None);
    }
}
