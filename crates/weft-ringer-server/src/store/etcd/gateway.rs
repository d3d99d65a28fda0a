//! etcd's JSON gateway: calls to any member that answers.
//!
//! Source: <https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/>, and `rpc.proto` of etcd for the
//! fields. Keys and values are base64, 64-bit numbers are text, and default values are left out.
//!
//! The crate `etcd-client` speaks gRPC instead. It is not used: it is built with `protoc`, which would
//! be one more program to install before weft can be built, and with tonic and prost, where the
//! gateway takes the HTTP client that other parts have already. Base64 makes requests a third longer; a
//! commit's time is dominated by etcd's own write to disk.
//!
//! Invariants:
//! - A call that is not answered is made again, to the next member, until its time is up. So every
//!   request must be idempotent: reads are, and transactions that compare what they change.
//! - [`CallError::Refused`]: etcd did nothing. [`CallError::Away`]: it may have.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use data_encoding::BASE64;
use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use weft_ringer::Moment;
use weft_ringer_net::now;

use weft_ringer::store::{StoreError, StoreResult};

/// The time limit of the first attempt at one member. A member that is cut off from the others is
/// silent.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The time limit for connecting to a member's address.
const CONNECT: Duration = Duration::from_millis(800);
/// The pause before all are asked again when no member has answered.
const PAUSE: Duration = Duration::from_millis(50);
/// The error text for a member that did not answer.
const SILENT: &str = "request timed out";
/// The longest answer that is accepted, in bytes: a page of the longest records, in base64.
const ANSWER_MAX_BYTES: u64 = 512 << 20;

/// The codes of gRPC that mean: nothing has happened, and a retry would not change that.
/// <https://grpc.io/docs/guides/status-codes/>
mod code {
    pub(super) const DEFINITE: &[u32] =
        &[INVALID, NOT_FOUND, DENIED, EXHAUSTED, PRECONDITION, RANGE, UNIMPLEMENTED, WHO];
    pub(super) const INVALID: u32 = 3;
    pub(super) const NOT_FOUND: u32 = 5;
    pub(super) const DENIED: u32 = 7;
    pub(super) const EXHAUSTED: u32 = 8;
    pub(super) const PRECONDITION: u32 = 9;
    pub(super) const RANGE: u32 = 11;
    pub(super) const UNIMPLEMENTED: u32 = 12;
    pub(super) const WHO: u32 = 16;
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No member answered in time.
    #[error("no etcd member answers: {0}")]
    Away(String),
    /// etcd has no room left.
    #[error("etcd is full")]
    Full,
    /// etcd refused the request.
    #[error("etcd refuses: {0}")]
    Refused(String),
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Full => Self::Full,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Bytes, transferred in base64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct B64(pub(super) Vec<u8>);

impl Serialize for B64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for B64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        BASE64.decode(text.as_bytes()).map(Self).map_err(D::Error::custom)
    }
}

/// A 64-bit number, transferred as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Int(pub(super) i64);

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Int;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or one as text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Int, E> {
                text.parse().map(Int).map_err(E::custom)
            }
            fn visit_i64<E>(self, number: i64) -> Result<Int, E> {
                Ok(Int(number))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Int, E> {
                i64::try_from(number).map(Int).map_err(E::custom)
            }
        }
        from.deserialize_any(Either)
    }
}

/// A request for keys.
#[derive(Debug, Clone, Serialize, Default)]
pub(super) struct RangeAsk {
    pub(super) key: B64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<B64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Int>,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: B64,
    pub(super) value: B64,
    pub(super) create_revision: Int,
    pub(super) mod_revision: Int,
    pub(super) lease: Int,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub(super) struct Range {
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Int,
}

/// A condition on a key: exactly one of the two is set.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Compare {
    key: B64,
    result: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_revision: Option<Int>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<Int>,
}

impl Compare {
    /// The key was created by this revision; 0: it does not exist.
    pub(super) fn created(key: Vec<u8>, at: Int) -> Self {
        let create_revision = Some(at);
        Self {
            key: B64(key),
            result: "EQUAL",
            target: "CREATE",
            create_revision,
            mod_revision: None,
        }
    }

