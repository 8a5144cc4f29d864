//! The Python literals of plan files of lowtime and Zeus: lists, tuples, whole numbers, strings,
//! comments, and numbers as `NumPy` 2 writes them.
//!
//! Their own tools evaluate such files as Python expressions. Here they are only parsed: other names,
//! operators and calls are errors, and size and nesting are bounded.

use crate::error::PlanError;
use crate::excerpt::excerpt;

/// A value of a plan file and the place where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Literal<'a> {
    pub(crate) value: Value<'a>,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// A list or a tuple.
    Sequence(Vec<Literal<'a>>),
    /// A whole number of at least 0.
    Number(u32),
    /// A string without escapes.
    Text(&'a str),
}

/// A place in a file; line and column are counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Place {
    /// The error about a problem at this place.
    pub(crate) fn wrong(self, problem: impl Into<String>) -> PlanError {
        PlanError::PythonPlan { line: self.line, column: self.column, problem: problem.into() }
    }
}

/// The deepest nesting: stages, instructions, and names with clocks.
const DEEPEST: u32 = 3;

/// Reads a text that is one literal, apart from space and comments.
///
/// # Errors
/// [`PlanError::PythonPlan`] with the first wrong place.
pub(crate) fn parse(text: &str) -> Result<Literal<'_>, PlanError> {
    parse_within(text, DEEPEST)
}

