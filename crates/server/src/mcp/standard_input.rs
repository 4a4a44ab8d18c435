//! Standard input, read by a thread of its own.
//!
//! An asynchronous read of a file wakes a thread of the runtime, and its reader is woken again. This thread
//! reads ahead instead. It is never waited for: a read that does not end cannot be cancelled.
//!
//! Path: 1. Doc: front-doors.md#mcp

use std::io::{ErrorKind, Read, Result};

use bytes::Bytes;
use futures_util::stream;
use tokio::io::AsyncBufRead;
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;

/// The bytes of one read: the capacity of a pipe.
const READ_BYTES: usize = 64 << 10;
/// Reads that may wait for the reader.
const READS_MAX: usize = 4;

/// Returns the standard input.
///
/// # Errors
/// Where no thread can be started.
pub(super) fn open() -> Result<impl AsyncBufRead + Unpin> {
    read_ahead(|| std::io::stdin().lock())
}

/// Returns an input that a thread opens and reads. A failed read ends it.
fn read_ahead<I: Read>(
    open: impl FnOnce() -> I + Send + 'static,
) -> Result<impl AsyncBufRead + Unpin> {
    let mut reads = start(open)?;
    Ok(StreamReader::new(stream::poll_fn(move |context| reads.poll_recv(context))))
}

/// Starts a thread that opens an input, and returns what it reads.
fn start<I: Read>(
    open: impl FnOnce() -> I + Send + 'static,
) -> Result<mpsc::Receiver<Result<Bytes>>> {
    let (sender, receiver) = mpsc::channel(READS_MAX);
    let reading = move || {
        let (mut input, mut bytes) = (open(), vec![0; READ_BYTES]);
        loop {
            let read = match input.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => Ok(Bytes::copy_from_slice(bytes.get(..length).unwrap_or_default())),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let has_failed = read.is_err();
            if sender.blocking_send(read).is_err() || has_failed {
                return;
            }
        }
    };
    std::thread::Builder::new().name("toolbooth-stdin".to_owned()).spawn(reading)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Error;

    use tokio::io::{AsyncBufReadExt, AsyncReadExt};

    use super::*;

    /// Gives one of these for each read, then the end.
    struct Reads(VecDeque<Result<Vec<u8>>>);

    impl Read for Reads {
        fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
            let bytes = self.0.pop_front().unwrap_or(Ok(Vec::new()))?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Ok(bytes.len())
        }
    }

    fn reads(given: impl IntoIterator<Item = Result<Vec<u8>>>) -> impl AsyncBufRead + Unpin {
        let given = Reads(given.into_iter().collect());
        read_ahead(move || given).unwrap()
    }

    #[tokio::test]
    async fn all_bytes_are_read_in_their_order() {
        let given = (0..100u8).map(|n| Ok(vec![n; READ_BYTES - usize::from(n)]));
        let expected: Vec<u8> = given.clone().flat_map(Result::unwrap).collect();
        let mut found = Vec::new();
        reads(given).read_to_end(&mut found).await.unwrap();
        assert!(found == expected);
    }

    #[tokio::test]
    async fn a_failed_read_is_told_after_what_was_read() {
        let failed = |kind: ErrorKind| Err(Error::from(kind));
        let mut input = reads([
            failed(ErrorKind::Interrupted),
            Ok(b"one\ntw".to_vec()),
            failed(ErrorKind::BrokenPipe),
            Ok(b"o\n".to_vec()),
        ]);
        let mut line = String::new();
        input.read_line(&mut line).await.unwrap();
        assert_eq!(line, "one\n");
        let error = input.read_line(&mut line).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        // The rest of the input would continue another line.
        let mut rest = Vec::new();
        input.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"");
    }

    #[tokio::test]
    async fn no_more_is_read_ahead_than_the_channel_holds() {
        let (sender, counted) = std::sync::mpsc::channel();
        struct Endless(std::sync::mpsc::Sender<()>);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
                self.0.send(()).map_err(|_| Error::from(ErrorKind::BrokenPipe))?;
                Ok(buffer.len())
            }
        }
        let reads = start(move || Endless(sender)).unwrap();
        // One more waits for space.
        for _ in 0..=READS_MAX {
            counted.recv().unwrap();
        }
        assert_eq!((reads.len(), reads.capacity()), (READS_MAX, 0));
        drop(reads);
        // The thread ends, and with it the sender.
        assert!(counted.recv().is_err());
    }
}
