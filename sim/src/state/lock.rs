//! Locks that the kernel frees when their holder dies, at whatever instruction.
//!
//! They are open-file-description locks on bytes of the state file, far behind its end. One is over
//! a GPU's state while it changes; one is held by a process for as long as it lives on a GPU, and
//! whoever finds it free knows that the process is gone, zombie or not, and whatever its pid is
//! used for now. Such a lock belongs to an open file, so that threads of one process need a mutex
//! on top, and a forked child must open the state anew.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_UNLCK, F_WRLCK, SEEK_SET, flock, off_t};

use crate::machine::MOST_GPUS;
use crate::state::layout::PROCESSES_PER_GPU;

/// Far behind the end of any state file.
const FIRST_LOCK_BYTE: i64 = 1 << 40;

/// What a lock is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockedThing {
    /// The header with the fault table.
    Header,
    /// The state of a GPU, while it changes.
    GpuState(usize),
    /// The life of a process on a GPU.
    Process { gpu: usize, slot: usize },
    /// The life of a process that has the driver open.
    Client(usize),
}

impl LockedThing {
    fn byte(self) -> i64 {
        let per_gpu = 1 + PROCESSES_PER_GPU;
        let offset = match self {
            Self::Header => 0,
            Self::GpuState(gpu) => 1 + gpu * per_gpu,
            Self::Process { gpu, slot } => 2 + gpu * per_gpu + slot,
            Self::Client(slot) => 1 + MOST_GPUS * per_gpu + slot,
        };
        FIRST_LOCK_BYTE + offset as i64
    }

    fn request(self, kind: i32) -> flock {
        flock {
            l_type: kind as i16,
            l_whence: SEEK_SET as i16,
            l_start: self.byte() as off_t,
            l_len: 1,
            l_pid: 0,
        }
    }
}

/// A lock that is held until this is dropped or the process dies.
pub(crate) struct Held<'f> {
    file: &'f File,
    thing: LockedThing,
}

/// Waits for the lock.
pub(crate) fn hold(file: &File, thing: LockedThing) -> io::Result<Held<'_>> {
    let request = thing.request(F_WRLCK);
    loop {
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLKW(&request)) {
            Ok(_) => return Ok(Held { file, thing }),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Takes the lock for as long as the file is open; false if another open file has it.
pub(crate) fn keep(file: &File, thing: LockedThing) -> io::Result<bool> {
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&thing.request(F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether somebody with another open file has the lock.
pub(crate) fn is_held_elsewhere(file: &File, thing: LockedThing) -> io::Result<bool> {
    let mut request = thing.request(F_WRLCK);
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut request))?;
    Ok(i32::from(request.l_type) != F_UNLCK)
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Unlocking a byte of an open file has no way to fail that could be mended here.
        let _ = fcntl(self.file.as_fd(), FcntlArg::F_OFD_SETLK(&self.thing.request(F_UNLCK)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use std::{process, thread};

    fn two_open_files() -> (File, File) {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        (open(), open())
    }

    #[test]
    fn a_kept_lock_is_seen_by_others_and_free_again_when_the_file_is_closed() {
        let (mine, other) = two_open_files();
        let thing = LockedThing::Process { gpu: 1, slot: 2 };
        assert!(keep(&mine, thing).unwrap());
        assert!(is_held_elsewhere(&other, thing).unwrap());
        assert!(!is_held_elsewhere(&other, LockedThing::Process { gpu: 1, slot: 1 }).unwrap());
        assert!(!keep(&other, thing).unwrap());
        drop(mine);
        assert!(!is_held_elsewhere(&other, thing).unwrap());
    }

    #[test]
    fn a_killed_holder_does_not_wedge_the_next() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = File::options().read(true).write(true).open(path.path()).unwrap();
        let script = format!(
            "import fcntl,struct,sys,time\nf=open({:?},'r+b')\nfcntl.fcntl(f,38,struct.pack('hhqqi',1,0,{},1,0))\nprint(flush=True)\ntime.sleep(60)",
            path.path(),
            LockedThing::GpuState(0).byte()
        );
        let holder = process::Command::new("python3")
            .args(["-c", &script])
            .stdout(process::Stdio::piped())
            .spawn();
        let Ok(mut holder) = holder else {
            return println!("skipped: no python3 to hold a lock");
        };
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(holder.stdout.take().unwrap()), &mut line)
            .unwrap();
        assert!(is_held_elsewhere(&file, LockedThing::GpuState(0)).unwrap());
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            holder.kill().unwrap();
            holder
        });
        let start = Instant::now();
        drop(hold(&file, LockedThing::GpuState(0)).unwrap());
        assert!(start.elapsed() < Duration::from_secs(20));
        killer.join().unwrap().wait().unwrap();
    }
}
