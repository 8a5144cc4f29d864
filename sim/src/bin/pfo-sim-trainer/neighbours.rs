//! The neighbour stages: activations come from the previous one and gradients from the next one. And
//! the same stage of other replicas, whose gradients are added up at the end of a step.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use nvidia_ml::units::MonotonicNs;
use nvidia_ml::work::table::Kind;

use crate::socket::Socket;

/// What stands for a tensor: the pass that it is for, the step and the microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) kind: Kind,
    pub(crate) step: u64,
    pub(crate) microbatch: u32,
}

const TENSOR_BYTES: usize = 16;

/// A tensor, and when it has arrived.
const MESSAGE_BYTES: usize = TENSOR_BYTES + 8;

impl Tensor {
    fn to_bytes(self) -> [u8; TENSOR_BYTES] {
        let mut bytes = [0; TENSOR_BYTES];
        bytes[..8].copy_from_slice(&self.step.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.microbatch.to_le_bytes());
        bytes[12] = u8::from(self.kind == Kind::Backward);
        bytes
    }

    fn from_bytes(bytes: [u8; TENSOR_BYTES]) -> Self {
        let (step, rest) = bytes.split_at(8);
        Self {
            kind: if rest[4] == 0 { Kind::Forward } else { Kind::Backward },
            step: u64::from_le_bytes(std::array::from_fn(|i| step[i])),
            microbatch: u32::from_le_bytes(std::array::from_fn(|i| rest[i])),
        }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of step {}", self.kind.name(), self.microbatch, self.step)
    }
}

/// What waiting for a pass's input came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// It is on its way, and arrives at this time.
    Tensor(Tensor, MonotonicNs),
    /// This pass needs none.
    NotNeeded,
    /// The neighbour is gone.
    Lost,
}

/// The sockets to the neighbours that there are.
pub(crate) struct Neighbours {
    previous: Option<Socket>,
    next: Option<Socket>,
    /// To the first replica or, of that one, to all others.
    replicas: Vec<Socket>,
    is_first_replica: bool,
}

impl Neighbours {
    pub(crate) fn new(previous: Option<Socket>, next: Option<Socket>) -> Self {
        Self { previous, next, replicas: Vec::new(), is_first_replica: true }
    }

    /// The same with other replicas.
    pub(crate) fn beside(self, replicas: Vec<Socket>, is_first_replica: bool) -> Self {
        Self { replicas, is_first_replica, ..self }
    }

