//! What each model allows and what it does not, in programs of a few calls.

use crate::program::{Program, contents};
use weft_crash_test::Model::{self, BtrfsLike, Ext4Ordered, Posix, XfsLike};

/// Checks for each model whether a state with this content of a file can be left.
fn allows(
    program: impl Fn() -> Program,
    path: &'static str,
    content: Option<&[u8]>,
    expected: [(Model, bool); 4],
) {
    let recording = program().end();
    for (model, allowed) in expected {
        let all = contents(&recording, model, path);
        let found = all.iter().any(|seen| seen.as_deref() == content);
        assert_eq!(found, allowed, "{model}: {path} with {content:?} of {all:?}");
    }
}

const ALL: [(Model, bool); 4] =
    [(Posix, true), (Ext4Ordered, true), (XfsLike, true), (BtrfsLike, true)];
const NONE: [(Model, bool); 4] =
    [(Posix, false), (Ext4Ordered, false), (XfsLike, false), (BtrfsLike, false)];
const ONLY_POSIX: [(Model, bool); 4] =
    [(Posix, true), (Ext4Ordered, false), (XfsLike, false), (BtrfsLike, false)];

fn old_file() -> Program {
    Program::new().put("f", b"old").start()
}

#[test]
fn a_replaced_file_without_fsync_may_be_empty_but_on_ext4() {
    let program = || old_file().put("f.tmp", b"new").rename("f.tmp", "f");
    let but_ext4 = [(Posix, true), (Ext4Ordered, false), (XfsLike, true), (BtrfsLike, true)];
    allows(program, "f", Some(b""), but_ext4);
    allows(program, "f", Some(b"old"), ALL);
    allows(program, "f", Some(b"new"), ALL);
}

#[test]
fn a_replaced_file_with_fsync_is_old_or_new_everywhere() {
    let program = || old_file().put("f.tmp", b"new").fsync("f.tmp").rename("f.tmp", "f");
    allows(program, "f", Some(b""), NONE);
    allows(program, "f", Some(b"old"), ALL);
    allows(program, "f", Some(b"new"), ALL);
    // The two parts of a rename are apart only in the most permissive model, where the new name has
    // replaced the old one in any case: the file is never missing.
    allows(program, "f", None, NONE);
}

#[test]
fn a_renamed_file_may_lose_both_names_only_in_posix() {
    let program = || old_file().rename("f", "g");
    let recording = program().end();
    for (model, possible) in ONLY_POSIX {
        let f = contents(&recording, model, "f");
        let g = contents(&recording, model, "g");
        assert!(f.contains(&None) && g.contains(&None), "{model}");
        let subject = weft_crash_test::Subject::new(&recording, model, &[]);
        let mut cursor = weft_crash_test::Cursor::new(&subject);
        let mut lost = false;
        for epoch in subject.epochs() {
            epoch.each_state(&subject.units, Default::default(), &mut |state| {
                let tree = cursor.tree(&state).unwrap();
                lost |=
                    ["f", "g"].iter().all(|name| crate::program::content(&tree, name).is_none());
                true
            });
        }
        assert_eq!(lost, possible, "{model}");
    }
}

#[test]
fn a_new_name_is_durable_by_fsync_of_its_directory() {
    let program = || old_file().put("g", b"new").fsync("g").print("saved g");
    let recording = program().end();
    for (model, may_be_lost) in ONLY_POSIX {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "g").as_deref() == Some(b"new")
        });
        assert_eq!(found.progress.failed > 0, may_be_lost, "{model}");
    }
    let recording = old_file().put("g", b"new").fsync("g").fsync_dir("").print("saved g").end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "g").as_deref() == Some(b"new")
        });
        assert_eq!(found.progress.failed, 0, "{model}");
    }
}

#[test]
fn fsync_of_a_directory_says_nothing_of_content() {
    let program = || old_file().put("g", b"new").fsync_dir("").print("saved g");
    allows(program, "g", Some(b""), ALL);
}

#[test]
fn names_change_in_order_but_in_posix() {
    let recording = old_file().creat("a").creat("b").end();
    for (model, possible) in ONLY_POSIX {
        let subject = weft_crash_test::Subject::new(&recording, model, &[]);
        let mut cursor = weft_crash_test::Cursor::new(&subject);
        let mut found = false;
        for epoch in subject.epochs() {
            epoch.each_state(&subject.units, Default::default(), &mut |state| {
                let tree = cursor.tree(&state).unwrap();
                let has = |name| crate::program::content(&tree, name).is_some();
                found |= has("b") && !has("a");
                true
            });
        }
        assert_eq!(found, possible, "{model}");
    }
}

