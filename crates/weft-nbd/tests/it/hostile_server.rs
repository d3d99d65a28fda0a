//! Servers that break the rules: each ends in an error that says so, in time, and nothing they
//! announce is believed.

use crate::bench::Bench;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;
use weft_block::BlockDevice;
use weft_nbd::wire::{
    BlockSizes, ChunkType, Descriptor, HandshakeFlags, Info, NbdErrno, OPTION_HEADER_BYTES,
    OptionHeader, OptionReplyHeader, OptionReplyType, OptionType, REQUEST_BYTES, ReplyTo, Request,
    ServerHello, TransmissionFlags, chunk_header, put_block_status, simple_reply,
};
use weft_nbd::{Error, NbdDevice, Result};
use weft_testing::ends;

const LEN: u64 = 1 << 20;

fn hello() -> Vec<u8> {
    let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
    ServerHello { flags }.encode().to_vec()
}

fn reply(option: OptionType, kind: OptionReplyType, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    OptionReplyHeader::put(&mut out, option, kind, data);
    out
}

/// Takes an option and its data.
fn take_option(stream: &mut UnixStream) -> Option<OptionType> {
    let mut header = [0; OPTION_HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let header = OptionHeader::parse(&header).ok()?;
    let mut data = vec![0; header.len_bytes as usize];
    stream.read_exact(&mut data).ok()?;
    Some(header.option)
}

/// A handshake as it should be, up to the answer to `GO`, which is `infos`.
fn shake_hands(stream: &mut UnixStream, infos: &[Info]) -> Option<()> {
    shake_hands_with(stream, infos, false)
}

/// The same, with extended headers or without.
fn shake_hands_with(stream: &mut UnixStream, infos: &[Info], extended: bool) -> Option<()> {
    stream.write_all(&hello()).ok()?;
    stream.read_exact(&mut [0; 4]).ok()?;
    loop {
        let option = take_option(stream)?;
        if option == OptionType::EXTENDED_HEADERS && !extended {
            stream.write_all(&reply(option, OptionReplyType::ERR_UNSUP, &[])).ok()?;
            continue;
        }
        let ack = reply(option, OptionReplyType::ACK, &[]);
        if option == OptionType::GO {
            for info in infos {
                let info = reply(option, OptionReplyType::INFO, &info.encode());
                stream.write_all(&info).ok()?;
            }
            return stream.write_all(&ack).ok();
        }
        stream.write_all(&ack).ok()?;
    }
}

/// Sends this with a pause after each byte.
fn trickle(stream: &mut UnixStream, bytes: &[u8]) -> Option<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).ok()?;
        std::thread::sleep(Duration::from_millis(200));
    }
    Some(())
}

fn sound() -> Vec<Info> {
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH;
    vec![Info::Export { len_bytes: LEN, flags }]
}

/// The limit of a client that has to run into it.
const SHORT: Duration = Duration::from_millis(1500);
/// The limit of a client that has to fail for another reason: waiting for it would be a hang.
const LONG: Duration = Duration::from_secs(3600);

/// Returns the limit of a client whose error has to say this.
fn limit_for(says: &str) -> Duration {
    if ["timed out", "does not answer"].contains(&says) { SHORT } else { LONG }
}

/// Runs a server that treats every connection so, and connects to it.
fn against(
    limit: Duration,
    serve: impl Fn(&mut UnixStream) -> Option<()> + Send + 'static,
    then: impl FnOnce(Result<NbdDevice>) + Send + 'static,
) {
    let bench = Bench::new();
    let listener = UnixListener::bind(bench.socket()).expect("a socket");
    // Ends with the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = serve(&mut stream);
        }
    });
    let mut options = bench.options();
    options.reconnect_limit = limit;
    options.reply_limit = limit;
    ends("the client is done with the server", move || then(NbdDevice::connect(options)));
}

fn connecting_fails(
    what: &'static str,
    says: &'static str,
    serve: impl Fn(&mut UnixStream) -> Option<()> + Send + 'static,
) {
    against(limit_for(says), serve, move |device| {
        let error = device.expect_err(what).to_string();
        assert!(error.contains(says), "{what}: {error}");
    });
}

