//! Executing one request: checks it against the protocol and the export, runs it on the device,
//! answers it.

use super::negotiate::{Agreement, BASE_ALLOCATION_ID};
use crate::Result;
use crate::wire::{
    ChunkType, Command, CommandFlags, Descriptor, Head, NbdErrno, ReplyTo, Request, StateFlags,
    put_block_status, put_error_chunk, simple_reply,
};
use weft_block::{BlockDevice, ExtentKind};

/// The least length of a read that is searched for zeroes; for a shorter one the search costs more
/// than sending.
const HOLES_MIN_BYTES: u64 = 32 << 10;
/// The shortest run of zeroes that is sent as a hole, in bytes.
const HOLE_BYTES: usize = 4 << 10;
/// The most runs in the reply to a read or a block status.
const RUNS_MAX: usize = 512;
/// The unit in which long requests without a payload are executed, in bytes.
const PIECE_BYTES: usize = 1 << 20;
/// The most that one `CACHE` request reads ahead, in bytes.
const CACHE_MAX_BYTES: u64 = 64 << 20;

/// The receiver of replies.
pub(crate) trait Replies {
    /// Sends a header and the data after it, together.
    fn send(&self, head: &[u8], data: &[u8]) -> Result<()>;
}

/// A failed request: the protocol's error, and a message for people.
struct Failed(NbdErrno, String);

impl Failed {
    fn new(error: NbdErrno, message: &str) -> Self {
        Self(error, message.to_owned())
    }
}

/// Checks a request, before its payload is read.
fn check(agreed: &Agreement, request: &Request) -> Result<(), Failed> {
    let invalid = |message: &str| Err(Failed::new(NbdErrno::EINVAL, message));
    let export = &agreed.export;
    let (mut allowed, writes) = match request.command {
        Command::READ if agreed.structured => (CommandFlags::DF, false),
        Command::READ | Command::FLUSH | Command::CACHE => (CommandFlags::empty(), false),
        Command::WRITE | Command::TRIM => (CommandFlags::empty(), true),
        Command::WRITE_ZEROES => (CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO, true),
        Command::BLOCK_STATUS if agreed.base_allocation => (CommandFlags::REQ_ONE, false),
        Command::BLOCK_STATUS => return invalid("no metadata context was chosen"),
        _ => return invalid("unknown command"),
    };
    if !export.read_only {
        allowed |= CommandFlags::FUA;
    }
    if agreed.extended && request.command == Command::WRITE {
        allowed |= CommandFlags::PAYLOAD_LEN;
    }
    if !(request.flags - allowed).is_empty() {
        return invalid("unknown flag for this command");
    }
    if writes && export.read_only {
        return Err(Failed::new(NbdErrno::EPERM, "the export is read-only"));
    }
    if request.command == Command::FLUSH {
        let sound = request.offset == 0 && request.len_bytes == 0;
        return if sound { Ok(()) } else { invalid("a flush has no range") };
    }
    let (offset, len) = (request.offset, request.len_bytes);
    if offset.checked_add(len).is_none_or(|end| end > export.len_bytes()) {
        let full = matches!(request.command, Command::WRITE | Command::WRITE_ZEROES);
        let error = if full { NbdErrno::ENOSPC } else { NbdErrno::EINVAL };
        return Err(Failed::new(error, "the request reaches past the end of the export"));
    }
    let min = u64::from(export.block_bytes_min);
    if !offset.is_multiple_of(min) || !len.is_multiple_of(min) {
        return invalid("the request is not aligned to the minimum block size");
    }
    let moves_data = matches!(request.command, Command::READ | Command::WRITE);
    if moves_data && len > agreed.payload_max_bytes.into() {
        return invalid("the request is longer than the maximum block size");
    }
    if request.command == Command::BLOCK_STATUS && len == 0 {
        return invalid("block status of an empty range");
    }
    Ok(())
}

/// Returns true if the request would be refused at once, so that its payload need not be kept.
pub(crate) fn is_refused(agreed: &Agreement, request: &Request) -> bool {
    check(agreed, request).is_err()
}

/// Executes a request and answers it. `buf` holds the payload of a write, and is a buffer for other
/// requests.
///
/// # Errors
/// Those of sending. A failure of the device is a reply like any other.
pub(crate) fn perform(
    agreed: &Agreement,
    request: &Request,
    buf: &mut Vec<u8>,
    replies: &dyn Replies,
) -> Result<()> {
    let done = check(agreed, request).and_then(|()| match request.command {
        Command::READ => read(agreed, request, buf, replies).map(Some),
        Command::BLOCK_STATUS => block_status(agreed, request, replies).map(Some),
        _ => change(agreed, request, buf).map(|()| None),
    });
    match done {
        Ok(Some(sent)) => sent,
        Ok(None) => replies.send(&reply_to(agreed, request).done(), &[]),
        Err(Failed(error, message)) => refuse(agreed, request, error, &message, replies),
    }
}

