//! Certificates for tests.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::Path;

/// Makes certificates of a new authority in a directory, laid out as
/// [`ServerTls`](crate::ServerTls) and [`ClientTls`](crate::ClientTls) read it: a server's and a
/// client's, each for the given names.
///
/// # Panics
/// If that fails.
pub fn make_certificates(directory: &Path, server: &[&str], client: &[&str]) {
    std::fs::create_dir_all(directory).expect("a directory");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let write = |name: &str, text: String| {
        std::fs::write(directory.join(name), text).expect("a file");
    };
    write("ca-cert.pem", authority.pem());
    for (role, names) in [("server", server), ("client", client)] {
        let names: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        // GnuTLS takes certificates of the same name for the same certificate.
        params.distinguished_name.push(DnType::CommonName, role);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        write(&format!("{role}-cert.pem"), certificate.pem());
        write(&format!("{role}-key.pem"), key.serialize_pem());
    }
}
