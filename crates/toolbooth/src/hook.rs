//! Answers the before-tool hook of a client. Another process of this program decides; whatever happens to it,
//! the client gets an answer that blocks the call.
//!
//! Doc: hooks.md#answers, hooks.md#failures

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::panic::AssertUnwindSafe;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The exit code that blocks a call at every client, if a reason is on standard error and nothing on standard
/// output (decision 0023).
const BLOCKED: u8 = 2;
/// Bytes of a client's message.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of the deciding process's answer.
const DECISION_BYTES_MAX: u64 = 64 << 10;
/// Characters of a reason.
const REASON_CHARS_MAX: usize = 2_000;
/// The interval at which the deciding process is checked for its end.
const LOOK: Duration = Duration::from_millis(1);

/// The time after the limit for ending the deciding process.
const GRACE: Duration = Duration::from_millis(500);
/// Variables that change the policy, or trust a configuration; those that begin with `TOOLBOOTH__` too.
const OVERRIDES: [&str; 4] = ["MCP_TOOLS", "TOOLS_POLICY", "TOOL_WHITELIST", "TOOLBOOTH_TRUST"];

/// The hidden argument of the process that decides.
pub(crate) const DECIDE: &str = "--decide";

/// A decision, as the deciding process prints it on one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decision {
    /// Whether the client may run the tool.
    pub(crate) permitted: bool,
    /// Why not: for the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Decision {
    pub(crate) fn permit() -> Self {
        Self { permitted: true, reason: None }
    }

    pub(crate) fn deny(reason: impl Into<String>) -> Self {
        Self { permitted: false, reason: Some(reason.into()) }
    }
}

/// Reads the client's message, has it decided, and answers in the form that every client understands.
pub(crate) fn answer(limit: Duration) -> ExitCode {
    let end = Instant::now() + limit;
    // Whatever hangs, such as the start of a program on a disk that does not answer, the client is answered.
    let decision = decision_of(|| {
        in_background(end + GRACE, move || {
            let message = message(end)?;
            decided_by(&mut this_program()?, message, end)
        })?
    });
    if decision.permitted {
        // The client still asks its user where it would without the hook.
        return ExitCode::SUCCESS;
    }
    let reason = decision.reason.unwrap_or_default();
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    // Two clients run a tool that is blocked without a reason.
    let is_empty = reason.trim().is_empty();
    let told = if is_empty { "Toolbooth denied this call.".to_owned() } else { reason };
    // Printing panics where standard error is closed, and waits for good where it is a full pipe.
    let _ = in_background(Instant::now() + GRACE, move || {
        let _ = std::panic::catch_unwind(|| crate::notice(&told));
    });
    ExitCode::from(BLOCKED)
}

/// Returns the decision; a denial if an error or a panic prevented one.
fn decision_of(asked: impl FnOnce() -> Result<Decision, String>) -> Decision {
    let decision = std::panic::catch_unwind(AssertUnwindSafe(asked));
    let decision = decision.unwrap_or_else(|_| Err("it ended unexpectedly".to_owned()));
    decision.unwrap_or_else(|what| {
        Decision::deny(format!(
            "Toolbooth cannot decide on this call, so it is denied: {what}. The operator can look into it: \
             `toolbooth doctor`."
        ))
    })
}

/// Reads the message on standard input.
///
/// # Errors
/// What prevented it.
fn message(end: Instant) -> Result<Vec<u8>, String> {
    let message = in_background(end, || {
        let mut message = Vec::new();
        let read = std::io::stdin().lock().take(MESSAGE_BYTES_MAX + 1).read_to_end(&mut message);
        read.map(|_| message)
    })?;
    let message = message.map_err(|error| format!("its message cannot be read ({error})"))?;
    if message.len() as u64 > MESSAGE_BYTES_MAX {
        return Err(format!("its message has more than {MESSAGE_BYTES_MAX} bytes"));
    }
    Ok(message)
}

/// Runs a process that decides on the message, until `end`.
///
/// # Errors
/// What prevented it.
fn decided_by(command: &mut Command, message: Vec<u8>, end: Instant) -> Result<Decision, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.spawn();
    let child = child.map_err(|error| format!("its process cannot be started ({error})"))?;
    let mut deciding = Deciding(child);
    let (Some(mut stdin), Some(stdout)) = (deciding.0.stdin.take(), deciding.0.stdout.take())
    else {
        return Err("its process has no pipes".to_owned());
    };
    // A process that does not read its message is seen by its answer.
    let writer = std::thread::Builder::new().spawn(move || drop(stdin.write_all(&message)));
    writer.map_err(|error| format!("no thread can be started ({error})"))?;
    let line = in_background(end, move || {
        let mut line = String::new();
        BufReader::new(stdout.take(DECISION_BYTES_MAX)).read_line(&mut line).map(|_| line)
    })?;
    let line = line.map_err(|error| format!("its process cannot be read ({error})"))?;
    let ended = deciding.ended(end)?;
    match serde_json::from_str(&line) {
        Ok(decision) if line.ends_with('\n') && ended.success() => Ok(decision),
        _ => Err(format!("its process did not answer ({ended})")),
    }
}

