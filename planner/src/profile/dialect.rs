//! How a profile's file is written: what separates its columns, lines that are no rows, decimal commas.
//!
//! Spreadsheets in half of Europe write `0;forward;1410;0,0512;20,1`. A comma between columns and a
//! comma within a number exclude each other, so a file says itself which it means.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use csv::StringRecord;

use crate::excerpt::excerpt;
use crate::profile::error::ProfileError;
use crate::profile::line_feeds::LineFeeds;

const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];
const MARK: &[u8] = "\u{feff}".as_bytes();

/// The longest header, in bytes.
const LONGEST: u64 = 1 << 16;

/// A profile's text, from its first line on, and what separates its columns.
pub(super) struct Text<R: Read> {
    pub(super) lines: io::Chain<Cursor<Vec<u8>>, BufReader<LineFeeds<R>>>,
    pub(super) separator: u8,
}

impl<R: Read> Text<R> {
    /// Reads up to the header. Lines before it become comments, so that lines are counted right.
    pub(super) fn new(csv: R) -> io::Result<Self> {
        let mut rest = BufReader::new(LineFeeds::new(csv));
        let mut begin = Vec::new();
        let mut separator = None;
        loop {
            let mut line = Vec::new();
            let read = rest.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
            if begin.is_empty() && line.starts_with(MARK) {
                line.drain(..MARK.len());
            }
            let text = line.trim_ascii();
            if let Some(said) = said_separator(text) {
                separator = Some(said);
                line.splice(0..0, *b"#");
            } else if let Some(header) = text.strip_prefix(b"#").filter(|text| is_header(text)) {
                // As numpy.savetxt writes it.
                line = [header.trim_ascii(), b"\n"].concat();
            }
            let is_last = read == 0 || !(line.trim_ascii().is_empty() || line[0] == b'#');
            begin.extend_from_slice(&line);
            if is_last || begin.len() as u64 > LONGEST {
                let separator = separator.unwrap_or_else(|| most_frequent(&line));
                return Ok(Self { lines: Cursor::new(begin).chain(rest), separator });
            }
        }
    }
}

/// The separator of a line `sep=;`, which Excel takes off a file.
fn said_separator(line: &[u8]) -> Option<u8> {
    match line {
        [s, e, p, b'=', separator] if [s, e, p].map(u8::to_ascii_lowercase) == *b"sep" => {
            Some(*separator).filter(|separator| SEPARATORS.contains(separator))
        }
        _ => None,
    }
}

/// Whether a line that is marked as a comment names columns.
fn is_header(line: &[u8]) -> bool {
    let separator = most_frequent(line);
    let fields = line.split(|&byte| byte == separator).map(<[u8]>::trim_ascii);
    let names = |name: &[u8]| fields.clone().any(|field| field.eq_ignore_ascii_case(name));
    names(b"stage") && names(b"instruction")
}

/// What separates most columns of a header; a comma in doubt.
fn most_frequent(header: &[u8]) -> u8 {
    let mut best = (b',', 0);
    for separator in SEPARATORS {
        let mut is_quoted = false;
        let is_one = |&&byte: &&u8| {
            is_quoted ^= byte == b'"';
            byte == separator && !is_quoted
        };
        let count = header.iter().filter(is_one).count();
        if count > best.1 {
            best = (separator, count);
        }
    }
    best.0
}

/// The decimal signs that a file has used so far, each with its first line.
#[derive(Default)]
pub(super) struct DecimalSigns {
    point: Option<u64>,
    comma: Option<u64>,
}

