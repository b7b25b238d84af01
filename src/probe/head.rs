//! Reads the head of an HTTP/1 answer: bounded, never a byte of a body, and no waiting for what cannot become HTTP.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// Most bytes of a head, interim answers before it included.
pub(super) const LIMIT: usize = 16 * 1024;
/// Answers to CONNECT fit easily; the buffer grows for others.
pub(super) const FIRST_READ: usize = 1024;
/// Most header fields.
const FIELDS: usize = 100;
/// What every head begins with. A peer that says something else first (a banner, TLS) may be waiting for us.
const BEGINS: &[u8] = b"HTTP/1.";

/// A head that is complete, at the beginning of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    /// The body or the tunnel begins here.
    pub(super) length: usize,
}

#[derive(Debug)]
pub(super) enum HeadError {
    /// The peer closed before the head was complete; so many bytes had come.
    Closed(usize),
    /// Not HTTP: the first bytes.
    Garbage(Vec<u8>),
    TooLong,
    Io(io::Error),
}

impl Head {
    /// The value of a header field, as it came.
    pub(super) fn field<'b>(&self, buffer: &'b [u8], name: &str) -> Option<&'b [u8]> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut response = httparse::Response::new(&mut fields);
        response.parse(&buffer[..self.length]).ok()?;
        response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// Status and reason phrase, as they came.
    pub(super) fn status_line<'b>(&self, buffer: &'b [u8]) -> &'b [u8] {
        let line = buffer[..self.length].split(|byte| *byte == b'\n').next().unwrap_or_default();
        line.split_at_checked(b"HTTP/1.1 ".len()).map_or(line, |(_, rest)| rest).trim_ascii_end()
    }
}

/// Reads until `buffer` begins with a complete head; interim answers (1xx) before it are dropped. `buffer` may hold
/// bytes already, and may hold more behind the head afterwards. The caller holds the deadline.
pub(super) async fn read<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Result<Head, HeadError> {
    let mut dropped = 0;
    // Only a line's end can complete a head. Parsing at each byte of a slow peer would cost the square of its length.
    let mut may_be_complete = buffer.contains(&b'\n');
    loop {
        let begins = buffer.len().min(BEGINS.len());
        if buffer[..begins] != BEGINS[..begins] {
            return Err(HeadError::Garbage(excerpt(buffer)));
        }
        if may_be_complete && let Some(head) = parse(buffer)? {
            // 101 is no interim answer: it ends HTTP on this connection.
            if !(100..200).contains(&head.status) || head.status == 101 {
                return Ok(head);
            }
            dropped += head.length;
            buffer.drain(..head.length);
            continue;
        }
        if buffer.len() + dropped >= LIMIT {
            return Err(HeadError::TooLong);
        }
        let before = buffer.len();
        if buffer.capacity() == before {
            buffer.reserve(before.max(FIRST_READ).min(LIMIT - before));
        }
        match stream.read_buf(buffer).await {
            Ok(0) => return Err(HeadError::Closed(before)),
            Ok(_) => may_be_complete = buffer[before..].contains(&b'\n'),
            Err(error) if is_closed(&error) => return Err(HeadError::Closed(before)),
            Err(error) => return Err(HeadError::Io(error)),
        }
    }
}

fn parse(buffer: &[u8]) -> Result<Option<Head>, HeadError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => {
            let status = response.code.expect("a complete head has a status");
            Ok(Some(Head { status, length }))
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooLong),
        Err(_) => Err(HeadError::Garbage(excerpt(buffer))),
    }
}

fn excerpt(buffer: &[u8]) -> Vec<u8> {
    buffer[..buffer.len().min(64)].to_vec()
}

