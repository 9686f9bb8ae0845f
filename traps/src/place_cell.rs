//! A place in the source that one thread notes and another one reads.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A place in the source, or none.
#[derive(Debug, Default)]
pub struct PlaceCell(AtomicPtr<Location<'static>>);

impl PlaceCell {
    /// Notes a place.
    #[inline]
    pub fn set(&self, place: &'static Location<'static>) {
        self.0.store(ptr::from_ref(place).cast_mut(), Ordering::Release);
    }

    /// The place that was noted last.
    pub fn get(&self) -> Option<&'static Location<'static>> {
        let place = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or `set` made it of a reference that lasts for ever; what it
        // points at is never written to.
        unsafe { place.as_ref() }
    }
}
