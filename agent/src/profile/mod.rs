//! The profiles that were measured on this node.

pub(crate) mod store;
