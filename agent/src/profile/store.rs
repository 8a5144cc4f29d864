//! The profiles that were measured on this node, each a CSV file whose path names its subject.
//!
//! ```text
//! profiles/1000-gpt-7b/NVIDIA-A100-SXM4-80GB_pp4-dp1-tp1-mb8.csv
//! ```
//!
//! A profile is found by listing: no path is made from a request.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use pfo_protocol::{ProfileKey, StoredProfile, Uid};
use pfo_service::{People, file_stem, named_by, replace_in_own_directory};

/// Profiles of one person that are kept; the oldest ones are removed.
const KEPT_PER_PERSON: usize = 64;

/// The largest profile that fits into an answer. The agent writes none that is larger.
const MOST_BYTES: u64 = 6 << 20;

/// The longest part of a file's name. File systems take 255 bytes, for two parts and what is around
/// them.
const LONGEST_PART: usize = 120;

#[derive(Debug)]
pub(crate) struct ProfileStore {
    directory: PathBuf,
    people: Arc<People>,
}

impl ProfileStore {
    /// The profiles below the directory of what outlives the node's boot.
    pub(crate) fn under(state: &Path, people: Arc<People>) -> Self {
        Self { directory: state.join("profiles"), people }
    }

    /// Replaces the stored profile of this key.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, key: &ProfileKey, csv: &str) -> io::Result<()> {
        let path = self.path(key);
        replace_in_own_directory(&path, csv.as_bytes())?;
        let mut own = self.list(None);
        own.retain(|profile| self.people.are_one(key.uid, profile.key.uid));
        own.sort_by_key(|profile| profile.measured_unix_s);
        // The one just written stays, whatever its time says.
        own.retain(|profile| profile.key != stored_key(key));
        let surplus = own.len().saturating_add(1).saturating_sub(KEPT_PER_PERSON);
        for old in &own[..surplus] {
            tracing::info!(
                uid = key.uid.0,
                "forgot the profile of model {} of user {}: the user has more than {KEPT_PER_PERSON}",
                old.key.model,
                key.uid
            );
            let path = self.path(&old.key);
            let _ = fs::remove_file(&path);
            // The directory is removed with its last file.
            path.parent().map(fs::remove_dir);
        }
        Ok(())
    }

    /// The stored profile of this key.
    pub(crate) fn find(&self, key: &ProfileKey) -> Option<StoredProfile> {
        let stored = stored_key(key);
        self.list(Some(key.uid)).into_iter().find(|profile| profile.key == stored)
    }

    /// Every profile, or those of one user.
    pub(crate) fn list(&self, uid: Option<Uid>) -> Vec<StoredProfile> {
        let mut profiles = Vec::new();
        for directory in entries(&self.directory) {
            let Some((owner, model)) = directory.file_name().to_str().and_then(named_by) else {
                continue;
            };
            if uid.is_some_and(|uid| uid != owner) {
                continue;
            }
            let stored = |file: fs::DirEntry| {
                let name = file.file_name();
                let (gpus, partition) = name.to_str()?.strip_suffix(".csv")?.rsplit_once('_')?;
                let metadata = file.metadata().ok()?;
                let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
                let (gpus, partition) = (gpus.to_owned(), partition.to_owned());
                let key = ProfileKey { uid: owner, model: model.clone(), gpus, partition };
                let (measured_unix_s, bytes) = (modified.as_secs(), metadata.len());
                Some(StoredProfile { key, measured_unix_s, bytes })
            };
            profiles.extend(entries(&directory.path()).filter_map(stored));
        }
        profiles.sort_by(|a, b| a.key.cmp(&b.key));
        profiles
    }

    /// The CSV of a profile of the list.
    ///
    /// # Errors
    /// If it cannot be read, or is too large.
    pub(crate) fn read(&self, profile: &StoredProfile) -> io::Result<Vec<u8>> {
        let mut csv = Vec::new();
        File::open(self.path(&profile.key))?.take(MOST_BYTES + 1).read_to_end(&mut csv)?;
        if csv.len() as u64 > MOST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(csv)
    }

    fn path(&self, key: &ProfileKey) -> PathBuf {
        let ProfileKey { uid, model, .. } = key;
        let ProfileKey { gpus, partition, .. } = stored_key(key);
        self.directory.join(file_stem(*uid, model)).join(format!("{gpus}_{partition}.csv"))
    }
}

