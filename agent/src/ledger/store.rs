//! The ledger on disk: one file of `SQLite`, whose rows are never changed. Each row says how far the
//! sessions of its job are counted with it, so that both are written or none is.

mod booking;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pfo_protocol::Uid;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, params};

use crate::ledger::booked::Account;
use crate::ledger::comparison::{Compared, Turn};
use crate::ledger::query::Known;
use crate::ledger::windows::{Entry, Heat, Measured, Reached, Work};

/// The version of the tables, which later agents upgrade.
const VERSION: u32 = 3;

const TABLES: &str = "
CREATE TABLE works (
    id INTEGER PRIMARY KEY,
    uid INTEGER NOT NULL, job TEXT NOT NULL, plan TEXT NOT NULL, shape TEXT NOT NULL,
    UNIQUE (uid, job, plan, shape)
);
CREATE TABLE windows (
    id INTEGER PRIMARY KEY,
    work INTEGER NOT NULL REFERENCES works,
    run TEXT NOT NULL,
    from_unix_s INTEGER NOT NULL, until_unix_s INTEGER NOT NULL,
    steps INTEGER NOT NULL, time_s REAL NOT NULL, energy_j REAL,
    reached TEXT NOT NULL
);
CREATE TABLE comparisons (
    id INTEGER PRIMARY KEY,
    work INTEGER NOT NULL REFERENCES works,
    at_unix_s INTEGER NOT NULL,
    default_steps INTEGER NOT NULL, default_time_s REAL NOT NULL, default_energy_j REAL NOT NULL,
    plan_steps INTEGER NOT NULL, plan_time_s REAL NOT NULL, plan_energy_j REAL NOT NULL
);
CREATE INDEX windows_by_work ON windows (work);
CREATE INDEX windows_by_run ON windows (run);
CREATE INDEX windows_by_time ON windows (until_unix_s);
CREATE INDEX comparisons_by_work ON comparisons (work);
CREATE INDEX comparisons_by_time ON comparisons (at_unix_s);
CREATE TRIGGER windows_stay BEFORE UPDATE ON windows BEGIN SELECT RAISE(ABORT, 'rows stay'); END;
CREATE TRIGGER comparisons_stay BEFORE UPDATE ON comparisons BEGIN SELECT RAISE(ABORT, 'rows stay'); END;
PRAGMA user_version = 1;
";

/// From each version to the next one. Version 2 knows how hot GPUs were, and what was given up for power
/// budgets; what version 1 wrote does not. Version 3 knows partitions and models of GPUs, and books rows
/// to sums that only rise: those that it writes, so that no sum begins with years at once.
const UPGRADES: [&str; 2] = [
    "
ALTER TABLE windows ADD COLUMN throttled_s REAL;
ALTER TABLE windows ADD COLUMN hottest_c INTEGER;
ALTER TABLE windows ADD COLUMN given_j REAL NOT NULL DEFAULT 0;
ALTER TABLE windows ADD COLUMN lost_s REAL NOT NULL DEFAULT 0;
PRAGMA user_version = 2;
",
    "
ALTER TABLE windows ADD COLUMN partition TEXT;
ALTER TABLE windows ADD COLUMN model TEXT;
CREATE TABLE unbooked (
    window INTEGER PRIMARY KEY REFERENCES windows ON DELETE CASCADE, work INTEGER NOT NULL
);
CREATE INDEX unbooked_by_work ON unbooked (work);
CREATE TABLE weights (
    comparison INTEGER PRIMARY KEY REFERENCES comparisons ON DELETE CASCADE, energy_j REAL NOT NULL
);
CREATE TABLE booked (
    uid INTEGER NOT NULL, partition TEXT NOT NULL,
    compared_j REAL NOT NULL, saved_j REAL NOT NULL, lost_j REAL NOT NULL, variance_j2 REAL NOT NULL,
    slower_s REAL NOT NULL, faster_s REAL NOT NULL,
    PRIMARY KEY (uid, partition)
);
CREATE TABLE identity (id TEXT NOT NULL);
INSERT INTO identity VALUES (lower(hex(randomblob(16))));
PRAGMA user_version = 3;
",
];

