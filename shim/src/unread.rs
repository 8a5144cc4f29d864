//! Whether the daemon still reads. A daemon that hangs keeps its end of the connection, and the kernel takes
//! events until the socket is full: only what it has not read tells.

/// Looks after which a queue that never shrinks belongs to a daemon that hangs. It reads within moments, or
/// after a call of the driver.
const LOOKS: u32 = 5;

/// As many where events are being lost, because the socket is full.
const LOOKS_WHILE_FULL: u32 = 1;

/// What the last looks at a connection have found.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    bytes: usize,
    sent: u64,
    dropped: u64,
    looks: u32,
    hangs: bool,
}

impl Unread {
    /// Takes in how much the daemon has not read, and how many events have been sent and dropped so far.
    pub(crate) fn look(&mut self, bytes: usize, sent: u64, dropped: u64) {
        let is_full = dropped > self.dropped;
        // A full queue that takes events is read from.
        if bytes == 0 || bytes < self.bytes || (bytes == self.bytes && sent > self.sent) {
            (self.looks, self.hangs) = (0, false);
        } else if self.bytes > 0 {
            self.looks += 1;
            self.hangs |= self.looks >= if is_full { LOOKS_WHILE_FULL } else { LOOKS };
        }
        (self.bytes, self.sent, self.dropped) = (bytes, sent, dropped);
    }

    /// Whether the daemon no longer reads.
    pub(crate) fn hangs(&self) -> bool {
        self.hangs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(looks: &[(usize, u64, u64)]) -> bool {
        let mut unread = Unread::default();
        for (bytes, sent, dropped) in looks {
            unread.look(*bytes, *sent, *dropped);
        }
        unread.hangs()
    }

    #[test]
    fn a_queue_that_never_shrinks_belongs_to_a_daemon_that_hangs() {
        let looks =
            [(700, 1, 0), (700, 1, 0), (1400, 2, 0), (1400, 2, 0), (1400, 2, 0), (2100, 3, 0)];
        assert!(!after(&looks[..5]));
        assert!(after(&looks));
    }

    #[test]
    fn a_daemon_that_is_behind_but_reads_does_not_hang() {
        let bytes = [9000, 8000, 8500, 8000, 9000, 8900, 9100];
        let looks: Vec<_> = (0..).zip(bytes).map(|(sent, bytes)| (bytes, 100 * sent, 0)).collect();
        assert!(!after(&looks));
    }

    #[test]
    fn a_daemon_that_a_trainer_outruns_does_not_hang() {
        let looks: Vec<_> = (0..9).map(|look| (200_000, 500 * look, 40 * look)).collect();
        assert!(!after(&looks));
    }

    #[test]
    fn a_socket_that_stays_full_and_loses_events_is_not_waited_for() {
        assert!(after(&[(200_000, 300, 0), (200_000, 300, 40)]));
    }

    #[test]
    fn a_daemon_that_reads_again_hangs_no_longer() {
        assert!(!after(&[(700, 1, 0), (700, 1, 9), (0, 1, 9)]));
    }
}
