//! The program prints what its header says.

use std::process::Command;

#[test]
fn program_prints_what_its_header_says() {
    let output = Command::new(env!("CARGO_BIN_EXE_pikake-accounts")).output().expect("it runs");
    let header =
        include_str!("../../src/main.rs").lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<&str> = header.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let block = lines.split(|line| line.starts_with("```")).nth(1).expect("a block of output");
    let promised: String = block.iter().map(|line| format!("{line}\n")).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), promised, "{errors}");
    assert!(output.status.success(), "{}: {errors}", output.status);
}
