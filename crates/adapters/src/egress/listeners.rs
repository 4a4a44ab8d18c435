//! Serves the listeners in the network of a contained program, each by its kind.
//!
//! Path: 7. Doc: execution.md#the-network-of-a-contained-program

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::task::AbortHandle;
use toolbooth_launcher::client::ServeListener;
use toolbooth_launcher::wire::{Listener, ListenerKind};

use super::{ProgramNetwork, names, proxy, relay};

impl ServeListener for ProgramNetwork {
    fn serve(self: Arc<Self>, listener: Listener, fd: OwnedFd) -> io::Result<Box<dyn Send>> {
        let passage = self;
        let task = match listener.kind {
            ListenerKind::Proxy => tokio::spawn(proxy::serve(passage, stream_listener(fd)?)),
            ListenerKind::Stream => tokio::spawn(relay::serve(passage, stream_listener(fd)?)),
            ListenerKind::DnsStream => {
                tokio::spawn(names::serve_streams(passage, stream_listener(fd)?))
            }
            ListenerKind::DnsDatagram => {
                tokio::spawn(names::serve_datagrams(passage, names::Datagrams::of(fd)?))
            }
        };
        Ok(Box::new(Serving(task.abort_handle())))
    }
}

fn stream_listener(fd: OwnedFd) -> io::Result<tokio::net::TcpListener> {
    let listener = std::net::TcpListener::from(fd);
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// A listener that is served until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}
