//! The numbers of the commands on open files, and their argument: a text.

use weft_vfs::{Error, Result};

/// Bytes of the argument and of the answer of these commands: a text, padded with zeroes.
pub const COMMAND_BYTES: usize = 4096;

/// Pushes the network of the text on the file: `_IOWR('W', 0xE0, char[4096])`. The answer's text is
/// the whole network, or the error.
pub const PUSH_COMMAND: u32 = number(0xE0);

/// Removes the network that this descriptor pushed last: `_IOWR('W', 0xE1, char[4096])`. The answer
/// is as for [`PUSH_COMMAND`].
pub const POP_COMMAND: u32 = number(0xE1);

/// Returns the current network of the file, including pushed stages: `_IOWR('W', 0xE2,
/// char[4096])`.
pub const SHOW_COMMAND: u32 = number(0xE2);

const fn number(nr: u8) -> u32 {
    rustix::ioctl::opcode::read_write::<[u8; COMMAND_BYTES]>(b'W', nr) as u32
}

/// Encodes a text as an answer, truncated to fit.
pub(super) fn encode(text: &str) -> Vec<u8> {
    let mut data = text.as_bytes()[..text.len().min(COMMAND_BYTES - 1)].to_vec();
    data.resize(COMMAND_BYTES, 0);
    data
}

/// Decodes the text of an argument.
pub(super) fn decode(data: &[u8]) -> Result<&str> {
    let end = data.iter().position(|&b| b == 0);
    let text = end.and_then(|end| data.get(..end)).ok_or(Error::Invalid("a text without end"))?;
    std::str::from_utf8(text).map_err(|_| Error::Invalid("the text of a network is UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_handed_in_and_back() {
        for text in ["", "zstd | rot13", &"x".repeat(COMMAND_BYTES - 1)] {
            let data = encode(text);
            assert_eq!((data.len(), decode(&data).expect("a text")), (COMMAND_BYTES, text));
        }
        assert_eq!(decode(&encode(&"x".repeat(9999))).expect("cut off").len(), COMMAND_BYTES - 1);
        for bad in [&[b'x'; COMMAND_BYTES][..], b"", b"\xFF\0"] {
            assert!(decode(bad).is_err());
        }
        assert_eq!(PUSH_COMMAND, 0xD000_57E0, "as documented");
    }
}