    /// Takes neighbours for gone that are silent for so long; none waits for ever.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        let stages = self.previous.iter().chain(&self.next);
        stages.chain(&self.replicas).try_for_each(|socket| socket.set_patience(patience))
    }

    pub(crate) fn has_replicas(&self) -> bool {
        !self.replicas.is_empty()
    }

    /// Waits until every replica has got here, as adding up gradients does; false if one is gone.
    pub(crate) fn meet_replicas(&self) -> io::Result<bool> {
        let send = |mut replica: &Socket| replica.write_all(&[0]);
        let receive = |mut replica: &Socket| replica.read_exact(&mut [0]);
        let mut each = self.replicas.iter();
        let met = if self.is_first_replica {
            each.try_for_each(receive).and_then(|()| self.replicas.iter().try_for_each(send))
        } else {
            each.try_for_each(|first| send(first).and_then(|()| receive(first)))
        };
        match met {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// More handles on the same sockets, for whoever has to shut them down.
    pub(crate) fn handles(&self) -> io::Result<Vec<Socket>> {
        let stages = self.previous.iter().chain(&self.next);
        stages.chain(&self.replicas).map(Socket::try_clone).collect()
    }

    /// Where a pass gets its input from; the first forward and the last backward need none.
    fn source(&self, kind: Kind) -> Option<&Socket> {
        match kind {
            Kind::Forward => self.previous.as_ref(),
            Kind::Backward => self.next.as_ref(),
        }
    }

    fn sink(&self, kind: Kind) -> Option<&Socket> {
        match kind {
            Kind::Forward => self.next.as_ref(),
            Kind::Backward => self.previous.as_ref(),
        }
    }

    /// Whether a pass could start without waiting for its input.
    pub(crate) fn has_input(&self, kind: Kind) -> io::Result<bool> {
        let Some(source) = self.source(kind) else { return Ok(true) };
        let mut byte = [0];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(source.as_raw_fd(), &mut byte, flags) {
            // The end of the stream, too, is something to read.
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for the input of a pass.
    pub(crate) fn receive(&self, kind: Kind) -> io::Result<Input> {
        let Some(mut source) = self.source(kind) else { return Ok(Input::NotNeeded) };
        let mut bytes = [0; MESSAGE_BYTES];
        match source.read_exact(&mut bytes) {
            Ok(()) => {
                let tensor = Tensor::from_bytes(std::array::from_fn(|i| bytes[i]));
                let arrives = std::array::from_fn(|i| bytes[TENSOR_BYTES + i]);
                Ok(Input::Tensor(tensor, MonotonicNs(u64::from_le_bytes(arrives))))
            }
            Err(error) if is_gone(&error) => Ok(Input::Lost),
            Err(error) => Err(error),
        }
    }

    /// Sends the output of a pass on, if somebody needs it; false if that one is gone.
    pub(crate) fn send(&self, tensor: Tensor, arrives: MonotonicNs) -> io::Result<bool> {
        let Some(mut sink) = self.sink(tensor.kind) else { return Ok(true) };
        let message = [&tensor.to_bytes()[..], &arrives.0.to_le_bytes()].concat();
        match sink.write_all(&message) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            // Over TCP: the link is down, or the neighbour was silent for too long.
            | ErrorKind::ConnectionAborted
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::TimedOut
            | ErrorKind::WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Socket, Socket) {
        let (one, other) = UnixStream::pair().unwrap();
        (one.into(), other.into())
    }

    #[test]
    fn activations_go_to_the_next_stage_and_gradients_come_back() {
        let (left, right) = pair();
        let (first, last) = (Neighbours::new(None, Some(left)), Neighbours::new(Some(right), None));
        assert!(first.has_input(Kind::Forward).unwrap());
        assert!(!last.has_input(Kind::Forward).unwrap());
        let activation = Tensor { kind: Kind::Forward, step: 7, microbatch: 3 };
        assert!(first.send(activation, MonotonicNs(5)).unwrap());
        assert!(last.has_input(Kind::Forward).unwrap());
        assert_eq!(last.receive(Kind::Forward).unwrap(), Input::Tensor(activation, MonotonicNs(5)));
        let gradient = Tensor { kind: Kind::Backward, step: 7, microbatch: 3 };
        assert!(last.send(gradient, MonotonicNs(6)).unwrap());
        assert_eq!(first.receive(Kind::Backward).unwrap(), Input::Tensor(gradient, MonotonicNs(6)));
        assert_eq!(last.receive(Kind::Backward).unwrap(), Input::NotNeeded);
    }

    #[test]
    fn replicas_go_on_when_all_of_them_have_got_there_or_one_is_gone() {
        let pairs = [(); 2].map(|()| pair());
        let (of_first, others): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let alone = |replicas, is_first| Neighbours::new(None, None).beside(replicas, is_first);
        let others: Vec<_> = others.into_iter().map(|end| alone(vec![end], false)).collect();
        let first = alone(of_first, true);
        std::thread::scope(|scope| {
            let others: Vec<_> =
                others.iter().map(|other| scope.spawn(|| other.meet_replicas().unwrap())).collect();
            assert!(first.meet_replicas().unwrap());
            assert!(others.into_iter().all(|met| met.join().unwrap()));
        });
        drop(others);
        assert!(!first.meet_replicas().unwrap());
    }

    #[test]
    fn a_neighbour_that_is_gone_is_noticed_by_both_sending_and_receiving() {
        let (left, right) = pair();
        let first = Neighbours::new(None, Some(left));
        drop(right);
        assert_eq!(first.receive(Kind::Backward).unwrap(), Input::Lost);
        let tensor = Tensor { kind: Kind::Forward, step: 0, microbatch: 0 };
        assert!(!first.send(tensor, MonotonicNs(0)).unwrap());
    }

    #[test]
    fn a_neighbour_that_is_silent_for_too_long_is_gone() {
        let (left, _right) = pair();
        let first = Neighbours::new(None, Some(left));
        first.set_patience(Some(Duration::from_millis(10))).unwrap();
        assert_eq!(first.receive(Kind::Backward).unwrap(), Input::Lost);
    }
}
