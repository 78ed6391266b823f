// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planning problems of a recording.
//!
//! The blocks of one process, device and pool are one planning problem: nothing else shares their memory. A block
//! lives from the row that hands it out to the row that completes its free, in rows of the recording; a planning
//! problem that was imported keeps its own times. Blocks that were there before the first row live from the start.
//! Streams are one time line here: the order of the rows is the order in which the allocator saw them, and it is
//! what the plan is valid for.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use tonnage_plan::{Buffer, Problem};
use tonnage_recording::facts;
use tonnage_recording::{Event, Kind, Pool, ReadError, Reader, StackTable, meta};

use super::problems::{Group, Name, Problems, Wanted};
use super::step::{Block, find_step, fullest_step};

/// The alignment of blocks in PyTorch's allocator.
const TORCH_ALIGNMENT: u64 = 512;

/// Problems that are distinguished; blocks beyond go with the last one's. No machine has so many pools.
const MAX_PROBLEMS: usize = 1 << 12;

/// Process, device and pool.
type Key = (u32, i32, Option<Pool>);

/// The blocks of a group.
#[derive(Default)]
struct Blocks {
    list: Vec<Block>,
    /// The key that is compared to find steps, for each block: the stack, or else the size.
    sites: Vec<u64>,
    streams: Vec<u64>,
}

/// Reads the problems of a recording.
pub fn problems<R: Read>(source: R, wanted: &Wanted) -> Result<Problems, ReadError> {
    let mut reader = Reader::new(source)?;
    let mut groups: BTreeMap<Key, Blocks> = BTreeMap::new();
    // Where a live block is: its group and place.
    let mut live: HashMap<(u32, i32, u64), (Key, usize)> = HashMap::new();
    let (mut row, mut passed_over, mut last) = (0_i64, 0, 0);
    let mut is_problem = None;
    // The rows after which a process began a new step.
    let mut marks: HashMap<u32, Vec<i64>> = HashMap::new();
    while let Some(event) = reader.next().transpose()? {
        let is_problem = *is_problem
            .get_or_insert_with(|| reader.fact(facts::RUN, meta::SOURCE) == Some("planner-csv"));
        let moment = if is_problem {
            event.time.unwrap_or(row)
        } else {
            row
        };
        last = last.max(moment);
        let address = (event.process, event.device, event.address);
        let before = matches!(event.kind, Kind::InitialBlock) && is_active(&event, reader.stacks());
        match event.kind {
            Kind::Alloc | Kind::InitialBlock if before || event.kind == Kind::Alloc => {
                let size = if event.requested > 0 {
                    event.requested
                } else {
                    event.size
                };
                let mut key = (event.process, event.device, event.pool);
                if groups.len() >= MAX_PROBLEMS && !groups.contains_key(&key) {
                    key = groups.last_key_value().map_or(key, |(key, _)| *key);
                }
                let group = groups.entry(key).or_default();
                if !group.streams.contains(&event.stream) && group.streams.len() < 64 {
                    group.streams.push(event.stream);
                }
                let name = match event.name {
                    _ if before => Name::Before(event.address),
                    Some(text) if is_problem => Name::Text(text),
                    _ => Name::Row(row.unsigned_abs()),
                };
                let place = group.list.len();
                group.list.push((moment, i64::MAX, size, name));
                group.sites.push(
                    event
                        .stack
                        .map_or(size, |stack| u64::MAX - u64::from(stack.get())),
                );
                if let Some((old, place)) = live.insert(address, (key, place)) {
                    passed_over += 1;
                    end(&mut groups, old, place, moment);
                }
            }
            Kind::FreeCompleted => match live.remove(&address) {
                Some((key, place)) => end(&mut groups, key, place, moment),
                None => passed_over += 1,
            },
            Kind::Mark
                if event
                    .text
                    .is_some_and(|text| reader.stacks().text(text) == "step") =>
            {
                marks.entry(event.process).or_default().push(row);
            }
            _ => {}
        }
        row += 1;
    }
    let is_problem = is_problem.unwrap_or(false);
    let alignment = wanted
        .alignment
        .unwrap_or(if is_problem { 1 } else { TORCH_ALIGNMENT });
    let (texts, _) = reader.into_parts();
    let groups = groups
        .into_iter()
        .map(|(key, blocks)| {
            let marks = marks.get(&key.0).map_or(&[][..], Vec::as_slice);
            group(key, blocks, marks, wanted, alignment, !is_problem, last + 1)
        })
        .collect();
    Ok(Problems {
        groups,
        texts,
        is_problem,
        passed_over,
        graph: None,
    })
}

fn is_active(event: &Event, texts: &StackTable) -> bool {
    let state = event.name.map(|name| texts.text(name));
    state.is_some_and(|state| state.starts_with("active"))
}

fn end(groups: &mut BTreeMap<Key, Blocks>, key: Key, place: usize, moment: i64) {
    if let Some(block) = groups
        .get_mut(&key)
        .and_then(|group| group.list.get_mut(place))
    {
        block.1 = moment;
    }
}

fn group(
    key: Key,
    blocks: Blocks,
    marks: &[i64],
    wanted: &Wanted,
    alignment: u64,
    whole: bool,
    end: i64,
) -> Group {
    let step = wanted.step.then(|| {
        let marked = fullest_step(&blocks.list, marks);
        marked.or_else(|| find_step(&blocks.list, &blocks.sites, end))
    });
    let step = step.flatten();
    let (first, last) = step.map_or((i64::MIN, end), |step| (step.first_row, step.end_row));
    let mut problem = wanted.capacity.map_or_else(Problem::new, Problem::fitting);
    let mut names = Vec::new();
    for (start, stop, size, name) in blocks.list {
        let (start, stop) = (start.max(first), stop.min(last));
        if start < stop && size > 0 {
            // A block of an allocator is a multiple of its alignment.
            let size = if whole {
                size.saturating_add(alignment - 1) / alignment * alignment
            } else {
                size
            };
            problem.add(Buffer::new(size, start..stop).aligned(alignment));
            names.push(name);
        }
    }
    Group {
        process: key.0,
        device: key.1,
        pool: key.2,
        streams: blocks.streams.len(),
        problem,
        names,
        step,
    }
}
