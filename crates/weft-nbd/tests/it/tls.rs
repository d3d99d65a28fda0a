//! TLS between the two: required, optional, mutual, and full in both directions.

use crate::bench::Bench;
use std::path::Path;
use std::process::Command;
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
    assert!(plain.to_string().contains("TLS: the server wants it"), "{plain}");
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

/// Runs openssl(1) in a directory; `false` if it is not installed.
fn openssl(directory: &Path, args: &str) -> bool {
    let out = match Command::new("openssl").args(args.split(' ')).current_dir(directory).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return false,
        out => out.expect("openssl runs"),
    };
    assert!(out.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&out.stderr));
    true
}

/// A directory with a certificate authority and a server's certificate for the key in `key.pem`.
fn certify(directory: &Path) {
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost\n").expect("a file");
    openssl(
        directory,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca-key.pem -out \
         ca-cert.pem -subj /CN=ca -days 3650",
    );
    openssl(directory, "req -new -key key.pem -subj /CN=localhost -out request.pem");
    openssl(
        directory,
        "x509 -req -in request.pem -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 3650 \
         -extfile names -out server-cert.pem",
    );
}

/// What `openssl genrsa`, `ecparam`, `pkcs8` and `genpkey` write.
#[test]
fn keys_in_every_form_of_openssl_are_taken() {
    let rsa = "genrsa -traditional -out key.pem 2048";
    let ec = "ecparam -name prime256v1 -genkey -out key.pem";
    let copy = "pkey -in key.pem -out server-key.pem";
    for (label, make, write) in [
        ("RSA PRIVATE KEY", rsa, "rsa -traditional -in key.pem -out server-key.pem"),
        ("PRIVATE KEY", rsa, copy),
        ("EC PRIVATE KEY", ec, "ec -in key.pem -out server-key.pem"),
        ("EC PARAMETERS", ec, ""),
        ("PRIVATE KEY", ec, copy),
        ("EC PARAMETERS", "ecparam -name secp384r1 -genkey -out key.pem", ""),
        ("PRIVATE KEY", "genpkey -algorithm ed25519 -out key.pem", copy),
    ] {
        let bench = Bench::new();
        let certificates = bench.socket().with_file_name("pki");
        std::fs::create_dir(&certificates).expect("a directory");
        if !openssl(&certificates, make) {
            eprintln!("skipped: openssl is not installed");
            return;
        }
        if write.contains("server-key.pem") {
            openssl(&certificates, write);
        } else {
            std::fs::copy(certificates.join("key.pem"), certificates.join("server-key.pem"))
                .expect("a copy");
        }
        certify(&certificates);
        let pem = std::fs::read_to_string(certificates.join("server-key.pem")).expect("a key");
        assert!(pem.starts_with(&format!("-----BEGIN {label}-----")), "{make}: {pem}");
        let _server = serve(&bench, &certificates, false, true);
        let mut options = bench.options();
        options.encryption = Encryption::Required;
        options.tls_hostname = Some("localhost".into());
        options.tls = Some(ClientTls::from_directory(&certificates).expect("an authority"));
        NbdDevice::connect(options).unwrap_or_else(|e| panic!("{make}, {write}: {e}"));
    }
}

#[test]
fn keys_that_do_not_do_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    if !openssl(dir, "genrsa -traditional -out key.pem 2048") {
        eprintln!("skipped: openssl is not installed");
        return;
    }
    certify(dir);
    let refused = |make: &str| {
        openssl(dir, make);
        let error = ServerTls::from_directory(dir, false).expect_err(make).to_string();
        assert!(error.contains("-key.pem") || error.contains("-cert.pem"), "{error}");
        error
    };
    let to = "-passout pass:secret -out server-key.pem";
    for make in [
        format!("rsa -traditional -aes128 -in key.pem {to}"),
        format!("pkcs8 -topk8 -in key.pem {to}"),
    ] {
        let error = refused(&make);
        assert!(error.contains("encrypted") && error.contains("openssl pkey"), "{error}");
    }
    let other = refused("genpkey -algorithm ed25519 -out server-key.pem");
    assert!(other.contains("not the key of"), "{other}");
    let curve = refused("ecparam -name secp521r1 -genkey -out server-key.pem");
    assert!(curve.contains("kind of key") && curve.contains("P-256"), "{curve}");
    let none = refused("x509 -in server-cert.pem -out server-key.pem");
    assert!(none.contains("no private key"), "{none}");
    // Without extensions OpenSSL makes a certificate that no client takes.
    std::fs::copy(dir.join("key.pem"), dir.join("server-key.pem")).expect("a copy");
    let old = refused(
        "x509 -req -in request.pem -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -out \
         server-cert.pem",
    );
    assert!(old.contains("X.509 version 1") && old.contains("subjectAltName"), "{old}");
}
