//! The prepared statements of a connection, by their text. The one that was used longest ago goes
//! first.

use std::collections::HashMap;

use tokio_postgres::Statement;

#[derive(Default)]
pub(crate) struct Statements {
    capacity: usize,
    entries: HashMap<Box<str>, Entry>,
    /// How often a statement was used.
    uses: u64,
}

struct Entry {
    statement: Statement,
    /// The number of the last use.
    used: u64,
}

impl Statements {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    pub(crate) fn get(&mut self, text: &str) -> Option<Statement> {
        self.uses += 1;
        let entry = self.entries.get_mut(text)?;
        entry.used = self.uses;
        Some(entry.statement.clone())
    }

    /// Keeps a statement. The server forgets those that are dropped.
    pub(crate) fn insert(&mut self, text: &str, statement: Statement) {
        if self.capacity == 0 {
            return;
        }
        if self.entries.len() >= self.capacity && !self.entries.contains_key(text) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(text, _)| text.clone());
            oldest.map(|text| self.entries.remove(&text));
        }
        self.uses += 1;
        self.entries.insert(text.into(), Entry { statement, used: self.uses });
    }

    pub(crate) fn remove(&mut self, text: &str) {
        self.entries.remove(text);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
