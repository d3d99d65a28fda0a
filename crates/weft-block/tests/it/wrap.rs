//! Writers of the containers that images come in, for tests: plain, and apart from the readers.

/// Bytes that differ from block to block, with an HFS signature where it belongs.
pub fn volume(len_bytes: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..len_bytes).map(|i| (i / 512 * 31 + i % 512 / 64 * 7) as u8).collect();
    // A third of it is zeroes, as on any disk.
    bytes[len_bytes / 3 * 2..].fill(0);
    bytes[1024..1026].copy_from_slice(b"BD");
    bytes
}

fn padded(bytes: &[u8], unit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(unit), 0);
    bytes
}

fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0_u32;
    for byte in bytes.iter().chain(&[0, 0]) {
        for bit in (0..8).rev() {
            crc = crc << 1 | u32::from(byte >> bit & 1);
            if crc & 0x1_0000 != 0 {
                crc ^= 0x1_1021;
            }
        }
    }
    crc as u16
}

pub fn macbinary(version: u8, data: &[u8], resource: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 128];
    head[1..6].copy_from_slice(b"\x04disk");
    head[65..73].copy_from_slice(b"dImgdCpy");
    head[83..87].copy_from_slice(&(data.len() as u32).to_be_bytes());
    head[87..91].copy_from_slice(&(resource.len() as u32).to_be_bytes());
    if version > 1 {
        head[122] = 127 + version;
        head[123] = 129;
        if version > 2 {
            head[102..106].copy_from_slice(b"mBIN");
        }
        let crc = crc16(&head[..124]);
        head[124..126].copy_from_slice(&crc.to_be_bytes());
    }
    [head, padded(data, 128), padded(resource, 128)].concat()
}

/// AppleSingle (or AppleDouble, if there is no data).
pub fn apple(data: Option<&[u8]>, resource: &[u8]) -> Vec<u8> {
    let magic = if data.is_some() { 0x0005_1600_u32 } else { 0x0005_1607 };
    let entries: Vec<(u32, &[u8])> =
        data.map(|d| (1, d)).into_iter().chain([(2, resource), (9, &[0; 32])]).collect();
    let mut out = [magic.to_be_bytes(), 0x0002_0000_u32.to_be_bytes()].concat();
    out.extend([0; 16]);
    out.extend((entries.len() as u16).to_be_bytes());
    let mut at = 26 + entries.len() * 12;
    for (id, content) in &entries {
        for n in [*id, at as u32, content.len() as u32] {
            out.extend(n.to_be_bytes());
        }
        at += content.len();
    }
    entries.iter().for_each(|(_, content)| out.extend(*content));
    out
}

pub fn disk_copy_sum(bytes: &[u8]) -> u32 {
    let mut sum = 0_u64;
    for word in bytes.chunks(2) {
        sum = (sum + u64::from(word[0]) * 256 + u64::from(word[1])) % (1 << 32);
        sum = sum / 2 + sum % 2 * (1 << 31);
    }
    sum as u32
}

pub fn disk_copy(data: &[u8], tags: &[u8]) -> Vec<u8> {
    let mut head = vec![0; 84];
    head[..8].copy_from_slice(b"\x07My Disk");
    let sums = [disk_copy_sum(data), disk_copy_sum(tags.get(12..).unwrap_or_default())];
    let fields = [data.len() as u32, tags.len() as u32, sums[0], sums[1]];
    head[64..80].copy_from_slice(&fields.map(u32::to_be_bytes).concat());
    head[80..84].copy_from_slice(&[1, 0x22, 1, 0]);
    [&head, data, tags].concat()
}

/// A device with an Apple partition map: entries of type, first block and blocks.
pub fn apple_map(len_bytes: usize, entries: &[(&str, u32, u32)]) -> Vec<u8> {
    let mut out = vec![0; len_bytes];
    out[..4].copy_from_slice(b"ER\x02\x00");
    for (i, (kind, start, blocks)) in entries.iter().enumerate() {
        let at = 512 * (i + 1);
        out[at..at + 2].copy_from_slice(b"PM");
        let numbers = [entries.len() as u32, *start, *blocks].map(u32::to_be_bytes).concat();
        out[at + 4..at + 16].copy_from_slice(&numbers);
        out[at + 16..at + 20].copy_from_slice(b"name");
        out[at + 48..at + 48 + kind.len()].copy_from_slice(kind.as_bytes());
    }
    out
}

