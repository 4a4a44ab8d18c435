//! Waits for conditions and processes, with a time limit that names the condition.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest wait of a test for one condition. Waits on a loaded machine are far shorter.
pub const CEILING: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(20);

/// Polls until `fits` returns `true`.
///
/// # Panics
/// If it is still `false` after [`CEILING`].
pub fn until(what: &str, mut fits: impl FnMut() -> bool) {
    let began = Instant::now();
    while !fits() {
        assert!(began.elapsed() < CEILING, "waited {} s: {what}", CEILING.as_secs());
        std::thread::sleep(POLL);
    }
}

/// Waits until a process exits.
///
/// # Panics
/// If it still runs after [`CEILING`]; it is then killed.
pub fn end_of(child: &mut Child, what: &str) -> ExitStatus {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("a process of this test") {
            return status;
        }
        if began.elapsed() >= CEILING {
            let _ = child.kill();
            let _ = child.wait();
            panic!("waited {} s for the end of {what}", CEILING.as_secs());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL);
    }
}

/// Runs a command until it exits, with `input` on its standard input.
///
/// # Panics
/// If it cannot be started, or still runs after [`CEILING`]; the message contains its standard error.
pub fn output_of(command: &mut Command, input: &[u8]) -> Output {
    use std::io::Write;
    let what = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{what} cannot be started: {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // A program can exit without reading its input.
        scope.spawn(move || drop(stdin.write_all(input)));
        let stdout = scope.spawn(|| all_of(stdout));
        let stderr = scope.spawn(|| all_of(stderr));
        let began = Instant::now();
        while child.try_wait().expect("a process of this test").is_none() {
            if began.elapsed() >= CEILING {
                let _ = child.kill();
                let _ = child.wait();
                let said = stderr.join().unwrap_or_default();
                let said = String::from_utf8_lossy(&said).into_owned();
                panic!("waited {} s for the end of {what}:\n{said}", CEILING.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = child.wait().expect("it has ended");
        let (stdout, stderr) =
            (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        Output { status, stdout, stderr }
    })
}

fn all_of(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

/// A process that is killed when it is dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Kills it and waits until it exits.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
