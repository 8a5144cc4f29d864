//! The few parts of HTML that the page is made of. Text of any origin goes in through here.

/// A text with what HTML would obey shown instead, and so with control characters.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in crate::text::harmless(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// An element around text.
pub(crate) fn element(tag: &str, text: &str) -> String {
    format!("<{tag}>{}</{tag}>\n", escaped(text))
}

/// The sentence that a page is about.
pub(crate) fn headline(sentence: &str) -> String {
    format!("<p class=\"headline\">{}</p>\n", escaped(sentence))
}

/// Figures in large letters, each with its name and what it is to be compared with.
pub(crate) fn tiles<'a>(
    figures: impl IntoIterator<Item = (&'a str, String, Option<String>)>,
) -> String {
    let tile = |(name, value, note): (&str, String, Option<String>)| {
        let note = escaped(note.as_deref().unwrap_or_default());
        let (name, value) = (escaped(name), escaped(&value));
        format!("<div><dt>{name}</dt><dd><b>{value}</b> {note}</dd></div>\n")
    };
    let tiles: String = figures.into_iter().map(tile).collect();
    if tiles.is_empty() { tiles } else { format!("<dl class=\"tiles\">\n{tiles}</dl>\n") }
}

/// Names and what they stand for, such as the host and its name.
pub(crate) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fact = |(name, value): (&str, String)| {
        format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(&value))
    };
    let facts: String = facts.into_iter().map(fact).collect();
    format!("<dl class=\"facts\">\n{facts}</dl>\n")
}

/// Parts that a reader unfolds; they are printed folded.
pub(crate) fn folded(summary: &str, parts: &str) -> String {
    format!("<details><summary>{}</summary>\n{parts}</details>\n", escaped(summary))
}

/// A list of sentences.
pub(crate) fn list(sentences: &[String]) -> String {
    let items: String = sentences.iter().map(|sentence| element("li", sentence)).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// A table that scrolls by itself where the page is narrow. What is empty is a dash.
pub(crate) fn table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [Option<String>; COLUMNS]>,
) -> String {
    let header: String = header.iter().map(|name| element("th", name)).collect();
    let rows: String = rows
        .into_iter()
        .map(|row| {
            let cells = row.iter().map(|cell| element("td", cell.as_deref().unwrap_or("-")));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        })
        .collect();
    format!("<div class=\"wide\"><table>\n<tr>{header}</tr>\n{rows}</table></div>\n")
}

/// A picture, which has colours of its own, and what it shows. The picture is our own text.
pub(crate) fn figure(svg: &str, caption: &str) -> String {
    let caption = element("figcaption", caption);
    format!("<figure><div class=\"wide picture\">{svg}</div>\n{caption}</figure>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_foreign_is_obeyed() {
        let evil = "<script>alert('1')</script>&\"\x1b\u{202e}";
        let shown = escaped(evil);
        assert!(!shown.contains(['<', '>', '"', '\'', '\x1b', '\u{202e}']), "{shown}");
        assert!(table(["a"], [[Some(evil.to_owned())]]).contains(&shown));
        assert!(list(&[evil.to_owned()]).contains(&shown));
        assert!(figure("<svg></svg>", evil).contains(&shown));
        assert!(headline(evil).contains(&shown) && folded(evil, "").contains(&shown));
        let twice = |part: String| part.matches(&shown).count() >= 2;
        assert!(twice(facts([(evil, evil.to_owned())])));
        assert!(twice(tiles([(evil, evil.to_owned(), Some(evil.to_owned()))])));
        assert_eq!(tiles([]), "");
        assert_eq!(escaped("größer 1.02×"), "größer 1.02×");
    }
}
