//! Tests one fault at each step of the launcher's protocol, with a launcher that fails on purpose.
//! After an order that may have arrived, the effect is unknown; before it, there is none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use serde_json::json;
use toolbooth_adapters::CommandLine;
use toolbooth_adapters::command::{CallLine, CommandExecutor, CommandSettings, ErrorText};
use toolbooth_adapters::launcher::Launcher;
use toolbooth_contracts::trust::TrustLevels;
use toolbooth_contracts::{Conversation, Dispatch, Effect, ErrorCode, Executor, Outcome};
use toolbooth_launcher::order::Order;
use toolbooth_launcher::wire::{self, Report, Unstarted};

use crate::calls;

/// The error code and effect that the gateway must conclude.
type Expected = (ErrorCode, Effect);

const SANDBOX: Expected = (ErrorCode::SandboxUnavailable, Effect::NotStarted);
const DOUBT: Expected = (ErrorCode::AdapterFailed, Effect::Unknown);

/// The steps at which the launcher fails, in the order of the protocol.
const STEPS: &[(&str, Expected)] = &[
    ("ends-at-once", SANDBOX),
    ("ends-after-the-request", SANDBOX),
    ("is-of-another-version", SANDBOX),
    ("ends-with-the-order-unread", DOUBT),
    ("ends-with-half-the-order-read", DOUBT),
    ("ends-with-the-order-read", DOUBT),
    ("ends-after-an-effect-untold", DOUBT),
    ("ends-with-half-of-started-told", DOUBT),
    ("ends-with-started-told", DOUBT),
    ("ends-with-half-the-report-told", DOUBT),
    ("reports-nonsense", DOUBT),
    ("reports-its-own-failure", DOUBT),
    ("reports-a-signal-before-started", (ErrorCode::AdapterFailed, Effect::NotStarted)),
    ("reports-a-signal-after-started", DOUBT),
    ("reports-memory-after-started", DOUBT),
    ("reports-a-missing-program", (ErrorCode::NotConfigured, Effect::NotStarted)),
    ("reports-a-missing-primitive", SANDBOX),
    ("reports-unstarted-after-started", SANDBOX),
];

/// Acts as a launcher that fails at the step that its own file name specifies.
fn fail(step: &str) {
    if step == "ends-at-once" {
        return;
    }
    let mut fds = Vec::new();
    let mut head = [0u8; wire::HEAD_BYTES];
    while wire::fill(rustix::stdio::stdin(), &mut head, &mut fds).is_ok() {
        let [control, ..] = <[OwnedFd; 3]>::try_from(std::mem::take(&mut fds)).unwrap();
        serve(step, &control);
    }
}

