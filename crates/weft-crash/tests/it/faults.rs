//! A device that fails while a workload runs, and then the power goes: what fsync said is durable
//! is there, and the volume is as consistent as after any other crash.

use weft_block::{Event, Fault, Request, Rng, Rule};
use weft_crash::judge::{Depth, Judge};
use weft_crash::record::{prepare, record, record_failing};
use weft_crash::states::epochs;
use weft_crash::{Bounds, Ext2Target, Target, Tree, generate};
use weft_patch::{JournalMode, Policy};

/// The ways to fail the `n`th request: once, or from then on.
fn rules(n: u64, flush: bool) -> Vec<Rule> {
    let on = if flush { Request::Flush } else { Request::Write };
    let from_then_on = |fault| Rule { times: None, ..Rule::nth(on, n, fault) };
    let mut rules = vec![Rule::nth(on, n, Fault::EIO), from_then_on(Fault::EIO)];
    if !flush {
        rules.push(Rule::nth(on, n, Fault::Short(512)));
        rules.push(from_then_on(Fault::ENOSPC));
    }
    rules
}

/// Returns how many images were judged and how many operations failed.
fn check(policy: Policy, workloads: usize) -> (usize, usize) {
    let target = Ext2Target::new(policy);
    let setup = prepare(&target, &generate::setup(Tree::Unix)).unwrap();
    let mut judge = Judge::new(&target).unwrap();
    let bounds = Bounds { all_subsets_of: 2, samples: 2, tears: 0, states: 5 };
    let (mut images, mut failed) = (0, 0);
    let mut told = String::new();
    for workload in generate::chains(Tree::Unix).iter().take(workloads) {
        let healthy = record(&target, &setup, workload).unwrap();
        let count = |is: fn(&Event) -> bool| healthy.events.iter().filter(|e| is(e)).count() as u64;
        let writes = count(|e| matches!(e, Event::Write { .. }));
        let flushes = count(|e| matches!(e, Event::Flush { .. }));
        let all = (1..=writes).map(|n| (n, false));
        for (n, flush) in all.chain((1..=flushes).map(|n| (n, true))) {
            for rule in rules(n, flush) {
                let (what, passes) = (format!("{rule:?}"), rule.times == Some(1));
                let (run, fired) = record_failing(&target, &setup, workload, rule).unwrap();
                failed += run.history.failed.len();
                // The first sync may tell of the fault; nothing may be left of it then.
                let last = run.history.ops.len() - 1;
                let again = passes && run.history.failed.contains(&last);
                assert!(!again, "{what}: '{workload}': the second sync failed as well");
                if fired == 0 {
                    continue;
                }
                let epochs = epochs(&run.base, &run.events, 1024).unwrap();
                let mut rng = Rng::new(n);
                // What is left at the end, and at one moment before.
                for i in [rng.index(epochs.len()), epochs.len() - 1] {
                    for state in epochs[i].states(i, bounds, &mut rng) {
                        images += 1;
                        let depth = Depth {
                            e2fsck: images % 8 == 0,
                            repair: images % 16 == 0,
                            aftermath: images % 16 == 8,
                        };
                        let image = epochs[i].image(&state).unwrap();
                        let (mut faults, observed) = judge.image(&image, &run, depth).unwrap();
                        faults.extend(judge.promises(&observed, &run, &state));
                        for fault in faults {
                            told += &format!(
                                "{what}: '{workload}' {state}: {}: {}\n  failed: {:?}\n",
                                fault.kind, fault.what, run.history.failed
                            );
                        }
                    }
                }
            }
        }
    }
    let lines: Vec<&str> = told.lines().take(20).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    println!("{}: {images} images, {failed} operations failed", target.options());
    (images, failed)
}

#[test]
fn soft_updates_on_a_failing_device() {
    let (images, failed) = check(Policy::Soft, usize::MAX);
    assert!(images > 1000 && failed > 100, "{images} {failed}");
}

#[test]
fn a_journal_on_a_failing_device() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let (images, failed) = check(Policy::Journal(mode), 3);
        assert!(images > 200 && failed > 20, "{images} {failed}");
    }
}
