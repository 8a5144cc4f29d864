#!/bin/bash
# behaviour: A client that connects with a limit in time expects a timeout where the server accepts nothing. On Linux,
#   a connect that does not wait for a Unix socket fails with EAGAIN where the queue is full, and the socket stays
#   unconnected. interprocess takes EAGAIN for EINPROGRESS, then polls the socket: an unconnected one is writable. So
#   connect reports success at once, with the limit and in tokio, and the first read or write fails with ENOTCONN.
# seen: interprocess 2.4.7, Linux 6; a listener with a backlog of 0 that accepts nothing, and three connects:
#   sync with ConnectWaitMode::Timeout and tokio: success each time; peer_addr of the later ones: ENOTCONN
# needs: cargo, crates.io. Exits with 0 as long as it does so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "full"
version = "0.0.0"
edition = "2021"

[dependencies]
interprocess = { version = "=2.4.7", features = ["tokio"] }
libc = "0.2"
tokio = { version = "1", features = ["rt", "macros"] }
TOML
cat > src/main.rs <<'RUST'
use std::io::ErrorKind::NotConnected;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use interprocess::local_socket::{ConnectOptions, GenericFilePath, ToFsName};
use interprocess::os::unix::uds_local_socket::{tokio::Stream as TokioStream, Stream};
use interprocess::ConnectWaitMode;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let listener = UnixListener::bind("socket").unwrap();
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let options = ConnectOptions::new()
        .name("socket".to_fs_name::<GenericFilePath>().unwrap())
        .wait_mode(ConnectWaitMode::Timeout(Duration::from_secs(5)));
    let queued: Stream = options.connect_sync_as().expect("the queue takes one");
    queued.inner().peer_addr().expect("it is connected");
    let late: Stream = options.connect_sync_as().expect("this has changed: an error");
    assert_eq!(late.inner().peer_addr().unwrap_err().kind(), NotConnected, "this has changed");
    let late: TokioStream = options.connect_tokio_as().await.expect("this has changed: an error");
    assert_eq!(late.inner().peer_addr().unwrap_err().kind(), NotConnected, "this has changed");
    println!("both connects report success, and neither is connected");
}
RUST
cargo run --quiet
