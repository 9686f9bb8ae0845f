//! A server for wrk, and a holder of idle connections.
//!
//! ```text
//! pikake-http-bench <runtime>              prints its port, serves until its standard input ends
//! pikake-http-bench idle <port> <count>    opens connections, says so, keeps them until that ends
//! ```

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};

/// Ends the process when whoever started it does.
fn end_with_stdin() {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
}

fn idle(port: u16, count: usize) {
    let open = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    let connections: Vec<TcpStream> = (0..count).map(open).collect();
    println!("{}", connections.len());
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["idle", port, count] => idle(port.parse().unwrap(), count.parse().unwrap()),
        [runtime] => {
            end_with_stdin();
            pikake_http_bench::serve(runtime, |port| println!("{port}"));
        }
        _ => panic!("a runtime, or idle <port> <count>"),
    }
}
