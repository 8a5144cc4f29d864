//! The profiles that were measured on this node.

mod requests;
mod store;

pub(crate) use requests::{list, read};
pub(crate) use store::{ProfileStore, stored_key};
