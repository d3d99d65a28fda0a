//! The subset of HTTP/1.1 (RFC 9112) that Prometheus and `weft cache` need: one request per
//! connection, without a body, answered with text. Size and time are limited, so that a peer that
//! sends nothing, or without end, occupies one thread for two seconds.

use std::io::{self, Read, Write};
use std::time::Duration;

/// The longest request line with its headers, in bytes.
const HEAD_MAX_BYTES: usize = 8 << 10;

/// The time limit for a peer to send its request, and to receive the answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A request: `GET /metrics`, `POST /mode?to=write-back`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub method: String,
    pub path: String,
    /// The part after the question mark, or empty.
    pub query: String,
}

/// An answer: a status and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    pub media_type: &'static str,
    pub text: String,
}

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    pub fn ok(text: impl Into<String>) -> Self {
        Self { status: 200, media_type: PLAIN_TEXT, text: text.into() }
    }

    /// The figures for monitoring.
    pub fn metrics(text: String) -> Self {
        Self { status: 200, media_type: crate::metrics::MEDIA_TYPE, text }
    }

    pub fn refused(status: u16, text: impl Into<String>) -> Self {
        Self { status, media_type: PLAIN_TEXT, text: text.into() }
    }
}

/// Reads the request of a connection. `None` if it is malformed or too long.
pub(super) fn read_request(stream: &mut impl Read) -> io::Result<Option<Request>> {
    Ok(parse_request(&read_head(stream)?))
}

/// Reads up to the empty line that ends the headers.
fn read_head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < HEAD_MAX_BYTES {
        match stream.read(&mut part)? {
            0 => break,
            n => head.extend_from_slice(&part[..n]),
        }
    }
    Ok(head)
}

pub(super) fn parse_request(head: &[u8]) -> Option<Request> {
    let end = head.windows(4).position(|w| w == b"\r\n\r\n")?;
    let line = head[..end].split(|b| *b == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return None;
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Some(Request { method: method.into(), path: path.into(), query: query.into() })
}

/// Sends an answer.
pub(super) fn write_answer(stream: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let reason = match answer.status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        _ => "Error",
    };
    write!(
        stream,
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        answer.status,
        answer.media_type,
        answer.text.len(),
        answer.text
    )?;
    stream.flush()
}

/// Sends a request and reads the whole answer.
pub(super) fn ask(
    stream: &mut (impl Read + Write),
    method: &str,
    target: &str,
) -> io::Result<Answer> {
    /// The longest answer that is accepted, in bytes.
    const ANSWER_MAX_BYTES: u64 = 1 << 20;
    write!(stream, "{method} {target} HTTP/1.1\r\nHost: weft\r\nConnection: close\r\n\r\n")?;
    stream.flush()?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_MAX_BYTES).read_to_end(&mut bytes)?;
    parse_answer(&bytes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn parse_answer(bytes: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, media_type: PLAIN_TEXT, text: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood_or_refused() {
        let get = parse_request(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!((get.method.as_str(), get.path.as_str()), ("GET", "/metrics"));
        let post = parse_request(b"POST /mode?to=write-back HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!((post.path.as_str(), post.query.as_str()), ("/mode", "to=write-back"));
        for bad in [
            &b""[..],
            b"GET /metrics HTTP/1.1\r\n",
            b"GET metrics HTTP/1.1\r\n\r\n",
            b"GET /metrics\r\n\r\n",
            b"GET / x HTTP/1.1\r\n\r\n",
            b"\xff\xfe /x HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(parse_request(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_request_without_end_is_cut_off() {
        let head = read_head(&mut io::repeat(b'a')).unwrap();
        assert!(head.len() <= HEAD_MAX_BYTES + 1024);
        assert_eq!(parse_request(&head), None);
    }

    #[test]
    fn an_answer_arrives_as_it_was_sent() {
        let answer = Answer::refused(409, "the origin is away\n");
        let mut sent = Vec::new();
        write_answer(&mut sent, &answer).unwrap();
        assert_eq!(parse_answer(&sent), Some(answer));
        assert_eq!(parse_answer(b"SSH-2.0-x\r\n\r\n"), None);
    }
}
