//! The integration tests of the shim: one program, so that it is linked once.

mod answers;
mod c;
mod c_times;
mod cuda;
mod events;
mod fake;
mod fork;
mod header;
mod patience;
mod reconnect;
mod stream;
mod thread;
mod trainers;
mod untimed;
