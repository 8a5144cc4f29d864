//! A process that takes all it can get of the daemons of a node, until it is killed.
//!
//! ```text
//! pfo-test-attacker SOCKET AGENT DEVICES GPUS JOB UID [WAY]…
//! ```
//!
//! It attacks pfod at `SOCKET` and, unless that is empty, the agent at `AGENT`, in all ways or in these.
//! It leases `GPUS`, by their UUIDs, with the device files in `DEVICES`, and means `JOB` of user `UID`.

use std::error::Error;

use pfo_tests::attack::{Target, attack};

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (target, ways) = Target::parse(&arguments)?;
    attack(&target, &ways);
    Ok(())
}