/// How long another process may keep the file.
const PATIENCE: Duration = Duration::from_secs(2);

const PAGE_BYTES: u64 = 4096;

/// One in this many of a user's rows is removed at once.
const REMOVED_PART: u64 = 16;

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// What is in the file is not, or not any more, a ledger that this agent reads.
    #[error("{0}")]
    Unreadable(String),
    /// Somebody has removed the open file.
    #[error("{0}")]
    Gone(rusqlite::Error),
    /// The disk is full, or the file cannot be opened.
    #[error("{0}")]
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let extended = error.sqlite_error().map(|error| error.extended_code);
        if extended == Some(rusqlite::ffi::SQLITE_READONLY_DBMOVED) {
            return Self::Gone(error);
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Unreadable(error.to_string())
            }
            _ => Self::Failed(error),
        }
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct Store(Connection);

impl Store {
    /// Opens the file, which is made if it is missing.
    ///
    /// # Errors
    /// If it is no ledger of this version, or cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let checked: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if checked != "ok" {
            return Err(StoreError::Unreadable(checked));
        }
        let version = |of: &Connection| of.query_row("PRAGMA user_version", [], |row| row.get(0));
        match version(&connection)? {
            before @ 0..VERSION => {
                let upgraded = connection.transaction()?;
                if before == 0 {
                    upgraded.execute_batch(TABLES)?;
                }
                for upgrade in UPGRADES.iter().skip(before.saturating_sub(1) as usize) {
                    upgraded.execute_batch(upgrade)?;
                }
                upgraded.commit()?;
            }
            VERSION => {}
            other => {
                let why = format!("its version is {other}, and this agent reads version {VERSION}");
                return Err(StoreError::Unreadable(why));
            }
        }
        Ok(Self(connection))
    }

    /// Writes rows and books what can be booked, all or nothing.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn append(
        &mut self,
        entries: &[Entry],
        comparisons: &[(Work, Compared)],
    ) -> Result<(), StoreError> {
        let rows = self.0.transaction()?;
        entries.iter().try_for_each(|entry| append_entry(&rows, entry))?;
        for (work, Compared { at_unix_s, default, plan }) in comparisons {
            let work = id_of(&rows, work)?;
            rows.prepare_cached(
                "INSERT INTO comparisons (work, at_unix_s, default_steps, default_time_s, \
                 default_energy_j, plan_steps, plan_time_s, plan_energy_j) \
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE NOT EXISTS (SELECT 1 FROM comparisons \
                 WHERE work = ?1 AND at_unix_s = ?2 AND default_energy_j = ?5 AND plan_energy_j = ?8)",
            )?
            .execute(params![
                work,
                at_unix_s,
                default.steps,
                default.time_s,
                default.energy_j,
                plan.steps,
                plan.time_s,
                plan.energy_j
            ])?;
        }
        booking::book(&rows)?;
        Ok(rows.commit()?)
    }

    /// The number of this ledger, which no other one has.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn identity(&self) -> Result<String, StoreError> {
        Ok(self.0.query_row("SELECT id FROM identity", [], |row| row.get(0))?)
    }

    /// What was booked so far.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        Ok(booking::accounts(&self.0)?)
    }

    /// Removes what is older than this time and, of the user that has most, the oldest rows while all
    /// take more than this many bytes.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub(super) fn bound(&mut self, oldest_unix_s: u64, most_bytes: u64) -> Result<(), StoreError> {
        let rows = self.0.transaction()?;
        let windows =
            rows.execute("DELETE FROM windows WHERE until_unix_s < ?", [oldest_unix_s])?;
        let comparisons =
            rows.execute("DELETE FROM comparisons WHERE at_unix_s < ?", [oldest_unix_s])?;
        if windows > 0 || comparisons > 0 {
            remove_unused_works(&rows)?;
        }
        while used_bytes(&rows)? > most_bytes && remove_oldest_of_most(&rows)? > 0 {}
        Ok(rows.commit()?)
    }

    /// How far sessions are counted in a life of `pfod`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn reached(&self, run: &str) -> Result<Vec<Reached>, StoreError> {
        let mut rows = self.0.prepare("SELECT reached FROM windows WHERE run = ? ORDER BY id")?;
        let mut newest = BTreeMap::new();
        for text in rows.query_map([run], |row| row.get::<_, String>(0))? {
            let reached: Vec<Reached> = serde_json::from_str(&text?)
                .map_err(|error| StoreError::Unreadable(error.to_string()))?;
            newest.extend(reached.into_iter().map(|reached| (reached.session, reached)));
        }
        Ok(newest.into_values().collect())
    }

    /// Every plan that ran since a time, of one user or of all, with all of its comparisons.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn known(
        &self,
        (uid, job): (Option<Uid>, Option<&str>),
        since_unix_s: u64,
    ) -> Result<Vec<Known>, StoreError> {
        const OF: &str = "FROM works WHERE (?1 IS NULL OR uid = ?1) AND (?2 IS NULL OR job = ?2)";
        let uid = uid.map(|uid| uid.0);
        let mut works = self.0.prepare(&format!("SELECT id, uid, job, plan, shape {OF}"))?;
        let mut known = BTreeMap::new();
        for row in works.query_map(params![uid, job], |row| Ok((row.get(0)?, work_of(row)?)))? {
            let (id, work): (i64, Work) = row?;
            known.insert(id, Known::of(&work));
        }
        let mut windows = self.0.prepare(&format!(
            "SELECT work, from_unix_s, until_unix_s, steps, time_s, energy_j, throttled_s, hottest_c, \
             given_j, lost_s, partition, model FROM windows \
             WHERE until_unix_s >= ?3 AND work IN (SELECT id {OF}) ORDER BY id"
        ))?;
        let rows = windows.query_map(params![uid, job, since_unix_s], |row| {
            Ok((row.get::<_, i64>(0)?, measured_of(row)?))
        })?;
        for row in rows {
            let (work, measured) = row?;
            known.entry(work).and_modify(|known| known.windows.push(measured));
        }
        let mut comparisons = self.0.prepare(&format!(
            "SELECT work, at_unix_s, default_steps, default_time_s, default_energy_j, plan_steps, \
             plan_time_s, plan_energy_j FROM comparisons WHERE work IN (SELECT id {OF}) \
             ORDER BY at_unix_s, id"
        ))?;
        let rows = comparisons
            .query_map(params![uid, job], |row| Ok((row.get::<_, i64>(0)?, compared_of(row)?)))?;
        for row in rows {
            let (work, compared) = row?;
            known.entry(work).and_modify(|known| known.comparisons.push(compared));
        }
        Ok(known.into_values().collect())
    }

    /// No page more than this: a disk that is full.
    #[cfg(test)]
    pub(super) fn set_most_pages(&self, most: u32) {
        self.0.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(())).unwrap();
    }

    /// No write waits for the disk: that of a simulation.
    #[cfg(test)]
    pub(super) fn set_hasty(&self) {
        self.0.pragma_update(None, "synchronous", "OFF").unwrap();
        let _: String =
            self.0.query_row("PRAGMA journal_mode = MEMORY", [], |row| row.get(0)).unwrap();
    }

    /// How many rows there are.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn entries(&self) -> Result<u64, StoreError> {
        let count = "SELECT (SELECT count(*) FROM windows) + (SELECT count(*) FROM comparisons)";
        Ok(self.0.query_row(count, [], |row| row.get(0))?)
    }
}