/// The peer is gone, in one of the ways that a connection can end.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::NotConnected | Kind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use tokio_test_stream::Pieces;

    use super::*;

    /// A stream that gives one piece a read, then ends.
    mod tokio_test_stream {
        use std::io;
        use std::pin::Pin;
        use std::task::{Context, Poll};

        use tokio::io::{AsyncRead, ReadBuf};

        pub(super) struct Pieces<'a>(pub(super) Vec<&'a [u8]>);

        impl AsyncRead for Pieces<'_> {
            fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                let Some(first) = self.0.first_mut() else { return Poll::Ready(Ok(())) };
                let given = first.len().min(buf.remaining());
                buf.put_slice(&first[..given]);
                *first = &first[given..];
                if first.is_empty() {
                    self.0.remove(0);
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    async fn read_all(pieces: Vec<&[u8]>) -> (Result<Head, HeadError>, Vec<u8>) {
        let mut buffer = Vec::new();
        let head = read(&mut Pieces(pieces), &mut buffer).await;
        (head, buffer)
    }

    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nX-Squid-Error: ERR_DNS_FAIL 0\r\n\r\n";

    #[tokio::test]
    async fn a_head_is_the_same_in_one_piece_and_byte_by_byte() {
        for pieces in [vec![ANSWER], ANSWER.chunks(1).collect(), ANSWER.chunks(7).collect()] {
            let (head, buffer) = read_all(pieces).await;
            let head = head.unwrap();
            assert_eq!(head, Head { status: 503, length: ANSWER.len() });
            assert_eq!(head.field(&buffer, "x-squid-error"), Some(&b"ERR_DNS_FAIL 0"[..]));
            assert_eq!(head.field(&buffer, "via"), None);
            assert_eq!(head.status_line(&buffer), b"503 Service Unavailable");
        }
    }

    #[tokio::test]
    async fn bytes_behind_the_head_are_kept() {
        let (head, buffer) = read_all(vec![b"HTTP/1.0 200 OK\r\n\r\ntunnel"]).await;
        assert_eq!(&buffer[head.unwrap().length..], b"tunnel");
    }

    #[tokio::test]
    async fn interim_answers_are_dropped_and_count_against_the_limit() {
        let (head, buffer) =
            read_all(vec![b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", ANSWER]).await;
        assert_eq!((head.unwrap().status, &*buffer), (503, ANSWER));
        let (head, _) = read_all(vec![b"HTTP/1.1 100 Continue\r\n\r\n"; LIMIT / 20]).await;
        assert!(matches!(head, Err(HeadError::TooLong)), "{head:?}");
    }

    #[tokio::test]
    async fn what_cannot_become_http_ends_at_its_first_bytes() {
        // The second piece would make the pieces run dry: reading it is the failure.
        for first in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            b"\x15\x03\x01\x00\x02\x02\x16",
            b"HTTP/2",
            b"\r\nHTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.x",
        ] {
            let mut rest = Pieces(vec![first, b"never read"]);
            let head = read(&mut rest, &mut Vec::new()).await;
            if first == b"HTTP/1.x" {
                // Told from HTTP only by its first line.
                assert!(matches!(head, Err(HeadError::Closed(_))), "{head:?}");
                continue;
            }
            assert!(matches!(head, Err(HeadError::Garbage(_))), "{first:?} gave {head:?}");
            assert_eq!(rest.0.len(), 1, "read on after {first:?}");
        }
    }

    #[tokio::test]
    async fn heads_over_the_limit_end_at_the_limit() {
        let line = [b"X: ", &[b'a'; 996][..], b"\n"].concat();
        let endless: Vec<&[u8]> = std::iter::once(&b"HTTP/1.1 200 OK\r\n"[..]).chain(vec![&line[..]; 1000]).collect();
        let mut pieces = Pieces(endless);
        let mut buffer = Vec::new();
        let head = read(&mut pieces, &mut buffer).await;
        assert!(matches!(head, Err(HeadError::TooLong)), "{head:?}");
        assert!(buffer.capacity() <= 2 * LIMIT, "held {} bytes", buffer.capacity());

        let many: Vec<&[u8]> = std::iter::once(&b"HTTP/1.1 200 OK\r\n"[..]).chain(vec![&b"a:\r\n"[..]; 1000]).collect();
        assert!(matches!(read_all(many).await.0, Err(HeadError::TooLong)));
    }

    #[tokio::test]
    async fn an_end_before_the_heads_end_is_told_with_what_had_come() {
        for cut in [0, 1, 12, ANSWER.len() - 1] {
            let (head, _) = read_all(if cut == 0 { vec![] } else { vec![&ANSWER[..cut]] }).await;
            assert!(matches!(head, Err(HeadError::Closed(came)) if came == cut), "{head:?} after {cut}");
        }
    }
}
