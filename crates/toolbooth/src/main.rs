//! The binary: parses the command line, reads the configuration and composes the gateway.

mod caller_sets;
mod callers;
mod certificate;
mod cli;
mod commands;
mod compose;
mod config;
mod digest_keys;
mod door;
mod executors;
mod failure;
mod files;
mod hook;
mod import;
mod issuers;
mod kept_checkpoints;
mod notify;
mod offline;
mod openapi_file;
mod operator_socket;
mod output;
mod pins;
mod records;
mod registry_file;
mod retention;
mod rules;
mod schemas;
mod secret_shapes;
mod settings;
mod terminal;
mod times;
mod trust;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use failure::{FAILED, Failure, OUT_OF_REACH, USAGE};
use output::Format;

/// The allocator of the process. Callers allocate memory that the writer thread frees; few allocators handle
/// that pattern well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The hidden argument with which this program starts itself as a worker.
pub(crate) const WORKER: &str = "__worker";

/// Prints a message on standard error.
#[expect(
    clippy::print_stderr,
    reason = "hints and errors of the command line go here, and only here"
)]
pub(crate) fn notice(text: &str) {
    // The text may repeat foreign output, which must not move the cursor.
    eprintln!("{}", toolbooth_registry::suspicion::visible(text));
}

fn main() -> ExitCode {
    // If this process was started as the launcher, this call does not return.
    toolbooth_launcher::entry();
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == WORKER => return worker(),
        Some(first) if first == "__schemas" => {
            output::json(&schemas::all());
            return ExitCode::SUCCESS;
        }
        _ => (),
    }
    let json = wants_json();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // This is the output of `--help` or `--version`.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            // A hook denies by what is on standard error, whatever its format.
            let is_hook = std::env::args_os().any(|argument| argument == "hook");
            if json && !is_hook {
                let whole = error.to_string();
                let said: Vec<&str> = whole
                    .lines()
                    .map(str::trim)
                    .take_while(|line| !line.starts_with("Usage:"))
                    .filter(|line| !line.is_empty())
                    .collect();
                let said = said.join(" ");
                let message = said.strip_prefix("error: ").unwrap_or(&said);
                let failure = Failure::usage(message).hint("see `toolbooth --help`");
                output::json(&failure.json());
            } else {
                let _ = error.print();
            }
            return ExitCode::from(USAGE);
        }
    };
    if let Command::Hook(hook) = &cli.command
        && hook.answers()
    {
        return hook::answer(hook.limit());
    }
    start_tracing(matches!(cli.command, Command::Serve { .. }));
    // A gateway does its work, whether what it prints is read or not.
    let is_read = !matches!(cli.command, Command::Serve { .. } | Command::Worker { .. });
    let runtime = threads().and_then(|threads| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            // Schema checks are recursive. Their depth limit assumes this stack size.
            .thread_stack_size(8 << 20)
            .enable_all()
            .build()
            .map_err(|error| Failure::usage(format!("the runtime cannot be started: {error}")))
    });
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(commands::run(cli));
            // Blocking tasks that cannot be cancelled must not delay the exit.
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            outcome
        }
        Err(failure) => Err(failure),
    };
    let outcome = match output::failed() {
        Some(reason) if is_read && outcome.is_ok() => {
            notice(&format!("error: standard output cannot be written: {reason}"));
            Err(Failure::silent(OUT_OF_REACH))
        }
        _ => outcome,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(failure) => {
            if failure.is_silent() {
                return ExitCode::from(failure.exit);
            }
            if json {
                output::json(&failure.json());
            } else {
                notice(&failure.text());
            }
            ExitCode::from(failure.exit)
        }
    }
}

/// The variable that sets the threads of the runtime, and their maximum.
const THREADS: &str = "TOKIO_WORKER_THREADS";
const THREADS_MAX: usize = 1_024;

/// Returns the number of threads that run calls: half of the cores. The writer of the store, the search index and
/// child processes need the others. More threads mostly wake one another.
///
/// Doc: benchmarks.md#the-gateway
fn threads() -> Result<usize, Failure> {
    let Some(wanted) = std::env::var_os(THREADS) else {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        return Ok((cores / 2).max(1));
    };
    let number = wanted.to_str().and_then(|text| text.parse().ok());
    number.filter(|number| (1..=THREADS_MAX).contains(number)).ok_or_else(|| {
        Failure::usage(format!("{THREADS} is no number from 1 to {THREADS_MAX}"))
            .hint("take it out of the environment: the default is half of the cores")
    })
}

/// Whether the command line requests JSON output, even if the other arguments cannot be parsed.
fn wants_json() -> bool {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    arguments.iter().any(|argument| argument == "--format=json")
        || arguments.windows(2).any(|pair| pair == ["--format", "json"])
}

fn start_tracing(serving: bool) {
    use std::io::IsTerminal;
    let standard = if serving { "info,rmcp=warn" } else { "warn,rmcp=off" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("TOOLBOOTH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(standard));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .init();
}

/// Runs this program as a worker that parses one document.
fn worker() -> ExitCode {
    use toolbooth_adapters::builtin::documents;
    match documents::serve_one(std::io::stdin().lock(), std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            notice(&format!("the document cannot be parsed: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

impl Format {
    pub(crate) fn is_json(self) -> bool {
        self == Self::Json
    }
}
