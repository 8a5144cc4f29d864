//! What the agents of a fleet share: a few verbs ([`Store`]), and etcd behind them ([`Etcd`]);
//! and what takes part in a job with them ([`drive`]).
//!
//! Whatever the store says is what other nodes wrote, and is checked where it is decoded. Nothing
//! in it is secret. It cannot make a node run anything that the node's `pfod` does not allow.
#![forbid(unsafe_code)]

mod drive;
mod error;
mod etcd;
mod job;
mod memory;
mod verbs;

pub use drive::{Asked, Holder, LocalJob, Shown, Slices, drive};
pub use error::StoreError;
pub use etcd::{Credentials, Etcd, EtcdJob, EtcdSettings};
pub use job::JobId;
pub use memory::{Memory, MemoryJob};
pub use verbs::{
    Agreed, LARGEST_RECORD, LARGEST_SLICE, Measured, News, Note, Store, Topic, WatchedJob,
    digest_of,
};
