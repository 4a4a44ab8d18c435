//! A gateway that speaks MCP over its standard input and output, with several calls in flight.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use toolbooth_tests::Place;
use toolbooth_tests::mcp::modern;

use crate::load::{Done, has_echoed};

/// A gateway over pipes; it ends when it is dropped.
pub(crate) struct Pipe {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Pipe {
    pub(crate) fn start(place: &Place) -> Self {
        let mut child = place
            .command(&["stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    /// Returns the processor time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        toolbooth_tests::cpu_of(self.child.id())
    }

    /// Makes calls for a time, this many together.
    pub(crate) fn run(&mut self, together: usize, tool: &str, size: usize, time: Duration) -> Done {
        let params = json!({ "name": tool, "arguments": { "text": "x".repeat(size) } });
        let messages: Vec<String> = (0..together)
            .map(|id| format!("{}\n", modern(id, "tools/call", params.clone())))
            .collect();
        let input = self.input.as_mut().unwrap();
        let began = Instant::now();
        let mut begun = vec![began; together];
        for message in &messages {
            input.write_all(message.as_bytes()).unwrap();
        }
        let (mut times, mut running, mut line) = (Vec::new(), together, String::new());
        while running > 0 {
            line.clear();
            self.output.read_line(&mut line).unwrap();
            assert!(has_echoed(line.as_bytes(), size), "{line}");
            let id = line.split_once("\"id\":").unwrap().1;
            let id: usize = id.split([',', '}']).next().unwrap().parse().unwrap();
            let own = begun.get_mut(id).unwrap();
            times.push(own.elapsed());
            *own = Instant::now();
            if began.elapsed() < time {
                input.write_all(messages.get(id).unwrap().as_bytes()).unwrap();
            } else {
                running -= 1;
            }
        }
        Done { time: began.elapsed(), times }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
