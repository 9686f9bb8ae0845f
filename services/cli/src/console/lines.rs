//! `console`: reads commands for one process, line by line.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Parser;
use pikake::console::text::escaped;

use crate::arguments::ConsoleLine;
use crate::console::{connect, look};
use crate::output::{Output, note};
use crate::stop::Stop;

/// Reads commands until the end of the input. An error does not end it.
pub(crate) fn read_lines(pid: u32, output: Output) -> Result<(), Stop> {
    let process = connect(pid)?.process().clone();
    let is_terminal = io::stdin().is_terminal();
    if is_terminal {
        let program = escaped(&process.program);
        note(&format!("{program} ({pid}): `help` lists the commands, `quit` or Ctrl-D ends."));
    }
    let mut lines = io::stdin().lock();
    loop {
        if is_terminal {
            let mut stdout = io::stdout().lock();
            let prompted = write!(stdout, "{pid}> ").and_then(|()| stdout.flush());
            prompted.map_err(|error| Stop::output(&error))?;
        }
        let mut line = String::new();
        if lines.read_line(&mut line).map_err(Stop::other)? == 0 {
            if is_terminal {
                note("");
            }
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => continue,
            ["quit" | "exit"] => return Ok(()),
            _ => {}
        }
        match ConsoleLine::try_parse_from(words) {
            Ok(line) => {
                if let Err(stop) = look(line.command, Some(pid), output.or_json(line.json)) {
                    if stop.is_closed_output() {
                        return Err(stop);
                    }
                    stop.report();
                }
            }
            // The output may be closed; then the next answer shows it.
            Err(error) => drop(error.print()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::LookCommand;

    fn parse(line: &str) -> Result<ConsoleLine, clap::Error> {
        ConsoleLine::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn line_is_a_command_without_the_process() {
        let ps = parse("ps --json").unwrap();
        assert!(ps.json && matches!(ps.command, LookCommand::Ps(_)) && ps.command.pid().is_none());
        let line = parse(" where  17\n").unwrap();
        let LookCommand::Where { process, task } = line.command else { panic!() };
        assert_eq!((process.pid, task.as_str(), line.json), (None, "17", false));
    }

    #[test]
    fn help_lists_commands_of_the_console_only() {
        let help = parse("help").unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
        let help = help.to_string();
        assert!(help.contains("  waits "), "{help}");
        assert!(!help.contains("worker"), "{help}");
        for wrong in ["worker", "dance", "where", "--version"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
