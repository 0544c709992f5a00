//! What a caller still sends after it was refused. A server that answers early and closes makes the caller's next write
//! fail, and the answer that says why is never read. So the rest of a body that nobody wants is read and thrown away,
//! within bounds, while the answer is on its way.

use axum::body::HttpBody;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The most that is thrown away for one request: the longest body that any route takes.
const DISCARDED_BYTES_MAX: usize = super::settings::INFERENCE_BYTES_MAX;
const DISCARDED_FOR: Duration = Duration::from_secs(5);

/// A body whose rest is thrown away when nobody reads it to its end.
pub(super) struct Unread {
    body: Option<Incoming>,
}

impl Unread {
    pub(super) const fn new(body: Incoming) -> Self {
        Self { body: Some(body) }
    }
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Ok(runtime)) = (unread, tokio::runtime::Handle::try_current()) {
            // It ends by itself: with the body, with the connection, or with its time.
            drop(runtime.spawn(tokio::time::timeout(DISCARDED_FOR, discard(body))));
        }
    }
}

async fn discard(mut body: Incoming) {
    let mut left = DISCARDED_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}
