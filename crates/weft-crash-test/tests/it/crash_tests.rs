//! `CrashTest` as a user has it: in tests of this program, whose functions are tested.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use weft_crash_test::{CrashTest, Error, Model, Nature, Report, Result, promise};

/// Saves a text under a name that always has a whole one, if `sync` is given.
fn save(folder: &Path, text: &str, sync: bool) -> std::io::Result<()> {
    let new = folder.join("settings.new");
    fs::write(&new, text)?;
    if sync {
        fs::File::open(&new)?.sync_all()?;
    }
    fs::rename(&new, folder.join("settings"))
}

fn check(folder: &Path, _promises: &[String]) {
    let text = fs::read_to_string(folder.join("settings")).unwrap();
    assert!(text == "old" || text == "new", "the settings are {text:?}");
}

/// `None`, with a line that says so, where FUSE cannot be used.
fn there(report: Result<Report>) -> Option<Result<Report>> {
    if let Err(Error::NoFuse(why)) = &report {
        println!("skipped: {why}");
        return None;
    }
    Some(report)
}

fn why_not(report: Result<Report>, says: &[&str]) {
    match report {
        Err(Error::NotTested(why)) => assert!(says.iter().all(|text| why.contains(text)), "{why}"),
        // This process is for another crash test of the same test.
        Ok(report) if report.models.is_empty() => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_fsync_is_found_and_can_be_replayed() {
    let kept = tempfile::tempdir().unwrap();
    let test = CrashTest::new()
        .setup(|folder| save(folder, "old", true))
        .run(|folder| save(folder, "new", false))
        .check(check)
        .models([Model::XfsLike])
        .keep_in(kept.path());
    let Some(report) = there(test.report()) else { return };
    let report = report.unwrap();
    assert!(!report.passed());
    let finding = &report.models[0].found.findings[0];
    assert_eq!(finding.nature, Nature::Reordered);
    let mend = finding.mend.as_ref().unwrap();
    assert_eq!(
        (mend.calls.as_slice(), mend.failed),
        (&[r#"fsync("settings.new")"#.to_owned()][..], 0)
    );
    // What the check said, without a word of the harness's before it.
    assert!(finding.output.contains("the settings are \"\""), "{}", finding.output);
    let replay = finding.replay.as_ref().unwrap();
    let log = fs::read_dir(kept.path()).unwrap().next().unwrap().unwrap().path();
    assert!(replay.starts_with(&format!("weft crash run --replay {} --check ", log.display())));
    assert!(replay.ends_with(&format!("--model xfs-like --state {}", finding.state)), "{replay}");
    assert!(report.to_string().contains(replay), "{report}");
}

#[test]
fn a_program_that_syncs_survives() {
    let test = CrashTest::new()
        .setup(|folder| save(folder, "old", true))
        .run(|folder| save(folder, "new", true))
        .check(check)
        .models(Model::ALL);
    if there(test.report()).is_none() {
        return;
    }
    // Closures may use what the test has made before; and a test may have several.
    for new in ["newer", "newest"] {
        CrashTest::new()
            .setup_command("printf old >settings")
            .run(|folder| save(folder, new, true))
            .check(|folder, _| {
                let text = fs::read_to_string(folder.join("settings")).unwrap();
                assert!(text == "old" || text == new, "{text} is not {new}");
            })
            .jobs(1)
            .assert_survives();
    }
}

/// Appends records to a log and promises each, durable or not.
fn promised_log(sync: bool) -> CrashTest<'static> {
    CrashTest::new()
        .run(move |folder| {
            let log = fs::File::create(folder.join("log")).unwrap();
            for record in 0..3_u64 {
                log.write_all_at(b"record", record * 6).unwrap();
                if sync {
                    log.sync_data().unwrap();
                    fs::File::open(folder).unwrap().sync_all().unwrap();
                }
                promise(&format!("record {record}"));
            }
        })
        .check(|folder, promises| {
            let len = fs::metadata(folder.join("log")).map_or(0, |log| log.len());
            assert!(promises.iter().zip(0..).all(|(p, i)| *p == format!("record {i}")));
            assert!(len >= 6 * promises.len() as u64, "{len} bytes for {promises:?}");
        })
        .models([Model::Posix, Model::Ext4Ordered])
}

#[test]
fn a_promise_that_is_not_durable_is_found() {
    let Some(report) = there(promised_log(false).report()) else { return };
    let report = report.unwrap();
    assert_eq!(report.promises, 3);
    assert!(!report.passed());
    let finding = &report.models[0].found.findings[0];
    assert_eq!(finding.nature, Nature::NotDurable);
    assert!(finding.headline.contains(r#"printed "weft-promise: record "#), "{}", finding.headline);
}

#[test]
fn promises_that_are_durable_pass() {
    let Some(report) = there(promised_log(true).report()) else { return };
    let report = report.unwrap();
    assert_eq!((report.promises, report.syncs), (3, 6));
    assert!(report.passed(), "{report}");
}

#[test]
fn what_tests_nothing_is_an_error() {
    let changes = || CrashTest::new().run(|folder| save(folder, "new", true)).check(check);
    let fails = |folder: &Path| fs::rename(folder.join("none"), folder.join("some"));
    let hangs = |_: &Path| std::thread::sleep(Duration::from_secs(1000));
    let cases: [(CrashTest<'_>, &[&str]); 6] = [
        (CrashTest::new().check(check), &["has no run"]),
        (changes().run(|_| ()), &["changed nothing in its folder"]),
        (changes().run(fails), &["the program failed (exit status 1)", "No such file"]),
        (changes().setup(|_| panic!("no settings")), &["the setup failed", "no settings"]),
        (
            changes().check(|_, _| panic!("it never passes")),
            &["without a power cut", "it never passes"],
        ),
        (changes().run_limit(Duration::from_millis(300)).run(hangs), &["did not end within 0.3 s"]),
    ];
    for (test, says) in cases {
        let Some(report) = there(test.report()) else { return };
        why_not(report, says);
    }
}

/// The harness ends with success if it finds no test of a name, and a test may end before it comes to
/// its crash test: neither is a check that passes.
#[test]
fn a_process_that_never_comes_to_its_function_is_no_success() {
    let test = || CrashTest::new().run_command("echo new >f").check(|_, _| ());
    let Some(report) = there(test().report()) else { return };
    assert!(report.unwrap().passed());
    let lost = test().arguments(["no_such_test", "--exact"]);
    why_not(lost.report(), &["the test ended before it came to the check of"]);
    let elsewhere = std::thread::Builder::new().spawn(|| {
        let test = CrashTest::new().run(|_| ()).check(|_, _| ());
        why_not(test.report(), &["the name of the test is not known"]);
    });
    elsewhere.unwrap().join().unwrap();
}