/// The same of lists that are nested as deep as this at most, which is three or four.
///
/// # Errors
/// [`PlanError::PythonPlan`] with the first wrong place.
pub(crate) fn parse_within(text: &str, deepest: u32) -> Result<Literal<'_>, PlanError> {
    let mut reader = Reader { rest: text, place: Place { line: 1, column: 1 }, deepest };
    reader.skip_space();
    let literal = reader.literal(0)?;
    reader.skip_space();
    match reader.rest.chars().next() {
        None => Ok(literal),
        Some(next) => {
            Err(reader.place.wrong(format!("'{}' after the end of the list", next.escape_debug())))
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    place: Place,
    deepest: u32,
}

impl<'a> Reader<'a> {
    /// Takes this many bytes, which must end at the end of a character.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        for c in taken.chars() {
            if c == '\n' {
                self.place.line += 1;
                self.place.column = 1;
            } else {
                self.place.column += 1;
            }
        }
        self.rest = rest;
        taken
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        self.take(self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len()))
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
            if !self.rest.starts_with('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn literal(&mut self, depth: u32) -> Result<Literal<'a>, PlanError> {
        let place = self.place;
        let value = match self.rest.chars().next() {
            Some('[') => self.sequence(']', depth)?,
            Some('(') => self.sequence(')', depth)?,
            Some(quote @ ('\'' | '"')) => self.text(quote)?,
            Some('0'..='9') => {
                let digits = self.take_while(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_');
                // pandas writes whole numbers of a column of fractions so.
                let whole = digits.strip_suffix(".0").unwrap_or(digits);
                let number = whole.parse().map_err(|_| {
                    place.wrong(format!("{} is not a whole number of MHz", excerpt(digits)))
                })?;
                Value::Number(number)
            }
            Some('n') if self.rest.starts_with("np.") => self.numpy_scalar()?,
            Some(other) => {
                return Err(place.wrong(format!(
                    "'{}' is not the start of a list, a number or a string",
                    other.escape_debug()
                )));
            }
            None => return Err(place.wrong("the file ends here, before the list does")),
        };
        Ok(Literal { value, place })
    }

    /// A scalar as `NumPy` 2 writes it: `np.int64(1410)`.
    fn numpy_scalar(&mut self) -> Result<Value<'a>, PlanError> {
        let place = self.place;
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
        let is_scalar =
            ["np.int", "np.uint", "np.float", "np.str"].iter().any(|kind| name.starts_with(kind));
        if !is_scalar || !self.rest.starts_with('(') {
            return Err(place.wrong(format!("{} is no number of NumPy", excerpt(name))));
        }
        self.take(1);
        self.skip_space();
        let scalar = self.literal(self.deepest)?.value;
        self.skip_space();
        if !self.rest.starts_with(')') {
            return Err(self.place.wrong(format!("expected ')' after the number of {name}")));
        }
        self.take(1);
        Ok(scalar)
    }

    fn sequence(&mut self, end: char, depth: u32) -> Result<Value<'a>, PlanError> {
        if depth >= self.deepest {
            let deepest = if self.deepest == DEEPEST { "three" } else { "four" };
            return Err(self.place.wrong(format!("lists are nested more than {deepest} deep")));
        }
        self.take(1);
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if self.rest.starts_with(end) {
                break;
            }
            items.push(self.literal(depth + 1)?);
            self.skip_space();
            if self.rest.starts_with(',') {
                self.take(1);
            } else if !self.rest.starts_with(end) {
                let expected = format!("expected ',' or '{end}'");
                return Err(self.place.wrong(match self.rest.chars().next() {
                    Some(found) => format!("{expected}, found '{}'", found.escape_debug()),
                    None => format!("{expected}, but the file ends here"),
                }));
            }
        }
        self.take(1);
        Ok(Value::Sequence(items))
    }

    fn text(&mut self, quote: char) -> Result<Value<'a>, PlanError> {
        let place = self.place;
        self.take(1);
        let text = self.take_while(|c| c != quote && c != '\\' && c != '\n');
        if !self.rest.starts_with(quote) {
            return Err(place.wrong("a string that does not end on its line, or has an escape"));
        }
        self.take(1);
        Ok(Value::Text(text))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn lists_tuples_numbers_strings_and_comments_are_read() {
        let text =
            "# first\n[\n[('forward', 1410), (\"backward\", 855.0,),], # why\n[],\n]\n# last";
        let Value::Sequence(stages) = parse(text).unwrap().value else { panic!() };
        let Value::Sequence(instructions) = &stages[0].value else { panic!() };
        assert_eq!(instructions[1].place, Place { line: 3, column: 21 });
        let Value::Sequence(pair) = &instructions[1].value else { panic!() };
        assert_eq!(pair[0].value, Value::Text("backward"));
        assert_eq!(pair[1].value, Value::Number(855));
        assert_eq!(stages[1].value, Value::Sequence(Vec::new()));
    }

    #[test]
    fn scalars_of_numpy_2_are_the_numbers_that_they_hold() {
        let text = "(np.str_('forward'), np.int64(1410), np.float64( 855.0 ), np.uint16(900))";
        let Value::Sequence(scalars) = parse(text).unwrap().value else { panic!() };
        let values: Vec<_> = scalars.into_iter().map(|scalar| scalar.value).collect();
        let [f, b, c] = [1410, 855, 900].map(Value::Number);
        assert_eq!(values, [Value::Text("forward"), f, b, c]);
    }

    #[test]
    fn what_would_have_to_be_evaluated_is_refused_with_its_place() {
        for (text, place) in [
            ("[[1410], __import__('os').system('true')]", "line 1, column 10"),
            ("[\n[1410 * 2]]", "line 2, column 7"),
            ("[\n [-5]]", "line 2, column 3"),
            ("[[x for x in y]]", "line 1, column 3"),
            ("[[1.5]]", "line 1, column 3"),
            ("[[99999999999]]", "line 1, column 3"),
            ("[['a\\x41']]", "line 1, column 3"),
            ("[[1]] + [[2]]", "line 1, column 7"),
            ("[[1]", "line 1, column 5"),
            ("[[1],", "line 1, column 6"),
            ("[(1]]", "line 1, column 4"),
            ("['abc", "line 1, column 2"),
            ("", "line 1, column 1"),
            ("[np.load('x')]", "line 1, column 2"),
            ("[np.int64([1])]", "line 1, column 11"),
            ("[np.int64(1, 2)]", "line 1, column 12"),
            ("[np.int64(1.5)]", "line 1, column 11"),
            ("[np.int64]", "line 1, column 2"),
        ] {
            let message = refused(text);
            assert!(message.contains(place), "{text}: {message}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(refused(&"[".repeat(1_000_000)).contains("nested more than three deep"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\](),0-9a'\"#\\\\\n é-]{0,60}") {
            let _ = parse(&text);
        }
    }
}
