//! Clients that mean no good, against the HTTP server on real sockets: others are served meanwhile,
//! nothing outlasts its deadline, and nothing is left.

mod endings;
mod floods;
mod http1;
mod http2;
mod site;
