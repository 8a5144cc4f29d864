//! The results of a whole job that one of its nodes keeps in the store for the node that continues
//! when it is gone: its frontier, its profile, and the sweep that is not over. They are cut into
//! slices, which only the nodes that need them fetch.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pfo_fleet::{Digest, Node};
use pfo_protocol::Refusal;
use pfo_service::blocking;
use pfo_store::{JobId, LARGEST_SLICE, Note, Store, StoreError, digest_of};
use serde::{Deserialize, Serialize};

use super::parts::Fleet;
use super::swap::{unchanged, unchanged_by};
use crate::job::JobKey;

/// The format of what is noted, and its version.
const FORMAT: &str = "pfo-noted/1";

/// The most that is noted, in bytes: the largest frontier that can be loaded.
const MOST_BYTES: usize = 8 << 20;

/// Something that is noted beside a job: what it is, and where the bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Noted {
    format: String,
    /// Its name, or its subject.
    pub(crate) label: String,
    /// Where it was made.
    pub(crate) by_node: Node,
    /// The digest of all bytes.
    pub(crate) digest: Digest,
    slices: Vec<Digest>,
}

impl Noted {
    fn read(value: &[u8]) -> Result<Self, String> {
        let noted: Self = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        if noted.format != FORMAT {
            return Err(format!("a note is {:?} and not {FORMAT}: update pfo-agent", noted.format));
        }
        Ok(noted)
    }
}

fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// # Errors
/// If that is no compressed bytes, or more than anybody notes.
fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut read = Vec::new();
    let most = MOST_BYTES as u64;
    let mut decoder = GzDecoder::new(bytes).take(most.saturating_add(1));
    decoder.read_to_end(&mut read).map_err(|error| error.to_string())?;
    if read.len() > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    Ok(read)
}

impl Fleet {
    /// Notes something beside a job, in place of what was noted before.
    ///
    /// # Errors
    /// If it is too large, or the store does not take it.
    pub(crate) async fn write_note(
        &self,
        key: &JobKey,
        note: Note,
        label: String,
        bytes: Vec<u8>,
    ) -> Result<(), Refusal> {
        self.write_note_of(key, note, (label, self.node().clone()), bytes).await
    }

    /// The same of something that was made on some node.
    pub(super) async fn write_note_of(
        &self,
        key: &JobKey,
        note: Note,
        (label, by_node): (String, Node),
        bytes: Vec<u8>,
    ) -> Result<(), Refusal> {
        let away = |why: String| unchanged(key, &why);
        if bytes.len() > MOST_BYTES {
            return Err(away(format!("{} bytes are too much for the store", bytes.len())));
        }
        let digest = digest_of(&bytes);
        let small = blocking(move || compressed(&bytes)).await?;
        let small = small.map_err(|error| away(error.to_string()))?;
        let job = self.id_of(key);
        let noted = self.note_cut(&job, note, (label, by_node, digest), &small);
        noted.await.map_err(|error| unchanged_by(key, &error))
    }

    async fn note_cut(
        &self,
        job: &JobId,
        note: Note,
        (label, by_node, digest): (String, Node, Digest),
        compressed: &[u8],
    ) -> Result<(), StoreError> {
        let store = self.store_now()?;
        let before = store.noted(job, note).await?;
        let before = before.and_then(|value| Noted::read(&value).ok());
        if before.as_ref().is_some_and(|noted| {
            (noted.digest, &noted.label, &noted.by_node) == (digest, &label, &by_node)
        }) {
            return Ok(());
        }
        let mut slices = Vec::new();
        for slice in compressed.chunks(LARGEST_SLICE) {
            slices.push(store.publish(job, slice).await?);
        }
        let before = before.map(|noted| noted.slices).unwrap_or_default();
        let forget: BTreeSet<_> =
            before.into_iter().filter(|slice| !slices.contains(slice)).collect();
        let format = FORMAT.into();
        let noted = Noted { format, label, by_node, digest, slices };
        // Names and digests: nothing of it can fail to be JSON.
        let value = serde_json::to_vec(&noted).unwrap_or_default();
        store.note(job, note, &value, &forget).await
    }

    /// What is noted beside a job; none if nothing is.
    ///
    /// # Errors
    /// If the store does not answer, or that is of another version.
    pub(crate) async fn noted(&self, key: &JobKey, note: Note) -> Result<Option<Noted>, String> {
        self.noted_of(&self.id_of(key), note).await
    }

    pub(super) async fn noted_of(&self, job: &JobId, note: Note) -> Result<Option<Noted>, String> {
        let value = async { self.store_now()?.noted(job, note).await };
        let value = value.await.map_err(|error: StoreError| error.to_string())?;
        value.map(|value| Noted::read(&value)).transpose()
    }

    /// The bytes of something that is noted.
    ///
    /// # Errors
    /// If the store does not have them, or they are something else.
    pub(crate) async fn fetch_noted(&self, key: &JobKey, noted: &Noted) -> Result<Vec<u8>, String> {
        self.fetch_noted_of(&self.id_of(key), noted).await
    }

    pub(super) async fn fetch_noted_of(
        &self,
        job: &JobId,
        noted: &Noted,
    ) -> Result<Vec<u8>, String> {
        if noted.slices.len() > MOST_BYTES.div_ceil(LARGEST_SLICE).saturating_add(1) {
            return Err(format!("{} slices are too many", noted.slices.len()));
        }
        let store = self.store_now().map_err(|why| why.to_string())?;
        let mut small = Vec::new();
        for digest in &noted.slices {
            let slice = store.fetch(job, *digest).await.map_err(|error| error.to_string())?;
            small.extend(slice);
        }
        let bytes = blocking(move || decompressed(&small)).await;
        let bytes = bytes.map_err(|panicked| Refusal::from(panicked).message)??;
        if digest_of(&bytes) != noted.digest {
            return Err("it is not what its digest says".into());
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_as_it_was_written_and_never_more_than_there_is_room_for() {
        let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let small = compressed(&bytes).unwrap();
        assert_eq!(decompressed(&small).unwrap(), bytes);
        assert!(decompressed(&small[..small.len() / 2]).is_err());
        assert!(decompressed(b"no").is_err());
        let bomb = compressed(&vec![0; MOST_BYTES + 1]).unwrap();
        assert!(bomb.len() < LARGEST_SLICE);
        assert!(decompressed(&bomb).unwrap_err().contains("more than"));
        assert_eq!(
            decompressed(&compressed(&vec![0; MOST_BYTES]).unwrap()).unwrap().len(),
            MOST_BYTES
        );
    }

    #[test]
    fn what_no_agent_notes_is_not_read() {
        let noted = Noted {
            format: FORMAT.into(),
            label: "f".into(),
            by_node: "a".parse().unwrap(),
            digest: digest_of(b"f"),
            slices: vec![digest_of(b"slice")],
        };
        let written = serde_json::to_string(&noted).unwrap();
        assert_eq!(Noted::read(written.as_bytes()), Ok(noted));
        for wrong in [written.replace("noted/1", "noted/2"), written.replace("\"f\"", "7")] {
            assert!(Noted::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
