//! A stream whose reader waits for the first write.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::BoxedStream;

/// A stream that is not read before something was written to it.
///
/// A full server sends its error as soon as it accepts. redis-rs drops a reply that comes before its command, and would
/// then report no more than a closed connection.
pub(super) struct WriteFirst {
    stream: BoxedStream,
    state: WriteState,
}

enum WriteState {
    /// Nothing is written yet. With the waker of the reader, if it waits.
    Silent(Option<Waker>),
    Open,
}

impl WriteFirst {
    pub fn new(stream: BoxedStream) -> Self {
        Self {
            stream,
            state: WriteState::Silent(None),
        }
    }
}

impl AsyncRead for WriteFirst {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let WriteState::Silent(reader) = &mut self.state {
            *reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.stream.as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for WriteFirst {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream.as_mut().poll_write(cx, bytes));
        if let WriteState::Silent(reader) = std::mem::replace(&mut self.state, WriteState::Open)
            && let Some(reader) = reader
        {
            reader.wake();
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(cx)
    }
}
