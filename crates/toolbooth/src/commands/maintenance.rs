//! The periodic tasks of a gateway that runs, on threads that run no calls.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolbooth_audit::ledger::{PruneKind, RENEW_EVERY};
use toolbooth_proxy::{ORDERS_EVERY, ToolProxy};

use super::{receipts, reload};
use crate::compose::Runtime;
use crate::config::Loaded;
use crate::failure::{FAILED, Failure};
use crate::offline;
use crate::operator_socket::OperatorSocket;
use crate::retention;
use crate::times::time;

/// The default polling interval of sources that do not report changes.
const INTERVAL: Duration = Duration::from_secs(60);

/// The interval between checks whether a checkpoint is due.
const CHECKPOINT_LOOK: Duration = Duration::from_millis(500);
/// The interval between removals of old records.
const RETAIN_EVERY: Duration = Duration::from_secs(600);
/// The default retention of completed asynchronous calls.
const CALLS_KEPT: &str = "1d";
/// The default retention of expired approvals.
const APPROVALS_KEPT: &str = "30d";

/// How long the end of the tasks is awaited.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The periodic tasks of a process that runs calls. Dropping it ends them.
pub(super) struct Maintenance {
    tasks: OwnThread,
    renewal: OwnThread,
}

/// A task on a thread of its own.
struct OwnThread {
    stopping: DropGuard,
    /// Ends the pause of a task that is run again and again.
    pause: Option<mpsc::Sender<()>>,
    ended: JoinHandle<()>,
}

impl Maintenance {
    /// Starts the tasks of a gateway.
    pub(super) fn start(runtime: &Arc<Runtime>, socket: Option<OperatorSocket>) -> Self {
        Self::with(runtime, maintain(Arc::clone(runtime), socket))
    }

    /// Starts the tasks of a command that runs calls. Without them other gateways would take its calls for lost, and
    /// a pause would not hold for a plan that runs.
    pub(super) fn of_command(runtime: &Arc<Runtime>) -> Self {
        let own = Arc::clone(runtime);
        Self::with(runtime, async move { refresh_orders(&own.proxy).await })
    }

    fn with(runtime: &Arc<Runtime>, tasks: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            tasks: OwnThread::of(tasks),
            renewal: OwnThread::every(RENEW_EVERY, {
                let runtime = Arc::clone(runtime);
                async move || {
                    if let Err(failure) = runtime.maintain().await
                        && !runtime.proxy.is_ending()
                    {
                        tracing::error!(reason = failure.message, "the store does not answer");
                    }
                }
            }),
        }
    }

    /// Waits until a task has ended by itself, which it does only by a panic. Without its tasks a gateway must not run
    /// on: its lease ends, and its rules and keys are those of before.
    pub(super) async fn failed(&mut self) -> Failure {
        tokio::select! {
            _ = &mut self.tasks.ended => (),
            _ = &mut self.renewal.ended => (),
        }
        let message =
            "a periodic task has ended unexpectedly, so the gateway stops; start it again";
        Failure::new(FAILED, "defect", message)
    }

    /// Ends the tasks, and waits for a moment until their threads have ended.
    pub(super) async fn end(self) {
        let Self { tasks, renewal } = self;
        drop((tasks.stopping, renewal.stopping, renewal.pause));
        let ended = async {
            if !tasks.ended.is_finished() {
                let _ = tasks.ended.await;
            }
            if !renewal.ended.is_finished() {
                let _ = renewal.ended.await;
            }
        };
        let _ = tokio::time::timeout(END_PATIENCE, ended).await;
    }
}

impl OwnThread {
    /// Runs a future until it ends or is stopped. Reading rules or a large listing keeps a thread busy for up to
    /// seconds, and the threads of the runtime run the calls.
    fn of(task: impl Future<Output = ()> + Send + 'static) -> Self {
        let (stopping, handle) = (CancellationToken::new(), Handle::current());
        let stopped = stopping.clone();
        let ended = spawn_blocking(move || {
            handle.block_on(async {
                tokio::select! {
                    // First, since the timers of the task may have no runtime any more.
                    biased;
                    () = stopped.cancelled() => (),
                    () = task => (),
                }
            });
        });
        Self { stopping: stopping.drop_guard(), pause: None, ended }
    }

    /// Runs a task again and again until it is stopped. It uses the timers of this thread. If all threads of the
    /// runtime are busy, the runtime's timers are late. Other gateways would then treat an unrenewed lease as lost,
    /// with its running calls.
    fn every<F>(interval: Duration, task: F) -> Self
    where
        F: AsyncFn() + Send + 'static,
    {
        let (stopping, handle) = (CancellationToken::new(), Handle::current());
        let (pause, ending) = mpsc::channel::<()>();
        let stopped = stopping.clone();
        let ended = spawn_blocking(move || {
            while ending.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                handle.block_on(async {
                    tokio::select! {
                        biased;
                        () = stopped.cancelled() => (),
                        () = task() => (),
                    }
                });
            }
        });
        Self { stopping: stopping.drop_guard(), pause: Some(pause), ended }
    }
}

