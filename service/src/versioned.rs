//! JSON files that name their format and its version in a field `format`.

use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Tagged {
    format: String,
}

/// The content of a file. Its format is checked first: another version has other fields, and the
/// error would name one of those instead.
///
/// # Errors
/// The format found, or what is wrong with the content.
pub fn parse_versioned<T: DeserializeOwned>(bytes: &[u8], format: &str) -> Result<T, String> {
    let in_words = |error: serde_json::Error| error.to_string();
    let Tagged { format: found } = serde_json::from_slice(bytes).map_err(in_words)?;
    if found != format {
        return Err(format!("its format is {found:?}, not {format:?}"));
    }
    serde_json::from_slice(bytes).map_err(in_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Content {
        #[allow(dead_code)]
        format: String,
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
}
