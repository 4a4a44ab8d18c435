//! Writes messages to a client, each on a line of its own.
//!
//! Path: 10. Doc: front-doors.md#mcp

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// A write takes no further message once it has this many bytes.
const WRITE_BYTES: usize = 64 << 10;

/// Writes messages until there are no more senders. Those that wait are written together, since each write wakes a
/// thread.
pub(super) async fn write(
    mut messages: mpsc::Receiver<Bytes>,
    mut output: impl AsyncWrite + Unpin,
) {
    let mut lines = Vec::new();
    while let Some(first) = messages.recv().await {
        let mut next = Some(first);
        while let Some(message) = next {
            lines.extend_from_slice(&message);
            lines.push(b'\n');
            next = if lines.len() < WRITE_BYTES { messages.try_recv().ok() } else { None };
        }
        let written = async {
            output.write_all(&lines).await?;
            output.flush().await
        };
        if let Err(error) = written.await {
            tracing::debug!(%error, "the client reads no more");
            return;
        }
        lines.clear();
        lines.shrink_to(WRITE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// The written bytes, one entry for each write.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl AsyncWrite for Writes {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.0.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn messages_that_wait_are_written_together_up_to_a_size() {
        let messages = ["{}".to_owned(), "x".repeat(WRITE_BYTES), "1".to_owned(), "2".to_owned()];
        let (sender, receiver) = mpsc::channel(messages.len());
        for message in &messages {
            sender.send(Bytes::from(message.clone())).await.unwrap();
        }
        drop(sender);
        let mut writes = Writes::default();
        write(receiver, &mut writes).await;
        let [one, two, three, four] = messages;
        let expected = [format!("{one}\n{two}\n"), format!("{three}\n{four}\n")];
        assert!(writes.0 == expected.map(String::into_bytes));
    }
}
