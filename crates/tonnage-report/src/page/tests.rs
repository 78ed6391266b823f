// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of recordings that mean harm, are too large, or hold nothing.

use std::collections::HashMap;
use std::io::Read as _;

use tonnage_analysis::explain::UnusedBlock;
use tonnage_analysis::holdings::{Category, HeldBy, Holding, Phase, PhaseSpan, Sort};
use tonnage_analysis::plan::{Packing, PlacedBlock};
use tonnage_recording::StackTable;

use super::*;
use crate::input::{Answer, Fact, Finding, Proposal};
use crate::testing;
use crate::timeline::CATEGORIES;

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

fn blocks(stacks: &mut StackTable, count: u32) -> Vec<Holding> {
    let function = stacks.intern("forward");
    let file = stacks.intern("/home/alice/secret/llm/model.py");
    let name = stacks.intern(HOSTILE);
    (0..count)
        .map(|n| {
            let frame = stacks.frame(function, file, u64::from(n % 999));
            let died = n + 2 + n.wrapping_mul(2_654_435_761) % 1000;
            let address = u64::from(n.wrapping_mul(2_246_822_519)) << 9;
            let bytes = u64::from(n.wrapping_mul(3_266_489_917)) >> 4;
            Holding {
                requested: 1,
                stream: u64::from(n % 3),
                stack: Some(stacks.push(None, frame)),
                module: Some(name),
                name: Some(name),
                step: n / 100,
                category: Category::ALL[n as usize % CATEGORIES],
                phase: Phase::Forward,
                ..Holding::new(n, died, address, bytes)
            }
        })
        .collect()
}

fn subject<'a>(blocks: &'a [Holding], stacks: &'a StackTable, rows: u32) -> Subject<'a> {
    Subject {
        capacity: Some(1 << 40),
        ..testing::subject(blocks, stacks, rows)
    }
}

fn story() -> Story {
    Story {
        title: HOSTILE.to_owned(),
        verdict: HOSTILE.to_owned(),
        facts: vec![Fact {
            name: "command".to_owned(),
            text: "python /home/alice/secret/train.py".to_owned(),
        }],
        ..Story::default()
    }
}

fn written(subject: Subject<'_>, options: &Options) -> Result<(String, Written), WriteError> {
    page(&story(), &[subject], options)
}

fn page(
    story: &Story,
    subjects: &[Subject<'_>],
    options: &Options,
) -> Result<(String, Written), WriteError> {
    let words = Words {
        name: "process 0".to_owned(),
        unknown: vec!["what /home/alice/secret/tool.py did".to_owned()],
        ..Words::default()
    };
    let mut panes: Vec<Pane<'_>> = Vec::new();
    for subject in subjects {
        panes.push(Pane {
            picture: Picture::draw(*subject),
            words: words.clone(),
        });
    }
    let mut page = Vec::new();
    let written = write(story, &panes, options, &mut page)?;
    Ok((String::from_utf8(page).unwrap(), written))
}

/// Everything in the page that is compressed, as bytes in a text.
fn unpacked(page: &str) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in page.split("application/octet-stream").skip(1) {
        let data = part.split_once('>').unwrap().1.split_once('<').unwrap().0;
        let bits: Vec<u32> = data
            .chars()
            .filter_map(|digit| DIGITS.find(digit).map(|at| at as u32))
            .collect();
        let mut bytes = Vec::new();
        for four in bits.chunks(4) {
            let sum = (0..4).fold(0, |sum, n| sum << 6 | four.get(n).copied().unwrap_or(0));
            bytes.extend(&sum.to_be_bytes()[1..four.len()]);
        }
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut plain)
            .unwrap();
        text.push_str(&String::from_utf8_lossy(&plain));
    }
    text
}

#[test]
fn names_of_the_recording_stay_text_and_folders_stay_at_home() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 300);
    let subject = subject(&blocks, &stacks, 1500);
    let (page, _) = written(subject, &Options::default()).unwrap();
    // Words, timeline, program, blocks.
    assert_eq!(page.matches("<script").count(), 4);
    assert_eq!(page.matches("</script").count(), 4);
    assert!(!page.contains("<img"));
    assert!(!page.contains("http://") && !page.contains("https://"));
    let data = unpacked(&page);
    assert!(data.contains("llm/model.py") && data.contains(HOSTILE));
    assert!(
        !data.contains("alice") && !data.contains("secret"),
        "{data}"
    );
    let options = Options {
        full_paths: true,
        ..Options::default()
    };
    let (page, _) = written(subject, &options).unwrap();
    assert!(unpacked(&page).contains("/home/alice/secret/llm/model.py"));
}

