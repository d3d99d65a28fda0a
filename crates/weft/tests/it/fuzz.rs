//! The fuzz targets on seeded inputs, for `WEFT_FUZZ_SECONDS` together (3 if it is not set). A
//! failure names the seed; `WEFT_FUZZ_SEED=that` runs that input alone.

#[path = "../../../../fuzz/targets.rs"]
mod targets;
/// Writers of disk images in their wrappings.
#[path = "../../../weft-block/tests/it/wrap.rs"]
mod wrap;

use std::panic::catch_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use weft::block::Rng;

/// How many targets there are below.
const TARGETS: u64 = 16;

/// No input may take longer; most take a millisecond.
const HANG: Duration = Duration::from_secs(60);

fn replay(name: &'static str, target: fn(&[u8]), input: fn(&mut Rng) -> Vec<u8>) {
    let from_env = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let only = from_env("WEFT_FUZZ_SEED");
    let seconds = from_env("WEFT_FUZZ_SECONDS").unwrap_or(3);
    // The targets share the time.
    let time = Duration::from_millis(seconds * 1000 / TARGETS);
    let (report, reports) = channel();
    std::thread::spawn(move || {
        let began = Instant::now();
        let mut seed = only.unwrap_or(0);
        loop {
            let data = input(&mut Rng::new(seed));
            let ended = catch_unwind(|| target(&data)).is_ok();
            let last = only.is_some() || !ended || began.elapsed() >= time;
            if report.send((seed, ended, last)).is_err() || last {
                return;
            }
            seed += 1;
        }
    });
    let mut next = only.unwrap_or(0);
    loop {
        match reports.recv_timeout(HANG) {
            Ok((seed, true, false)) => next = seed + 1,
            Ok((seed, true, true)) => {
                println!("{name}: {} inputs", seed + 1);
                return;
            }
            Ok((seed, false, _)) => {
                panic!("{name} panicked: WEFT_FUZZ_SEED={seed} runs this input alone")
            }
            Err(RecvTimeoutError::Timeout) => {
                panic!("{name} hangs: WEFT_FUZZ_SEED={next} runs this input alone")
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{name}: the thread is gone"),
        }
    }
}

#[test]
fn parsers_take_any_bytes() {
    replay("parsers", targets::parsers, |rng| {
        let mut data = vec![0; rng.index(5000)];
        match rng.below(4) {
            // Noise; mostly zeroes; text; small numbers, as most fields are.
            0 => rng.fill(&mut data),
            1 => {
                for _ in 0..rng.index(40) {
                    let at = rng.index(data.len().max(1));
                    let byte = rng.next_u64().to_le_bytes()[0];
                    data.get_mut(at).into_iter().for_each(|b| *b = byte);
                }
            }
            2 => {
                let alphabet = b"abz019=:/?,.%^ \npartition=mem:order=journal";
                data.iter_mut().for_each(|b| *b = *rng.pick(alphabet).expect("letters"));
            }
            _ => data.iter_mut().for_each(|b| *b = rng.below(9).to_le_bytes()[0]),
        }
        // What looks like a superblock gets past the first check.
        if rng.chance(1, 2) && data.len() > 64 {
            data[56..58].copy_from_slice(&[0x53, 0xef]);
        }
        data
    });
}

#[test]
fn descriptions_of_sources_are_written_as_they_are_read() {
    replay("sources", targets::sources, |rng| {
        let parts = [
            "delay=",
            "record=",
            "cache=",
            "1ms",
            "0.5s",
            "99h",
            "disk.img",
            "/",
            "./",
            "a b",
            ":",
            ":",
            "?",
            "?",
            "&",
            "=",
            "partition=",
            "1",
            "0",
            "4294967296",
            "mem:",
            "64M",
            "nbd://",
            "nbd+unix:///",
            "ftp://",
            "socket=/s",
            "connections=2",
            "%3F",
            "é",
            "\u{0}",
            "::1",
        ];
        (0..rng.index(12)).flat_map(|_| rng.pick(&parts).expect("parts").bytes()).collect()
    });
}

#[test]
fn damaged_tar_streams_are_read() {
    replay("tar streams", targets::tar_streams, |rng| {
        let mut data = vec![0; 3 * (1 + rng.index(12))];
        rng.fill(&mut data);
        // Digits are what the fields are made of.
        for change in data.chunks_exact_mut(3) {
            if rng.chance(2, 3) {
                change[2] = *rng.pick(b"0123456789\n =,.-\0Sxg1").expect("letters");
            }
        }
        data
    });
}

#[test]
fn damaged_volumes_are_mounted_and_walked() {
    replay("mount and walk", targets::mount_and_walk, |rng| {
        let mut data = vec![0; 1 + 4 * (1 + rng.index(30))];
        rng.fill(&mut data);
        data
    });
}

#[test]
fn damaged_caches_are_checked_opened_and_repaired() {
    replay("cache device", targets::cache_device, |rng| {
        let mut data = vec![0; 4 * (1 + rng.index(20))];
        rng.fill(&mut data);
        data
    });
}

#[test]
fn traces_take_any_bytes() {
    replay("traces", targets::traces, |rng| {
        let mut data = vec![0; rng.index(3000)];
        match rng.below(3) {
            0 => rng.fill(&mut data),
            1 => data.iter_mut().for_each(|b| *b = rng.below(9).to_le_bytes()[0]),
            _ => {
                let alphabet = b"0123456789012345  \n\n,;.-#\tcsv:=zipf";
                data.iter_mut().for_each(|b| *b = *rng.pick(alphabet).expect("letters"));
            }
        }
        // A compressed trace; a format by name.
        if rng.chance(1, 4) && data.len() > 12 {
            data[..8].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 200, 0x41, 6]);
        } else if rng.chance(1, 4) {
            data.splice(..0, *b"csv:time-col=2,delimiter=space\n");
        }
        data
    });
}

