//! What an error tells beside its sentence: an exit code for scripts, and a remedy for people.

use crate::exit::Exit;

/// What an error is to a person and to a script, beside its sentence.
pub(crate) trait Explained {
    /// What the process exits with.
    fn exit(&self) -> Exit;

    /// What to do about it, where something can be said: one line, and perhaps others with details.
    fn remedy(&self) -> Option<String>;
}
