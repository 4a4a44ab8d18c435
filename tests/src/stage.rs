//! Runs an MCP server with tools that wait for the test, so that tests need no clock.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::{Place, repository};

/// The deadline of every wait of a test, so that a failed test ends.
pub const PATIENCE: Duration = crate::waiting::CEILING;

/// The test's control connection to the server, which reports the calls that have begun.
pub struct Stage {
    port: u16,
    began: Receiver<Actor>,
}

/// One waiting call.
pub struct Actor {
    pub key: String,
    lines: BufReader<TcpStream>,
}

impl Stage {
    /// Starts to listen, and writes the server's script into `place`.
    pub fn new(place: &Place) -> Self {
        let server = repository().join("tests/clients/stage_server.py");
        place.write("stage_server.py", &std::fs::read_to_string(server).expect("the server"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (tell, began) = channel();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
                let mut actor = Actor { key: String::new(), lines: BufReader::new(stream) };
                let line = actor.line();
                actor.key = line.strip_prefix("began ").unwrap_or_default().to_owned();
                if tell.send(actor).is_err() {
                    return;
                }
            }
        });
        Self { port, began }
    }

    /// Returns the lines of the configuration that define the server, `stage`.
    pub fn settings(&self) -> String {
        format!(
            "[servers.stage]\ncommand = \"python3\"\nargs = [\"stage_server.py\", \"{}\"]\n\
             sandbox = \"none\"\ndefaults = {{ timeout_ms = 60000 }}\n",
            self.port
        )
    }

    /// Waits until a call has begun.
    pub fn next(&self) -> Actor {
        self.began.recv_timeout(PATIENCE).expect("a call begins")
    }
}

impl Actor {
    /// Lets the call continue; has no effect if it was cancelled meanwhile.
    pub fn go(&mut self) {
        let _ = self.lines.get_mut().write_all(b"go\n");
    }

    /// Returns the next line from the tool; empty if the tool has ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the tool says something or goes");
        line.trim_end().to_owned()
    }
}
