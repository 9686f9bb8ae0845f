//! Task locals, without types: values that belong to a task, by numbers.
//!
//! `TaskLocal` in `pikake-task` is the typed interface. The values are dropped with their task,
//! after the task's future, on the task's thread, while the task is still current.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use crate::catch::catch_and_log;

/// Names a task local, for example by the address of its static.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalKey(pub usize);

type Entry = (LocalKey, Rc<dyn Any>);

/// The values of one task, in the order in which they were first set.
pub(crate) struct Locals {
    /// `None` after the drop of the values. They are few, so a search is linear.
    values: RefCell<Option<Vec<Entry>>>,
}

impl Default for Locals {
    fn default() -> Self {
        Self { values: RefCell::new(Some(Vec::new())) }
    }
}

impl Locals {
    pub(crate) fn get(&self, key: LocalKey) -> Option<Rc<dyn Any>> {
        let values = self.values.borrow();
        let (_, value) = values.as_ref()?.iter().find(|(at, _)| *at == key)?;
        Some(value.clone())
    }

    /// Returns the previous value, or, as an error, the new value if the task's values have been
    /// dropped.
    pub(crate) fn set(
        &self,
        key: LocalKey,
        value: Rc<dyn Any>,
    ) -> Result<Option<Rc<dyn Any>>, Rc<dyn Any>> {
        let mut values = self.values.borrow_mut();
        let Some(values) = values.as_mut() else {
            return Err(value);
        };
        match values.iter_mut().find(|(at, _)| *at == key) {
            Some((_, before)) => Ok(Some(std::mem::replace(before, value))),
            None => {
                values.push((key, value));
                Ok(None)
            }
        }
    }

    /// Drops the values, the last one first. Later calls of `set` are refused.
    pub(crate) fn end(&self) {
        let values = self.values.borrow_mut().take();
        for (_, value) in values.into_iter().flatten().rev() {
            catch_and_log("the destructor of a task local", || drop(value));
        }
    }
}
