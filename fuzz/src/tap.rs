//! The payload of a tap frame, as the agent digests it: its times and steps are those of a rank.
use pfo_protocol::{DaemonMessage, Kind};

/// The target.
pub fn tap(payload: &[u8]) {
    if let Ok(DaemonMessage::Tap(batch)) = DaemonMessage::from_payload(Kind::Tap, payload) {
        pfo_agent::fuzzing::digest(batch.records.into_iter());
    }
}
