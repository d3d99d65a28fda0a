//! Messages and frames: what goes in comes out, and nothing else does.

use std::fmt::Debug;

use proptest::prelude::*;
use weft_block::Rng;
use weft_ringer::wire::frame::{Deframer, FRAME_MAX_BYTES, Frame, VERSION, frame};
use weft_ringer::wire::{FromServer, ToServer, Wire, WireError, decode, encode};
use weft_ringer::{Bytes, Rnode};

use crate::samples;

fn roundtrip<T: Wire + PartialEq + Debug>(value: &T) {
    let bytes = encode(value);
    assert_eq!(decode::<T>(&bytes).as_ref(), Ok(value));
    for cut in 0..bytes.len() {
        assert!(decode::<T>(&bytes[..cut]).is_err(), "{cut} of {} bytes", bytes.len());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(decode::<T>(&longer), Err(WireError::Trailing { len_bytes: 1 }));
}

/// Bytes have one meaning, and a meaning has one form.
fn canonical<T: Wire>(bytes: &[u8]) -> bool {
    decode::<T>(bytes).map_or(true, |value| encode(&value) == bytes)
}

proptest! {
    #[test]
    fn messages_roundtrip(seed: u64) {
        let rng = &mut Rng::new(seed);
        roundtrip(&samples::to_server(rng));
        roundtrip(&samples::from_server(rng));
        roundtrip(&samples::rnode(rng));
        roundtrip(&samples::name(rng));
    }

    #[test]
    fn damaged_messages_never_panic(seed: u64) {
        let rng = &mut Rng::new(seed);
        let mut bytes = encode(&samples::to_server(rng));
        for _ in 0..=rng.below(3) {
            let at = rng.index(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        prop_assert!(canonical::<ToServer>(&bytes));
        prop_assert!(canonical::<FromServer>(&bytes));
        prop_assert!(canonical::<Rnode>(&bytes));
    }

    #[test]
    fn numbers_have_one_encoding(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
        prop_assert!(canonical::<u64>(&bytes));
        prop_assert!(canonical::<i64>(&bytes));
        prop_assert!(canonical::<u32>(&bytes));
    }

    #[test]
    fn frames_arrive_in_any_pieces(seed: u64) {
        let rng = &mut Rng::new(seed);
        let sent: Vec<ToServer> = (0..5).map(|_| samples::to_server(rng)).collect();
        let stream: Vec<u8> =
            sent.iter().flat_map(|m| frame(m).expect("short enough")).collect();
        let (mut deframer, mut came, mut rest) = (Deframer::default(), Vec::new(), &stream[..]);
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(1 + rng.index(rest.len()));
            deframer.push(piece);
            rest = left;
            while let Some(next) = deframer.pull::<ToServer>().expect("frames") {
                came.push(next);
            }
        }
        let expected: Vec<_> = sent.into_iter().map(Frame::Message).collect();
        prop_assert_eq!(came, expected);
    }
}

fn deframe<T: Wire>(bytes: &[u8]) -> Result<Option<Frame<T>>, WireError> {
    let mut deframer = Deframer::default();
    deframer.push(bytes);
    deframer.pull()
}

#[test]
fn extreme_numbers_roundtrip() {
    for n in [0, 1, 127, 128, u64::MAX - 1, u64::MAX] {
        roundtrip(&n);
        roundtrip(&n.cast_signed());
    }
    roundtrip(&i64::MIN);
    // Eleven bytes, ten with a bit too many, and a zero at the end.
    for bad in
        [&[0xff; 11][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], &[0x80, 0]]
    {
        assert!(decode::<u64>(bad).is_err(), "{bad:x?}");
    }
}

#[test]
fn lengths_are_not_trusted() {
    // A list of many elements, none of which is there.
    let bytes = encode(&(1_u64 << 17));
    assert_eq!(decode::<Vec<u64>>(&bytes), Err(WireError::Short { what: "a list" }));
    let bytes = encode(&(1_u64 << 40));
    assert_eq!(decode::<Vec<u64>>(&bytes), Err(WireError::Invalid { what: "a list" }));
    assert!(matches!(decode::<Bytes>(&bytes), Err(WireError::Invalid { .. })));
}

#[test]
fn a_frame_that_is_too_long_is_refused_by_its_header() {
    let len = u32::try_from(FRAME_MAX_BYTES + 1).expect("fits");
    let error = deframe::<ToServer>(&len.to_le_bytes()).expect_err("too long");
    assert!(matches!(error, WireError::Oversized { .. }), "{error}");
    let long = Bytes(vec![0; FRAME_MAX_BYTES]);
    assert!(matches!(frame(&long), Err(WireError::Oversized { .. })));
}

#[test]
fn foreign_protocols_are_rejected_at_once() {
    assert_eq!(
        deframe::<ToServer>(b"GET "),
        Err(WireError::Oversized {
            len_bytes: u64::from(u32::from_le_bytes(*b"GET ")),
            max_bytes: FRAME_MAX_BYTES,
        })
    );
    // A frame of 256 bytes of which one came.
    assert_eq!(deframe::<ToServer>(&[0, 1, 0, 0, b'S']), Err(WireError::NotOurs));
    assert_eq!(deframe::<ToServer>(&[1, 0, 0, 0, 0x72]), Err(WireError::NotOurs));
    assert_eq!(deframe::<ToServer>(&[0, 1, 0, 0, 0x72]), Ok(None));
}

/// Changes the version in a frame, and its length to the bytes that are there.
fn refit(mut bytes: Vec<u8>, version: u8) -> Vec<u8> {
    bytes[5] = version;
    let len = u32::try_from(bytes.len() - 4).expect("short");
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

#[test]
fn later_versions_may_add_fields_and_variants() {
    let message = samples::to_server(&mut Rng::new(7));
    let mut more = frame(&message).expect("short");
    more.extend_from_slice(b"new field");
    let later = refit(more.clone(), VERSION + 1);
    assert_eq!(deframe(&later), Ok(Some(Frame::Message(message))));
    let same = deframe::<ToServer>(&refit(more, VERSION));
    assert_eq!(same, Err(WireError::Trailing { len_bytes: 9 }));

    let mut unknown = frame(&0_u64).expect("short");
    unknown[6] = 99;
    let what = WireError::Unknown { what: "FromServer", number: 99 };
    assert_eq!(deframe::<FromServer>(&refit(unknown.clone(), VERSION)), Err(what.clone()));
    let later = [
        refit(unknown, VERSION + 1),
        frame(&samples::from_server(&mut Rng::new(1))).expect("short"),
    ];
    let mut deframer = Deframer::default();
    deframer.push(&later.concat());
    let version = VERSION + 1;
    assert_eq!(
        deframer.pull::<FromServer>(),
        Ok(Some(Frame::FromTheFuture { version, error: what }))
    );
    assert!(matches!(deframer.pull::<FromServer>(), Ok(Some(Frame::Message(_)))));
}
