// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts a byte stream into checked Arrow IPC messages.
//!
//! arrow-ipc's own stream reader trusts lengths it finds in the file: a message may announce a body of
//! exabytes, a compressed buffer may announce any uncompressed size, and both are allocated before they are
//! read. So the framing is done here: every length is compared with [`limits`] and with the bytes that are
//! really there before arrow sees a message. The input of arrow is whole, in range and of bounded size.
//!
//! A stream that stops inside a message is not an error at this level but [`Next::Cut`].

use std::io::{self, Read, Seek, SeekFrom};

use arrow_buffer::Buffer;
use arrow_ipc::{CompressionType, MessageHeader, RecordBatch};

/// The limits of a reader. A writer stays far below all of them.
pub mod limits {
    /// Bytes of a message's header.
    pub const HEADER: u64 = 1 << 20;
    /// Bytes of a message's body, before and after decompression.
    pub const BODY: u64 = 256 << 20;
    /// Rows of a batch.
    pub const ROWS: i64 = 1 << 20;
    /// Columns of a file.
    pub const COLUMNS: usize = 256;
    /// Bytes of one text.
    pub const TEXT: usize = 16 << 20;
    /// Bytes of all distinct texts of a recording, together with its `meta` facts.
    pub const TEXTS: u64 = 1 << 30;
    /// Frames of a recording.
    pub const FRAMES: usize = 1 << 24;
}

/// One whole message.
pub(crate) struct Message {
    /// Where it starts in the stream.
    pub(crate) offset: u64,
    /// The flatbuffer, already verified once.
    pub(crate) header: Vec<u8>,
    /// Its body.
    pub(crate) body: Buffer,
}

/// The next item of the stream.
pub(crate) enum Next {
    /// A whole message.
    Message(Message),
    /// The end marker: the writer finished.
    End,
    /// The stream stops here; `dropped` bytes belong to an incomplete message.
    Cut {
        /// Bytes of the incomplete message.
        dropped: u64,
    },
}

/// Why there is no next message.
pub(crate) enum Fault {
    Io(io::Error),
    Damaged(String),
}

impl Fault {
    fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged(reason.into())
    }
}

/// Reads messages one after the other.
#[derive(Debug)]
pub(crate) struct Messages<R> {
    source: R,
    /// Bytes taken so far.
    pub(crate) offset: u64,
}

impl<R: Read> Messages<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, offset: 0 }
    }

    /// The next message.
    pub(crate) fn next(&mut self) -> Result<Next, Fault> {
        let start = self.offset;
        let cut = |end: u64| {
            Ok(Next::Cut {
                dropped: end - start,
            })
        };
        let mut prefix = Vec::with_capacity(8);
        self.fill(&mut prefix, 4)?;
        if prefix.len() == 4 && prefix != [0xff; 4] {
            return Err(Fault::damaged(
                "it does not start with the marker FF FF FF FF",
            ));
        }
        self.fill(&mut prefix, 4)?;
        let Ok([_, _, _, _, a, b, c, d]) = <[u8; 8]>::try_from(prefix.as_slice()) else {
            return cut(self.offset);
        };
        let length = u64::from(u32::from_le_bytes([a, b, c, d]));
        if length == 0 {
            return Ok(Next::End);
        }
        if length > limits::HEADER {
            return Err(Fault::damaged(format!(
                "its header announces {length} bytes, more than {}",
                limits::HEADER
            )));
        }
        let mut header = Vec::new();
        if !self.fill(&mut header, length)? {
            return cut(self.offset);
        }
        let length = body_length(&header)?;
        let mut body = Vec::new();
        if !self.fill(&mut body, length)? {
            return cut(self.offset);
        }
        let body = Buffer::from_vec(body);
        check(&header, &body)?;
        Ok(Next::Message(Message {
            offset: start,
            header,
            body,
        }))
    }

    /// Appends up to `length` bytes; reports whether all of them were there. Memory grows with what is read, not
    /// with what is announced.
    fn fill(&mut self, into: &mut Vec<u8>, length: u64) -> Result<bool, Fault> {
        let got = self
            .source
            .by_ref()
            .take(length)
            .read_to_end(into)
            .map_err(Fault::Io)?;
        self.offset += got as u64;
        Ok(got as u64 == length)
    }
}

