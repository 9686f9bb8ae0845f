//! A server for wrk and h2load.
//!
//! ```text
//! pikake-http-bench <server>    prints its port, serves until its standard input ends
//! ```

use std::io::Read;

/// Ends the process when whoever started it does.
fn end_with_stdin() {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
}

fn main() {
    let name = std::env::args().nth(1).expect("the name of a server");
    end_with_stdin();
    pikake_http_bench::serve(&name, |port| println!("{port}"));
}
