//! A network namespace with one link to that of the test, which can be cut as a cable is.

use std::net::Ipv4Addr;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::{identity, say_skipped};

/// Addresses for measuring, which no network uses: 198.18.0.0/15 (RFC 2544), four for each link.
const ADDRESSES: u32 = 0xC612_0000;
const LINKS: u32 = 1 << 15;

/// The link. It and its namespace are gone with this.
pub struct Link {
    namespace: String,
    here: String,
    address: Ipv4Addr,
}

impl Link {
    /// None, which is said, without the right to make one.
    #[must_use]
    pub fn create() -> Option<Self> {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        if !identity::is_root() {
            say_skipped("a network namespace takes root");
            return None;
        }
        for _ in 0..LINKS {
            let number = process::id().wrapping_mul(8).wrapping_add(TRIED.fetch_add(1, Relaxed));
            match Self::numbered(number % LINKS) {
                Ok(link) => return Some(link),
                // Another test has it, or was killed and has left it behind.
                Err(why) if why.contains("File exists") => {}
                Err(why) => {
                    say_skipped(&why);
                    return None;
                }
            }
        }
        say_skipped("there is no link left");
        None
    }

    fn numbered(number: u32) -> Result<Self, String> {
        let at = |place: u32| Ipv4Addr::from(ADDRESSES + 4 * number + place);
        let (namespace, here, there) =
            (format!("pfo-test-{number}"), format!("pfo{number}h"), format!("pfo{number}n"));
        ip(&format!("netns add {namespace}"))?;
        let link = Self { namespace, here, address: at(1) };
        let Self { namespace, here, address } = &link;
        for arguments in [
            format!("link add {here} type veth peer name {there} netns {namespace}"),
            format!("address add {address}/30 dev {here}"),
            format!("link set dev {here} up"),
            format!("-n {namespace} address add {}/30 dev {there}", at(2)),
            format!("-n {namespace} link set dev {there} up"),
        ] {
            ip(&arguments)?;
        }
        Ok(link)
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Where the namespace reaches this one.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Cuts it: nothing that is sent arrives any more, and nobody is notified.
    pub fn cut(&self) {
        ip(&format!("link set dev {} down", self.here)).unwrap();
    }

    /// Mends it.
    pub fn mend(&self) {
        ip(&format!("link set dev {} up", self.here)).unwrap();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // What is left of one that was not made to its end.
        let _ = ip(&format!("link del {}", self.here));
        let _ = ip(&format!("netns del {}", self.namespace));
    }
}

pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    let ran = Command::new("ip").args(arguments.split_whitespace()).output();
    let ran = ran.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}
