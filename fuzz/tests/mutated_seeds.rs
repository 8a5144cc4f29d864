//! Every target on its seeds, whole and spoilt: what libFuzzer does for hours, for a moment.

use pfo_fuzz::seeds::TARGETS;
use pfo_fuzz::state::BOOT;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Inputs for each target.
const INPUTS: u32 = 2000;

/// Numbers that a bound is wrong about, if it is.
const ODD: [u8; 5] = [0, 1, 0x7f, 0x80, 0xff];

#[derive(Clone, Debug)]
enum Spoil {
    Flip { at: usize, mask: u8 },
    Put { at: usize, byte: u8 },
    Fill { at: usize, length: usize, byte: u8 },
    Remove { at: usize, length: usize },
    Repeat { at: usize, length: usize },
    Cut { at: usize },
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let at = any::<usize>();
    let short = 1..12usize;
    let byte = prop_oneof![prop::sample::select(&ODD[..]), any::<u8>()];
    prop_oneof![
        (at, 1..=u8::MAX).prop_map(|(at, mask)| Spoil::Flip { at, mask }),
        (at, byte.clone()).prop_map(|(at, byte)| Spoil::Put { at, byte }),
        (at, short.clone(), byte).prop_map(|(at, length, byte)| Spoil::Fill { at, length, byte }),
        (at, short.clone()).prop_map(|(at, length)| Spoil::Remove { at, length }),
        (at, short).prop_map(|(at, length)| Spoil::Repeat { at, length }),
        at.prop_map(|at| Spoil::Cut { at }),
    ]
}

fn apply(bytes: &mut Vec<u8>, spoil: &Spoil) {
    let place = |at: usize| at % bytes.len().max(1);
    let range = |at: usize, length: usize| place(at)..(place(at) + length).min(bytes.len());
    match *spoil {
        _ if bytes.is_empty() => {}
        Spoil::Flip { at, mask } => {
            let at = place(at);
            bytes[at] ^= mask;
        }
        Spoil::Put { at, byte } => bytes.insert(place(at), byte),
        Spoil::Fill { at, length, byte } => {
            let range = range(at, length);
            bytes[range].fill(byte);
        }
        Spoil::Remove { at, length } => drop(bytes.drain(range(at, length))),
        Spoil::Repeat { at, length } => {
            let range = range(at, length);
            let piece = bytes[range.clone()].to_vec();
            bytes.splice(range.start..range.start, piece);
        }
        Spoil::Cut { at } => bytes.truncate(place(at)),
    }
}

fn no_input_makes_it_panic(name: &str) {
    let (_, target, seeds) = TARGETS.into_iter().find(|(other, ..)| *other == name).unwrap();
    let seeds = seeds();
    assert!(!seeds.is_empty(), "there is nothing to start from");
    seeds.iter().for_each(|seed| target(seed));
    let spoilt = (prop::sample::select(seeds), prop::collection::vec(spoil(), 1..6));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(INPUTS) };
    let result = TestRunner::new(config).run(&spoilt, |(mut bytes, spoils)| {
        spoils.iter().for_each(|spoil| apply(&mut bytes, spoil));
        target(&bytes);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

macro_rules! tests {
    ($($name:ident)*) => {
        mod no_input_makes_a_target_panic {
            $(
                #[test]
                fn $name() {
                    super::no_input_makes_it_panic(stringify!($name));
                }
            )*

            #[test]
            fn and_none_is_left_out() {
                let tested = [$(stringify!($name)),*];
                // It is in a process of its own, in `random_operations.rs`.
                let here = super::TARGETS.iter().map(|(name, ..)| *name).filter(|n| *n != "daemon");
                assert!(here.eq(tested));
            }
        }
    };
}

tests!(
    agent agent_config config events frame frontier hello ledger lowtime_plan message order plan powers
    state sweep tap terms
);

#[test]
fn the_seeds_of_kept_files_are_what_their_readers_accept() {
    let seeds = |name: &str| {
        let (.., seeds) = TARGETS.into_iter().find(|(other, ..)| *other == name).unwrap();
        seeds()
    };
    assert!(seeds("order").iter().all(|seed| pfo_planner::Order::from_json(seed).is_ok()));
    assert!(seeds("sweep").iter().all(|seed| pfo_agent::fuzzing::sweep(seed)));
    assert!(seeds("powers").iter().all(|seed| pfo_agent::fuzzing::powers(seed)));
    assert!(seeds("state").iter().all(|seed| pfod::fuzzing::kept_files(seed, BOOT)));
}
