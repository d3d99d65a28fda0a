//! Membership of a cell: its authority, identities, and the tokens for joining it.
//!
//! Every identity is an Ed25519 key with a certificate of the cell's authority. The certificate of
//! a client is for [`MEMBER_NAME`], which clients know each other by; to the metadata server the
//! client is the *fingerprint* of its certificate, the BLAKE3 hash of its DER.
//!
//! A token is handed to a new member:
//!
//! ```text
//! weft1.SECRET.AUTHORITY.ADDRESS
//! ```
//!
//! 16 secret bytes, the fingerprint of the authority's certificate, both as hexadecimal digits, and
//! the address of the metadata server. The server keeps the hash of the secret. The bearer of the
//! token can join once, before it expires. A man in the middle is impossible, for the server must
//! show a certificate of that very authority.

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SignatureAlgorithm,
};
use weft_net::Address;
use weft_ringer::BlockHash;
use weft_vfs::host_file::{self, NewFile};

use super::{Error, MEMBER_NAME, PORT, Result};

/// The secret of a token, in bytes.
pub const TOKEN_SECRET_BYTES: usize = 16;
/// A public key of Ed25519, in bytes.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// The longest name of a member, in bytes.
pub const MEMBER_MAX_BYTES: usize = 64;
/// The name of the identity that [`create`] makes for the administrator of the cell.
pub const ADMIN_NAME: &str = "admin";
const TOKEN_PREFIX: &str = "weft1";

fn failed(e: &rcgen::Error) -> Error {
    weft_net::Error::Tls(e.to_string()).into()
}

/// The hash that a certificate, in DER, is known by.
#[must_use]
pub fn fingerprint(der: &[u8]) -> BlockHash {
    BlockHash(*blake3::hash(der).as_bytes())
}

/// The fingerprint of the first certificate in a file.
///
/// # Errors
/// [`weft_net::Error::Tls`] names the file.
pub fn fingerprint_in(path: &Path) -> Result<BlockHash> {
    Ok(fingerprint(&weft_net::certificate_in(path)?))
}

/// The hash of a token's secret, which the server stores.
#[must_use]
pub fn secret_hash(secret: &[u8]) -> BlockHash {
    BlockHash(blake3::derive_key("weft-ringer 2026 invitation", secret))
}

/// Returns true if a text is a valid member name: letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_member_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=MEMBER_MAX_BYTES).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Writes a file that must not be there, whole and durably, for its owner alone if it is secret.
pub fn write_new(path: &Path, text: &str, secret: bool) -> Result<()> {
    let failed = |e| Error::io(path.display().to_string(), e);
    let mode = if secret { 0o600 } else { 0o644 };
    let mut file = NewFile::create(path, mode).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.persist_new()).map_err(failed)
}

