//! What `TransformFs` passes on to the file system below, and by what numbers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_transform::{
    CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, NETWORK_ATTRIBUTE, TransformFs, TransformOptions,
};
use weft_vfs::conformance::forwarding::{Recorder, not_forwarded};
use weft_vfs::{
    Caller, CommandAnswer, Error, FileKind, FileSystem, Handle, Ino, Layer, MemFs, OpenFlags,
    Result, XattrSet,
};

use crate::common::registry;

fn over(below: Arc<dyn FileSystem>) -> TransformFs {
    TransformFs::new(below, registry(), TransformOptions::default()).expect("a root")
}

#[test]
fn calls_about_files_without_a_network_go_below() {
    let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
    let fs = over(below.clone());
    let own = [
        // Stages may wait in any call.
        "without_waiting",
        // A file that is in use here has one reference below, however often it was looked up.
        "forget_many",
        // What is listed is looked up: names have other numbers and lengths here.
        "readdir_plus",
        // A rename may be a move between networks.
        "has_whiteouts",
        // A file is made, and opened by what rules say of it. One without a name has no rules.
        "create_unnamed",
        "restore_name",
        "is_stateful",
        "create",
        // A file that is written anew is another inode below, without the locks of the old one.
        "has_locks",
        "lock",
        "unlock",
        "find_lock",
    ];
    assert_eq!(not_forwarded(&fs, &below), own);
}

/// A file system in memory that has an answer to everything, and records whom it was asked about.
#[derive(Default)]
struct Asked {
    fs: MemFs,
    about: Mutex<Vec<Ino>>,
}

impl Asked {
    fn note(&self, ino: Ino) {
        self.about.lock().expect("whole").push(ino);
    }

    fn about(&self) -> Vec<Ino> {
        std::mem::take(&mut self.about.lock().expect("whole"))
    }
}

impl Layer for Asked {
    fn below(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn attr_lifetime(&self, ino: Ino) -> Option<Duration> {
        self.note(ino);
        Some(Duration::from_secs(2))
    }

    fn name_lifetime(&self, ino: Ino) -> Option<Duration> {
        self.note(ino);
        Some(Duration::from_secs(3))
    }

    fn is_for_owner(&self, _: u32, ino: Ino, _: &[u8], _: Option<&[u8]>) -> bool {
        self.note(ino);
        true
    }

    fn is_owners_to_set(&self, ino: Ino, name: &[u8]) -> bool {
        self.note(ino);
        name == b"user.owners"
    }

    fn command(
        &self,
        _: &Caller,
        ino: Ino,
        _: Handle,
        _: u32,
        data: &[u8],
    ) -> Result<CommandAnswer> {
        self.note(ino);
        Ok(CommandAnswer { errno: 0, data: data.to_vec() })
    }
}

#[test]
fn a_file_that_is_written_anew_is_asked_about_by_its_new_number() {
    let below = Arc::new(Asked::default());
    let fs = over(below.clone());
    let caller = Caller::ROOT;
    let made = fs.mknod(&caller, fs.root(), b"file", FileKind::Regular, 0o644, 0).unwrap();
    let ino = made.attr.ino;
    let opened = fs.open(&Caller::ROOT, ino, OpenFlags::READ | OpenFlags::WRITE).unwrap();

    let answer = fs.command(&caller, ino, opened.handle, 7, b"data").unwrap();
    assert_eq!(answer.data, b"data");
    fs.release(ino, opened.handle).unwrap();

    fs.setxattr(&Caller::ROOT, ino, NETWORK_ATTRIBUTE, b"zstd", XattrSet::Any).unwrap();
    let mut now = ino;
    for round in 0..4 {
        fs.write(&Caller::ROOT, ino, Handle::NONE, round, b"what is compressed").unwrap();
        fs.fsync(&Caller::ROOT, ino, false).unwrap();
        now = below.fs.lookup(below.fs.root(), b"file").unwrap().attr.ino;
        // A number may come back when its file is gone.
        if now != ino {
            break;
        }
    }
    assert_ne!(now, ino, "the file was written anew");
    below.about();

    assert_eq!(fs.attr_lifetime(ino), Some(Duration::from_secs(2)));
    assert_eq!(fs.name_lifetime(ino), Some(Duration::from_secs(3)));
    assert!(fs.is_for_owner(1000, ino, b"user.mount", None));
    assert!(fs.is_owners_to_set(ino, b"user.owners"));
    assert!(!fs.is_owners_to_set(ino, b"user.other"));
    assert_eq!(below.about(), [now; 5]);

    // What is answered here is not asked below.
    for own in [NETWORK_ATTRIBUTE, CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE] {
        assert!(!fs.is_for_owner(1000, ino, own, None));
    }
    let command = fs.command(&caller, ino, Handle::NONE, 7, b"data");
    assert!(matches!(command, Err(Error::UnknownCommand)), "its content below is another");
    assert!(below.about().is_empty());
}
