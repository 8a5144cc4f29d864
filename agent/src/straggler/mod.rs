//! x
use pfo_protocol::Stage;
use std::collections::BTreeMap;
pub(crate) type SlowStages = BTreeMap<Stage, f64>;
