//! Processes that a process with a console starts.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::process::Command;

use pikake::console::protocol::Request;

use super::{Program, eventually, ready};
use crate::support::child::is_child;

/// The file with the descriptors of the program that was started.
const LIST: &str = "descriptors";

/// Starts a program, which writes a list of its descriptors and lasts until the parent of this
/// process ends it.
#[pikake::main(console)]
async fn starts_program() {
    let mut shell = Command::new("sh");
    let list = "ls -l /proc/$$/fd > $XDG_RUNTIME_DIR/new && mv $XDG_RUNTIME_DIR/new";
    shell.args(["-c", &format!("{list} $XDG_RUNTIME_DIR/{LIST}; cat > /dev/null")]);
    let mut started = shell.spawn().unwrap();
    // Another one ends before the process.
    assert!(Command::new("true").status().unwrap().success());
    ready().await;
    started.wait().unwrap();
}

/// Descriptors of the console are closed in a program that the process starts, and the socket
/// stays.
#[test]
fn started_programs_have_no_part_of_the_console() {
    let test = "children::started_programs_have_no_part_of_the_console";
    if is_child(&format!("served::{test}")) {
        return starts_program();
    }
    let mut program = Program::start(test);
    let list = eventually(|| std::fs::read_to_string(program.folder.path().join(LIST)).ok());
    assert!(list.contains(" 0 -> pipe:"), "{list}");
    assert!(!list.contains("socket:") && !list.contains("anon_inode"), "{list}");
    assert_eq!(program.ask(&Request::Kernels).kernels.len(), 1);
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    // The program lives, and does not listen.
    let error = UnixStream::connect(program.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}
