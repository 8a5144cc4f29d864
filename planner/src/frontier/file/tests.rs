use std::io::Read;

use flate2::bufread::GzDecoder;
use proptest::prelude::*;

use super::*;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::optimize::{Options, Spread};
use crate::profile::Profile;
use crate::schedule::name::Schedule;
use crate::test_profiles::{any_profile, unequal};
use crate::waits::power::PowerByClock;

fn frontier_of(profile: &Profile) -> Frontier {
    let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap();
    let options = Options { plans: 20, spread: Spread::Useful };
    let mut frontier = Frontier::optimize(&pipeline, Watts(80.5), options, &|_| {}).unwrap();
    frontier.gpu = Some("A100".to_owned());
    frontier
}

fn with_waits(profile: &Profile) -> Frontier {
    let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap();
    let options = Options { plans: 20, spread: Spread::Useful };
    let power: PerStage<PowerByClock> = "210:40,1400:80.5".parse().unwrap();
    Frontier::for_waiting(ClockPer::Instruction, &pipeline, &power, options, &|_| {}).unwrap()
}

fn with_latencies(profile: &Profile) -> Frontier {
    let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, 2).unwrap();
    let latency = [(Mhz(210), 0.03), (Mhz(1400), 0.01)].into_iter().collect();
    let delays = pipeline.delays().with_latency_by_clock(latency);
    let options = Options { plans: 4, spread: Spread::Useful };
    let pipeline = pipeline.with_delays(delays).unwrap();
    Frontier::optimize(&pipeline, Watts(80.5), options, &|_| {}).unwrap()
}

fn assert_same(read: &Frontier, written: &Frontier) {
    assert_eq!(read.plans, written.plans);
    assert_eq!(read.gpu, written.gpu);
    assert_eq!(read.p2p_power, written.p2p_power);
    assert_eq!(read.wait_power, written.wait_power);
    assert_eq!(read.pipeline.profile(), written.pipeline.profile());
    assert_eq!(read.plan(0).unwrap(), written.plan(0).unwrap());
}

fn refused(bytes: &[u8]) -> String {
    Frontier::from_bytes(bytes).unwrap_err().to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_is_written_is_read_back(profile in any_profile(3, 5)) {
        let frontier = frontier_of(&profile);
        assert_same(&Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap(), &frontier);
        let waiting = with_waits(&profile);
        assert_same(&Frontier::from_bytes(&waiting.to_bytes().unwrap()).unwrap(), &waiting);
        let late = with_latencies(&profile);
        assert_same(&Frontier::from_bytes(&late.to_bytes().unwrap()).unwrap(), &late);
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = frontier_of(&unequal()).to_bytes().unwrap();
    for end in 0..bytes.len() {
        let message = refused(&bytes[..end]);
        assert!(message.contains("damaged") || message.contains("not a frontier"), "{message}");
    }
}

#[test]
fn a_changed_byte_is_refused_or_says_nothing() {
    // Gzip's time stamp and the bits that pad its last block can be anything.
    let frontier = frontier_of(&unequal());
    let bytes = frontier.to_bytes().unwrap();
    let mut harmless = 0;
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 0x10;
        if let Ok(read) = Frontier::from_bytes(&changed) {
            assert_same(&read, &frontier);
            harmless += 1;
        }
    }
    assert!(harmless < 10, "{harmless}");
}

#[test]
fn more_bytes_than_there_should_be_are_refused() {
    let mut bytes = frontier_of(&unequal()).to_bytes().unwrap();
    bytes.push(0);
    assert!(refused(&bytes).contains("more after its last plan"));
}

#[test]
fn another_file_and_another_version_are_called_that() {
    assert!(refused(b"stage,instruction,frequency,time,energy").contains("stage,instruct"));
    let mut bytes = frontier_of(&unequal()).to_bytes().unwrap();
    bytes[MAGIC.len()] = 14;
    let message = refused(&bytes);
    assert!(message.contains("version 14") && message.contains("versions 4 to 13"), "{message}");
}

#[test]
fn a_power_of_waiting_that_cannot_be_is_damage() {
    let frontier = with_waits(&unequal());
    let points = frontier.wait_power.as_ref().unwrap().common().unwrap().points().to_vec();
    let bytes = frontier.to_bytes().unwrap();
    let mut content = Vec::new();
    GzDecoder::new(&bytes[MAGIC.len() + 2..]).read_to_end(&mut content).unwrap();
    let power = points[0].1.0.to_le_bytes();
    let place = content.windows(8).position(|bytes| bytes == power).unwrap();
    content[place..place + 8].copy_from_slice(&f64::NAN.to_le_bytes());
    let mut damaged = [MAGIC.as_slice(), &WITHOUT_PAYLOADS.to_le_bytes()].concat();
    let mut out = GzEncoder::new(&mut damaged, Compression::default());
    out.write_all(&content).unwrap();
    out.finish().unwrap();
    let message = refused(&damaged);
    assert!(message.contains("damaged") && message.contains("NaN"), "{message}");
}

