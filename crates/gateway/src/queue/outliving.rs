//! Work that goes on by itself if whoever waits for it goes away.
//!
//! It runs where it is waited for: to hand every end to a task of its own would wake another thread, and be woken by it.

use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A future that becomes a task when it is dropped before its end.
pub(super) struct Outliving<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// `None` once it has ended.
    work: Option<Pin<Box<F>>>,
    tasks: TaskTracker,
    /// It is waited for when the server stops, task or not.
    _under_way: TaskTrackerToken,
}

impl<F> Outliving<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    pub(super) fn new(work: F, tasks: &TaskTracker) -> Self {
        Self { work: Some(Box::pin(work)), tasks: tasks.clone(), _under_way: tasks.token() }
    }
}

impl<F> Future for Outliving<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.work else { unreachable!("nobody polls what has ended") };
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<F> Drop for Outliving<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        // Where there is no runtime any more the program is ending, and the next start finishes it.
        if let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) {
            self.tasks.spawn_on(work, &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Notify;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_is_waited_for_ends_in_place() {
        let tasks = TaskTracker::new();
        assert_eq!(Outliving::new(async { 7 }, &tasks).await, 7);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on_and_is_waited_for_at_the_stop() {
        let tasks = TaskTracker::new();
        let gate = Arc::new(Notify::new());
        let (done, is_done) = oneshot::channel();
        let work = {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                done.send(()).unwrap();
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_millis(1), Outliving::new(work, &tasks)).await;
        assert!(waited.is_err(), "its caller went away");
        tasks.close();
        assert!(!tasks.is_empty(), "it is still under way");
        gate.notify_one();
        tasks.wait().await;
        is_done.await.unwrap();
    }
}
