//! Recognises the format of a device by its content, never by its name.
//!
//! Only magic numbers are read: the format's own crate finds out whether a volume is sound and
//! whether its features are supported. Formats that weft cannot read are named all the same, so
//! that an error can say "looks like an XFS volume" instead of "bad magic".

use weft_block::BlockDevice;

/// The format that was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// ext2 or a descendant; its feature words decide whether weft can open it.
    Ext,
    /// HFS.
    Hfs,
    /// HFS Plus or HFSX, by itself or wrapped in an HFS volume.
    HfsPlus {
        /// Whether it is wrapped in an HFS volume.
        wrapped: bool,
    },
    /// MFS, of the first Macintosh.
    Mfs,
    /// No format: the device is empty, or has zeroes where any format has its marks.
    Nothing,
    /// A format that weft does not read, in words.
    Other(String),
}

/// The magic bytes at the beginning of a cache.
const CACHE_MAGIC: &[u8] = b"weftCACH";

/// The marks of a format that weft opens.
struct Marks {
    format: Format,
    /// The format in words that fit behind "it looks like".
    words: &'static str,
    /// Returns true if a device with this beginning holds such a volume.
    is_at: fn(&Head<'_>) -> bool,
}

/// The formats that weft opens, in the order in which they are tried.
static VOLUMES: [Marks; 5] = [
    Marks {
        format: Format::Ext,
        words: "an ext2, ext3 or ext4 volume",
        // ext2.h: `s_magic` at 56 in the superblock at 1024.
        is_at: |head| head.has(1080, &[0x53, 0xef]),
    },
    Marks {
        format: Format::HfsPlus { wrapped: true },
        words: "an HFS Plus volume in its HFS wrapper",
        // Technical Note TN1150: drEmbedSigWord at 124 in the MDB.
        is_at: |head| {
            head.be16(1024) == 0x4244
                && head.has_macintosh_blocks()
                && is_hfs_plus(head.be16(1024 + 124))
        },
    },
    Marks {
        format: Format::Hfs,
        words: "an HFS volume",
        // Inside Macintosh: Files, chapter 2 (MDB): the name is 1 to 27 bytes long.
        is_at: |head| {
            head.be16(1024) == 0x4244
                && head.has_macintosh_blocks()
                && head.byte(1024 + 36).is_some_and(|len| (1..=27).contains(&len))
        },
    },
    Marks {
        format: Format::Mfs,
        words: "an MFS volume",
        // Inside Macintosh II, page 119.
        is_at: |head| head.be16(1024) == 0xd2d7 && head.has_macintosh_blocks(),
    },
    Marks {
        format: Format::HfsPlus { wrapped: false },
        words: "an HFS Plus volume",
        // Technical Note TN1150: blockSize at 40 in the volume header.
        is_at: |head| {
            let block_bytes = head.be32(1024 + 40);
            is_hfs_plus(head.be16(1024)) && block_bytes.is_power_of_two() && block_bytes >= 512
        },
    },
];

/// The signatures of HFS Plus (`H+`) and HFSX (`HX`).
fn is_hfs_plus(signature: u16) -> bool {
    matches!(signature, 0x482b | 0x4858)
}

/// Magic numbers of common formats that weft does not read: offset, bytes, name.
const OTHERS: &[(usize, &[u8], &str)] = &[
    (0, b"XFSB", "an XFS volume"),
    (0x10040, b"_BHRfS_M", "a Btrfs volume"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0, b"hsqs", "a SquashFS image"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS image"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS volume"),
    (3, b"NTFS    ", "an NTFS volume"),
    (3, b"EXFAT   ", "an exFAT volume"),
    (82, b"FAT32", "a FAT32 volume"),
    (54, b"FAT1", "a FAT volume"),
    (0x255c, &[0x19, 0x01, 0x54, 0x19], "a UFS2 volume (little-endian)"),
    (0x1055c, &[0x19, 0x01, 0x54, 0x19], "a UFS2 volume"),
    (0x255c, &[0x54, 0x19, 0x01, 0x00], "a UFS1 volume"),
    (0, CACHE_MAGIC, "a cache of weft; weft cache info shows it"),
    (0, b"LUKS\xba\xbe", "a LUKS-encrypted volume; open it with cryptsetup first"),
    (536, b"LVM2 001", "an LVM physical volume; give a logical volume of it"),
    (4086, b"SWAPSPACE2", "a swap area"),
    (0, b"QFI\xfb", "a QCOW2 container; convert it first: qemu-img convert -O raw"),
    (0, b"KDMV", "a VMDK container; convert it first: qemu-img convert -O raw"),
    (0, b"conectix", "a VHD container; convert it first: qemu-img convert -O raw"),
    (0, b"vhdxfile", "a VHDX container; convert it first: qemu-img convert -O raw"),
    (0, &[0x1f, 0x8b], "gzip-compressed data; decompress it first"),
    (0, b"\xfd7zXZ\0", "xz-compressed data; decompress it first"),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], "zstd-compressed data; decompress it first"),
    (0, b"BZh", "bzip2-compressed data; decompress it first"),
    (257, b"ustar", "a tar archive; weft import puts one into a volume"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x7fELF", "a program"),
    (0, b"WOZ1", "a WOZ image of an Apple II floppy (CiderPress2 reads those)"),
    (0, b"WOZ2", "a WOZ image of an Apple II floppy (CiderPress2 reads those)"),
    (0, b"MOOF", "a MOOF image, the flux of a Macintosh floppy (Applesauce converts those)"),
    (0, b"2IMG", "a 2IMG image in another order than that of ProDOS (CiderPress2 reads those)"),
    (
        0,
        &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        "raw sectors of a CD, 2352 bytes each (BIN/CUE); convert it first: bchunk IMAGE.bin IMAGE.cue NAME",
    ),
    (512, b"EFI PART", "a disk with a GPT; name a partition: IMAGE?partition=1"),
    (512, b"PM", "a disk with an Apple partition map; name a partition: IMAGE?partition=1"),
];

