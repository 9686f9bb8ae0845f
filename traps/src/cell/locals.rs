//! Values that belong to a task: where they are kept, and when they are dropped.
//!
//! The typed face, with everything that people see of it, is above (`TaskLocal` in `pikake-task`).
//! Here values have lost their type and keys are numbers, and one rule is kept: they are dropped
//! with their task, after its future, on its thread, while it is still current.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use crate::catch::catch_and_log;

/// Names a task local; the address of its static will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalKey(pub usize);

type Entry = (LocalKey, Rc<dyn Any>);

/// The values of one task, in the order in which they were first set.
pub(crate) struct Locals {
    /// `None` once they have been dropped. Few, so they are searched one by one.
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

    /// Gives back the value that was there before, or, if the task is past having any, the new one.
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

    /// Drops the values, the last one first. From here on there are none.
    pub(crate) fn end(&self) {
        let values = self.values.borrow_mut().take();
        for (_, value) in values.into_iter().flatten().rev() {
            catch_and_log("the destructor of a task local", || drop(value));
        }
    }
}