fn reply_to(agreed: &Agreement, request: &Request) -> ReplyTo {
    ReplyTo { handle: request.handle, extended: agreed.extended.then_some(request.offset) }
}

/// Answers a request with an error.
pub(crate) fn refuse(
    agreed: &Agreement,
    request: &Request,
    error: NbdErrno,
    message: &str,
    replies: &dyn Replies,
) -> Result<()> {
    tracing::debug!(?request, ?error, message, "refused");
    if agreed.structured {
        let mut out = Vec::new();
        put_error_chunk(&mut out, reply_to(agreed, request), error, message);
        replies.send(&out, &[])
    } else {
        replies.send(&simple_reply(request.handle, error), &[])
    }
}

/// Returns a buffer of at least `len` bytes. Its old content does not matter, so that only new
/// memory is cleared.
fn room(buf: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buf.len() < len {
        buf.resize(len, 0);
    }
    &mut buf[..len]
}

fn read(
    agreed: &Agreement,
    request: &Request,
    buf: &mut Vec<u8>,
    replies: &dyn Replies,
) -> Result<Result<()>, Failed> {
    let device = &*agreed.export.device;
    let (to, offset) = (reply_to(agreed, request), request.offset);
    // At most 64 MiB.
    let len = request.len_bytes as usize;
    if agreed.structured && len == 0 {
        return Ok(replies.send(&to.chunk(ChunkType::NONE, true, 0), &[]));
    }
    let data = room(buf, len);
    device.read_at(data, offset).map_err(|e| failure(request, &e))?;
    if !agreed.structured {
        return Ok(replies.send(&simple_reply(request.handle, NbdErrno::OK), data));
    }
    let looks = request.len_bytes >= HOLES_MIN_BYTES && !request.flags.contains(CommandFlags::DF);
    if !looks {
        return Ok(replies.send(&data_head(to, offset, len, true), data));
    }
    Ok(send_runs(to, offset, data, replies))
}

/// Sends data run by run, zeroes as holes. Searching the data finds zeroes on any device, at the
/// cost of a comparison for each piece of data; asking a device for its holes may cost a walk
/// through the whole extent map of a file.
fn send_runs(to: ReplyTo, offset: u64, data: &[u8], replies: &dyn Replies) -> Result<()> {
    let mut from = 0;
    let mut sent = 0;
    while from < data.len() {
        let zero = is_hole(&data[from..]);
        let mut end = (from + HOLE_BYTES).min(data.len());
        let last_run = sent + 1 == RUNS_MAX;
        while end < data.len() && (last_run || is_hole(&data[end..]) == zero) {
            end = (end + HOLE_BYTES).min(data.len());
        }
        let (at, done) = (offset + from as u64, end == data.len());
        let run = &data[from..end];
        if zero && !last_run {
            let mut head = to.chunk(ChunkType::OFFSET_HOLE, done, 12);
            head.push(&at.to_be_bytes());
            head.push(&(run.len() as u32).to_be_bytes());
            replies.send(&head, &[])?;
        } else {
            replies.send(&data_head(to, at, run.len(), done), run)?;
        }
        from = end;
        sent += 1;
    }
    Ok(())
}

/// Returns true if the first bytes of `data`, up to the length of a hole, are zero.
fn is_hole(data: &[u8]) -> bool {
    let piece = &data[..data.len().min(HOLE_BYTES)];
    piece.chunks(64).all(|line| line.iter().fold(0, |any, byte| any | byte) == 0)
}

/// Returns the header of a chunk of data, with its offset.
fn data_head(to: ReplyTo, offset: u64, len: usize, done: bool) -> Head {
    let mut head = to.chunk(ChunkType::OFFSET_DATA, done, 8 + len as u32);
    head.push(&offset.to_be_bytes());
    head
}

/// Returns the runs of a range: adjacent ones of one kind are merged, zeroes with space and holes
/// are distinguished. Past [`RUNS_MAX`] the rest counts as data.
fn runs(
    device: &dyn BlockDevice,
    offset: u64,
    len_bytes: u64,
) -> weft_block::Result<Vec<(u64, ExtentKind)>> {
    let mut runs: Vec<(u64, ExtentKind)> = Vec::new();
    let mut done = 0;
    while done < len_bytes {
        let left = len_bytes - done;
        let (len, kind) = if runs.len() < RUNS_MAX {
            let extent = device.extent_at(offset + done, left)?;
            // A device that reports an empty extent must not cause an endless loop.
            if extent.len_bytes == 0 {
                (left, ExtentKind::Data)
            } else {
                (extent.len_bytes.min(left), extent.kind)
            }
        } else {
            (left, ExtentKind::Data)
        };
        match runs.last_mut() {
            Some((before, same)) if *same == kind => *before += len,
            _ => runs.push((len, kind)),
        }
        done += len;
    }
    Ok(runs)
}

