//! JSON files that name their format and its version in a field `format`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Tagged {
    format: String,
    boot_id: Option<String>,
}

/// The content of the file at `path`; none if there is no file.
///
/// # Errors
/// Why it cannot be read, the format found, or what is wrong with the content.
pub fn read_versioned<T: DeserializeOwned>(path: &Path, format: &str) -> Result<Option<T>, String> {
    match fs::read(path) {
        Ok(bytes) => parse_versioned(&bytes, format).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The content of a file. Its format is checked first: another version has other fields, and the
/// error would name one of those instead.
///
/// # Errors
/// The format found, or what is wrong with the content.
pub fn parse_versioned<T: DeserializeOwned>(bytes: &[u8], format: &str) -> Result<T, String> {
    check_format(bytes, format)?;
    parse(bytes)
}

/// The content of a file that does not outlive the boot named in its field `boot_id`.
///
/// # Errors
/// As [`parse_versioned`], or that it is of another boot than `boot_id`.
pub fn parse_of_boot<T: DeserializeOwned>(
    bytes: &[u8],
    format: &str,
    boot_id: &str,
) -> Result<T, String> {
    let tagged = check_format(bytes, format)?;
    if tagged.boot_id.as_deref() != Some(boot_id) {
        return Err("it is of another boot".into());
    }
    parse(bytes)
}

fn check_format(bytes: &[u8], format: &str) -> Result<Tagged, String> {
    let tagged: Tagged = parse(bytes)?;
    if tagged.format != format {
        return Err(format!("its format is {:?}, not {format:?}", tagged.format));
    }
    Ok(tagged)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Content {
        format: String,
        boot_id: Option<String>,
        number: u32,
    }

    fn number(text: &str) -> Result<u32, String> {
        parse_versioned(text.as_bytes(), "pfo-test/1").map(|content: Content| content.number)
    }

    #[test]
    fn another_version_is_told_by_its_name_and_not_by_the_fields_that_it_has() {
        assert_eq!(number(r#"{"format": "pfo-test/1", "number": 7}"#), Ok(7));
        let why = number(r#"{"format": "pfo-test/2", "numbers": [7]}"#).unwrap_err();
        assert_eq!(why, r#"its format is "pfo-test/2", not "pfo-test/1""#);
    }

    #[test]
    fn what_is_wrong_with_the_content_is_told() {
        let why = number(r#"{"format": "pfo-test/1", "numbers": [7]}"#).unwrap_err();
        assert!(why.contains("numbers"), "{why}");
        assert!(number(r#"{"number": 7}"#).unwrap_err().contains("format"));
        assert!(number("{").is_err());
    }

    #[test]
    fn a_file_of_a_boot_is_none_of_another_boot_or_of_no_boot() {
        let number = |boot: &str| {
            let text = format!(r#"{{"format": "pfo-test/1", {boot} "number": 7}}"#);
            let parsed = parse_of_boot(text.as_bytes(), "pfo-test/1", "this");
            parsed.map(|content: Content| content.number)
        };
        assert_eq!(number(r#""boot_id": "this","#), Ok(7));
        for other in [r#""boot_id": "that","#, r#""boot_id": "","#, r#""boot_id": null,"#, ""] {
            assert_eq!(number(other).unwrap_err(), "it is of another boot", "{other}");
        }
        assert!(number(r#""boot_id": "this", "more": 1,"#).unwrap_err().contains("more"));
    }

    #[test]
    fn no_file_is_no_content_and_one_that_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file.json");
        let read = |path: &Path| {
            let read = read_versioned(path, "pfo-test/1");
            read.map(|found: Option<Content>| found.map(|content| content.number))
        };
        assert_eq!(read(&path), Ok(None));
        fs::write(&path, r#"{"format": "pfo-test/1", "number": 7}"#).unwrap();
        assert_eq!(read(&path), Ok(Some(7)));
        assert!(read(directory.path()).is_err());
        fs::write(&path, "").unwrap();
        assert!(read(&path).is_err());
    }
}
