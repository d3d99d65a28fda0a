//! The user of the process at the other end of a local TCP connection, by the kernel's tables of
//! connections (`/proc/net/tcp` and `tcp6` of this network namespace).
//!
//! # Invariants
//!
//! - A user is returned only for a connection of which both ends are established in one read of the
//!   table, and were so with the same user in an earlier read. The kernel reports root as the owner
//!   of a socket whose process has closed it, while its last bytes are in transit. It leaves the
//!   state *established* before that, so the user of the first read is the one who made the socket.
//! - A connection from another machine, or from another network namespace, has one end in the table
//!   and no user.

use std::net::{IpAddr, SocketAddr, TcpStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The tables, of the calling thread's namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// The kernel's number of the state *established*.
const ESTABLISHED: &str = "01";
/// The number of reads of the table: while other connections end, a read may miss a row.
const LOOKS: usize = 8;

/// The address and port of one end; an IPv4-mapped IPv6 address counts as IPv4.
type End = (IpAddr, u16);

fn end(at: SocketAddr) -> End {
    (at.ip().to_canonical(), at.port())
}

/// Returns the user at the other end of a connection; `None` if this machine does not know it.
pub(crate) fn user_of_peer(stream: &TcpStream) -> Option<u32> {
    let (own, peer) = (end(stream.local_addr().ok()?), end(stream.peer_addr().ok()?));
    user_at(own, peer, || {
        // Reading a table takes milliseconds: clients that connect and disconnect at once must cost
        // less.
        if has_hung_up(stream) {
            return None;
        }
        let table = |path| std::fs::read_to_string(path).unwrap_or_default();
        Some(TABLES.map(table).concat())
    })
}

/// Returns true if the peer has shut down its side of the connection, also while bytes that it sent
/// before are still unread.
fn has_hung_up(stream: &TcpStream) -> bool {
    let mut ends = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut ends, Some(&Timespec::default())).is_ok_and(|_| !ends[0].revents().is_empty())
}

/// Returns the user at the end `peer`. `look` reads the tables, or returns `None` if the peer is
/// known to be gone.
fn user_at(own: End, peer: End, mut look: impl FnMut() -> Option<String>) -> Option<u32> {
    let mut before = None;
    for _ in 0..LOOKS {
        let now = established(&look()?, own, peer);
        if now.is_some() && now == before {
            return now;
        }
        before = now;
    }
    None
}

/// Returns the user of the end `peer`, if both ends are established.
fn established(tables: &str, own: End, peer: End) -> Option<u32> {
    let user = |local, remote| tables.lines().find_map(|row| user_of(row, local, remote));
    user(own, peer).and_then(|_| user(peer, own))
}

/// Returns the user in a row of the table, if the row is of the end `local` of an established
/// connection to `remote`.
fn user_of(row: &str, local: End, remote: End) -> Option<u32> {
    let mut words = row.split_ascii_whitespace().skip(1);
    let is_of_it = parse(words.next()?)? == local
        && parse(words.next()?)? == remote
        && words.next()? == ESTABLISHED;
    // The user follows the queues, the timer and the retransmissions.
    is_of_it.then(|| words.nth(3)).flatten()?.parse().ok()
}

