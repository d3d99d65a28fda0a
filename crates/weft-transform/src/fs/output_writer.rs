//! The writer thread of an output that is being added to the cache.

use std::sync::Arc;

use weft_vfs::Result;

use super::fill::{Added, Fill, Piece, Work};
use super::inode::Inode;
use super::locks::locked;
use super::mount::Mount;
use super::output::{OutputState, content_hash, key, looks_same};
use crate::outputs::End;

/// The lowest scheduling priority.
const LOWEST_PRIORITY: i32 = 19;

/// Passes `got` bytes that were read into `buf` to the writer thread, starting it if needed.
pub(super) fn pass_to_writer(
    mount: &Arc<Mount>,
    inode: &Arc<Inode>,
    fill: &Arc<Fill>,
    (offset, buf, got): (u64, &[u8], usize),
) {
    if fill.is_over() {
        return;
    }
    match fill.add(offset, buf, got) {
        Added::Taken => {}
        Added::Scattered => ended(mount, inode, fill, End::Failed),
        Added::WantsThread => {
            // The file may be closed and forgotten before the writer thread has finished.
            mount.inodes().add_use(inode);
            let (theirs, of, ours) = (mount.clone(), inode.clone(), fill.clone());
            let work = move || {
                work(&theirs, &of, &ours);
                theirs.release_inode(&of);
            };
            if let Err(e) = std::thread::Builder::new().name("weft-output".into()).spawn(work) {
                tracing::warn!("an output is not kept: {e}");
                ended(mount, inode, fill, End::Failed);
                mount.release_inode(inode);
            }
        }
    }
}

/// Ends an output with an outcome. Must not be called under the lock of the file.
pub(super) fn ended(mount: &Arc<Mount>, inode: &Inode, fill: &Fill, end: End) {
    if !fill.end() {
        return;
    }
    let end = match end {
        End::Whole(len) => match keep(mount, inode, fill, len) {
            Ok(true) => {
                tracing::debug!(ino = inode.ino.0, len, "an output is kept");
                end
            }
            Ok(false) => {
                tracing::debug!(ino = inode.ino.0, "the file changed meanwhile");
                end
            }
            Err(e) => {
                tracing::warn!("an output is not kept: {e}");
                End::Failed
            }
        },
        End::TooLong | End::Failed => end,
    };
    let mut file = locked(&inode.file);
    let output = &mut file.output;
    if output.of != Some(fill.request.of()) {
        return;
    }
    output.state = match end {
        // The next open looks it up again.
        End::Whole(_) | End::Failed => OutputState::Again,
        End::TooLong => OutputState::Nothing,
    };
    if end == End::Failed {
        output.retry.failed();
    }
}

fn work(mount: &Arc<Mount>, inode: &Inode, fill: &Fill) {
    // No reader waits for this thread then.
    if fill.request.in_place
        && let Err(e) = rustix::process::setpriority_process(None, LOWEST_PRIORITY)
    {
        tracing::debug!("priority: {e}");
    }
    let mut calm = false;
    while let Some(work) = fill.next(&mut calm) {
        let piece = match work {
            Work::Write(piece) => piece,
            // The part has been written meanwhile.
            Work::Make(from, upto) if locked(&fill.filling).has(from, upto) => continue,
            Work::Make(from, upto) => match make(mount, inode, from, upto) {
                Ok(Some(piece)) => piece,
                // The file has changed.
                Ok(None) => return ended(mount, inode, fill, End::Failed),
                Err(e) => {
                    tracing::warn!("an output is not kept: {e}");
                    return ended(mount, inode, fill, End::Failed);
                }
            },
        };
        let end = locked(&fill.filling).take(piece.offset, &piece.data, piece.last);
        if let Some(end) = end {
            return ended(mount, inode, fill, end);
        }
    }
}

/// Produces a part of an output; returns `None` if the file is no longer read in place.
fn make(mount: &Arc<Mount>, inode: &Inode, from: u64, upto: u64) -> Result<Option<Piece>> {
    // At most `MADE_BYTES`.
    let mut data = vec![0; (upto - from) as usize];
    let Some(read) = mount.read_in_place(inode, from, &mut data) else { return Ok(None) };
    let got = read?;
    let last = got < data.len();
    data.truncate(got);
    Ok(Some(Piece { offset: from, data, last }))
}

/// Adds an output to the cache if the file is unchanged; returns false if it is not.
fn keep(mount: &Arc<Mount>, inode: &Inode, fill: &Fill, len: u64) -> crate::Result<bool> {
    let request = &fill.request;
    let content = match fill.content {
        Some(content) => content,
        None => content_hash(&*mount.below, request.stored)?,
    };
    if !looks_same(&mount.below.getattr(request.stored)?, &request.attr) {
        return Ok(false);
    }
    let file = mount.file(inode);
    let seen = file.look()?.1;
    if file.version() != request.version || seen != request.seen || file.is_dirty() {
        return Ok(false);
    }
    drop(file);
    let key = key(&request.network, &content);
    fill.cache.keep(&locked(&fill.filling), len, &key)?;
    if let Some(looks) = &fill.looks {
        fill.cache.note(looks, &key)?;
    }
    Ok(true)
}
