//! The names of a directory, as they are told to clients under a lease on it.
//!
//! A client often sends its question about names together with the request for the lease, to save a
//! round trip. Such a question waits here until the lease is granted, which may need recalls from
//! other clients.
//!
//! Invariant: a question waits only while its client waits for the lease, or until another question
//! finds that it does not.

use super::{Mds, ToClient, records};
use crate::error::Refusal;
use crate::rnode::{Dirent, Name};
use crate::store::{Store, StoreResult};
use crate::types::{ClientId, Mode, Moment, RequestId, RnodeId};
use crate::wire::{Entry, Listed, Reply, RequestBody};

/// Entries in one part of a listing.
const LISTING_MAX: usize = 1000;
/// The most waiting questions; a client that asks more is told that it has no lease, and asks again
/// when it has.
const WAITING_MAX: usize = 4096;

/// A question about names that waits for a lease.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) client: ClientId,
    request: RequestId,
    dir: RnodeId,
    body: RequestBody,
}

impl Mds {
    /// Answers [`RequestBody::Lookup`], [`RequestBody::List`] and [`RequestBody::AcquireNamed`].
    pub(super) fn about_names(
        &mut self,
        store: &dyn Store,
        now: Moment,
        client: ClientId,
        request: RequestId,
        body: RequestBody,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let (RequestBody::Lookup { dir, .. }
        | RequestBody::List { dir, .. }
        | RequestBody::AcquireNamed { dir, .. }) = body
        else {
            return Ok(());
        };
        let held = self.leases.held(dir, client).filter(|(mode, _)| *mode >= Mode::Read);
        let Some((_, token)) = held else {
            if !self.let_wait(Question { client, request, dir, body }) {
                out.push(self.reply(client, request, Reply::No { why: Refusal::Fenced }));
            }
            return Ok(());
        };
        let reply = match body {
            RequestBody::List { after, .. } => {
                let entries = records::list(store, dir, after, LISTING_MAX)?;
                let end = entries.len() < LISTING_MAX;
                let entry = |(name, dirent)| Entry { name, dirent };
                let entries = entries.into_iter().map(entry).collect();
                Reply::Listed { listed: Listed { entries, end, token } }
            }
            RequestBody::AcquireNamed { name, .. } => match find(store, dir, &name)? {
                Some(Dirent { id, .. }) => {
                    let steps = self.leases.acquire_named(now, client, request, id);
                    if let Some(steps) = steps {
                        return self.take(store, now, steps, out);
                    }
                    Reply::No { why: Refusal::AlreadyLeased }
                }
                None => Reply::No { why: Refusal::NotFound },
            },
            RequestBody::Lookup { name, .. } => {
                Reply::Found { dirent: find(store, dir, &name)?, token }
            }
            _ => return Ok(()),
        };
        out.push(self.reply(client, request, reply));
        Ok(())
    }

    /// Queues a question, if its client waits for the lease. Returns true if it was queued.
    fn let_wait(&mut self, question: Question) -> bool {
        let (leases, of) = (&self.leases, &question);
        self.questions.retain(|q| {
            let same = (q.client, q.request) == (of.client, of.request);
            !same && leases.is_awaited_by(q.dir, q.client)
        });
        let waits = self.questions.len() < WAITING_MAX
            && self.leases.is_awaited_by(question.dir, question.client);
        if waits {
            self.questions.push(question);
        }
        waits
    }

    /// Answers the waiting questions of a client that was granted a lease.
    pub(super) fn answer_questions(
        &mut self,
        store: &dyn Store,
        now: Moment,
        client: ClientId,
        dir: RnodeId,
        out: &mut Vec<ToClient>,
    ) -> StoreResult<()> {
        let is_of = |q: &mut Question| (q.client, q.dir) == (client, dir);
        for question in self.questions.extract_if(.., is_of).collect::<Vec<_>>() {
            let Question { request, body, .. } = question;
            self.about_names(store, now, client, request, body, out)?;
        }
        Ok(())
    }
}

fn find(store: &dyn Store, dir: RnodeId, name: &Name) -> StoreResult<Option<Dirent>> {
    records::load(store, &records::dirent_key(dir, name), "name")
}
