//! The ledger on disk: one file of `SQLite`, whose rows are never changed. Each row says how far the
//! sessions of its job are counted with it, so that both are written or none is.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pfo_protocol::Uid;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, params};

use crate::ledger::comparison::{Compared, Turn};
use crate::ledger::query::{Known, Measured};
use crate::ledger::windows::{Entry, Heat, Reached, Work};

/// The version of the tables, which later agents upgrade.
const VERSION: u32 = 2;

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
/// budgets; what version 1 wrote does not.
const UPGRADES: [&str; 1] = ["
ALTER TABLE windows ADD COLUMN throttled_s REAL;
ALTER TABLE windows ADD COLUMN hottest_c INTEGER;
ALTER TABLE windows ADD COLUMN given_j REAL NOT NULL DEFAULT 0;
ALTER TABLE windows ADD COLUMN lost_s REAL NOT NULL DEFAULT 0;
PRAGMA user_version = 2;
"];

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
    /// The disk is full, or the file cannot be opened.
    #[error("{0}")]
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
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

    /// Writes rows, all or none.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn append(
        &mut self,
        entries: &[Entry],
        comparisons: &[(Work, Compared)],
    ) -> Result<(), StoreError> {
        let rows = self.0.transaction()?;
        for entry in entries {
            let reached = serde_json::to_string(&entry.reached).unwrap_or_default();
            let work = id_of(&rows, &entry.work)?;
            let Entry { run, from_unix_s, until_unix_s, steps, time_s, energy_j, .. } = entry;
            let Entry { heat, given_j, lost_s, .. } = entry;
            rows.prepare_cached(
                "INSERT INTO windows (work, run, from_unix_s, until_unix_s, steps, time_s, energy_j, \
                 throttled_s, hottest_c, given_j, lost_s, reached) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                work,
                run,
                from_unix_s,
                until_unix_s,
                steps,
                time_s,
                energy_j,
                heat.throttled_s,
                heat.hottest_c,
                given_j,
                lost_s,
                reached
            ])?;
        }
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
        Ok(rows.commit()?)
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
             given_j, lost_s FROM windows \
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

    /// How many rows there are.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn entries(&self) -> Result<u64, StoreError> {
        let count = "SELECT (SELECT count(*) FROM windows) + (SELECT count(*) FROM comparisons)";
        Ok(self.0.query_row(count, [], |row| row.get(0))?)
    }
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
    Ok(Measured { from_unix_s, until_unix_s, steps, time_s, energy_j, heat, given_j, lost_s })
}

