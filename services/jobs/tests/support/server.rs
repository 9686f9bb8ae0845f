//! A real RabbitMQ as a task uses it, that goes on meanwhile: its commands are given in a thread.

#![allow(dead_code, reason = "not every test needs all of it")]

use pikake_traps::blocking;

/// The broker, and a virtual host of it that was empty. Commands are given in a thread.
#[derive(Clone)]
pub(crate) struct Server {
    rabbit: xtask::Server,
    url: String,
}

impl Server {
    pub(crate) fn of(rabbit: xtask::Server) -> Self {
        Self { url: rabbit.fresh_url(), rabbit }
    }

    pub(crate) fn port(&self) -> u16 {
        self.rabbit.port()
    }

    /// Of a virtual host that was empty.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// As [`xtask::Server::command`].
    pub(crate) async fn command(&self, command: String) -> Vec<String> {
        let rabbit = self.rabbit.clone();
        blocking(move || rabbit.command(&command)).await.unwrap()
    }

    /// Lets it be short of memory, or not any more.
    pub(crate) async fn alarm(&self, is_on: bool) {
        let eval = match is_on {
            true => "set_alarm({{resource_limit,memory,node()},[]})",
            false => "clear_alarm({resource_limit,memory,node()})",
        };
        self.command(format!("ctl eval rabbit_alarm:{eval}.")).await;
    }

    /// The queue comes to have so many messages ready and taken. The broker counts a moment later.
    pub(crate) async fn comes_to(&self, queue: &str, messages: (u32, u32)) {
        let mut counted = self.messages(queue).await;
        for _ in 0..20 {
            if counted == messages {
                return;
            }
            counted = self.messages(queue).await;
        }
        assert_eq!(counted, messages, "ready and taken in {queue}");
    }

    /// How many messages of a queue are ready, and how many taken.
    pub(crate) async fn messages(&self, queue: &str) -> (u32, u32) {
        let host = self.url.rsplit('/').next().expect("a virtual host");
        let columns = "name messages_ready messages_unacknowledged --no-table-headers";
        let lines = self.command(format!("ctl list_queues -p {host} {columns}")).await;
        let line = lines.iter().find_map(|line| line.strip_prefix(queue)?.strip_prefix('\t'));
        let line = line.expect("the queue is there");
        let (ready, taken) = line.split_once('\t').expect("two numbers");
        (ready.parse().expect("a number"), taken.parse().expect("a number"))
    }
}
