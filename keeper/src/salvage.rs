//! Reading the ledger in whatever state the file is: an overlooked lock stays for ever, while
//! restoring a GPU that owes nothing does no harm.

use pfo_vocabulary::{GpuUuid, Pid, SessionId, Uid};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ledger::{Entry, FORMAT, OnDisk};
use crate::power_limit::OwedLimit;

/// The key of an entry's GPU.
const GPU_KEY: &str = "gpu_uuid";

/// The keys of a ledger and of an entry. Behind others a newer pfod may owe something.
const KEYS: [&str; 3] = ["format", "boot_id", "entries"];
const ENTRY_KEYS: [&str; 9] =
    [GPU_KEY, "sm", "memory", "restore_to_mhz", "power_limit", "job", "uid", "pid", "session"];

/// The damage of a ledger file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong with it.
    pub reason: String,
    /// Whether it may have held locks that are unknown now.
    pub lost_entries: bool,
}

/// The content of a ledger file, as far as it can be read.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    pub(crate) entries: Vec<Entry>,
    pub(crate) damage: Option<Damage>,
}

impl Salvaged {
    /// Nothing, of a ledger that may have held anything.
    pub(crate) fn lost(reason: String) -> Self {
        Self { entries: Vec::new(), damage: Some(Damage { reason, lost_entries: true }) }
    }
}

/// Reads a ledger. Entries of another boot are left out: their locks ended with it.
pub(crate) fn salvage(bytes: &[u8], boot_id: &str) -> Salvaged {
    let reason = match serde_json::from_slice::<OnDisk>(bytes) {
        Ok(OnDisk { format, boot_id: written, entries }) if format == FORMAT => {
            let entries = if written == boot_id { entries } else { Vec::new() };
            return Salvaged { entries, damage: None };
        }
        Ok(OnDisk { format, .. }) => format!("its format is {format:?}, not {FORMAT:?}"),
        Err(error) => error.to_string(),
    };
    match serde_json::from_slice::<Value>(bytes) {
        Ok(content) => of_json(&content, boot_id, reason),
        Err(_) => of_text(&String::from_utf8_lossy(bytes), reason),
    }
}

fn of_json(content: &Value, boot_id: &str, reason: String) -> Salvaged {
    if content.get("boot_id").and_then(Value::as_str).is_some_and(|written| written != boot_id) {
        return Salvaged::default();
    }
    let listed = content.get("entries").and_then(Value::as_array);
    let entries: Vec<_> = listed.into_iter().flatten().filter_map(entry_of_json).collect();
    let lost_entries = !has_only(content, &KEYS)
        || listed.is_none_or(|listed| {
            let is_whole = |entry| has_only(entry, &ENTRY_KEYS) && !has_lost_limit(entry);
            listed.len() != entries.len() || !listed.iter().all(is_whole)
        });
    Salvaged { entries, damage: Some(Damage { reason, lost_entries }) }
}

/// The GPU is all that a reset needs; any other field that cannot be read counts as locked.
fn entry_of_json(entry: &Value) -> Option<Entry> {
    let gpu_uuid = field(entry, GPU_KEY)?;
    Some(Entry {
        sm: field(entry, "sm").unwrap_or(true),
        memory: field(entry, "memory").unwrap_or(true),
        restore_to_mhz: field(entry, "restore_to_mhz").unwrap_or_default(),
        power_limit: field(entry, "power_limit"),
        job: field(entry, "job").or_else(|| "unknown".parse().ok())?,
        uid: field(entry, "uid").unwrap_or(Uid::ROOT),
        pid: field(entry, "pid").unwrap_or(Pid(0)),
        session: field(entry, "session").unwrap_or(SessionId(0)),
        gpu_uuid,
    })
}

fn has_only(content: &Value, keys: &[&str]) -> bool {
    content.as_object().is_some_and(|fields| fields.keys().all(|key| keys.contains(&key.as_str())))
}

/// Whether a power limit is owed that cannot be read. Unlike a lock it cannot be assumed: what to
/// restore it to is in the entry.
fn has_lost_limit(entry: &Value) -> bool {
    let written = entry.get("power_limit").is_some_and(|limit| !limit.is_null());
    written && field::<OwedLimit>(entry, "power_limit").is_none()
}

fn field<T: DeserializeOwned>(entry: &Value, name: &str) -> Option<T> {
    serde_json::from_value(entry.get(name)?.clone()).ok()
}

