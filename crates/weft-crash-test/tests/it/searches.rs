//! Searches with checks that are functions: what is found, how it is said, and what mends it.

use crate::program::{Check, Program, content, search_all};
use std::time::{Duration, Instant};
use weft_crash_test::{
    CallNr, Change, Cursor, Edit, Judge, Limits, Model, Nature, State, Subject, UnitNr, mend,
    search, shrink,
};

/// A moment that does not come within a test.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

fn old_or_new(tree: &weft_vfs::memfs::Snapshot, _: &[&str]) -> bool {
    matches!(content(tree, "f").as_deref(), Some(b"old" | b"new"))
}

#[test]
fn a_missing_fsync_before_a_rename_is_named_and_mended() {
    let recording =
        Program::new().put("f", b"old").start().put("f.tmp", b"new").rename("f.tmp", "f").end();
    let found = search_all(&recording, Model::XfsLike, old_or_new);
    let [finding] = found.findings.as_slice() else { panic!("{found:#?}") };
    assert_eq!(finding.nature, Nature::Reordered);
    assert_eq!(finding.lost.len(), 1);
    assert_eq!(finding.lost[0].call.text, r#"write("f.tmp", bytes 0 to 3)"#);
    assert_eq!(finding.kept.as_ref().unwrap().text, r#"rename("f.tmp", "f")"#);
    let subject = Subject::new(&recording, Model::XfsLike, &[]);
    let mut judge = Check(old_or_new);
    let mend =
        mend(&recording, Model::XfsLike, &subject, finding, &mut judge, later()).unwrap().unwrap();
    assert_eq!(mend.calls, [r#"fsync("f.tmp")"#]);
    assert_eq!((mend.after, mend.before.nr), (2, 3));
    assert!(mend.states > 0 && mend.failed == 0, "{mend:?}");
}

#[test]
fn a_broken_promise_is_named_and_mended_by_the_directory() {
    let recording = Program::new().start().put("g", b"new").fsync("g").print("saved g").end();
    let check = |tree: &weft_vfs::memfs::Snapshot, promises: &[&str]| {
        promises.is_empty() || content(tree, "g").is_some()
    };
    let found = search_all(&recording, Model::Posix, check);
    let [finding] = found.findings.as_slice() else { panic!("{found:#?}") };
    assert_eq!(finding.nature, Nature::NotDurable);
    assert_eq!(finding.kept.as_ref().unwrap().text, r#"the program printed "saved g""#);
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let mend = mend(&recording, Model::Posix, &subject, finding, &mut Check(check), later())
        .unwrap()
        .unwrap();
    assert_eq!(mend.calls, [r#"fsync(".")"#]);
    assert_eq!(mend.failed, 0);
}

#[test]
fn a_file_overwritten_in_place_is_interrupted_or_partial_and_no_fsync_mends_it() {
    let recording = Program::new()
        .put("f", b"old")
        .start()
        .truncate("f", 0)
        .write("f", 0, b"new")
        .fsync("f")
        .end();
    for model in Model::ALL {
        let found = search_all(&recording, model, old_or_new);
        assert!(!found.findings.is_empty(), "{model}");
        let subject = Subject::new(&recording, model, &[]);
        for finding in &found.findings {
            assert_ne!(finding.nature, Nature::Reordered, "{model}: {}", finding.headline);
            let mended =
                mend(&recording, model, &subject, finding, &mut Check(old_or_new), later())
                    .unwrap();
            assert_eq!(mended, None);
        }
    }
}

#[test]
fn failures_of_one_kind_are_one_finding() {
    let mut program = Program::new();
    for nr in 0..20 {
        program = program.put(&format!("f{nr:04}"), b"old");
    }
    program = program.start();
    for nr in 0..20 {
        let (name, tmp) = (format!("f{nr:04}"), format!("t{nr:04}"));
        program = program.put(&tmp, b"new").rename(&tmp, &name);
    }
    let recording = program.end();
    let check = |tree: &weft_vfs::memfs::Snapshot, _: &[&str]| {
        (0..20).all(|nr| {
            matches!(content(tree, &format!("f{nr:04}")).as_deref(), Some(b"old" | b"new"))
        })
    };
    let subject = Subject::new(&recording, Model::XfsLike, &[]);
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(check))];
    let mut limits = Limits::default();
    limits.bounds.states = 400;
    limits.bounds.all = 400;
    let found = search(&subject, &mut judges, limits, &|_| {}).unwrap();
    assert!(found.progress.failed > 20, "{:?}", found.progress);
    assert!(found.findings.len() <= 2, "{:#?}", found.findings);
}

#[test]
fn a_check_that_fails_without_a_power_cut_tests_nothing() {
    let recording = Program::new().start().put("g", b"new").end();
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let mut judges: Vec<Box<dyn Judge>> =
        vec![Box::new(Check(|_: &weft_vfs::memfs::Snapshot, _: &[&str]| false))];
    let error = search(&subject, &mut judges, Limits::default(), &|_| {}).unwrap_err();
    assert!(error.to_string().starts_with("not tested: the check fails on what"), "{error}");
}

#[test]
fn the_same_seed_gives_the_same_states() {
    let mut program = Program::new().start();
    for nr in 0..40 {
        program = program.put(&format!("f{nr}"), b"x");
    }
    let recording = program.end();
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let states = |seed| {
        let mut all = Vec::new();
        for epoch in subject.epochs() {
            let bounds = weft_crash_test::Bounds { all: 100, states: 500, torn: true, seed };
            epoch.each_state(&subject.units, bounds, &mut |state| {
                assert!(epoch.is_legal(&state));
                let text = state.to_string();
                assert_eq!(text.parse::<weft_crash_test::State>().unwrap().to_string(), text);
                all.push(text);
                true
            });
        }
        all
    };
    assert_eq!(states(1), states(1));
    assert_ne!(states(1), states(2));
    assert_eq!(states(1).len(), 500);
}

#[test]
fn a_sync_that_is_left_out_is_missed() {
    let recording = Program::new()
        .put("f", b"old")
        .start()
        .put("f.tmp", b"new")
        .fsync("f.tmp")
        .rename("f.tmp", "f")
        .end();
    let fails = |edits: &[weft_crash_test::Edit]| {
        let subject = Subject::new(&recording, Model::XfsLike, edits);
        let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(old_or_new))];
        search(&subject, &mut judges, Limits::default(), &|_| {}).unwrap().progress.failed > 0
    };
    assert!(!fails(&[]));
    assert!(fails(&[weft_crash_test::Edit::Remove(weft_crash_test::CallNr(2))]));
}

#[test]
fn judges_that_panic_end_the_search() {
    let mut program = Program::new().start();
    for nr in 0..40 {
        program = program.put(&format!("f{nr}"), b"x");
    }
    let recording = program.end();
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let mut first = true;
    let check = move |_: &weft_vfs::memfs::Snapshot, _: &[&str]| {
        assert!(std::mem::take(&mut first), "the check without a power cut is the only one");
        true
    };
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(check))];
    let search = std::panic::AssertUnwindSafe(|| {
        search(&subject, &mut judges, Limits::default(), &|_| {}).map(|_| ())
    });
    assert!(std::panic::catch_unwind(search).is_err());
}

#[test]
fn what_makes_an_inode_durable_twice_is_left_out_as_one() {
    // As a write to a file that was opened with O_DSYNC is recorded.
    let recording = Program::new()
        .put("f", b"old")
        .start()
        .put("f.tmp", b"new")
        .fsync("f.tmp")
        .fdatasync("f.tmp")
        .rename("f.tmp", "f")
        .fsync_dir("")
        .end();
    let first = (0..).zip(&recording.calls).find(|(_, call)| call.action.is_sync()).unwrap().0;
    let left_out = |nr| Edit::leave_out(&recording.calls, CallNr(nr));
    assert_eq!(left_out(first), [first, first + 1].map(|nr| Edit::Remove(CallNr(nr))));
    assert_eq!(left_out(first + 1), [Edit::Remove(CallNr(first + 1))]);
    assert_eq!(left_out(first + 3), [Edit::Remove(CallNr(first + 3))]);
    for model in Model::ALL {
        assert_eq!(search_all(&recording, model, old_or_new).progress.failed, 0, "{model}");
        let without = |edits: &[Edit]| {
            let subject = Subject::new(&recording, model, edits);
            let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(old_or_new))];
            let limits = Limits { after: Some(CallNr(first)), ..Limits::default() };
            search(&subject, &mut judges, limits, &|_| {}).unwrap().progress
        };
        assert_eq!(without(&[Edit::Remove(CallNr(first))]).failed, 0, "{model}");
        assert!(without(&left_out(first)).failed > 0, "{model}");
    }
}

