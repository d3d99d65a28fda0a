//! `ringer init`, `invite`, `join`, `revoke`, `members` and `forget`.

use super::{UNEXPECTED, address, addresses, ask, failed};
use crate::cli::ringer::{Forget, Init, Invite, Join, Members, Revoke};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weft::net::ClientTls;
use weft::ringer::mds::Level;
use weft::ringer::{Bytes, CellId, ClientId, RnodeId};
use weft::ringer_net::pki::{self, Token};
use weft::ringer_net::{self as net, Answer, Ask, Denial};
use weft::vfs::host_file;

/// `ringer init`.
pub(super) fn init(out: Output, args: &Init) -> Outcome {
    pki::create(&args.directory, &args.host).map_err(failed)?;
    let dir = args.directory.display();
    out.confirm(
        &serde_json::json!({ "directory": dir.to_string(), "hosts": args.host }),
        &format!(
            "created a certificate authority in {dir}, with certificates for the server and for \
            the administrator"
        ),
    )?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    out.note(&format!(
        "the root of a cell belongs to the user who first serves it, with mode 0755: here user {} \
        and group {}. `ringer serve --owner` and `--root-mode` make it another's, or everyone's",
        user.as_raw(),
        group.as_raw()
    ));
    out.note("keep ca-key.pem secret: anyone with it can add members to the cell");
    Ok(DONE)
}

/// Parses `PATH:r` or `PATH:rw`.
fn grant(text: &str) -> Result<(Bytes, Level), Failure> {
    let bad = || Failure::usage(format!("{text}: write PATH:r or PATH:rw"));
    let (path, level) = text.rsplit_once(':').ok_or_else(bad)?;
    let level = match level {
        "r" => Level::Read,
        "rw" => Level::Write,
        _ => return Err(bad()),
    };
    Ok((Bytes(path.as_bytes().to_vec()), level))
}

/// `ringer invite`.
pub(super) fn invite(out: Output, args: &Invite) -> Outcome {
    let mut grants = args.subtree.iter().map(|t| grant(t)).collect::<Result<Vec<_>, _>>()?;
    if grants.is_empty() {
        let level = match (args.read_only, args.admin) {
            (true, _) => Level::Read,
            (false, true) => Level::Admin,
            (false, false) => Level::Write,
        };
        grants.push((Bytes(b"/".to_vec()), level));
    }
    let authority = args.reaching.tls_certificates.as_deref().map(|d| d.join("ca-cert.pem"));
    let authority = authority.ok_or_else(|| Failure::usage("give --tls-certificates DIR"))?;
    let authority = pki::fingerprint_in(&authority).map_err(failed)?;
    let question = Ask::Invite { grants, lasts_secs: args.expires };
    let Answer::Invited { secret } = ask(&args.reaching, &question)? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let secret: [u8; pki::TOKEN_SECRET_BYTES] =
        secret.0.try_into().map_err(|_| Failure::new(UNEXPECTED))?;
    let server = match &args.server_address {
        Some(text) => address(text)?,
        // After joining, the member can learn of the other servers.
        None => addresses(&args.reaching.server)?.swap_remove(0),
    };
    let token = Token { secret, authority, server }.to_string();
    let report = serde_json::json!({ "token": token, "expires_in_seconds": args.expires });
    out.report(&report, |to| writeln!(to, "{token}"))?;
    Ok(DONE)
}

/// `ringer join`.
pub(super) fn join(out: Output, args: &Join) -> Outcome {
    let token: Token = args.token.parse().map_err(|e: net::Error| Failure::usage(e.to_string()))?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => String::from_utf8_lossy(rustix::system::uname().nodename().to_bytes()).into_owned(),
    };
    if !pki::is_member_name(&name) {
        return Err(Failure::usage(format!(
            "invalid member name {name:?}: give --name, of letters, digits, '-', '_' and '.'"
        )));
    }
    let directory = if args.by_cell {
        join_by_cell(&token, &args.directory, &name)?
    } else {
        join_as(&token, &args.directory, &name)?;
        args.directory.clone()
    };
    let (dir, server) = (directory.display().to_string(), token.server.to_string());
    out.confirm(
        &serde_json::json!({ "member": name, "directory": dir, "server": server }),
        &format!("joined as {name}: mount {server} with --tls-certificates {dir}"),
    )?;
    Ok(DONE)
}

