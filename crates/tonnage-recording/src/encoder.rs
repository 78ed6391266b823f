// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns columns into the bytes of the file, by a second thread where that saves time.
//!
//! Compressing columns takes about as long as making them. So from the second batch on a separate thread encodes, a
//! bounded number of batches behind, and gives the bytes back in order: they are the same bytes. A short recording, a
//! machine with one processor and a process that gets no thread encode as they go.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, SyncSender, sync_channel};
use std::thread;

use arrow_array::{RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{ArrowError, SchemaRef};

use crate::rows::Rows;
use crate::{WriteError, schema};

/// Batches that may be with the thread at a time.
const IN_FLIGHT: usize = 4;

/// The encoder of one file.
pub(crate) struct Encoder {
    encode: Encode,
    schema: SchemaRef,
    kinds: Arc<StringArray>,
    batches: u64,
}

/// The place where batches are encoded.
enum Encode {
    Here(Box<Stream>),
    There(Thread),
    /// It ended early.
    Nowhere,
}

/// A thread that encodes.
struct Thread {
    batches: SyncSender<RecordBatch>,
    encoded: Receiver<Result<Vec<u8>, ArrowError>>,
    waiting: usize,
    handle: thread::JoinHandle<Option<Box<Stream>>>,
}

/// The bytes of a file, batch by batch.
struct Stream(StreamWriter<Vec<u8>>);

impl Stream {
    fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        self.0.write(batch)?;
        Ok(std::mem::take(self.0.get_mut()))
    }
}

impl Encoder {
    /// Starts a file, and returns its first bytes.
    pub(crate) fn new(producer: &str) -> Result<(Self, Vec<u8>), ArrowError> {
        let schema = Arc::new(schema::schema(producer));
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?;
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options)?;
        let first = std::mem::take(writer.get_mut());
        let encoder = Self {
            encode: Encode::Here(Box::new(Stream(writer))),
            schema,
            kinds: schema::kinds(),
            batches: 0,
        };
        Ok((encoder, first))
    }

    /// Encodes a batch, and leaves an empty one behind. `write` gets bytes that are ready, of this batch or of earlier
    /// ones.
    pub(crate) fn batch(
        &mut self,
        rows: &mut Rows,
        mut write: impl FnMut(&[u8]) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        if self.batches == 1 {
            self.start_thread();
        }
        self.batches += 1;
        let columns = rows.columns(&self.kinds)?;
        rows.clear();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        match &mut self.encode {
            Encode::Here(stream) => write(&stream.batch(&batch)?),
            Encode::There(thread) => {
                let sent = thread.batches.send(batch);
                sent.map_err(|_| WriteError::Stopped)?;
                thread.waiting += 1;
                while thread.waiting >= IN_FLIGHT {
                    thread.next(&mut write)?;
                }
                Ok(())
            }
            Encode::Nowhere => Err(WriteError::Stopped),
        }
    }

    /// Waits until everything is written.
    pub(crate) fn drain(
        &mut self,
        mut write: impl FnMut(&[u8]) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        if let Encode::There(thread) = &mut self.encode {
            while thread.waiting > 0 {
                thread.next(&mut write)?;
            }
        }
        Ok(())
    }

    /// The last bytes, after everything before was written.
    pub(crate) fn finish(self) -> Result<Vec<u8>, WriteError> {
        let stream = match self.encode {
            Encode::Here(stream) => Some(stream),
            Encode::There(thread) => thread.end(),
            Encode::Nowhere => None,
        };
        let mut stream = stream.ok_or(WriteError::Stopped)?;
        stream.0.finish()?;
        Ok(std::mem::take(stream.0.get_mut()))
    }

    fn start_thread(&mut self) {
        let alone = thread::available_parallelism().map_or(1, NonZero::get) < 2;
        let Encode::Here(stream) = std::mem::replace(&mut self.encode, Encode::Nowhere) else {
            return;
        };
        self.encode = if alone {
            Encode::Here(stream)
        } else {
            Thread::start(stream).map_or_else(Encode::Here, Encode::There)
        };
    }
}

impl Thread {
    /// Gives the file to a thread, or back where there is none to be had.
    fn start(stream: Box<Stream>) -> Result<Self, Box<Stream>> {
        let (give, taken) = sync_channel::<Box<Stream>>(1);
        let (batches, todo) = sync_channel::<RecordBatch>(IN_FLIGHT);
        let (done, encoded) = sync_channel(IN_FLIGHT);
        let work = move || {
            let mut stream = taken.recv().ok()?;
            while let Ok(batch) = todo.recv() {
                // A receiver that no longer waits for the bytes has stopped at an error.
                done.send(stream.batch(&batch)).ok()?;
            }
            Some(stream)
        };
        let builder = thread::Builder::new().name("encode".to_owned());
        let Ok(handle) = builder.spawn(work) else {
            return Err(stream);
        };
        give.send(stream).map_err(|unsent| unsent.0)?;
        Ok(Self {
            batches,
            encoded,
            waiting: 0,
            handle,
        })
    }

    /// Passes the bytes of the next batch on.
    fn next(
        &mut self,
        write: &mut impl FnMut(&[u8]) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        let bytes = self.encoded.recv();
        let bytes = bytes.map_err(|RecvError| WriteError::Stopped)?;
        self.waiting -= 1;
        write(&bytes?)
    }

    fn end(self) -> Option<Box<Stream>> {
        drop(self.batches);
        self.handle.join().ok().flatten()
    }
}
