//! Steps of a command, one after another, and the table of their times.

use std::time::Instant;

use crate::Result;

/// The steps that have ended.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    ended: Vec<(String, u64)>,
}

impl Steps {
    /// Runs a step, whose name is printed first.
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> Result) -> Result {
        println!("\n=== {name}");
        let since = Instant::now();
        let ended = step();
        self.ended.push((name.to_owned(), since.elapsed().as_secs()));
        ended.map_err(|error| format!("{name}: {error}").into())
    }

    /// The step and its seconds, a line each, and their sum.
    pub(crate) fn table(&self) -> String {
        let sum = self.ended.iter().map(|(_, seconds)| seconds).sum();
        let lines = self.ended.iter().map(|(name, seconds)| (name.as_str(), *seconds));
        let lines = lines.chain([("all", sum)]);
        lines.map(|(name, seconds)| format!("{seconds:6} s  {name}\n")).collect()
    }
}

/// Runs the steps of a command, and prints their times, also after one that failed.
pub(crate) fn timed(command: impl FnOnce(&mut Steps) -> Result) -> Result {
    let mut steps = Steps::default();
    let ended = command(&mut steps);
    println!("\n{}", steps.table());
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_step_is_named_and_counted() {
        let mut steps = Steps::default();
        steps.run("first", || Ok(())).unwrap();
        let error = steps.run("second", || Err("it broke".into())).unwrap_err();
        assert_eq!(error.to_string(), "second: it broke");
        assert_eq!(steps.table(), "     0 s  first\n     0 s  second\n     0 s  all\n");
    }
}
