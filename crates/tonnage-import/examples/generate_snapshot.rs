// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a PyTorch snapshot pickle of any size to a file, to measure importers with.
//!
//! `generate_snapshot FILE [EVENTS [FRAMES]]`: the bytes Python's pickler (protocol 4) would write for a run of
//! `EVENTS` events with stacks of `FRAMES` frames. As in real files, frames are shared, an allocation and its free
//! share one list of frames, and every allocation has a separate list. Deterministic.

use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Distinct frames, and distinct stacks made of them.
const FRAMES: usize = 2_000;
const STACKS: u64 = 20_000;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .unwrap_or_else(|| "snapshot.pickle".to_owned());
    let events = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_500_000);
    let frames = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let mut pickler = Pickler {
        out: BufWriter::with_capacity(1 << 20, File::create(path)?),
        memoised: 0,
    };
    pickler.snapshot(events, frames)?;
    pickler.out.flush()
}

struct Pickler<W> {
    out: W,
    memoised: u32,
}

/// The keys of an event, by their place in the memo.
struct Keys {
    event: [u32; 9],
    actions: [u32; 3],
    none: u32,
    empty: u32,
}

impl<W: Write> Pickler<W> {
    fn snapshot(&mut self, events: u64, depth: usize) -> io::Result<()> {
        self.raw(b"\x80\x04}")?;
        self.memoise()?;
        self.raw(b"(")?;
        self.text("segments")?;
        self.raw(b"]")?;
        self.memoise()?;
        self.text("device_traces")?;
        self.raw(b"]")?;
        self.memoise()?;
        self.raw(b"]")?;
        self.memoise()?;
        let (keys, places) = self.preamble()?;
        self.events(events, depth, &keys, &places)?;
        // Close the trace in the list of traces, and the outermost dictionary.
        self.raw(b"au.")
    }

    /// Texts and frames once, in a list that is thrown away: later uses are references.
    fn preamble(&mut self) -> io::Result<(Keys, Vec<u32>)> {
        self.raw(b"(")?;
        let mut keys = [0; 9];
        let names = [
            "action",
            "addr",
            "size",
            "stream",
            "time_us",
            "compile_context",
            "user_metadata",
            "pool_id",
            "frames",
        ];
        for (key, name) in keys.iter_mut().zip(names) {
            *key = self.text(name)?;
        }
        let mut actions = [0; 3];
        for (action, name) in actions
            .iter_mut()
            .zip(["alloc", "free_requested", "free_completed"])
        {
            *action = self.text(name)?;
        }
        let (none, empty) = (self.text("N/A")?, self.text("")?);
        let [name, filename, line] = [
            self.text("name")?,
            self.text("filename")?,
            self.text("line")?,
        ];
        let mut places = Vec::new();
        for index in 0..FRAMES {
            self.raw(b"}")?;
            places.push(self.memoise()?);
            self.raw(b"(")?;
            self.get(name)?;
            self.text(&format!("function_{index}"))?;
            self.get(filename)?;
            self.text(&format!(
                "/opt/venv/lib/python3.12/site-packages/package/module_{}.py",
                index / 8
            ))?;
            self.get(line)?;
            self.number(index as u64 * 7)?;
            self.raw(b"u")?;
        }
        self.raw(b"1")?;
        Ok((
            Keys {
                event: keys,
                actions,
                none,
                empty,
            },
            places,
        ))
    }

    fn events(&mut self, events: u64, depth: usize, keys: &Keys, places: &[u32]) -> io::Result<()> {
        let (mut random, mut list) = (0x2545_f491_4f6c_dd1d_u64, 0);
        for index in 0..events {
            // Python appends in batches of a thousand.
            if index % 1000 == 0 {
                self.raw(if index == 0 { b"(" } else { b"e(" })?;
            }
            let allocation = index / 3;
            self.raw(b"}")?;
            self.memoise()?;
            self.raw(b"(")?;
            self.get(keys.event[0])?;
            self.get(keys.actions[(index % 3) as usize])?;
            self.get(keys.event[1])?;
            self.number(0x7f00_0000_0000 + allocation % 4096 * 0x20_0000)?;
            self.get(keys.event[2])?;
            self.number(512 + allocation * 7919 % 33_554_432)?;
            self.get(keys.event[3])?;
            self.number(0)?;
            self.get(keys.event[4])?;
            self.number(1_783_874_041_854_969 + index * 3)?;
            self.get(keys.event[5])?;
            self.get(keys.none)?;
            self.get(keys.event[6])?;
            self.get(keys.empty)?;
            self.get(keys.event[7])?;
            self.raw(b"K\0K\0\x86")?;
            self.memoise()?;
            self.get(keys.event[8])?;
            if index % 3 == 0 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                list = self.stack(random % STACKS, depth, places)?;
            } else {
                self.get(list)?;
            }
            self.raw(b"u")?;
        }
        self.raw(if events == 0 { b"" } else { b"e" })
    }

    /// A stack whose outer frames are shared by many others.
    fn stack(&mut self, which: u64, depth: usize, places: &[u32]) -> io::Result<u32> {
        self.raw(b"]")?;
        let list = self.memoise()?;
        self.raw(b"(")?;
        for level in 0..depth as u64 {
            // Innermost first; each level outwards distinguishes half as many stacks.
            let path = which >> level;
            let mixed = (path + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ level;
            self.get(places[(mixed >> 20) as usize % places.len()])?;
        }
        self.raw(b"e")?;
        Ok(list)
    }

    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    fn memoise(&mut self) -> io::Result<u32> {
        self.raw(b"\x94")?;
        self.memoised += 1;
        Ok(self.memoised - 1)
    }

    fn get(&mut self, index: u32) -> io::Result<()> {
        if let Ok(index) = u8::try_from(index) {
            return self.raw(&[b'h', index]);
        }
        self.raw(b"j")?;
        self.raw(&index.to_le_bytes())
    }

    fn text(&mut self, text: &str) -> io::Result<u32> {
        self.raw(&[0x8c, text.len() as u8])?;
        self.raw(text.as_bytes())?;
        self.memoise()
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(number) = u8::try_from(number) {
            self.raw(&[b'K', number])
        } else if let Ok(number) = u16::try_from(number) {
            self.raw(b"M")?;
            self.raw(&number.to_le_bytes())
        } else if let Ok(number) = i32::try_from(number) {
            self.raw(b"J")?;
            self.raw(&number.to_le_bytes())
        } else {
            let bytes = number.to_le_bytes();
            let length = 8 - number.leading_zeros() as usize / 8;
            // A top bit that is set would read as a sign.
            let length = if bytes[length - 1] >= 0x80 {
                length + 1
            } else {
                length
            };
            self.raw(&[0x8a, length as u8])?;
            self.raw(&bytes[..length])
        }
    }
}