impl DecimalSigns {
    /// A row whose numbers have decimal points, if its columns are not separated by commas.
    ///
    /// # Errors
    /// If a number has several such signs, or the file both kinds.
    pub(super) fn pointed(
        &mut self,
        record: StringRecord,
        numbers: &[usize],
        line: u64,
    ) -> Result<StringRecord, ProfileError> {
        for field in numbers.iter().map(|&index| &record[index]) {
            match (field.matches('.').count(), field.matches(',').count()) {
                (_, 0) if field.contains('.') => _ = self.point.get_or_insert(line),
                (0, 1) => _ = self.comma.get_or_insert(line),
                (0, 0) => {}
                _ => {
                    let (line, value) = (line, excerpt(field));
                    return Err(ProfileError::DecimalSigns { line, value });
                }
            }
        }
        match (self.point, self.comma) {
            (_, None) => Ok(record),
            (None, Some(_)) => {
                let position = record.position().cloned();
                let field = |(index, field): (usize, &str)| match numbers.contains(&index) {
                    true => field.replace(',', "."),
                    false => field.to_owned(),
                };
                let mut pointed: StringRecord = record.iter().enumerate().map(field).collect();
                pointed.set_position(position);
                Ok(pointed)
            }
            (Some(point), Some(comma)) => Err(ProfileError::BothDecimalSigns { point, comma }),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::Profile;
    use crate::test_profiles::{GOOD_CSV, assert_says, refused};

    fn read(csv: &str) -> Profile {
        Profile::from_csv(csv.as_bytes()).unwrap_or_else(|error| panic!("{error}: {csv}"))
    }

    #[test]
    fn a_file_may_have_any_separator_and_with_another_than_commas_decimal_commas() {
        let plain = read(GOOD_CSV);
        for separator in [";", "\t", "|"] {
            let csv = GOOD_CSV.replace(',', separator);
            assert_eq!(read(&csv), plain);
            assert_eq!(read(&csv.replace('.', ",")), plain);
            assert_eq!(read(&format!("\u{feff}{}", csv.replace('\n', "\r\n"))), plain);
        }
        assert_eq!(read(&format!("sep=;\n{}", GOOD_CSV.replace(',', ";"))), plain);
    }

    #[test]
    fn comments_and_empty_rows_are_passed_over_and_counted_as_lines() {
        let plain = read(GOOD_CSV);
        let spread = GOOD_CSV.replace("\n0,", "\n# stage 0\n,,,,\n\n0,");
        assert_eq!(read(&format!("# measured on Friday\n#\n{spread}\n,,,,")), plain);
        assert_eq!(read(&format!("# {GOOD_CSV}")), plain);
        let (header, rows) = GOOD_CSV.split_once('\n').unwrap();
        let (first, rest) = rows.split_at(rows.find("\n0,").unwrap() + 1);
        assert_eq!(read(&format!("# {header}\n{header}\n{first}{header}\n{rest}")), plain);
        let message = refused(&format!("# one\n# two\n{}", GOOD_CSV.replace("1.1,39", "never,39")));
        assert_says(&message, &["line 6", "\"never\""]);
        let message = refused(&format!("sep=,\n{}", GOOD_CSV.replace("1.1,39", "never,39")));
        assert_says(&message, &["line 5", "\"never\""]);
    }

    #[test]
    fn numbers_with_points_and_with_commas_are_refused_with_both_lines() {
        let csv = GOOD_CSV.replace(',', ";");
        let message = refused(&csv.replacen("0.5", "0,5", 1));
        assert_says(&message, &["line 2", "line 3", "decimal"]);
        for both in ["1.100,5", "1,100,5", "1.100.5,0"] {
            assert_says(&refused(&csv.replace("1.1", both)), &["line 4", both]);
        }
    }

    #[test]
    fn a_number_with_a_comma_between_commas_may_mean_anything_and_is_refused() {
        assert_says(&refused(&GOOD_CSV.replace("1.1,39", "\"1,1\",39")), &["line 4", "\"1,1\""]);
    }

    #[test]
    fn a_file_without_a_header_or_of_one_endless_line_is_refused() {
        for csv in ["#", "# only\n# comments\n", "sep=;", "\u{feff}", "\n\n\n"] {
            assert_says(&refused(csv), &["\"stage\""]);
        }
        assert_says(&refused(&"x".repeat(1 << 20)), &["\"stage\""]);
        assert_says(&refused(&"#\n".repeat(1 << 20)), &["\"stage\""]);
    }
}
