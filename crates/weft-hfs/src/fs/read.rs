//! Reading forks.
//!
//! A read finds the blocks, and copies the cached ones, under the locks. It reads the others on the
//! device without them. Meanwhile the fork may be cut and its blocks be written for another file: the
//! [version](Node::content_version) of the content tells, and the read begins again.

use super::hfs::Hfs;
use super::node::Node;
use super::store::{Misses, read_misses};
use crate::Result;
use crate::layout::Fork;
use crate::volume::File;

/// Reads without the locks before one is done under them.
const OPTIMISTIC_READS: u32 = 3;

/// A read of which the cached parts are done.
#[derive(Default)]
struct Unlocked {
    /// The number of bytes that the caller gets.
    want: usize,
    /// A buffer for these and for bytes that are read ahead, in place of the caller's.
    ahead: Option<Vec<u8>>,
    misses: Misses,
    /// The content's version when the blocks were found.
    version: Option<(u64, u64)>,
}

impl Hfs {
    pub(super) fn do_read(
        &self,
        id: u32,
        fork: Fork,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        if let Some(file) = self.lock().nodes.get_mut(&id).and_then(|node| node.file.as_mut())
            && let Some(got) = file.ahead.read(fork, offset, buf)
        {
            return Ok(got);
        }
        let mut may_read_ahead = true;
        for _ in 0..OPTIMISTIC_READS {
            let read = self.read_cached(id, fork, offset, buf, may_read_ahead)?;
            let Unlocked { want, mut ahead, misses, version } = read;
            let got = read_misses(&*self.device, &misses, ahead.as_deref_mut().unwrap_or(buf));
            let mut st = self.lock();
            let node = st.nodes.get_mut(&id);
            let Some(node) = node.filter(|node| Some(node.content_version()) == version) else {
                continue;
            };
            match (got, ahead, &mut node.file) {
                (Ok(()), Some(more), Some(file)) => {
                    if let (Some(to), Some(from)) = (buf.get_mut(..want), more.get(..want)) {
                        to.copy_from_slice(from);
                    }
                    file.ahead.keep(fork, offset, want, more);
                }
                (Ok(()), ..) => {}
                // The part that is read ahead may be damaged, and the requested part not.
                (Err(_), Some(_), _) => {
                    may_read_ahead = false;
                    continue;
                }
                (Err(e), ..) => return Err(e),
            }
            return Ok(want);
        }
        self.look(|st, s| st.with_file(s, id, |vol, s, file| vol.read(s, file, fork, offset, buf)))
    }