    /// The key was last changed by this revision; 0: it does not exist.
    pub(super) fn changed(key: Vec<u8>, at: Int) -> Self {
        let mod_revision = Some(at);
        Self { key: B64(key), result: "EQUAL", target: "MOD", create_revision: None, mod_revision }
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Put {
    pub(super) key: B64,
    pub(super) value: B64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Int>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Delete {
    pub(super) key: B64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<B64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) enum Op {
    #[serde(rename = "request_range")]
    Range(RangeAsk),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Delete),
}

impl Op {
    pub(super) fn get(key: Vec<u8>) -> Self {
        Self::Range(RangeAsk { key: B64(key), ..RangeAsk::default() })
    }

    pub(super) fn put(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self::Put(Put { key: B64(key), value: B64(value), lease: None })
    }

    pub(super) fn delete(key: Vec<u8>) -> Self {
        Self::Delete(Delete { key: B64(key), range_end: None })
    }

    pub(super) fn delete_range(from: Vec<u8>, to: Vec<u8>) -> Self {
        Self::Delete(Delete { key: B64(from), range_end: Some(B64(to)) })
    }
}

#[derive(Debug, Clone, Serialize, Default)]
pub(super) struct TxnAsk {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Op>,
    pub(super) failure: Vec<Op>,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub(super) struct OpAnswer {
    response_range: Range,
}

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(default)]
pub(super) struct Txn {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<OpAnswer>,
}

impl Txn {
    /// The keys that each operation read.
    pub(super) fn ranges(self) -> impl Iterator<Item = Vec<KeyValue>> {
        self.responses.into_iter().map(|answer| answer.response_range.kvs)
    }
}

/// An error answer of etcd.
#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct No {
    code: u32,
    message: String,
    error: serde_json::Value,
}

/// The members of an etcd cluster.
#[derive(Debug)]
pub(super) struct Gateway {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The index of the member that answered last.
    at: AtomicUsize,
}

fn bad_certificate(path: &Path, e: impl fmt::Display) -> StoreError {
    StoreError::Failed(format!("{}: {e}", path.display()))
}

fn pem(path: &Path) -> StoreResult<Vec<PemItem<'static>>> {
    let bytes = std::fs::read(path).map_err(|e| bad_certificate(path, e))?;
    parse_pem(&bytes).collect::<Result<_, _>>().map_err(|e| bad_certificate(path, e))
}

fn certificates(path: &Path) -> StoreResult<Vec<Certificate<'static>>> {
    let found = pem(path)?.into_iter().filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    let list: Vec<_> = found.collect();
    if list.is_empty() {
        return Err(bad_certificate(path, "the file contains no certificate"));
    }
    Ok(list)
}

fn key(path: &Path) -> StoreResult<PrivateKey<'static>> {
    let found = pem(path)?.into_iter().find_map(|item| match item {
        PemItem::PrivateKey(key) => Some(key),
        _ => None,
    });
    found.ok_or_else(|| bad_certificate(path, "the file contains no private key"))
}

/// The TLS configuration from the files of a directory, laid out as weft's own: the members present
/// a certificate of `ca-cert.pem`; `client-cert.pem` is presented to them if it is there.
fn tls(directory: &Path) -> StoreResult<TlsConfig> {
    let roots = certificates(&directory.join("ca-cert.pem"))?;
    let own = directory.join("client-cert.pem");
    let own = if own.exists() {
        let key = key(&directory.join("client-key.pem"))?;
        Some(ClientCert::new_with_certs(&certificates(&own)?, key))
    } else {
        None
    };
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(own)
        .build())
}

