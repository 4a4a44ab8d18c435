//! MCP over standard input and output: the protocol and nothing else.
//!
//! Path: 1. Doc: front-doors.md#mcp

use std::sync::Arc;

use rmcp::ServiceExt;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::hub::Hub;
use super::{McpDoor, wire};
use crate::House;
use crate::auth::local_user;
use crate::http::BODY_BYTES_MAX;

/// Serves one client until its input ends.
///
/// # Errors
/// A sentence, where the client does not begin as the protocol has it.
pub async fn serve_stdio(house: House) -> Result<(), String> {
    let hub = Hub::default();
    let following = tokio::spawn(hub.clone().follow(Arc::clone(&house.catalogue)));
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let carrying = tokio::spawn(carry_lines(ours));
    let door = McpDoor::new(house, hub, Some(local_user()));
    let served = match door.serve((theirs, tokio::io::stdout())).await {
        Ok(service) => service.waiting().await.map(drop).map_err(|error| error.to_string()),
        // The client went away before it said anything.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    carrying.abort();
    following.abort();
    served
}

/// Reads lines and hands them on with their calls carried.
async fn carry_lines(mut to: tokio::io::DuplexStream) {
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = Vec::new();
    let limit = u64::try_from(BODY_BYTES_MAX).unwrap_or(u64::MAX) + 1;
    loop {
        line.clear();
        match (&mut input).take(limit).read_until(b'\n', &mut line).await {
            Ok(1..) => (),
            Ok(0) | Err(_) => return,
        }
        if line.len() > BODY_BYTES_MAX {
            tracing::error!(
                bytes_max = BODY_BYTES_MAX,
                "a message is too long, the connection ends"
            );
            return;
        }
        let carried = wire::carry(&line);
        let bytes = carried.as_deref().unwrap_or(&line);
        let written = async {
            to.write_all(bytes.trim_ascii_end()).await?;
            to.write_all(b"\n").await
        };
        if written.await.is_err() {
            return;
        }
    }
}
