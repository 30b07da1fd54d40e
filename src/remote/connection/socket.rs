//! A socket that outlives the runtime that it was opened on.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use crate::task::home;

/// A socket that its connection may take [home](crate::task::home).
///
/// A runtime reports events of the sockets that are registered with it, so a socket registers again when it is first polled
/// at home. The bytes that it has received meanwhile stay in it.
pub(super) struct Socket<S> {
    /// `None` if it could not be registered.
    stream: Option<S>,
    is_at_home: bool,
}

/// A stream that can be registered with another runtime.
pub(super) trait Register: AsyncRead + AsyncWrite + Unpin + Sized {
    /// Registers the stream with the current runtime, and no longer with its former one.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn register(self) -> io::Result<Self>;
}

impl Register for TcpStream {
    fn register(self) -> io::Result<Self> {
        Self::from_std(self.into_std()?)
    }
}

#[cfg(unix)]
impl Register for tokio::net::UnixStream {
    fn register(self) -> io::Result<Self> {
        Self::from_std(self.into_std()?)
    }
}

impl<S: Register> Socket<S> {
    /// Returns a socket for a stream of the current runtime.
    pub fn new(stream: S) -> Self {
        Self {
            stream: Some(stream),
            is_at_home: home::is_current(),
        }
    }

    /// Returns the stream, registered with the runtime that polls it.
    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        if !self.is_at_home && home::is_current() {
            self.is_at_home = true;
            self.stream = self.stream.take().map(S::register).transpose()?;
        }
        let stream = self.stream.as_mut().map(Pin::new);
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S: Register> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl<S: Register> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(S::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}
