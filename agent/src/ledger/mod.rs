//! The ledger of savings: what jobs used under plans, what comparisons with default clocks showed, and
//! what follows from both. It measures nothing itself, and nothing of it reaches `pfod`: an agent that
//! cannot keep it does everything else.

mod book;
mod booked;
mod comparison;
mod config;
#[cfg(test)]
mod example;
mod hours;
mod months;
#[cfg(test)]
mod quarter;
mod query;
mod saving;
mod store;
mod tariff;
#[cfg(test)]
mod weeks;
mod windows;

pub(crate) use book::Ledger;
pub(crate) use booked::Account;
#[cfg(test)]
pub(crate) use booked::Booked;
pub(crate) use comparison::{Compared, Pairing};
pub(crate) use config::LedgerConfig;
pub(crate) use months::Told;
pub(crate) use saving::NORMAL_REACH;
