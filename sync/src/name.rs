//! The optional name of a primitive, for listings.

use std::fmt;

use pikake_traps::locks::LockName;

/// A name, or none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Name(Option<&'static str>);

impl Name {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) const fn new(name: &'static str) -> Self {
        Self(Some(name))
    }

    /// Adds the name to a `Debug` output.
    pub(crate) fn show(self, shown: &mut fmt::DebugStruct<'_, '_>) {
        if let Some(name) = self.0 {
            shown.field("name", &name);
        }
    }
}

/// Adds the name of a lock, if it has one, to a `Debug` output.
pub(crate) fn show_name(name: LockName, shown: &mut fmt::DebugStruct<'_, '_>) {
    if let LockName::Named(name) = name {
        shown.field("name", &name);
    }
}

/// With a leading blank, to follow the kind of the primitive.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " `{name}`"),
            None => Ok(()),
        }
    }
}
