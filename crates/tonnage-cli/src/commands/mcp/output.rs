// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a job prints: read so that it never has to wait, and forgotten but for the end.

use std::collections::VecDeque;
use std::io::{PipeWriter, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How much of the end is kept.
const KEPT: usize = 8 << 10;
/// How many lines of it are reported.
const LINES: usize = 20;
/// How long the last of it may take to arrive.
const LATE: Duration = Duration::from_millis(300);

/// The end of what a job prints.
pub(super) struct JobText {
    writer: PipeWriter,
    kept: Arc<Mutex<VecDeque<u8>>>,
    ended: Receiver<()>,
}

impl JobText {
    /// Nothing is printed yet.
    pub(super) fn new() -> std::io::Result<Self> {
        let (mut reader, writer) = std::io::pipe()?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (end, ended) = channel();
        let filled = Arc::clone(&kept);
        std::thread::Builder::new()
            .name("job output".to_owned())
            .spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = reader.read(&mut buffer) {
                    let mut kept = filled.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend(&buffer[..read]);
                    let more = kept.len().saturating_sub(KEPT);
                    kept.drain(..more);
                }
                // Nobody waits for it if the job went on in the background.
                let _ = end.send(());
            })?;
        Ok(Self {
            writer,
            kept,
            ended,
        })
    }

    /// The pipe as a file that any process of this user can open.
    pub(super) fn path(&self) -> PathBuf {
        let (process, pipe) = (std::process::id(), self.writer.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{pipe}"))
    }

    /// The last lines of it.
    pub(super) fn end(self) -> String {
        drop(self.writer);
        let _ = self.ended.recv_timeout(LATE);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_end_of_much_text_is_kept_and_no_writer_waits() {
        let text = JobText::new().unwrap();
        let mut file = std::fs::File::options()
            .append(true)
            .open(text.path())
            .unwrap();
        file.write_all(&b"line\n".repeat(50_000)).unwrap();
        file.write_all(b"the last\n").unwrap();
        drop(file);
        let end = text.end();
        assert_eq!(end.lines().count(), LINES);
        assert!(end.ends_with("line\nthe last"), "{end}");
    }

    #[test]
    fn what_is_no_text_and_who_holds_the_pipe_open_do_no_harm() {
        let text = JobText::new().unwrap();
        let mut held = std::fs::File::options()
            .append(true)
            .open(text.path())
            .unwrap();
        held.write_all(b"\xff\xfe bytes").unwrap();
        assert!(text.end().ends_with(" bytes"));
    }
}
