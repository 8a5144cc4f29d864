//! What the kernel tells about a process in `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::unistd;
use pfo_protocol::Pid;

use crate::Result;

/// A process in `/proc`.
#[derive(Clone, Copy)]
pub(crate) struct Process(pub(crate) Pid);

/// Memory in KiB.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) rss_kib: u64,
    pub(crate) pss_kib: u64,
}

/// What a process has consumed so far.
pub(crate) struct Consumed {
    /// How often each thread gave up its core to wait, and so had to be woken.
    wakeups: BTreeMap<i32, u64>,
    /// User and system time in ticks of 10 ms.
    pub(crate) cpu_ticks: u64,
}

impl Consumed {
    /// How often the threads that are there now were woken since then.
    pub(crate) fn wakeups_since(&self, before: &Self) -> u64 {
        let until = |thread| before.wakeups.get(thread).copied().unwrap_or(0);
        self.wakeups.iter().map(|(thread, wakeups)| wakeups - until(thread)).sum()
    }
}

impl Process {
    pub(crate) fn memory(self) -> Result<Memory> {
        let rollup = self.read("smaps_rollup")?;
        Ok(Memory { rss_kib: field(&rollup, "Rss:")?, pss_kib: field(&rollup, "Pss:")? })
    }

    pub(crate) fn consumed(self) -> Result<Consumed> {
        let mut wakeups = BTreeMap::new();
        for thread in self.threads()? {
            let status = self.read(&format!("task/{thread}/status"))?;
            wakeups.insert(thread.as_raw(), field(&status, "voluntary_ctxt_switches:")?);
        }
        Ok(Consumed { wakeups, cpu_ticks: self.cpu_ticks()? })
    }

    /// User and system time in ticks of 10 ms, also of threads that have ended.
    pub(crate) fn cpu_ticks(self) -> Result<u64> {
        // The name in parentheses may have spaces; user and system time are the 12th and 13th after.
        let stat = self.read("stat")?;
        let (_, after_name) = stat.rsplit_once(')').ok_or("/proc/PID/stat has no name")?;
        let ticks = after_name.split_whitespace().skip(11).take(2);
        Ok(ticks.map(str::parse::<u64>).sum::<std::result::Result<_, _>>()?)
    }

    /// Nanoseconds that each thread has computed, and those that it has waited for a core.
    pub(crate) fn computed_and_waited_ns(self) -> Result<BTreeMap<i32, [u64; 2]>> {
        let of_thread = |thread: unistd::Pid| {
            let schedstat = self.read(&format!("task/{thread}/schedstat"))?;
            let mut fields = schedstat.split_whitespace();
            let mut next = || fields.next().unwrap_or_default().parse();
            Ok((thread.as_raw(), [next()?, next()?]))
        };
        self.threads()?.into_iter().map(of_thread).collect()
    }

    /// Resident memory that maps a file, in KiB.
    pub(crate) fn mapped_kib(self, file: &Path) -> Result<u64> {
        let smaps = self.read("smaps")?;
        let name = file.to_string_lossy();
        let (mut kib, mut is_of_file) = (0, false);
        for line in smaps.lines() {
            // Only the line that begins a mapping has an address range in front.
            if line.split(' ').next().is_some_and(|word| word.contains('-')) {
                is_of_file = line.ends_with(&*name);
            } else if is_of_file && line.starts_with("Rss:") {
                kib += field(line, "Rss:")?;
            }
        }
        Ok(kib)
    }

    pub(crate) fn threads(self) -> Result<Vec<unistd::Pid>> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.0))?;
        entries
            .map(|entry| Ok(unistd::Pid::from_raw(entry?.file_name().to_string_lossy().parse()?)))
            .collect()
    }

    /// The threads whose name begins so.
    pub(crate) fn threads_named(self, prefix: &str) -> Result<Vec<unistd::Pid>> {
        let mut threads = self.threads()?;
        threads.retain(|thread| {
            self.read(&format!("task/{thread}/comm")).is_ok_and(|name| name.starts_with(prefix))
        });
        Ok(threads)
    }

    pub(crate) fn descriptors(self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.0))?.count())
    }

    fn read(self, file: &str) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/{file}", self.0))?)
    }
}

fn field(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|rest| rest.split_whitespace().next());
    Ok(value.ok_or_else(|| format!("/proc has no {name}"))?.parse()?)
}
