//! An HTTP/1.1 client on one connection, strict about how long an answer is.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time;

/// A connection that stays open between requests.
///
/// It reads exactly as much as `content-length` says, so an answer of another length
/// spoils the next one.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) async fn connect(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server)
            .await
            .expect("the server listens");
        Self::over(stream)
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n"))
            .await;
        self.receive().await
    }

    /// Sends these bytes, which need not be a whole request.
    pub(crate) async fn send(&mut self, text: &str) {
        let sent = self.stream.write_all(text.as_bytes()).await;
        sent.expect("the server reads");
    }

    pub(crate) async fn receive(&mut self) -> Reply {
        let mut reply = self.receive_head().await;
        if reply.status == 204 {
            return reply; // it never has a body
        }
        let length = reply.header("content-length").expect("its length is said");
        let mut body = vec![0; length.parse().expect("a length is a number")];
        let read = patiently(self.stream.read_exact(&mut body)).await;
        read.expect("the body is as long as was said");
        reply.body = String::from_utf8(body).expect("the body is text");
        reply
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Receives a status line and headers. The response to a HEAD request has no body, whatever `content-length` is.
    pub(crate) async fn receive_head(&mut self) -> Reply {
        patiently(self.read_head()).await
    }

    async fn read_head(&mut self) -> Reply {
        let status_line = self.read_line().await;
        let mut words = status_line.split(' ');
        assert_eq!(words.next(), Some("HTTP/1.1"), "{status_line}");
        let status = words.next().and_then(|word| word.parse().ok());
        let mut reply = Reply {
            status: status.expect("the second word is the status"),
            headers: Vec::new(),
            body: String::new(),
        };
        loop {
            let line = self.read_line().await;
            if line.is_empty() {
                return reply;
            }
            let (name, value) = line.split_once(": ").expect("a header has a name");
            reply.headers.push((name.to_owned(), value.to_owned()));
        }
    }

    async fn read_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).await;
        read.expect("the head of an answer is text");
        let ended = line.strip_suffix("\r\n");
        ended.expect("the answer is whole").to_owned()
    }
}

// === Reply ===

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
    headers: Vec<(String, String)>,
}

impl Reply {
    /// The value of a header that comes at most once.
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self
            .headers
            .iter()
            .filter(|(found, _)| found.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} comes twice");
        value
    }
}

/// Fails the test instead of hanging it.
async fn patiently<T>(answer: impl Future<Output = T>) -> T {
    let answer = time::timeout(PATIENCE, answer).await;
    answer.expect("the server answers in time")
}

const PATIENCE: Duration = Duration::from_secs(10);
