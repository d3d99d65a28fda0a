//! The open files of a mount, and the engagements of single ones.
//!
//! An open file is the open file description of `open(2)`, which the kernel's requests name by the
//! handle that opening it returned: threads, children and processes that a descriptor was passed to
//! share it. A mount that is not told of files being opened knows none, and costs nothing for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use smallvec::SmallVec;
use weft_vfs::{Handle, Ino};

use crate::commands::Refused;
use crate::engagement::OrderedEngagement;
use crate::table::Engagements;

/// The most engagements of open files at a time.
const ENGAGED_MAX: usize = 65_536;

/// An open file that is engaged, with the number of each group.
type Engaged = SmallVec<[(u32, Arc<OrderedEngagement>); 1]>;

struct OpenFile {
    ino: Ino,
    engaged: Engaged,
}

#[derive(Default)]
struct Files {
    open: HashMap<Handle, OpenFile>,
    /// The open files of an inode that are engaged.
    engaged_of: HashMap<Ino, SmallVec<[Handle; 2]>>,
}

/// The open files of a mount.
pub(crate) struct OpenFiles {
    files: Mutex<Files>,
    /// The number of engagements.
    engaged: AtomicUsize,
}

fn locked(mutex: &Mutex<Files>) -> MutexGuard<'_, Files> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Files {
    /// Removes the engagements of an open file for which `ends` holds. Returns them, to be dropped
    /// without the lock.
    fn disengage(&mut self, handle: Handle, ends: impl Fn(u32) -> bool) -> Engaged {
        let Some(file) = self.open.get_mut(&handle) else { return Engaged::new() };
        let (ended, kept) = file.engaged.drain(..).partition(|(group, _)| ends(*group));
        file.engaged = kept;
        if file.engaged.is_empty()
            && let Some(handles) = self.engaged_of.get_mut(&file.ino)
        {
            handles.retain(|engaged| *engaged != handle);
            if handles.is_empty() {
                self.engaged_of.remove(&file.ino);
            }
        }
        ended
    }
}

impl OpenFiles {
    pub fn new() -> Self {
        Self { files: Mutex::default(), engaged: AtomicUsize::new(0) }
    }

    pub fn opened(&self, handle: Handle, ino: Ino) {
        if handle != Handle::NONE {
            let file = OpenFile { ino, engaged: Engaged::new() };
            locked(&self.files).open.insert(handle, file);
        }
    }

    pub fn released(&self, handle: Handle) {
        let mut files = locked(&self.files);
        let ended = files.disengage(handle, |_| true);
        files.open.remove(&handle);
        self.ended(&ended);
        drop(files);
    }

    fn ended(&self, ended: &Engaged) {
        self.engaged.fetch_sub(ended.len(), Ordering::Release);
    }

    /// Adds an engagement of an open file, in place of the one in the same group.
    pub fn engage(
        &self,
        (ino, handle): (Ino, Handle),
        group: u32,
        engagement: OrderedEngagement,
    ) -> Result<(), Refused> {
        let mut files = locked(&self.files);
        if files.open.get(&handle).is_none_or(|file| file.ino != ino) {
            return Err(Refused::Meaningless);
        }
        let replaced = files.disengage(handle, |number| number == group);
        let full = self.engaged.load(Ordering::Acquire) - replaced.len() >= ENGAGED_MAX;
        if !full {
            self.engaged.fetch_add(1, Ordering::Release);
            let file = files.open.get_mut(&handle).expect("just seen");
            file.engaged.push((group, Arc::new(engagement)));
            let handles = files.engaged_of.entry(ino).or_default();
            if !handles.contains(&handle) {
                handles.push(handle);
            }
        }
        self.ended(&replaced);
        drop(files);
        if full { Err(Refused::TooMany) } else { Ok(()) }
    }

    /// Ends the engagement of an open file in a group, if there is one.
    pub fn disengage(&self, (ino, handle): (Ino, Handle), group: u32) -> Result<(), Refused> {
        let mut files = locked(&self.files);
        if files.open.get(&handle).is_none_or(|file| file.ino != ino) {
            return Err(Refused::Meaningless);
        }
        let ended = files.disengage(handle, |number| number == group);
        self.ended(&ended);
        drop(files);
        Ok(())
    }

    /// Ends all engagements in a group.
    pub fn close_group(&self, group: u32) {
        if self.engaged.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut files = locked(&self.files);
        let engaged: Vec<Handle> = files.engaged_of.values().flatten().copied().collect();
        let mut ended = Engaged::new();
        for handle in engaged {
            ended.extend(files.disengage(handle, |number| number == group));
        }
        self.ended(&ended);
        drop(files);
    }

    /// Returns true if an open file is engaged in a group.
    pub fn has_group(&self, group: u32) -> bool {
        let is_it = |file: &OpenFile| file.engaged.iter().any(|(number, _)| *number == group);
        self.engaged.load(Ordering::Acquire) > 0 && {
            let files = locked(&self.files);
            let mut handles = files.engaged_of.values().flatten();
            handles.any(|handle| files.open.get(handle).is_some_and(is_it))
        }
    }

    /// Returns the engagements of an open file.
    pub fn of_file(&self, handle: Handle) -> Engagements {
        if handle == Handle::NONE || self.engaged.load(Ordering::Acquire) == 0 {
            return Engagements::new();
        }
        let files = locked(&self.files);
        let engaged = files.open.get(&handle).map(|file| &file.engaged);
        engaged.into_iter().flatten().map(|(_, engagement)| Arc::clone(engagement)).collect()
    }

    /// Returns the engagements of all open files of an inode: those of which a mapping may have changed
    /// a page, as the kernel does not tell the one. A change that is in more groups than it needs to be
    /// breaks no promise about it.
    pub fn of_inode(&self, ino: Ino) -> Engagements {
        if self.engaged.load(Ordering::Acquire) == 0 {
            return Engagements::new();
        }
        let files = locked(&self.files);
        let handles = files.engaged_of.get(&ino).into_iter().flatten();
        let engaged = handles.filter_map(|handle| files.open.get(handle)).flat_map(|f| &f.engaged);
        engaged.map(|(_, engagement)| Arc::clone(engagement)).collect()
    }

    /// Forgets all open files.
    pub fn clear(&self) {
        let mut files = locked(&self.files);
        let ended = std::mem::take(&mut *files);
        self.engaged.store(0, Ordering::Release);
        drop(files);
        drop(ended);
    }
}