fn anything(_: &weft_vfs::memfs::Snapshot, _: &[&str]) -> bool {
    true
}

#[test]
fn a_search_may_begin_after_a_call() {
    let mut program = Program::new().start();
    for nr in 0..10 {
        let name = format!("f{nr}");
        program = program.put(&name, b"data").fsync(&name).fsync_dir("");
    }
    let recording = program.end();
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let search_after = |after| {
        let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(anything))];
        search(&subject, &mut judges, Limits { after, ..Limits::default() }, &|_| {}).unwrap()
    };
    let (all, last) = (search_after(None), search_after(Some(CallNr(36))));
    assert_eq!(all.progress.epochs, 21);
    assert_eq!(last.progress.epochs, 3);
    assert_eq!(last.progress.epochs_done, 3);
    assert!(last.progress.distinct < all.progress.distinct);
}

#[test]
fn a_search_that_ends_early_has_looked_at_all_parts_of_the_program() {
    // More states than are judged, before what is wrong.
    let mut program = Program::new().put("f", b"old").start();
    for nr in 0..12 {
        program = program.put(&format!("g{nr}"), b"beside");
    }
    program = program.fsync_dir("").fsync("f").put("f.tmp", b"new").rename("f.tmp", "f");
    program = program.fsync_dir("").put("h", b"later").fsync("h");
    let recording = program.end();
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(old_or_new))];
    let limits = Limits { states: 40, ..Limits::default() };
    let found = search(&subject, &mut judges, limits, &|_| {}).unwrap();
    assert_eq!(found.progress.distinct, 40);
    assert_eq!(found.cut_short.as_deref(), Some("40 states were judged"));
    assert!(found.progress.failed > 0, "{found:#?}");
    assert_eq!(found.progress.tried_of_each, 16, "{found:#?}");
}

