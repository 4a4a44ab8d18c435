//! Forwards connections of a contained program to their destinations.
//!
//! In the program's network every address is local, so one listener accepts the connections to all
//! of them. The local address of a connection is its destination. A refused connection is reset.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::ProgramNetwork;

/// Timeout for connecting to a destination.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of the buffer for each direction of a connection.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Pause of a listener while descriptors are short.
const REST: Duration = Duration::from_millis(50);

/// Accepts connections of a program without end, within its share of the gateway's connections. At
/// most `most` of this listener run at once; further ones wait in the kernel's bounded queue.
pub(super) async fn accept<F>(
    passage: Arc<ProgramNetwork>,
    listener: TcpListener,
    most: usize,
    handle: impl Fn(Arc<ProgramNetwork>, TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let here = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        // At most one connection of each listener waits here, and it occupies no slot of other
        // programs.
        let mut held = Vec::new();
        for slot in [&here, &passage.connections, &passage.rules.budget.connections] {
            let Ok(slot) = Arc::clone(slot).acquire_owned().await else { return };
            held.push(slot);
        }
        let handling = handle(Arc::clone(&passage), stream);
        connections.spawn(async move {
            handling.await;
            drop(held);
        });
        while connections.try_join_next().is_some() {}
    }
}

pub(super) async fn serve(passage: Arc<ProgramNetwork>, listener: TcpListener) {
    accept(passage, listener, usize::MAX >> 4, carry).await;
}

async fn carry(passage: Arc<ProgramNetwork>, mut stream: TcpStream) {
    let Ok(to) = stream.local_addr() else { return };
    let reset = |stream: &TcpStream| {
        // The program must see a reset, not a response that ended early.
        let _ = stream.set_zero_linger();
    };
    let Some(host) = passage.judge(to) else { return reset(&stream) };
    let connecting = TcpStream::connect((to.ip().to_canonical(), to.port()));
    let mut host_stream = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(connected)) => connected,
        failed => {
            let error = match failed {
                Ok(Err(error)) => error.to_string(),
                _ => "no answer in time".to_owned(),
            };
            let program = passage.program.as_str();
            tracing::info!(program, host, port = to.port(), error, "a host cannot be reached");
            return reset(&stream);
        }
    };
    passage.record_reached(&host, to.port());
    let _ = (stream.set_nodelay(true), host_stream.set_nodelay(true));
    let (sent, received) = (BUFFER_BYTES, BUFFER_BYTES);
    // Either side can close the connection at any time.
    let copied = copy_bidirectional_with_sizes(&mut stream, &mut host_stream, sent, received).await;
    if copied.is_err() {
        reset(&stream);
    }
}
