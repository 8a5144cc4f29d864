//! A real etcd with TLS, client certificates and roles, set up as `docs/fleet.md` says.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pfo_store::{Credentials, EtcdSettings};
use tempfile::TempDir;

/// The nodes that etcd lets in.
const NODES: [&str; 4] = ["node-a", "node-b", "node-c", "node-d"];

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// How long a certificate is valid from now on, in days.
pub(crate) const VALID_DAYS: u32 = 2;

/// What to make etcd of.
#[derive(Clone, Debug)]
pub(crate) struct ServerSetup {
    /// How many members.
    pub(crate) members: usize,
    /// Where they listen.
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// The bytes that it may take; none for its default.
    pub(crate) quota_bytes: Option<u64>,
}

impl Default for ServerSetup {
    fn default() -> Self {
        Self { members: 1, addresses: vec![Ipv4Addr::LOCALHOST], quota_bytes: None }
    }
}

pub(crate) struct Server {
    setup: ServerSetup,
    directory: TempDir,
    pub(crate) members: Vec<Member>,
}

pub(crate) struct Member {
    client_port: u16,
    peer_port: u16,
    pub(crate) process: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }
}

/// Runs a program to its end; returns what it prints.
fn run(program: &str, arguments: &str, directory: &TempDir) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("{program} {arguments}: {}", text(&output.stderr)))
}

/// A port on which nobody listens. Linux gives those from 32768 on to connections, one of which could then
/// have it while its member is away.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    const PORTS: u32 = 20_000;
    let free = |_| {
        let number = process::id().wrapping_mul(64).wrapping_add(TRIED.fetch_add(1, Relaxed));
        let port = u16::try_from(12_000 + number % PORTS).unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(port)
    };
    (0..PORTS).find_map(free).unwrap()
}

impl Server {
    /// None, which is said, where etcd, etcdctl or openssl is not installed.
    pub(crate) fn start(setup: &ServerSetup) -> Option<Self> {
        let directory = super::scratch::scratch();
        let needed = [("etcd", "--version"), ("etcdctl", "version"), ("openssl", "version")];
        for (program, argument) in needed {
            if let Err(error) = run(program, argument, &directory) {
                println!("skipped: {error}; `make setup` installs it");
                return None;
            }
        }
        let member = |_| Member { client_port: free_port(), peer_port: free_port(), process: None };
        let members: Vec<_> = (0..setup.members).map(member).collect();
        let mut server = Self { setup: setup.clone(), directory, members };
        server.make_certificates();
        (0..setup.members).for_each(|member| server.restart(member));
        server.make_roles();
        Some(server)
    }

    fn make_certificates(&self) {
        self.make_authority("ca");
        let addresses = self.setup.addresses.iter().map(|address| format!("IP:{address}"));
        let addresses = addresses.collect::<Vec<_>>().join(",");
        let extensions =
            format!("subjectAltName={addresses}\nextendedKeyUsage=serverAuth,clientAuth\n");
        fs::write(self.path("extensions"), extensions).unwrap();
        for name in ["etcd", "root", "stranger"].iter().chain(&NODES) {
            let request = format!("req -new {NEW_KEY} -keyout {name}.key -out {name}.csr");
            run("openssl", &format!("{request} -subj /CN={name}"), &self.directory).unwrap();
            self.certify(name, VALID_DAYS);
        }
    }

    /// Has the authority sign a certificate that is valid for some days: with 0, for this second.
    pub(crate) fn certify(&self, name: &str, days: u32) {
        self.certify_by("ca", name, days);
    }