/// An Ed25519 key in PKCS#8 version 1 (RFC 8410, section 7). The version 2 that `ring` makes has the
/// public key too, and OpenSSL 3.0 cannot read it.
fn pem_of(key: &KeyPair) -> Result<String> {
    // Version, algorithm and the head of the secret, in both versions.
    const BODY: [u8; 14] = [2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
    let whole = key.serialize_der();
    // The first two bytes are the head of it all, and the fifth is the version.
    let is_expected = whole.get(5..16) == Some(&BODY[3..]);
    let secret = whole.get(16..48).filter(|_| is_expected);
    let secret = secret.ok_or_else(|| failed(&rcgen::Error::CouldNotParseKeyPair))?;
    let text = BASE64.encode(&[&[48, 46][..], &BODY[..], secret].concat());
    Ok(format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"))
}

fn authority_params() -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(|e| failed(&e))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    // Always the same: the issuer is found by its key.
    params.distinguished_name.push(DnType::CommonName, "weft-ringer authority");
    Ok(params)
}

fn leaf_params(common_name: &str, names: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names).map_err(|e| failed(&e))?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Other clients connect to this client as well.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// Makes a new authority in a directory, with a certificate for a metadata server that is called by
/// one of `hosts` (names or IP addresses), and one for the administrator.
///
/// # Errors
/// [`weft_net::Error::Io`], also if one of the files is there.
pub fn create(directory: &Path, hosts: &[String]) -> Result<()> {
    let io = |e| Error::io(directory.display().to_string(), e);
    host_file::create_dir_all(directory, 0o777).map_err(io)?;
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|e| failed(&e))?;
    let (secret, params) = (pem_of(&key)?, authority_params()?);
    let issuer = CertifiedIssuer::self_signed(params, key).map_err(|e| failed(&e))?;
    let authority = issuer.pem();
    write_new(&directory.join("ca-key.pem"), &secret, true)?;
    write_new(&directory.join("ca-cert.pem"), &authority, false)?;
    let member = vec![MEMBER_NAME.to_owned()];
    for (role, name, names) in
        [("server", "metadata server", hosts.to_vec()), ("client", ADMIN_NAME, member)]
    {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|e| failed(&e))?;
        let params = leaf_params(name, names)?;
        let certificate = params.signed_by(&key, &issuer).map_err(|e| failed(&e))?;
        // The chain shows a new member the authority's certificate too.
        let chain = format!("{}{authority}", certificate.pem());
        write_new(&directory.join(format!("{role}-key.pem")), &pem_of(&key)?, true)?;
        write_new(&directory.join(format!("{role}-cert.pem")), &chain, false)?;
    }
    Ok(())
}

/// The public key of a new member that asks for a certificate.
struct Asked(Vec<u8>);

impl PublicKeyData for Asked {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// A cell's authority: gives certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in a directory made by [`create`]; `None` if its key is not there.
    ///
    /// # Errors
    /// [`weft_net::Error::Io`], [`weft_net::Error::Tls`].
    pub fn open(directory: &Path) -> Result<Option<Self>> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(|e| Error::io(path.display().to_string(), e))
        };
        if !directory.join("ca-key.pem").exists() {
            return Ok(None);
        }
        let key = KeyPair::from_pem(&read("ca-key.pem")?).map_err(|e| failed(&e))?;
        let certificate = read("ca-cert.pem")?;
        Ok(Some(Self { issuer: Issuer::new(authority_params()?, key), certificate }))
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a member, as PEM with the authority's behind it, and its fingerprint.
    ///
    /// # Errors
    /// [`weft_net::Error::Tls`].
    pub fn admit(&self, name: &str, public_key: &[u8]) -> Result<(String, BlockHash)> {
        let params = leaf_params(name, vec![MEMBER_NAME.to_owned()])?;
        let asked = Asked(public_key.to_vec());
        let certificate = params.signed_by(&asked, &self.issuer).map_err(|e| failed(&e))?;
        let chain = format!("{}{}", certificate.pem(), self.certificate);
        Ok((chain, fingerprint(certificate.der())))
    }
}

/// The key pair of a new member.
pub struct NewKey(KeyPair);

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewKey")
    }
}

impl NewKey {
    /// A new one.
    ///
    /// # Errors
    /// [`weft_net::Error::Tls`] if there is no randomness.
    pub fn generate() -> Result<Self> {
        KeyPair::generate_for(&PKCS_ED25519).map(Self).map_err(|e| failed(&e))
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        self.0.public_key_raw()
    }

    /// All of it, as PEM.
    ///
    /// # Errors
    /// [`weft_net::Error::Tls`] if it is no Ed25519 key.
    pub fn pem(&self) -> Result<String> {
        pem_of(&self.0)
    }
}

