//! A checksum on every block: damage is an error, never wrong bytes. It has no key, so it protects
//! against disk faults but not against tampering (`aead` does).

use std::sync::Arc;

use crate::parameters::StageInfo;
use crate::{Result, Seal, Sealer, Shape, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "guard",
    summary: "adds a BLAKE3 checksum to every block",
    parameters: &[("block", "bytes of a block: a power of two from 4K to 1M (64K)")],
    make: |p, _| {
        let block_bytes = super::aead::block_parameter(p, 64 << 10)?;
        Ok(Arc::new(Guard { block_bytes }))
    },
}];

/// The algorithm number in the header of a file.
const ALGORITHM: u8 = 1;
const CHECKSUM_BYTES: usize = 16;

#[derive(Debug)]
struct Guard {
    block_bytes: u32,
}

impl Transform for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sealed(self)
    }
}

impl Seal for Guard {
    fn stage(&self) -> &'static str {
        "guard"
    }

    fn algorithm(&self) -> u8 {
        ALGORITHM
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn overhead_bytes(&self) -> usize {
        CHECKSUM_BYTES
    }

    fn is_deterministic(&self) -> bool {
        true
    }

    fn key_id(&self) -> [u8; 16] {
        [0; 16]
    }

    fn sealer(&self, file_id: [u8; 16], _: [u8; 16]) -> Result<Box<dyn Sealer>> {
        Ok(Box::new(Checksum { file_id }))
    }
}

struct Checksum {
    file_id: [u8; 16],
}

impl Checksum {
    fn of(&self, context: u64, plain: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.file_id);
        hasher.update(&context.to_le_bytes());
        hasher.update(plain);
        let mut checksum = [0; CHECKSUM_BYTES];
        checksum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM_BYTES]);
        checksum
    }
}

impl Sealer for Checksum {
    fn seal(&self, index: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.extend_from_slice(plain);
        out.extend(self.of(index, plain));
        Ok(())
    }

    fn open(&self, index: u64, sealed: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
        let split = sealed.split_at_checked(out.len());
        let (plain, checksum) = split.ok_or("shorter than it should be")?;
        if self.of(index, plain) != checksum {
            return Err("the checksum is wrong");
        }
        out.copy_from_slice(plain);
        Ok(())
    }

    fn tag(&self, what: &[u8]) -> [u8; 16] {
        // No block has this number.
        self.of(u64::MAX, what)
    }
}