#[test]
fn a_search_out_of_time_names_one_failure_and_proves_no_more() {
    let mut program = Program::new().put("f", b"old").start();
    for nr in 0..60 {
        program = program.put(&format!("g{nr}"), b"beside");
    }
    let recording = program.put("f.tmp", b"new").rename("f.tmp", "f").end();
    let subject = Subject::new(&recording, Model::Posix, &[]);
    let check = |tree: &weft_vfs::memfs::Snapshot, _: &[&str]| {
        matches!(content(tree, "f").as_deref(), Some(b"old" | b"new"))
    };
    let mut cursor = Cursor::new(&subject);
    let last = subject.epochs().last().unwrap();
    let pending: Vec<UnitNr> = last.pending.clone();
    // The data of the new file are lost, and all of the others.
    let renames = |unit: UnitNr| unit.0 as usize + 2 >= pending.len();
    let state = last.keep(|unit| renames(unit) || subject.units.changes(unit).any(is_inode));
    let mut checks = 0;
    let mut fails = |cursor: &mut Cursor<'_>, state: &State| {
        checks += 1;
        Ok(!check(&cursor.tree(state)?, &[]))
    };
    assert!(fails(&mut cursor, &state).unwrap());
    let cause = shrink(&mut cursor, &state, Instant::now(), &mut fails).unwrap();
    assert!(cause.lost.len() > 60 && checks < 20, "{} lost, {checks} checks", cause.lost.len());
    let found = search_all(&recording, Model::Posix, check);
    let (finding, mut judge) = (&found.findings[0], Check(check));
    let none = mend(&recording, Model::Posix, &subject, finding, &mut judge, Instant::now());
    assert_eq!(none.unwrap(), None);
}

fn is_inode(change: &Change) -> bool {
    matches!(change, Change::Node(_))
}
