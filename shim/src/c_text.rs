//! Texts for C: what a code means, and how a text gets into a caller's buffer.

use std::ffi::{CStr, c_char, c_int};

/// The codes of the C API that no [`Problem`](crate::Problem) has.
pub(crate) const INVALID_DESCRIPTION: c_int = 200;

const MEANINGS: &[(c_int, &CStr)] = &[
    (0, c"no problem: the session holds a lease"),
    (1, c"a message was invalid or out of range"),
    (2, c"this user is not allowed to do this"),
    (3, c"no GPU of this node has that name"),
    (4, c"another session holds the GPU"),
    (5, c"the GPU is split by MIG"),
    (6, c"the driver refuses to work with the GPU"),
    (7, c"the NVIDIA driver is not loaded or cannot be used"),
    (8, c"a limit of the daemon is reached"),
    (9, c"the rank contradicts the job's other ranks"),
    (10, c"there is no such job"),
    (11, c"the plan is invalid or does not fit the job"),
    (12, c"there is no plan to swap to"),
    (13, c"the daemon is shutting down"),
    (14, c"the daemon failed"),
    (15, c"the policy requires a process on the GPU, and this one has none"),
    (16, c"the lease was revoked"),
    (100, c"no event came within the daemon's idle limit"),
    (101, c"the daemon shut down"),
    (102, c"the daemon received an invalid frame"),
    (103, c"the session was ended by an administrator or the user"),
    (104, c"the GPU stopped answering"),
    (150, c"no daemon listens on the socket"),
    (151, c"this user may not open the daemon's socket"),
    (152, c"the daemon has not answered yet"),
    (153, c"daemon and library speak different versions of the protocol"),
    (154, c"the daemon's answer is invalid"),
    (155, c"the connection to the daemon broke"),
    (156, c"the GPU of the CUDA ordinal is not known"),
    (157, c"the session's background thread could not start"),
    (158, c"the session belongs to the process that this one was forked from"),
    (159, c"libpfo failed"),
    (160, c"the plan cannot be read, or does not fit a rank"),
    (INVALID_DESCRIPTION, c"the description of the rank is invalid"),
];

/// What a code means; some text for a code of a later release, too.
pub(crate) fn of_code(code: c_int) -> &'static CStr {
    let known = MEANINGS.iter().find(|(number, _)| *number == code);
    known.map_or(c"a problem that this release of libpfo does not know", |(_, text)| text)
}

/// Writes as much of a text as fits, whole characters and a NUL.
///
/// # Safety
/// `buffer` must be NULL or point to `size` writable bytes.
pub(crate) unsafe fn write(text: &str, buffer: *mut c_char, size: usize) {
    if buffer.is_null() || size == 0 {
        return;
    }
    let length = text.floor_char_boundary(size - 1);
    // SAFETY: `length` is less than `size` and at most the text's length.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        buffer.add(length).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, size: usize) -> String {
        let mut buffer = [0x7f; 16];
        // SAFETY: all sizes in the tests are at most 16.
        unsafe { write(text, buffer.as_mut_ptr(), size) };
        // SAFETY: `write` ends the text with NUL.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_text_is_cut_between_characters_and_always_ends() {
        assert_eq!(written("abc", 16), "abc");
        assert_eq!(written("abc", 3), "ab");
        assert_eq!(written("aé", 3), "a");
        assert_eq!(written("abc", 1), "");
    }

    #[test]
    fn a_buffer_without_room_is_left_alone() {
        // SAFETY: neither points to room, and neither claims to.
        unsafe {
            write("abc", std::ptr::null_mut(), 5);
            write("abc", std::ptr::dangling_mut(), 0);
        }
    }
}
