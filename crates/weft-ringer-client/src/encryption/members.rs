//! The membership state of this client: its own key pair, and the members whose keys it accepts.
//! Two files of the local store with mode 600:
//!
//! ```text
//! member     weftsecret1.SECRET.CHECKSUM, in hex: made when it is first asked for
//! trusted    weftid1.KEY.CHECKSUM, a line for each
//! ```
//!
//! Invariants:
//! - The pair is durable before it is given to anyone; it is never made a second time.
//! - A key is accepted from this client itself and from trusted members only: the giver of a key
//!   can read whatever is written with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use weft_ringer::Fingerprint;
use weft_ringer_net::replace;

use super::member::{MemberId, MemberSecret};
use crate::mutex::locked;

/// The maximum number of trusted members.
const TRUSTED_MAX: usize = 1024;

fn damaged(path: &Path, line: usize, e: impl std::fmt::Display) -> io::Error {
    let text = format!("line {line} of {}: {e}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn read(path: &Path) -> io::Result<Option<zeroize::Zeroizing<String>>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The key pair, and the members that this client trusts.
#[derive(Debug)]
pub(in super::super) struct Members {
    own_path: PathBuf,
    own: Mutex<Option<MemberSecret>>,
    trusted_path: PathBuf,
    trusted: Mutex<BTreeMap<Fingerprint, MemberId>>,
}

impl Members {
    /// Opens the files of a local store.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub(in super::super) fn open(own_path: PathBuf, trusted_path: PathBuf) -> io::Result<Self> {
        let own = match read(&own_path)? {
            None => None,
            Some(text) => {
                let own = MemberSecret::from_text(&text);
                Some(own.map_err(|e| damaged(&own_path, 1, e))?)
            }
        };
        let mut trusted = BTreeMap::new();
        let text = read(&trusted_path)?.unwrap_or_default();
        for (number, line) in (1..).zip(text.lines()) {
            let id: MemberId = line.parse().map_err(|e| damaged(&trusted_path, number, e))?;
            trusted.insert(id.fingerprint(), id);
        }
        let (own, trusted) = (Mutex::new(own), Mutex::new(trusted));
        Ok(Self { own_path, own, trusted_path, trusted })
    }

    /// Returns this client's pair, made if there is none.
    ///
    /// # Errors
    /// It cannot be stored, and so is not used.
    pub(super) fn own(&self) -> io::Result<MemberSecret> {
        let mut own = locked(&self.own);
        if let Some(own) = &*own {
            return Ok(own.clone());
        }
        let new = MemberSecret::generate()?;
        replace(&self.own_path, new.to_text().as_bytes())?;
        *own = Some(new.clone());
        Ok(new)
    }

    /// Returns this client's pair, if it was made already.
    pub(super) fn own_if_made(&self) -> Option<MemberSecret> {
        locked(&self.own).clone()
    }

    /// The members that this client trusts, without itself.
    pub(super) fn trusted(&self) -> Vec<MemberId> {
        locked(&self.trusted).values().copied().collect()
    }

    /// Returns the member with this fingerprint, if keys are accepted from it.
    pub(super) fn giver(&self, own: &MemberId, fingerprint: &Fingerprint) -> Option<MemberId> {
        if own.fingerprint() == *fingerprint {
            return Some(*own);
        }
        locked(&self.trusted).get(fingerprint).copied()
    }

    /// Trusts some members from now on, or no longer; durably or not at all.
    ///
    /// # Errors
    /// The list cannot be stored, or would be too long.
    pub(super) fn trust(&self, ids: &[MemberId], is_trusted: bool) -> io::Result<()> {
        let mut trusted = locked(&self.trusted);
        let mut new = trusted.clone();
        for id in ids {
            match is_trusted {
                true => drop(new.insert(id.fingerprint(), *id)),
                false => drop(new.remove(&id.fingerprint())),
            }
        }
        if new.len() > TRUSTED_MAX {
            let why = format!("cannot trust more members: {TRUSTED_MAX} is the most");
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        let mut text = String::new();
        for id in new.values() {
            let _ = writeln!(text, "{id}");
        }
        replace(&self.trusted_path, text.as_bytes())?;
        *trusted = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn key_pair_is_made_once_and_trust_is_stored() {
        let dir = tempfile::tempdir().expect("a directory");
        let (own, trusted) = (dir.path().join("member"), dir.path().join("trusted"));
        let open = || Members::open(own.clone(), trusted.clone());
        let members = open().expect("none");
        assert!(members.own_if_made().is_none());
        let id = members.own().expect("made").id();
        let other = MemberSecret::generate().expect("random bytes").id();
        assert_eq!(members.giver(&id, &id.fingerprint()), Some(id));
        assert_eq!(members.giver(&id, &other.fingerprint()), None);
        members.trust(&[other], true).expect("kept");
        members.trust(&[other], true).expect("twice");
        for path in [&own, &trusted] {
            let mode = std::fs::metadata(path).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let again = open().expect("kept");
        assert_eq!(again.own_if_made().expect("made").id(), id);
        assert_eq!(again.giver(&id, &other.fingerprint()), Some(other));
        again.trust(&[other], false).expect("kept");
        assert!(open().expect("kept").trusted().is_empty());

        std::fs::write(&trusted, format!("{other}\n{}\n", &other.to_string()[..60])).expect("room");
        let error = open().expect_err("damaged").to_string();
        assert!(error.contains("line 2") && error.contains("trusted"), "{error}");
        std::fs::remove_file(&trusted).expect("gone");
        std::fs::write(&own, &members.own().expect("kept").to_text()[..70]).expect("room");
        let error = open().expect_err("it is not made again").to_string();
        assert!(error.contains("member") && error.contains("checksum"), "{error}");
    }
}
