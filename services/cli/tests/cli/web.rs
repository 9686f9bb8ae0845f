//! `pikake console --web`: who is answered, what the process is asked, and what a browser shows.

pub(crate) mod browser;
mod fake;
mod live;
mod site;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::fake::Fake;
use crate::support::{HANG, pikake, wait_for};

/// The page's server. Dropped, it is killed, unless it is part of another program.
pub(crate) struct Page {
    child: Option<Child>,
    port: u16,
    token: String,
}

impl Page {
    /// The page about a process.
    pub(crate) fn of(mut command: Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("an address");
        let mut page = Self::at(line.trim_end());
        page.child = Some(child);
        page
    }

    /// The page at an address.
    pub(crate) fn at(address: &str) -> Self {
        let rest = address.strip_prefix("http://127.0.0.1:");
        let parts = rest.and_then(|rest| rest.strip_suffix('/')?.split_once('/'));
        let (port, token) = parts.unwrap_or_else(|| panic!("no address: {address:?}"));
        Self { port: port.parse().expect("a port"), token: token.to_owned(), child: None }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path of the page, with the token.
    pub(crate) fn path(&self) -> String {
        format!("/{}/", self.token)
    }

    /// The page about a process of a test.
    fn of_fake(fake: &Fake) -> Self {
        let mut command = Command::new(pikake());
        command.args(["console", "--web"]).arg(std::process::id().to_string());
        command.env("XDG_RUNTIME_DIR", fake.folder());
        Self::of(command)
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
    }

    /// Sends a request as it is, and reads the answer to the end of the connection.
    #[track_caller]
    pub(crate) fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("it listens");
        stream.set_read_timeout(Some(HANG)).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {text}"));
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    /// A request of the page: the path is below the token.
    #[track_caller]
    pub(crate) fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let Self { port, token, .. } = self;
        let length = body.len();
        self.send(&format!(
            "{method} /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        ))
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "", "")
    }

    /// A POST as the page sends it.
    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.request("POST", path, &format!("X-Pikake-Token: {}\r\n", self.token), body)
    }

    /// Ends the server by a signal, and returns its exit code.
    #[track_caller]
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("a program of its own");
        kill_process(Pid::from_child(child), Signal::INT).expect("it runs");
        let mut status = None;
        wait_for("the end of the page's server", || {
            status = child.try_wait().expect("it can be waited for");
            status.is_some()
        });
        status.and_then(|status| status.code().or_else(|| status.signal().map(|signal| -signal)))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In small letters.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
