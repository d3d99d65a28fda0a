//! The owner and mode of a cell's root: when the cell is made (`ringer serve`), and later
//! (`ringer own`).

use crate::cli::ringer::{Own, Serve};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use weft::control::{control, mount_of};
use weft::ringer::mds::RootOwner;
use weft::ringer::{OwnerKind, OwnerNames};
use weft::ringer_client::ControlRequest;
use weft::ringer_client::accounts::Account;

/// A user and perhaps a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    uid: u32,
    gid: Option<u32>,
}

impl Owner {
    fn parse(text: &str) -> Result<Self, Failure> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let none = |what: &str, name: &str| {
            Failure::usage(format!(
                "{name:?} is no {what} of this machine: write USER[:GROUP], as names or numbers"
            ))
        };
        let (uid, own_gid) = match user.parse() {
            Ok(uid) => (uid, None),
            Err(_) => {
                let found = Account::of_name(OwnerKind::User, user);
                found.map(|a| (a.id, a.gid)).ok_or_else(|| none("user", user))?
            }
        };
        let gid = match group {
            None => own_gid,
            Some(group) => Some(match group.parse() {
                Ok(gid) => gid,
                Err(_) => {
                    let found = Account::of_name(OwnerKind::Group, group);
                    found.ok_or_else(|| none("group", group))?.id
                }
            }),
        };
        Ok(Self { uid, gid })
    }
}

fn mode(text: &str) -> Result<u16, Failure> {
    let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| Failure::usage(format!("{text}: write a mode such as 0755 or 1777")))
}

/// Returns the owner and mode of the root of the cell, if `serve` makes it.
pub(super) fn of_root(args: &Serve) -> Result<RootOwner, Failure> {
    let owner = args.owner.as_deref().map(Owner::parse).transpose()?;
    let own = rustix::process::getegid().as_raw();
    let (uid, gid) = match owner {
        Some(owner) => (owner.uid, owner.gid.unwrap_or(own)),
        None => (rustix::process::geteuid().as_raw(), own),
    };
    let mut names = OwnerNames::default();
    for (kind, number) in [(OwnerKind::User, uid), (OwnerKind::Group, gid)] {
        // Root is number 0 everywhere.
        if let Some(account) = Account::of_number(kind, number).filter(|_| number != 0) {
            names.add(kind, &account.name, number);
        }
    }
    Ok(RootOwner { uid, gid, perm: mode(&args.root_mode)?, names })
}

/// `ringer own`.
pub(super) fn own(out: Output, args: &Own) -> Outcome {
    let shown = args.mountpoint.display();
    let owner = args.owner.as_deref().map(Owner::parse).transpose()?;
    let perm = args.mode.as_deref().map(mode).transpose()?;
    let none = || Failure::new(format!("no cell is mounted on {shown}"));
    let (mounted, _) = mount_of(&args.mountpoint)?.ok_or_else(none)?;
    let request = ControlRequest::Own {
        uid: owner.map(|owner| owner.uid),
        gid: owner.and_then(|owner| owner.gid),
        perm: perm.map(u32::from),
    };
    let reply = control(&mounted, &request)?.ok_or_else(none)?;
    if reply.errno != 0 {
        return Err(Failure::new(format!("{shown}: {}", String::from_utf8_lossy(&reply.text.0))));
    }
    let report = serde_json::json!({
        "mountpoint": shown.to_string(),
        "uid": owner.map(|owner| owner.uid),
        "gid": owner.and_then(|owner| owner.gid),
        "mode": perm.map(|perm| format!("{perm:04o}")),
    });
    out.confirm(&report, &format!("changed the root of the cell mounted on {shown}"))?;
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_owners() {
        let of = |text: &str| Owner::parse(text).ok().map(|o| (o.uid, o.gid));
        assert_eq!(of("1000"), Some((1000, None)));
        assert_eq!(of("1000:100"), Some((1000, Some(100))));
        assert_eq!(of("root"), Some((0, Some(0))));
        assert_eq!(of("root:7"), Some((0, Some(7))));
        for bad in ["", "nobody-of-that-name", "1:", ":1", "-1", "1:nobody-of-that-name"] {
            assert_eq!(of(bad), None, "{bad}");
        }
        assert_eq!(mode("1777").ok(), Some(0o1777));
        for bad in ["", "8", "17777", "rwx"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }
}