fn join_as(token: &Token, directory: &Path, name: &str) -> Result<(), Failure> {
    net::join(token, directory, name).map_err(|e| match e {
        net::Error::Denied(Denial::Name) => Failure::new(format!(
            "the member name '{name}' is taken, perhaps by a revoked member: give another with \
            --name (the token is still valid)"
        )),
        e => failed(e),
    })
}

/// Joins, and moves the certificates into the directory of the cell's number, which is known only
/// then.
fn join_by_cell(token: &Token, directory: &Path, name: &str) -> Result<PathBuf, Failure> {
    let joining = directory.join(format!("joining-{}", std::process::id()));
    join_as(token, &joining, name).inspect_err(|_| drop(std::fs::remove_dir(&joining)))?;
    let tls = ClientTls::mutual(&joining).map_err(failed)?;
    let kept =
        |why: String| Failure::new(format!("{why}; the new keys are in {}", joining.display()));
    let cell = match net::ask(&token.server, Some(&tls), &Ask::Status {}) {
        Ok(Answer::Status { status }) => CellId(status.cell),
        Ok(_) => return Err(kept(UNEXPECTED.into())),
        Err(e) => return Err(kept(e.to_string())),
    };
    let place = directory.join(cell.to_string());
    // An existing directory is replaced only if it is empty.
    host_file::rename(&joining, &place).map_err(|e| kept(format!("{}: {e}", place.display())))?;
    Ok(place)
}

/// `ringer revoke`.
pub(super) fn revoke(out: Output, args: &Revoke) -> Outcome {
    let name = Bytes(args.name.as_bytes().to_vec());
    let Answer::Revoked {} = ask(&args.reaching, &Ask::Revoke { name, force: args.force })? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let name = args.name.to_string_lossy();
    let text = format!("revoked {name}");
    out.confirm(&serde_json::json!({ "revoked": name }), &text)?;
    Ok(DONE)
}

/// `ringer forget`.
pub(super) fn forget(out: Output, args: &Forget) -> Outcome {
    let number = u64::from_str_radix(&args.client, 16);
    let number = number.map_err(|_| Failure::usage("not the number of a client: see `status`"))?;
    let question = Ask::Forget { client: ClientId(number) };
    let Answer::Forgotten { files } = ask(&args.reaching, &question)? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let report = serde_json::json!({ "forgotten": args.client, "files": files });
    let text =
        format!("dropped client {}, which had copies of {}", args.client, count(files, "file"));
    out.confirm(&report, &text)?;
    Ok(DONE)
}

/// A member, as JSON.
#[derive(Debug, Serialize)]
struct MemberReport {
    name: String,
    revoked: bool,
    grants: Vec<GrantReport>,
}

#[derive(Debug, Serialize)]
struct GrantReport {
    /// The inode number of the directory; 1 is the whole cell.
    inode: u64,
    level: &'static str,
}

/// `ringer members`.
pub(super) fn members(out: Output, args: &Members) -> Outcome {
    let Answer::Members { members } = ask(&args.reaching, &Ask::Members {})? else {
        return Err(Failure::new(UNEXPECTED));
    };
    let reports: Vec<MemberReport> = members
        .into_iter()
        .map(|member| MemberReport {
            name: String::from_utf8_lossy(&member.name.0).into_owned(),
            revoked: member.revoked,
            grants: member
                .grants
                .iter()
                .map(|grant| GrantReport {
                    inode: grant.dir.0,
                    level: match grant.level {
                        Level::Read => "read",
                        Level::Write => "write",
                        Level::Admin => "admin",
                    },
                })
                .collect(),
        })
        .collect();
    out.report(&reports, |to| {
        for member in &reports {
            let grants = member.grants.iter().map(|grant| match grant.inode {
                n if n == RnodeId::ROOT.0 => format!("{} everything", grant.level),
                n => format!("{} below inode {n}", grant.level),
            });
            let grants: Vec<String> = grants.collect();
            let gone = if member.revoked { "  (revoked)" } else { "" };
            writeln!(to, "{}  {}{gone}", member.name, grants.join(", "))?;
        }
        Ok(())
    })?;
    Ok(DONE)
}