#[test]
fn an_fsync_brings_earlier_names_but_on_btrfs() {
    // The fsync of b commits the transaction in which a came into being.
    let recording = old_file().creat("a").put("b", b"x").fsync("b").print("saved b").end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "a").is_some()
        });
        let lost = matches!(model, Posix | BtrfsLike);
        assert_eq!(found.progress.failed > 0, lost, "{model}");
    }
}

#[test]
fn pages_are_overwritten_in_any_order() {
    let old = vec![b'o'; 8192];
    let new = vec![b'n'; 4096];
    let program =
        || Program::new().put("f", &old).start().write("f", 0, &new).write("f", 4096, &new);
    let first = [new.clone(), old[4096..].to_vec()].concat();
    let second = [old[..4096].to_vec(), new.clone()].concat();
    allows(program, "f", Some(&first), ALL);
    allows(program, "f", Some(&second), ALL);
}

#[test]
fn a_page_is_written_with_all_that_it_holds() {
    let program = || old_file().write("f", 0, b"1").write("f", 1, b"2");
    allows(program, "f", Some(b"12d"), ALL);
    allows(program, "f", Some(b"1ld"), ALL);
    allows(program, "f", Some(b"o2d"), NONE);
}

#[test]
fn a_file_grows_after_its_data_but_on_ext4() {
    let before = [(Posix, true), (Ext4Ordered, true), (XfsLike, false), (BtrfsLike, false)];
    let program = || old_file().write("f", 3, b"er");
    allows(program, "f", Some(b"old\0\0"), before);
    // ext4 allocates blocks that hold zeroes until the data are there.
    let page = vec![b'o'; 4096];
    let program = || Program::new().put("f", &page).start().write("f", 4096, b"er");
    let zeroes = [&page[..], &[0, 0]].concat();
    allows(program, "f", Some(&zeroes), before);
    let program = || old_file().put("f.tmp", b"new").close("f.tmp").rename("f.tmp", "f");
    allows(program, "f", Some(b"\0\0\0"), before);
}

#[test]
fn an_emptied_file_that_is_written_anew_is_never_empty_on_ext4_if_it_was_closed() {
    let program = || old_file().truncate("f", 0).write("f", 0, b"new");
    let closed = || program().close("f").creat("later");
    let open = || program().creat("later");
    let fails = |recording, model, content: &'static [u8]| {
        let found = crate::program::search_all(&recording, model, move |tree, _| {
            crate::program::content(tree, "later").is_none()
                || crate::program::content(tree, "f").as_deref() != Some(content)
        });
        found.progress.failed > 0
    };
    for model in Model::ALL {
        assert!(fails(open().end(), model, b""), "{model}");
        assert_eq!(fails(closed().end(), model, b""), model != Ext4Ordered, "{model}");
        let grows_first = model != XfsLike;
        assert_eq!(fails(closed().end(), model, b"\0\0\0"), grows_first, "{model}");
    }
    allows(closed, "f", Some(b""), ALL);
}

#[test]
fn the_end_of_a_page_is_cleared_before_the_file_is_shorter() {
    let program = || old_file().truncate("f", 1);
    allows(program, "f", Some(b"o\0\0"), ALL);
    // The page keeps its block, so that what is written into it does not wait either.
    let program = || old_file().truncate("f", 1).write("f", 1, b"n");
    allows(program, "f", Some(b"on\0"), ALL);
    // A page that was cut off as a whole has another block when it is written again.
    let program = || old_file().truncate("f", 0).write("f", 0, b"n");
    allows(program, "f", Some(b"nld"), NONE);
}

#[test]
fn fsync_of_a_file_brings_names_only_up_to_its_last_change() {
    // The kernel may have written the file back, and committed that, before the unlink.
    let program = || {
        let old = Program::new().put("f", b"old").put("g", b"").start();
        old.write("f", 3, b"er").unlink("g").fsync("f").print("saved")
    };
    let recording = program().end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "g").is_none()
        });
        assert!(found.progress.failed > 0, "{model}");
    }
}

