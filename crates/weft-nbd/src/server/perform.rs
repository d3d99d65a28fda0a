//! One request, done: checked against the protocol and the export, run on the device, answered.

use super::haggle::{Agreement, BASE_ALLOCATION_ID};
use crate::Result;
use crate::wire::{
    ChunkType, Command, CommandFlags, Descriptor, NbdErrno, PAYLOAD_MAX_BYTES, Request, StateFlags,
    chunk_header, put_block_status, put_error_chunk, simple_reply,
};
use weft_block::{BlockDevice, ExtentKind};

/// Reads at least this long are looked through for holes; below, looking costs more than sending.
const HOLES_MIN_BYTES: u32 = 32 << 10;
/// The most runs that a read or a block status is answered with.
const RUNS_MAX: usize = 512;
/// The unit in which long requests without a payload are done, in bytes.
const PIECE_BYTES: usize = 1 << 20;
/// The most that one `CACHE` request reads ahead, in bytes.
const CACHE_MAX_BYTES: u32 = 64 << 20;

/// Where replies go.
pub(crate) trait Replies {
    /// Sends a header and the data behind it, together.
    fn send(&self, head: &[u8], data: &[u8]) -> Result<()>;
}

/// A request that failed: the protocol's error, and words for people.
struct Failed(NbdErrno, String);

impl Failed {
    fn new(error: NbdErrno, message: &str) -> Self {
        Self(error, message.to_owned())
    }
}

/// Whether a request makes sense, before its payload is read.
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
    if !(request.flags - allowed).is_empty() {
        return invalid("a flag that this command does not have");
    }
    if writes && export.read_only {
        return Err(Failed::new(NbdErrno::EPERM, "the export is read-only"));
    }
    if request.command == Command::FLUSH {
        let sound = request.offset == 0 && request.len_bytes == 0;
        return if sound { Ok(()) } else { invalid("a flush has no range") };
    }
    let (offset, len_bytes) = (request.offset, request.len_bytes);
    let len = u64::from(len_bytes);
    if offset.checked_add(len).is_none_or(|end| end > export.len_bytes()) {
        let full = matches!(request.command, Command::WRITE | Command::WRITE_ZEROES);
        let error = if full { NbdErrno::ENOSPC } else { NbdErrno::EINVAL };
        return Err(Failed::new(error, "it reaches past the end of the export"));
    }
    let min = u64::from(export.block_bytes_min);
    if !offset.is_multiple_of(min) || !len.is_multiple_of(min) {
        return invalid("it is not aligned to the minimum block size");
    }
    let moves_data = matches!(request.command, Command::READ | Command::WRITE);
    if moves_data && len_bytes > PAYLOAD_MAX_BYTES {
        return invalid("it is longer than the maximum block size");
    }
    if request.command == Command::BLOCK_STATUS && len_bytes == 0 {
        return invalid("it asks for the status of nothing");
    }
    Ok(())
}

/// Whether the request would be refused at once, so that its payload need not be kept.
pub(crate) fn is_refused(agreed: &Agreement, request: &Request) -> bool {
    check(agreed, request).is_err()
}

/// Does a request and answers it. `buf` holds the payload of a write, and is used as memory by
/// the others.
///
/// # Errors
/// Those of sending. What fails at the device is an answer like any other.
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
        Ok(None) => replies.send(&simple_reply(request.handle, NbdErrno::OK), &[]),
        Err(Failed(error, message)) => refuse(agreed, request, error, &message, replies),
    }
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
        put_error_chunk(&mut out, request.handle, error, message);
        replies.send(&out, &[])
    } else {
        replies.send(&simple_reply(request.handle, error), &[])
    }
}

/// Memory of at least `len` bytes. What it held before does not matter, so that nothing is
/// cleared but what is new.
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
    let (handle, offset) = (request.handle, request.offset);
    // At most 32 MiB.
    let len = request.len_bytes as usize;
    if agreed.structured && len == 0 {
        return Ok(replies.send(&chunk_header(handle, ChunkType::NONE, true, 0), &[]));
    }
    let looks = agreed.structured
        && request.len_bytes >= HOLES_MIN_BYTES
        && !request.flags.contains(CommandFlags::DF);
    if looks {
        return read_runs(device, request, buf, replies);
    }
    let data = room(buf, len);
    device.read_at(data, offset).map_err(|e| failure(request, &e))?;
    if !agreed.structured {
        return Ok(replies.send(&simple_reply(handle, NbdErrno::OK), data));
    }
    Ok(replies.send(&data_head(handle, offset, data.len(), true), data))
}

