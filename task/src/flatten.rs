//! One error in place of two or three, for a call whose output is a result itself.

/// Turns a result within results into one with the innermost error, which takes the outer ones in.
///
/// A deadline, a join, a helper thread and a foreign future each add an error to that of the code
/// inside. So `timeout_after(limit, task).await` may be a result of a result of a result. Where the
/// innermost error has a conversion from the others, as [`std::io::Error`] has from those of all
/// waits, `flatten` leaves that one.
///
/// For two results, and for three if the one in the middle takes the outermost error in no
/// conversion of its own. The standard library's `flatten` is for two results with the same error.
///
/// # Examples
///
/// ```
/// use pikake::{Flatten, spawn, sleep, timeout_after};
/// use std::{io, time::Duration};
///
/// async fn measure() -> io::Result<u32> {
///     sleep(Duration::from_secs(3)).await?;
///     Ok(42)
/// }
///
/// # pikake::sim::example(async {
/// let measured = timeout_after(Duration::from_secs(5), spawn(measure())).await;
/// assert_eq!(measured.flatten()?, 42); // without it: `measured???`
///
/// let measured = timeout_after(Duration::from_secs(1), measure()).await;
/// match measured.flatten() {
///     Err(error) if error.kind() == io::ErrorKind::TimedOut => println!("not in time"),
///     other => panic!("{other:?}"),
/// }
/// # io::Result::Ok(())
/// # })
/// # .unwrap();
/// ```
pub trait Flatten<T, E> {
    /// The innermost result, or an outer error as the innermost one.
    ///
    /// # Errors
    ///
    /// The first error, from the outside.
    fn flatten(self) -> Result<T, E>;
}

impl<T, E, Outer> Flatten<T, E> for Result<Result<T, E>, Outer>
where
    E: From<Outer>,
{
    fn flatten(self) -> Result<T, E> {
        self?
    }
}

impl<T, E, Middle, Outer> Flatten<T, E> for Result<Result<Result<T, E>, Middle>, Outer>
where
    E: From<Middle> + From<Outer>,
{
    fn flatten(self) -> Result<T, E> {
        self??
    }
}
