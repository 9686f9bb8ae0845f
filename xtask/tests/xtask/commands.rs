//! The command line.

use crate::{texts, xtask};

#[test]
fn no_command_lists_all_with_a_line_each() {
    let output = xtask(&[]).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    let commands =
        ["test", "install", "ci", "book", "budget", "memcheck", "gate", "server", "celery"];
    for command in commands {
        let lines: Vec<_> =
            out.lines().filter(|line| line.split_whitespace().next() == Some(command)).collect();
        assert_eq!(lines.len(), 1, "{command}: {out}");
    }
}

#[test]
fn unknown_command_is_an_error_that_lists_them() {
    let output = xtask(&["tset"]).output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), out.as_str()), (Some(2), ""));
    assert!(err.starts_with("error: there is no command `tset`\n"), "{err}");
    assert!(err.contains("server postgres|rabbitmq|redis"), "{err}");
}

#[test]
fn wrong_arguments_are_errors() {
    for (arguments, error) in [
        (&["server"][..], "which server? cargo xtask server postgres|rabbitmq|redis"),
        (&["server", "mysql"], "which server? cargo xtask server postgres|rabbitmq|redis"),
        (&["install", "everything"], "`install` takes no arguments: everything"),
        (&["budget", "--new"], "what with the lines? cargo xtask budget [--write]"),
        (&["gate", "--new"], "what with the baselines? cargo xtask gate [--renew]"),
        (&["memcheck", "all"], "`memcheck` takes no arguments"),
        (&["celery"], "where? cargo xtask celery FOLDER [PACKAGE==VERSION...]"),
    ] {
        let output = xtask(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(texts(&output).1, format!("error: {error}\n"));
    }
}
