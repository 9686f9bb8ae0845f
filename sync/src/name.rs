//! The name of a primitive, if it was given one: for listings.

use std::fmt;

/// A name, or none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Name(Option<&'static str>);

impl Name {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) const fn new(name: &'static str) -> Self {
        Self(Some(name))
    }

    /// Adds it to what is shown.
    pub(crate) fn show(self, shown: &mut fmt::DebugStruct<'_, '_>) {
        if let Some(name) = self.0 {
            shown.field("name", &name);
        }
    }
}

/// With a blank before it, behind the word for what has the name.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " `{name}`"),
            None => Ok(()),
        }
    }
}
