//! A simulated network between a client and a server on one machine: a proxy that delays every byte
//! by half a round trip in each direction and does not limit bandwidth.
//!
//! Each direction has a thread that reads chunks and stamps them with their due time, and one that
//! waits for that time and writes. The chunks in flight are bounded ([`IN_FLIGHT_CHUNKS`]); beyond
//! it the reader waits, as a full window would make a sender wait.
//!
//! The hops through the proxy cost time of their own, some tens of microseconds. They are measured
//! at the start, against an echo server behind a proxy that adds nothing, and subtracted from the
//! delay; the delay then achieved is measured again, and reported.

use anyhow::{Context, Result, ensure};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// The largest chunk that is read, stamped and written at once, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// The most chunks in flight in one direction of one connection.
const IN_FLIGHT_CHUNKS: usize = 64;

/// Round trips in one measurement.
const PROBES: usize = 301;

/// The address of a listener: `HOST:PORT`, or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("unix:") {
            Some(path) => Self::Unix(path.into()),
            None => Self::Tcp(text.to_owned()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    fn connect(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Self::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        })
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(s) => Self::Tcp(s.try_clone()?),
            Self::Unix(s) => Self::Unix(s.try_clone()?),
        })
    }

    fn shutdown(&self, how: Shutdown) {
        // The peer may have closed its end before.
        let _ = match self {
            Self::Tcp(s) => s.shutdown(how),
            Self::Unix(s) => s.shutdown(how),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.read(buffer),
            Self::Unix(s) => s.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.write(bytes),
            Self::Unix(s) => s.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(address: &Address) -> Result<Self> {
        let bound = match address {
            Address::Tcp(a) => TcpListener::bind(a).map(Self::Tcp),
            Address::Unix(path) => UnixListener::bind(path).map(Self::Unix),
        };
        bound.with_context(|| format!("listen on {address}"))
    }

    fn address(&self, asked: &Address) -> Result<Address> {
        Ok(match self {
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
            Self::Unix(_) => asked.clone(),
        })
    }

    fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0),
        })
    }
}

/// A proxy that runs until the process ends.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// The address it listens on; the port is filled in if it was 0.
    pub address: Address,
    /// The round trip through the proxy minus the one without it, as measured at the start.
    pub added: Duration,
    carried: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy that adds `round_trip` to each request and its reply.
    pub fn start(listen: &Address, to: &Address, round_trip: Duration) -> Result<Self> {
        let (held, added) = calibrate(round_trip)?;
        let carried = Arc::default();
        let address = run(listen, to, held, &carried)?;
        Ok(Self { address, added, carried })
    }

    /// Bytes received so far, in both directions.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Acquire)
    }
}

/// Finds the delay of each direction by which a round trip grows by `round_trip`; returns it and
/// the growth that was measured.
fn calibrate(round_trip: Duration) -> Result<(Duration, Duration)> {
    let any = Address::Tcp("127.0.0.1:0".into());
    let echo = echo_server()?;
    let direct = probe(&echo)?;
    let mut held = round_trip / 2;
    let mut tries = 0;
    loop {
        let added = probe(&run(&any, &echo, held, &Arc::default())?)?.saturating_sub(direct);
        let off_secs = added.as_secs_f64() - round_trip.as_secs_f64();
        tries += 1;
        if off_secs.abs() < 0.02 * round_trip.as_secs_f64() || tries == 4 {
            return Ok((held, added));
        }
        held = Duration::from_secs_f64((held.as_secs_f64() - off_secs / 2.0).max(0.0));
    }
}

fn echo_server() -> Result<Address> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = Address::Tcp(listener.local_addr()?.to_string());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 4096];
                let _ = stream.set_nodelay(true);
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok(address)
}

/// Measures the median round trip of a few bytes, as of a request without data.
fn probe(echo: &Address) -> Result<Duration> {
    let mut stream = echo.connect()?;
    let mut times = Vec::with_capacity(PROBES);
    let mut bytes = [7; 28];
    for _ in 0..PROBES {
        let began = Instant::now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        times.push(began.elapsed());
    }
    ensure!(bytes == [7; 28], "the echo came back changed");
    stream.shutdown(Shutdown::Both);
    times.sort();
    Ok(times[PROBES / 2])
}