fn block_status(
    agreed: &Agreement,
    request: &Request,
    replies: &dyn Replies,
) -> Result<Result<()>, Failed> {
    let export = &agreed.export;
    let mut runs = runs(&*export.device, request.offset, request.len_bytes)
        .map_err(|e| failure(request, &e))?;
    if request.flags.contains(CommandFlags::REQ_ONE) {
        runs.truncate(1);
    }
    let mut extents: Vec<Descriptor> = Vec::with_capacity(runs.len());
    let mut at = request.offset;
    let min = u64::from(export.block_bytes_min);
    for (len_bytes, kind) in runs {
        let flags = match kind {
            ExtentKind::Data => StateFlags::empty(),
            ExtentKind::Zero => StateFlags::ZERO,
            ExtentKind::Hole => StateFlags::ZERO | StateFlags::HOLE,
        };
        let end = at + len_bytes;
        if !at.is_multiple_of(min) || !end.is_multiple_of(min) {
            // A run ends within a block: the rest is reported as data.
            let left = request.offset + request.len_bytes - at;
            extents.push(Descriptor { len_bytes: left, flags: 0 });
            break;
        }
        extents.push(Descriptor { len_bytes, flags: flags.bits() });
        at = end;
    }
    let mut out = Vec::new();
    put_block_status(&mut out, reply_to(agreed, request), BASE_ALLOCATION_ID, &extents);
    Ok(replies.send(&out, &[]))
}

/// Executes the requests that are answered without data.
fn change(agreed: &Agreement, request: &Request, buf: &mut Vec<u8>) -> Result<(), Failed> {
    let export = &agreed.export;
    let device = &*export.device;
    let (offset, len_bytes) = (request.offset, request.len_bytes);
    let failed = |e: weft_block::Error| failure(request, &e);
    match request.command {
        Command::WRITE => {
            device.write_at(&buf[..request.len_bytes as usize], offset).map_err(failed)?;
        }
        Command::WRITE_ZEROES => write_zeroes(device, request, buf)?,
        Command::TRIM => device.discard(offset, len_bytes).map_err(failed)?,
        Command::CACHE => {
            let end = offset + len_bytes.min(CACHE_MAX_BYTES);
            each_piece(offset, end, |at, len| device.read_at(room(buf, len), at))
                .map_err(failed)?;
        }
        // The last possible command, `FLUSH`.
        _ => return device.flush().map_err(failed),
    }
    let writes = request.command != Command::CACHE;
    if writes && request.flags.contains(CommandFlags::FUA) {
        device.flush().map_err(failed)?;
    }
    Ok(())
}

fn write_zeroes(
    device: &dyn BlockDevice,
    request: &Request,
    buf: &mut Vec<u8>,
) -> Result<(), Failed> {
    let (offset, len_bytes) = (request.offset, request.len_bytes);
    let keep_space = request.flags.contains(CommandFlags::NO_HOLE);
    let fast = request.flags.contains(CommandFlags::FAST_ZERO);
    if fast && (keep_space || !device.zeroes_are_fast()) {
        return Err(Failed::new(NbdErrno::ENOTSUP, "fast zeroing is not supported"));
    }
    let result = if keep_space {
        // Only written ranges certainly have space.
        let len = len_bytes.min(PIECE_BYTES as u64) as usize;
        room(buf, len)[..len].fill(0);
        each_piece(offset, offset + len_bytes, |at, len| device.write_at(&buf[..len], at))
    } else {
        device.write_zeroes(offset, len_bytes)
    };
    result.map_err(|e| failure(request, &e))
}

/// Calls `work` for each piece of a range.
fn each_piece(
    from: u64,
    to: u64,
    mut work: impl FnMut(u64, usize) -> weft_block::Result<()>,
) -> weft_block::Result<()> {
    let mut at = from;
    while at < to {
        let len = (to - at).min(PIECE_BYTES as u64) as usize;
        work(at, len)?;
        at += len as u64;
    }
    Ok(())
}

/// Converts a failure of the device to the protocol's error.
fn failure(request: &Request, e: &weft_block::Error) -> Failed {
    use rustix::io::Errno;
    use weft_block::Error as Block;
    let writes = matches!(request.command, Command::WRITE | Command::WRITE_ZEROES);
    let error = match e {
        Block::ReadOnly => NbdErrno::EPERM,
        Block::OutOfRange { .. } if writes => NbdErrno::ENOSPC,
        Block::OutOfRange { .. } | Block::Invalid(_) => NbdErrno::EINVAL,
        _ => match Errno::from_raw_os_error(e.errno()) {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => NbdErrno::ENOSPC,
            Errno::NOMEM => NbdErrno::ENOMEM,
            Errno::PERM | Errno::ROFS | Errno::ACCESS => NbdErrno::EPERM,
            Errno::INVAL => NbdErrno::EINVAL,
            Errno::SHUTDOWN => NbdErrno::ESHUTDOWN,
            _ => NbdErrno::EIO,
        },
    };
    if error == NbdErrno::EIO {
        tracing::warn!(error = %e, "a request failed");
    }
    Failed(error, e.to_string())
}
