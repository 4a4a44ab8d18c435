//! A request that the task of its connection runs, as long as that task waits for the answer.
//!
//! A task of its own for each request would cost a spawn and two wake-ups.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::FutureExt;
use tokio::runtime::Handle;

/// A request in progress. Where it is dropped before its end, it goes on in a task of its own.
pub(super) struct RequestFuture(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl RequestFuture {
    /// Returns a request. If it panics, it ends without an answer, and its connection goes on.
    pub(super) fn new(request: impl Future<Output = ()> + Send + 'static) -> Self {
        // Nothing of it is used after a panic.
        let caught = AssertUnwindSafe(request).catch_unwind();
        Self(Some(Box::pin(caught.map(drop))))
    }

    /// Runs the request to its end. Dropping this future pauses it; it never returns a second time.
    pub(super) async fn end(&mut self) {
        let Some(request) = &mut self.0 else { return pending().await };
        request.await;
        self.0 = None;
    }
}

impl Drop for RequestFuture {
    fn drop(&mut self) {
        // Without a runtime, the gateway has ended.
        if let (Some(rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Polls a request once, and asserts that it has not ended.
    async fn assert_goes_on(request: &mut RequestFuture) {
        tokio::select! {
            biased;
            () = request.end() => panic!("it has ended"),
            () = std::future::ready(()) => (),
        }
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_goes_on() {
        let (go, going) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let mut request = RequestFuture::new(async move {
            going.await.unwrap();
            ended.send(()).unwrap();
        });
        assert_goes_on(&mut request).await;
        drop(request);
        go.send(()).unwrap();
        end.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_ends_once_also_by_a_panic() {
        for fails in [false, true] {
            let (held, released) = oneshot::channel::<()>();
            let mut request = RequestFuture::new(async move {
                let _held = held;
                assert!(!fails, "as the test asks");
            });
            request.end().await;
            assert!(released.await.is_err(), "everything that it held is dropped");
            assert_goes_on(&mut request).await;
        }
    }
}