    fn certify_by(&self, authority: &str, name: &str, days: u32) {
        let sign = format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial \
             -days {days} -extfile extensions -out {name}.pem"
        );
        run("openssl", &sign, &self.directory).unwrap();
    }

    /// Has an authority sign a certificate that etcd does not know. Returns that of the authority.
    pub(crate) fn certify_by_another(&self, name: &str) -> PathBuf {
        self.make_authority("other");
        self.certify_by("other", name, VALID_DAYS);
        self.path("other.pem")
    }

    fn make_authority(&self, name: &str) {
        let request = format!("req -x509 {NEW_KEY} -days 2 -keyout {name}.key -out {name}.pem");
        run("openssl", &format!("{request} -subj /CN={name}"), &self.directory).unwrap();
    }

    fn make_roles(&self) {
        let began = Instant::now();
        while let Err(error) = self.ctl("endpoint health") {
            assert!(began.elapsed() < Duration::from_secs(60), "{error}");
        }
        // Its own patience is 2 s, which is little for a disk that others use.
        let patience = "--dial-timeout=60s --command-timeout=60s";
        let ctl = |arguments: String| drop(self.ctl(&format!("{patience} {arguments}")).unwrap());
        let grant = |role: &str, right: &str| ctl(format!("role grant-permission {role} {right}"));
        ctl("role add pfo-node".into());
        for kind in ["job", "measured", "slice"] {
            grant("pfo-node", &format!("--prefix=true readwrite /pfo/1/{kind}/"));
        }
        for kind in ["node", "budget", "savings"] {
            grant("pfo-node", &format!("--prefix=true read /pfo/1/{kind}/"));
        }
        ctl("role add pfo-budget".into());
        for key in ["orders", "blueprint"] {
            grant("pfo-budget", &format!("readwrite /pfo/1/budget/{key}"));
        }
        ctl("user add root --no-password".into());
        ctl("user grant-role root root".into());
        for node in NODES {
            let own = format!("pfo-node-{node}");
            ctl(format!("role add {own}"));
            for key in ["node", "budget/draw", "budget/curves", "savings"] {
                grant(&own, &format!("readwrite /pfo/1/{key}/{node}"));
            }
            ctl(format!("user add {node} --no-password"));
            for role in ["pfo-node", "pfo-budget", &own] {
                ctl(format!("user grant-role {node} {role}"));
            }
        }
        ctl("auth enable".into());
    }

    /// Asks etcd as its root.
    pub(crate) fn ctl(&self, arguments: &str) -> Result<String, String> {
        let endpoints = self.endpoints(self.setup.addresses[0]).join(",");
        let tls = "--cacert=ca.pem --cert=root.pem --key=root.key";
        run("etcdctl", &format!("--endpoints={endpoints} {tls} {arguments}"), &self.directory)
    }

    /// Ends a member as `kill -9` does.
    pub(crate) fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn restart(&mut self, number: usize) {
        self.kill(number);
        let member = &self.members[number];
        let addresses = self.setup.addresses.iter();
        let clients = addresses.map(|address| format!("https://{address}:{}", member.client_port));
        let clients = clients.collect::<Vec<_>>().join(",");
        let peer = |member: &Member| format!("https://127.0.0.1:{}", member.peer_port);
        let all = self.members.iter().enumerate();
        let all: Vec<_> =
            all.map(|(number, member)| format!("t{number}={}", peer(member))).collect();
        let (peer, all) = (peer(member), all.join(","));
        let quota = self.setup.quota_bytes.map(|bytes| format!("--quota-backend-bytes {bytes}"));
        let arguments = format!(
            "--name t{number} --data-dir data{number} \
             --listen-client-urls {clients} --advertise-client-urls {clients} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} \
             --initial-cluster {all} --client-cert-auth --trusted-ca-file ca.pem \
             --cert-file etcd.pem --key-file etcd.key --peer-client-cert-auth \
             --peer-trusted-ca-file ca.pem --peer-cert-file etcd.pem --peer-key-file etcd.key \
             --logger zap --log-level error {}",
            quota.unwrap_or_default()
        );
        let process = Command::new("etcd")
            .args(arguments.split_whitespace())
            .current_dir(&self.directory)
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.members[number].process = Some(process);
    }

    fn endpoints(&self, address: Ipv4Addr) -> Vec<String> {
        let endpoint = |member: &Member| format!("https://{address}:{}", member.client_port);
        self.members.iter().map(endpoint).collect()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// How a node reaches it.
    pub(crate) fn settings(&self, node: &str, address: Ipv4Addr) -> EtcdSettings {
        EtcdSettings {
            endpoints: self.endpoints(address),
            node: node.parse().unwrap(),
            lease_s: 2,
            keep_s: 60,
            credentials: Some(Credentials {
                ca: self.path("ca.pem"),
                certificate: self.path(&format!("{node}.pem")),
                key: self.path(&format!("{node}.key")),
            }),
        }
    }
}
