// SPDX-License-Identifier: MIT OR Apache-2.0
//! The texts and stacks that the drawn blocks of a page need, each of them once.

use std::collections::HashMap;

use tonnage_recording::{StackId, StackTable, TextId};

use crate::names::{is_own, shortened};

/// Characters of a text.
const TEXT: usize = 300;

/// The texts that kept blocks need; 0 means none.
pub(super) struct Texts<'a> {
    table: &'a StackTable,
    pub(super) list: Vec<String>,
    ids: HashMap<TextId, u64>,
    /// Shortened texts, by themselves.
    own: HashMap<String, u64>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(table: &'a StackTable) -> Self {
        Self {
            table,
            list: vec![String::new()],
            ids: HashMap::new(),
            own: HashMap::new(),
        }
    }

    pub(super) fn id(&mut self, text: Option<TextId>) -> u64 {
        let Some(text) = text else { return 0 };
        if let Some(id) = self.ids.get(&text) {
            return *id;
        }
        let id = self.intern_text(self.table.text(text));
        self.ids.insert(text, id);
        id
    }

    pub(super) fn intern_text(&mut self, text: &str) -> u64 {
        let mut cut: String = text.chars().take(TEXT).collect();
        if cut.len() < text.len() {
            cut.push('…');
        }
        if cut.is_empty() {
            return 0;
        }
        let list = &mut self.list;
        *self.own.entry(cut).or_insert_with_key(|cut| {
            list.push(cut.clone());
            list.len() as u64 - 1
        })
    }
}

pub(super) struct StackNode {
    /// How much smaller the caller's number is; 0 means none.
    pub(super) parent_distance: u64,
    pub(super) frame: u64,
}

pub(super) struct FrameTexts {
    pub(super) own: bool,
    pub(super) function: u64,
    pub(super) file: u64,
    pub(super) line: u64,
}

/// The stacks that kept blocks need; 0 means none.
pub(super) struct Stacks<'a> {
    table: &'a StackTable,
    full_paths: bool,
    pub(super) nodes: Vec<StackNode>,
    ids: HashMap<StackId, u64>,
    pub(super) frames: Vec<FrameTexts>,
    frame_ids: HashMap<tonnage_recording::FrameId, u64>,
}

impl<'a> Stacks<'a> {
    pub(super) fn new(table: &'a StackTable, full_paths: bool) -> Self {
        Self {
            table,
            full_paths,
            nodes: Vec::new(),
            ids: HashMap::new(),
            frames: Vec::new(),
            frame_ids: HashMap::new(),
        }
    }

    pub(super) fn id(&mut self, stack: Option<StackId>, texts: &mut Texts<'_>) -> u64 {
        let Some(stack) = stack else { return 0 };
        // From the innermost outwards to what is known already, then back: recursion would follow the file's depth.
        let mut missing = Vec::new();
        let mut at = Some(stack);
        let mut parent = 0;
        while let Some(one) = at {
            if let Some(id) = self.ids.get(&one) {
                parent = *id;
                break;
            }
            missing.push(one);
            at = self.table.parent(one).filter(|parent| *parent < one);
        }
        for one in missing.into_iter().rev() {
            let frame = self.frame(one, texts);
            let number = self.nodes.len() as u64 + 1;
            self.nodes.push(StackNode {
                parent_distance: if parent == 0 { 0 } else { number - parent },
                frame,
            });
            self.ids.insert(one, number);
            parent = number;
        }
        parent
    }

    fn frame(&mut self, stack: StackId, texts: &mut Texts<'_>) -> u64 {
        let Some((id, frame)) = self.table.top_id(stack).zip(self.table.top(stack)) else {
            return 0;
        };
        if let Some(number) = self.frame_ids.get(&id) {
            return *number;
        }
        let file = if self.full_paths {
            texts.intern_text(frame.file)
        } else {
            texts.intern_text(&shortened(frame.file))
        };
        self.frames.push(FrameTexts {
            own: is_own(frame.file),
            function: texts.intern_text(frame.function),
            file,
            line: frame.line,
        });
        let number = self.frames.len() as u64;
        self.frame_ids.insert(id, number);
        number
    }
}
