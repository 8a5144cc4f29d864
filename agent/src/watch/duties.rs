//! What the watch does for other parts of the agent: a duty that fails is reported, and stops no other.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use pfo_protocol::{Pid, Uid};
use pfo_service::{Panicked, Whose, catch_in};

use crate::pfod::PfodError;

/// The duties that fail, each with the reason.
#[derive(Debug, Default)]
pub(super) struct Duties(BTreeMap<&'static str, String>);

/// Does a duty, whose panic ends nothing else.
///
/// # Errors
/// If it panics.
pub(super) async fn catch<T>(duty: impl Future<Output = T>) -> Result<T, Panicked> {
    let own = fs::metadata("/proc/self").map_or(Uid(u32::MAX), |process| Uid(process.uid()));
    catch_in(&Whose::of(own, Pid(std::process::id())), duty).await
}

impl Duties {
    /// Takes note of what became of a duty, and reports it when that changes.
    pub(super) fn note<T>(
        &mut self,
        name: &'static str,
        done: Result<Result<T, PfodError>, Panicked>,
    ) -> Option<T> {
        let why = match done {
            Ok(Ok(done)) => {
                if self.0.remove(name).is_some() {
                    tracing::info!("the duty of the watch works again: {name}");
                }
                return Some(done);
            }
            Ok(Err(error)) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        };
        if self.0.insert(name, why.clone()).is_none() {
            tracing::warn!("a duty of the watch fails, and the others go on: {name}: {why}");
        }
        None
    }

    /// How many fail.
    pub(super) fn failing(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done<T>(duties: &mut Duties, duty: impl Future<Output = Result<T, PfodError>>) -> Option<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        duties.note("ledger", runtime.block_on(catch(duty)))
    }

    #[test]
    fn a_duty_that_fails_or_panics_is_counted_until_it_works_again() {
        let mut duties = Duties::default();
        assert_eq!(done(&mut duties, async { Ok(3) }), Some(3));
        assert_eq!(duties.failing(), 0);
        let away = async { Err::<(), _>(PfodError::Away("gone".into())) };
        assert_eq!(done(&mut duties, away), None);
        assert_eq!(done(&mut duties, async { panic!("a duty panics") }), None::<()>);
        assert_eq!(duties.failing(), 1);
        assert_eq!(done(&mut duties, async { Ok(4) }), Some(4));
        assert_eq!(duties.failing(), 0);
    }
}
