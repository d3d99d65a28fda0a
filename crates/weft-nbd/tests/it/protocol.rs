//! What the server answers, byte by byte: errors, flags, options.

use crate::bench::Bench;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_block::{BlockDevice, MemoryDevice, ReadOnly};
use weft_nbd::client::{Facts, Handshake};
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::wire::{
    Chunk, ChunkType, Command, CommandFlags, NbdErrno, OPTION_REPLY_HEADER_BYTES, OptionHeader,
    OptionReplyHeader, OptionReplyType, OptionType, ReplyHeader, ReplyStyle, Request,
    TransmissionFlags,
};
use weft_nbd::{Error, Export, NbdDevice, Server};
use weft_net::Address;
use weft_testing::{LIMIT, wait_until};

/// A client that says exactly what it is told to.
pub struct Raw {
    pub stream: UnixStream,
    pub facts: Facts,
}

/// A reply, put together.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub handle: u64,
    pub error: NbdErrno,
    /// The chunks' types and payloads.
    pub chunks: Vec<(ChunkType, Vec<u8>)>,
}

impl Raw {
    pub fn connect(bench: &Bench) -> Self {
        Self::connect_with(bench, false)
    }

    /// With extended headers, or without.
    pub fn connect_with(bench: &Bench, extended: bool) -> Self {
        let stream = UnixStream::connect(bench.socket()).expect("it connects");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        let (mut reader, mut writer) = (&stream, &stream);
        let handshake = Handshake::new(&mut reader, &mut writer, None);
        let mut handshake = handshake.with_extended_headers(extended);
        assert!(handshake.greet().expect("a greeting"));
        let facts = handshake.go("").expect("the export");
        assert_eq!(facts.extended, extended);
        Self { stream, facts }
    }

    pub fn send(&mut self, command: Command, flags: CommandFlags, offset: u64, len_bytes: u64) {
        let request = Request { flags, command, handle: offset ^ 77, offset, len_bytes };
        self.stream.write_all(&request.encode(self.facts.extended)).expect("it is sent");
    }

    pub fn receive(&mut self) -> Answer {
        let mut answer = Answer { handle: 0, error: NbdErrno::OK, chunks: Vec::new() };
        loop {
            let mut head = vec![0; 4];
            self.stream.read_exact(&mut head).expect("a reply");
            let style =
                if self.facts.extended { ReplyStyle::Extended } else { ReplyStyle::Structured };
            let len = ReplyHeader::len_bytes([head[0], head[1], head[2], head[3]], style);
            head.resize(len.expect("a magic number"), 0);
            self.stream.read_exact(&mut head[4..]).expect("a header");
            match ReplyHeader::parse(&head).expect("a header") {
                ReplyHeader::Simple { handle, error } => {
                    return Answer { handle, error, chunks: Vec::new() };
                }
                ReplyHeader::Chunk { handle, kind, done, len_bytes } => {
                    let mut payload = vec![0; len_bytes as usize];
                    self.stream.read_exact(&mut payload).expect("a payload");
                    answer.handle = handle;
                    if kind.is_error() {
                        let chunk = Chunk::parse(kind, done, &payload).expect("an error chunk");
                        let Chunk::Error { error, .. } = chunk else { panic!("{chunk:?}") };
                        answer.error = error;
                    } else {
                        answer.chunks.push((kind, payload));
                    }
                    if done {
                        return answer;
                    }
                }
            }
        }
    }

    pub fn ask(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        len_bytes: u64,
    ) -> Answer {
        self.send(command, flags, offset, len_bytes);
        self.receive()
    }

    /// As [`ask`](Self::ask), without flags; only the error matters.
    pub fn error(&mut self, command: Command, offset: u64, len_bytes: u64) -> NbdErrno {
        self.ask(command, CommandFlags::empty(), offset, len_bytes).error
    }