#[test]
fn a_file_moved_to_a_synced_directory_may_keep_its_old_name_on_btrfs() {
    let recording = Program::new()
        .mkdir("d")
        .put("d/f", b"old")
        .start()
        .rename("d/f", "f")
        .fsync_dir("")
        .print("saved")
        .end();
    for model in Model::ALL {
        let both = crate::program::search_all(&recording, model, |tree, _| {
            let has = |name| crate::program::content(tree, name).is_some();
            !(has("f") && has("d/f"))
        });
        assert_eq!(both.progress.failed > 0, matches!(model, Posix | BtrfsLike), "{model}");
        let lost = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "f").is_some()
        });
        assert_eq!(lost.progress.failed, 0, "{model}");
    }
}

#[test]
fn fsync_of_a_file_without_a_name_says_nothing_on_btrfs() {
    let program = || {
        old_file().chmod("f", 0o600).unlinked("f", |fs, ino| {
            fs.fsync(&weft_vfs::Caller::ROOT, ino, false).unwrap();
        })
    };
    let recording = program().print("saved").end();
    let found = crate::program::search_all(&recording, BtrfsLike, |tree, promises| {
        let old = tree.nodes().find(|(_, node)| node.size_bytes() == 3);
        promises.is_empty() || old.is_none_or(|(_, node)| node.attr().perm == 0o600)
    });
    assert!(found.progress.failed > 0);
}

#[test]
fn a_new_name_of_a_file_brings_its_size_without_its_content_on_btrfs() {
    // And in the most permissive model.
    let program = || {
        let old = old_file().link("f", "g").truncate("f", 0).write("f", 0, b"ne");
        old.fsync_dir("")
    };
    let apart = [(Posix, true), (Ext4Ordered, false), (XfsLike, false), (BtrfsLike, true)];
    allows(program, "g", Some(b"ol"), apart);
}

/// Whether a model allows a state that a predicate describes.
fn can_leave(
    recording: &weft_crash_test::Recording,
    model: Model,
    state: impl Fn(&dyn Fn(&str) -> bool) -> bool + Send + Clone + 'static,
) -> bool {
    let found = crate::program::search_all(recording, model, move |tree, _| {
        !state(&|name| crate::program::content(tree, name).is_some())
    });
    found.progress.failed > 0
}

#[test]
fn what_is_done_to_a_synced_file_waits_for_nothing_on_btrfs() {
    let program = || old_file().put("g", b"new").fsync("g").creat("h").rename("g", "i");
    let recording = program().end();
    for model in Model::ALL {
        let found = can_leave(&recording, model, |has| has("i") && !has("h"));
        assert_eq!(found, matches!(model, Posix | BtrfsLike), "{model}");
    }
    // A file that is not synced keeps its place in the order.
    let recording = old_file().creat("g").creat("h").rename("g", "i").end();
    for model in Model::ALL {
        let found = can_leave(&recording, model, |has| has("i") && !has("h"));
        assert_eq!(found, model == Posix, "{model}");
    }
}

#[test]
fn a_rename_in_a_synced_directory_comes_before_what_is_removed_there_on_btrfs() {
    // LevelDB puts a new list of its files in place so, removes an old file, and writes its log.
    let files = || Program::new().mkdir("d").put("d/current", b"1").put("d/log", b"old").start();
    let renamed = || files().put("d/t", b"2").fsync("d/t").rename("d/t", "d/current");
    let logs = |program: Program| program.unlink("d/log").put("d/log2", b"new").fsync("d/log2");
    let synced = || files().fsync_dir("d").put("d/t", b"2").fsync("d/t");
    let recording = logs(synced().rename("d/t", "d/current")).end();
    for model in Model::ALL {
        let found = can_leave(&recording, model, |has| has("d/t") && !has("d/log"));
        assert_eq!(found, model == Posix, "{model}");
    }
    // That the renamed file was synced is not enough: a commit may come between, and the later
    // `fsync` of another file then leaves the old name.
    for program in [renamed(), synced().rename("d/t", "d/current")] {
        let recording = program.put("d/log2", b"new").fsync("d/log2").end();
        assert!(can_leave(&recording, BtrfsLike, |has| has("d/t") && has("d/log2")));
    }
    // An inode that was synced may have lost its name in the log by itself.
    let recording = synced().link("d/log", "l").fsync("d/log").rename("d/t", "d/current");
    let recording = recording.unlink("d/log").put("d/log2", b"new").fsync("d/log2").end();
    assert!(can_leave(&recording, BtrfsLike, |has| has("d/t") && !has("d/log")));
    let program = synced().link("d/log", "l").rename("d/t", "d/current").unlink("d/log");
    let recording = program.fsync("l").end();
    assert!(can_leave(&recording, BtrfsLike, |has| has("d/t") && !has("d/log")));
}

