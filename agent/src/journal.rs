//! The journal entries of the agent that people and tools may rely on: each kind has a `MESSAGE_ID`
//! that never changes, and an explanation in the journal's catalog, `systemd/pfo-agent.catalog`.

/// A request was refused.
pub(crate) const REFUSED: &str = "refused";
/// The ranks of a job change to another plan, because of a straggler or for a power budget.
pub(crate) const SWAPPED: &str = "swapped";
/// The instructions of a rank take longer than was profiled.
pub(crate) const SLOW: &str = "slow";
/// The instructions of a rank take what was profiled again.
pub(crate) const SLOW_OVER: &str = "slow-over";
/// What a job measures has moved from what its plan predicts.
pub(crate) const DRIFTED: &str = "drifted";
/// A plan did not keep the slowdown that was allowed.
pub(crate) const GUARDED: &str = "guarded";

/// A job does not begin with the plan that is kept for it.
pub(crate) const FIRST_PLAN_REFUSED: &str = "first-plan-refused";

/// A power limit holds a GPU for a power budget, or no longer does.
pub(crate) const CAPPED: &str = "capped";

/// A thread panicked.
const PANIC: &str = "panic";

/// The `MESSAGE_ID` of every kind.
pub const MESSAGE_IDS: &[(&str, &str)] = &[
    (REFUSED, "4bd9161b13694e8d82c8d74f6f858880"),
    (SWAPPED, "bdd0b24e72e64e9abf364bc54ce95c94"),
    (SLOW, "e495c913f52b46f6983d9a75cfac016a"),
    (SLOW_OVER, "2ac10ebe92d548b0a8cf85cb48160366"),
    (PANIC, "3521d93785d24c36b9683c418bb9b502"),
    (DRIFTED, "2952105d594741f3b753aeeed03adc8f"),
    (GUARDED, "9d0b6c8e54f84a0e8f3b1c7a2d6e4f10"),
    (CAPPED, "b603f29074b94715b23664fc770b6cb9"),
    (FIRST_PLAN_REFUSED, "5b834d1f9d8c4dc1aea37938bd6c0f3f"),
];
