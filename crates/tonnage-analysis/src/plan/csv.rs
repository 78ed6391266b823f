// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning problems as CSV, with all fields of a buffer in minimalloc's format.
//!
//! The reader is that of tonnage-plan. Here the buffers become a [`Problem`], with their alignments and gaps, which
//! a recording has no place for. An offset is where someone placed a buffer; it binds only where the caller requests
//! it.

use std::io::Read;

use tonnage_plan::csv::{PlannerError, ProblemReader, Row};
use tonnage_plan::{Buffer, Problem};
use tonnage_recording::StackTable;

use super::problems::{Name, Problems, Wanted};

/// Reads a planning problem.
pub fn problem<R: Read>(source: R, wanted: &Wanted) -> Result<Problems, PlannerError> {
    let mut reader = ProblemReader::new(source)?;
    let mut texts = StackTable::new();
    let mut problem = wanted.capacity.map_or_else(Problem::new, Problem::fitting);
    let mut names = Vec::new();
    while let Some(row) = reader.next_row()? {
        problem.add(buffer(&row, wanted)?);
        names.push(Name::Text(texts.intern(&row.id())));
    }
    Ok(Problems::alone(problem, names, texts))
}

fn buffer(row: &Row<'_>, wanted: &Wanted) -> Result<Buffer, PlannerError> {
    let mut buffer = Buffer::new(row.size()?, row.lifetime()?);
    buffer.alignment = match wanted.alignment {
        Some(alignment) => alignment,
        None => row.alignment()?.unwrap_or(1),
    };
    buffer.gaps = row.gaps()?;
    if wanted.keep_offsets {
        buffer.offset = row.offset()?;
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, wanted: &Wanted) -> Result<Vec<Buffer>, String> {
        let problems = problem(text.as_bytes(), wanted).map_err(|error| error.to_string())?;
        let group = &problems.groups[0];
        assert_eq!(group.names.len(), group.problem.len());
        Ok(group.problem.buffers().collect())
    }

    #[test]
    fn gaps_are_kept_and_errors_are_those_of_the_reader() {
        let wanted = Wanted::default();
        let closed = read("size,end,begin,buffer,gaps\n7,5,0,a,1-2 4-4\n", &wanted);
        let gaps = Buffer::new(7, 0..6).with_gap(1..3).with_gap(4..5);
        assert_eq!(closed, Ok(vec![gaps]));
        let refused = read("id,lower,upper,size,gaps\na,0,5,1,3\n", &wanted);
        assert_eq!(
            refused.unwrap_err(),
            "line 2: a gap is not a pair of numbers"
        );
    }

    #[test]
    fn alignments_are_read_and_offsets_bind_when_wanted() {
        let text = "id,lower,upper,size,alignment,offset\na,0,5,7,4,8\nb,0,5,7,,\n";
        let (a, b) = (Buffer::new(7, 0..5), Buffer::new(7, 0..5));
        let read_with = |wanted| read(text, &wanted);
        assert_eq!(
            read_with(Wanted::default()),
            Ok(vec![a.clone().aligned(4), b.clone()])
        );
        let keep = Wanted {
            keep_offsets: true,
            ..Wanted::default()
        };
        assert_eq!(
            read_with(keep),
            Ok(vec![a.clone().aligned(4).fixed_at(8), b.clone()])
        );
        let aligned = Wanted {
            alignment: Some(16),
            ..Wanted::default()
        };
        assert_eq!(read_with(aligned), Ok(vec![a.aligned(16), b.aligned(16)]));
    }

    #[test]
    fn fixed_offsets_in_each_other_s_way_are_named() {
        let text = "id,lower,upper,size,offset\na,0,9,8,4\nb,0,9,8,12\nc,2,6,6,0\n";
        let wanted = Wanted {
            keep_offsets: true,
            ..Wanted::default()
        };
        let problems = problem(text.as_bytes(), &wanted).unwrap();
        let options = tonnage_plan::Options::default();
        let refused = crate::plan::plan(&problems, &wanted, &options).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the fixed offsets of a and c overlap at 2"
        );
    }

    #[test]
    fn damaged_files_are_refused_or_planned_but_never_panic() {
        let whole = "id,lower,end,size,alignment,gaps,offset\na,0,9,8,4,3-6,4\nb,-3,9,4,4,,\nc,3,6,6,2,4-5 5-5,0\n";
        let mut state = 1_u64;
        let mut draw = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % bound
        };
        let wanted = Wanted {
            keep_offsets: true,
            capacity: Some(64),
            ..Wanted::default()
        };
        let options = tonnage_plan::Options {
            attempts: 2,
            threads: 1,
            ..tonnage_plan::Options::default()
        };
        let (mut read, mut planned) = (0, 0);
        for _ in 0..3000 {
            let mut bytes = whole.as_bytes().to_vec();
            for _ in 0..=draw(3) {
                let at = draw(bytes.len().max(1));
                if at >= bytes.len() {
                    break;
                }
                match draw(3) {
                    0 => bytes[at] = b"0123456789-,\n\" @ax"[draw(18)],
                    1 => {
                        bytes.remove(at);
                    }
                    _ => bytes.truncate(at + 1),
                }
            }
            let Ok(problems) = problem(bytes.as_slice(), &wanted) else {
                continue;
            };
            read += 1;
            planned += u32::from(crate::plan::plan(&problems, &wanted, &options).is_ok());
        }
        assert!(
            read > 300 && planned > 100,
            "{read} read, {planned} planned"
        );
    }
}
