//! Routes to handlers that may be not `Send`: the functions of `axum::routing`, without a wrapper
//! around the handler.
//!
//! They take the handlers that [`local`] takes, and return axum's own `MethodRouter`. Its methods
//! have axum's bounds, so a path with several methods is merged:
//!
//! ```
//! use axum::Router;
//! use pikake::http::axum::routing::{get, post};
//! use pikake::{Interrupted, sleep};
//! use std::time::Duration;
//!
//! async fn show() -> Result<&'static str, &'static str> {
//!     sleep(Duration::from_millis(1)).await.map_err(|_: Interrupted| "interrupted")?;
//!     Ok("shown")
//! }
//!
//! async fn store(text: String) -> String {
//!     sleep(Duration::from_millis(1)).await.map_or_else(|why| why.to_string(), |()| text)
//! }
//!
//! # pikake::sim::example(async {
//! let router: Router = Router::new().route("/note", get(show).merge(post(store)));
//! # Ok::<(), Interrupted>(()) }).unwrap();
//! ```
//!
//! The compiler refuses a function that is no handler:
//!
//! ```compile_fail,E0277
//! use axum::routing::MethodRouter;
//! use pikake::http::axum::routing::get;
//!
//! async fn count() -> std::rc::Rc<u32> {
//!     std::rc::Rc::new(1)
//! }
//!
//! let route: MethodRouter = get(count); // an `Rc` is no response
//! ```

use ::axum::routing::{self, MethodRouter};

use super::{LocalHandler, local};

macro_rules! routes {
    ($($name:ident)*) => {$(
        #[doc = concat!("`axum::routing::", stringify!($name), "` for a handler that may be not `Send`.")]
        ///
        /// # Panics
        ///
        /// Outside a kernel. The handler panics when another thread calls it.
        #[track_caller]
        pub fn $name<H, M, S>(handler: H) -> MethodRouter<S>
        where
            H: LocalHandler<M, S>,
            M: 'static,
            S: Clone + Send + Sync + 'static,
        {
            routing::$name(local(handler))
        }
    )*};
}

routes!(any connect delete get head options patch post put trace);
