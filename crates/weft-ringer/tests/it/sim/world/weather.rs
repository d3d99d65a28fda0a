//! How bad a world is.

use weft_block::Rng;

use super::{MILLI, SECOND};

/// How bad a world is.
#[derive(Debug, Clone)]
pub struct Weather {
    pub clients: usize,
    /// Whether there is a proxy; and how often it crashes and is cut off.
    pub proxy: bool,
    pub proxy_crashes: u64,
    pub proxy_cuts: u64,
    /// In thousandths.
    pub loss: u64,
    pub repeat: u64,
    /// The usual delay is up to this, beside what every message takes; one message in fifty is late.
    pub delay_micros: u64,
    pub steady_micros: u64,
    pub late_micros: u64,
    /// Faults in a thousand ticks of 50 ms.
    pub client_crashes: u64,
    pub server_crashes: u64,
    pub cuts: u64,
    pub reconnects: u64,
    pub leaps: u64,
    pub epoch_micros: u64,
    /// How far clocks may be off, in millionths.
    pub drift_ppm: u64,
}

impl Weather {
    /// Fine weather now and then, so that what is only wrong without faults is found as well.
    pub fn of(rng: &mut Rng) -> Self {
        let bad = |rng: &mut Rng, most: u64| if rng.below(3) == 0 { 0 } else { rng.below(most) };
        Self {
            clients: 2 + rng.index(3),
            proxy: false,
            proxy_crashes: 0,
            proxy_cuts: 0,
            loss: bad(rng, 150),
            repeat: bad(rng, 150),
            delay_micros: [200, 2 * MILLI, 30 * MILLI][rng.index(3)],
            steady_micros: 0,
            late_micros: [MILLI, 400 * MILLI, 5 * SECOND][rng.index(3)],
            client_crashes: bad(rng, 15),
            server_crashes: bad(rng, 15),
            cuts: bad(rng, 20),
            reconnects: bad(rng, 20),
            leaps: bad(rng, 10),
            epoch_micros: 2 * SECOND,
            drift_ppm: 25_000,
        }
    }

    /// The same with a proxy between some clients and the server.
    pub fn with_proxy(self, rng: &mut Rng) -> Self {
        let bad = |rng: &mut Rng, most: u64| if rng.below(3) == 0 { 0 } else { rng.below(most) };
        let faults = |most, rng: &mut Rng| if self.ends_epochs() { bad(rng, most) } else { 0 };
        let (proxy_crashes, proxy_cuts) = (faults(12, rng), faults(20, rng));
        Self { proxy: true, proxy_crashes, proxy_cuts, ..self }
    }

    /// Without faults.
    pub fn fine(clients: usize) -> Self {
        Self {
            clients,
            proxy: false,
            proxy_crashes: 0,
            proxy_cuts: 0,
            loss: 0,
            repeat: 0,
            delay_micros: 2 * MILLI,
            steady_micros: 0,
            late_micros: 2 * MILLI,
            client_crashes: 0,
            server_crashes: 0,
            cuts: 0,
            reconnects: 0,
            leaps: 0,
            epoch_micros: 2 * SECOND,
            drift_ppm: 0,
        }
    }

    /// Without faults, and with the same delay for every message: a conflict between clients that
    /// happens once can repeat for ever.
    pub fn lockstep(clients: usize) -> Self {
        Self { delay_micros: 1, steady_micros: MILLI, late_micros: 1, ..Self::fine(clients) }
    }

    /// Whether an epoch may end that its client would have gone on with.
    pub fn ends_epochs(&self) -> bool {
        self.client_crashes + self.server_crashes + self.cuts + self.leaps + self.loss > 0
            || self.late_micros >= SECOND
    }
}
