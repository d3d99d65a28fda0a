//! Files made without a name.

use crate::tools::have_e2fsprogs;
use crate::volumes::{KINDS, Mounted, empty};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::{Caller, Error, FileSystem, Handle};

fn each_policy(test: impl Fn(&Mounted, &str)) {
    if !have_e2fsprogs() {
        return;
    }
    for policy in [Policy::Soft, Policy::Async, Policy::Journal(JournalMode::Ordered)] {
        let mounted = Mounted::open(&empty(&KINDS[3]), Options { policy, ..Options::default() });
        let name = format!("{policy:?}");
        test(&mounted, &name);
        mounted.check(&name);
    }
}

#[test]
fn an_unnamed_file_lives_by_its_use() {
    each_policy(|mounted, policy| {
        let fs = &mounted.fs;
        let before = fs.statfs().unwrap();
        let caller = Caller { uid: 7, gid: 8, ..Caller::ROOT };
        let made = fs.create_unnamed(&caller, fs.root(), 0o640).unwrap().attr;
        assert_eq!((made.nlink, made.perm, made.uid, made.gid), (0, 0o640, 7, 8), "{policy}");
        fs.write(&Caller::ROOT, made.ino, Handle::NONE, 0, &[5; 100_000]).unwrap();
        fs.fsync(&Caller::ROOT, made.ino, false).unwrap();
        let mut content = vec![0; 100_001];
        assert_eq!(fs.read(made.ino, Handle::NONE, 0, &mut content).unwrap(), 100_000);
        let during = fs.statfs().unwrap();
        assert!(during.inodes_free + 1 == before.inodes_free);
        fs.forget(made.ino, 1);
        let after = fs.statfs().unwrap();
        assert_eq!(
            (after.inodes_free, after.blocks_free),
            (before.inodes_free, before.blocks_free)
        );
        assert!(matches!(fs.getattr(made.ino), Err(Error::Stale(_))), "{policy}");
    });
}

#[test]
fn an_unnamed_file_gets_a_name_and_keeps_it() {
    each_policy(|mounted, policy| {
        let fs = &mounted.fs;
        let dir = fs.mkdir(&Caller::ROOT, fs.root(), b"dir", 0o755).unwrap().attr.ino;
        // Three of them, so that the one in the middle leaves the list of orphaned inodes.
        let [first, middle, last] = [1, 2, 3].map(|byte| {
            let ino = fs.create_unnamed(&Caller::ROOT, dir, 0o600).unwrap().attr.ino;
            fs.write(&Caller::ROOT, ino, Handle::NONE, 0, &[byte; 5000]).unwrap();
            ino
        });
        assert_eq!(fs.link(&Caller::ROOT, middle, dir, b"name").unwrap().attr.nlink, 1);
        assert_eq!(fs.link(&Caller::ROOT, middle, dir, b"other").unwrap().attr.nlink, 2);
        fs.fsync(&Caller::ROOT, middle, false).unwrap();
        // A cut now: files with a name are there with their content, the others are not.
        let image = mounted.device.snapshot();
        let options = Options { policy: fs.engine().policy(), ..Options::default() };
        let after = Mounted::open(&image, options);
        let dir_after = after.fs.lookup(after.fs.root(), b"dir").unwrap().attr.ino;
        let found = after.fs.lookup(dir_after, b"name").unwrap().attr;
        assert_eq!((found.ino, found.nlink), (middle, 2), "{policy}");
        let mut content = [0; 5001];
        assert_eq!(after.fs.read(middle, Handle::NONE, 0, &mut content).unwrap(), 5000);
        assert_eq!(content[..5000], [2; 5000]);
        assert!(after.fs.getattr(first).is_err() && after.fs.getattr(last).is_err(), "{policy}");
        // Once it has lost its names, it gets none again.
        for name in [&b"name"[..], b"other"] {
            fs.unlink(&Caller::ROOT, dir, name).unwrap();
        }
        assert!(
            matches!(fs.link(&Caller::ROOT, middle, dir, b"again"), Err(Error::NotFound)),
            "{policy}"
        );
        fs.forget(first, 1);
        fs.forget(middle, 3);
    });
}