/// The number of bytes read from the beginning of a device: DOS 3.3 has its marks deepest.
const HEAD_BYTES: usize = 0x11100;

/// Recognises the format of a device by its beginning.
///
/// # Errors
/// Those of reading the device.
pub fn recognise(device: &dyn BlockDevice) -> Result<Format, weft_block::Error> {
    let len = device.geometry().len_bytes;
    let mut head = vec![0; HEAD_BYTES.min(usize::try_from(len).unwrap_or(HEAD_BYTES))];
    device.read_at(&mut head, 0)?;
    if head.starts_with(CACHE_MAGIC) {
        return Ok(Format::Other(cache(device)));
    }
    let format = recognise_bytes(&head, len);
    let unknown = match &format {
        Format::Nothing => true,
        Format::Other(saw) => saw.starts_with(UNKNOWN),
        _ => false,
    };
    // The header of a volume may be lost, and its copy intact.
    Ok(if unknown && weft_hfs::has_copy_of_header(device) { Format::Hfs } else { format })
}

/// The beginning of the words for a format that is not known.
const UNKNOWN: &str = "an unknown format";

/// Describes a cache: its size, its sources, and the data that only the cache holds.
fn cache(device: &dyn BlockDevice) -> String {
    let sb = match weft_cache::info(device) {
        Ok(sb) => sb,
        Err(e) => return format!("a damaged cache of weft ({e}); try weft cache repair"),
    };
    let sources: Vec<String> = sb
        .origins
        .iter()
        .flatten()
        .filter(|entry| !entry.forgetting)
        .map(|entry| format!("'{}' ({})", entry.id.label, size(entry.id.len_bytes)))
        .collect();
    let of = if sources.is_empty() { "no source yet".to_owned() } else { sources.join(" and ") };
    let dirty = match weft_cache::check(device, false) {
        Ok(report) if report.dirty_bytes > 0 => format!(
            ", and holds {} that its source does not have: weft cache flush writes it there",
            size(report.dirty_bytes)
        ),
        _ => String::new(),
    };
    format!("a cache of weft of {}, for {of}{dirty}", size(sb.len_bytes))
}

/// Formats a length for messages.
fn size(len_bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = UNITS.iter().enumerate().rev().find(|(n, _)| len_bytes >> (10 * n) > 0);
    let (n, name) = unit.unwrap_or((0, &UNITS[0]));
    if len_bytes.is_multiple_of(1 << (10 * n)) {
        format!("{} {name}", len_bytes >> (10 * n))
    } else {
        format!("{:.1} {name}", len_bytes as f64 / (1_u64 << (10 * n)) as f64)
    }
}

