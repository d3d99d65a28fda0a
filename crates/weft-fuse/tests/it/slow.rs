//! A file system whose calls can be kept from waiting, and some of which wait.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::{Condvar, Mutex};

use weft_testing::wait_until;
use weft_vfs::{FileSystem, Handle, Ino, Layer, MemFs, Result};

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Holds the threads that pass until they are let go.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The names of the threads that are held.
    held: Vec<String>,
    waiting: usize,
    goes_on: bool,
}

impl Gate {
    /// The names of the threads that were held.
    pub(crate) fn held(&self) -> Vec<String> {
        self.state.lock().expect("lock").held.clone()
    }

    /// The number of threads that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().expect("lock").waiting
    }

    /// Lets all go on.
    pub(crate) fn release(&self) {
        self.state.lock().expect("lock").goes_on = true;
        self.changed.notify_all();
    }

    pub(crate) fn pass(&self) -> Result<()> {
        let mut state = self.state.lock().expect("lock");
        if !state.goes_on {
            if !MAY_WAIT.get() {
                return Err(weft_vfs::Error::WouldBlock);
            }
            state.held.push(std::thread::current().name().unwrap_or_default().to_owned());
            state.waiting += 1;
            while !state.goes_on {
                state = self.changed.wait(state).expect("lock");
            }
            state.waiting -= 1;
        }
        Ok(())
    }
}

/// A file system in which reads of a [slow file](make_slow) wait until they are let go.
#[derive(Default)]
pub(crate) struct Slow {
    below: MemFs,
    gate: Gate,
    /// Inodes were forgotten in calls that may wait, and in those that may not.
    forgotten: Mutex<(usize, usize)>,
}

impl Slow {
    /// The names of the threads that wait in a read.
    pub(crate) fn held(&self) -> Vec<String> {
        self.gate.held()
    }

    /// Lets all reads go on.
    pub(crate) fn release(&self) {
        self.gate.release();
    }

    /// The numbers of times that inodes were forgotten in calls that may wait, and in others.
    pub(crate) fn forgotten(&self) -> (usize, usize) {
        *self.forgotten.lock().expect("lock")
    }

    fn forgets(&self) {
        let mut forgotten = self.forgotten.lock().expect("lock");
        let count = if MAY_WAIT.get() { &mut forgotten.0 } else { &mut forgotten.1 };
        *count += 1;
    }
}

impl Layer for Slow {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        MAY_WAIT.set(false);
        call();
        MAY_WAIT.set(true);
        true
    }

    fn read(&self, ino: Ino, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if self.below.getattr(ino)?.perm & 0o001 != 0 {
            self.gate.pass()?;
        }
        self.below.read(ino, handle, offset, buf)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.forgets();
        self.below.forget(ino, count);
    }

    fn forget_many(&self, references: &[(Ino, u64)]) {
        self.forgets();
        self.below.forget_many(references);
    }
}

/// Makes a file whose reads wait.
pub(crate) fn make_slow(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, "at last").expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(0o645)).expect("chmod");
}

/// Holds `readers` threads in reads of slow files of a mount, each after a call of `begin`, while
/// `meanwhile` runs; then lets them go on.
pub(crate) fn while_held(
    slow: &Slow,
    dir: &Path,
    readers: usize,
    begin: impl Fn() + Sync,
    meanwhile: impl FnOnce(),
) {
    let path = |nr: usize| dir.join(format!("slow{nr}"));
    (0..readers).for_each(|nr| make_slow(&path(nr)));
    std::thread::scope(|scope| {
        let begin = &begin;
        let read = |nr: usize| {
            scope.spawn(move || {
                begin();
                fs::read_to_string(path(nr)).expect("read")
            })
        };
        let threads: Vec<_> = (0..readers).map(read).collect();
        wait_until("all readers are held", || slow.held().len() == readers);
        meanwhile();
        assert_eq!(slow.held().len(), readers, "nobody let them go on");
        slow.release();
        for thread in threads {
            assert_eq!(thread.join().expect("a reader"), "at last");
        }
    });
}

/// Makes, reads and removes files, none of which is slow.
pub(crate) fn use_quick_files(dir: &Path) {
    for nr in 0..100 {
        let path = dir.join(format!("quick{nr}"));
        fs::write(&path, "soon").expect("write");
        assert_eq!(fs::read_to_string(&path).expect("read"), "soon");
        fs::remove_file(&path).expect("remove");
    }
}
