//! TLS between the two: required, optional, mutual, and full in both directions.

use crate::bench::Bench;
use std::path::Path;
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};
use weft_nbd::client::Encryption;
use weft_nbd::server::Options as ServerOptions;
use weft_nbd::{Error, Export, NbdDevice, Server};
use weft_net::{ClientTls, ServerTls};

fn make_certificates(directory: &Path) {
    let names = ["localhost", "127.0.0.1"];
    weft_net::testing::make_certificates(directory, &names, &names);
}

const LEN: u64 = 64 << 20;

fn serve(bench: &Bench, certificates: &Path, mutual: bool, tls_required: bool) -> Server {
    let tls = Some(ServerTls::from_directory(certificates, mutual).expect("certificates"));
    let options = ServerOptions { tls, tls_required, ..ServerOptions::default() };
    bench.serve_with(vec![Export::new("", Arc::new(MemoryDevice::new(LEN)))], options)
}

fn connect(bench: &Bench, encryption: Encryption, certificates: &Path) -> Result<NbdDevice, Error> {
    let mut options = bench.options();
    options.encryption = encryption;
    options.tls = Some(ClientTls::from_directory(certificates).expect("certificates"));
    NbdDevice::connect(options)
}

#[test]
fn data_goes_both_ways_at_once_under_tls() {
    let bench = Bench::new();
    let certificates = bench.socket().with_file_name("pki");
    make_certificates(&certificates);
    let _server = serve(&bench, &certificates, true, true);
    let device = connect(&bench, Encryption::Required, &certificates).expect("it connects");
    // Both directions of all connections are kept full.
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let device = &device;
            scope.spawn(move || {
                let base = u64::from(thread) * (16 << 20);
                let mut got = vec![0; 8 << 20];
                for round in 1..4_u8 {
                    device.write_at(&vec![thread * 8 + round; 8 << 20], base).expect("a write");
                    device.read_at(&mut got, base).expect("a read");
                    assert!(got.iter().all(|b| *b == thread * 8 + round));
                }
                device.flush().expect("a flush");
            });
        }
    });
}

#[test]
fn who_may_not_come_in_does_not() {
    let bench = Bench::new();
    let ours = bench.socket().with_file_name("ours");
    let theirs = bench.socket().with_file_name("theirs");
    make_certificates(&ours);
    make_certificates(&theirs);
    let anonymous = bench.socket().with_file_name("anonymous");
    std::fs::create_dir_all(&anonymous).expect("a directory");
    std::fs::copy(ours.join("ca-cert.pem"), anonymous.join("ca-cert.pem")).expect("a copy");

    let server = serve(&bench, &ours, true, true);
    let plain = NbdDevice::connect(bench.options()).expect_err("not encrypted");
    assert!(plain.to_string().contains("ERR_TLS_REQD"), "{plain}");
    assert!(connect(&bench, Encryption::Required, &anonymous).is_err(), "no certificate");
    let strange = connect(&bench, Encryption::Required, &theirs).expect_err("not their server");
    assert!(matches!(strange, Error::Net(weft_net::Error::Tls(_))), "{strange}");
    let mut other_name = bench.options();
    other_name.encryption = Encryption::Required;
    other_name.tls = Some(ClientTls::from_directory(&ours).expect("certificates"));
    other_name.tls_hostname = Some("elsewhere.example".into());
    assert!(NbdDevice::connect(other_name).is_err(), "the certificate is for another name");
    connect(&bench, Encryption::Opportunistic, &ours).expect("all is as it should be");
    drop(server);

    let server = serve(&bench, &ours, false, false);
    NbdDevice::connect(bench.options()).expect("encryption is the client's choice");
    connect(&bench, Encryption::Required, &anonymous).expect("a certificate is not asked for");
    drop(server);

    let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(LEN));
    let _server = bench.serve(disk);
    let refused = connect(&bench, Encryption::Required, &ours).expect_err("it has no TLS");
    assert!(matches!(refused, Error::Net(weft_net::Error::Tls(_))), "{refused}");
    connect(&bench, Encryption::Opportunistic, &ours).expect("plain, then");
}

#[test]
fn missing_files_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    for error in [
        ServerTls::from_directory(dir.path(), false).expect_err("nothing there"),
        ClientTls::from_directory(dir.path()).expect_err("nothing there"),
    ] {
        assert!(error.to_string().contains("-cert.pem"), "{error}");
    }
}
