//! The groups of a mount as they are listed, and labels: the forms that commands transfer.
//!
//! | bytes | of a listed group, each number as the machine has it |
//! |---|---|
//! | 0 | its number; in a request, the number after which the next one is wanted |
//! | 4 | 0 ordinary, 1 linear, 2 atomic; 0x100 released, 0x200 engaged, 0x400 others depend on it, 0x800 durable |
//! | 8 | the process that made it |
//! | 12 | how many groups it depends on |
//! | 16 | the first 16 of these |
//! | 80 | the bytes of the label |
//! | 84 | the label, 64 bytes |

use crate::commands::Kind;

/// The most bytes of a label.
pub const LABEL_BYTES_MAX: usize = 63;
/// The most dependencies that are listed of a group.
pub const BEFORES_LISTED_MAX: usize = 16;

/// Bytes of a label, and of a listed group, in a command.
const LABEL_FIELD_BYTES: usize = 64;
pub(crate) const LABEL_ARGUMENT_BYTES: usize = 8 + LABEL_FIELD_BYTES;
pub(crate) const LISTED_BYTES: usize = LABEL_AT + LABEL_FIELD_BYTES;

const BEFORES_AT: usize = 16;
const LABEL_LEN_AT: usize = BEFORES_AT + 4 * BEFORES_LISTED_MAX;
const LABEL_AT: usize = LABEL_LEN_AT + 4;

const KIND_BITS: u32 = 0xFF;
const RELEASED: u32 = 0x100;
const ENGAGED: u32 = 0x200;
const DEPENDED_ON: u32 = 0x400;
const DURABLE: u32 = 0x800;

/// A group of a mount, as [`list`](crate::list()) returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedGroup {
    /// Its number on the mount.
    pub number: u32,
    /// Its label, or nothing.
    pub label: String,
    /// Its kind.
    pub kind: Kind,
    /// The process that made it, as the mount numbers processes.
    pub pid: u32,
    /// True if it takes no more dependencies.
    pub is_released: bool,
    /// True if a thread, a process or an open file is engaged in it.
    pub is_engaged: bool,
    /// True if others depend on it, so that it takes no more changes.
    pub is_depended_on: bool,
    /// True if its changes are durable, and those of the groups that it depends on.
    pub is_durable: bool,
    /// The first [`BEFORES_LISTED_MAX`] groups that it depends on, also those that are closed by now.
    pub befores: Vec<u32>,
    /// The number of groups that it depends on.
    pub befores_count: u32,
}

/// Returns true for a text that can be a label: short, and of characters that people can read.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES_MAX && !text.chars().any(char::is_control)
}

/// Returns the argument of the command that labels a group.
pub(crate) fn encode_label(group: u32, label: &str) -> [u8; LABEL_ARGUMENT_BYTES] {
    let mut bytes = [0; LABEL_ARGUMENT_BYTES];
    put(&mut bytes, 0, group);
    put_label(&mut bytes, 4, label);
    bytes
}

/// Returns the group and the label of such an argument, if it has one.
pub(crate) fn decode_label(bytes: &[u8]) -> Option<(u32, &str)> {
    let bytes: &[u8; LABEL_ARGUMENT_BYTES] = bytes.try_into().ok()?;
    Some((word(bytes, 0), label(bytes, 4).filter(|label| is_label(label))?))
}

impl ListedGroup {
    pub(crate) fn encode(&self) -> [u8; LISTED_BYTES] {
        let mut bytes = [0; LISTED_BYTES];
        let flags = [
            (self.is_released, RELEASED),
            (self.is_engaged, ENGAGED),
            (self.is_depended_on, DEPENDED_ON),
            (self.is_durable, DURABLE),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit);
        put(&mut bytes, 0, self.number);
        put(&mut bytes, 4, self.kind.encode() | set.sum::<u32>());
        put(&mut bytes, 8, self.pid);
        put(&mut bytes, 12, self.befores_count);
        for (nr, before) in self.befores.iter().take(BEFORES_LISTED_MAX).enumerate() {
            put(&mut bytes, BEFORES_AT + 4 * nr, *before);
        }
        put_label(&mut bytes, LABEL_LEN_AT, &self.label);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; LISTED_BYTES]) -> Option<Self> {
        let state = word(bytes, 4);
        let befores_count = word(bytes, 12);
        let listed = BEFORES_LISTED_MAX.min(usize::try_from(befores_count).ok()?);
        Some(Self {
            number: word(bytes, 0),
            label: label(bytes, LABEL_LEN_AT)?.to_owned(),
            kind: Kind::decode(state & KIND_BITS)?,
            pid: word(bytes, 8),
            is_released: state & RELEASED != 0,
            is_engaged: state & ENGAGED != 0,
            is_depended_on: state & DEPENDED_ON != 0,
            is_durable: state & DURABLE != 0,
            befores: (0..listed).map(|nr| word(bytes, BEFORES_AT + 4 * nr)).collect(),
            befores_count,
        })
    }
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

/// Puts the length of a label, and behind it the label.
fn put_label(bytes: &mut [u8], at: usize, label: &str) {
    debug_assert!(label.len() <= LABEL_BYTES_MAX);
    // Below 64.
    put(bytes, at, label.len() as u32);
    bytes[at + 4..at + 4 + label.len()].copy_from_slice(label.as_bytes());
}

fn label(bytes: &[u8], at: usize) -> Option<&str> {
    let len = usize::try_from(word(bytes, at)).ok().filter(|len| *len <= LABEL_BYTES_MAX)?;
    std::str::from_utf8(&bytes[at + 4..at + 4 + len]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_group_is_transferred_whole() {
        let mut group = ListedGroup {
            number: 7,
            label: "ü".repeat(31),
            kind: Kind::Atomic,
            pid: 42,
            befores: (1..=16).collect(),
            befores_count: 1000,
            ..ListedGroup::default()
        };
        let set: [fn(&mut ListedGroup) -> &mut bool; 4] = [
            |g| &mut g.is_released,
            |g| &mut g.is_engaged,
            |g| &mut g.is_depended_on,
            |g| &mut g.is_durable,
        ];
        for flag in set {
            *flag(&mut group) = true;
            assert_eq!(ListedGroup::decode(&group.encode()).as_ref(), Some(&group));
        }
        let bytes = group.encode();
        for (at, value) in [(4, 4), (LABEL_LEN_AT, 64), (LABEL_LEN_AT, 61), (12, 3)] {
            let mut bytes = bytes;
            put(&mut bytes, at, value);
            let decoded = ListedGroup::decode(&bytes);
            assert_eq!(
                decoded.map(|g| g.befores),
                (at == 12).then(|| vec![1, 2, 3]),
                "{at} {value}"
            );
        }
    }

    #[test]
    fn a_label_is_short_readable_utf_8() {
        let longest = "x".repeat(LABEL_BYTES_MAX);
        for label in ["", "copy of the mail", "Ä", &longest] {
            assert_eq!(decode_label(&encode_label(7, label)), Some((7, label)));
        }
        assert!(!is_label(&"x".repeat(64)));
        for bad in ["\n", "a\u{1b}[2J", "\0"] {
            assert_eq!(decode_label(&encode_label(7, bad)), None, "{bad:?}");
        }
        let argument = encode_label(7, "label");
        assert_eq!(decode_label(&argument[..71]), None);
        for (at, byte) in [(4, 64), (4, 255), (8, 0xFF)] {
            let mut argument = argument;
            argument[at] = byte;
            assert_eq!(decode_label(&argument), None, "{at} {byte}");
        }
    }
}
