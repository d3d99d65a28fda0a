//! Networks with branches that come together again.

use weft_testing::Rng;
use weft_transform::exec::Chain;
use weft_transform::store::{Base, Limits, MemoryBase, open};
use weft_transform::{Error, Io, Meters, Need, Result, Write};

use crate::common::{lines, network, open_base, read_all, registry};

fn stored(content: &[u8]) -> MemoryBase {
    let mut base = MemoryBase::default();
    base.current().and_then(|mut store| store.write_at(0, content)).expect("memory");
    base
}

fn seen(content: &[u8], text: &str) -> Vec<u8> {
    let mut store = open_base(&stored(content), text);
    let all = read_all(&mut *store, 100).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(store.len_bytes().expect("memory"), Some(all.len() as u64), "{text}: once read");
    all
}

#[test]
fn branches_come_together() {
    for (text, want) in [
        ("view: tee name=a (upper) | merge with=a", &b"abcdeABCDE"[..]),
        ("view: tee name=a (upper) | merge with=a by=turns unit=2", b"abABcdCDeE"),
        ("view: tee name=a (upper) | tee name=b (rot13) | merge with=b,a", b"abcdenopqrABCDE"),
        // What comes before the branch, and behind the merge, is in both.
        ("view: rot13 | tee name=a (increment) | merge with=a | upper", b"NOPQROPQRS"),
        // One within another, and two that cross.
        (
            "view: tee name=a (upper | tee name=b (rot13) | merge with=b) | merge with=a",
            b"abcdeABCDENOPQR",
        ),
        (
            "view: tee name=a (upper) | rot13 | tee name=b (increment) | merge with=a | merge with=b",
            b"nopqrABCDEopqrs",
        ),
        // The length of one is not known before all was read.
        ("view: tee name=a (hex) | upper | merge with=a", b"ABCDE6162636465"),
        ("view: tee name=a (upper) | hex | merge with=a", b"6162636465ABCDE"),
        ("view: identity | tee name=a (identity) | merge with=a by=concat", b"abcdeabcde"),
    ] {
        assert_eq!(String::from_utf8_lossy(&seen(b"abcde", text)), String::from_utf8_lossy(want));
        let canonical = network(text).to_string();
        assert_eq!(network(&canonical).to_string(), canonical);
    }
}

/// The branches of a merge are counted one by one, and the merge behind them.
#[test]
fn branches_are_counted() {
    let meters = std::sync::Arc::<Meters>::default();
    let text = "view: identity | tee name=a (hex) | upper | merge with=a | rot13";
    let network = registry().counting(meters.clone()).parse(text).expect(text);
    let base = stored(&[b'x'; 1000]);
    let mut store = open(Box::new(base), &network, &Limits::default()).expect("opens");
    assert_eq!(read_all(&mut *store, 100).expect("read").len(), 3000);
    let table = meters.table();
    let lines = table.lines().filter_map(|line| line.strip_prefix("  "));
    let bytes = lines.filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        Some((name, rest.trim_start().split_once(" bytes in ")?.0.parse::<u64>().ok()?))
    });
    let bytes: Vec<_> = bytes.collect();
    let names: Vec<_> = bytes.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["identity", "upper", "hex", "merge", "rot13"], "{table}");
    let at_least = [2000, 1000, 1000, 3000, 3000];
    assert!(bytes.iter().zip(at_least).all(|((_, got), want)| *got >= want), "{table}");
    assert_eq!(bytes[3].1, 3000, "{table}");
}

#[test]
fn what_branches_can_the_whole_can() {
    let can = |text: &str| network(text).can();
    let read_only = |exact_size, random_read| Need { exact_size, random_read, write: Write::None };
    assert_eq!(can("view: tee name=a (upper) | merge with=a"), read_only(true, true));
    assert_eq!(can("view: ~zstd | tee name=a (~lz4) | merge with=a"), read_only(true, true));
    assert_eq!(can("view: tee name=a (json) | merge with=a"), read_only(false, false));
    let writes = Need { write: Write::Rewrite, ..read_only(true, true) };
    let refused = network("view: tee name=a (rot13) | merge with=a").check(&writes);
    let refused = refused.expect_err("it is read").to_string();
    assert!(refused.contains("stage merge") && refused.contains("\"view: identity\""), "{refused}");
    // A stream can be read once.
    let refused = Chain::new(&network("view: tee name=a (rot13) | merge with=a"), Io::Read);
    let refused = refused.expect_err("it cannot run").to_string();
    assert!(refused.contains("can be read once"), "{refused}");
}

