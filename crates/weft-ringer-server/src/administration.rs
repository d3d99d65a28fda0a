//! Requests of administrators: invitations, members and their revocation, clients dropped
//! permanently, backups of the cell.

use weft_ringer::Bytes;
use weft_ringer::mds::{Level, sole_holders};
use weft_ringer::store::Revision;
use weft_ringer_net::pki::{PUBLIC_KEY_BYTES, TOKEN_SECRET_BYTES, secret_hash};
use weft_ringer_net::{Answer, Ask, Denial, Error, Result, fill_random, wall};

use super::copies;
use super::dispatch::Dispatcher;
use super::members::{self, Members};

impl Dispatcher {
    /// Makes a member by an invitation.
    pub(super) fn enroll(&mut self, ask: &Ask) -> Result<Answer> {
        let Ask::Enroll { secret, public_key, name } = ask else {
            return Ok(Answer::refused("protocol error: not a join request"));
        };
        let (Some(authority), Some(members)) = (&self.authority, &mut self.members) else {
            return Ok(Answer::Denied { denial: Denial::NoAuthority });
        };
        if secret.0.len() != TOKEN_SECRET_BYTES || public_key.0.len() != PUBLIC_KEY_BYTES {
            return Ok(Answer::refused("protocol error: secret or public key of wrong length"));
        }
        let (secret, name) = (secret_hash(&secret.0), String::from_utf8_lossy(&name.0));
        let looked = members.look(&*self.store, &secret, &name, wall().secs);
        let invitation = match looked? {
            Ok(invitation) => invitation,
            Err(denial) => {
                tracing::warn!("refused to let {name:?} join: {denial}");
                return Ok(Answer::Denied { denial });
            }
        };
        let (chain, certificate) = authority.admit(&name, &public_key.0)?;
        let enrolled = members.enroll(&mut *self.store, &secret, &name, invitation, certificate);
        enrolled?;
        tracing::info!("member {name} joined");
        Ok(Answer::Enrolled {
            chain: Bytes(chain.into_bytes()),
            authority: Bytes(authority.certificate().as_bytes().to_vec()),
        })
    }

    /// Handles a request that needs an administrator of the cell.
    pub(super) fn administrate(&mut self, number: u64, ask: &Ask) -> Result<Answer> {
        if self.sessions.access_of(number).everywhere() != Some(Level::Admin) {
            return Ok(Answer::Denied { denial: Denial::NotAdmin });
        }
        if let Ask::Forget { client } = ask {
            let forgotten = self.mds.forget_client(&mut *self.store, *client);
            let had_seen_later = self.rollback.forget_client(&mut *self.store, *client);
            let had_seen_later = had_seen_later?;
            return Ok(match forgotten? {
                Some(files) => Answer::Forgotten { files },
                None if had_seen_later => Answer::Forgotten { files: 0 },
                None => Answer::refused(
                    "cannot drop the client: it is connected, or its epoch has not ended",
                ),
            });
        }
        if let Ask::Leases { limit } = ask {
            return self.list_leases(*limit).map_err(Error::from);
        }
        let copied = match ask {
            Ask::Copy { after } => Some(copies::page(&*self.store, &after.0)),
            Ask::ChangedSince { after } => Some(copies::changed(&*self.store, Revision(*after))),
            _ => None,
        };
        if let Some(answer) = copied {
            return answer.map_err(Error::from);
        }
        if let Some(answer) = self.about_archives(ask)? {
            return Ok(answer);
        }
        let Some(members) = &mut self.members else {
            return Ok(Answer::Denied { denial: Denial::NoAuthority });
        };
        match ask {
            Ask::Invite { grants, lasts_secs } => {
                let access = match members::access(&*self.store, grants) {
                    Ok(Ok(access)) => access,
                    Ok(Err(why)) => return Ok(Answer::refused(&why)),
                    Err(e) => return Err(e.into()),
                };
                let mut secret = vec![0; TOKEN_SECRET_BYTES];
                fill_random(&mut secret).map_err(|e| Error::io("random numbers", e))?;
                let lasts = i64::try_from(*lasts_secs).unwrap_or(i64::MAX);
                let until = wall().secs.saturating_add(lasts);
                let hash = secret_hash(&secret);
                let kept = Members::invite(&mut *self.store, &hash, access, until);
                kept?;
                Ok(Answer::Invited { secret: Bytes(secret) })
            }
            Ask::Revoke { name, force } => {
                let name = String::from_utf8_lossy(&name.0);
                let of = members.certificate_of(&name).map(|c| self.stores.of_certificate(c));
                if let Some(clients) = of.filter(|clients| !force && !clients.is_empty()) {
                    let (files, paths) = sole_holders(&*self.store, &clients)?;
                    if files > 0 {
                        let paths: Vec<_> =
                            paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
                        return Ok(Answer::refused(&format!(
                            "not revoked: of {files} files only clients of {name} have the content \
                            (such as {}). Nobody can read them once these clients have ended. Have \
                            others keep copies first (`ringer pin` on another mount, or a policy \
                            with --copies or --archive); or revoke with --force",
                            paths.join(", ")
                        )));
                    }
                }
                let revoked = members.revoke(&mut *self.store, &name);
                let Some(certificate) = revoked? else {
                    return Ok(Answer::refused("no such member"));
                };
                tracing::info!("revoked member {name}");
                self.sessions.hang_up_on(certificate);
                self.tell_revoked();
                Ok(Answer::Revoked {})
            }
            Ask::Members {} => Ok(Answer::Members { members: members.list() }),
            _ => Ok(Answer::refused("protocol error: not a request of an administrator")),
        }
    }
}
