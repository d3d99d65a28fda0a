//! The users and groups of this machine, by name and by number.

use std::path::Path;
use std::process::Command;

use weft_ringer::OwnerKind;

/// A line of `/etc/passwd` or `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name.
    pub name: String,
    /// The number.
    pub id: u32,
    /// The group of a user.
    pub gid: Option<u32>,
}

impl Account {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
        let id = fields.nth(1)?.parse().ok()?;
        Some(Self { name, id, gid: fields.next().and_then(|gid| gid.parse().ok()) })
    }

    /// Looks up the first user or group of this machine that `is_it` accepts; `key` is the name or
    /// number for the directory services that getent(1) asks.
    fn find(kind: OwnerKind, key: &str, is_it: impl Fn(&Self) -> bool) -> Option<Self> {
        let database = match kind {
            OwnerKind::User => "passwd",
            OwnerKind::Group => "group",
        };
        let among = |text: &str| text.lines().filter_map(Self::parse).find(&is_it);
        let file = std::fs::read(Path::new("/etc").join(database)).unwrap_or_default();
        among(&String::from_utf8_lossy(&file)).or_else(|| {
            let out = Command::new("getent").arg("--").args([database, key]).output().ok()?;
            among(&String::from_utf8_lossy(&out.stdout))
        })
    }

    /// Looks up a user or group of this machine by name.
    #[must_use]
    pub fn of_name(kind: OwnerKind, name: &str) -> Option<Self> {
        Self::find(kind, name, |account| account.name == name)
    }

    /// Looks up a user or group of this machine by number.
    #[must_use]
    pub fn of_number(kind: OwnerKind, number: u32) -> Option<Self> {
        Self::find(kind, &number.to_string(), |account| account.id == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_passwd_and_group_are_read() {
        let of = |line: &str| Account::parse(line).map(|a| (a.name, a.id, a.gid));
        assert_eq!(of("ada:x:501:20:Ada:/:/bin/sh"), Some(("ada".into(), 501, Some(20))));
        assert_eq!(of("staff:x:20:ada,ben"), Some(("staff".into(), 20, None)));
        for bad in ["", "ada", "ada:x", "ada:x:y:20", ":x:1:1", "+::::::"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        let root = Account::of_name(OwnerKind::User, "root").expect("root");
        assert_eq!(Account::of_number(OwnerKind::User, root.id), Some(root));
        assert_eq!(Account::of_name(OwnerKind::User, "no such user"), None);
        assert_eq!(Account::of_name(OwnerKind::Group, "--version"), None);
    }
}
