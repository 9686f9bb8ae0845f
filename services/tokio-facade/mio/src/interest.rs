//! Names that tokio's files mention, and no more.

use std::ops::{BitOr, BitOrAssign};

/// The directions that a registration is for. The kernel waits for each when it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest(u8);

impl Interest {
    /// Reads.
    pub const READABLE: Self = Self(1);
    /// Writes.
    pub const WRITABLE: Self = Self(2);
    /// Urgent data.
    pub const PRIORITY: Self = Self(4);
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Interest {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// The number of a registration, which a kernel does not need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub usize);

/// An event, of which there is none: the kernel keeps the readiness.
#[derive(Debug)]
pub enum Event {}

macro_rules! questions {
    ($($name:ident)*) => {
        impl Event {
            $(
                /// Never called.
                pub fn $name(&self) -> bool {
                    match *self {}
                }
            )*
        }
    };
}

questions! { is_readable is_writable is_read_closed is_write_closed is_error is_priority }
