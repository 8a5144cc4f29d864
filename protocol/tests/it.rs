//! The integration tests of the protocol: one program, so that it is linked once.

mod readme;
mod recorded_frames;
