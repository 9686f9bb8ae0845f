//! A place in the source code that one thread stores and another one reads.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A place in the source code, or none.
#[derive(Debug, Default)]
pub struct PlaceCell(AtomicPtr<Location<'static>>);

impl PlaceCell {
    /// Stores a place.
    #[inline]
    pub fn set(&self, place: &'static Location<'static>) {
        self.0.store(ptr::from_ref(place).cast_mut(), Ordering::Release);
    }

    /// The place that was stored last.
    pub fn get(&self) -> Option<&'static Location<'static>> {
        let place = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or `set` made it of a `'static` reference to a value that is
        // never written to.
        unsafe { place.as_ref() }
    }
}