/// Recognises the beginning of a volume that is `len_bytes` long.
#[must_use]
pub fn recognise_bytes(head: &[u8], len_bytes: u64) -> Format {
    let head = Head(head);
    if let Some(volume) = VOLUMES.iter().find(|volume| (volume.is_at)(&head)) {
        return volume.format.clone();
    }
    if let Some((_, _, name)) = OTHERS.iter().find(|(at, magic, _)| head.has(*at, magic)) {
        return Format::Other((*name).to_owned());
    }
    if let Some(name) = apple_floppy(&head, len_bytes) {
        return Format::Other(name.to_owned());
    }
    // A FAT boot sector ends the same way as an MBR, so it is looked for first, above.
    if head.has(510, &[0x55, 0xaa]) {
        return Format::Other("a disk with an MBR; name a partition: IMAGE?partition=1".into());
    }
    if len_bytes == 0 || head.0.iter().all(|b| *b == 0) {
        return Format::Nothing;
    }
    let first: Vec<String> = head.0.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Format::Other(format!("{UNKNOWN} (its first bytes are {})", first.join(" ")))
}

/// Names the formats around old Macintoshes that have more marks than one, each of which could be
/// there by chance.
fn apple_floppy(head: &Head<'_>, len_bytes: u64) -> Option<&'static str> {
    let has = |marks: &[(usize, u8)]| marks.iter().all(|(at, byte)| head.byte(*at) == Some(*byte));
    // ProDOS 8 Technical Reference, B.2: the key block of the volume directory.
    let directory = head.byte(1028).is_some_and(|kind| kind >> 4 == 0xf && kind & 0xf > 0);
    if directory && has(&[(1024, 0), (1025, 0), (1059, 0x27), (1060, 0x0d)]) {
        return Some("a ProDOS volume (CiderPress2 reads those)");
    }
    // Beneath Apple DOS, chapter 4: the VTOC in sector 0 of track 17.
    let vtoc = [(0x11001, 17), (0x11003, 3), (0x11027, 122), (0x11034, 35), (0x11035, 16)];
    if len_bytes == 143_360 && has(&vtoc) {
        return Some("a DOS 3.3 floppy of an Apple II (CiderPress2 reads those)");
    }
    // DART's header: compression, kind of disk, its length in KiB; then lengths of pieces.
    let kind = [1, 2, 3, 16, 17, 18].iter().any(|kind| head.byte(1) == Some(*kind));
    let is_dart = head.byte(0).is_some_and(|how| how <= 2)
        && kind
        && matches!(head.be16(2), 400 | 720 | 800 | 1440)
        && head.be16(4) != 0
        && len_bytes > 84;
    is_dart.then_some("a DART image of a floppy (CiderPress2 reads those)")
}

/// The beginning of a device.
struct Head<'a>(&'a [u8]);

impl Head<'_> {
    /// Reports whether `magic` is at byte `at`.
    fn has(&self, at: usize, magic: &[u8]) -> bool {
        self.0.get(at..at + magic.len()) == Some(magic)
    }

    /// The byte at `at`; `None` past the end.
    fn byte(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// The big-endian number at byte `at`; 0 past the end.
    fn be16(&self, at: usize) -> u16 {
        self.0.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
    }

    /// The big-endian number at byte `at`; 0 past the end.
    fn be32(&self, at: usize) -> u32 {
        u32::from(self.be16(at)) << 16 | u32::from(self.be16(at + 2))
    }

    /// Reports whether the block at 1024 counts allocation blocks as HFS and MFS do, of a length
    /// that there can be: their signatures, of two bytes, could be there by chance. Both have the
    /// count (18) and the length (20) in one place.
    fn has_macintosh_blocks(&self) -> bool {
        let block_bytes = self.be32(1024 + 20);
        self.be16(1024 + 18) != 0 && block_bytes != 0 && block_bytes.is_multiple_of(512)
    }
}

impl Format {
    /// Returns true if weft can open a volume of this format.
    #[must_use]
    pub fn is_volume(&self) -> bool {
        self.marks().is_some()
    }