#[test]
fn a_synced_file_brings_no_name_that_it_had_in_the_meantime_on_btrfs() {
    let renamed = || old_file().put("g", b"x").sync().rename("f", "h").rename("g", "h");
    let recording = renamed().creat("f").rename("f", "i").fsync("i").print("saved").end();
    let found = crate::program::search_all(&recording, BtrfsLike, |tree, promises| {
        let has = |name: &str| crate::program::content(tree, name).is_some();
        promises.is_empty() || !has("f") || !has("i")
    });
    assert!(found.progress.failed > 0);
}

#[test]
fn fsync_of_a_new_file_brings_the_one_that_had_its_name_on_btrfs() {
    let program = || old_file().creat("before").rename("f", "g").put("f", b"new").fsync("f");
    let recording = program().end();
    for model in Model::ALL {
        let found = can_leave(&recording, model, |has| has("g") && !has("before"));
        assert_eq!(found, matches!(model, Posix | BtrfsLike), "{model}");
    }
}

/// Found by `judge_models btrfs --names`, and `judge_models btrfs`.
#[test]
fn a_synced_file_that_is_removed_may_give_its_name_back_on_btrfs() {
    let replaced = || old_file().unlink("f").put("f", b"new").fsync("f").unlink("f");
    let moved = || {
        let program = Program::new().mkdir("e").put("e/f", b"old").start();
        program.put("b", b"new").fsync("b").rename("b", "e/f").unlink("e/f")
    };
    for (recording, name) in [
        (replaced().put("g", b"later").fsync("g").end(), "f"),
        (moved().put("g", b"later").fsync("g").end(), "e/f"),
    ] {
        for model in Model::ALL {
            let found = crate::program::search_all(&recording, model, move |tree, _| {
                let content = |path| crate::program::content(tree, path);
                content("g").is_none()
                    || content("b").is_some()
                    || content(name).as_deref() != Some(b"old")
            });
            let expected = matches!(model, Posix | BtrfsLike);
            assert_eq!(found.progress.failed > 0, expected, "{model}, {name}");
        }
    }
}

/// As each transaction of a database with a rollback journal does it.
#[test]
fn a_removed_file_stays_removed_once_its_directory_was_synced() {
    let transaction = |program: Program, content: &[u8], saved: &str, synced: bool| {
        let journal = program.put("j", content).fsync("j").fsync_dir("");
        let removed = journal.write("f", 0, content).fsync("f").unlink("j");
        (if synced { removed.fsync_dir("") } else { removed }).print(saved)
    };
    let moved = |program: Program, synced: bool| {
        // The name is left to nobody by a `rename`, and the one that had it in the meantime is fsynced.
        let first = program.put("a", b"one").fsync("a").fsync_dir("").unlink("a");
        let first = (if synced { first.fsync_dir("") } else { first }).print("saved 1");
        first.put("b", b"two").rename("b", "a").rename("a", "c").fsync("c")
    };
    for synced in [true, false] {
        let first = transaction(old_file(), b"one", "saved 1", synced);
        let twice = transaction(first, b"two", "saved 2", true).end();
        for (recording, name) in [(twice, "j"), (moved(old_file(), synced).end(), "a")] {
            for model in Model::ALL {
                let found = crate::program::search_all(&recording, model, move |tree, promises| {
                    let content = crate::program::content(tree, name);
                    promises.is_empty() || content.as_deref() != Some(b"one")
                });
                match (synced, model) {
                    (true, _) => assert_eq!(found.progress.failed, 0, "{model}, {name}"),
                    // Without the fsync it does, on the kernel's btrfs too.
                    (false, BtrfsLike) => assert!(found.progress.failed > 0, "{name}"),
                    (false, _) => {}
                }
            }
        }
    }
}

#[test]
fn a_new_synced_file_may_be_lost_if_another_that_is_not_synced_replaces_it_on_btrfs() {
    let program = || old_file().put("g", b"new").fsync("g").put("h", b"newer").rename("h", "g");
    let recording = program().print("saved").end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "g").is_some()
        });
        // In posix, as the directory was not synced.
        assert_eq!(found.progress.failed > 0, matches!(model, Posix | BtrfsLike), "{model}");
    }
    let synced = || old_file().put("g", b"new").fsync("g").put("h", b"newer").fsync("h");
    let recording = synced().rename("h", "g").print("saved").end();
    let found = crate::program::search_all(&recording, BtrfsLike, |tree, promises| {
        promises.is_empty() || crate::program::content(tree, "g").is_some()
    });
    assert_eq!(found.progress.failed, 0);
}

