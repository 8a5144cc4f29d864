use super::*;

fn entry(uid: u32, number: u64) -> Entry {
    let work = Work { uid: Uid(uid), job: "j".into(), plan: "p".into(), shape: "s".into() };
    let (time_s, energy_j) = (1.0, Some(1.0));
    let reached = vec![Reached { session: 1, swap: 1, steps: number, time_s, energy_j }];
    let used = Measured {
        from_unix_s: number,
        until_unix_s: number + 1,
        steps: 1,
        time_s,
        energy_j,
        heat: Heat { throttled_s: Some(0.5), hottest_c: Some(61) },
        given_j: 2.0,
        lost_s: 0.5,
        ..Measured::default()
    };
    Entry { used, reached, ..Entry::begin(work, "r".into(), number) }
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
        rows.map(|row| (row.from_unix_s, row.steps, row.heat, row.given_j, row.lost_s)).collect()
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
    let many = |from: u64| (from..from + 500).map(|number| entry(1, number)).collect::<Vec<_>>();
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