/// A resource fork with resources of one type.
pub fn resource_fork(kind: &[u8; 4], resources: &[(i16, &[u8])]) -> Vec<u8> {
    let (mut data, mut references) = (Vec::new(), Vec::new());
    for (id, content) in resources {
        references.extend(id.to_be_bytes());
        references.extend([0xff, 0xff]);
        references.extend((data.len() as u32).to_be_bytes());
        references.extend([0; 4]);
        data.extend((content.len() as u32).to_be_bytes());
        data.extend(*content);
    }
    // Copies of the header and handles, then where types and names are.
    let mut map = vec![0; 24];
    map.extend(28_u16.to_be_bytes());
    map.extend((28 + 10 + references.len() as u16).to_be_bytes());
    map.extend(0_u16.to_be_bytes());
    map.extend(kind);
    map.extend((resources.len() as u16 - 1).to_be_bytes());
    map.extend(10_u16.to_be_bytes());
    map.extend(references);
    let head = [256, 256 + data.len() as u32, data.len() as u32, map.len() as u32];
    let mut out = head.map(u32::to_be_bytes).concat();
    out.resize(256, 0);
    [out, data, map].concat()
}

/// ADC: runs of one byte as copies, everything else as literals.
pub fn adc(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let run = bytes[at..].iter().take_while(|&&b| at > 0 && b == bytes[at - 1]).count();
        if run >= 4 {
            out.extend([0x40 | (run.min(67) - 4) as u8, 0, 0]);
            at += run.min(67);
        } else if run == 3 {
            out.extend([0, 0]);
            at += 3;
        } else {
            out.extend([0x80, bytes[at]]);
            at += 1;
        }
    }
    out
}

/// NDIF: the data fork and the resource fork. Chunks of 16 blocks take turns.
pub fn ndif(image: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut data = vec![0xee; 100];
    let mut map = vec![0; 128];
    map[1] = 10;
    map[4..9].copy_from_slice(b"\x04ndif");
    let sectors = (image.len() / 512) as u32;
    map[68..80].copy_from_slice(&[sectors, 16, 100].map(u32::to_be_bytes).concat());
    let mut entries = Vec::new();
    let mut entry = |sector: usize, kind: u8, at: usize, len: usize| {
        entries.extend(((sector as u32) << 8 | u32::from(kind)).to_be_bytes());
        entries.extend([at as u32, len as u32].map(u32::to_be_bytes).concat());
    };
    for (i, chunk) in image.chunks(16 * 512).enumerate() {
        let at = data.len() - 100;
        if chunk.iter().all(|&b| b == 0) {
            entry(i * 16, 0, 0, 0);
        } else if i % 2 == 0 {
            entry(i * 16, 2, at, chunk.len());
            data.extend(chunk);
        } else {
            let packed = adc(chunk);
            entry(i * 16, 0x83, at, packed.len());
            data.extend(packed);
        }
    }
    entry(sectors as usize, 0xff, 0, 0);
    map[124..128].copy_from_slice(&(entries.len() as u32 / 12).to_be_bytes());
    map.extend(entries);
    (data, resource_fork(b"bcem", &[(128, &map)]))
}

fn base64(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for (i, group) in bytes.chunks(3).enumerate() {
        if i % 12 == 0 {
            out.push_str("\n\t\t\t\t");
        }
        let bits =
            group.iter().fold(0_u32, |n, &b| n << 8 | u32::from(b)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let symbol = alphabet[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place > group.len() { '=' } else { char::from(symbol) });
        }
    }
    out
}

