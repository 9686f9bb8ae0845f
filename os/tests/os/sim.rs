//! A simulation refuses files, processes, signals and standard streams.

use std::io::{self, ErrorKind};

use pikake::fs::{self, File};
use pikake::process::Command;
use pikake::signal::{SIGUSR1, Signals};
use pikake::stdio::{stdin, stdout};

#[track_caller]
fn is_refused<T>(result: io::Result<T>) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("a simulation has no"), "{error}");
}

#[pikake::sim(seeds = 2)]
async fn simulation_refuses_the_system() {
    let path = std::env::temp_dir().join("pikake-is-not-made-by-a-simulation");
    is_refused(fs::write(&path, "x").await);
    is_refused(File::create(&path).await);
    is_refused(File::from_std(std::fs::File::open("/dev/null").unwrap()));
    assert!(!path.exists());
    is_refused(stdin().read(&mut [0]).await);
    is_refused(stdout().write_all(b"not written\n").await.map_err(|error| error.source));
    is_refused(pikake::net::pipe());
    is_refused(Signals::new([SIGUSR1]));
    is_refused(Command::new("true").spawn());
    is_refused(Command::new("true").status().await.map_err(|error| error.source));
    is_refused(fs::watch("/tmp", false).await);
}