/// Runs the periodic tasks, except that which renews the lease.
async fn maintain(runtime: Arc<Runtime>, socket: Option<OperatorSocket>) {
    let interval =
        runtime.offline.loaded.config.discovery.interval_ms.map_or(INTERVAL, Duration::from_millis);
    let remembering_names = async {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let own = Arc::clone(&runtime);
            let _ = spawn_blocking(move || offline::remember_names(&own.offline)).await;
        }
    };
    let signing = async {
        let every = CHECKPOINT_LOOK;
        loop {
            tokio::time::sleep(every).await;
            if let Err(failure) = runtime.checkpoint().await {
                tracing::debug!(reason = failure.message, "no checkpoint is signed");
            }
        }
    };
    let catalogue = Arc::clone(&runtime.offline.catalogue);
    let refreshing_sources = catalogue.keep_fresh(interval.max(Duration::from_millis(100)));
    let recording_discoveries = async {
        let mut changes = runtime.offline.catalogue.changes();
        // Changes between the start and this subscription caused no notification.
        runtime.record_discovered().await;
        while changes.changed().await.is_ok() {
            runtime.record_discovered().await;
        }
    };
    let serving_socket = async {
        if let Some(socket) = socket {
            let catalogue = Arc::clone(&runtime.offline.catalogue);
            socket.serve(runtime.proxy.clone(), catalogue).await;
        }
    };
    let others = async {
        tokio::join!(
            recording_discoveries,
            serving_socket,
            signing,
            refresh_orders(&runtime.proxy),
            reload::watch_files(&runtime),
            reload::on_signal(&runtime),
            retain(&runtime)
        )
    };
    tokio::join!(remembering_names, refreshing_sources, others);
}

/// Reads the orders of operators again and again. Keys are refused once the last reading is too old.
async fn refresh_orders(proxy: &ToolProxy) {
    loop {
        tokio::time::sleep(ORDERS_EVERY).await;
        if let Err(error) = proxy.refresh_orders().await {
            tracing::warn!(%error, "the orders of operators cannot be read");
        }
    }
}

/// Returns the records that are old. Asynchronous calls and approvals are removed after a default time
/// without a `[retention]` setting.
fn retained(loaded: &Loaded) -> Result<Vec<(PruneKind, String)>, Failure> {
    let mut wanted = retention::retained(loaded)?;
    if loaded.config.retention.calls.is_none() {
        let before = time(Some(CALLS_KEPT), "retention.calls")?;
        wanted.extend(before.map(|before| (PruneKind::Calls, before)));
    }
    if loaded.config.retention.approvals.is_none() {
        let before = time(Some(APPROVALS_KEPT), "retention.approvals")?;
        wanted.extend(before.map(|before| (PruneKind::Approvals, before)));
    }
    Ok(wanted)
}

/// Removes old records periodically.
async fn retain(runtime: &Runtime) {
    let loaded = &runtime.offline.loaded;
    loop {
        match retained(loaded) {
            Ok(wanted) => match receipts::prune(runtime, wanted).await {
                Ok(done) => {
                    for (kind, pruned) in done.iter().filter(|(_, pruned)| pruned.removed > 0) {
                        tracing::info!(
                            records = kind.as_str(),
                            removed = pruned.removed,
                            "old records are removed"
                        );
                    }
                }
                Err(failure) => {
                    tracing::error!(reason = failure.message, "old records are not removed");
                }
            },
            Err(failure) => tracing::error!(reason = failure.message, "old records are kept"),
        }
        tokio::time::sleep(RETAIN_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn tasks_keep_no_thread_from_calls_and_end_with_their_guard() {
        let runtime = runtime();
        let (called, calls) = mpsc::channel();
        let (reported, reports) = mpsc::channel();
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        let own = runtime.block_on(async {
            OwnThread::of(async move {
                let _held = held;
                // As long as this blocks its thread, a call is answered.
                let call = calls.recv_timeout(Duration::from_secs(60));
                reported.send(call.is_ok()).unwrap();
                std::future::pending::<()>().await;
            })
        });
        runtime.spawn(async move { called.send(()).unwrap() });
        assert!(reports.recv().unwrap(), "the call waits for the periodic task");
        drop(own.stopping);
        assert!(runtime.block_on(released).is_err(), "the task is dropped");
    }

    #[test]
    fn the_lease_is_renewed_while_all_threads_of_the_runtime_are_busy() {
        let runtime = runtime();
        let (renewed, renewals) = mpsc::channel();
        let (free, busy) = mpsc::channel::<()>();
        let (started, starts) = mpsc::channel();
        runtime.spawn(async move {
            started.send(()).unwrap();
            let _ = busy.recv();
        });
        starts.recv().unwrap();
        let own = {
            let _entered = runtime.enter();
            OwnThread::every(Duration::from_millis(1), async move || {
                let _ = renewed.send(());
            })
        };
        for _ in 0..3 {
            renewals.recv_timeout(Duration::from_secs(60)).expect("is renewed");
        }
        drop((free, own.stopping, own.pause));
        runtime.block_on(own.ended).expect("ends");
    }

    #[test]
    fn a_task_that_panics_is_noticed() {
        let runtime = runtime();
        let failure = runtime.block_on(async {
            let mut maintenance = Maintenance {
                tasks: OwnThread::of(std::future::pending()),
                renewal: OwnThread::every(Duration::from_millis(1), async || panic!("a defect")),
            };
            let failure = maintenance.failed().await;
            maintenance.end().await;
            failure
        });
        assert_eq!(failure.code, "defect");
    }
}
