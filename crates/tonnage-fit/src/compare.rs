// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether two recordings of one job are equal.
//!
//! Two runs of the same program in fresh processes are not equal row for row. Times differ; and where a library frees
//! what it kept in a table by address, as autocast does with its cast weights, the order of the frees follows the
//! addresses that the system gave to the process. Frees that follow each other leave the same memory free in any order,
//! so their order is not compared. The last frees of a process may be missing from the other: a fork
//! does not take apart everything when it ends. Pinned memory of the host is not the GPU's, and threads of data loaders
//! take it when the scheduler lets them; it is left out. So are the holders, marks, and uses of a recording: a census is
//! taken where Python collects its garbage, at another moment in a fork. Everything else is compared.

use std::cell::RefCell;
use std::io::Read;
use std::iter::{self, Peekable};

use tonnage_recording::{Event, Kind, ReadError, Reader, StackTable};

/// The first row in which the first parts of the recordings of a fresh process and of a fork differ.
pub(crate) fn first_difference(
    fresh: impl Read,
    fork: impl Read,
) -> Result<Option<u64>, ReadError> {
    // A census adds texts, so the same text has another number in the other recording.
    let texts = RefCell::new(StackTable::new());
    let mut one = rows(Reader::new(fresh)?, &texts).peekable();
    let mut other = rows(Reader::new(fork)?, &texts).peekable();
    loop {
        let (left, right) = (next(&mut one)?, next(&mut other)?);
        let events = |rows: &[Row]| rows.iter().map(|row| row.event).collect::<Vec<_>>();
        let (was, is) = (events(&left), events(&right));
        if was != is {
            let is_end = one.peek().is_none() && other.peek().is_none();
            if is_end && was.iter().all(is_free) && is.iter().all(|event| was.contains(event)) {
                return Ok(None);
            }
            let same = was.iter().zip(&is).take_while(|(was, is)| was == is);
            let same = same.count();
            return Ok([&left, &right]
                .into_iter()
                .find_map(|rows| rows.get(same))
                .map(|row| row.number));
        }
        if left.is_empty() {
            return Ok(None);
        }
    }
}

/// An event, and which row of its recording it is.
struct Row {
    number: u64,
    event: Event,
}

/// The rows that are compared, with numbers of texts and stacks from one table.
fn rows<R: Read>(
    mut events: Reader<R>,
    texts: &RefCell<StackTable>,
) -> impl Iterator<Item = Result<Row, ReadError>> {
    let all = iter::from_fn(move || {
        let event = match events.next()? {
            Ok(event) => event,
            Err(error) => return Some(Err(error)),
        };
        let mut texts = texts.borrow_mut();
        let stacks = events.stacks();
        Some(Ok(Event {
            time: None,
            uses: None,
            stack: event.stack.map(|stack| texts.adopt(stacks, stack)),
            name: event.name.map(|name| texts.intern(stacks.text(name))),
            text: event.text.map(|text| texts.intern(stacks.text(text))),
            ..event
        }))
    });
    let compared = all.zip(0..).filter(|(event, _)| is_of_device(event));
    compared.map(|(event, number)| {
        Ok(Row {
            number,
            event: event?,
        })
    })
}

/// The next event, or all frees that follow each other, by address; empty at the end.
fn next(
    rows: &mut Peekable<impl Iterator<Item = Result<Row, ReadError>>>,
) -> Result<Vec<Row>, ReadError> {
    let Some(first) = rows.next().transpose()? else {
        return Ok(vec![]);
    };
    let frees = is_free(&first.event);
    let mut taken = vec![first];
    if frees {
        while let Some(row) = rows.next_if(|row| row.as_ref().is_ok_and(|row| is_free(&row.event)))
        {
            taken.push(row?);
        }
        taken.sort_by_key(|row| (row.event.device, row.event.address, row.event.kind as u8));
    }
    Ok(taken)
}

fn is_of_device(event: &Result<Event, ReadError>) -> bool {
    let kind = event.as_ref().map(|event| event.kind);
    let others = |kind| {
        matches!(
            kind,
            Kind::HostAlloc | Kind::HostFree | Kind::Holder | Kind::Used | Kind::Mark
        )
    };
    !kind.is_ok_and(others)
}

fn is_free(event: &Event) -> bool {
    matches!(event.kind, Kind::FreeRequested | Kind::FreeCompleted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonnage_recording::Trace;

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

    use Kind::{Alloc, FreeCompleted, FreeRequested, Holder, HostAlloc, HostFree, Mark};

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
    fn pinned_memory_of_the_host_may_come_at_another_moment() {
        let one = [(HostAlloc, 0), (Alloc, 512), (Alloc, 1024)];
        let other = [(Alloc, 512), (Alloc, 1024), (HostAlloc, 0), (HostFree, 0)];
        assert_eq!(difference(&one, &other), None);
        assert_eq!(
            difference(&one, &other[..1]),
            Some(2),
            "rows are counted with them"
        );
    }

    #[test]
    fn a_census_may_come_at_another_moment() {
        let fresh = [(Alloc, 512), (Mark, 0), (Holder, 512), (Alloc, 1024)];
        let fork = [(Alloc, 512), (Alloc, 1024), (Mark, 0), (Holder, 512)];
        assert_eq!(difference(&fresh, &fork), None);
        assert_eq!(difference(&fresh, &fork[..1]), Some(3));
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
