//! RabbitMQ, with Erlang's name server of its own, and TLS with certificates that openssl makes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::certificates::certificates;
use super::place::{Place, answers, free_port};
use super::{READY, TRIES, is_over, until};
use crate::Result;
use crate::group::{Group, LOOK};
use crate::run::ENDS;

/// A rabbitmqctl that says nothing by then never does.
const ANSWERS: Duration = Duration::from_secs(180);

/// A RabbitMQ that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct Broker {
    ports: Ports,
    /// `None` after `kill`.
    broker: Option<Group>,
    /// Erlang's name server.
    names: Group,
}

#[derive(Debug)]
struct Ports {
    amqp: u16,
    tls: u16,
    names: u16,
    nodes: u16,
}

impl Broker {
    pub(super) fn start(place: &Place) -> Result<Self> {
        let write = |name: &str, text: &str| fs::write(place.folder().join(name), text);
        write("plugins", "[rabbitmq_auth_mechanism_ssl].")?;
        write("rabbitmq-env.conf", "")?;
        certificates(place)?;
        for _ in 0..TRIES {
            let [amqp, tls, names, nodes] = std::array::from_fn(|_| free_port());
            let ports = Ports { amqp, tls, names, nodes };
            write("tls.config", &tls_settings(tls, &place.folder().join("tls")))?;
            // Otherwise RabbitMQ starts it, as a daemon that stays.
            let mut epmd = place.program("epmd");
            epmd.args([
                "-port",
                &names.to_string(),
                "-address",
                "127.0.0.1",
                "-relaxed_command_check",
            ]);
            let mut names = place.start(&mut epmd)?;
            if until(READY, || answers(ports.names), || matches!(names.status(), Ok(None))) {
                let mut broker = Self { ports, broker: None, names };
                if broker.start_again(place).is_ok() {
                    return Ok(broker);
                }
            }
            if is_over() {
                break;
            }
        }
        Err("RabbitMQ did not start".into())
    }

    pub(super) fn port(&self) -> u16 {
        self.ports.amqp
    }

    /// Starts the broker, with its ports and its data.
    pub(super) fn start_again(&mut self, place: &Place) -> Result {
        if self.broker.is_some() {
            return Err("it runs".into());
        }
        let mut broker = place.start(&mut self.program(place, "rabbitmq-server"))?;
        // It listens with TLS a moment later.
        let is_ready = || answers(self.ports.amqp) && answers(self.ports.tls);
        let is_ready = until(READY, is_ready, || matches!(broker.status(), Ok(None)));
        self.broker = Some(broker);
        match is_ready {
            true => Ok(()),
            false => Err("RabbitMQ did not start".into()),
        }
    }

    /// Ends the broker at once.
    pub(super) fn kill(&mut self) {
        self.broker = None;
    }

    /// Runs `rabbitmqctl`, which prints to standard output.
    pub(super) fn control<'a>(
        &self,
        place: &Place,
        arguments: impl Iterator<Item = &'a str>,
    ) -> Result {
        let mut command = self.program(place, "rabbitmqctl");
        let mut group = Group::start(command.arg("-q").args(arguments).stderr(place.log()?))?;
        let since = Instant::now();
        while since.elapsed() < ANSWERS && !is_over() {
            match group.status()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(status.to_string().into()),
                None => std::thread::sleep(LOOK),
            }
        }
        Err("it does not answer".into())
    }

    /// The port of TLS and the folder of the certificates.
    pub(super) fn tls(&self, place: &Place) -> String {
        format!("{} {}", self.ports.tls, place.folder().join("tls").display())
    }

    fn program(&self, place: &Place, name: &str) -> Command {
        let (ports, at) = (&self.ports, |name: &str| place.folder().join(name));
        let mut command = place.program(name);
        command
            .env("ERL_EPMD_PORT", ports.names.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("pikake-{}@localhost", ports.amqp))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", ports.amqp.to_string())
            .env("RABBITMQ_DIST_PORT", ports.nodes.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf"))
            .env("RABBITMQ_CONFIG_FILE", at("none"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", at("tls.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins"))
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_LOG_BASE", place.folder())
            .env("RABBITMQ_PID_FILE", at("pid"))
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}",
            );
        command
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(broker) = &mut self.broker {
            broker.end(ENDS);
        }
        self.names.end(ENDS);
    }
}

fn tls_settings(port: u16, folder: &Path) -> String {
    let file = |name: &str| format!("\"{}\"", folder.join(name).display());
    let (authority, certificate, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    format!(
        r#"[{{rabbit, [
    {{ssl_listeners, [{{"127.0.0.1", {port}}}]}},
    {{ssl_options, [{{cacertfile, {authority}}}, {{certfile, {certificate}}}, {{keyfile, {key}}},
        {{verify, verify_peer}}, {{fail_if_no_peer_cert, false}}]}},
    {{ssl_cert_login_from, common_name}},
    {{auth_mechanisms, ['PLAIN', 'AMQPLAIN', 'EXTERNAL']}}
]}}].
"#
    )
}