fn serve(step: &str, control: &OwnedFd) {
    let tell = |tag, text: &[u8]| wire::send(control.as_fd(), tag, text, &[]).unwrap();
    let report = |report: &Report| tell(wire::REPORT, &serde_json::to_vec(report).unwrap());
    let half = |tag| {
        let frame = wire::frame(tag, b"{\"exit\":0}");
        wire::send_some(control.as_fd(), &frame[..frame.len() / 2], &[]).unwrap();
    };
    let unstarted = |program| {
        let (step, cause) = ("a step".to_owned(), "a cause".to_owned());
        Unstarted { step, cause, program }
    };
    match step {
        "ends-after-the-request" => return,
        "is-of-another-version" => return tell(wire::STARTED, b"1"),
        _ => tell(wire::READY, b""),
    }
    let mut waiting = [rustix::event::PollFd::new(control, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut waiting, None).unwrap();
    if step == "ends-with-the-order-unread" {
        return;
    }
    let mut fds = Vec::new();
    let mut head = [0u8; wire::HEAD_BYTES];
    wire::fill(control.as_fd(), &mut head, &mut fds).unwrap();
    if step == "ends-with-half-the-order-read" {
        return;
    }
    let mut text = vec![0u8; wire::head(head).1];
    wire::fill(control.as_fd(), &mut text, &mut fds).unwrap();
    let Order::Run(run) = serde_json::from_slice(&text).unwrap() else { panic!("no program") };
    if step == "ends-with-the-order-read" {
        return;
    }
    if step == "reports-a-signal-before-started" {
        return report(&Report::Signal(9));
    }
    if step == "reports-a-missing-program" {
        return report(&Report::Unstarted(unstarted(true)));
    }
    if step == "reports-a-missing-primitive" {
        return report(&Report::Unstarted(unstarted(false)));
    }
    if step == "reports-unstarted-after-started" {
        tell(wire::STARTED, b"1");
        return report(&Report::Unstarted(unstarted(false)));
    }
    // From here on the program has had its effect.
    let mut program = std::process::Command::new(&run.argv[0]);
    program.args(&run.argv[1..]).current_dir(&run.cwd).status().unwrap();
    if step == "ends-after-an-effect-untold" {
        return;
    }
    if step == "ends-with-half-of-started-told" {
        return half(wire::STARTED);
    }
    if step == "reports-its-own-failure" {
        return report(&Report::Failed(unstarted(false)));
    }
    tell(wire::STARTED, b"1");
    match step {
        "ends-with-started-told" => (),
        "ends-with-half-the-report-told" => half(wire::REPORT),
        "reports-nonsense" => tell(wire::REPORT, b"nonsense"),
        "reports-a-signal-after-started" => report(&Report::Signal(9)),
        "reports-memory-after-started" => report(&Report::MemoryLimit),
        other => panic!("there is no step `{other}`"),
    }
}

/// Returns the conclusion of one call, and whether the program had its effect.
fn call(launcher: &Path) -> (Expected, bool) {
    let folder = tempfile::tempdir().unwrap();
    let effect = folder.path().join("effect");
    let line = CommandLine {
        argv: vec!["touch".into()],
        cwd: Some(folder.path().display().to_string().into()),
        ..CommandLine::default()
    };
    let executor = CommandExecutor::new(
        CommandSettings {
            line: CallLine::Named(line),
            error_text: ErrorText::Safe,
            sandbox: None,
            levels: TrustLevels::default(),
        },
        Launcher::of(launcher.to_owned(), None),
    );
    let contract = calls::contract(json!({"localRuntimeId": "x"}), json!({"toolId": "effect"}));
    let dispatch = Dispatch { idempotency_key: None, ..calls::dispatch(contract, "{}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async {
        let (conversation, _cancel) = Conversation::detached();
        executor.execute(dispatch, conversation).await
    });
    let Outcome::Failed(error) = outcome else { panic!("{outcome:?}") };
    ((error.code, error.effect), effect.exists())
}

fn tried(step: &'static str, expected: Expected) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let launcher = folder.path().join(step);
    std::os::unix::fs::symlink(std::env::current_exe()?, &launcher)?;
    let (concluded, effect) = call(&launcher);
    if concluded != expected {
        return Err(format!("{concluded:?}, and not {expected:?}").into());
    }
    if effect && concluded.1 == Effect::NotStarted {
        return Err("an effect is told as not started".into());
    }
    Ok(())
}

/// Acts as the failing launcher if the program was started under the name of a step.
pub(crate) fn entry() {
    let mut words = std::env::args();
    let Some(name) = words.next().map(PathBuf::from) else { return };
    let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_step = STEPS.iter().any(|(step, _)| *step == name);
    if is_step && words.next().is_some_and(|word| word == toolbooth_launcher::WORD) {
        fail(name);
        std::process::exit(0);
    }
}

/// Returns the tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |(step, expected): &(&'static str, Expected)| {
        let (step, expected) = (*step, *expected);
        Trial::test(format!("launcher_faults::{step}"), move || tried(step, expected))
    };
    STEPS.iter().map(trial).collect()
}