#[cfg(feature = "wasm")]
#[test]
fn guests_do_no_harm() {
    replay("wasm_guests", targets::wasm_guests, |rng| {
        let mut data = vec![0; 40 + rng.index(200)];
        rng.fill(&mut data);
        if rng.chance(1, 4) {
            data[..8].copy_from_slice(b"\0asm\x01\0\0\0");
        }
        data
    });
}

#[test]
fn networks_take_any_stored_file() {
    replay("transforms", targets::transforms, |rng| {
        let mut data = vec![0; 1 + rng.index(3000)];
        match rng.below(3) {
            0 => rng.fill(&mut data),
            // A few changes to a sound file.
            1 => {
                data.truncate(1 + 3 * (1 + rng.index(4)));
                rng.fill(&mut data);
                data[0] |= 128;
            }
            _ => {
                let alphabet = b"az09=|~\"\\ .,:()\nviewteezstdguard*/!#none";
                data.truncate(1 + data.len() % 60);
                data.iter_mut().for_each(|b| *b = *rng.pick(alphabet).expect("letters"));
            }
        }
        // What looks like the beginning of a file gets past the first check.
        let beginnings: [&[u8]; 4] =
            [&[0x28, 0xb5, 0x2f, 0xfd], &[4, 0x22, 0x4d, 0x18], &[0x1f, 0x8b, 8], b"WEFTSEAL\x01"];
        let beginning = rng.pick(&beginnings).copied().unwrap_or_default();
        if rng.chance(1, 2) && data.len() > 20 {
            data[1..=beginning.len()].copy_from_slice(beginning);
        }
        data
    });
}

/// Mostly small numbers, as most fields of a message are.
fn message(rng: &mut Rng) -> Vec<u8> {
    let mut data = vec![0; rng.index(400)];
    let small = rng.chance(2, 3);
    data.iter_mut().for_each(|b| *b = rng.below(if small { 12 } else { 256 }).to_le_bytes()[0]);
    // Magic numbers of requests and of both kinds of replies.
    for magic in [[0x25, 0x60, 0x95, 0x13], [0x67, 0x44, 0x66, 0x98], [0x66, 0x8e, 0x33, 0xef]] {
        for _ in 0..rng.index(3) {
            let at = if rng.chance(1, 2) { 1 } else { rng.index(data.len().max(1)) };
            if let Some(place) = data.get_mut(at..at + 4) {
                place.copy_from_slice(&magic);
            }
        }
    }
    data
}

#[test]
fn nbd_clients_may_send_anything() {
    replay("NBD server", targets::nbd_server, message);
}

#[test]
fn nbd_servers_may_send_anything() {
    replay("NBD client", targets::nbd_client, message);
}

/// Changes some bytes, half of them near the beginning or the end, and cuts some off.
fn harm(rng: &mut Rng, mut data: Vec<u8>) -> Vec<u8> {
    for _ in 0..rng.index(8) {
        let near = rng.index(data.len().clamp(1, 600));
        let at = match rng.below(4) {
            0 => near,
            1 => data.len().saturating_sub(near + 1),
            _ => rng.index(data.len().max(1)),
        };
        let byte = *rng.pick(&[0, 1, 0x7f, 0x80, 0x90, 0xff]).expect("bytes");
        data.get_mut(at).into_iter().for_each(|b| *b = byte);
    }
    if rng.chance(1, 4) {
        data.truncate(rng.index(data.len().max(1)));
    }
    data
}