impl Gateway {
    /// Makes a gateway; no request is sent yet.
    pub(super) fn new(endpoints: &[String], certificates: Option<&Path>) -> StoreResult<Self> {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT));
        if let Some(directory) = certificates {
            config = config.tls_config(tls(directory)?);
        }
        let mut list = Vec::new();
        for endpoint in endpoints {
            let endpoint = endpoint.trim_end_matches('/');
            let (has_scheme, is_https) = (endpoint.contains("://"), certificates.is_some());
            let whole = match (has_scheme, is_https) {
                (true, _) => endpoint.to_owned(),
                (false, true) => format!("https://{endpoint}"),
                (false, false) => format!("http://{endpoint}"),
            };
            if whole.starts_with("https://") && certificates.is_none() {
                return Err(StoreError::Failed(format!("{whole} needs certificates")));
            }
            if !whole.starts_with("https://") && !whole.starts_with("http://") {
                return Err(StoreError::Failed(format!("{whole} is not an etcd address")));
            }
            list.push(whole);
        }
        if list.is_empty() {
            return Err(StoreError::Failed("no etcd address was given".into()));
        }
        Ok(Self { agent: config.build().new_agent(), endpoints: list, at: AtomicUsize::new(0) })
    }

    /// Sends a request until a member answers, or it is `until`.
    pub(super) fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        ask: &Q,
        until: Moment,
    ) -> Result<A, CallError> {
        let body = serde_json::to_vec(ask).map_err(|e| CallError::Refused(e.to_string()))?;
        let members = self.endpoints.len();
        // Of each member, the last.
        let mut whys = vec![String::new(); members];
        for attempt in 0.. {
            let left = Duration::from_micros(until.0.saturating_sub(now().0));
            if left.is_zero() {
                break;
            }
            // A member that is slow rather than gone gets longer the next time.
            let rounds = u32::try_from(attempt / members).unwrap_or(u32::MAX);
            let limit = ATTEMPT.saturating_mul(rounds.saturating_add(1)).min(left);
            let at = self.at.load(Ordering::Relaxed);
            match self.ask(at, path, &body, limit) {
                Ok(answer) => match serde_json::from_slice(&answer) {
                    Ok(answer) => return Ok(answer),
                    Err(e) => {
                        whys[at] = format!("{} sent an invalid response: {e}", self.endpoints[at]);
                    }
                },
                // A last attempt that had no time left says nothing about the member.
                Err(CallError::Away(e)) if attempt > 0 && e == SILENT => {}
                Err(CallError::Away(e)) => whys[at] = format!("{}: {e}", self.endpoints[at]),
                Err(no) => return Err(no),
            }
            tracing::debug!("etcd: {}", whys[at]);
            let next = (at + 1) % members;
            let _ = self.at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            if (attempt + 1) % members == 0 {
                std::thread::sleep(PAUSE.min(left));
            }
        }
        whys.retain(|why| !why.is_empty());
        Err(CallError::Away(match whys.is_empty() {
            true => "the time limit passed before the request was sent".to_owned(),
            false => whys.join("; "),
        }))
    }

    fn ask(
        &self,
        at: usize,
        path: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let away = |e: ureq::Error| match e {
            ureq::Error::Timeout(_) => CallError::Away(SILENT.to_owned()),
            e => CallError::Away(e.to_string()),
        };
        let request = self.agent.post(format!("{}{path}", self.endpoints[at]));
        let request = request.config().timeout_global(Some(limit)).build();
        let request = request.header("content-type", "application/json");
        let mut response = request.send(body).map_err(away)?;
        let status = response.status();
        let answer = response.body_mut().with_config().limit(ANSWER_MAX_BYTES);
        let answer = answer.read_to_vec().map_err(away)?;
        if status.is_success() {
            return Ok(answer);
        }
        let no: No = serde_json::from_slice(&answer).unwrap_or_default();
        let text = match (no.message.is_empty(), &no.error) {
            (false, _) => no.message,
            (true, serde_json::Value::String(text)) => text.clone(),
            (true, _) => format!("HTTP status {status}"),
        };
        if no.code == code::EXHAUSTED {
            // This code also means: not now.
            let is_full = text.contains("space exceeded");
            return Err(if is_full { CallError::Full } else { CallError::Away(text) });
        }
        let is_definite = code::DEFINITE.contains(&no.code);
        Err(if is_definite { CallError::Refused(text) } else { CallError::Away(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_etcd_are_parsed() {
        let text = r#"{"header":{"cluster_id":"1","revision":"8"},"succeeded":true,"responses":[
            {"response_range":{"header":{"revision":"8"},"kvs":[{"key":"Zm9v",
            "create_revision":"2","mod_revision":7,"version":"4","value":"YmFy"}],"count":"1"}},
            {"response_put":{"header":{"revision":"8"}}}]}"#;
        let txn: Txn = serde_json::from_str(text).expect("as documented");
        assert!(txn.succeeded);
        assert_eq!(txn.header.revision, Int(8));
        let [found, none] = &txn.ranges().collect::<Vec<_>>()[..] else { panic!("two") };
        assert_eq!(
            (found[0].key.0.as_slice(), found[0].value.0.as_slice()),
            (&b"foo"[..], &b"bar"[..])
        );
        assert_eq!((found[0].create_revision, found[0].mod_revision), (Int(2), Int(7)));
        assert!(none.is_empty());
        let empty: Txn = serde_json::from_str("{}").expect("defaults are left out");
        assert!(!empty.succeeded);
        assert!(serde_json::from_str::<Range>(r#"{"kvs":[{"key":"?"}]}"#).is_err());
    }

    #[test]
    fn requests_are_written_as_documented() {
        let ask = TxnAsk {
            compare: vec![Compare::created(b"foo".to_vec(), Int(2))],
            success: vec![Op::put(b"foo".to_vec(), b"bar".to_vec()), Op::get(vec![0])],
            failure: vec![Op::delete_range(vec![1], vec![2])],
        };
        let expected = serde_json::json!({
            "compare": [{"key": "Zm9v", "result": "EQUAL", "target": "CREATE", "create_revision": "2"}],
            "success": [{"request_put": {"key": "Zm9v", "value": "YmFy"}},
                {"request_range": {"key": "AA=="}}],
            "failure": [{"request_delete_range": {"key": "AQ==", "range_end": "Ag=="}}],
        });
        assert_eq!(serde_json::to_value(&ask).expect("text"), expected);
    }

    #[test]
    fn invalid_endpoints_are_refused() {
        let new = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|&e| e.to_owned()).collect();
            Gateway::new(&list, None).map(|g| g.endpoints).map_err(|e| e.to_string())
        };
        assert_eq!(new(&["a:1/", "http://b:2"]).expect("good"), ["http://a:1", "http://b:2"]);
        assert!(new(&[]).is_err());
        assert!(new(&["https://a:1"]).expect_err("plain").contains("certificates"));
        assert!(new(&["ftp://a"]).is_err());
    }
}
