//! What a pool must know about its objects.

use std::error::Error;
use std::future::Future;

/// Makes the objects of a [`Pool`](crate::Pool), and knows when they are dead, dirty or done with.
///
/// The pool calls [`create`](Self::create), [`verify`](Self::verify), [`clean`](Self::clean) and
/// [`destroy`](Self::destroy) in tasks of its own. No interruption of a caller reaches them.
/// Verifications and cleanings that do not wait for anything may be in the same task, one after the
/// other, and so have its task locals in common.
///
/// ```text
///            create                 get
///   (none) ─────────▶ idle ───────────────────▶ leased
///                      ▲ │     (verify)            │
///                      │ │                         │ the lease is dropped
///                      │ │ is_dead, verify failed, │
///                      │ │ too old, idle too long  │
///                      │ ▼                         ▼
///                      │ destroy ◀──────────── clean, unless is_clean
///                      │            failed         │
///                      └───────────────────────────┘
/// ```
///
/// # Examples
///
/// ```
/// use pikake::pool::{Manager, Pool};
/// use std::convert::Infallible;
///
/// struct Buffers;
///
/// impl Manager for Buffers {
///     type Object = Vec<u8>;
///     type Error = Infallible;
///
///     async fn create(&self) -> Result<Vec<u8>, Infallible> {
///         Ok(Vec::with_capacity(1 << 20))
///     }
///
///     async fn clean(&self, buffer: &mut Vec<u8>) -> Result<(), Infallible> {
///         buffer.clear();
///         Ok(())
///     }
/// }
///
/// # pikake::sim::example(async {
/// let pool = Pool::new(Buffers, 4);
/// let mut buffer = pool.get().await?;
/// buffer.extend_from_slice(b"dirty");
/// drop(buffer);
/// assert_eq!(pool.get().await?.len(), 0, "the same buffer, and clean");
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub trait Manager: 'static {
    /// What the pool lends.
    type Object: 'static;

    /// Why an object could not be made, or is of no use any more.
    type Error: Error + 'static;

    /// Makes an object.
    ///
    /// A caller that goes away while its object is being made does not interrupt the call; the
    /// object is then for the next caller. A call that takes [too
    /// long](crate::Builder::create_within) is interrupted, and has failed.
    fn create(&self) -> impl Future<Output = Result<Self::Object, Self::Error>>;

    /// Checks an object on its way out, if the pool's [`Verify`](crate::Verify) asks for it. By
    /// default every object is good.
    ///
    /// An error, or no answer [in time](crate::Builder::clean_within), destroys the object. The
    /// pool then takes another one.
    fn verify(&self, object: &mut Self::Object) -> impl Future<Output = Result<(), Self::Error>> {
        let _ = object;
        async { Ok(()) }
    }

    /// Makes an object that came back fit for its next user, for example by a rollback. By default
    /// there is nothing to do.
    ///
    /// The call, up to its first wait, mostly runs inside the drop of the lease, with a task of the
    /// pool's own as the current one: it must not need what the holder has borrowed meanwhile. If
    /// it waits, it goes on in a step of that task. A call that does not wait costs no task and no
    /// step.
    ///
    /// All of the call is in a later step if the holder is not in a step of the pool's kernel,
    /// panics, was asked to end, or has a deadline that has passed.
    ///
    /// An error, or no answer [in time](crate::Builder::clean_within), destroys the object.
    fn clean(&self, object: &mut Self::Object) -> impl Future<Output = Result<(), Self::Error>> {
        let _ = object;
        async { Ok(()) }
    }

    /// Whether the object is known to be dead, without asking anybody. By default no object is.
    ///
    /// Asked when the object comes back, and before it goes out.
    fn is_dead(&self, object: &Self::Object) -> bool {
        let _ = object;
        false
    }

    /// Whether the object came back clean, so that [`clean`](Self::clean) can be left out. By
    /// default none does.
    ///
    /// A clean object is ready when the drop of its lease returns, and so mostly is one whose
    /// cleaning does not wait. Never asked about an object whose holder panics.
    fn is_clean(&self, object: &Self::Object) -> bool {
        let _ = object;
        false
    }

    /// Ends an object. By default drops it.
    ///
    /// The pool drops the future of a call that takes [too long](crate::Builder::clean_within).
    fn destroy(&self, object: Self::Object) -> impl Future<Output = ()> {
        async { drop(object) }
    }
}