#[test]
fn a_file_of_versions_before_is_read_as_one_without_what_they_lack() {
    let frontier = frontier_of(&unequal());
    let bytes = frontier.to_bytes().unwrap();
    let mut content = Vec::new();
    let stream = &bytes[MAGIC.len() + 2..];
    GzDecoder::new(stream).read_to_end(&mut content).unwrap();
    // After both names, the number of microbatches, the power and the other delays.
    let names = "A100".len() + frontier.pipeline().schedule().name().len();
    let place = 2 + names + 4 + 3 * 8;
    let repeats = 11 + "instruction".len() + 8;
    let chunks = repeats + 4;
    let powers = chunks + 2;
    let held_up = powers + 4;
    let latencies = held_up + 8;
    let end = latencies + 1 + 1 + 4;
    let lack = [
        (WITHOUT_LATENCIES, latencies..latencies + 1, Some(ClockPer::Instruction)),
        (WITHOUT_OVERLAPS, held_up..end, Some(ClockPer::Instruction)),
        (WITHOUT_STAGE_POWERS, powers..end, Some(ClockPer::Instruction)),
        (WITHOUT_CHUNKS, chunks..end, Some(ClockPer::Instruction)),
        (WITHOUT_REPEATS, repeats..end, Some(ClockPer::Instruction)),
        (WITHOUT_CLOCK_PER, 10..end, None),
        (WITHOUT_WAIT_POWER, 8..end, None),
        (WITHOUT_SET_CALL, 0..end, None),
    ];
    for (version, lacks, clock_per) in lack {
        let mut content = content.clone();
        content.drain(place + lacks.start..place + lacks.end);
        let mut before = [MAGIC.as_slice(), &version.to_le_bytes()].concat();
        let mut out = GzEncoder::new(&mut before, Compression::default());
        out.write_all(&content).unwrap();
        out.finish().unwrap();
        let read = Frontier::from_bytes(&before).unwrap();
        assert_same(&read, &frontier);
        assert_eq!(read.clock_per, clock_per);
    }
    assert_eq!(Frontier::from_bytes(&bytes).unwrap().clock_per, Some(ClockPer::Instruction));
}

#[test]
fn how_often_rows_were_measured_is_kept_and_of_no_other_rows() {
    let csv = "stage,instruction,frequency,time,energy,count,time_sd,energy_sd\n\
               0,forward,1410,0.5,90,3,0.01,2\n0,forward,1395,0.6,80,2,,\n\
               0,backward,1410,0.9,150,1,,\n";
    let profile = Profile::from_csv(csv.as_bytes()).unwrap();
    let frontier = frontier_of(&profile);
    let bytes = frontier.to_bytes().unwrap();
    assert_same(&Frontier::from_bytes(&bytes).unwrap(), &frontier);
    let mut content = Vec::new();
    GzDecoder::new(&bytes[MAGIC.len() + 2..]).read_to_end(&mut content).unwrap();
    let row = [&1395_u32.to_le_bytes()[..], &2_u32.to_le_bytes()].concat();
    let place = content.windows(row.len()).position(|bytes| bytes == row).unwrap();
    content[place] += 1;
    let mut other = [MAGIC.as_slice(), &WITHOUT_PAYLOADS.to_le_bytes()].concat();
    let mut out = GzEncoder::new(&mut other, Compression::default());
    out.write_all(&content).unwrap();
    out.finish().unwrap();
    assert!(refused(&other).contains("stage 0 has no forward at 1396 MHz"));
}

#[test]
fn a_frontier_is_refused_where_there_is_no_room_for_one_part_of_it() {
    let frontier = frontier_of(&unequal());
    let bytes = frontier.to_bytes().unwrap();
    let instructions = frontier.plan(0).unwrap().num_instructions();
    let enough = Room {
        instructions,
        rows: frontier.pipeline.profile().rows().count(),
        repeats: 0,
        planned: instructions * frontier.plans.len(),
    };
    assert!(Frontier::from_bytes_within(&bytes, enough).is_ok());
    let less = [
        (Room { instructions: instructions - 1, ..enough }, "instructions"),
        (Room { rows: enough.rows - 1, ..enough }, "rows"),
        (Room { planned: enough.planned - 1, ..enough }, "plans"),
    ];
    for (room, what) in less {
        let refusal = Frontier::from_bytes_within(&bytes, room).unwrap_err().to_string();
        assert!(refusal.contains(what), "{room:?}: {refusal}");
    }
}

#[test]
fn powers_of_waiting_take_room_like_rows() {
    let frontier = with_waits(&unequal());
    let bytes = frontier.to_bytes().unwrap();
    let rows = frontier.pipeline.profile().rows().count() + frontier.num_wait_powers();
    assert_eq!(frontier.num_wait_powers(), 2);
    let within = |rows| Frontier::from_bytes_within(&bytes, Room { rows, ..Room::default() });
    assert!(within(rows).is_ok());
    assert!(within(rows - 1).is_err());
    assert!(within(1).unwrap_err().to_string().contains("2 powers of waiting, of at most 1"));
}

#[test]
fn a_file_that_claims_more_plans_than_there_can_be_is_refused_before_they_are_read() {
    let frontier = frontier_of(&unequal());
    let mut bytes = MAGIC.to_vec();
    bytes.extend(WITHOUT_PAYLOADS.to_le_bytes());
    let mut many = frontier.clone();
    many.plans.truncate(1);
    let honest = many.to_bytes().unwrap();
    let mut content = Vec::new();
    GzDecoder::new(&honest[MAGIC.len() + 2..]).read_to_end(&mut content).unwrap();
    let count_at = content.len() - many.plans[0].rows.len() - 16 - 4;
    content[count_at..count_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut stream = GzEncoder::new(bytes, Compression::default());
    stream.write_all(&content).unwrap();
    assert!(refused(&stream.finish().unwrap()).contains("4294967295 plans"));
}
