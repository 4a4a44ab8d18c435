//! Starts the processes of a conformance run; each ends when its value is dropped.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::supervise::wait_within;

const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(20);

/// A server that listens. Dropping it ends it.
pub struct Server {
    child: Child,
    name: String,
    /// The address that it printed after `listening on `.
    pub address: String,
}

impl Server {
    /// Starts a server and waits until it listens. Its output goes to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let errors = File::create(log)?;
        let mut output = errors.try_clone()?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("{command:?} cannot be started"))?;
        let stdout = child.stdout.take();
        let mut server = Self { child, name: name.to_owned(), address: String::new() };
        let (sender, receiver) = mpsc::channel();
        let lines = BufReader::new(stdout.context("a pipe")?).lines();
        // The output is read to the end, so that the server never waits for a full pipe.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on ") {
                    let _ = sender.send(address.to_owned());
                }
                let _ = writeln!(output, "{line}");
            }
        });
        server.address = receiver
            .recv_timeout(START_MAX)
            .map_err(|_| anyhow::anyhow!("the {name} does not listen; see {}", log.display()))?;
        Ok(server)
    }

    /// Ends the server; an error if it had ended before.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the {} ended with {status} while it was used", self.name);
        }
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        if !matches!(wait_within(&mut self.child, STOP_MAX), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command for at most `most`, with all its output in `log`. Ignores its exit status.
pub fn run_into(command: &mut Command, log: &Path, most: Duration) -> Result<()> {
    let output = File::create(log)?;
    let errors = output.try_clone()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .with_context(|| format!("{command:?} cannot be started"))?;
    let ended = wait_within(&mut child, most);
    if !matches!(ended, Ok(Some(_))) {
        let _ = child.kill();
        let _ = child.wait();
    }
    let log = log.display();
    ensure!(ended?.is_some(), "the suite did not end within {} s; see {log}", most.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a log that no other test of this process writes.
    fn log(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("xtask-{name}-{}.log", std::process::id()))
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn lives(id: u32) -> bool {
        Path::new(&format!("/proc/{id}")).exists()
    }

    #[test]
    fn a_server_ends_with_its_value() {
        let log = log("server");
        let mut command = shell("echo listening on somewhere; exec sleep 600");
        let server = Server::start("server", &mut command, &log).unwrap();
        assert_eq!(server.address, "somewhere");
        let id = server.child.id();
        assert!(lives(id));
        drop(server);
        assert!(!lives(id));
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_server_that_ends_is_told() {
        let log = log("ended");
        assert!(Server::start("server", &mut shell("exit 3"), &log).is_err());
        let mut command = shell("echo listening on x; exit 3");
        let mut server = Server::start("server", &mut command, &log).unwrap();
        server.child.wait().unwrap();
        assert!(server.stop().unwrap_err().to_string().contains("exit status: 3"));
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_run_that_does_not_end_is_ended() {
        let log = log("bounded");
        let mut command = shell("echo $$; exec sleep 600");
        assert!(run_into(&mut command, &log, Duration::from_millis(500)).is_err());
        if let Ok(id) = std::fs::read_to_string(&log).unwrap().trim().parse() {
            assert!(!lives(id));
        }
        run_into(&mut shell("exit 3"), &log, Duration::from_secs(60)).unwrap();
        std::fs::remove_file(log).unwrap();
    }
}
