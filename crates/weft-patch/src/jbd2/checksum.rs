//! The two checksums of the format: CRC32C without the customary inversions (checksum v2 and v3),
//! and big-endian CRC32 (the old checksum of a whole transaction).

/// Returns the CRC32C of `data` continued from the raw register `crc` (no inversion at either end),
/// as JBD2 chains it.
pub(super) fn crc32c_raw(crc: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!crc, data)
}

/// Returns the initial value of a journal's checksums: its uuid, so that blocks of another journal
/// never match.
pub(super) fn seed(uuid: &[u8; 16]) -> u32 {
    crc32c_raw(!0, uuid)
}

/// Returns the CRC32C of a block in which the 4 bytes at `field` (its own checksum) count as zero.
pub(super) fn block_csum(seed: u32, block: &[u8], field: usize) -> u32 {
    let (before, rest) = block.split_at(field.min(block.len()));
    let after = rest.get(4..).unwrap_or_default();
    crc32c_raw(crc32c_raw(crc32c_raw(seed, before), &[0; 4]), after)
}

/// Returns the checksum of one data copy: of seed, sequence number, and the bytes in the log.
pub(super) fn data_csum(seed: u32, sequence: u32, data: &[u8]) -> u32 {
    crc32c_raw(crc32c_raw(seed, &sequence.to_be_bytes()), data)
}

const CRC32_BE: [[u32; 256]; 4] = crc32_be_tables();

const fn crc32_be_tables() -> [[u32; 256]; 4] {
    let mut tables = [[0_u32; 256]; 4];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 { (crc << 1) ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut t = 1;
    while t < 4 {
        let mut i = 0;
        while i < 256 {
            let prev = tables[t - 1][i];
            tables[t][i] = (prev << 8) ^ tables[0][(prev >> 24) as usize];
            i += 1;
        }
        t += 1;
    }
    tables
}

/// Returns the big-endian CRC32 (polynomial 0x04c11db7, no inversions) of `data`, continued from
/// `crc`. A transaction's starts from `!0` and covers its descriptor blocks and data copies.
pub(super) fn crc32_be(crc: u32, data: &[u8]) -> u32 {
    let mut crc = crc;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let [a, b, c, d] = (crc ^ u32::from_be_bytes(*word)).to_be_bytes();
        crc = CRC32_BE[3][usize::from(a)]
            ^ CRC32_BE[2][usize::from(b)]
            ^ CRC32_BE[1][usize::from(c)]
            ^ CRC32_BE[0][usize::from(d)];
    }
    for byte in rest {
        let [top, ..] = crc.to_be_bytes();
        crc = (crc << 8) ^ CRC32_BE[0][usize::from(top ^ byte)];
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // CRC-32/MPEG-2 and CRC-32C of the customary check string.
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
        assert_eq!(!crc32c_raw(!0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn own_field_counts_as_zero() {
        let mut block = [7_u8; 64];
        let before = block_csum(1, &block, 20);
        block[20..24].fill(9);
        assert_eq!(block_csum(1, &block, 20), before);
        block[24] = 0;
        assert_ne!(block_csum(1, &block, 20), before);
    }
}
