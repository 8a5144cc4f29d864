//! Frontier files for a job of one stage, as a hostile user would make them.

use std::io::{Read, Write};
use std::ops::Range;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pfo_planner::{
    Frontier, Instruction, Measurement, Mhz, Options, Pipeline, Profile, Schedule, Spread, Stage,
    Watts,
};

pub(super) const MICROBATCHES: u32 = 2;

/// What is compressed of a frontier file with two plans.
pub(super) fn frontier(microbatches: u32) -> Vec<u8> {
    let rows = [Instruction::Forward, Instruction::Backward].into_iter().flat_map(|instruction| {
        [(1740, 1.0, 300.0), (1200, 1.2, 250.0)].map(|(mhz, time_s, energy_j)| {
            (Stage(0), instruction, Measurement { frequency: Mhz(mhz), time_s, energy_j })
        })
    });
    let profile = Profile::from_measurements(rows).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, microbatches).unwrap();
    let options = Options { plans: 2, spread: Spread::Even };
    let frontier = Frontier::optimize(&pipeline, Watts(10.0), options, &|_| {}).unwrap();
    let mut content = Vec::new();
    GzDecoder::new(&frontier.to_bytes().unwrap()[14..]).read_to_end(&mut content).unwrap();
    content
}

pub(super) fn compressed(content: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(b"pfo-frontier\x0c\x00".to_vec(), Compression::default());
    gzip.write_all(content).unwrap();
    gzip.finish().unwrap()
}

/// The same plan so often.
pub(super) fn with_plans(plans: u32) -> Vec<u8> {
    let mut content = frontier(MICROBATCHES);
    let instructions = 2 * MICROBATCHES as usize;
    let rows = content.split_off(content.len() - 2 * instructions);
    let points = content.split_off(content.len() - 2 * 16);
    let count = content.len() - 4;
    assert_eq!(content[count..], 2_u32.to_le_bytes(), "it has two plans");
    content[count..].copy_from_slice(&plans.to_le_bytes());
    content.extend(points[..8].repeat(plans as usize));
    content.extend(points[16..24].repeat(plans as usize));
    content.extend(&rows[..instructions]);
    content.extend(vec![0; instructions * (plans as usize - 1)]);
    compressed(&content)
}

/// With tables of instructions that the job does not have.
pub(super) fn with_rows() -> Vec<u8> {
    compressed(&rows_of_others())
}

/// The same, where each of their rows was measured twice.
pub(super) fn with_repeats() -> Vec<u8> {
    let mut content = rows_of_others();
    let at = repeats_in(&content);
    content.splice(at..at + 4, repeats_of_others());
    compressed(&content)
}

/// With such tables for two model chunks, measured twice.
pub(super) fn with_chunks() -> Vec<u8> {
    let mut content = frontier(MICROBATCHES);
    let at = repeats_in(&content) + 4;
    let tables = (others().count() as u16).to_le_bytes();
    let chunk = |chunk: u16| {
        [
            &(chunk + 1).to_le_bytes()[..],
            &[0; 4],
            &tables,
            &tables_of_others(),
            &repeats_of_others(),
        ]
        .concat()
    };
    content.splice(at..at + 2, [&2_u16.to_le_bytes()[..], &chunk(0), &chunk(1)].concat());
    compressed(&content)
}

/// Where it says that no row was measured more than once. Then come no chunks, no powers of stages,
/// nothing that is held up, no latencies, no instructions of two, and the order.
fn repeats_in(content: &[u8]) -> usize {
    let orders = [&1_u16.to_le_bytes()[..], &(2 * MICROBATCHES).to_le_bytes()].concat();
    let none = [&[0; 4 + 2 + 2 + 2 + 8 + 1 + 1 + 4][..], &orders].concat();
    content.windows(none.len()).position(|window| window == none).unwrap()
}

fn repeats_of_others() -> Vec<u8> {
    let count = (others().count() * OTHER_CLOCKS.count()) as u32;
    let mut repeats = count.to_le_bytes().to_vec();
    for instruction in others() {
        for mhz in OTHER_CLOCKS {
            repeats.extend([0, 0, instruction.len() as u8]);
            repeats.extend(instruction.as_bytes());
            repeats.extend([mhz, 2].map(u32::to_le_bytes).concat());
            repeats.extend([0.1_f64, 1.0].map(f64::to_le_bytes).concat());
        }
    }
    repeats
}

const OTHER_CLOCKS: Range<u32> = 1000..1256;

/// The names of instructions that the job does not have.
fn others() -> impl Iterator<Item = &'static str> {
    let is_planned =
        |one: &Instruction| matches!(one, Instruction::Forward | Instruction::Backward);
    Instruction::ALL.into_iter().filter(move |one| !is_planned(one)).map(Instruction::name)
}

fn tables_of_others() -> Vec<u8> {
    let mut tables = Vec::new();
    for instruction in others() {
        tables.extend([0, 0, instruction.len() as u8]);
        tables.extend(instruction.as_bytes());
        tables.extend((OTHER_CLOCKS.count() as u16).to_le_bytes());
        for mhz in OTHER_CLOCKS {
            tables.extend(mhz.to_le_bytes());
            tables.extend([1.0_f64, 100.0].map(f64::to_le_bytes).concat());
        }
    }
    tables
}

fn rows_of_others() -> Vec<u8> {
    let mut content = frontier(MICROBATCHES);
    let name = b"\x07forward";
    let first = content.windows(name.len()).position(|window| window == name).unwrap();
    let tables = first - 4;
    assert_eq!(content[tables..tables + 2], 2_u16.to_le_bytes(), "it has two tables");
    content[tables..tables + 2].copy_from_slice(&(Instruction::ALL.len() as u16).to_le_bytes());
    // After the two tables of two rows each.
    let rows = 2 + 2 * 20;
    let end = first + name.len() + rows + 2 + b"\x08backward".len() + rows;
    content.splice(end..end, tables_of_others());
    content
}

/// With blocks that hold nothing in front.
pub(super) fn padded(bytes: usize) -> Vec<u8> {
    const HEADERS: usize = 14 + 10;
    let file = compressed(&frontier(MICROBATCHES));
    let nothing = [0, 0, 0, 0xff, 0xff].repeat(bytes / 5);
    [&file[..HEADERS], &nothing, &file[HEADERS..]].concat()
}