/// An invitation to join a cell.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The secret by which the server recognises it.
    pub secret: [u8; TOKEN_SECRET_BYTES],
    /// The fingerprint of the authority's certificate.
    pub authority: BlockHash,
    /// The address of the metadata server.
    pub server: Address,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret does not belong in a log.
        f.debug_struct("Token").field("server", &self.server).finish_non_exhaustive()
    }
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secret, authority) =
            (HEXLOWER.encode(&self.secret), HEXLOWER.encode(&self.authority.0));
        write!(f, "{TOKEN_PREFIX}.{secret}.{authority}.{}", self.server)
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::Refused(
                "invalid invitation token: expected weft1.SECRET.AUTHORITY.ADDRESS".into(),
            )
        };
        let mut parts = text.trim().splitn(4, '.');
        if parts.next() != Some(TOKEN_PREFIX) {
            return Err(bad());
        }
        let secret = parts.next().and_then(from_hex).ok_or_else(bad)?;
        let authority = BlockHash(parts.next().and_then(from_hex).ok_or_else(bad)?);
        let server = Address::parse(parts.next().ok_or_else(bad)?, PORT)?;
        Ok(Self { secret, authority, server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written() {
        for server in
            ["nas:7473", "quic://nas:7473", "[::1]:80", "192.168.1.2:7473", "unix:/run/cell"]
        {
            let server = Address::parse(server, PORT).expect("an address");
            let token = Token { secret: [7; 16], authority: BlockHash([9; 32]), server };
            let text = token.to_string();
            assert_eq!(text.parse::<Token>().expect("a token"), token);
            assert!(!format!("{token:?}").contains("0707"), "the secret is shown");
            for cut in 0..text.len() - 1 {
                // A truncated address may still be valid.
                let cut = text[..cut].parse::<Token>();
                assert!(cut.is_err() || cut.is_ok_and(|t| t.secret == token.secret));
            }
        }
        for bad in ["", "weft1", "weft2.00", "weft1.é.é.x", "weft1...."] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_authority_is_made_once_and_opened_again() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(Authority::open(dir.path()).expect("none").is_none());
        create(dir.path(), &["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("made");
        create(dir.path(), &[]).expect_err("it is there");
        let authority = Authority::open(dir.path()).expect("readable").expect("there");
        let key = NewKey::generate().expect("a key");
        let (pem, print) = authority.admit("laptop", key.public()).expect("a certificate");
        let path = dir.path().join("laptop.pem");
        write_new(&path, &pem, false).expect("written");
        assert_eq!(fingerprint_in(&path).expect("a certificate"), print);
        // Other programs read the keys.
        for file in ["ca-key.pem", "server-key.pem", "client-key.pem"] {
            let file = dir.path().join(file);
            let args = ["pkey", "-noout", "-in"];
            match std::process::Command::new("openssl").args(args).arg(&file).output() {
                Ok(ran) => assert!(ran.status.success(), "{ran:?}"),
                Err(_) => println!("skipped: openssl is missing"),
            }
        }
        use std::os::unix::fs::PermissionsExt;
        let secret = fs::metadata(dir.path().join("ca-key.pem")).expect("there");
        assert_eq!(secret.permissions().mode() & 0o777, 0o600);
    }

    /// OpenSSL 3.0 reads version 1 of PKCS#8 alone, and so do the programs that use it.
    #[test]
    fn keys_are_of_the_version_that_all_programs_read() {
        let key = NewKey::generate().expect("a key");
        let pem = key.pem().expect("PEM");
        let again = KeyPair::from_pem(&pem).expect("a key");
        assert_eq!(again.public_key_raw(), key.public());
        let dir = tempfile::tempdir().expect("a directory");
        create(dir.path(), &["localhost".to_owned()]).expect("made");
        for name in ["ca", "server", "client"] {
            let path = dir.path().join(format!("{name}-key.pem"));
            let pem = fs::read_to_string(&path).expect("a key");
            let text = pem.lines().nth(1).expect("a line");
            let der = data_encoding::BASE64.decode(text.as_bytes()).expect("base 64");
            assert_eq!(der[..5], [0x30, 46, 2, 1, 0], "{name}: version 1 of PKCS#8");
            let mut openssl = std::process::Command::new("openssl");
            match openssl.args(["pkey", "-noout", "-in"]).arg(&path).output() {
                Ok(read) => assert!(read.status.success(), "{name}: {read:?}"),
                Err(e) => println!("not read by openssl: {e}"),
            }
        }
    }

    #[test]
    fn names_of_members_are_plain() {
        assert!(is_member_name("ada-laptop_2.home"));
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(!is_member_name(bad), "{bad}");
        }
    }
}