#[test]
fn a_broken_handshake_is_an_error() {
    connecting_fails("no NBD", "not an NBD server", |s| s.write_all(&[b'x'; 18]).ok());
    connecting_fails("the old style", "old NBD handshake", |s| {
        s.write_all(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0").ok()
    });
    connecting_fails("a hello cut short", "closed the connection", |s| s.write_all(b"NBD").ok());
    connecting_fails("silence", "timed out", |s| {
        // Until the client hangs up.
        s.read_exact(&mut [0; 1]).ok()
    });
    connecting_fails("a byte at a time", "timed out", |s| {
        // So many that a client with a limit for each of them hangs.
        trickle(s, &hello())?;
        s.read_exact(&mut [0; 4]).ok()?;
        let option = take_option(s)?;
        trickle(s, &reply(option, OptionReplyType::INFO, &[0; 4000]))
    });
    connecting_fails("a reply of 4 GiB", "reply to an option of", |s| {
        s.write_all(&hello()).ok()?;
        s.read_exact(&mut [0; 4]).ok()?;
        let option = take_option(s)?;
        let mut header = reply(option, OptionReplyType::INFO, &[]);
        header[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        s.write_all(&header).ok()
    });
    connecting_fails("an answer to another question", "answered", |s| {
        s.write_all(&hello()).ok()?;
        s.read_exact(&mut [0; 4]).ok()?;
        take_option(s)?;
        s.write_all(&reply(OptionType::LIST, OptionReplyType::ACK, &[])).ok()
    });
    connecting_fails("replies without end", "no end of replies", |s| {
        s.write_all(&hello()).ok()?;
        s.read_exact(&mut [0; 4]).ok()?;
        let option = take_option(s)?;
        loop {
            s.write_all(&reply(option, OptionReplyType::INFO, &[])).ok()?;
        }
    });
    connecting_fails("no size", "how large", |s| shake_hands(s, &[]));
    connecting_fails("an absurd size", "an export of", |s| {
        let flags = TransmissionFlags::HAS_FLAGS;
        shake_hands(s, &[Info::Export { len_bytes: u64::MAX, flags }])
    });
    connecting_fails("impossible block sizes", "block sizes", |s| {
        let sizes = BlockSizes { min: 3, preferred: 0, max: 1 };
        shake_hands(s, &[sound()[0].clone(), Info::BlockSize(sizes)])
    });
}

/// A server that answers each request by what `answer` makes of it.
fn reading_fails(
    what: &'static str,
    says: &'static str,
    answer: impl Fn(&Request) -> Vec<u8> + Clone + Send + 'static,
) {
    reading_fails_with(false, what, says, answer);
}

fn reading_fails_with(
    extended: bool,
    what: &'static str,
    says: &'static str,
    answer: impl Fn(&Request) -> Vec<u8> + Clone + Send + 'static,
) {
    let serve = move |stream: &mut UnixStream| {
        shake_hands_with(stream, &sound(), extended)?;
        loop {
            let mut request = vec![0; Request::header_bytes(extended)];
            stream.read_exact(&mut request).ok()?;
            let request = Request::parse(&request, extended).ok()?;
            let answer = answer(&request);
            if answer.is_empty() {
                // It says nothing more.
                stream.read_exact(&mut [0; 1]).ok()?;
            }
            stream.write_all(&answer).ok()?;
        }
    };
    against(limit_for(says), serve, move |device| {
        let device = device.expect("the handshake is sound");
        let error = device.read_at(&mut [0; 8192], 4096).expect_err(what).to_string();
        assert!(error.contains(says), "{what}: {error}");
    });
}

/// A chunk of data.
fn data(handle: u64, offset: u64, len: usize, done: bool) -> Vec<u8> {
    let mut out = chunk_header(handle, ChunkType::OFFSET_DATA, done, 8 + len as u32).to_vec();
    out.extend_from_slice(&offset.to_be_bytes());
    out.resize(28 + len, 7);
    out
}

#[test]
fn a_reply_that_lies_breaks_the_connection() {
    reading_fails("an unknown handle", "no request", |r| data(r.handle + 1, r.offset, 8192, true));
    reading_fails("data before the range", "outside the range", |r| {
        data(r.handle, r.offset - 1, 100, true)
    });
    reading_fails("data past the range", "outside the range", |r| {
        data(r.handle, r.offset + 8000, 193, true)
    });
    reading_fails("an offset that overflows", "outside the range", |r| {
        data(r.handle, u64::MAX, 8, true)
    });
    reading_fails("the same bytes twice", "same bytes", |r| {
        [data(r.handle, r.offset, 4096, false), data(r.handle, r.offset, 8192, true)].concat()
    });
    reading_fails("too little", "incomplete reply", |r| data(r.handle, r.offset, 8191, true));
    reading_fails("a hole past the range", "outside the range", |r| {
        let mut out = chunk_header(r.handle, ChunkType::OFFSET_HOLE, true, 12).to_vec();
        out.extend_from_slice(&r.offset.to_be_bytes());
        out.extend_from_slice(&u32::MAX.to_be_bytes());
        out
    });
    reading_fails("4 GiB announced", "outside the range", |r| {
        let mut out = chunk_header(r.handle, ChunkType::OFFSET_DATA, true, u32::MAX).to_vec();
        out.extend_from_slice(&r.offset.to_be_bytes());
        out
    });
    reading_fails("an error chunk of 4 GiB", "chunk", |r| {
        chunk_header(r.handle, ChunkType::ERROR, true, u32::MAX).to_vec()
    });
    reading_fails("a type from the future", "unexpected", |r| {
        chunk_header(r.handle, ChunkType(77), true, 0).to_vec()
    });
    reading_fails("a simple reply to a read", "simple reply", |r| {
        let mut out = simple_reply(r.handle, NbdErrno::OK).to_vec();
        out.resize(16 + 8192, 0);
        out
    });
    reading_fails("noise", "begins with", |_| vec![0xee; 64]);
    reading_fails("no answer at all", "does not answer", |_| Vec::new());
}

/// What trickles in is no answer: the limit holds for the whole of a reply.
#[test]
fn a_reply_a_byte_at_a_time_is_given_up() {
    let serve = |stream: &mut UnixStream| {
        shake_hands(stream, &sound())?;
        let mut request = [0; REQUEST_BYTES];
        stream.read_exact(&mut request).ok()?;
        let request = Request::parse(&request, false).ok()?;
        for byte in data(request.handle, request.offset, 8192, true) {
            stream.write_all(&[byte]).ok()?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(())
    };
    against(SHORT, serve, |device| {
        let device = device.expect("the handshake is sound");
        let error = device.read_at(&mut [0; 8192], 4096).expect_err("too slow").to_string();
        assert!(error.contains("does not answer"), "{error}");
    });
}

#[test]
fn a_reply_with_an_extended_header_that_lies_breaks_the_connection() {
    fn to(r: &Request) -> ReplyTo {
        ReplyTo { handle: r.handle, extended: Some(r.offset) }
    }
    let fails = |what: &'static str, says: &'static str, answer: fn(&Request) -> Vec<u8>| {
        reading_fails_with(true, what, says, answer);
    };
    fails("a chunk without an extended header", "style", |r| data(r.handle, r.offset, 8192, true));
    fails("a simple reply", "style", |r| simple_reply(r.handle, NbdErrno::EIO).to_vec());
    fails("2^60 bytes announced", "outside the range", |r| {
        let mut out = to(r).chunk(ChunkType::OFFSET_DATA, true, 0).to_vec();
        out[24..32].copy_from_slice(&(1_u64 << 60).to_be_bytes());
        out.extend_from_slice(&r.offset.to_be_bytes());
        out
    });
    fails("an error chunk of 2^60 bytes", "chunk", |r| {
        let mut out = to(r).chunk(ChunkType::ERROR, true, 0).to_vec();
        out[24..32].copy_from_slice(&(1_u64 << 60).to_be_bytes());
        out
    });
    fails("a block status for a read", "no request asked", |r| {
        let mut out = Vec::new();
        let extent = Descriptor { len_bytes: 1 << 50, flags: 0 };
        put_block_status(&mut out, to(r), 1, &[extent]);
        out
    });
    fails("fewer extents than announced", "announced", |r| {
        let mut out = to(r).chunk(ChunkType::BLOCK_STATUS_EXT, true, 24).to_vec();
        out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 9]);
        out.resize(32 + 24, 1);
        out
    });
}

#[test]
fn an_honest_error_is_passed_on_and_breaks_nothing() {
    let serve = |stream: &mut UnixStream| {
        shake_hands(stream, &sound())?;
        for nr in 0.. {
            let mut request = [0; REQUEST_BYTES];
            stream.read_exact(&mut request).ok()?;
            let request = Request::parse(&request, false).ok()?;
            let answer = if nr == 0 {
                let mut out = Vec::new();
                weft_nbd::wire::put_error_chunk(
                    &mut out,
                    ReplyTo::compact(request.handle),
                    NbdErrno::EIO,
                    "worn",
                );
                out
            } else {
                data(request.handle, request.offset, request.len_bytes as usize, true)
            };
            stream.write_all(&answer).ok()?;
        }
        Some(())
    };
    against(LONG, serve, |device| {
        let device = device.expect("it connects");
        let error = device.read_at(&mut [0; 8192], 4096).expect_err("an error").to_string();
        assert!(error.contains("worn"), "{error}");
        let mut got = [0; 8192];
        device.read_at(&mut got, 4096).expect("a read");
        assert_eq!(got, [7; 8192]);
        assert_eq!(device.reconnections(), 0);
    });
}

#[test]
fn a_missing_export_is_refused_at_once() {
    let bench = Bench::new();
    let device = std::sync::Arc::new(weft_block::MemoryDevice::new(LEN));
    let _server = bench.serve(device);
    let mut options = bench.options();
    options.export = "other".into();
    let error = NbdDevice::connect(options).expect_err("no such export");
    assert!(matches!(error, Error::Refused { reply: OptionReplyType::ERR_UNKNOWN, .. }), "{error}");
}
