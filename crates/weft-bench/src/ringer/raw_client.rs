//! A raw client of a metadata server, which sends one request at a time: it measures the cost of a
//! message without the work of a client around it.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};
use weft::net::Address;
use weft::ringer::op::{Change, Logged, Make, Op};
use weft::ringer::wire::{FromServer, Reply, Request, RequestBody, ToServer, Welcome};
use weft::ringer::{
    Bytes, ClientId, Epoch, Generation, Incarnation, Mode, Name, RequestId, Rnode, RnodeId, Seq,
    Token,
};
use weft::ringer_net::{Answer, Ask, Conversation, Error, SECRET_BYTES, StoreRuns};
use weft::vfs::Time;

/// The time limit for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

/// The interval after which a request is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection with a session.
pub struct RawClient {
    link: Conversation,
    client: ClientId,
    epoch: Epoch,
    generation: Generation,
    slot: u32,
    requests: u64,
    seq: u64,
    /// The time of the last renewal of the session.
    renewed: Instant,
}

/// A granted lease, with the rnode and the token.
pub struct Granted {
    pub rnode: Box<Rnode>,
    pub token: Token,
}

impl RawClient {
    /// Joins the cell at `server` as the client of `secret`.
    pub fn join(server: &Address, secret: u8) -> Result<Self> {
        let mut link = Conversation::connect(server, None, PATIENCE)?;
        let secret = Bytes(vec![secret; SECRET_BYTES]);
        link.send(&Ask::Join { secret, listens: None, cell: 0, runs: StoreRuns::default() })?;
        let client = loop {
            match link.receive(Some(Instant::now() + PATIENCE))? {
                Answer::Joined { client, .. } => break client,
                Answer::Peers { .. } => {}
                other => bail!("the server said {other:?}"),
            }
        };
        let mut raw_client = Self {
            link,
            client,
            epoch: Epoch(0),
            generation: Generation(0),
            slot: 0,
            requests: 0,
            seq: 0,
            renewed: Instant::now(),
        };
        let welcome = raw_client.greet()?;
        let Welcome { epoch, slot, applied, .. } = welcome;
        (raw_client.epoch, raw_client.slot, raw_client.seq) = (epoch, slot, applied.0);
        Ok(raw_client)
    }

    /// Sends Hello until it is answered: a proxy that has no session of its own yet does not
    /// answer.
    fn greet(&mut self) -> Result<Welcome> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let wanted = self.send(RequestBody::Hello { incarnation: Incarnation(1) })?;
            match self.reply_to(wanted, Instant::now() + AGAIN) {
                Ok(Reply::Welcome { welcome }) => return Ok(welcome),
                Ok(other) => bail!("the server does not welcome the client: {other:?}"),
                Err(Error::Net(weft::net::Error::TimedOut(_))) => {}
                Err(e) => return Err(e.into()),
            }
        }
        bail!("the server does not answer a hello")
    }

    fn send(&mut self, body: RequestBody) -> Result<RequestId> {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.send_as(id, body)?;
        Ok(id)
    }

    fn send_as(&mut self, id: RequestId, body: RequestBody) -> Result<()> {
        let (client, epoch, generation) = (self.client, self.epoch, self.generation);
        let message = ToServer { client, epoch, generation, request: Request { id, body } };
        Ok(self.link.send(&Ask::Mds { message: Box::new(message) })?)
    }

    /// Sends a request and returns its reply.
    fn ask(&mut self, body: &RequestBody) -> Result<Reply> {
        let wanted = self.send(body.clone())?;
        let end = Instant::now() + PATIENCE;
        loop {
            match self.reply_to(wanted, Instant::now() + AGAIN) {
                Err(Error::Net(weft::net::Error::TimedOut(_))) if Instant::now() < end => {
                    eprintln!("no answer yet; asked again: {body:?}");
                    self.send_as(wanted, body.clone())?;
                }
                reply => return Ok(reply?),
            }
        }
    }

    fn reply_to(&mut self, wanted: RequestId, deadline: Instant) -> Result<Reply, Error> {
        loop {
            let Answer::Mds { message } = self.link.receive(Some(deadline))? else {
                continue;
            };
            if let FromServer::Reply { generation, id, reply } = *message
                && id == wanted
            {
                self.generation = generation;
                return Ok(reply);
            }
        }
    }

    /// Renews the session if that is due. Not to be timed.
    pub fn keep(&mut self) -> Result<()> {
        if self.renewed.elapsed() > Duration::from_secs(3) {
            self.renewed = Instant::now();
            self.ask(&RequestBody::Renew {})?;
        }
        Ok(())
    }

    /// Makes a round trip with an empty request.
    pub fn renew(&mut self) -> Result<()> {
        self.ask(&RequestBody::Renew {}).map(drop)
    }

    pub fn acquire(&mut self, rnode: RnodeId, mode: Mode) -> Result<Granted> {
        match self.ask(&RequestBody::Acquire { rnode, mode })? {
            Reply::Granted { rnode, token, .. } => Ok(Granted { rnode, token }),
            other => bail!("no lease: {other:?}"),
        }
    }

    /// Releases a lease. There is no reply; a renewal behind it shows that the server has received
    /// it.
    pub fn lower(&mut self, rnode: RnodeId, token: Token) -> Result<()> {
        self.send(RequestBody::Lower { rnode, token, to: None })?;
        self.renew()
    }

    /// Sends changes, and waits until they are durable at the server.
    pub fn commit(&mut self, ops: Vec<Logged>) -> Result<()> {
        let last = ops.last().map(|l| l.seq);
        let prev = Seq(self.seq);
        match self.ask(&RequestBody::Commit { prev, ops })? {
            Reply::Committed { applied, refused: None } if Some(applied) == last => {
                self.seq = applied.0;
                Ok(())
            }
            other => bail!("not committed: {other:?}"),
        }
    }

    /// Makes a change of the mode of an rnode at its present version.
    pub fn chmod(&self, rnode: &Rnode, perm: u16) -> Logged {
        let change = Change { perm: Some(perm), ..Change::default() };
        let op = Op::SetAttr { id: rnode.id, change };
        self.logged(1, op, vec![(rnode.id, rnode.version)])
    }

    fn logged(&self, ahead: u64, op: Op, base: Vec<(RnodeId, weft::ringer::Version)>) -> Logged {
        let (seq, epoch) = (Seq(self.seq + ahead), self.epoch);
        Logged { seq, epoch, stamp: Time::default(), op, base }
    }

    /// Makes `count` files in the root, and releases all leases.
    pub fn make_files(&mut self, count: u32) -> Result<Vec<RnodeId>> {
        let mut files = Vec::new();
        for number in 1..=count {
            self.keep()?;
            let root = self.acquire(RnodeId::ROOT, Mode::Write)?;
            let id = RnodeId::new(self.slot, number);
            let op = Op::Create {
                parent: RnodeId::ROOT,
                name: Name::new(format!("f{number}").as_bytes())?,
                id,
                make: Make::File { block_bytes: 64 << 10 },
                perm: 0o644,
                uid: 0,
                gid: 0,
            };
            let base = vec![(RnodeId::ROOT, root.rnode.version)];
            self.commit(vec![self.logged(1, op, base)])?;
            let made = self.acquire(id, Mode::Write)?;
            self.lower(id, made.token)?;
            files.push(id);
        }
        Ok(files)
    }
}
