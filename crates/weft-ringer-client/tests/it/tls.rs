//! Certificates: only members of the cell are admitted.

use std::path::Path;
use std::time::Duration;

use weft_net::{Address, ClientTls, Role, ServerTls};
use weft_ringer_client::{RingerFs, RingerFsOptions};
use weft_ringer_net::{Ask, MEMBER_NAME, ask};
use weft_ringer_server::{ServeOptions, Server};
use weft_vfs::Walker;

fn make_certificates(directory: &Path) {
    weft_net::testing::make_certificates(directory, &["127.0.0.1"], &[MEMBER_NAME]);
}

fn options(server: &Address, store: &Path, certificates: &Path) -> RingerFsOptions {
    let mut options = super::options(server.clone(), store);
    options.patience = Duration::from_secs(3);
    let client = ClientTls::mutual(certificates).expect("certificates");
    let member = ServerTls::mutual(certificates, Role::Client).expect("certificates");
    options.tls = Some((client, member));
    options
}

#[test]
fn members_share_over_tls_and_strangers_do_not_get_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    make_certificates(&ours);
    make_certificates(&theirs);
    let serve = ServeOptions {
        listen: vec![Address::Tcp("127.0.0.1".into(), 0)],
        tls: Some(ServerTls::mutual(&ours, Role::Server).expect("certificates")),
        ..ServeOptions::new()
    };
    let server = Server::start(&dir.path().join("cell"), serve).expect("a server");
    let address = server.addresses()[0].clone();
    let a = RingerFs::join(options(&address, &dir.path().join("a"), &ours)).expect("it joins");
    let b = RingerFs::join(options(&address, &dir.path().join("b"), &ours)).expect("it joins");
    let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    Walker::new(&a).write_file(b"/file", &content, 0o644).expect("written");
    assert!(Walker::new(&b).read_file(b"/file").expect("read") == content);

    // Another authority's, and none at all.
    assert!(RingerFs::join(options(&address, &dir.path().join("c"), &theirs)).is_err());
    let mut plain = super::options(address.clone(), &dir.path().join("d"));
    plain.patience = Duration::from_secs(2);
    let why = RingerFs::join(plain).expect_err("no certificates").to_string();
    assert!(why.contains("requires TLS") && why.contains("--tls-certificates"), "{why}");
    let why = ask(&address, None, &Ask::Status {}).expect_err("no certificates").to_string();
    assert!(why.contains("requires TLS") && !why.contains("magic"), "{why}");
    // The other way round: certificates for a server that has none.
    let at = Address::Unix(dir.path().join("plain"));
    let serve = ServeOptions { listen: vec![at.clone()], ..ServeOptions::new() };
    let without = Server::start(&dir.path().join("plain-cell"), serve).expect("a server");
    let mut secured = options(&at, &dir.path().join("e"), &ours);
    secured.patience = Duration::from_secs(2);
    let why = RingerFs::join(secured).expect_err("no TLS there").to_string();
    assert!(why.contains("does not use TLS"), "{why}");
    without.stop().expect("it ends well");
    let tls = ClientTls::mutual(&theirs).expect("certificates");
    assert!(ask(&address, Some(&tls), &Ask::Status {}).is_err());
    let tls = ClientTls::mutual(&ours).expect("certificates");
    assert!(ask(&address, Some(&tls), &Ask::Status {}).is_ok());
}
