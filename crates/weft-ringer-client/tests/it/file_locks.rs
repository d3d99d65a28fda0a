//! Which of several locks a client reports that asks for one.

use std::time::Duration;

use weft_block::Rng;
use weft_vfs::{Caller, FileLock, FileSystem, Handle, LockStyle, OpenFlags};

use super::{Cell, ino, write};

/// POSIX: the first in the file of the locks that conflict, whoever took it and when.
#[test]
fn the_first_conflicting_lock_in_the_file_is_found() {
    let cell = Cell::new(Duration::from_secs(15));
    let clients = [cell.join("a"), cell.join("b")];
    write(&clients[0], "/file", b"content");
    let files: Vec<_> = clients
        .iter()
        .map(|fs| {
            let at = ino(fs, "file");
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            (at, fs.open(&Caller::ROOT, at, flags).expect("open").handle)
        })
        .collect();
    let lock = |owner, exclusive, first, last| FileLock {
        style: LockStyle::Posix,
        owner,
        exclusive,
        first,
        last,
        pid: 1,
    };
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        // Of each ten bytes some are locked, in no order, by programs of both machines.
        let mut places: Vec<u64> = (0..6).collect();
        let mut held = Vec::new();
        while !places.is_empty() {
            let place = places.swap_remove(rng.index(places.len()));
            let (client, exclusive) = (rng.index(2), rng.below(2) == 0);
            let (first, owner) = (place * 10 + rng.below(5), 1 + place);
            let (at, handle) = files[client];
            let taken = lock(owner, exclusive, first, first + 2);
            clients[client].lock(at, handle, &taken, None).expect("free");
            held.push((client, taken));
        }
        for (fs, (at, _)) in clients.iter().zip(&files) {
            for wanted in [true, false] {
                let asked = lock(99, wanted, 0, i64::MAX.unsigned_abs());
                let found = fs.find_lock(*at, &asked).expect("an answer");
                let conflicts = held.iter().map(|(_, l)| l).filter(|l| wanted || l.exclusive);
                let first = conflicts.min_by_key(|l| l.first);
                let of = |l: &FileLock| (l.exclusive, l.first, l.last);
                assert_eq!(found.as_ref().map(of), first.map(of), "seed {seed}, {wanted}");
            }
        }
        for (client, taken) in &held {
            let (at, handle): (_, Handle) = files[*client];
            let FileLock { style, owner, first, last, .. } = *taken;
            clients[*client].unlock(at, handle, style, owner, first, last);
        }
    }
}
