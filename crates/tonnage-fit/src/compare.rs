// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether two recordings of one job say the same.
//!
//! Two runs of the same program in fresh processes are not equal row for row. Times differ; and where a library frees
//! what it kept in a table by address, as autocast does with its cast weights, the order of the frees follows the
//! addresses that the system gave to the process. Frees that follow each other leave the same memory free in any order,
//! so their order is not compared. What a process frees as the last thing it does may be missing from the other: a fork
//! does not take apart everything when it ends. Everything else is compared.

use std::io::Read;
use std::iter::Peekable;

use tonnage_trace::{Event, Kind, ReadError, Reader};

/// The first row in which the first parts of the recordings of a fresh process and of a fork differ.
pub(crate) fn first_difference(
    fresh: impl Read,
    fork: impl Read,
) -> Result<Option<u64>, ReadError> {
    let mut one = Reader::new(fresh)?.peekable();
    let mut other = Reader::new(fork)?.peekable();
    let mut row = 0;
    loop {
        let (left, right) = (next(&mut one)?, next(&mut other)?);
        if left != right {
            let is_end = one.peek().is_none() && other.peek().is_none();
            if is_end && left.iter().all(is_free) && right.iter().all(|event| left.contains(event))
            {
                return Ok(None);
            }
            let same = left
                .iter()
                .zip(&right)
                .take_while(|(one, other)| one == other);
            return Ok(Some(row + same.count() as u64));
        }
        if left.is_empty() {
            return Ok(None);
        }
        row += left.len() as u64;
    }
}

/// The next event, or all frees that follow each other, by address; empty at the end.
fn next(
    events: &mut Peekable<impl Iterator<Item = Result<Event, ReadError>>>,
) -> Result<Vec<Event>, ReadError> {
    let Some(first) = events.next().transpose()? else {
        return Ok(vec![]);
    };
    let mut taken = vec![timeless(first)];
    if is_free(&first) {
        while let Some(event) = events.next_if(|event| event.as_ref().is_ok_and(is_free)) {
            taken.push(timeless(event?));
        }
        taken.sort_by_key(|event| (event.device, event.address, event.kind as u8));
    }
    Ok(taken)
}

fn is_free(event: &Event) -> bool {
    matches!(event.kind, Kind::FreeRequested | Kind::FreeCompleted)
}

fn timeless(event: Event) -> Event {
    Event {
        time: None,
        ..event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonnage_trace::Trace;

    fn recording(rows: &[(Kind, u64)]) -> Vec<u8> {
        let mut trace = Trace::new("test 1.0");
        for (time, (kind, address)) in rows.iter().enumerate() {
            let mut event = Event::new(*kind);
            event.address = *address;
            event.time = Some(time as i64);
            trace.events.push(event);
        }
        trace.write(Vec::new()).unwrap()
    }

    fn difference(one: &[(Kind, u64)], other: &[(Kind, u64)]) -> Option<u64> {
        first_difference(recording(one).as_slice(), recording(other).as_slice()).unwrap()
    }

    use Kind::{Alloc, FreeCompleted, FreeRequested};

    #[test]
    fn the_order_of_frees_does_not_matter() {
        let one = [
            (Alloc, 512),
            (Alloc, 1024),
            (FreeRequested, 512),
            (FreeCompleted, 512),
            (FreeRequested, 1024),
            (FreeCompleted, 1024),
        ];
        let mut other = one;
        other.swap(2, 4);
        other.swap(3, 5);
        assert_eq!(difference(&one, &other), None);
    }

    #[test]
    fn a_fork_may_free_less_at_its_end() {
        let fresh = [
            (Alloc, 512),
            (Alloc, 1024),
            (FreeRequested, 512),
            (FreeRequested, 1024),
        ];
        assert_eq!(difference(&fresh, &fresh[..3]), None);
        assert_eq!(difference(&fresh, &fresh[..2]), None);
        // A fresh process does not, and a fork frees nothing else.
        assert_eq!(difference(&fresh[..3], &fresh), Some(3));
        let other = [fresh[0], fresh[1], (FreeRequested, 2048)];
        assert_eq!(difference(&fresh, &other), Some(2));
    }

    #[test]
    fn everything_else_does() {
        let one = [
            (Alloc, 512),
            (Alloc, 1024),
            (FreeRequested, 512),
            (Alloc, 512),
        ];
        assert_eq!(
            difference(&one, &[(Alloc, 1024), (Alloc, 512), one[2], one[3]]),
            Some(0)
        );
        assert_eq!(
            difference(&one, &[one[0], one[1], (FreeRequested, 1024), one[3]]),
            Some(2)
        );
        assert_eq!(
            difference(&one, &[one[0], one[1], one[2], (Alloc, 1024)]),
            Some(3)
        );
        assert_eq!(difference(&one, &one[..3]), Some(3));
        assert_eq!(difference(&one[..3], &one), Some(3));
        // A free before an allocation is not one after it.
        assert_eq!(difference(&one, &[one[0], one[1], one[3], one[2]]), Some(2));
    }
}