fn append_entry(rows: &Transaction<'_>, entry: &Entry) -> Result<(), StoreError> {
    let reached = serde_json::to_string(&entry.reached).unwrap_or_default();
    let work = id_of(rows, &entry.work)?;
    let Measured { from_unix_s, until_unix_s, steps, time_s, energy_j, .. } = &entry.used;
    let Measured { heat, given_j, lost_s, partition, model, .. } = &entry.used;
    rows.prepare_cached(
        "INSERT INTO windows (work, run, from_unix_s, until_unix_s, steps, time_s, energy_j, \
         throttled_s, hottest_c, given_j, lost_s, partition, model, reached) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        work,
        entry.run,
        from_unix_s,
        until_unix_s,
        steps,
        time_s,
        energy_j,
        heat.throttled_s,
        heat.hottest_c,
        given_j,
        lost_s,
        partition,
        model,
        reached
    ])?;
    let window = rows.last_insert_rowid();
    booking::begin(rows, entry.work.uid, partition.as_deref())?;
    if energy_j.is_some() {
        rows.prepare_cached("INSERT INTO unbooked (window, work) VALUES (?, ?)")?
            .execute([window, work])?;
    }
    Ok(())
}

fn id_of(rows: &Transaction<'_>, Work { uid, job, plan, shape }: &Work) -> rusqlite::Result<i64> {
    let values = params![uid.0, job, plan, shape];
    rows.prepare_cached("INSERT OR IGNORE INTO works (uid, job, plan, shape) VALUES (?, ?, ?, ?)")?
        .execute(values)?;
    rows.prepare_cached("SELECT id FROM works WHERE (uid, job, plan, shape) = (?, ?, ?, ?)")?
        .query_row(values, |row| row.get(0))
}

