//! The faces of the crates that others may depend on are what is written down beside this test.
//!
//! The text is made from the source: every exported item without its documentation, bodies and
//! private fields, and every impl of its types. A change here is a change for users: it belongs into
//! the changelog and, where code that compiled no longer does, into the next incompatible version.

use std::path::Path;

use crate::face::Face;

/// With this set, the texts are written instead of compared.
const WRITE: &str = "PFO_WRITE_API";

fn is_as_written(name: &str, source: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = Face::of(&root.join(source)).text();
    let path = root.join(format!("tests/public_api/{name}.txt"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &found).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap();
    let lines = |of: &str, other: &str| {
        let other: Vec<&str> = other.lines().collect();
        let only = of.lines().filter(|line| !other.contains(line));
        only.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    assert!(
        found == written,
        "the face of {name} has changed.\nNo longer there:\n{}\nNew:\n{}\nIf that is meant, note it in \
         CHANGELOG.md and run {WRITE}=1 cargo test -p pfo-planner --test public_api",
        lines(&written, &found),
        lines(&found, &written)
    );
}

#[test]
fn the_face_of_the_planner_is_as_written() {
    is_as_written("planner", "src");
}

#[test]
fn the_face_of_the_vocabulary_is_as_written() {
    is_as_written("vocabulary", "../vocabulary/src");
}
