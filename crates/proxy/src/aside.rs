//! Work that keeps a core busy for long, on threads that run no calls.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Such works of values at once: one for each core.
static VALUES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, usize::from)));

/// From how many bytes on a value is judged aside: patterns and rules for secrets can take seconds for it.
pub(crate) const LARGE_BYTES: usize = 64 << 10;

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

/// As [`run`], for work on a value that a caller or a tool has chosen. As many run at once as there are cores.
pub(crate) async fn judge<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    // Never closed.
    let place = VALUES.acquire().await;
    run(move || {
        let _place = place;
        work()
    })
    .await
}
