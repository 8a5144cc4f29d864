//! The sections that the pages of both daemons have.

use clap_mangen::roff::{Roff, bold, roman};

/// A section of names, each with its meaning.
pub(crate) fn section<M: AsRef<str>>(page: &mut Roff, title: &str, rows: &[(&str, M)]) {
    page.control("SH", [title]);
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(meaning.as_ref())]);
    }
    page.control("PP", []);
}

/// Each `MESSAGE_ID` of these kinds, with its subject in the journal's catalog.
pub(crate) fn journal(page: &mut Roff, ids: &[(&str, &str)], catalog: &str) {
    let subject = |id: &str| {
        let (_, entry) = catalog.split_once(&format!("-- {id}\nSubject: "))?;
        Some(entry.lines().next()?.replace('@', ""))
    };
    let row = |&(kind, id)| (id, subject(id).unwrap_or_else(|| str::to_owned(kind)));
    let rows: Vec<_> = ids.iter().map(row).collect();
    section(page, "JOURNAL", &rows);
}
