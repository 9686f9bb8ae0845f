//! lapin on pikake, through async-rs's `RuntimeKit`: publish to RabbitMQ, and consume.
//!
//! ```text
//! published 3
//! got: job 0
//! got: job 1
//! got: job 2
//! ```
//!
//! It starts a RabbitMQ of its own on loopback (`cargo xtask install` installs it), or takes the
//! one whose port is its argument, as user `guest`.

use std::error::Error;

use async_rs::Runtime;
use futures::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use pikake::future_wait;
use pikake_libraries::kit::Kit;
use xtask::{Kind, Server};

const JOBS: usize = 3;

pub(crate) async fn demo(port: u16) -> Result<Vec<String>, Box<dyn Error>> {
    let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    let runtime = Runtime::new(Kit::current());
    let connecting =
        Connection::connect_with_runtime(&url, ConnectionProperties::default(), runtime);
    let connection = future_wait(connecting).await??;
    let channel = future_wait(connection.create_channel()).await??;
    let declared = channel.queue_declare(
        "jobs".into(),
        QueueDeclareOptions { exclusive: true, ..Default::default() },
        FieldTable::default(),
    );
    future_wait(declared).await??;
    future_wait(channel.confirm_select(ConfirmSelectOptions::default())).await??;

    let mut lines = Vec::new();
    for number in 0..JOBS {
        let payload = format!("job {number}");
        let published = channel.basic_publish(
            "".into(),
            "jobs".into(),
            BasicPublishOptions::default(),
            payload.as_bytes(),
            BasicProperties::default(),
        );
        let confirm = future_wait(published).await??;
        if !future_wait(confirm).await??.is_ack() {
            return Err("the server did not take a job".into());
        }
    }
    lines.push(format!("published {JOBS}"));

    let consuming = channel.basic_consume(
        "jobs".into(),
        "pikake".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let mut consumer = future_wait(consuming).await??;
    for _ in 0..JOBS {
        let delivery = future_wait(consumer.next()).await?.ok_or("the server has gone")??;
        lines.push(format!("got: {}", str::from_utf8(&delivery.data)?));
        future_wait(delivery.ack(BasicAckOptions::default())).await??;
    }
    future_wait(connection.close(200, "goodbye".into())).await??;
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (port, _server) = match std::env::args().nth(1) {
        Some(port) => (port.parse()?, None),
        None => {
            let server = Server::start(Kind::RabbitMq)?;
            (server.port(), Some(server))
        }
    };
    for line in pikake::run(demo(port))? {
        println!("{line}");
    }
    Ok(())
}
