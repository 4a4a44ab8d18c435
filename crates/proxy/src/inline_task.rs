//! A task that its owner polls. If the owner drops it, the runtime runs it to its end.
//!
//! A task of the runtime's own would cost a spawn and two wake-ups for each call.
//!
//! Path: 2, 7. Doc: call-path.md#one-call

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

pub(crate) use crate::error::TaskFailed;

type Output<T> = Result<T, TaskFailed>;

/// A task in progress, with its output. Dropping it does not end the task.
pub(crate) struct InlineTask<T: Send + 'static>(State<T>);

enum State<T> {
    /// The owner polls it. The runtime is the one in which it began.
    Inline(BoxFuture<'static, Output<T>>, Handle),
    /// The runtime polls it.
    Spawned(JoinHandle<Output<T>>),
    Ended,
}

impl<T: Send + 'static> InlineTask<T> {
    /// Returns a task that its owner polls. `tasks` counts it until it ends.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn new(tasks: &TaskTracker, task: impl Future<Output = T> + Send + 'static) -> Self {
        // Nothing of the task is used after a panic.
        let caught = AssertUnwindSafe(task).catch_unwind();
        let told = caught.map(|ended| ended.map_err(|panic| TaskFailed::Panicked(text(&*panic))));
        Self(State::Inline(Box::pin(tasks.track_future(told)), Handle::current()))
    }

    /// Lets the runtime poll it from now on: it progresses while its owner waits for something else.
    pub(crate) fn spawn(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, State::Ended) {
            State::Inline(task, runtime) => State::Spawned(runtime.spawn(task)),
            other => other,
        };
    }
}

impl<T: Send + 'static> Future for InlineTask<T> {
    type Output = Output<T>;

    /// Returns the output once; later polls are pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Output<T>> {
        let output = match &mut self.0 {
            State::Inline(task, _) => std::task::ready!(task.as_mut().poll(context)),
            State::Spawned(task) => {
                std::task::ready!(Pin::new(task).poll(context)).unwrap_or(Err(TaskFailed::Aborted))
            }
            State::Ended => return Poll::Pending,
        };
        self.0 = State::Ended;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for InlineTask<T> {
    fn drop(&mut self) {
        self.spawn();
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Returns a task that waits for the sender, and the sender.
    fn waiting(tasks: &TaskTracker) -> (oneshot::Sender<u8>, InlineTask<u8>) {
        let (go, going) = oneshot::channel();
        (go, InlineTask::new(tasks, async { going.await.unwrap() }))
    }

    #[tokio::test]
    async fn a_task_runs_where_it_is_polled() {
        let tasks = TaskTracker::new();
        let (go, mut task) = waiting(&tasks);
        assert_eq!((&mut task).now_or_never(), None);
        assert_eq!(tasks.len(), 1);
        go.send(7).unwrap();
        assert_eq!((&mut task).now_or_never(), Some(Ok(7)));
        assert_eq!((&mut task).now_or_never(), None, "the output is returned once");
        assert_eq!(tasks.len(), 0);
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_goes_on() {
        for polled in [false, true] {
            let tasks = TaskTracker::new();
            let (ended, end) = oneshot::channel();
            let (go, task) = waiting(&tasks);
            let mut outer = InlineTask::new(&tasks, async move { ended.send(task.await) });
            if polled {
                assert!((&mut outer).now_or_never().is_none());
            }
            drop(outer);
            assert_eq!(tasks.len(), 2);
            go.send(7).unwrap();
            assert_eq!(end.await.unwrap(), Ok(7));
            tasks.close();
            tasks.wait().await;
        }
    }

    #[test]
    fn a_task_that_is_dropped_outside_its_runtime_goes_on_in_it() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let tasks = TaskTracker::new();
        let (go, task) = runtime.block_on(async { waiting(&tasks) });
        drop(task);
        go.send(7).unwrap();
        tasks.close();
        runtime.block_on(tasks.wait());
    }

    #[tokio::test]
    async fn a_task_that_is_spawned_needs_no_polling() {
        let tasks = TaskTracker::new();
        let (done, end) = oneshot::channel();
        let (go, task) = waiting(&tasks);
        let mut outer = InlineTask::new(&tasks, async move {
            done.send(task.await).unwrap();
            8
        });
        outer.spawn();
        // It is spawned once.
        outer.spawn();
        go.send(7).unwrap();
        assert_eq!(end.await.unwrap(), Ok(7));
        assert_eq!(outer.await, Ok(8));
    }

    #[tokio::test]
    async fn a_panic_is_told() {
        for spawned in [false, true] {
            let tasks = TaskTracker::new();
            let number = 7;
            let mut task: InlineTask<()> =
                InlineTask::new(&tasks, async move { panic!("the number is {number}") });
            if spawned {
                task.spawn();
            }
            let told = TaskFailed::Panicked("the number is 7".to_owned());
            assert_eq!((&mut task).await, Err(told));
            assert_eq!(tasks.len(), 0);
        }
    }
}