fn used_bytes(rows: &Transaction<'_>) -> rusqlite::Result<u64> {
    let pages = |which| rows.query_row(which, [], |row| row.get::<_, u64>(0));
    let used = pages("PRAGMA page_count")?.saturating_sub(pages("PRAGMA freelist_count")?);
    Ok(used.saturating_mul(PAGE_BYTES))
}

/// Removes a part of the oldest rows of the user whose rows are most; returns how many.
fn remove_oldest_of_most(rows: &Transaction<'_>) -> rusqlite::Result<usize> {
    let most = "SELECT uid FROM works JOIN \
                (SELECT work FROM windows UNION ALL SELECT work FROM comparisons) ON works.id = work \
                GROUP BY uid ORDER BY count(*) DESC LIMIT 1";
    let Some(uid) = rows.query_row(most, [], |row| row.get::<_, u32>(0)).optional()? else {
        return Ok(0);
    };
    let mut removed = 0_usize;
    for table in ["windows", "comparisons"] {
        let of_user =
            format!("FROM {table} WHERE work IN (SELECT id FROM works WHERE uid = ?1) ORDER BY id");
        let count = rows
            .query_row(&format!("SELECT count(*) {of_user}"), [uid], |row| row.get::<_, u64>(0))?;
        let part = count.div_ceil(REMOVED_PART);
        let delete = format!("DELETE FROM {table} WHERE id IN (SELECT id {of_user} LIMIT ?2)");
        removed = removed.saturating_add(rows.execute(&delete, params![uid, part])?);
    }
    if removed > 0 {
        remove_unused_works(rows)?;
    }
    Ok(removed)
}

fn remove_unused_works(rows: &Transaction<'_>) -> rusqlite::Result<()> {
    rows.execute_batch(
        "DELETE FROM works WHERE id NOT IN \
         (SELECT work FROM windows UNION SELECT work FROM comparisons)",
    )
}

fn work_of(row: &Row<'_>) -> rusqlite::Result<Work> {
    let (job, plan, shape) = (row.get(2)?, row.get(3)?, row.get(4)?);
    Ok(Work { uid: Uid(row.get(1)?), job, plan, shape })
}

fn measured_of(row: &Row<'_>) -> rusqlite::Result<Measured> {
    let (from_unix_s, until_unix_s) = (row.get(1)?, row.get(2)?);
    let (steps, time_s, energy_j) = (row.get(3)?, row.get(4)?, row.get(5)?);
    let heat = Heat { throttled_s: row.get(6)?, hottest_c: row.get(7)? };
    let (given_j, lost_s) = (row.get(8)?, row.get(9)?);
    let (partition, model) = (row.get(10)?, row.get(11)?);
    Ok(Measured {
        from_unix_s,
        until_unix_s,
        steps,
        time_s,
        energy_j,
        heat,
        given_j,
        lost_s,
        partition,
        model,
    })
}

fn compared_of(row: &Row<'_>) -> rusqlite::Result<Compared> {
    let default = Turn { steps: row.get(2)?, time_s: row.get(3)?, energy_j: row.get(4)? };
    let plan = Turn { steps: row.get(5)?, time_s: row.get(6)?, energy_j: row.get(7)? };
    Ok(Compared { at_unix_s: row.get(1)?, default, plan })
}

#[cfg(test)]
mod tests;
