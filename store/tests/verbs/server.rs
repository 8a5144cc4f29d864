//! A real etcd with TLS, client certificates and roles, set up as `docs/fleet.md` says.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pfo_store::{Credentials, EtcdSettings};
use tempfile::TempDir;

/// The nodes that etcd lets in.
const NODES: [&str; 4] = ["node-a", "node-b", "node-c", "node-d"];

pub(crate) struct Server {
    directory: TempDir,
    client_port: u16,
    peer_port: u16,
    process: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program to its end.
fn run(program: &str, arguments: &str, directory: &TempDir) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments}: {said}")) }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// None, which is said, where etcd, etcdctl or openssl is not installed.
    pub(crate) fn start() -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let needed = [("etcd", "--version"), ("etcdctl", "version"), ("openssl", "version")];
        for (program, argument) in needed {
            if let Err(error) = run(program, argument, &directory) {
                println!("skipped: {error}; `make setup` installs it");
                return None;
            }
        }
        let (client_port, peer_port) = (free_port(), free_port());
        let mut server = Self { directory, client_port, peer_port, process: None };
        server.make_certificates();
        server.restart();
        server.make_roles();
        Some(server)
    }

    fn make_certificates(&self) {
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        let openssl = |arguments: String| run("openssl", &arguments, &self.directory).unwrap();
        openssl(format!("req -x509 {new_key} -days 2 -keyout ca.key -out ca.pem -subj /CN=ca"));
        let extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        fs::write(self.path("extensions"), extensions).unwrap();
        for name in ["etcd", "root", "stranger"].iter().chain(&NODES) {
            openssl(format!(
                "req -new {new_key} -keyout {name}.key -out {name}.csr -subj /CN={name}"
            ));
            openssl(format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                 -extfile extensions -out {name}.pem"
            ));
        }
    }

    fn make_roles(&self) {
        let endpoint = self.endpoint();
        let ctl = |arguments: &str| {
            let tls = "--cacert=ca.pem --cert=root.pem --key=root.key";
            run("etcdctl", &format!("--endpoints={endpoint} {tls} {arguments}"), &self.directory)
        };
        let began = Instant::now();
        while let Err(error) = ctl("endpoint health") {
            assert!(began.elapsed() < Duration::from_secs(60), "{error}");
        }
        ctl("role add pfo-node").unwrap();
        for prefix in ["node", "job", "measured", "slice"].map(|kind| format!("/pfo/1/{kind}/")) {
            ctl(&format!("role grant-permission pfo-node --prefix=true readwrite {prefix}"))
                .unwrap();
        }
        let nodes = NODES.map(|node| (node, "pfo-node"));
        for (user, role) in nodes.into_iter().chain([("root", "root")]) {
            ctl(&format!("user add {user} --no-password")).unwrap();
            ctl(&format!("user grant-role {user} {role}")).unwrap();
        }
        ctl("auth enable").unwrap();
    }

    /// Ends etcd as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer_port));
        let arguments = format!(
            "--name t --data-dir data \
             --listen-client-urls {client} --advertise-client-urls {client} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} \
             --initial-cluster t={peer} --client-cert-auth --trusted-ca-file ca.pem \
             --cert-file etcd.pem --key-file etcd.key --logger zap --log-level error"
        );
        let process = Command::new("etcd")
            .args(arguments.split_whitespace())
            .current_dir(&self.directory)
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.client_port)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub(crate) fn settings(&self, node: &str) -> EtcdSettings {
        EtcdSettings {
            endpoints: vec![self.endpoint()],
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
