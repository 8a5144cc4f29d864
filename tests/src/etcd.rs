//! A real etcd for a fleet, and what can happen to it.

use std::net::Ipv4Addr;

use pfo_store::EtcdSettings;
use serde_json::Value;

use self::server::{Server, ServerSetup, VALID_DAYS};

#[path = "../../store/tests/verbs/scratch.rs"]
pub(crate) mod scratch;
#[path = "../../store/tests/verbs/server.rs"]
mod server;

/// What to make etcd of.
#[derive(Clone, Debug)]
pub struct EtcdSetup {
    /// How many members.
    pub members: usize,
    /// Where they listen beside 127.0.0.1.
    pub address: Option<Ipv4Addr>,
    /// The bytes that it may take; none for its default.
    pub quota_bytes: Option<u64>,
}

impl Default for EtcdSetup {
    fn default() -> Self {
        Self { members: 1, address: None, quota_bytes: None }
    }
}

/// The members of an etcd with TLS and roles.
pub struct EtcdCluster {
    server: Server,
    members: usize,
}

impl EtcdCluster {
    /// None, which is said, where etcd, etcdctl or openssl is not installed.
    #[must_use]
    pub fn start(setup: &EtcdSetup) -> Option<Self> {
        let addresses = ServerSetup::default().addresses.into_iter().chain(setup.address);
        let (members, quota_bytes) = (setup.members, setup.quota_bytes);
        let server =
            Server::start(&ServerSetup { members, addresses: addresses.collect(), quota_bytes })?;
        Some(Self { server, members })
    }

    /// How a node reaches it.
    #[must_use]
    pub fn settings(&self, node: &str, address: Ipv4Addr) -> EtcdSettings {
        self.server.settings(node, address)
    }

    /// Ends a member as `kill -9` does.
    pub fn kill(&mut self, member: usize) {
        self.server.kill(member);
    }

    /// Starts a member again.
    pub fn restart(&mut self, member: usize) {
        self.server.restart(member);
    }

    /// The member that leads.
    #[must_use]
    pub fn leader(&self) -> usize {
        let leads = |status: &Value| status["header"]["member_id"] == status["leader"];
        let leader = self.statuses().iter().position(leads);
        leader.unwrap_or_else(|| panic!("no member leads"))
    }

    /// Bytes of the largest member's database.
    #[must_use]
    pub fn size(&self) -> u64 {
        let sizes = self.statuses().into_iter().filter_map(|status| status["dbSize"].as_u64());
        sizes.max().unwrap_or(0)
    }

    /// What each member says of itself, in their order.
    fn statuses(&self) -> Vec<Value> {
        let printed = self.server.ctl("endpoint status --write-out=json").unwrap();
        let all: Vec<Value> = serde_json::from_str(&printed).unwrap();
        assert_eq!(all.len(), self.members, "{printed}");
        all.into_iter().map(|mut one| one["Status"].take()).collect()
    }

    /// The keys that have this in them.
    #[must_use]
    pub fn keys_with(&self, text: &str) -> Vec<String> {
        let keys = self.server.ctl("get --prefix --keys-only /").unwrap();
        keys.lines().filter(|key| key.contains(text)).map(str::to_owned).collect()
    }

    /// Writes what is no agent's until the store is full.
    pub fn fill(&self) {
        let value = "x".repeat(100_000);
        let fill = |number: u64| self.server.ctl(&format!("put /filling/{number} {value}"));
        let full = (0..10_000).find_map(|number| fill(number).err());
        let full = full.unwrap_or_else(|| panic!("it takes a gigabyte"));
        assert!(full.contains("database space exceeded"), "{full}");
    }

    /// Deletes that, as an administrator does whose store is full.
    pub fn make_room(&self) {
        let ctl = |arguments: &str| drop(self.server.ctl(arguments).unwrap());
        ctl("del --prefix /filling/");
        let revision = self.statuses()[0]["header"]["revision"].as_u64().unwrap();
        ctl(&format!("compaction {revision}"));
        ctl("defrag");
        ctl("alarm disarm");
    }

    /// Gives a node a certificate that expires at once.
    pub fn expire_certificate(&self, node: &str) {
        self.server.certify(node, 0);
    }

    /// Gives a node a certificate of an authority that etcd does not trust.
    pub fn distrust(&self, node: &str) {
        drop(self.server.certify_by_another(node));
    }

    /// Deletes a key.
    pub fn delete(&self, key: &str) {
        drop(self.server.ctl(&format!("del {key}")).unwrap());
    }

    /// What is at a key.
    #[must_use]
    pub fn get(&self, key: &str) -> String {
        self.server.ctl(&format!("get --print-value-only {key}")).unwrap().trim().to_owned()
    }

    /// Writes a value without spaces.
    pub fn put(&self, key: &str, value: &str) {
        drop(self.server.ctl(&format!("put {key} {value}")).unwrap());
    }

    /// Takes from all nodes what they may do below a key.
    pub fn forbid(&self, prefix: &str) {
        let revoke = format!("role revoke-permission --prefix=true pfo-node {prefix}");
        drop(self.server.ctl(&revoke).unwrap());
    }

    /// Takes a role from a node.
    pub fn take_role(&self, node: &str, role: &str) {
        drop(self.server.ctl(&format!("user revoke-role {node} {role}")).unwrap());
    }

    /// Lets all nodes write below a key.
    pub fn allow(&self, prefix: &str) {
        let grant = format!("role grant-permission --prefix=true pfo-node readwrite {prefix}");
        drop(self.server.ctl(&grant).unwrap());
    }

    /// Gives a node a certificate that is valid.
    pub fn renew_certificate(&self, node: &str) {
        self.server.certify(node, VALID_DAYS);
    }
}