/// CRC-32 going on from another, bit by bit.
fn crc32(before: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!before, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

/// A checksum of UDIF: its type, its length in bits, itself.
fn put_crc32(raw: &mut [u8], at: usize, crc: u32) {
    raw[at..at + 12].copy_from_slice(&[2, 32, crc].map(u32::to_be_bytes).concat());
}

/// UDIF in chunks of 64 blocks, each packed by `pack`, as chunks of `kind`. Two block tables, as
/// if there were partitions: what is zero is free in the first, and zero in the second. With a
/// resource fork in place of a property list if `old`.
pub fn udif(image: &[u8], kind: u32, old: bool, pack: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    const CHUNK: usize = 64 * 512;
    let mut file = Vec::new();
    let (mut tables, mut sums) = (Vec::new(), Vec::new());
    let half = (image.len() / 2).next_multiple_of(CHUNK).min(image.len());
    for (first, part) in [(0, &image[..half]), (half, &image[half..])] {
        let mut table = vec![0; 204];
        table[..8].copy_from_slice(b"mish\0\0\0\x01");
        table[8..16].copy_from_slice(&(first as u64 / 512).to_be_bytes());
        table[16..24].copy_from_slice(&(part.len() as u64 / 512).to_be_bytes());
        table[32..36].copy_from_slice(&((CHUNK / 512 + 8) as u32).to_be_bytes());
        let mut count = 0_u32;
        let mut crc = 0;
        let zero = if first == 0 { 2 } else { 0 };
        let mut entry = |kind: u32, sector: u64, sectors: u64, at: u64, len: u64| {
            table.extend(kind.to_be_bytes());
            table.extend([0; 4]);
            table.extend([sector, sectors, at, len].map(u64::to_be_bytes).concat());
            count += 1;
        };
        for (i, chunk) in part.chunks(CHUNK).enumerate() {
            let (sector, sectors) = ((i * CHUNK / 512) as u64, (chunk.len() / 512) as u64);
            let at = file.len() as u64;
            let is_zero = chunk.iter().all(|&b| b == 0);
            if is_zero {
                entry(zero, sector, sectors, at, 0);
            } else {
                let packed = pack(chunk);
                entry(kind, sector, sectors, at, packed.len() as u64);
                file.extend(packed);
            }
            // Of what is free there is no checksum.
            if !(is_zero && zero == 2) {
                crc = crc32(crc, chunk);
            }
        }
        entry(0xffff_ffff, part.len() as u64 / 512, 0, file.len() as u64, 0);
        table[200..204].copy_from_slice(&count.to_be_bytes());
        put_crc32(&mut table, 64, crc);
        sums.extend(crc.to_be_bytes());
        tables.push(table);
    }
    let data_len = file.len() as u64;
    let data_crc = crc32(0, &file);
    let list = if old {
        let resources: Vec<(i16, &[u8])> = (0..).zip(tables.iter().map(|t| &t[..])).collect();
        resource_fork(b"blkx", &resources)
    } else {
        let mut xml = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<plist version=\"1.0\">\n<dict>\n\t<key>\
             resource-fork</key>\n\t<dict>\n\t\t<key>blkx</key>\n\t\t<array>\n",
        );
        for (id, table) in tables.iter().enumerate() {
            xml += &format!(
                "\t\t\t<dict>\n\t\t\t\t<key>Attributes</key>\n\t\t\t\t<string>0x0050</string>\n\
                 \t\t\t\t<key>Data</key>\n\t\t\t\t<data>{}\n\t\t\t\t</data>\n\
                 \t\t\t\t<key>ID</key>\n\t\t\t\t<string>{id}</string>\n\
                 \t\t\t\t<key>Name</key>\n\t\t\t\t<string>part {id}</string>\n\t\t\t</dict>\n",
                base64(table)
            );
        }
        // dmg2img looks for a second key.
        xml += "\t\t</array>\n\t\t<key>plst</key>\n\t\t<array/>\n\t</dict>\n</dict>\n</plist>\n";
        xml.into_bytes()
    };
    let mut trailer = vec![0; 512];
    trailer[..16].copy_from_slice(&[0x6b6f_6c79, 4, 512, 1_u32].map(u32::to_be_bytes).concat());
    trailer[32..40].copy_from_slice(&data_len.to_be_bytes());
    trailer[56..64].copy_from_slice(&[1, 1_u32].map(u32::to_be_bytes).concat());
    let at = if old { 40 } else { 216 };
    trailer[at..at + 16]
        .copy_from_slice(&[data_len, list.len() as u64].map(u64::to_be_bytes).concat());
    put_crc32(&mut trailer, 80, data_crc);
    put_crc32(&mut trailer, 352, crc32(0, &sums));
    trailer[488..492].copy_from_slice(&1_u32.to_be_bytes());
    trailer[492..500].copy_from_slice(&(image.len() as u64 / 512).to_be_bytes());
    [file, list, trailer].concat()
}