/// Where in a file the recording behind the first one begins, if there is one. Bodies are passed over, not read.
///
/// Errors in the first one are not detected here but when it is read.
pub fn second_recording<S: Read + Seek>(mut source: S) -> io::Result<Option<u64>> {
    let length = source.seek(SeekFrom::End(0))?;
    let mut at = source.seek(SeekFrom::Start(0))?;
    loop {
        let mut prefix = [0; 8];
        if length.saturating_sub(at) < 8 {
            return Ok(None);
        }
        source.read_exact(&mut prefix)?;
        let [mark @ .., a, b, c, d] = prefix;
        let header = u64::from(u32::from_le_bytes([a, b, c, d]));
        at += 8;
        if header == 0 && mark == [0xff; 4] {
            return Ok((at < length).then_some(at));
        }
        if mark != [0xff; 4] || header > limits::HEADER || header > length - at {
            return Ok(None);
        }
        let mut bytes = vec![0; header as usize];
        source.read_exact(&mut bytes)?;
        let Ok(body) = body_length(&bytes) else {
            return Ok(None);
        };
        at = at.saturating_add(header).saturating_add(body);
        source.seek(SeekFrom::Start(at))?;
    }
}

fn body_length(header: &[u8]) -> Result<u64, Fault> {
    // The library's description of the error is a dump of its internals.
    let message = arrow_ipc::root_as_message(header)
        .map_err(|_| Fault::damaged("its header is not a valid flatbuffer"))?;
    u64::try_from(message.bodyLength())
        .ok()
        .filter(|length| *length <= limits::BODY)
        .ok_or_else(|| {
            Fault::damaged(format!(
                "its body announces {} bytes, more than {}",
                message.bodyLength(),
                limits::BODY
            ))
        })
}

/// Checks all lengths inside a batch against its body.
fn check(header: &[u8], body: &[u8]) -> Result<(), Fault> {
    // The library's description of the error is a dump of its internals.
    let message = arrow_ipc::root_as_message(header)
        .map_err(|_| Fault::damaged("its header is not a valid flatbuffer"))?;
    match message.header_type() {
        MessageHeader::Schema => Ok(()),
        MessageHeader::RecordBatch => check_batch(
            message
                .header_as_record_batch()
                .ok_or_else(|| Fault::damaged("its batch is missing"))?,
            body,
        ),
        MessageHeader::DictionaryBatch => {
            let batch = message
                .header_as_dictionary_batch()
                .and_then(|dictionary| dictionary.data());
            check_batch(
                batch.ok_or_else(|| Fault::damaged("its dictionary is missing"))?,
                body,
            )
        }
        other => Err(Fault::damaged(format!(
            "a message of type {other:?} has no place in a recording"
        ))),
    }
}

fn check_batch(batch: RecordBatch<'_>, body: &[u8]) -> Result<(), Fault> {
    let rows = batch.length();
    if !(0..=limits::ROWS).contains(&rows) {
        return Err(Fault::damaged(format!(
            "it announces {rows} rows, more than {}",
            limits::ROWS
        )));
    }
    for node in batch.nodes().into_iter().flatten() {
        if node.length() != rows || !(0..=rows).contains(&node.null_count()) {
            return Err(Fault::damaged("the lengths of its columns differ"));
        }
    }
    let compressed = match batch.compression() {
        None => false,
        Some(codec) if codec.codec() == CompressionType::LZ4_FRAME => true,
        Some(codec) => {
            return Err(Fault::damaged(format!(
                "compression {:?} is not part of the format",
                codec.codec()
            )));
        }
    };
    let mut unpacked = 0_u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let range = usize::try_from(buffer.offset())
            .ok()
            .zip(usize::try_from(buffer.length()).ok())
            .and_then(|(offset, length)| body.get(offset..offset.checked_add(length)?));
        let bytes = range.ok_or_else(|| Fault::damaged("a buffer lies outside its body"))?;
        unpacked = unpacked.saturating_add(if compressed {
            unpacked_length(bytes)?
        } else {
            bytes.len() as u64
        });
        if unpacked > limits::BODY {
            return Err(Fault::damaged(format!(
                "it unpacks to more than {} bytes",
                limits::BODY
            )));
        }
    }
    Ok(())
}

/// Length of a compressed buffer once unpacked: an `i64` in front, -1 for "stored as it is".
fn unpacked_length(bytes: &[u8]) -> Result<u64, Fault> {
    if bytes.is_empty() {
        return Ok(0);
    }
    let Some((prefix, packed)) = bytes.split_first_chunk::<8>() else {
        return Err(Fault::damaged(
            "a compressed buffer is shorter than its length prefix",
        ));
    };
    let packed_length = packed.len() as u64;
    match i64::from_le_bytes(*prefix) {
        -1 => Ok(packed_length),
        // LZ4 spends at least one byte on 255 bytes of output.
        announced @ 0.. if announced as u64 <= packed_length.saturating_mul(255) => {
            Ok(announced as u64)
        }
        announced => Err(Fault::damaged(format!(
            "a buffer of {packed_length} bytes announces {announced} bytes unpacked"
        ))),
    }
}
