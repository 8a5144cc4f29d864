//! `pfoctl top`: what `pfoctl status` shows, live.
//!
//! `feed` and `step` ask the daemons, `keys` says what a key does, `view` what is shown; these two are pure.
//! Only `terminal` touches the terminal. The thread here waits for all of them and draws.

mod error;
mod feed;
mod keys;
mod message;
mod paint;
mod sheet;
mod step;
mod terminal;
mod view;
mod waits;

use std::env;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{SigSet, Signal, raise};

pub(crate) use self::error::TopError;
use self::feed::Feed;
use self::keys::{Flow, State};
use self::message::Message;
use self::terminal::Screen;
use self::view::Shown;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::signals;

/// The keys, as the man page shows them; `?` shows them in the view.
const KEYS: &str = "\
Keys:
  1 2 3, Tab     GPUs, jobs, ranks
  Enter          show the job of the selected row: its ranks, last step and
                 plan; Esc goes back
  arrows, PgUp, PgDn, Home, End
                 select a row
  s S r          sort by the next column, by the previous one; reverse the order
  /              filter: only rows that contain this; Esc ends it
  a              list what needs attention
  ?              show keys and columns
  q              quit";

/// Messages that may wait to be drawn.
const WAITING: usize = 64;

/// Show GPUs, jobs and ranks live: clocks, power, waits and measured savings
///
/// `pfoctl status` explains the figures, and prints them where there is no terminal. pfod limits how
/// often it reads a GPU. Once viewers have used up that limit, figures are up to a second old or, if
/// reads take more than 2.5 ms, older.
#[derive(Args)]
#[command(after_help = KEYS)]
pub(crate) struct Top {
    /// Ask the daemons at this interval, 1 to 3600 seconds; only what changed is drawn
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    every: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (1.0..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give 1 to 3600 seconds".to_owned())
}

impl Top {
    /// Shows the view until it is quit or interrupted.
    pub(crate) fn run(&self, daemons: &Daemons) -> Result<(), Error> {
        Screen::is_possible()?;
        let mut feed = Feed::new(daemons.clone(), self.every);
        // What is wrong from the beginning is an error; what goes away later comes back.
        let first = feed.snapshot()?;
        let ending = signals::ending();
        signals::block(ending)?;
        let (messages, received) = sync_channel(WAITING);
        let (jobs, asked_for) = sync_channel(WAITING);
        let (steps, steps_asked_for) = sync_channel(WAITING);
        let listening = messages.clone();
        let watching = messages.clone();
        let stepping = messages.clone();
        let (of, every) = (daemons.clone(), self.every);
        thread::spawn(move || terminal::listen(&listening));
        thread::spawn(move || wait_for_end(ending, &watching));
        thread::spawn(move || step::follow(&of, every, &steps_asked_for, &stepping));
        thread::spawn(move || feed.run(&asked_for, &messages));
        let mut shown = Shown::new(self.every, colours());
        shown.take(Ok(Box::new(first)), Instant::now());
        let mut screen = Screen::take().map_err(TopError::Terminal)?;
        let end = follow(&mut screen, &mut shown, &received, |job| {
            let _ = steps.try_send(job.clone());
            let _ = jobs.try_send(job);
        });
        drop(screen);
        match end? {
            Some(signal) => end_by(ending, signal),
            None => Ok(()),
        }
    }
}

/// Draws what it receives, until the end; returns the signal that brought it.
fn follow(
    screen: &mut Screen,
    shown: &mut Shown,
    received: &Receiver<Message>,
    mut look_into: impl FnMut(Option<sheet::JobKey>),
) -> Result<Option<Signal>, TopError> {
    let mut state = State::default();
    loop {
        let mut size = Default::default();
        screen.draw(|frame| {
            size = frame.area();
            view::draw(shown, &state, size, frame.buffer_mut());
        })?;
        // All that waits is taken before the next drawing, however slow the terminal is.
        let Ok(first) = received.recv() else { return Ok(None) };
        for message in std::iter::once(first).chain(received.try_iter()) {
            match message {
                Message::Key(key) => {
                    let before = state.job.clone();
                    match state.press(key, &view::listing(shown, &state, size)) {
                        Flow::Continue => {}
                        Flow::Quit => return Ok(None),
                        Flow::Interrupt => return Ok(Some(Signal::SIGINT)),
                    }
                    if state.job != before {
                        shown.forget_step();
                        look_into(state.job.clone());
                    }
                }
                Message::Resized => {}
                Message::Answer(answer) => shown.take(answer, Instant::now()),
                Message::Stepped(job, step) => shown.take_step(job, step),
                Message::Ended(signal) => return Ok(Some(signal)),
                Message::Deaf(error) => return Err(error.into()),
            }
        }
    }
}

fn wait_for_end(ending: SigSet, messages: &SyncSender<Message>) {
    if let Ok(signal) = ending.wait() {
        let _ = messages.send(Message::Ended(signal));
    }
}

/// Ends as if the signal had never been taken, for a parent that looks how this process ended.
fn end_by(ending: SigSet, signal: Signal) -> Result<(), Error> {
    let raised = ending.thread_unblock().and_then(|()| raise(signal));
    raised.map_err(|error| TopError::Terminal(error.into()).into())
}

fn colours() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
