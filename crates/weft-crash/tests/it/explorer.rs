//! A correct file system passes, each flaw is found, shrunk and replayed from its command.

use crate::toy::{Flaw, Toy};
use std::sync::Arc;
use weft_crash::{Campaign, Config, Kind, Tree, Violation, Workload, explore, replay};

fn config(flaw: Flaw) -> Config {
    Config { images: 300, ..Config::new(Arc::new(Toy(flaw))) }
}

#[test]
fn a_correct_file_system_breaks_no_promise() {
    let report = explore(&config(Flaw::None), &|_| {}).unwrap();
    let told: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    assert!(report.images >= 300 && report.workloads > 5, "{report:?}");
    assert!(report.counts.repairs > 0 && report.counts.aftermaths > 0, "{report:?}");
}

/// The first violation, which its own command must show again.
fn found(flaw: Flaw, kind: Kind) -> Violation {
    let config = Config { violations: 1, ..config(flaw) };
    let report = explore(&config, &|_| {}).unwrap();
    let violation = report.violations.into_iter().find(|v| v.faults[0].kind == kind);
    let violation = violation.unwrap_or_else(|| panic!("{flaw:?} was not found"));
    let words = violation.command.split('\'').collect::<Vec<_>>();
    let workload: Workload = words[1].parse().unwrap();
    assert_eq!(workload, violation.workload);
    let state = words[2].trim().strip_prefix("--state ").unwrap().parse().unwrap();
    let again = replay(&config, &workload, &state).unwrap();
    assert!(again.iter().any(|f| f.kind == kind), "{again:?}");
    violation
}

#[test]
fn a_missing_barrier_is_found_and_shrunk() {
    let violation = found(Flaw::NoBarrier, Kind::Mount);
    assert!(violation.workload.ops.is_empty(), "the closing sync alone shows it: {violation}");
    assert!(violation.faults[0].what.contains("checksum"), "{violation}");
}

#[test]
fn overwriting_in_place_is_found() {
    found(Flaw::InPlace, Kind::Mount);
}

#[test]
fn an_fsync_that_does_nothing_is_found() {
    let violation = found(Flaw::FsyncForgotten, Kind::Promise);
    let workload = violation.workload.to_string();
    assert!(workload.contains("fsync") || workload.contains("fdatasync"), "{workload}");
    assert!(violation.workload.ops.len() <= 3, "{workload}");
}

#[test]
fn what_the_checker_says_counts() {
    let violation = found(Flaw::WrongChecker, Kind::Damage);
    assert!(violation.to_string().contains("everything is wrong"), "{violation}");
}

#[test]
fn the_result_does_not_depend_on_threads() {
    let list: Vec<Workload> =
        weft_crash::generate::singles(Tree::Unix).into_iter().take(6).collect();
    let run = |threads| {
        let campaign = Campaign::Given(list.clone());
        let config = Config { threads, campaign, images: u64::MAX, ..config(Flaw::None) };
        let report = explore(&config, &|_| {}).unwrap();
        (report.workloads, report.states, report.images, report.counts)
    };
    assert_eq!(run(1), run(3));
}
