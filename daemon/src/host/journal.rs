//! The journal entries that people and tools may rely on: each kind has a `MESSAGE_ID` that never
//! changes, and an explanation in the journal's catalog, `systemd/pfod.catalog`.
//!
//! An event is of a kind if that is its name: `tracing::info!(name: journal::LEASED, …)`.

/// A session holds the lease of a GPU.
pub(crate) const LEASED: &str = "leased";
/// A lease ended in order or because its rank went away, and its clocks are restored.
pub(crate) const LEASE_ENDED: &str = "lease-ended";
/// A request or a session was refused.
pub(crate) const REFUSED: &str = "refused";
/// The ranks of a job change to another plan.
pub(crate) const SWAPPED: &str = "swapped";
/// An administrator reset the clocks of a GPU, including locks that pfo did not set.
pub(crate) const RESET: &str = "reset";
/// Clocks were restored that no session answered for.
pub(crate) const RESTORED: &str = "restored";
/// Clocks could not be restored yet.
pub(crate) const STILL_LOCKED: &str = "still-locked";
/// A job did not follow its plan, and now runs at default clocks.
pub(crate) const PLAN_SUSPENDED: &str = "plan-suspended";
/// A GPU stopped answering while it was leased.
pub(crate) const GPU_LOST: &str = "gpu-lost";
/// A GPU runs below the clock that is locked on it.
pub(crate) const THROTTLED: &str = "throttled";
/// A GPU runs at another clock than the one that is locked on it, for no reason that the driver
/// names.
pub(crate) const FOREIGN_CLOCK: &str = "foreign-clock";

/// What the agent has asked for a leased GPU holds, or is over.
pub(crate) const AGENT_ASKED: &str = "agent-asked";

/// An administrator drains the node, or releases the driver.
pub(crate) const DRAINED: &str = "drained";
/// An administrator ends that.
pub(crate) const UNDRAINED: &str = "undrained";

/// An administrator gave a GPU to a user.
pub(crate) const GRANTED: &str = "granted";
/// That ended.
pub(crate) const GRANT_ENDED: &str = "grant-ended";
/// A damaged ledger may have named locks that are lost.
pub(crate) const LEDGER_DAMAGED: &str = "ledger-damaged";
/// An administrator acknowledges that.
pub(crate) const ACKNOWLEDGED: &str = "acknowledged";

/// What pfod may have died of was not taken up again.
pub(crate) const LEFT_OUT: &str = "left-out";
/// A thread panicked.
const PANIC: &str = "panic";

/// The `MESSAGE_ID` of every kind.
pub const MESSAGE_IDS: [(&str, &str); 20] = [
    (LEASED, "68a35a0d90d845e5859f688b637bab95"),
    (LEASE_ENDED, "bc461f6ca8594a208bedf29a45bddd0f"),
    (REFUSED, "4bd9161b13694e8d82c8d74f6f858880"),
    (SWAPPED, "bdd0b24e72e64e9abf364bc54ce95c94"),
    (RESET, "918e1baa4ae948738747fba2ec3707be"),
    (RESTORED, "ed99927447ed417aa662721a157d0dae"),
    (STILL_LOCKED, "212e624ce4534fee8c86ffda820d6b80"),
    (PLAN_SUSPENDED, "7ed2595c7ebf44499777fc44c4a4cfd0"),
    (GPU_LOST, "b848f731490f4aa9890ea09c86348709"),
    (THROTTLED, "01b8c4fc2ea04880b3038d0a25418871"),
    (FOREIGN_CLOCK, "bc50e8b2804c4a3baacef515d76b26c0"),
    (AGENT_ASKED, "6f0c2ab1d9474e5c8d3b7a52e1c04f96"),
    (DRAINED, "063d87f64a4a421680ef498b968f828d"),
    (UNDRAINED, "7a0c94e866ac41d191e032f401bfa456"),
    (GRANTED, "2f7d3b0e5c1b4b6c9a54d8e1f0a3c672"),
    (GRANT_ENDED, "b1e86f4a0d9743e2a7c55e0d93f18b24"),
    (LEDGER_DAMAGED, "41c79202dce84d458961fcf214ae8214"),
    (ACKNOWLEDGED, "d1923d15c6bf4b84830b3f027b80fd70"),
    (LEFT_OUT, "4dce3f523a2744d2851fea76fc871646"),
    (PANIC, "3521d93785d24c36b9683c418bb9b502"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The entries of the catalog by `MESSAGE_ID`.
    fn catalog() -> BTreeMap<&'static str, &'static str> {
        let text = include_str!("../../../systemd/pfod.catalog");
        let entries = text.split("\n-- ").skip(1);
        entries.map(|entry| entry.split_once('\n').unwrap()).collect()
    }

    #[test]
    fn every_kind_is_in_the_catalog_and_nothing_else_is() {
        let kinds: BTreeMap<_, _> = MESSAGE_IDS.iter().map(|(kind, id)| (*id, *kind)).collect();
        assert_eq!(kinds.len(), MESSAGE_IDS.len(), "two kinds have the same id");
        assert!(kinds.keys().eq(catalog().keys()), "{kinds:?}");
    }

    #[test]
    fn every_entry_of_the_catalog_says_where_it_comes_from_and_what_it_means() {
        for (id, entry) in catalog() {
            let (header, text) = entry.split_once("\n\n").unwrap();
            let lines: Vec<_> = header.lines().collect();
            assert!(lines[0].starts_with("Subject: "), "{id}: {header}");
            assert_eq!(lines[1..], ["Defined-By: pfo", "Documentation: man:pfod(8)"], "{id}");
            assert!(text.trim().ends_with('.'), "{id}: {text}");
        }
    }
}
