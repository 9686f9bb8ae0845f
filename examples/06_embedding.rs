//! A kernel in a program that has a loop of its own.
//!
//! The program below waits with mio for a descriptor of its own. The kernel is one more
//! descriptor to wait for: `turn` does what is to be done and says how long the loop may wait
//! before the next one, unless the kernel's descriptor becomes readable earlier. Another thread
//! sends work with a `KernelHandle`, which is what makes it readable.
//!
//! It prints:
//!
//! ```text
//! task: hello from the other thread
//! task: slept on the kernel's timer
//! loop: its own descriptor says quit
//! tasks left: 0
//! ```

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use pikake::{Kernel, KernelHandle};

const KERNEL: Token = Token(0);
const OWN: Token = Token(1);

// ANCHOR: main
fn main() -> io::Result<()> {
    let kernel = Kernel::new()?;
    let (mut own, writer) = UnixStream::pair()?;
    let mut poll = Poll::new()?;
    for (descriptor, token) in [(kernel.as_raw_fd(), KERNEL), (own.as_raw_fd(), OWN)] {
        poll.registry().register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
    }
    let handle = kernel.handle();
    let other = thread::spawn(move || send_work(&handle, writer));

    let mut events = Events::with_capacity(8);
    'all: loop {
        let turn = kernel.turn(Some(Duration::ZERO))?;
        match poll.poll(&mut events, turn.may_wait) {
            // A signal: turn the kernel and wait again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            if event.token() == OWN {
                let mut word = [0; 4];
                own.read_exact(&mut word)?;
                println!("loop: its own descriptor says {}", String::from_utf8_lossy(&word));
                break 'all;
            }
        }
    }
    other.join().expect("the other thread does not panic");
    kernel.shutdown();
    println!("tasks left: {}", kernel.task_count());
    Ok(())
}

fn send_work(kernel: &KernelHandle, mut writer: UnixStream) {
    let work = || async move {
        println!("task: hello from the other thread");
        if pikake::sleep(Duration::from_millis(20)).await.is_ok() {
            println!("task: slept on the kernel's timer");
        }
        writer.write_all(b"quit").expect("the loop reads until it is told to quit");
    };
    kernel.spawn(work).expect("the kernel lives until this thread has ended");
}
// ANCHOR_END: main