/// A read answered run by run, holes as holes.
fn read_runs(
    device: &dyn BlockDevice,
    request: &Request,
    buf: &mut Vec<u8>,
    replies: &dyn Replies,
) -> Result<Result<()>, Failed> {
    let handle = request.handle;
    let runs = runs(device, request.offset, u64::from(request.len_bytes))
        .map_err(|e| failure(request, &e))?;
    let last = runs.len().saturating_sub(1);
    let mut at = request.offset;
    for (nr, (len_bytes, kind)) in runs.into_iter().enumerate() {
        let done = nr == last;
        let sent = if kind == ExtentKind::Data {
            let data = room(buf, len_bytes as usize);
            // An error chunk may follow the chunks that were sent already.
            device.read_at(data, at).map_err(|e| failure(request, &e))?;
            replies.send(&data_head(handle, at, data.len(), done), data)
        } else {
            let mut head = [0; 32];
            head[..20].copy_from_slice(&chunk_header(handle, ChunkType::OFFSET_HOLE, done, 12));
            head[20..28].copy_from_slice(&at.to_be_bytes());
            head[28..].copy_from_slice(&len_bytes.to_be_bytes());
            replies.send(&head, &[])
        };
        if sent.is_err() {
            return Ok(sent);
        }
        at += u64::from(len_bytes);
    }
    Ok(Ok(()))
}

/// The header of a chunk of data, with its offset.
fn data_head(handle: u64, offset: u64, len: usize, done: bool) -> [u8; 28] {
    let mut head = [0; 28];
    let len_bytes = 8 + len as u32;
    head[..20].copy_from_slice(&chunk_header(handle, ChunkType::OFFSET_DATA, done, len_bytes));
    head[20..].copy_from_slice(&offset.to_be_bytes());
    head
}

/// The runs of a range that fits 32 bits: neighbours of one kind put together, zeroes with space
/// and holes told apart. Past [`RUNS_MAX`] everything counts as data.
fn runs(
    device: &dyn BlockDevice,
    offset: u64,
    len_bytes: u64,
) -> weft_block::Result<Vec<(u32, ExtentKind)>> {
    let mut runs: Vec<(u32, ExtentKind)> = Vec::new();
    let mut done = 0;
    while done < len_bytes {
        let left = len_bytes - done;
        let (len, kind) = if runs.len() < RUNS_MAX {
            let extent = device.extent_at(offset + done, left)?;
            // A device that says nothing of nothing must not hold this up.
            if extent.len_bytes == 0 {
                (left, ExtentKind::Data)
            } else {
                (extent.len_bytes.min(left), extent.kind)
            }
        } else {
            (left, ExtentKind::Data)
        };
        match runs.last_mut() {
            Some((before, same)) if *same == kind => *before += len as u32,
            _ => runs.push((len as u32, kind)),
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
    let mut runs = runs(&*export.device, request.offset, u64::from(request.len_bytes))
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
        let end = at + u64::from(len_bytes);
        if !at.is_multiple_of(min) || !end.is_multiple_of(min) {
            // A run that ends within a block: the rest is not worth a second rule.
            let left = (request.offset + u64::from(request.len_bytes) - at) as u32;
            extents.push(Descriptor { len_bytes: left, flags: 0 });
            break;
        }
        extents.push(Descriptor { len_bytes, flags: flags.bits() });
        at = end;
    }
    let mut out = Vec::new();
    put_block_status(&mut out, request.handle, BASE_ALLOCATION_ID, &extents);
    Ok(replies.send(&out, &[]))
}

/// Everything that is answered without data.
fn change(agreed: &Agreement, request: &Request, buf: &mut Vec<u8>) -> Result<(), Failed> {
    let export = &agreed.export;
    let device = &*export.device;
    let (offset, len_bytes) = (request.offset, u64::from(request.len_bytes));
    let failed = |e: weft_block::Error| failure(request, &e);
    match request.command {
        Command::WRITE => {
            device.write_at(&buf[..request.len_bytes as usize], offset).map_err(failed)?;
        }
        Command::WRITE_ZEROES => write_zeroes(device, request, buf)?,
        Command::TRIM => device.discard(offset, len_bytes).map_err(failed)?,
        Command::CACHE => {
            let end = offset + u64::from(request.len_bytes.min(CACHE_MAX_BYTES));
            each_piece(offset, end, |at, len| device.read_at(room(buf, len), at))
                .map_err(failed)?;
        }
        // The one that is left.
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
    let (offset, len_bytes) = (request.offset, u64::from(request.len_bytes));
    let keep_space = request.flags.contains(CommandFlags::NO_HOLE);
    let fast = request.flags.contains(CommandFlags::FAST_ZERO);
    if fast && (keep_space || !device.zeroes_are_fast()) {
        return Err(Failed::new(NbdErrno::ENOTSUP, "zeroes take as long as data here"));
    }
    let result = if keep_space {
        // Only what is written is sure to have space.
        let len = PIECE_BYTES.min(request.len_bytes as usize);
        room(buf, len)[..len].fill(0);
        each_piece(offset, offset + len_bytes, |at, len| device.write_at(&buf[..len], at))
    } else {
        device.write_zeroes(offset, len_bytes)
    };
    result.map_err(|e| failure(request, &e))
}

/// Goes through a range in pieces.
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

/// What the protocol calls a failure of the device.
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