#[test]
fn harmed_packed_files_are_unpacked_or_refused() {
    use weft::hfs::interchange::{Format, Meta, write};
    replay("interchange", targets::interchange, |rng| {
        let (mut data, mut resource) = (vec![0; rng.index(700)], vec![0x90; rng.index(700)]);
        rng.fill(&mut data);
        rng.fill(&mut resource[..]);
        let mut meta = Meta {
            name: b"name"[..1 + rng.index(4)].to_vec(),
            data_bytes: data.len() as u64,
            resource_bytes: resource.len() as u64,
            comment: vec![b'c'; rng.index(200)],
            ..Meta::default()
        };
        rng.fill(&mut meta.finder_info);
        let format = *rng.pick(&Format::ALL).expect("formats");
        let mut packed = Vec::new();
        write(format, &meta, &mut &data[..], &mut &resource[..], &mut packed).expect("it fits");
        harm(rng, packed)
    });
}

#[test]
fn harmed_containers_are_opened_or_refused() {
    replay("containers", targets::containers, |rng| {
        let image = wrap::volume(20_480);
        let (data, resource) = wrap::ndif(&image);
        let packed = match rng.below(8) {
            0 => wrap::macbinary(1 + rng.index(3) as u8, &image, b"r"),
            1 => wrap::macbinary(2, &data, &resource),
            2 => wrap::apple(Some(&data), &resource),
            3 => wrap::disk_copy(&image, &[1; 480]),
            4 => wrap::apple_map(1 << 15, &[("Apple_HFS", 10, 40), ("Apple_Free", 50, 9)]),
            5 => wrap::udif(&image, 0x8000_0004, rng.chance(1, 2), &wrap::adc),
            6 => wrap::udif(&image, 0x8000_0005 + rng.below(4) as u32, false, &<[u8]>::to_vec),
            // The target takes the second half for a resource fork.
            _ => {
                let len = data.len().max(resource.len());
                let mut both = data;
                both.resize(len, 0);
                both.extend(&resource);
                both.resize(2 * len, 0);
                both
            }
        };
        harm(rng, packed)
    });
}

#[test]
fn damaged_mfs_volumes_are_read_and_repaired() {
    replay("mfs", targets::mfs, |rng| {
        let mut data = vec![0; 3 * (1 + rng.index(20))];
        rng.fill(&mut data);
        data
    });
}

#[test]
fn the_shared_file_service_takes_any_messages() {
    replay("ringer_wire", targets::ringer_wire, |rng| {
        // What cell mounts are made of, and queries.
        if rng.below(4) == 0 {
            let words =
                ["cell ", "server ", "\n", "0123456789abcdef", "f", "a:1", "unix:/x", " ", "tag:"];
            let words = (0..rng.index(12)).map(|_| *rng.pick(&words).expect("words"));
            return words.collect::<String>().into_bytes();
        }
        // Small numbers, as most fields are; a frame around them half of the time.
        let mut data: Vec<u8> =
            (0..rng.index(300)).map(|_| rng.below(12).to_le_bytes()[0]).collect();
        if rng.below(2) == 0 {
            let len = u32::try_from(data.len() + 2).expect("short");
            let header = [&len.to_le_bytes()[..], &[0x72, 1 + rng.below(2).to_le_bytes()[0]]];
            data.splice(..0, header.concat());
        }
        data
    });
}

#[test]
fn encrypted_blocks_and_keys_are_taken_apart_or_refused() {
    replay("ringer_wire", targets::ringer_wire, |rng| {
        let mut data = vec![0; rng.index(120)];
        rng.fill(&mut data);
        match rng.below(4) {
            0 => drop(data.splice(..0, *b"weB1")),
            1 => {
                // Shares with nobody, of the first key, and sometimes as long as they must be.
                let head = [&[0; 20][..], &[0; 18]].concat();
                data.splice(..0, [&b"weS1"[..], &head].concat());
                data.resize(if rng.below(2) == 0 { 42 + 40 } else { data.len() }, 7);
            }
            // What looks like a key, or an id.
            which => {
                let hex = b"0123456789abcdef.";
                data.iter_mut().for_each(|byte| *byte = hex[usize::from(*byte) % hex.len()]);
                let prefix: &[u8] = if which == 2 { b"weftkey1." } else { b"weftid1." };
                data.splice(..0, prefix.to_vec());
            }
        }
        data
    });
}

/// A choice, a seed, and changes of four bytes each: few, or the volume is beyond hope.
#[test]
fn damaged_hfs_volumes_are_used_and_repaired() {
    replay("hfs", targets::hfs, |rng| {
        let mut data = vec![0; 2 + 4 * rng.index(12)];
        rng.fill(&mut data);
        data
    });
}

#[test]
fn damaged_hfs_plus_volumes_are_read() {
    replay("hfs plus", targets::hfs_plus, |rng| {
        let mut data = vec![0; 1 + 3 * rng.index(12)];
        rng.fill(&mut data);
        if rng.chance(3, 4) {
            data[0] &= !1;
        }
        data
    });
}