#[test]
fn the_data_stays_within_what_is_allowed() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 8_000);
    let subject = subject(&blocks, &stacks, 9_000);
    let most = Picture::draw(subject)
        .moments()
        .map(|(_, levels)| levels.allocated)
        .max();
    for max_data in [50_000, 200_000, 10 << 20] {
        let options = Options {
            max_data,
            ..Options::default()
        };
        let (page, written) = written(subject, &options).unwrap();
        assert!(written.data <= max_data, "{written:?}");
        assert_eq!(written.blocks + written.blocks_summed_up, 8_000);
        // The peak is in the page to the byte, however coarse it is.
        let peak = format!("\"allocated\":{}", most.unwrap());
        assert!(unpacked(&page).contains(&peak), "{max_data}");
    }
    let options = Options {
        max_data: 500,
        ..Options::default()
    };
    assert!(matches!(
        written(subject, &options),
        Err(WriteError::TooSmall { needed }) if needed > 500
    ));
}

#[test]
fn a_packing_is_drawn_as_far_as_its_blocks_are_and_the_rest_is_counted() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 8_000);
    let place = |number: u32| PlacedBlock {
        block: Some(number),
        from: number,
        until: number + 10,
        address: u64::from(number % 10) << 9,
        bytes: 512,
    };
    let mut packing = Packing {
        arenas: vec![tonnage_analysis::plan::Arena {
            pool: None,
            base: 0,
            peak: 5120,
            lower_bound: 5120,
            proved: true,
            buffers: 8_000,
            streams: 1,
        }],
        places: (0..8_000).map(place).collect(),
    };
    for max_data in [60_000, 10 << 20] {
        let subject = Subject {
            packing: Some(&packing),
            ..subject(&blocks, &stacks, 9_000)
        };
        let options = Options {
            max_data,
            ..Options::default()
        };
        let (page, written) = written(subject, &options).unwrap();
        let rest = format!("\"plan_rest_blocks\":{},", written.blocks_summed_up);
        assert!(unpacked(&page).contains(&rest), "{written:?}");
    }
    // Places of blocks that do not exist, twice in one place, beyond everything.
    for (number, odd) in packing.places.iter_mut().enumerate() {
        odd.block = [None, Some(7), Some(u32::MAX)][number % 3];
        odd.address = u64::MAX >> (number % 64);
        odd.bytes = u64::MAX >> (number % 61);
        odd.until = u32::MAX - odd.from;
    }
    let subject = Subject {
        packing: Some(&packing),
        ..subject(&blocks, &stacks, 9_000)
    };
    let (page, _) = written(subject, &Options::default()).unwrap();
    assert!(unpacked(&page).contains("\"plan_rest_blocks\":7999,"));
}

#[test]
fn nothing_and_nonsense_still_make_a_page() {
    let stacks = StackTable::new();
    written(subject(&[], &stacks, 0), &Options::default()).unwrap();
    let mut other = StackTable::new();
    let mut blocks = blocks(&mut other, 50);
    blocks[3].bytes = u64::MAX;
    blocks[4].address = u64::MAX;
    blocks[5].born = u32::MAX;
    blocks[6].died = 0;
    let phases = [
        PhaseSpan {
            phase: Phase::Step,
            from: 9,
            to: 3,
            step: u32::MAX,
        },
        PhaseSpan {
            phase: Phase::Forward,
            from: 0,
            to: u32::MAX,
            step: 0,
        },
    ];
    // Ids of another table, and fewer rows than the blocks refer to.
    let subject = Subject {
        phases: &phases,
        ..subject(&blocks, &stacks, 20)
    };
    written(subject, &Options::default()).unwrap();
}