/// A file that was cut off still names GPUs.
fn of_text(text: &str, reason: String) -> Salvaged {
    let mut entries: Vec<Entry> = Vec::new();
    for after_key in text.split(GPU_KEY).skip(1) {
        let value =
            after_key.trim_start_matches(|c: char| c == '"' || c == ':' || c.is_whitespace());
        // A name without its end may be the beginning of another one.
        let uuid = value.split_once('"').and_then(|(uuid, _)| uuid.parse::<GpuUuid>().ok());
        if let Some(uuid) = uuid
            && entries.iter().all(|entry| entry.gpu_uuid != uuid)
        {
            entries.extend(entry_of_json(&serde_json::json!({ GPU_KEY: uuid.as_str() })));
        }
    }
    Salvaged { entries, ..Salvaged::lost(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "boot-1";

    fn ledger(entry: &str) -> String {
        format!(r#"{{"format":"{FORMAT}","boot_id":"{BOOT}","entries":[{entry}]}}"#)
    }

    const WHOLE: &str =
        r#"{"gpu_uuid":"GPU-1","sm":true,"memory":false,"job":"j","uid":7,"pid":8,"session":9}"#;

    fn gpus(salvaged: &Salvaged) -> Vec<&str> {
        salvaged.entries.iter().map(|entry| entry.gpu_uuid.as_str()).collect()
    }

    #[test]
    fn a_whole_ledger_of_this_boot_is_read_and_one_of_another_boot_is_empty() {
        let whole = salvage(ledger(WHOLE).as_bytes(), BOOT);
        assert_eq!(gpus(&whole), ["GPU-1"]);
        assert_eq!(whole.damage, None);
        let other = salvage(ledger(WHOLE).as_bytes(), "boot-2");
        assert!(other.entries.is_empty() && other.damage.is_none());
    }

    #[test]
    fn an_unknown_field_or_a_newer_format_loses_no_entry_but_what_the_field_owes() {
        let newer = ledger(WHOLE).replace(FORMAT, "pfo-ledger/2");
        let of_entry = ledger(&WHOLE.replace("\"sm\"", "\"fan\":1,\"sm\""));
        let of_ledger = newer.replace("\"boot_id\"", "\"links\":[],\"boot_id\"");
        for (text, is_lost) in [(newer, false), (of_entry, true), (of_ledger, true)] {
            let salvaged = salvage(text.as_bytes(), BOOT);
            assert_eq!(gpus(&salvaged), ["GPU-1"], "{text}");
            assert!(salvaged.entries[0].sm && !salvaged.entries[0].memory);
            assert_eq!(salvaged.damage.unwrap().lost_entries, is_lost, "{text}");
        }
    }

    #[test]
    fn what_an_entry_does_not_say_counts_as_locked() {
        let salvaged = salvage(ledger(r#"{"gpu_uuid":"GPU-1","sm":"?"}"#).as_bytes(), BOOT);
        assert!(salvaged.entries[0].sm && salvaged.entries[0].memory);
    }

    #[test]
    fn a_power_limit_that_cannot_be_read_is_a_loss() {
        let entry = r#"{"gpu_uuid":"GPU-1","power_limit":"?"}"#;
        let salvaged = salvage(ledger(entry).as_bytes(), BOOT);
        assert_eq!(gpus(&salvaged), ["GPU-1"]);
        assert!(salvaged.damage.unwrap().lost_entries);
    }

    #[test]
    fn a_ledger_cut_off_anywhere_after_a_gpu_still_names_it_and_no_gpu_that_is_none() {
        let text = ledger(&format!("{WHOLE},{}", WHOLE.replace("GPU-1", "GPU-2")));
        let [first, second] =
            ["GPU-1\"", "GPU-2\""].map(|name| text.find(name).unwrap() + name.len());
        for end in first..text.len() {
            let salvaged = salvage(&text.as_bytes()[..end], BOOT);
            let named = if end < second { &["GPU-1"][..] } else { &["GPU-1", "GPU-2"] };
            assert_eq!(gpus(&salvaged), named, "{}", &text[..end]);
            assert!(salvaged.damage.is_some());
        }
    }

    #[test]
    fn garbage_is_no_ledger_and_says_so() {
        for bytes in [&b""[..], b"\0\0\0", b"[]", b"{\"entries\":7}"] {
            let salvaged = salvage(bytes, BOOT);
            assert!(salvaged.entries.is_empty());
            assert!(salvaged.damage.unwrap().lost_entries);
        }
    }
}