/// Parses an end in the kernel's format: the address, in network order, is written as words in the
/// machine's order; then the port.
fn parse(text: &str) -> Option<End> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend_from_slice(&u32::from_be(word).to_be_bytes());
    }
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some((address.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
                        timeout inode\n";

    fn at(text: &str) -> End {
        end(text.parse().expect("an address"))
    }

    fn hex(end: End) -> String {
        let words = |bytes: &[u8]| {
            let word = |w: &[u8]| u32::from_be_bytes(w.try_into().expect("four")).to_be();
            bytes.chunks(4).map(|w| format!("{:08X}", word(w))).collect::<String>()
        };
        let address = match end.0 {
            IpAddr::V4(a) => words(&a.octets()),
            IpAddr::V6(a) => words(&a.octets()),
        };
        format!("{address}:{:04X}", end.1)
    }

    fn row(local: &str, remote: &str, state: &str, user: u32) -> String {
        let (local, remote) = (hex(at(local)), hex(at(remote)));
        format!(
            "   1: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:>5}        0 \
             15713 1 0000000000000000 20 4 0 10 -1\n"
        )
    }

    const SERVER: &str = "127.0.0.1:7473";
    const CLIENT: &str = "127.0.0.1:40000";

    fn both(state: &str, user: u32) -> String {
        format!("{HEAD}{}{}", row(SERVER, CLIENT, "01", 0), row(CLIENT, SERVER, state, user))
    }

    /// Returns the result of several reads of the tables, the last of which is repeated.
    fn looks(tables: &[String]) -> Option<u32> {
        let mut number = 0;
        user_at(at(SERVER), at(CLIENT), || {
            number += 1;
            Some(tables[number.min(tables.len()) - 1].clone())
        })
    }

    #[test]
    fn who_has_hung_up_is_not_looked_for() {
        let door = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut far = TcpStream::connect(door.local_addr().expect("an address")).expect("a client");
        let (near, _) = door.accept().expect("a connection");
        std::io::Write::write_all(&mut far, b"xxxx").expect("written");
        assert!(!has_hung_up(&near));
        far.shutdown(std::net::Shutdown::Write).expect("ended");
        assert!(has_hung_up(&near), "with what it sent still unread");

        let mut looks = 0;
        let none = user_at(at(SERVER), at(CLIENT), || {
            looks += 1;
            None
        });
        assert_eq!((none, looks), (None, 1));
    }

    #[test]
    fn the_row_of_the_other_end_has_its_user() {
        assert_eq!(looks(&[both("01", 1000)]), Some(1000));
        assert_eq!(looks(&[both("01", 0)]), Some(0));
        // A read that misses a row.
        let half = format!("{HEAD}{}", row(SERVER, CLIENT, "01", 0));
        assert_eq!(looks(&[both("01", 1000), half.clone(), both("01", 1000)]), Some(1000));
        // For another machine, or another network namespace, the table has only the near end.
        assert_eq!(looks(&[half]), None);
        // The near end is gone, and its port may belong to another connection.
        assert_eq!(looks(&[format!("{HEAD}{}", row(CLIENT, SERVER, "01", 0))]), None);
        let reset = format!("{}{}", row(SERVER, CLIENT, "08", 9), row(CLIENT, SERVER, "01", 0));
        assert_eq!(looks(&[reset]), None);
        // Rows of other ports and addresses do not count.
        let others =
            row("127.0.0.1:40001", SERVER, "01", 0) + &row("127.0.0.2:40000", SERVER, "01", 0);
        assert_eq!(looks(&[others.clone() + &row(SERVER, CLIENT, "01", 0)]), None);
        assert_eq!(looks(&[others + &both("01", 5)]), Some(5));
    }

    #[test]
    fn a_socket_that_was_closed_is_not_roots() {
        // In all states but *established*, closed and waiting sockets have the user 0.
        for state in 2..=12 {
            assert_eq!(looks(&[both(&format!("{state:02X}"), 0)]), None, "{state}");
        }
        // The socket is closed between reading its state and its user in one read.
        assert_eq!(looks(&[both("01", 0), both("04", 0)]), None);
        assert_eq!(looks(&[both("01", 1000), both("01", 0), both("04", 0)]), None);
    }

    #[test]
    fn ipv4_within_ipv6_is_ipv4() {
        let (v4, v6) = (at("127.0.0.1:80"), at("[::ffff:127.0.0.1]:80"));
        assert_eq!(v4, v6);
        let mapped = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(parse(&hex((mapped, 80))), Some(v4));
        let six = (IpAddr::V6(Ipv6Addr::LOCALHOST), 443);
        assert_eq!(parse(&hex(six)), Some(six));
    }

    #[test]
    fn other_text_is_no_row() {
        for text in ["", ":", "0100007F", "0100007F:", ":1F90", "0100007:1F90", "01:1F90", "zz:zz"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(looks(&[HEAD.into()]), None);
        assert_eq!(looks(&["\n\n1:\n1: 2 3 4\n".into()]), None);
        assert_eq!(parse("é00007F:1F90"), None);
    }
}