#[test]
fn holders_answers_and_findings_are_text_without_folders_and_lead_to_their_blocks() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 300);
    let held = HeldBy {
        sort: Sort::List,
        name: HOSTILE.to_owned(),
        function: None,
        place: Some(tonnage_analysis::holdings::Place {
            file: "/home/alice/secret/keep.py".to_owned(),
            line: 7,
            function: "<module>".to_owned(),
        }),
        exception: None,
        unsaved: false,
        operation: None,
        shape: Some("bfloat16[61440, 4096]".to_owned()),
        hooks: None,
        in_library: false,
    };
    let holders: HashMap<u32, HeldBy> = (0..300).map(|block| (block, held.clone())).collect();
    let told = "`x` (/home/alice/secret/a.py:3)".to_owned();
    let story = Story {
        answer: Some(Answer {
            headline: told.clone(),
            fixes: vec![Proposal {
                advice: told.clone(),
                paste: Some(HOSTILE.to_owned()),
                proof: told.clone(),
            }],
            ..Answer::default()
        }),
        findings: vec![Finding {
            code: "TN102".to_owned(),
            title: "memory is fragmented".to_owned(),
            text: told,
            pane: 1,
            // The last is not a block.
            blocks: vec![3, 5, 300],
            pins: true,
        }],
        ..story()
    };
    let one = Subject {
        failure: blocks[0].stack,
        holders: Some(&holders),
        ..subject(&blocks, &stacks, 1500)
    };
    let (page, written) = page(&story, &[one, one], &Options::default()).unwrap();
    assert_eq!((written.panes, written.blocks), (2, 600));
    assert!(!page.contains("<img"));
    let data = unpacked(&page);
    assert!(data.contains("secret/keep.py:7") || data.contains("keep.py:7"));
    assert!(!data.contains("alice"), "{data}");
    assert!(data.contains("bfloat16[61440, 4096]"));
    // The first block has the first stack.
    assert_eq!(data.matches("\"failure_stack\":1,").count(), 2);
    // In the second pane alone.
    let marks = "\"marked\":[{\"finding\":0,\"drawn\":2,\"left_out\":1}]";
    assert_eq!(data.matches(marks).count(), 1);
    assert_eq!(data.matches("\"marked\":[]").count(), 1);
}

#[test]
fn a_request_that_could_not_be_served_is_in_the_page_with_its_bytes() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 300);
    let failed = [Moment {
        row: 700,
        kind: crate::input::MomentKind::OutOfMemory,
        label: "out of memory".to_owned(),
        refused: Some(crate::input::Refused {
            requested: 4_194_307,
            free: 512,
        }),
    }];
    let subject = Subject {
        moments: &failed,
        ..subject(&blocks, &stacks, 1500)
    };
    let (page, _) = written(subject, &Options::default()).unwrap();
    let data = unpacked(&page);
    assert!(data.contains("\"refused\":{\"requested\":4194307,\"free\":512}"));
    assert!(data.contains("\"refused\":null"));
}

#[test]
fn blocks_that_stay_after_their_last_use_are_in_the_page() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 300);
    let plain = subject(&blocks, &stacks, 1500);
    let unused = [
        UnusedBlock { block: 3, from: 9 },
        // Before its birth, and of no block.
        UnusedBlock { block: 7, from: 1 },
        UnusedBlock {
            block: 300,
            from: u32::MAX,
        },
    ];
    let with = Subject {
        unused: &unused,
        ..plain
    };
    let (page, _) = written(with, &Options::default()).unwrap();
    let data = unpacked(&page);
    assert!(data.contains("{\"name\":\"unused\",\"kind\":\"varint\",\"count\":300,"));
    let (page, _) = written(plain, &Options::default()).unwrap();
    assert!(!unpacked(&page).contains("\"unused\""));
}

#[test]
fn panes_share_what_is_allowed() {
    let mut stacks = StackTable::new();
    let blocks = blocks(&mut stacks, 8_000);
    let all = [subject(&blocks, &stacks, 9_000); 3];
    let options = Options {
        max_data: 200_000,
        ..Options::default()
    };
    let (_, written) = page(&story(), &all, &options).unwrap();
    assert!(written.data <= 200_000, "{written:?}");
    assert_eq!(written.blocks + written.blocks_summed_up, 24_000);
}
