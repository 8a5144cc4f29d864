//! Network namespaces that are joined by a switch, each with a link to it that can be cut as a cable is.

use std::net::Ipv4Addr;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::link::ip;
use crate::{identity, say_skipped};

/// Addresses for measuring, which no network uses, beside those of single links (RFC 2544); sixteen for
/// each switch.
const ADDRESSES: u32 = 0xC613_0000;
const SWITCHES: u32 = 1 << 12;

/// The switch, and its namespaces. They are gone with this.
pub struct Fabric {
    number: u32,
    namespaces: Vec<String>,
}

impl Fabric {
    /// With so many namespaces, fourteen at most. None, which is said, without the right to make them.
    #[must_use]
    pub fn create(namespaces: usize) -> Option<Self> {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        if !identity::is_root() {
            say_skipped("a network namespace takes root");
            return None;
        }
        for _ in 0..SWITCHES {
            let number = process::id().wrapping_mul(8).wrapping_add(TRIED.fetch_add(1, Relaxed));
            match Self::numbered(number % SWITCHES, namespaces) {
                Ok(fabric) => return Some(fabric),
                // Another test has it, or was killed and has left it behind.
                Err(why) if why.contains("File exists") => {}
                Err(why) => {
                    say_skipped(&why);
                    return None;
                }
            }
        }
        say_skipped("there is no switch left");
        None
    }

    fn numbered(number: u32, namespaces: usize) -> Result<Self, String> {
        ip(&format!("link add pfos{number} type bridge"))?;
        let mut fabric = Self { number, namespaces: Vec::new() };
        ip(&format!("address add {}/28 dev pfos{number}", fabric.address()))?;
        ip(&format!("link set dev pfos{number} up"))?;
        for place in 0..namespaces {
            let namespace = format!("pfo-test-s{number}-{place}");
            ip(&format!("netns add {namespace}"))?;
            fabric.namespaces.push(namespace);
            let (namespace, here) = (&fabric.namespaces[place], fabric.port(place));
            let (there, address) = (format!("{here}n"), fabric.address_of(place));
            for arguments in [
                format!("link add {here} type veth peer name {there} netns {namespace}"),
                format!("link set dev {here} master pfos{number} up"),
                format!("-n {namespace} address add {address}/28 dev {there}"),
                format!("-n {namespace} link set dev {there} up"),
            ] {
                ip(&arguments)?;
            }
        }
        Ok(fabric)
    }

    fn port(&self, place: usize) -> String {
        format!("pfos{}p{place}", self.number)
    }

    /// Where the namespaces reach that of the test.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from(ADDRESSES + 16 * self.number + 1)
    }

    /// A namespace.
    #[must_use]
    pub fn namespace(&self, place: usize) -> &str {
        &self.namespaces[place]
    }

    /// Where the others reach it.
    #[must_use]
    pub fn address_of(&self, place: usize) -> Ipv4Addr {
        Ipv4Addr::from(ADDRESSES + 16 * self.number + 2 + place as u32)
    }

    /// Cuts it off: nothing that is sent arrives any more, and nobody is notified.
    pub fn cut(&self, place: usize) {
        ip(&format!("link set dev {} down", self.port(place))).unwrap();
    }

    /// Mends it.
    pub fn mend(&self, place: usize) {
        ip(&format!("link set dev {} up", self.port(place))).unwrap();
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // What is left of one that was not made to its end.
        for namespace in &self.namespaces {
            let _ = ip(&format!("netns del {namespace}"));
        }
        let _ = ip(&format!("link del pfos{}", self.number));
    }
}