#[test]
fn sync_may_leave_overwritten_pages_on_xfs() {
    let program = || old_file().write("f", 0, b"new").creat("g").sync().print("saved");
    let recording = program().end();
    for model in Model::ALL {
        let lost = |name: &'static str, content: &'static [u8]| {
            let found = crate::program::search_all(&recording, model, move |tree, promises| {
                let seen = crate::program::content(tree, name);
                promises.is_empty() || seen.as_deref() == Some(content)
            });
            found.progress.failed > 0
        };
        assert_eq!(lost("f", b"new"), matches!(model, Posix | XfsLike), "{model}");
        assert!(!lost("g", b""), "{model}");
    }
    let recording = program().fsync("f").print("saved f").end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.len() < 2 || crate::program::content(tree, "f").as_deref() == Some(b"new")
        });
        assert_eq!(found.progress.failed, 0, "{model}");
    }
}

#[test]
fn what_is_durable_of_a_file_without_a_name_is_built() {
    // The inode is durable, and so is a page, while its name and a later size are not.
    let page = vec![b'x'; 4096];
    let program = || {
        let first = Program::new().start().mkdir("d").put("f", &page);
        first.fdatasync("f").write("f", 4096, b"y").fsync_dir("")
    };
    allows(program, "f", Some(&page), ALL);
}

#[test]
fn fdatasync_leaves_out_what_is_not_needed_to_read() {
    let program = || old_file().write("f", 3, b"er").fdatasync("f").print("saved f");
    let recording = program().end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "f").as_deref() == Some(b"older")
        });
        assert_eq!(found.progress.failed, 0, "{model}");
    }
}

#[test]
fn a_removed_name_may_come_back_until_the_directory_is_synced() {
    let program = || old_file().unlink("f").print("saved");
    allows(program, "f", Some(b"old"), ALL);
    let recording = old_file().unlink("f").fsync_dir("").print("saved").end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "f").is_none()
        });
        assert_eq!(found.progress.failed, 0, "{model}");
    }
}

#[test]
fn a_directory_that_was_moved_has_one_name() {
    let program = || {
        Program::new()
            .mkdir("d")
            .put("d/f", b"x")
            .mkdir("e")
            .start()
            .rename("d", "e/d")
            .rename("e/d", "g")
    };
    let recording = program().end();
    for model in Model::ALL {
        let subject = weft_crash_test::Subject::new(&recording, model, &[]);
        let mut cursor = weft_crash_test::Cursor::new(&subject);
        for epoch in subject.epochs() {
            epoch.each_state(&subject.units, Default::default(), &mut |state| {
                let tree = cursor.tree(&state).unwrap();
                let names = ["d/f", "e/d/f", "g/f"];
                let there = names.iter().filter(|n| crate::program::content(&tree, n).is_some());
                assert_eq!(there.count(), 1, "{model}: {state}");
                true
            });
        }
    }
}

#[test]
fn a_new_file_of_which_only_the_mode_is_not_durable_has_its_data() {
    // fdatasync leaves the change of the mode behind, but not the inode that it changes.
    let program = || {
        let recording = Program::new().start().put("f", b"new").chmod("f", 0o600);
        recording.fdatasync("f").fsync_dir("").print("saved f")
    };
    let recording = program().end();
    for model in Model::ALL {
        let found = crate::program::search_all(&recording, model, |tree, promises| {
            promises.is_empty() || crate::program::content(tree, "f").as_deref() == Some(b"new")
        });
        assert_eq!(found.progress.failed, 0, "{model}");
    }
}

#[test]
fn fdatasync_of_a_file_that_keeps_its_size_brings_no_names() {
    // `truncate` to the size that it has changes its times alone, which fdatasync leaves behind.
    let recording = |size| {
        let program = Program::new().put("f", b"old").put("g", b"x").start().rename("g", "h");
        program.truncate("f", size).fdatasync("f").print("saved").end()
    };
    for model in [Ext4Ordered, XfsLike] {
        let failed = |size| {
            let found = crate::program::search_all(&recording(size), model, |tree, promises| {
                promises.is_empty() || crate::program::content(tree, "h").is_some()
            });
            found.progress.failed
        };
        assert_eq!(failed(2), 0, "{model}");
        assert!(failed(3) > 0, "{model}");
    }
}