    /// Whether the server has ended the connection.
    pub fn has_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

const LEN: u64 = 1 << 20;

#[test]
fn requests_that_make_no_sense_get_the_errors_of_the_protocol() {
    let bench = Bench::new();
    let _server = bench.serve(Arc::new(MemoryDevice::new(LEN)));
    let mut raw = Raw::connect(&bench);
    for (command, offset, len_bytes, want) in [
        (Command::READ, LEN, 1, NbdErrno::EINVAL),
        (Command::READ, LEN - 1, 2, NbdErrno::EINVAL),
        (Command::READ, u64::MAX, 2, NbdErrno::EINVAL),
        (Command::READ, 0, u32::MAX.into(), NbdErrno::EINVAL),
        (Command::TRIM, LEN - 10, 11, NbdErrno::EINVAL),
        (Command::CACHE, LEN, 1, NbdErrno::EINVAL),
        (Command::BLOCK_STATUS, LEN, 1, NbdErrno::EINVAL),
        (Command::WRITE_ZEROES, LEN - 10, 11, NbdErrno::ENOSPC),
        (Command::WRITE_ZEROES, u64::MAX - 1, 11, NbdErrno::ENOSPC),
        (Command::FLUSH, 1, 0, NbdErrno::EINVAL),
        (Command(99), 0, 0, NbdErrno::EINVAL),
        (Command::READ, LEN, 0, NbdErrno::OK),
        (Command::CACHE, 0, LEN, NbdErrno::OK),
        (Command::FLUSH, 0, 0, NbdErrno::OK),
    ] {
        assert_eq!(raw.error(command, offset, len_bytes), want, "{command:?} {offset} {len_bytes}");
    }
    // The payload of a write that fails is read all the same.
    raw.send(Command::WRITE, CommandFlags::empty(), LEN - 4, 8);
    raw.stream.write_all(&[1; 8]).expect("the payload");
    assert_eq!(raw.receive().error, NbdErrno::ENOSPC);
    // Flags that a command does not have, or that were not agreed on.
    for (command, flags) in [
        (Command::READ, CommandFlags::NO_HOLE),
        (Command::TRIM, CommandFlags::FAST_ZERO),
        (Command::FLUSH, CommandFlags::DF),
        (Command::WRITE_ZEROES, CommandFlags::from_bits_retain(1 << 9)),
    ] {
        let answer = raw.ask(command, flags, 0, 0);
        assert_eq!(answer.error, NbdErrno::EINVAL, "{command:?} {flags:?}");
    }
    // The connection has survived all this.
    assert_eq!(raw.error(Command::READ, 0, 512), NbdErrno::OK);
}

#[test]
fn a_read_only_export_says_so_and_means_it() {
    let bench = Bench::new();
    let disk: Arc<dyn BlockDevice> = Arc::new(ReadOnly::new(MemoryDevice::new(LEN)));
    let _server = bench.serve(disk);
    let mut raw = Raw::connect(&bench);
    assert!(raw.facts.flags.contains(TransmissionFlags::READ_ONLY));
    assert!(!raw.facts.flags.contains(TransmissionFlags::SEND_TRIM));
    for command in [Command::TRIM, Command::WRITE_ZEROES] {
        assert_eq!(raw.error(command, 0, 512), NbdErrno::EPERM, "{command:?}");
    }
    raw.send(Command::WRITE, CommandFlags::empty(), 0, 4);
    raw.stream.write_all(&[1; 4]).expect("the payload");
    assert_eq!(raw.receive().error, NbdErrno::EPERM);
    assert_eq!(raw.error(Command::FLUSH, 0, 0), NbdErrno::OK);
    let refused = weft_nbd::NbdDevice::connect(bench.options());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

#[test]
fn holes_are_told_and_not_sent() {
    let bench = Bench::new();
    let disk = Arc::new(MemoryDevice::new(LEN));
    disk.write_at(&[5; 4096], 64 << 10).expect("a write");
    let _server = bench.serve(Arc::clone(&disk) as _);
    let mut raw = Raw::connect(&bench);
    let answer = raw.ask(Command::READ, CommandFlags::empty(), 0, 256 << 10);
    let kinds: Vec<_> = answer.chunks.iter().map(|(kind, p)| (*kind, p.len())).collect();
    let (data, hole) = (ChunkType::OFFSET_DATA, ChunkType::OFFSET_HOLE);
    assert_eq!(kinds, [(hole, 12), (data, 8 + 4096), (hole, 12)]);
    // Not if it must not be fragmented, and not where looking costs more than sending.
    let answer = raw.ask(Command::READ, CommandFlags::DF, 0, 256 << 10);
    assert_eq!(answer.chunks.len(), 1);
    assert_eq!(answer.chunks[0].1.len(), 8 + (256 << 10));
    let answer = raw.ask(Command::READ, CommandFlags::empty(), 0, 4096);
    assert_eq!(answer.chunks[0].0, data);

    let extents =
        |answer: &Answer| match Chunk::parse(answer.chunks[0].0, true, &answer.chunks[0].1) {
            Ok(Chunk::BlockStatus { extents, .. }) => {
                extents.iter().map(|e| (e.len_bytes, e.flags)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
    let answer = raw.ask(Command::BLOCK_STATUS, CommandFlags::empty(), 0, LEN);
    assert_eq!(extents(&answer), [(64 << 10, 3), (4096, 0), (LEN - (68 << 10), 3)]);
    let answer = raw.ask(Command::BLOCK_STATUS, CommandFlags::REQ_ONE, 60 << 10, 8192);
    assert_eq!(extents(&answer), [(4096, 3)]);
    // With NO_HOLE it is not faster than data, so that FAST_ZERO fails and changes nothing.
    let flags = CommandFlags::FAST_ZERO | CommandFlags::NO_HOLE;
    assert_eq!(raw.ask(Command::WRITE_ZEROES, flags, 64 << 10, 4096).error, NbdErrno::ENOTSUP);
    let mut byte = [0];
    disk.read_at(&mut byte, 64 << 10).expect("a read");
    assert_eq!(byte, [5]);
    let answer = raw.ask(Command::WRITE_ZEROES, CommandFlags::FAST_ZERO, 64 << 10, 4096);
    assert_eq!(answer.error, NbdErrno::OK);
    disk.read_at(&mut byte, 64 << 10).expect("a read");
    assert_eq!(byte, [0]);
}

#[test]
fn blocks_larger_than_a_byte_are_enforced() {
    let bench = Bench::new();
    let mut export =
        Export::new("", Arc::new(MemoryDevice::new(LEN + 100)) as Arc<dyn BlockDevice>);
    export.block_bytes_min = 4096;
    let _server = bench.serve_with(vec![export], ServerOptions::default());
    let mut raw = Raw::connect(&bench);
    assert_eq!((raw.facts.len_bytes, raw.facts.sizes.min), (LEN, 4096));
    assert_eq!(raw.error(Command::READ, 512, 4096), NbdErrno::EINVAL);
    assert_eq!(raw.error(Command::TRIM, 0, 100), NbdErrno::EINVAL);
    assert_eq!(raw.error(Command::READ, 4096, 4096), NbdErrno::OK);
}

/// Sends an option and returns the kinds of its replies.
fn option(stream: &UnixStream, option: OptionType, data: &[u8]) -> Vec<OptionReplyType> {
    let mut stream = stream;
    let header = OptionHeader { option, len_bytes: data.len() as u32 };
    stream.write_all(&[&header.encode(), data].concat()).expect("it is sent");
    let mut kinds = Vec::new();
    loop {
        let mut header = [0; OPTION_REPLY_HEADER_BYTES];
        stream.read_exact(&mut header).expect("a reply");
        let header = OptionReplyHeader::parse(&header).expect("a reply");
        let mut data = vec![0; header.len_bytes as usize];
        stream.read_exact(&mut data).expect("its data");
        assert_eq!(header.option, option);
        kinds.push(header.reply);
        if header.reply == OptionReplyType::ACK || header.reply.is_error() {
            return kinds;
        }
    }
}

fn greeted(bench: &Bench) -> UnixStream {
    let stream = UnixStream::connect(bench.socket()).expect("it connects");
    let (mut reader, mut writer) = (&stream, &stream);
    Handshake::new(&mut reader, &mut writer, None).greet().expect("a greeting");
    stream
}

fn two_exports(bench: &Bench) -> Server {
    let export = |name, len_bytes| Export::new(name, Arc::new(MemoryDevice::new(len_bytes)));
    bench.serve_with(vec![export("a", LEN), export("b", 2 * LEN)], ServerOptions::default())
}

#[test]
fn options_get_the_replies_of_the_protocol() {
    use OptionReplyType as R;
    let bench = Bench::new();
    let _server = two_exports(&bench);
    let stream = greeted(&bench);
    let go = |name: &str| {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&[0, 0]);
        data
    };
    let meta = |name: &str, query: &str| {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&1_u32.to_be_bytes());
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
        data
    };
    let list = OptionType::LIST_META_CONTEXT;
    let set = OptionType::SET_META_CONTEXT;
    assert_eq!(option(&stream, OptionType::LIST, &[]), [R::SERVER, R::SERVER, R::ACK]);
    assert_eq!(option(&stream, OptionType::LIST, &[1]), [R::ERR_INVALID]);
    assert_eq!(option(&stream, OptionType(4), &[]), [R::ERR_UNSUP]);
    assert_eq!(option(&stream, OptionType(4000), &[0; 500]), [R::ERR_UNSUP]);
    assert_eq!(option(&stream, OptionType::INFO, &vec![0; 100_000]), [R::ERR_TOO_BIG]);
    assert_eq!(option(&stream, OptionType::INFO, &go("c")), [R::ERR_UNKNOWN]);
    assert_eq!(option(&stream, OptionType::INFO, &go("b")), [R::INFO, R::ACK]);
    assert_eq!(option(&stream, OptionType::INFO, b"\0\0\0\x09x"), [R::ERR_INVALID]);
    assert_eq!(option(&stream, OptionType::STARTTLS, &[]), [R::ERR_POLICY]);
    assert_eq!(option(&stream, set, &meta("b", "base:allocation")), [R::ERR_INVALID]);
    assert_eq!(option(&stream, OptionType::STRUCTURED_REPLY, &[0]), [R::ERR_INVALID]);
    assert_eq!(option(&stream, OptionType::STRUCTURED_REPLY, &[]), [R::ACK]);
    assert_eq!(option(&stream, set, &meta("b", "base:allocation")), [R::META_CONTEXT, R::ACK]);
    assert_eq!(option(&stream, set, &meta("b", "base:")), [R::ACK], "no wildcard to choose by");
    assert_eq!(option(&stream, list, &meta("b", "base:")), [R::META_CONTEXT, R::ACK]);
    assert_eq!(option(&stream, list, &meta("b", "qemu:x")), [R::ACK]);
    assert_eq!(option(&stream, list, &meta("c", "base:")), [R::ERR_UNKNOWN]);
    let extended = OptionType::EXTENDED_HEADERS;
    assert_eq!(option(&stream, extended, &[0]), [R::ERR_INVALID]);
    assert_eq!(option(&stream, extended, &[]), [R::ACK]);
    assert_eq!(option(&stream, extended, &[]), [R::ERR_INVALID], "once is enough");
    assert_eq!(option(&stream, OptionType::STRUCTURED_REPLY, &[]), [R::ERR_EXT_HEADER_REQD]);
    assert_eq!(option(&stream, set, &meta("b", "base:allocation")), [R::META_CONTEXT, R::ACK]);
    assert_eq!(option(&stream, OptionType::GO, &go("b")), [R::INFO, R::ACK]);
    // The old way in has no room for them.
    let mut stream = greeted(&bench);
    assert_eq!(option(&stream, extended, &[]), [R::ACK]);
    let header = OptionHeader { option: OptionType::EXPORT_NAME, len_bytes: 1 };
    stream.write_all(&[&header.encode()[..], b"b"].concat()).expect("a name");
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
}

#[test]
fn a_context_chosen_for_one_export_is_not_one_of_another() {
    let bench = Bench::new();
    let _server = two_exports(&bench);
    let stream = greeted(&bench);
    let name = |name: &[u8]| [&1_u32.to_be_bytes(), name].concat();
    option(&stream, OptionType::STRUCTURED_REPLY, &[]);
    let query = [&name(b"a")[..], &1_u32.to_be_bytes(), &15_u32.to_be_bytes(), b"base:allocation"];
    option(&stream, OptionType::SET_META_CONTEXT, &query.concat());
    option(&stream, OptionType::GO, &[&name(b"b")[..], &[0, 0]].concat());
    let request = Request {
        flags: CommandFlags::empty(),
        command: Command::BLOCK_STATUS,
        handle: 1,
        offset: 0,
        len_bytes: 512,
    };
    (&stream).write_all(&request.encode(false)).expect("it is sent");
    let mut head = [0; 26];
    (&stream).read_exact(&mut head).expect("a reply");
    let header = ReplyHeader::parse(&head[..20]).expect("a chunk");
    assert!(matches!(header, ReplyHeader::Chunk { kind: ChunkType::ERROR, .. }), "{header:?}");
}

#[test]
fn the_old_way_in_works_too() {
    let bench = Bench::new();
    let _server = two_exports(&bench);
    for no_zeroes in [false, true] {
        let mut stream = UnixStream::connect(bench.socket()).expect("it connects");
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).expect("a greeting");
        stream.write_all(&[0, 0, 0, if no_zeroes { 3 } else { 1 }]).expect("flags");
        let header = OptionHeader { option: OptionType::EXPORT_NAME, len_bytes: 1 };
        stream.write_all(&[&header.encode()[..], b"b"].concat()).expect("a name");
        let mut facts = vec![0; if no_zeroes { 10 } else { 134 }];
        stream.read_exact(&mut facts).expect("size and flags");
        assert_eq!(facts[..8], (2 * LEN).to_be_bytes());
        // Replies are simple: header, then the data.
        let request = Request {
            flags: CommandFlags::empty(),
            command: Command::READ,
            handle: 9,
            offset: 0,
            len_bytes: 100,
        };
        stream.write_all(&request.encode(false)).expect("it is sent");
        let mut reply = [1; 116];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[16..], [0; 100]);
    }
    // It has no way to fail but the end.
    let mut stream = greeted(&bench);
    let header = OptionHeader { option: OptionType::EXPORT_NAME, len_bytes: 1 };
    stream.write_all(&[&header.encode()[..], b"c"].concat()).expect("a name");
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
}

/// An old client asks for no block sizes, and sends as much as it likes; nbd-tester-client does.
#[test]
fn a_client_that_was_not_told_of_block_sizes_may_write_more_at_once() {
    const LONG: usize = 47 << 20;
    let bench = Bench::new();
    let _server = bench.serve(Arc::new(MemoryDevice::new(128 << 20)));
    let mut stream = greeted(&bench);
    let header = OptionHeader { option: OptionType::EXPORT_NAME, len_bytes: 0 };
    stream.write_all(&header.encode()).expect("a name");
    let mut facts = [0; 10];
    stream.read_exact(&mut facts).expect("the export");
    let ask = |command, handle, len_bytes| Request {
        flags: CommandFlags::empty(),
        command,
        handle,
        offset: 4096,
        len_bytes,
    };
    let reply = |stream: &mut UnixStream| {
        let mut head = [0; 16];
        stream.read_exact(&mut head).expect("a reply");
        let header = ReplyHeader::parse(&head).expect("a header");
        let ReplyHeader::Simple { handle, error } = header else { panic!("{header:?}") };
        (handle, error)
    };
    stream.write_all(&ask(Command::WRITE, 1, LONG as u64).encode(false)).expect("a request");
    stream.write_all(&vec![7; LONG]).expect("a payload");
    assert_eq!(reply(&mut stream), (1, NbdErrno::OK));
    stream.write_all(&ask(Command::READ, 2, LONG as u64).encode(false)).expect("a request");
    assert_eq!(reply(&mut stream), (2, NbdErrno::OK));
    let mut got = vec![0; LONG];
    stream.read_exact(&mut got).expect("the data");
    assert!(got.iter().all(|b| *b == 7));
    stream.write_all(&ask(Command::READ, 3, 65 << 20).encode(false)).expect("a request");
    assert_eq!(reply(&mut stream), (3, NbdErrno::EINVAL), "there is an end to it");
    // A client that was told is held to it.
    let mut raw = Raw::connect(&bench);
    assert_eq!(raw.facts.sizes.max, 32 << 20);
    assert_eq!(raw.error(Command::READ, 0, 33 << 20), NbdErrno::EINVAL);
}

#[test]
fn connections_are_counted_and_limited() {
    let bench = Bench::new();
    let export = Export::new("", Arc::new(MemoryDevice::new(LEN)));
    let options = ServerOptions { connections_max: 2, ..ServerOptions::default() };
    let server = bench.serve_with(vec![export], options);
    let first = Raw::connect(&bench);
    let _second = Raw::connect(&bench);
    // A third is told why it is not served, and leaves.
    let refused = NbdDevice::connect(bench.options()).expect_err("there are two already");
    let Error::Refused { reply, message, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!(*reply, OptionReplyType::ERR_POLICY);
    assert!(message.contains("has 2 connections"), "{message}");
    let mut third = greeted(&bench);
    let header = OptionHeader { option: OptionType::EXPORT_NAME, len_bytes: 0 };
    third.write_all(&header.encode()).expect("a name");
    assert_eq!(third.read(&mut [0]).expect("the end"), 0, "an old option can only end");
    assert_eq!(server.counters().refused.load(Ordering::Relaxed), 2);
    // Many that say nothing cost no more than a few threads: the rest are closed at once.
    let silent: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(bench.socket()).expect("it connects")).collect();
    let closed = || {
        let gone = |mut stream: &UnixStream| {
            stream.set_nonblocking(true).expect("a socket");
            matches!(stream.read(&mut [0; 64]), Ok(0))
        };
        silent.iter().filter(|stream| gone(stream)).count()
    };
    wait_until("most are closed", || closed() >= 20);
    drop(silent);
    drop(first);
    wait_until("one is gone", || server.connections() == 1);
    let _third = Raw::connect(&bench);
}

#[test]
fn a_socket_is_private_and_a_live_one_is_not_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let server = bench.serve(Arc::new(MemoryDevice::new(LEN)));
    let mode = std::fs::metadata(bench.socket()).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let export = || vec![Export::new("", Arc::new(MemoryDevice::new(LEN)) as Arc<dyn BlockDevice>)];
    let mut other = Server::new(export(), ServerOptions::default()).expect("a server");
    let error = other.listen(&Address::Unix(bench.socket())).expect_err("it is taken");
    assert!(error.to_string().contains("another server"), "{error}");
    drop(server);
    // What a killed server leaves is replaced; what is no socket is not.
    drop(std::os::unix::net::UnixListener::bind(bench.socket()).expect("a socket"));
    other.listen(&Address::Unix(bench.socket())).expect("it listens");
    let file = bench.socket().with_file_name("file");
    std::fs::write(&file, b"precious").expect("a file");
    assert!(other.listen(&Address::Unix(file.clone())).is_err());
    assert_eq!(std::fs::read(&file).expect("it is there"), b"precious");
}
