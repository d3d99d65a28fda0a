//! HTTP for S3: ureq, which is also used for etcd, in threads that may block. So no second TLS and
//! no asynchronous sockets are built.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body::Body;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpService,
};
use ureq::http::{Method, Request, Response, request};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The time limit for connecting to an address.
const CONNECT: Duration = Duration::from_secs(5);
/// The time limit of one request. The caller gives up sooner.
const REQUEST: Duration = Duration::from_secs(60);
/// The longest answer, in bytes: a block is shorter, and so is a page of a listing.
const ANSWER_MAX_BYTES: u64 = 16 << 20;
/// The paths at which systems store the certificates of trusted authorities.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Makes connections of ureq.
#[derive(Debug)]
pub(super) struct Connector;

/// The authorities that this system trusts, or those in the file `SSL_CERT_FILE`.
fn authorities() -> Vec<Certificate<'static>> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut files = named.into_iter().chain(BUNDLES.iter().map(PathBuf::from));
    let bytes = files.find_map(|file| std::fs::read(file).ok()).unwrap_or_default();
    let certificates = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let may_be_plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        let may_be_plain = may_be_plain.is_some_and(|text| text == "true" || text == "1");
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&authorities()))
            .build();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .https_only(!may_be_plain)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(REQUEST))
            .tls_config(tls);
        let agent = config.build().new_agent();
        Ok(HttpClient::new(Service { agent }))
    }
}

#[derive(Debug)]
struct Service {
    agent: ureq::Agent,
}

fn translate(e: ureq::Error) -> HttpError {
    let kind = match &e {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, e)
}

fn send(
    agent: &ureq::Agent,
    parts: request::Parts,
    body: Vec<u8>,
) -> Result<Response<Vec<u8>>, ureq::Error> {
    let has_body = matches!(parts.method, Method::PUT | Method::POST | Method::PATCH);
    let mut response = if has_body {
        agent.run(Request::from_parts(parts, body))?
    } else {
        agent.run(Request::from_parts(parts, ()))?
    };
    let bytes = response.body_mut().with_config().limit(ANSWER_MAX_BYTES).read_to_vec()?;
    let (parts, _) = response.into_parts();
    Ok(Response::from_parts(parts, bytes))
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, mut body) = request.into_parts();
        let mut bytes = Vec::with_capacity(body.content_length());
        while let Some(frame) =
            std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            if let Ok(data) = frame?.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        let agent = self.agent.clone();
        let sent = tokio::task::spawn_blocking(move || send(&agent, parts, bytes)).await;
        let response =
            sent.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?.map_err(translate)?;
        let (parts, bytes) = response.into_parts();
        Ok(HttpResponse::from_parts(parts, bytes.into()))
    }
}