/// Any piece of the whole is what the whole has there.
#[test]
fn pieces_are_read_anywhere() -> Result<()> {
    let mut random = Rng::new(7);
    let plain = lines(&mut random, 40_000);
    let mut encoded = Vec::new();
    let mut chain = Chain::new(&network("base64"), Io::Write)?;
    let mut emit = |block: &mut [u8]| {
        encoded.extend_from_slice(block);
        Ok(())
    };
    chain.push(&mut plain.clone(), &mut emit)?;
    chain.finish(&mut emit)?;
    for unit in [1_usize, 7, 4096, 100_000] {
        let text = format!("view: tee name=a (~base64) | merge with=a by=turns unit={unit}");
        let mut want: Vec<u8> = Vec::new();
        for at in (0..encoded.len()).step_by(unit) {
            for branch in [&encoded, &plain] {
                want.extend(branch.iter().skip(at).take(unit));
            }
        }
        let base = stored(&encoded);
        let mut store = open_base(&base, &text);
        assert_eq!(store.len_bytes()?, Some(want.len() as u64));
        assert!(read_all(&mut *store, 60_000)? == want, "unit {unit}");
        for _ in 0..300 {
            let at = random.below(want.len() as u64 + 10) as usize;
            let len = random.below(9000) as usize;
            let mut buf = vec![0; len];
            let got = store.read_at(at as u64, &mut buf)?;
            let there = &want[at.min(want.len())..(at + len).min(want.len())];
            assert!(buf[..got] == *there, "unit {unit}, {len} bytes at {at}");
        }
    }
    Ok(())
}

#[test]
fn graphs_that_cannot_be_are_refused_when_they_are_made() {
    let mut doubling = "view: tee name=b0 (upper)".to_owned();
    for nr in 1..60 {
        doubling += &format!(" | tee name=b{nr} (upper) | merge with=b{}", nr - 1);
    }
    doubling += " | merge with=b59";
    for (text, says) in [
        ("view: merge with=a | tee name=a (upper)", "cycle"),
        ("view: tee name=a (upper | merge with=a)", "cycle"),
        (
            "view: tee name=a (merge with=b) | tee name=b (upper) | merge with=a",
            "cycle: \"b\" takes what this merge makes",
        ),
        ("view: tee name=a (upper) | merge with=b", "no branch is named \"b\""),
        ("view: tee name=a (upper) | rot13", "\"a\" is merged nowhere"),
        ("view: tee name=a (x) | merge with=a", "unknown stage"),
        ("view: tee name=a (upper) | tee name=a (rot13) | merge with=a", "two branches"),
        ("view: tee name=a (upper) | merge", "needs with="),
        ("view: tee name=a (upper) | merge with=a by=xor", "none of concat, turns"),
        ("view: tee name=a (upper) | merge with=a unit=4", "by=turns"),
        ("view: tee name=a (upper) | merge with=a by=turns unit=0", "from 1 to 1M"),
        ("view: tee name=a (json) | merge with=a by=turns", "\"json\" is not before all was read"),
        ("view: tee name=a (upper) | ~merge with=a", "no inverse"),
        ("tee name=a (rot13) | zstd", "in a view only"),
        ("merge with=a | zstd", "in a view only"),
        (&doubling, "laid apart"),
    ] {
        match registry().parse(text) {
            Err(e @ (Error::Parameter { .. } | Error::UnknownStage { .. })) => {
                assert!(e.to_string().contains(says), "{text}: {e}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn errors_of_a_branch_are_where_they_are_in_the_whole() {
    let plain = lines(&mut Rng::new(3), 300_000);
    let base = MemoryBase::default();
    let mut store = open_base(&base, "guard");
    store.write_at(0, &plain).and_then(|()| store.commit()).expect("memory");
    let mut raw = base.clone().current().expect("memory");
    let at = raw.len_bytes().expect("memory").expect("known") / 2;
    raw.write_at(at, b"damage").expect("memory");
    let mut store = open_base(&base, "view: ~guard | tee name=a (upper) | merge with=a");
    let mut buf = vec![0; 4096];
    assert_eq!(store.read_at(0, &mut buf).expect("whole"), 4096);
    assert_eq!(store.read_at(300_000, &mut buf).expect("whole"), 4096);
    assert_eq!(buf, plain[..4096].to_ascii_uppercase());
    let damaged = read_all(&mut *store, 4096).expect_err("damaged");
    assert!(matches!(damaged, Error::Corrupt { stage: "guard", .. }), "{damaged}");
}