/// The key without characters that have a meaning in a path, as the list has it.
pub(crate) fn stored_key(key: &ProfileKey) -> ProfileKey {
    let tame = |c: char| if c.is_ascii_alphanumeric() || "+-.".contains(c) { c } else { '-' };
    let part = |text: &str| text.chars().map(tame).take(LONGEST_PART).collect();
    let (gpus, partition) = (part(&key.gpus), part(&key.partition));
    ProfileKey { gpus, partition, ..key.clone() }
}

fn entries(directory: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CSV: &str = "stage,instruction,frequency,time,energy\n";

    /// A store in a directory. User 1000 has subordinate uids from 100000 on.
    fn store_in(directory: &Path) -> ProfileStore {
        let subuid = directory.with_extension("subuid");
        fs::write(&subuid, "1000:100000:65536").unwrap();
        let people = People::in_file(&subuid);
        people.read();
        fs::remove_file(subuid).unwrap();
        ProfileStore::under(directory, Arc::new(people))
    }

    fn key(model: &str, gpus: &str) -> ProfileKey {
        let partition = "pp4-dp1-tp1-mb8".into();
        ProfileKey { uid: Uid(1000), model: model.parse().unwrap(), gpus: gpus.into(), partition }
    }

    #[test]
    fn a_profile_is_found_by_what_it_is_of_and_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = store_in(directory.path());
        let key = key("team/gpt-7b", "NVIDIA A100-SXM4-80GB");
        assert_eq!(store.find(&key), None);
        store.write(&key, "old").unwrap();
        store.write(&key, CSV).unwrap();
        let found = store.find(&key).unwrap();
        assert_eq!(store.list(Some(Uid(1000))), std::slice::from_ref(&found));
        assert_eq!(store.list(Some(Uid(1001))), []);
        assert_eq!(found.key.gpus, "NVIDIA-A100-SXM4-80GB");
        assert_eq!(found.key.model, key.model);
        assert_eq!(store.find(&found.key), Some(found.clone()), "its own key finds it, too");
        assert_eq!(store.read(&found).unwrap(), CSV.as_bytes());
    }

    #[test]
    fn the_oldest_of_too_many_is_forgotten_and_nobody_elses() {
        let directory = tempfile::tempdir().unwrap();
        let store = store_in(directory.path());
        let other = ProfileKey { uid: Uid(7), ..key("m", "A") };
        store.write(&other, CSV).unwrap();
        let oldest = key("oldest", "A");
        store.write(&oldest, CSV).unwrap();
        File::open(store.path(&oldest)).unwrap().set_modified(UNIX_EPOCH).unwrap();
        for n in 0..KEPT_PER_PERSON {
            let uid = if n % 2 == 0 { Uid(1000) } else { Uid(100_004) };
            store.write(&ProfileKey { uid, ..key(&format!("m{n}"), "A") }, CSV).unwrap();
        }
        assert_eq!(store.list(None).len(), KEPT_PER_PERSON + 1);
        assert_eq!((store.find(&oldest), store.list(Some(Uid(7))).len()), (None, 1));
        assert!(!store.path(&oldest).parent().unwrap().exists());
    }

    #[test]
    fn something_too_large_in_the_place_of_a_profile_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let store = store_in(directory.path());
        store.write(&key("m", "A"), CSV).unwrap();
        let found = store.find(&key("m", "A")).unwrap();
        File::options().write(true).open(store.path(&found.key)).unwrap().set_len(1 << 40).unwrap();
        assert!(store.read(&found).is_err());
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_the_store(
            model in "[A-Za-z0-9._:+,=@%/-]{1,128}",
            gpus in "\\PC{0,300}",
        ) {
            let directory = tempfile::tempdir().unwrap();
            let store = store_in(directory.path());
            let key = key(&model, &gpus);
            store.write(&key, CSV).unwrap();
            prop_assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
            let found = store.find(&key);
            prop_assert_eq!(found.map(|found| found.key.model), Some(key.model));
        }
    }
}
