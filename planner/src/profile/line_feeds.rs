//! Text whose lines end as they do on Unix, so that they are counted right.

use std::io::{self, Read};

/// Reads a line feed for every end of a line: `csv` counts one of two bytes only with the next line.
pub(super) struct LineFeeds<R> {
    inner: R,
    is_after_return: bool,
}

impl<R: Read> LineFeeds<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, is_after_return: false }
    }

    /// Keeps what is read of some bytes; returns how many these are.
    fn keep(&mut self, bytes: &mut [u8]) -> usize {
        let mut kept = 0;
        for index in 0..bytes.len() {
            let byte = bytes[index];
            let is_second = byte == b'\n' && self.is_after_return;
            self.is_after_return = byte == b'\r';
            if !is_second {
                bytes[kept] = if byte == b'\r' { b'\n' } else { byte };
                kept += 1;
            }
        }
        kept
    }
}

impl<R: Read> Read for LineFeeds<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.inner.read(bytes)?;
            let kept = self.keep(&mut bytes[..read]);
            if kept > 0 || read == 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_line_is_a_line_feed_however_few_bytes_are_read_at_a_time() {
        let text = b"a\r\nb\n\r\nc\rd\r\n\n\r\r\n";
        for at_a_time in 1..text.len() {
            let mut read = Vec::new();
            let mut feeds = LineFeeds::new(&text[..]);
            let mut bytes = vec![0; at_a_time];
            loop {
                let some = feeds.read(&mut bytes).unwrap();
                if some == 0 {
                    break;
                }
                read.extend_from_slice(&bytes[..some]);
            }
            assert_eq!(read, b"a\nb\n\nc\nd\n\n\n\n", "{at_a_time}");
        }
    }
}