fn compared_of(row: &Row<'_>) -> rusqlite::Result<Compared> {
    let default = Turn { steps: row.get(2)?, time_s: row.get(3)?, energy_j: row.get(4)? };
    let plan = Turn { steps: row.get(5)?, time_s: row.get(6)?, energy_j: row.get(7)? };
    Ok(Compared { at_unix_s: row.get(1)?, default, plan })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uid: u32, number: u64) -> Entry {
        let work = Work { uid: Uid(uid), job: "j".into(), plan: "p".into(), shape: "s".into() };
        let (time_s, energy_j) = (1.0, Some(1.0));
        let reached = vec![Reached { session: 1, swap: 1, steps: number, time_s, energy_j }];
        Entry {
            until_unix_s: number + 1,
            steps: 1,
            time_s,
            energy_j,
            heat: Heat { throttled_s: Some(0.5), hottest_c: Some(61) },
            given_j: 2.0,
            lost_s: 0.5,
            reached,
            ..Entry::begin(work, "r".into(), number)
        }
    }

    fn rows_of(store: &Store, uid: u32) -> Vec<u64> {
        let known = store.known((Some(Uid(uid)), None), 0).unwrap();
        known.iter().flat_map(|known| &known.windows).map(|row| row.from_unix_s).collect()
    }

    #[test]
    fn old_rows_go_first_and_then_those_of_the_user_that_has_most() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(&directory.path().join("l")).unwrap();
        let many: Vec<_> = (0..5000).map(|number| entry(1, number)).collect();
        store.append(&many, &[]).unwrap();
        store.append(&[entry(2, 10), entry(2, 2000)], &[]).unwrap();
        store.bound(1000, u64::MAX).unwrap();
        assert_eq!((rows_of(&store, 1).len(), rows_of(&store, 2)), (4001, vec![2000]));
        let half = used_bytes(&store.0.transaction().unwrap()).unwrap() / 2;
        store.bound(0, half).unwrap();
        let left = rows_of(&store, 1);
        assert!((500..3000).contains(&left.len()), "{}", left.len());
        assert_eq!(left.last(), Some(&4999), "the newest stay");
        assert_eq!(rows_of(&store, 2), [2000]);
        assert_eq!(store.reached("r").unwrap()[0].steps, 2000, "of the row that came last");
    }

    #[test]
    fn a_user_that_has_only_comparisons_takes_no_row_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(&directory.path().join("l")).unwrap();
        let turn = Turn { steps: 1, time_s: 1.0, energy_j: 1.0 };
        let compared = Compared { at_unix_s: 1, default: turn, plan: turn };
        let of_label = |number| {
            let plan = format!("{number}");
            (Work { uid: Uid(1), job: "j".into(), plan, shape: "s".into() }, compared)
        };
        let many: Vec<_> = (0..5000).map(of_label).collect();
        let own: Vec<_> = (0..100).map(|number| entry(2, number)).collect();
        store.append(&own, &many).unwrap();
        let most = used_bytes(&store.0.transaction().unwrap()).unwrap() / 2;
        store.bound(0, most).unwrap();
        assert!(used_bytes(&store.0.transaction().unwrap()).unwrap() <= most);
        assert_eq!(rows_of(&store, 2).len(), 100);
    }

    #[test]
    fn a_ledger_of_the_version_before_is_written_on_and_has_given_nothing_and_no_heat() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("l");
        Connection::open(&path)
            .unwrap()
            .execute_batch(&format!(
                "{TABLES} INSERT INTO works VALUES (1, 1, 'j', 'p', 's'); \
                 INSERT INTO windows VALUES (1, 1, 'r', 4, 5, 6, 7.0, 8.0, '[]');"
            ))
            .unwrap();
        let rows = |store: &Store| -> Vec<_> {
            let known = store.known((Some(Uid(1)), None), 0).unwrap();
            let rows = known.iter().flat_map(|known| &known.windows);
            rows.map(|row| (row.from_unix_s, row.steps, row.heat, row.given_j, row.lost_s))
                .collect()
        };
        let heat = Heat { throttled_s: Some(0.5), hottest_c: Some(61) };
        let mut expected = vec![(4, 6, Heat::default(), 0.0, 0.0)];
        for number in [9, 10] {
            let mut store = Store::open(&path).unwrap();
            store.append(&[entry(1, number)], &[]).unwrap();
            expected.push((number, 1, heat, 2.0, 0.5));
            assert_eq!(rows(&store), expected);
        }
        assert_eq!(rows(&Store::open(&path).unwrap()), expected);
    }

    #[test]
    fn no_row_is_ever_changed() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open(&directory.path().join("l")).unwrap();
        store.append(&[entry(1, 1)], &[]).unwrap();
        let changed = store.0.execute("UPDATE windows SET steps = 2", []);
        assert!(changed.unwrap_err().to_string().contains("rows stay"));
    }

    #[test]
    fn a_copy_taken_in_the_middle_of_a_write_has_all_rows_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("l");
        let mut store = Store::open(&path).unwrap();
        // So small a cache that pages reach the file before the transaction ends.
        store.0.execute_batch("PRAGMA cache_size = 4").unwrap();
        let many =
            |from: u64| (from..from + 500).map(|number| entry(1, number)).collect::<Vec<_>>();
        store.append(&many(0), &[]).unwrap();
        let rows = store.0.transaction().unwrap();
        let insert = "INSERT INTO windows (work, run, from_unix_s, until_unix_s, steps, time_s, reached) \
                      SELECT work, run, from_unix_s, until_unix_s, steps, time_s, reached FROM windows";
        rows.execute_batch(insert).unwrap();
        let copy = directory.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        std::fs::copy(directory.path().join("l-journal"), directory.path().join("copy-journal"))
            .unwrap();
        drop(rows);
        assert_eq!(rows_of(&Store::open(&copy).unwrap(), 1).len(), 500);
    }
}
