//! Inode numbers: one for each inode of the host, the same as long as the directory is open.
//!
//! - An inode of the device of the directory itself has the number that the host gives it.
//! - Inodes of other devices below have that number in the low 48 bits, and above it the index of
//!   the device, in the order in which devices were found; the highest bit marks them.
//! - Other inodes get a made-up number, which is remembered: those whose number has more bits, or
//!   was reused by the host while the kernel still refers to the inode before.

use std::collections::HashMap;

use rustix::fs::Statx;

use crate::Ino;

/// The first number that is not the host's.
const FOREIGN: u64 = 1 << 63;
const HOST_BITS: u32 = 48;
/// The maximum number of devices besides the first; the last slot is for made-up numbers.
const DEVICES_MAX: u64 = (1 << 14) - 1;
const MADE_UP: u64 = FOREIGN | DEVICES_MAX << HOST_BITS;

type Device = (u32, u32);

/// Device and inode number on the host.
pub(super) type Key = (u32, u32, u64);

pub(super) fn key(attributes: &Statx) -> Key {
    (attributes.stx_dev_major, attributes.stx_dev_minor, attributes.stx_ino)
}

#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The index of each device, from 0 on; 0 is that of the directory.
    devices: HashMap<Device, u64>,
    made_up: HashMap<Key, Ino>,
    next: u64,
}

impl Numbers {
    /// Returns the number of an inode of the host. The inode of the first call defines the first
    /// device.
    pub(super) fn number(&mut self, key: Key) -> Ino {
        if let Some(ino) = self.made_up.get(&key) {
            return *ino;
        }
        let count = self.devices.len() as u64;
        let device = *self.devices.entry((key.0, key.1)).or_insert(count);
        match key.2 {
            ino if device == 0 && ino < FOREIGN => Ino(ino),
            ino if (1..DEVICES_MAX).contains(&device) && ino < 1 << HOST_BITS => {
                Ino(FOREIGN | device << HOST_BITS | ino)
            }
            _ => self.make_up(key),
        }
    }

    /// Gives an inode another number from now on: its number on the host belongs to another inode.
    pub(super) fn make_up(&mut self, key: Key) -> Ino {
        self.next += 1;
        let ino = Ino(MADE_UP | self.next);
        self.made_up.insert(key, ino);
        ino
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_stay() {
        let mut numbers = Numbers::default();
        let keys: Vec<Key> = [(8, 1), (8, 2), (0, 7)]
            .into_iter()
            .flat_map(|(a, b)| {
                [2, 77, 1 << 47, 1 << 48, 1 << 62, 1 << 63, u64::MAX].map(|n| (a, b, n))
            })
            .collect();
        let first: Vec<Ino> = keys.iter().map(|key| numbers.number(*key)).collect();
        assert_eq!(first[..5], [2, 77, 1 << 47, 1 << 48, 1 << 62].map(Ino), "the host's own");
        let again: Vec<Ino> = keys.iter().rev().map(|key| numbers.number(*key)).collect();
        assert!(first.iter().rev().eq(&again));
        let mut unique = first.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), keys.len());
        let other = numbers.make_up(keys[0]);
        assert!(!first.contains(&other) && numbers.number(keys[0]) == other);
        // Archives as directories have numbers from here on.
        assert!(unique.iter().chain([&other]).all(|ino| ino.0 < 3 << 62));
    }
}
