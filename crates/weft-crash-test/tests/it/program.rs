//! Programs as lists of calls, run on a recorded file system without a mount.

use std::sync::Arc;

use weft_crash_test::{
    Case, Found, Header, Judge, Limits, Model, Outcome, Recorder, Recording, Result, Subject,
    Verdict, search,
};
use weft_vfs::memfs::{MemFs, Snapshot};
use weft_vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, RenameFlags, SetAttr, Walker};

/// A program in the making.
pub struct Program {
    fs: Arc<MemFs>,
    recorder: Arc<Recorder>,
    base: Option<Snapshot>,
    printed: Arc<std::sync::Mutex<Vec<u8>>>,
}

impl Program {
    pub fn new() -> Self {
        let fs = Arc::new(MemFs::new());
        let recorder = Arc::new(Recorder::new(Arc::clone(&fs) as Arc<dyn FileSystem>, 1 << 30));
        Self { fs, recorder, base: None, printed: Arc::default() }
    }

    /// Ends the preparation, whose changes are taken to be durable, and begins to record calls.
    pub fn start(mut self) -> Self {
        self.base = Some(self.fs.snapshot());
        let printed = Arc::clone(&self.printed);
        let printed = Box::new(move || std::mem::take(&mut *printed.lock().unwrap()));
        self.recorder.start(Some(printed), Some(weft_crash_test::Pattern::new("saved")));
        self
    }

    pub fn end(self) -> Recording {
        let calls = self.recorder.stop().unwrap();
        Recording { header: Header::default(), base: self.base.unwrap(), calls, volume: None }
    }

    fn ino(&self, path: &str) -> Ino {
        let fs: &dyn FileSystem = &*self.recorder;
        Walker::new(fs).resolve(format!("/{path}").as_bytes()).unwrap().ino()
    }

    fn place<'a>(&self, path: &'a str) -> (Ino, &'a [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.ino(dir), name.as_bytes())
    }

    pub fn print(self, line: &str) -> Self {
        self.printed.lock().unwrap().extend_from_slice(format!("{line}\n").as_bytes());
        self
    }

    pub fn mkdir(self, path: &str) -> Self {
        let (dir, name) = self.place(path);
        FileSystem::mkdir(&*self.recorder, &Caller::ROOT, dir, name, 0o755).unwrap();
        self
    }

    pub fn creat(self, path: &str) -> Self {
        let (dir, name) = self.place(path);
        let fs: &dyn FileSystem = &*self.recorder;
        fs.create(&Caller::ROOT, dir, name, 0o644, OpenFlags::WRITE).unwrap();
        self
    }

    pub fn write(self, path: &str, offset: u64, data: &[u8]) -> Self {
        let ino = self.ino(path);
        let fs: &dyn FileSystem = &*self.recorder;
        assert_eq!(fs.write(&Caller::ROOT, ino, Handle::NONE, offset, data).unwrap(), data.len());
        self
    }

    /// `creat` and one `write`.
    pub fn put(self, path: &str, data: &[u8]) -> Self {
        self.creat(path).write(path, 0, data)
    }

    pub fn truncate(self, path: &str, size: u64) -> Self {
        let ino = self.ino(path);
        let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
        FileSystem::setattr(&*self.recorder, &Caller::ROOT, ino, &set).unwrap();
        self
    }

    pub fn chmod(self, path: &str, perm: u16) -> Self {
        let ino = self.ino(path);
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        FileSystem::setattr(&*self.recorder, &Caller::ROOT, ino, &set).unwrap();
        self
    }

    pub fn close(self, path: &str) -> Self {
        let ino = self.ino(path);
        // The file was never opened: the closing is what is recorded.
        let _ = FileSystem::release(&*self.recorder, ino, Handle::NONE);
        self
    }

    pub fn fsync(self, path: &str) -> Self {
        let ino = self.ino(path);
        FileSystem::fsync(&*self.recorder, &Caller::ROOT, ino, false).unwrap();
        self
    }

    pub fn sync(self) -> Self {
        FileSystem::sync(&*self.recorder).unwrap();
        self
    }

    pub fn fdatasync(self, path: &str) -> Self {
        let ino = self.ino(path);
        FileSystem::fsync(&*self.recorder, &Caller::ROOT, ino, true).unwrap();
        self
    }

    pub fn fsync_dir(self, path: &str) -> Self {
        let ino = self.ino(path);
        FileSystem::fsync_dir(&*self.recorder, &Caller::ROOT, ino).unwrap();
        self
    }

    pub fn rename(self, from: &str, to: &str) -> Self {
        let (dir, name) = self.place(from);
        let (to_dir, to_name) = self.place(to);
        let flags = RenameFlags::empty();
        FileSystem::rename(&*self.recorder, &Caller::ROOT, dir, name, to_dir, to_name, flags)
            .unwrap();
        self
    }

    pub fn link(self, from: &str, to: &str) -> Self {
        let ino = self.ino(from);
        let (dir, name) = self.place(to);
        FileSystem::link(&*self.recorder, &Caller::ROOT, ino, dir, name).unwrap();
        self
    }

    /// Makes a call on a file that has just lost its name.
    pub fn unlinked(self, path: &str, call: impl FnOnce(&dyn FileSystem, Ino)) -> Self {
        let (dir, name) = self.place(path);
        let ino = FileSystem::lookup(&*self.recorder, dir, name).unwrap().attr.ino;
        FileSystem::unlink(&*self.recorder, &Caller::ROOT, dir, name).unwrap();
        call(&*self.recorder, ino);
        self
    }

    pub fn unlink(self, path: &str) -> Self {
        let (dir, name) = self.place(path);
        FileSystem::unlink(&*self.recorder, &Caller::ROOT, dir, name).unwrap();
        self
    }
}

