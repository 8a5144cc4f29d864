//! Ranks that are joined over TCP: each listens at an address of its own, and connects to the next stage
//! and to the first replica of its stage.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::neighbours::Neighbours;
use crate::settings::RankSettings;
use crate::socket::Socket;

/// How long the others may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait before one that does not listen yet is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// How long who has connected may take to say which rank it is.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// Joins a rank with its neighbours.
pub(crate) fn join(settings: &RankSettings) -> io::Result<Neighbours> {
    let RankSettings { stage, stages, replica, replicas, .. } = *settings;
    let own = settings.rank() as usize;
    let address = |rank: usize| {
        let address = settings.tcp.get(rank).copied();
        address.ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("rank {rank} has none")))
    };
    // Others find this rank from now on, before it has accepted anybody.
    let listener = TcpListener::bind(address(own)?)?;
    let connect = |rank: usize| connect(address(rank)?, own);
    let next = (stage + 1 < stages).then(|| connect(own + 1)).transpose()?;
    let previous = (stage > 0).then(|| own - 1);
    let (to_first, others): (_, Vec<usize>) = if replica > 0 {
        (Some(connect(stage)?), Vec::new())
    } else {
        (None, (1..replicas).map(|other| other * stages + stage).collect())
    };
    let expected: Vec<_> = previous.into_iter().chain(others.iter().copied()).collect();
    let mut accepted = accept(&listener, &expected)?;
    let previous = previous.and_then(|rank| accepted.remove(&rank));
    let replicas = to_first.into_iter().chain(accepted.into_values()).map(Socket::Tcp);
    let neighbours = Neighbours::new(previous.map(Socket::Tcp), next.map(Socket::Tcp));
    Ok(neighbours.beside(replicas.collect(), replica == 0))
}

fn connect(to: SocketAddr, own: usize) -> io::Result<TcpStream> {
    let began = Instant::now();
    let mut socket = loop {
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(socket) => break socket,
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => sleep(PAUSE),
        }
    };
    // Tensors here are small, and wait for nothing that comes after them.
    socket.set_nodelay(true)?;
    socket.write_all(&(own as u32).to_le_bytes())?;
    Ok(socket)
}

/// Accepts these ranks, and leaves out whoever else connects.
fn accept(listener: &TcpListener, expected: &[usize]) -> io::Result<BTreeMap<usize, TcpStream>> {
    let mut accepted = BTreeMap::new();
    while accepted.len() < expected.len() {
        let (mut socket, _) = listener.accept()?;
        socket.set_read_timeout(Some(INTRODUCTION))?;
        let mut rank = [0; 4];
        if socket.read_exact(&mut rank).is_err() {
            continue;
        }
        let rank = u32::from_le_bytes(rank) as usize;
        if expected.contains(&rank) {
            socket.set_read_timeout(None)?;
            socket.set_nodelay(true)?;
            accepted.insert(rank, socket);
        }
    }
    Ok(accepted)
}
