//! Files read ahead and written behind, by threads of their own: reading, filtering and
//! writing take about the same time, so that together they take a third.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// Bytes read or written at a time: buffers that stay in a processor's cache.
const CHUNK: usize = 256 << 10;
/// Chunks on their way.
const AHEAD: usize = 3;
/// Room in front of a chunk's bytes for what is left of the one before.
const HEADROOM: usize = 64 << 10;

/// A file read ahead: the bytes that are not used yet lie in one piece.
pub struct Source {
    chunks: Receiver<io::Result<Chunk>>,
    used: Sender<Vec<u8>>,
    /// The bytes not used yet are `start..end`.
    pub buffer: Vec<u8>,
    pub start: usize,
    pub end: usize,
    /// Offset of `start` in the file.
    pub offset: u64,
}

/// Bytes read, behind [`HEADROOM`] others.
struct Chunk {
    buffer: Vec<u8>,
    end: usize,
}

impl Source {
    /// Begins to read.
    pub fn new(mut input: Box<dyn Read + Send>) -> Source {
        let (send, chunks) = sync_channel(AHEAD);
        let (used, free) = channel::<Vec<u8>>();
        // It ends when the file does, or when nobody takes its chunks.
        std::thread::spawn(move || {
            loop {
                let mut buffer = free
                    .try_recv()
                    .unwrap_or_else(|_| vec![0; HEADROOM + CHUNK]);
                buffer.resize(HEADROOM + CHUNK, 0);
                let read = match input.read(&mut buffer[HEADROOM..]) {
                    Ok(0) => break,
                    Ok(n) => Ok(Chunk {
                        buffer,
                        end: HEADROOM + n,
                    }),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let failed = read.is_err();
                if send.send(read).is_err() || failed {
                    break;
                }
            }
        });
        Source {
            chunks,
            used,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            offset: 0,
        }
    }

    /// The bytes not used yet that are at hand.
    #[inline]
    pub fn at_hand(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The next `len` bytes, fewer at the end of the file.
    #[inline]
    pub fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        if self.end - self.start < len {
            self.fill(len)?;
        }
        let end = self.end.min(self.start + len);
        Ok(&self.buffer[self.start..end])
    }

    /// Passes over bytes.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        self.offset += len as u64;
    }

    #[cold]
    fn fill(&mut self, len: usize) -> io::Result<()> {
        while self.end - self.start < len {
            let Ok(chunk) = self.chunks.recv() else {
                return Ok(());
            };
            let Chunk { mut buffer, end } = chunk?;
            let left = self.end - self.start;
            if left <= HEADROOM {
                let start = HEADROOM - left;
                buffer[start..HEADROOM].copy_from_slice(self.at_hand());
                (self.start, self.end) = (start, end);
                std::mem::swap(&mut self.buffer, &mut buffer);
            } else {
                // A long packet, which grows with what is really there.
                self.buffer.drain(..self.start);
                self.buffer.truncate(left);
                self.buffer.extend_from_slice(&buffer[HEADROOM..end]);
                (self.start, self.end) = (0, self.buffer.len());
            }
            // If the reader has ended, it needs none.
            let _ = self.used.send(buffer);
        }
        Ok(())
    }
}

/// A file written behind.
pub struct Behind<W: Write + Send + 'static> {
    chunk: Vec<u8>,
    chunks: Option<SyncSender<Vec<u8>>>,
    used: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<io::Result<W>>>,
}

impl<W: Write + Send + 'static> Behind<W> {
    /// Begins to write.
    pub fn new(mut out: W) -> Behind<W> {
        let (chunks, receive) = sync_channel::<Vec<u8>>(AHEAD);
        let (send_back, used) = channel();
        let thread = std::thread::spawn(move || {
            for chunk in receive {
                out.write_all(&chunk)?;
                let _ = send_back.send(chunk);
            }
            out.flush()?;
            Ok(out)
        });
        Behind {
            chunk: Vec::with_capacity(CHUNK),
            chunks: Some(chunks),
            used,
            thread: Some(thread),
        }
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// The first that writing met.
    pub fn finish(mut self) -> io::Result<W> {
        // An error of the thread comes with its end.
        let _ = self.flush();
        self.join()
    }

    fn join(&mut self) -> io::Result<W> {
        self.chunks = None;
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        ended.unwrap_or_else(|| Err(io::Error::other("the thread that writes is gone")))
    }

    #[cold]
    fn send(&mut self) -> io::Result<()> {
        let mut next = self
            .used
            .try_recv()
            .unwrap_or_else(|_| Vec::with_capacity(CHUNK));
        next.clear();
        let chunk = std::mem::replace(&mut self.chunk, next);
        let sent = self
            .chunks
            .as_ref()
            .is_some_and(|chunks| chunks.send(chunk).is_ok());
        match sent {
            true => Ok(()),
            // Why it has ended.
            false => self.join().map(|_| ()),
        }
    }
}

impl<W: Write + Send + 'static> Drop for Behind<W> {
    /// What is written to is given up before this returns.
    fn drop(&mut self) {
        let _ = self.join();
    }
}

impl<W: Write + Send + 'static> Write for Behind<W> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.chunk.is_empty() {
            true => Ok(()),
            false => self.send(),
        }
    }
}
