//! Tests of hostile clients against the HTTP server on real sockets.
//!
//! Other clients are served meanwhile, every deadline holds, and nothing is left behind. The tests
//! count and limit the descriptors of this process.

mod endings;
mod floods;
mod http1;
mod http2;
mod site;
