//! The contents of text files, sent to the server so that their words are found.
//!
//! The client that changed a file sends its text, when the server has the change: it has the blocks
//! at hand. The text of a file that is older than the policy, or was not sent because this machine
//! crashed, is sent when all blocks that stay here are scanned. The server accepts only the text of
//! the content that it knows of, so a late one does no harm. The text of an encrypted file is never
//! sent.

use weft_ringer::wire::{Peeked, Reply, RequestBody};
use weft_ringer::{Body, Refusal, Rnode, RnodeId, TEXT_MAX_BYTES, Text, Version, is_encrypted};
use weft_vfs::{Error, Result};

use super::client_fs::ClientFs;
use super::content::Source;
use super::errors::unexpected;
use super::mutex::locked;

/// The maximum number of files whose texts are sent in one call.
const TOLD_AT_ONCE: usize = 1000;
impl ClientFs {
    /// The version of a file's content to send: a policy wants it, and the server does not have it.
    pub(super) fn lacks_text(&self, peeked: &Peeked) -> Option<Version> {
        let Body::File { size_bytes, content, .. } = peeked.rnode.body else { return None };
        if is_encrypted(&peeked.rnode) {
            return None;
        }
        let is_wanted = (1..=peeked.policy.text_bytes.min(TEXT_MAX_BYTES)).contains(&size_bytes);
        let lacks = is_wanted && peeked.told != Some(content);
        let id = peeked.rnode.id;
        (lacks && !locked(&self.skipped_texts).has(id, content)).then_some(content)
    }

    /// Sends the text of a file, as the server has it, if that is wanted.
    pub(super) fn tell_text(&self, id: RnodeId) -> Result<()> {
        let Some(peeked) = self.peek(id)? else { return Ok(()) };
        let Some(content) = self.lacks_text(&peeked) else { return Ok(()) };
        let bytes = match self.whole_content(&peeked.rnode) {
            Ok(bytes) => bytes,
            // A block may be gone because the file has changed by now: its writer will send the
            // text.
            Err(e) => {
                return self.peek(id)?.map_or(Ok(()), |now| match now.rnode.body {
                    Body::File { content: now, .. } if now == content => Err(e),
                    _ => Ok(()),
                });
            }
        };
        let Some(text) = Text::of(bytes) else {
            locked(&self.skipped_texts).add(id, content);
            return Ok(());
        };
        match self.ask(RequestBody::Text { rnode: id, content, text })? {
            Reply::Held {} => Ok(()),
            // It has changed by now (a server of version 2 says that it is busy), or is gone.
            Reply::No { why: Refusal::Changed | Refusal::Busy | Refusal::Stale } => Ok(()),
            Reply::No { why: Refusal::NotPermitted } => {
                locked(&self.skipped_texts).add(id, content);
                Ok(())
            }
            Reply::No { why } => Err(why.into()),
            _ => Err(unexpected()),
        }
    }

    /// Reads all bytes of a small file.
    fn whole_content(&self, rnode: &Rnode) -> Result<Vec<u8>> {
        let Body::File { size_bytes, block_bytes, blocks, .. } = &rnode.body else {
            return Err(Error::IsADirectory);
        };
        let size = usize::try_from((*size_bytes).min(TEXT_MAX_BYTES)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        for (at, block) in blocks.iter() {
            let begin = usize::try_from(u64::from(*at) * u64::from(*block_bytes));
            let behind = begin.ok().and_then(|begin| bytes.get_mut(begin..)).unwrap_or_default();
            let len = behind.len().min(block.len_bytes as usize);
            let source = Source { id: rnode.id, cipher: None };
            self.load_block(source, *at, block, &mut behind[..len])?;
        }
        Ok(bytes)
    }

    /// Sends at once the texts of the files that were changed here, as far as the server has the
    /// changes.
    pub(super) fn tell_texts(&self) {
        let changed: Vec<_> = {
            let under_replicated = locked(&self.engine.under_replicated);
            let unsent = under_replicated.iter().filter(|(_, seen)| seen.text_unsent);
            unsent.map(|(id, seen)| (*id, *seen)).take(TOLD_AT_ONCE).collect()
        };
        for (id, seen) in changed {
            let policy = self.policy(id, seen.dir);
            let told = policy.and_then(|policy| match policy.text_bytes {
                0 => Ok(()),
                _ => self.tell_text(id),
            });
            if let Err(e) = told {
                tracing::debug!("cannot send the text of inode {id}: {e}");
                continue;
            }
            let mut under_replicated = locked(&self.engine.under_replicated);
            if let Some(entry) = under_replicated.get_mut(&id).filter(|entry| entry.due == seen.due)
            {
                entry.text_unsent = false;
            }
        }
    }
}
