//! Members of etcd as processes of this machine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The longest wait for etcd, far above what the slowest machine needs.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Member {
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

/// An etcd cluster; it ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    dir: tempfile::TempDir,
    members: Vec<Member>,
    /// The certificates of both sides.
    certificates: Option<PathBuf>,
}

/// Returns an unused port, below those that the kernel assigns to connections; each once in this
/// process.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests in other processes begin elsewhere.
    let begin = u16::try_from(std::process::id() % 1000).unwrap_or(0) * 10;
    for _ in 0..10_000 {
        let port = 20_000 + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}

/// `WEFT_ETCD`, or `etcd` in the `PATH`.
fn binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("WEFT_ETCD") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|etcd| etcd.is_file())
}

/// Sends a minimal request to a JSON gateway.
fn http(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut link = TcpStream::connect(("127.0.0.1", port))?;
    link.set_read_timeout(Some(LIMIT))?;
    let len = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {len}\r\n\r\n{body}");
    link.write_all(request.as_bytes())?;
    let mut answer = String::new();
    link.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| std::io::Error::other("no answer"))
}

impl Cluster {
    /// Starts `count` members, and waits until they have a leader. `None`, and a line that says so,
    /// if there is no etcd on this machine.
    ///
    /// # Panics
    /// If there is one, and it does not work.
    #[must_use]
    pub fn start(count: usize) -> Option<Self> {
        let cluster = Self::begin(count, None)?;
        cluster.wait();
        Some(cluster)
    }

    /// Starts one member that uses TLS: as `localhost`, with the certificates of a directory. Does
    /// not wait.
    ///
    /// # Panics
    /// If etcd does not start.
    #[must_use]
    pub fn start_with_tls(certificates: PathBuf) -> Option<Self> {
        Self::begin(1, Some(certificates))
    }

    fn begin(count: usize, certificates: Option<PathBuf>) -> Option<Self> {
        let Some(binary) = binary() else {
            eprintln!("skipped: no etcd on this machine (package etcd-server, or WEFT_ETCD)");
            return None;
        };
        let dir = tempfile::tempdir().expect("a directory");
        let member = |_| Member { client_port: free_port(), peer_port: free_port(), process: None };
        let members = (0..count).map(member).collect();
        let mut cluster = Self { binary, dir, members, certificates };
        for at in 0..count {
            cluster.restart(at);
        }
        Some(cluster)
    }

    fn wait(&self) {
        let end = Instant::now() + LIMIT;
        while self.leader().is_none() {
            assert!(Instant::now() < end, "etcd has no leader");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The endpoint of each member for clients.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let at = |m: &Member| match self.certificates {
            None => format!("http://127.0.0.1:{}", m.client_port),
            Some(_) => format!("https://localhost:{}", m.client_port),
        };
        self.members.iter().map(at).collect()
    }

    /// The port of a member for clients.
    #[must_use]
    pub fn port(&self, at: usize) -> u16 {
        self.members[at].client_port
    }

    /// Starts a member, again if it was killed.
    ///
    /// # Panics
    /// If that fails.
    pub fn restart(&mut self, at: usize) {
        let name = |at: usize| format!("m{at}");
        let peer = |m: &Member| format!("http://127.0.0.1:{}", m.peer_port);
        let all = self.members.iter().enumerate();
        let all: Vec<String> = all.map(|(n, m)| format!("{}={}", name(n), peer(m))).collect();
        let (member, endpoint) = (&self.members[at], self.endpoints()[at].clone());
        let log = self.dir.path().join(format!("{}.log", name(at)));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
        let mut command = Command::new(&self.binary);
        if let Some(directory) = &self.certificates {
            let file = |name: &str| directory.join(name);
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca-cert.pem"));
            command.arg("--cert-file").arg(file("server-cert.pem"));
            command.arg("--key-file").arg(file("server-key.pem"));
        }
        let process = command
            .args(["--name", &name(at)])
            .arg("--data-dir")
            .arg(self.dir.path().join(name(at)))
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer(member)])
            .args(["--initial-advertise-peer-urls", &peer(member)])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            .args(["--logger", "zap", "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn();
        self.members[at].process = Some(process.expect("etcd starts"));
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// If it does not end.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            process.kill().expect("it ends");
            process.wait().expect("it has ended");
        }
    }

    /// The leader, if a member knows of a live one.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        let status = |port| {
            let text = http(port, "POST", "/v3/maintenance/status", "{}").ok()?;
            let status: serde_json::Value = serde_json::from_str(&text).ok()?;
            let id = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            Some((id(&status["header"]["member_id"])?, id(&status["leader"])?))
        };
        let known: Vec<_> = self.members.iter().map(|m| status(m.client_port)).collect();
        let lead = known.iter().position(|s| s.as_ref().is_some_and(|(own, lead)| own == lead));
        let lead = lead?;
        let leader = known[lead].as_ref().map(|(own, _)| own.clone());
        let agreed = known.iter().flatten().filter(|(_, l)| Some(l) == leader.as_ref()).count();
        (agreed * 2 > self.members.len()).then_some(lead)
    }

    /// Returns etcd's answer to a request to its gateway.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn ask(&self, path: &str, ask: &serde_json::Value) -> serde_json::Value {
        let text = http(self.members[0].client_port, "POST", path, &ask.to_string());
        serde_json::from_str(&text.expect("an answer")).expect("in JSON")
    }

    /// The keys with a prefix, and the lease of each; 0 for none.
    ///
    /// # Panics
    /// If etcd does not answer.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<(Vec<u8>, String)> {
        let base64 = |bytes: &[u8]| data_encoding::BASE64.encode(bytes);
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix") += 1;
        let found = self.ask(
            "/v3/kv/range",
            &serde_json::json!({"key": base64(prefix.as_bytes()), "range_end": base64(&end),
                "keys_only": true}),
        );
        let one = |kv: &serde_json::Value| {
            let key = data_encoding::BASE64.decode(kv["key"].as_str().expect("a key").as_bytes());
            (key.expect("base64"), kv["lease"].as_str().unwrap_or("0").to_owned())
        };
        found["kvs"].as_array().map(|kvs| kvs.iter().map(one).collect()).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.kill(at);
        }
        if std::thread::panicking() {
            for at in 0..self.members.len() {
                let log = self.dir.path().join(format!("m{at}.log"));
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(5).collect();
                eprintln!("etcd m{at}: {tail:?}");
            }
        }
    }
}