/// Runs a function in a thread of its own, for at most the time that is left.
fn in_background<T: Send + 'static>(
    end: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (done, result) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().spawn(move || drop(done.send(work())));
    thread.map_err(|error| format!("no thread can be started ({error})"))?;
    let left = end.saturating_duration_since(Instant::now());
    result.recv_timeout(left).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => "the time is over".to_owned(),
        mpsc::RecvTimeoutError::Disconnected => "a thread of it ended".to_owned(),
    })
}

/// Returns the process that decides: this program, with the same arguments.
fn this_program() -> Result<Command, String> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| format!("this program cannot be found ({error})"))?;
    let mut command = Command::new(program);
    // Its messages are for the operator; the agent receives this process's standard error.
    let told = if std::io::stderr().is_terminal() { Stdio::inherit() } else { Stdio::null() };
    command.args(std::env::args_os().skip(1)).arg(DECIDE).arg(std::process::id().to_string());
    command.stderr(told);
    // The environment of a hook is that of the client, which can have it from a project.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OVERRIDES.contains(&&*text) || text.starts_with("TOOLBOOTH__") {
            command.env_remove(&name);
        }
    }
    Ok(command)
}

/// Ends this process when its parent ends, which waits for the decision. No decision is made for a client that
/// has ended. Called by the process's first thread, to which the kernel ties it.
///
/// # Errors
/// A failure if the parent has ended already.
pub(crate) fn end_with(parent: u32) -> Result<(), Failure> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    // Without it, this process ends when its time is over.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let is_there = getppid().is_some_and(|now| u32::try_from(now.as_raw_pid()) == Ok(parent));
    is_there.then_some(()).ok_or_else(|| Failure::usage("the process that asked has ended"))
}

/// The process that decides. It is killed when this is dropped before its end.
struct Deciding(Child);

impl Deciding {
    /// Waits for the end of the process, until `end`.
    fn ended(&mut self, end: Instant) -> Result<std::process::ExitStatus, String> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(LOOK),
                Ok(None) => return Err("the time is over".to_owned()),
                Err(error) => return Err(format!("its process is lost ({error})")),
            }
        }
    }
}

impl Drop for Deciding {
    fn drop(&mut self) {
        let _ = self.0.kill();
        // One that cannot be ended now, because it waits for a disk, is left to the system.
        let _ = self.ended(Instant::now() + GRACE / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMIT: &str = r#"echo '{"permitted":true}'"#;

    /// Returns the decision of a script in the place of the deciding process.
    fn decision(script: &str, limit: Duration) -> Decision {
        let end = Instant::now() + limit;
        let mut command = Command::new("sh");
        command.args(["-c", script]).stderr(Stdio::null());
        decision_of(|| decided_by(&mut command, b"{}".repeat(100_000), end))
    }

    #[test]
    fn only_a_whole_answer_of_a_process_that_succeeds_permits() {
        let long = Duration::from_secs(60);
        assert!(decision(&format!("cat >/dev/null; {PERMIT}"), long).permitted);
        // It may leave the message unread.
        assert!(decision(PERMIT, long).permitted);
        let odd = [
            "exit 0",
            "exit 101",
            "kill -9 $$",
            "kill -ABRT $$",
            r#"echo '{"permitted":true}'; exit 1"#,
            r#"echo '{"permitted":true}'; kill -9 $$"#,
            r#"printf '{"permitted":true}'"#,
            r#"echo '{"permitted":true,"more":1}'"#,
            r#"echo '{"permitted":"true"}'"#,
            r#"echo '{}'"#,
            r#"echo 'true'"#,
            r#"echo; echo '{"permitted":true}'"#,
            r#"printf '\377\n'"#,
            r#"yes | tr -d '\n' | head -c 100000; echo '{"permitted":true}'"#,
        ];
        for script in odd {
            let denied = decision(script, long);
            assert!(!denied.permitted, "{script}");
            assert!(denied.reason.unwrap().starts_with("Toolbooth cannot decide"), "{script}");
        }
    }

    #[test]
    fn a_process_that_takes_too_long_is_ended_and_the_call_denied() {
        for script in ["exec sleep 600", r#"echo '{"permitted":true}'; exec sleep 600"#] {
            let denied = decision(script, Duration::from_millis(200));
            assert!(denied.reason.unwrap().contains("the time is over"), "{script}");
        }
    }

    #[test]
    fn a_panic_and_a_program_that_is_missing_deny() {
        let ended = decision_of(|| std::panic::resume_unwind(Box::new("unexpected")));
        assert!(ended.reason.unwrap().contains("unexpectedly"));
        let end = Instant::now() + Duration::from_secs(60);
        let mut missing = Command::new("/no/such/program");
        assert!(!decision_of(|| decided_by(&mut missing, Vec::new(), end)).permitted);
    }
}
