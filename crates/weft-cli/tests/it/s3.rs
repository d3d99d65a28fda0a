//! A server that speaks enough of S3 for an archive: objects of one bucket in memory, over plain HTTP.
//! Who calls must sign with the one key that there is; the signature itself is not checked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Keys in one page of a listing: so few that there are several.
const PAGE: usize = 3;

/// Objects by their keys.
type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A server of the bucket `bucket`.
pub struct S3 {
    pub endpoint: String,
    pub objects: Objects,
}

struct Asked {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl S3 {
    pub fn start(access_key: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let objects = Objects::default();
        let credential = format!("Credential={access_key}/");
        let all = Arc::clone(&objects);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (objects, credential) = (Arc::clone(&all), credential.clone());
                std::thread::spawn(move || serve(&stream, &objects, &credential));
            }
        });
        Self { endpoint, objects }
    }

    /// How many blocks are there.
    pub fn blocks(&self) -> usize {
        let objects = self.objects.lock().expect("nobody panics");
        objects.keys().filter(|key| key.contains("/blocks/")).count()
    }
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let hex = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).expect("text")
}

fn read(from: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    let mut next = |from: &mut dyn BufRead| {
        line.clear();
        from.read_line(&mut line).ok().filter(|n| *n > 0).map(|_| line.trim_end().to_owned())
    };
    let first = next(from)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let header = next(from)?;
        let Some((name, value)) = header.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").map_or(0, |n| n.parse().expect("a length"));
    let mut body = vec![0; len];
    from.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = query.map(|(name, value)| (decoded(name), decoded(value))).collect();
    let key = decoded(path.strip_prefix("/bucket").unwrap_or(path).trim_start_matches('/'));
    Some(Asked { method, key, query, headers, body })
}

fn serve(stream: &TcpStream, objects: &Objects, credential: &str) {
    let mut from = BufReader::new(stream);
    let mut to = stream;
    while let Some(asked) = read(&mut from) {
        let is_head = asked.method == "HEAD";
        let signed = asked.headers.get("authorization");
        let is_let_in = signed.is_some_and(|text| text.contains(credential));
        let (status, body) = if is_let_in {
            answer(&mut objects.lock().expect("nobody panics"), asked)
        } else {
            ("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>".to_vec())
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"x\"\r\n\
             Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
            body.len()
        );
        let body = if is_head { &[][..] } else { &body };
        if to.write_all(&[head.as_bytes(), body].concat()).is_err() {
            return;
        }
    }
}

fn answer(objects: &mut BTreeMap<String, Vec<u8>>, asked: Asked) -> (&'static str, Vec<u8>) {
    match asked.method.as_str() {
        "PUT"
            if asked.headers.contains_key("if-none-match") && objects.contains_key(&asked.key) =>
        {
            ("412 Precondition Failed", Vec::new())
        }
        "PUT" => {
            objects.insert(asked.key, asked.body);
            ("200 OK", Vec::new())
        }
        "DELETE" => {
            objects.remove(&asked.key);
            ("204 No Content", Vec::new())
        }
        "GET" if asked.key.is_empty() => ("200 OK", list(objects, &asked.query).into_bytes()),
        "GET" | "HEAD" => match objects.get(&asked.key) {
            Some(bytes) => ("200 OK", bytes.clone()),
            None => ("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
        },
        _ => ("501 Not Implemented", Vec::new()),
    }
}

fn list(objects: &BTreeMap<String, Vec<u8>>, query: &BTreeMap<String, String>) -> String {
    let prefix = query.get("prefix").cloned().unwrap_or_default();
    let after = query.get("continuation-token").cloned().unwrap_or_default();
    let found: Vec<_> =
        objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after).collect();
    let mut text = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
    for (key, bytes) in found.iter().take(PAGE) {
        text.push_str(&format!(
            "<Contents><Key>{key}</Key><Size>{}</Size><ETag>\"x\"</ETag>\
             <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>",
            bytes.len()
        ));
    }
    if let Some((last, _)) = found.get(PAGE - 1).filter(|_| found.len() > PAGE) {
        text.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
    }
    text + "</ListBucketResult>"
}
