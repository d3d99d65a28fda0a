//! An origin that cannot read or write one sector, or for a while none.

use crate::rig::{BLOCK, Rig, block, read, write};
use weft_block::{BlockDevice, Fault, Request, Rule};
use weft_cache::{CreateOptions, Mode};

/// The sector that cannot be read: the third of block 8.
const BAD: u64 = 8 * BLOCK as u64 + 1024;

fn rigs() -> impl Iterator<Item = (Mode, u32, Rig)> {
    let all = Mode::ALL.into_iter().flat_map(|mode| [4096, 65536].map(|block| (mode, block)));
    all.map(|(mode, block_bytes)| {
        let create = CreateOptions { block_bytes, ..CreateOptions::default() };
        (mode, block_bytes, Rig::with(mode, 8 << 20, 64, &create))
    })
}

/// The sectors beside a bad one can be read and written, as they can without a cache, and writing
/// the bad one mends it.
#[test]
fn one_bad_sector_makes_no_others_unusable() {
    for (mode, block_bytes, rig) in rigs() {
        let what = format!("{mode}, blocks of {block_bytes}");
        let open = rig.open();
        let bad = Rule::every(Request::Read, Fault::EIO).within(BAD..BAD + 512);
        let bad = rig.origin_disk.add(bad);
        let want = block(8, 0);
        for sector in 0..8 {
            let at = BAD / BLOCK as u64 * BLOCK as u64 + sector * 512;
            let mut got = [0; 512];
            let done = open.device.read_at(&mut got, at);
            if at == BAD {
                done.expect_err("the bad sector");
                continue;
            }
            done.unwrap_or_else(|e| panic!("{what}: sector {sector}: {e}"));
            assert!(got == want[sector as usize * 512..][..512], "{what}: sector {sector}");
        }
        let mut around = [0; BLOCK];
        open.device
            .read_at(&mut around, 8 * BLOCK as u64)
            .expect_err("it has the bad sector in it");
        assert_eq!(read(&*open.device, 7).unwrap(), block(7, 0), "{what}");
        open.device
            .write_at(&[5; 512], BAD + 512)
            .unwrap_or_else(|e| panic!("{what}: the sector behind the bad one: {e}"));
        open.device
            .write_at(&[6; 512], BAD)
            .unwrap_or_else(|e| panic!("{what}: the bad sector itself: {e}"));
        open.device.write_zeroes(BAD - 512, 512).unwrap();
        open.device.flush().unwrap();
        // The disk has put another sector in its place.
        rig.origin_disk.remove(bad);
        let mut want = block(8, 0);
        want[512..1024].fill(0);
        want[1024..1536].fill(6);
        want[1536..2048].fill(5);
        assert!(read(&*open.device, 8).unwrap() == want, "{what}");
        rig.cut(open);
        let open = rig.open();
        assert!(read(&*open.device, 8).unwrap() == want, "{what}: after a power cut");
        open.device.write_back_all().unwrap();
        assert!(rig.durable_origin_block(8) == want, "{what}: at the origin");
    }
}

/// The pause between attempts ends with the first write-back that works, whoever asked for it.
#[test]
fn write_back_goes_on_in_time_once_the_origin_is_well() {
    let mut rig = Rig::new(Mode::WriteBack, 8 << 20, 64);
    rig.options.max_dirty_age_ms = 1000;
    let open = rig.open();
    write(&*open.device, 8, 1).unwrap();
    open.device.flush().unwrap();
    rig.origin_disk.add(Rule::every(Request::Write, Fault::EIO));
    for _ in 0..8 {
        rig.pass_ms(&open, 5000);
    }
    assert!(open.cache.stats().dirty_bytes > 0);
    rig.origin_disk.clear();
    open.device.write_back_all().unwrap();
    assert_eq!(open.cache.stats().dirty_bytes, 0);
    write(&*open.device, 9, 1).unwrap();
    open.device.flush().unwrap();
    rig.pass_ms(&open, 3000);
    assert_eq!(open.cache.stats().dirty_bytes, 0, "3 s later, with a limit of 1 s");
    assert_eq!(rig.durable_origin_block(9), block(9, 1));
}