/// Listens in a thread; each direction delays its bytes by `held`.
fn run(
    listen: &Address,
    to: &Address,
    held: Duration,
    carried: &Arc<AtomicU64>,
) -> Result<Address> {
    let listener = Listener::bind(listen)?;
    let address = listener.address(listen)?;
    let (to, carried) = (to.clone(), Arc::clone(carried));
    thread::spawn(move || {
        loop {
            let joined =
                listener.accept().and_then(|client| join(&client, &to.connect()?, held, &carried));
            if let Err(e) = joined {
                eprintln!("weft-bench: a connection to {to} failed: {e}");
                thread::sleep(Duration::from_millis(10));
            }
        }
    });
    Ok(address)
}

fn join(
    client: &Stream,
    server: &Stream,
    held: Duration,
    carried: &Arc<AtomicU64>,
) -> io::Result<()> {
    carry(client.try_clone()?, server.try_clone()?, held, Arc::clone(carried));
    carry(server.try_clone()?, client.try_clone()?, held, Arc::clone(carried));
    Ok(())
}

/// The due time of a chunk, and its bytes.
type Held = (Instant, Vec<u8>);

/// Forwards one direction until its end, with two threads.
fn carry(from: Stream, to: Stream, held: Duration, carried: Arc<AtomicU64>) {
    let (send, receive) = mpsc::sync_channel(IN_FLIGHT_CHUNKS);
    // Used buffers are returned: newly allocated memory would cause page faults.
    let (give_back, used) = mpsc::channel();
    thread::spawn(move || read_and_stamp(from, &send, &used, held, &carried));
    thread::spawn(move || wait_and_write(to, &receive, &give_back));
}

fn read_and_stamp(
    mut from: Stream,
    send: &SyncSender<Held>,
    used: &Receiver<Vec<u8>>,
    held: Duration,
    carried: &AtomicU64,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + held;
        carried.fetch_add(n as u64, Ordering::AcqRel);
        let mut chunk = used.try_recv().unwrap_or_default();
        chunk.clear();
        chunk.extend_from_slice(&buffer[..n]);
        if send.send((due, chunk)).is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Read);
}

fn wait_and_write(mut to: Stream, receive: &Receiver<Held>, give_back: &Sender<Vec<u8>>) {
    // By default the kernel may wake a sleeping thread 50 us late, to save wake-ups.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut alarm = Alarm::default();
    while let Ok((due, chunk)) = receive.recv() {
        alarm.wait_until(due);
        if to.write_all(&chunk).is_err() {
            break;
        }
        let _ = give_back.send(chunk);
    }
    to.shutdown(Shutdown::Write);
}

/// A precise sleep: it sleeps less by the mean delay of earlier sleeps, and spins for the rest.
#[derive(Debug, Default)]
struct Alarm {
    /// A running mean of the delay of sleeps.
    late: Duration,
}

impl Alarm {
    /// The longest time spent spinning: the other CPU has work to do.
    const SPIN_MAX: Duration = Duration::from_micros(30);

    fn wait_until(&mut self, due: Instant) {
        let now = Instant::now();
        let early = self.late.min(Self::SPIN_MAX);
        if let Some(sleep) = due.checked_duration_since(now + early) {
            thread::sleep(sleep);
            let late = Instant::now().saturating_duration_since(now + sleep);
            self.late = (self.late * 7 + late) / 8;
        }
        while Instant::now() < due {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_through_late_and_in_order() {
        let echo = echo_server().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = Address::Unix(dir.path().join("socket"));
        let held = Duration::from_millis(20);
        let address = run(&path, &echo, held, &Arc::default()).unwrap();
        assert_eq!(address, path);
        let mut stream = address.connect().unwrap();
        let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut writer = stream.try_clone().unwrap();
        let copy = sent.clone();
        let began = Instant::now();
        let sender = thread::spawn(move || {
            writer.write_all(&copy).unwrap();
            writer.shutdown(Shutdown::Write);
        });
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
        assert!(began.elapsed() >= held * 2, "held in both directions");
    }

    #[test]
    fn an_alarm_is_never_early() {
        let mut alarm = Alarm::default();
        for _ in 0..50 {
            let due = Instant::now() + Duration::from_micros(175);
            alarm.wait_until(due);
            assert!(Instant::now() >= due);
        }
    }

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for text in ["127.0.0.1:10809", "[::1]:0", "unix:/run/nbd.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }
}