/// The content of a file of a tree; `None` if there is none.
pub fn content(tree: &Snapshot, path: &str) -> Option<Vec<u8>> {
    let fs = MemFs::new();
    fs.restore(tree);
    Walker::new(&fs).read_file(format!("/{path}").as_bytes()).ok()
}

/// A check that is a function.
pub struct Check<F>(pub F);

impl<F: FnMut(&Snapshot, &[&str]) -> bool + Send> Judge for Check<F> {
    fn judge(&mut self, case: &Case<'_>) -> Result<Verdict> {
        let passes = self.0(case.tree, case.promises);
        let outcome = if passes { Outcome::Passed } else { Outcome::Failed(1) };
        Ok(Verdict { outcome, output: String::new() })
    }
}

/// Searches all states of a recording.
pub fn search_all(
    recording: &Recording,
    model: Model,
    check: impl FnMut(&Snapshot, &[&str]) -> bool + Send + Clone + 'static,
) -> Found {
    let subject = Subject::new(recording, model, &[]);
    let mut judges: Vec<Box<dyn Judge>> =
        vec![Box::new(Check(check.clone())), Box::new(Check(check))];
    search(&subject, &mut judges, Limits::default(), &|_| {}).unwrap()
}

/// The contents of a file in all states of a recording, each once.
pub fn contents(recording: &Recording, model: Model, path: &'static str) -> Vec<Option<Vec<u8>>> {
    let subject = Subject::new(recording, model, &[]);
    let mut cursor = weft_crash_test::Cursor::new(&subject);
    let mut all = std::collections::BTreeSet::new();
    for epoch in subject.epochs() {
        let bounds = weft_crash_test::Bounds { torn: false, ..Default::default() };
        epoch.each_state(&subject.units, bounds, &mut |state| {
            assert!(epoch.is_legal(&state), "{state} is not legal");
            all.insert(content(&cursor.tree(&state).unwrap(), path));
            true
        });
    }
    all.into_iter().collect()
}