    /// Finds the blocks of a read, and copies those that are in the cache.
    fn read_cached(
        &self,
        id: u32,
        fork: Fork,
        offset: u64,
        buf: &mut [u8],
        may_read_ahead: bool,
    ) -> Result<Unlocked> {
        self.look(|st, s| {
            let mut read = st.with_file(s, id, |vol, s, file| {
                let want = file.readable(fork, offset, buf.len());
                let mut read = Unlocked { want, ..Unlocked::default() };
                let Some(buf) = buf.get_mut(..want).filter(|buf| !buf.is_empty()) else {
                    return Ok(read);
                };
                let mut copy = |file: &mut File, to: &mut [u8], misses: &mut Misses| {
                    let mut start = 0;
                    vol.read_pieces(s, file, fork, offset, to, |s, block, within, part| {
                        s.read_cached(block, within, part, start, misses);
                        start += part.len();
                        Ok(())
                    })
                };
                if may_read_ahead {
                    let left = u64::from(file.len_bytes(fork)).saturating_sub(offset);
                    read.ahead = file.ahead.plan(fork, offset, want, left);
                }
                if let Some(more) = &mut read.ahead {
                    if copy(file, more, &mut read.misses).is_ok() {
                        return Ok(read);
                    }
                    // The part that is read ahead may be damaged, and the requested part not.
                    read.ahead = None;
                    read.misses.clear();
                }
                copy(file, buf, &mut read.misses)?;
                Ok(read)
            })?;
            read.version = st.nodes.get(&id).map(Node::content_version);
            Ok(read)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::fs::{Hfs, OpenOptions};
    use crate::layout::Name;
    use crate::mkfs::{MkfsOptions, mkfs};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use weft_block::{BlockDevice, Filter, MemoryDevice};
    use weft_patch::Options;
    use weft_vfs::{Caller, Error, FileKind, FileSystem, Handle, Ino, SetAttr};

    const LEN: usize = 300_000;

    type Hook = Box<dyn FnOnce() + Send>;

    /// A device that calls a hook, once, before a read.
    struct Hooked {
        below: MemoryDevice,
        before_read: Mutex<Option<Hook>>,
    }

    impl Filter for Hooked {
        type Below = MemoryDevice;

        fn below(&self) -> &MemoryDevice {
            &self.below
        }

        fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
            let hook = self.before_read.lock().unwrap().take();
            if let Some(hook) = hook {
                hook();
            }
            self.below.read_at(buf, offset)
        }
    }

    /// An empty volume of which no clean block stays in the cache.
    fn volume() -> (Arc<Hooked>, Arc<Hfs>) {
        let below = MemoryDevice::new(1 << 20);
        mkfs(&below, &MkfsOptions::new(Name::new(b"volume").unwrap(), 3_000_000_000)).unwrap();
        let device = Arc::new(Hooked { below, before_read: Mutex::new(None) });
        let engine = Options { background: false, clean_cache_bytes: 0, ..Options::default() };
        let options = OpenOptions { engine, ..OpenOptions::default() };
        let fs = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
        (device, fs)
    }

    fn make(fs: &Hfs, name: &[u8]) -> Ino {
        let made = fs.mknod(&Caller::ROOT, fs.root(), name, FileKind::Regular, 0o644, 0);
        made.unwrap().attr.ino
    }

    fn cut(fs: &Hfs, ino: Ino) {
        fs.setattr(&Caller::ROOT, ino, &SetAttr { size_bytes: Some(0), ..SetAttr::default() })
            .unwrap();
    }

    /// Gives all free blocks to a file, filled with `byte`, and makes that durable.
    fn fill(fs: &Hfs, ino: Ino, byte: u8) {
        let mut done = 0;
        loop {
            match fs.write(&Caller::ROOT, ino, Handle::NONE, done, &[byte; 100_000]) {
                Ok(n) => done += n as u64,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
        fs.sync().unwrap();
    }

    /// While a read is at the device, the file is cut and its blocks become those of another file.
    #[test]
    fn a_block_that_is_reused_during_a_read_is_not_returned() {
        let (device, fs) = volume();
        let (file, other) = (make(&fs, b"file"), make(&fs, b"other"));
        fs.write(&Caller::ROOT, file, Handle::NONE, 0, &[0xAA; LEN]).unwrap();
        fs.sync().unwrap();
        let change = Arc::clone(&fs);
        *device.before_read.lock().unwrap() = Some(Box::new(move || {
            assert!(change.state.try_lock().is_ok(), "file data is read under the lock");
            cut(&change, file);
            fill(&change, other, 0xBB);
        }));
        let mut buf = vec![0; LEN];
        // The file may be read as it was before or after; it is read after.
        assert_eq!(fs.read(file, Handle::NONE, 0, &mut buf).unwrap(), 0);
        assert!(device.before_read.lock().unwrap().is_none(), "the device was read");
        fs.unmount().unwrap();
    }

    /// As above, with a file that is removed: another one that is made takes its blocks.
    #[test]
    fn a_file_that_is_removed_during_a_read_is_stale() {
        let (device, fs) = volume();
        let (file, other) = (make(&fs, b"file"), make(&fs, b"other"));
        fs.write(&Caller::ROOT, file, Handle::NONE, 0, &[0xAA; LEN]).unwrap();
        fs.sync().unwrap();
        let change = Arc::clone(&fs);
        *device.before_read.lock().unwrap() = Some(Box::new(move || {
            change.unlink(&Caller::ROOT, change.root(), b"file").unwrap();
            change.forget(file, 1);
            fill(&change, other, 0xBB);
        }));
        let mut buf = vec![0; LEN];
        let got = fs.read(file, Handle::NONE, 0, &mut buf);
        assert!(matches!(got, Err(Error::Stale(_))), "{got:?}");
        fs.unmount().unwrap();
    }

    /// Short reads in a row are read ahead of: neither the bytes that a reader gets nor those that
    /// are kept for its next read may be of another file.
    #[test]
    fn bytes_that_are_read_ahead_are_never_of_another_file() {
        let (device, fs) = volume();
        let (file, other) = (make(&fs, b"file"), make(&fs, b"other"));
        fs.write(&Caller::ROOT, file, Handle::NONE, 0, &[0xAA; LEN]).unwrap();
        fs.sync().unwrap();
        let change = Arc::clone(&fs);
        *device.before_read.lock().unwrap() = Some(Box::new(move || {
            cut(&change, file);
            fill(&change, other, 0xBB);
            cut(&change, other);
            change.sync().unwrap();
            change.write(&Caller::ROOT, file, Handle::NONE, 0, &[0xAA; LEN]).unwrap();
            change.sync().unwrap();
        }));
        let mut buf = [0; 1000];
        for at in (0..LEN as u64).step_by(buf.len()) {
            assert_eq!(fs.read(file, Handle::NONE, at, &mut buf).unwrap(), buf.len());
            assert!(buf.iter().all(|&b| b == 0xAA), "at {at}");
        }
        fs.unmount().unwrap();
    }

    /// Two files take turns at having all of the volume, each with its own byte.
    #[test]
    fn a_reader_never_sees_a_byte_of_another_file() {
        const ROUNDS: usize = 100;
        let (_, fs) = volume();
        let (file, other) = (make(&fs, b"file"), make(&fs, b"other"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for len in [1000, 60_000, LEN] {
                let (fs, done) = (&fs, &done);
                scope.spawn(move || {
                    let mut buf = vec![0; len];
                    let mut at = 0;
                    while !done.load(Ordering::Relaxed) {
                        let got = fs.read(file, Handle::NONE, at, &mut buf).unwrap();
                        let foreign = buf.iter().take(got).position(|&b| b != 0xAA);
                        if let Some(place) = foreign {
                            done.store(true, Ordering::Relaxed);
                            panic!("byte {place} from {at} on is {:#x}", buf[place]);
                        }
                        at = if got < len { 0 } else { at + len as u64 };
                    }
                });
            }
            for _ in 0..ROUNDS {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                fill(&fs, file, 0xAA);
                cut(&fs, file);
                fill(&fs, other, 0xBB);
                cut(&fs, other);
            }
            done.store(true, Ordering::Relaxed);
        });
        fs.unmount().unwrap();
    }
}