    /// The format in words that fit behind "it looks like".
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Nothing => "nothing at all: it is empty or begins with zeroes".into(),
            Self::Other(saw) => saw.clone(),
            volume => volume.marks().map_or("a volume", |marks| marks.words).into(),
        }
    }

    fn marks(&self) -> Option<&'static Marks> {
        VOLUMES.iter().find(|volume| volume.format == *self)
    }

    /// The error for `source`, which has this format instead of the one that was wanted.
    pub(crate) fn refused(self, source: &str) -> crate::Error {
        crate::Error::Unrecognised { image: source.to_owned(), saw: self.words() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext_is_recognised_by_content() {
        let mut head = vec![0; 4096];
        head[1080] = 0x53;
        head[1081] = 0xef;
        assert_eq!(recognise_bytes(&head, 4096), Format::Ext);
    }

    #[test]
    fn macintosh_volumes_are_told_apart() {
        let volume = |signature: &[u8], at_124: &[u8]| {
            let mut head = vec![0; 4096];
            head[1024..1026].copy_from_slice(signature);
            head[1024 + 18..1024 + 24].copy_from_slice(&[1, 0, 0, 0, 2, 0]);
            head[1024 + 36] = 4;
            head[1024 + 124..][..at_124.len()].copy_from_slice(at_124);
            recognise_bytes(&head, 4096)
        };
        assert_eq!(volume(b"BD", b""), Format::Hfs);
        assert_eq!(volume(b"BD", b"H+"), Format::HfsPlus { wrapped: true });
        assert_eq!(volume(b"\xd2\xd7", b""), Format::Mfs);
        assert!(matches!(volume(b"H+", b""), Format::Other(_)), "allocation blocks of no bytes");
        let mut chance = vec![0xff; 4096];
        chance[1024..1026].copy_from_slice(b"BD");
        assert!(matches!(recognise_bytes(&chance, 4096), Format::Other(_)));
    }

    #[test]
    fn every_other_magic_is_named() {
        for (at, magic, name) in OTHERS {
            let mut head = vec![0; HEAD_BYTES];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(recognise_bytes(&head, 1 << 20), Format::Other((*name).to_owned()));
        }
    }

    #[test]
    fn images_of_other_apples_are_named() {
        for (magic, word) in [
            (&b"WOZ1"[..], "WOZ"),
            (b"WOZ2", "WOZ"),
            (b"MOOF", "MOOF"),
            (b"2IMG", "2IMG"),
            (b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00", "BIN/CUE"),
        ] {
            let mut head = vec![0; HEAD_BYTES];
            head[..magic.len()].copy_from_slice(magic);
            let words = recognise_bytes(&head, 1 << 20).words();
            assert!(words.contains(word) && !words.starts_with(UNKNOWN), "{word}: {words}");
        }
    }

    #[test]
    fn floppies_of_other_apples_are_named() {
        let named = |len: u64, marks: &[(usize, u8)]| {
            let mut head = vec![0; HEAD_BYTES];
            marks.iter().for_each(|(at, byte)| head[*at] = *byte);
            recognise_bytes(&head, len).words()
        };
        let prodos = [(0, 1), (1028, 0xf5), (1059, 0x27), (1060, 0x0d)];
        assert!(named(819_200, &prodos).contains("ProDOS"));
        assert!(!named(819_200, &prodos[..3]).contains("ProDOS"));
        let dos =
            [(0, 1), (0x11001, 17), (0x11003, 3), (0x11027, 122), (0x11034, 35), (0x11035, 16)];
        assert!(named(143_360, &dos).contains("DOS 3.3"));
        assert!(!named(800_000, &dos).contains("DOS 3.3"));
        let dart = [(0, 1), (1, 1), (2, 3), (3, 0x20), (4, 9)];
        assert!(named(300_000, &dart).contains("DART"));
        assert!(named(300_000, &dart[..4]).starts_with(UNKNOWN));
    }

    #[test]
    fn short_and_empty_heads_are_answered() {
        for len in [0_usize, 1, 511, 1023, 1081] {
            assert_eq!(recognise_bytes(&vec![0; len], len as u64), Format::Nothing);
        }
        let Format::Other(saw) = recognise_bytes(b"\x01\x02hello", 7) else { panic!() };
        assert!(saw.contains("01 02 68"), "{saw}");
    }
}
