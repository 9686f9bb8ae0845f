//! A real RabbitMQ that ends with the test process.

use xtask::Server;

/// The lines that `rabbitmqctl` prints.
pub(crate) fn control(rabbit: &Server, command: &str) -> Vec<String> {
    rabbit.command(&format!("ctl {command}"))
}

/// The same virtual host over TLS, trusting one of the server's authorities.
pub(crate) fn over_tls(rabbit: &Server, url: &str, ca: &str) -> String {
    let (port, folder) = rabbit.tls();
    format!("amqps://guest:guest@localhost:{port}/{}?cacertfile={folder}/{ca}", host(url))
}

/// The virtual host of a URL.
pub(crate) fn host(url: &str) -> &str {
    url.rsplit('/').next().expect("a virtual host")
}
