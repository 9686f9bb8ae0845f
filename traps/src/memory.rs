//! Memory for task cells, kept for reuse.
//!
//! Tasks come and go by the million and are of few sizes, so a thread keeps what small ones leave
//! behind, up to [`KEPT_BYTES`] for each size, instead of asking the allocator again. Nothing here is
//! unsafe: the memory is boxes of lines, of which nobody says what is in them.

use std::cell::RefCell;
use std::mem::MaybeUninit;

/// What memory is counted in: 16 bytes, aligned for all but a few types.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Line {
    _bytes: [u8; LINE],
}

const LINE: usize = 16;

/// Some lines that nothing is in.
pub(crate) type Memory = Box<[MaybeUninit<Line>]>;

/// The largest memory that is kept, in lines: a kibibyte.
const KEPT_LINES: usize = 64;

/// How many bytes of each size a thread keeps.
const KEPT_BYTES: usize = 256 * 1024;

thread_local! {
    /// By the number of lines.
    static KEPT: RefCell<[Vec<Memory>; KEPT_LINES + 1]> =
        const { RefCell::new([const { Vec::new() }; KEPT_LINES + 1]) };
}

/// How many lines a type takes; `None` if its alignment asks for more than theirs.
pub(crate) const fn lines_of<T>() -> Option<usize> {
    if align_of::<T>() <= align_of::<Line>() { Some(size_of::<T>().div_ceil(LINE)) } else { None }
}

/// Gives so many lines.
#[inline]
pub(crate) fn take(lines: usize) -> Memory {
    let kept = KEPT.try_with(|kept| kept.borrow_mut().get_mut(lines)?.pop());
    match kept {
        Ok(Some(memory)) => memory,
        _ => Box::new_uninit_slice(lines),
    }
}

/// Keeps the memory, or frees it.
#[inline]
pub(crate) fn give_back(memory: Memory) {
    let lines = memory.len();
    // At the thread's end nothing is kept any more, and the memory is dropped with the closure.
    let _ = KEPT.try_with(move |kept| {
        if let Some(kept) = kept.borrow_mut().get_mut(lines)
            && kept.len() < KEPT_BYTES / (LINE * lines.max(1))
        {
            kept.push(memory);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_taken_again_up_to_a_limit() {
        let first = take(3);
        let place = first.as_ptr();
        give_back(first);
        let again = take(3);
        assert_eq!(again.as_ptr(), place);
        assert_eq!(again.len(), 3);
        let limit = KEPT_BYTES / (3 * LINE);
        let many: Vec<_> = (0..limit + 10).map(|_| take(3)).collect();
        many.into_iter().for_each(give_back);
        assert_eq!(KEPT.with(|kept| kept.borrow()[3].len()), limit);
    }

    #[test]
    fn large_memory_is_not_kept() {
        give_back(take(KEPT_LINES + 1));
        assert!(KEPT.with(|kept| kept.borrow().iter().all(Vec::is_empty)));
    }

    #[test]
    fn lines_cover_a_type_or_are_refused() {
        #[repr(align(64))]
        struct Wide(#[expect(dead_code)] u8);
        assert_eq!(lines_of::<[u8; 33]>(), Some(3));
        assert_eq!(lines_of::<Wide>(), None);
    }
}
