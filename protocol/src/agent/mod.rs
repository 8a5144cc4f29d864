//! What crosses the agent's own socket.

pub(crate) mod budget;
pub(crate) mod calibration;
pub(crate) mod first_plan;
pub(crate) mod fleet;
pub(crate) mod own_order;
pub(crate) mod p2p;
pub(crate) mod recorded;
pub(crate) mod request;
pub(crate) mod sample;
pub(crate) mod savings;
pub(crate) mod status;
pub(crate) mod sweep;
pub(crate) mod tune;
