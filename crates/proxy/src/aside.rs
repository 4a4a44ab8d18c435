//! Work that keeps a core busy for long, on threads that run no calls.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Arguments that are judged at once.
static ARGUMENTS: LazyLock<Semaphore> = LazyLock::new(for_each_core);
/// Results that are judged at once. Calls that have had an effect do not wait for the arguments of others.
static RESULTS: LazyLock<Semaphore> = LazyLock::new(for_each_core);

/// From how many bytes on a value is judged aside: patterns and rules for secrets can take seconds for it.
const LARGE_BYTES: usize = 64 << 10;

/// Runs `work` on another thread. It goes on where the caller does not wait for it any more.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

fn for_each_core() -> Semaphore {
    Semaphore::new(available_parallelism().map_or(1, usize::from))
}

/// As [`run`], for work on arguments of this size. Small ones are judged at once, large ones aside, as many at the
/// same time as there are cores.
pub(crate) async fn judge_arguments<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    judge(&ARGUMENTS, bytes, work).await
}

/// As [`judge_arguments`], for a result.
pub(crate) async fn judge_result<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    judge(&RESULTS, bytes, work).await
}

async fn judge<T: Send + 'static>(
    permits: &'static Semaphore,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= LARGE_BYTES {
        return work();
    }
    // Never closed.
    let permit = permits.acquire().await;
    run(move || {
        let _permit = permit;
        work()
    })
    .await
}
