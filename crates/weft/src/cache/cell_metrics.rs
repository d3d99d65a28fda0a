//! The state of a cell of the shared file service in the text form of Prometheus (its exposition
//! format 0.0.4).

use std::fmt::Write;
use weft_ringer_net::{CellStatus, ClientStatus};

/// Renders all figures of `status`.
pub(super) fn render(status: &CellStatus) -> String {
    let mut text = String::new();
    let mut one = |kind: &str, name: &str, value: u64| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE weft_ringer_{name} {kind}\nweft_ringer_{name} {value}");
    };
    let count = |test: &dyn Fn(&ClientStatus) -> bool| {
        status.clients.iter().filter(|c| test(c)).count() as u64
    };
    one("counter", "transactions_total", status.revision);
    one("counter", "starts_total", u64::from(status.generation.0));
    one("counter", "messages_received_total", status.clients.iter().map(|c| c.received).sum());
    one("counter", "messages_sent_total", status.clients.iter().map(|c| c.sent).sum());
    one("counter", "recalls_total", status.clients.iter().map(|c| c.recalls).sum());
    one("gauge", "in_grace", u64::from(status.in_grace));
    one("gauge", "clients_known", status.clients.len() as u64);
    one("gauge", "clients_connected", count(&|c| c.connected));
    one("gauge", "clients_live", count(&|c| c.live));
    one("gauge", "read_leases", status.clients.iter().map(|c| c.reads).sum());
    one("gauge", "write_leases", status.clients.iter().map(|c| c.writes).sum());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::{ClientId, Epoch, Generation};

    #[test]
    fn figures_are_of_all_clients() {
        let client = |n, connected| ClientStatus {
            client: ClientId(n),
            epoch: Epoch(n),
            live: true,
            connected,
            listens: None,
            reads: n,
            writes: 2,
            received: 10 * n,
            sent: n,
            recalls: 1,
        };
        let status = CellStatus {
            cell: 1,
            generation: Generation(3),
            revision: 99,
            in_grace: false,
            epoch_micros: 1,
            clients: vec![client(5, true), client(7, false)],
        };
        let text = render(&status);
        for line in [
            "weft_ringer_transactions_total 99",
            "weft_ringer_starts_total 3",
            "weft_ringer_clients_connected 1",
            "weft_ringer_clients_live 2",
            "weft_ringer_read_leases 12",
            "weft_ringer_write_leases 4",
            "weft_ringer_messages_received_total 120",
            "weft_ringer_messages_sent_total 12",
            "weft_ringer_recalls_total 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert_eq!(
            text.lines().filter(|l| l.starts_with("# TYPE ")).count() * 2,
            text.lines().count()
        );
    }
}
