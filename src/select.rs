//! `select!`: the documentation, and the name of this crate for the expansion.

/// Waits for the first of several futures, and drops the others.
///
/// ```text
/// select! {
///     biased;                                          // optional: poll from the top
///     pattern = future => expression,
///     pattern = future, if precondition => expression,
///     else => expression,                              // optional
/// }
/// ```
///
/// The value is that of the expression whose branch wins. The syntax is that of `tokio::select!`,
/// and so are the rules below, but for the order of polls and for interruptions.
///
/// 1. All preconditions are evaluated, then all futures, from the top. A branch whose precondition
///    is false is disabled: its future is made, and never polled.
/// 2. The branches are polled until one is ready. **The first ready branch of a poll wins.** Each
///    poll has a new random order, in which all orders are equally likely. So of `n` branches that
///    are ready each wins once in `n` times, and a branch that is always ready starves none. A
///    simulation repeats the orders by its seed. With `biased;` each poll goes from the top.
/// 3. If the output of a branch does not match the pattern, the output is dropped and the branch is
///    disabled. The other branches go on.
/// 4. All futures are dropped, from the top, before the expression of the winner runs. The
///    expression may await, and use `?`, `break`, `continue` and `return`.
/// 5. If all branches are disabled, the `else` expression is the value.
///
/// A wait that lets other tasks run first is never ready at its first poll: `yield_now`, `sleep` of
/// zero, `sleep_until` of a moment that has passed. A loop whose other branch is always ready would
/// drop a new one in each round. Make such a wait before the loop, and pass `&mut`.
///
/// A branch is any `IntoFuture`. To keep a future for later, pass `&mut future`, pinned with
/// [`pin!`](std::pin::pin) where necessary. Temporary values of the future's expression are dropped
/// before the first poll. The macro allocates nothing.
///
/// # Examples
///
/// Messages, and a tick between them. `recv` and [`tick`](crate::time::Interval::tick) lose nothing
/// when they are dropped, so the loop loses neither a message nor a tick:
///
/// ```
/// use pikake::sync::mpsc;
/// use pikake::{interval, select, sleep, spawn};
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let (sender, mut receiver) = mpsc::channel(4);
/// spawn(async move {
///     for number in 0..3 {
///         sleep(Duration::from_millis(40)).await.unwrap();
///         sender.send(number).await.unwrap();
///     }
/// })
/// .detach();
///
/// let mut ticks = interval(Duration::from_millis(50));
/// let (mut messages, mut count) = (Vec::new(), 0);
/// loop {
///     select! {
///         message = receiver.recv() => match message? {
///             Some(message) => messages.push(message),
///             None => break,
///         },
///         tick = ticks.tick() => {
///             tick?;
///             count += 1;
///         }
///     }
/// }
/// assert_eq!((messages, count), (vec![0, 1, 2], 3)); // ticks at 0, 50 and 100 ms
/// # Ok::<_, pikake::Interrupted>(())
/// # })
/// # .unwrap();
/// ```
///
/// A task that is kept in the loop, and progress until it has ended:
///
/// ```
/// use pikake::{select, sleep, spawn};
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let mut task = spawn(async { sleep(Duration::from_secs(5)).await.map(|()| "done") });
/// let mut seconds = 0;
/// let outcome = loop {
///     select! {
///         outcome = &mut task => break outcome?,
///         second = sleep(Duration::from_secs(2)) => {
///             second?;
///             seconds += 2;
///         }
///     }
/// };
/// assert_eq!((outcome, seconds), (Ok("done"), 4));
/// # Ok::<_, pikake::TaskError>(())
/// # })
/// # .unwrap();
/// ```
///
/// # Cancellation
///
/// Dropped branches are withdrawn as every dropped future is:
///
/// | a branch on | that loses |
/// | --- | --- |
/// | `recv`, `get`, `notified`, `lock`, `acquire` | leaves its queue; what was granted to it goes to the next waiter |
/// | `&mut task` | leaves the task running, and the outcome in it |
/// | a `Task` by value | detaches the task, which runs on |
/// | `sleep`, `tick` | takes back its timer |
/// | an `async` block | is dropped at its current await: what its variables held is lost |
///
/// **A branch that is interrupted is ready.** Its output is an `Err`, and it wins as any other
/// branch does. So bind the whole result, and pass the error on by `?` in the expression:
///
/// ```
/// # use pikake::{Interrupted, select, sync::mpsc};
/// # async fn example(mut one: mpsc::Receiver<u8>, mut other: mpsc::Receiver<u8>) -> Result<(), Interrupted> {
/// select! {
///     message = one.recv() => println!("one: {:?}", message?),
///     message = other.recv() => println!("other: {:?}", message?),
/// }
/// # Ok(()) }
/// # pikake::sim::example(async {
/// #     let ((sender, one), (_other, other)) = (mpsc::channel(1), mpsc::channel(1));
/// #     sender.send(1).await.unwrap();
/// #     example(one, other).await
/// # })
/// # .unwrap();
/// ```
///
/// A pattern such as `Ok(message) = one.recv()` drops the interruption, and the branches that are
/// left may wait on. If another branch is ready and polled first, that one wins, and the
/// interruption is due to the next wait.
///
/// # Panics
///
/// When all branches are disabled and there is no `else`. Outside a kernel, unless `biased` or with
/// one branch only.
///
/// # Compile errors
///
/// Without a branch there is nothing to wait for:
///
/// ```compile_fail
/// # async fn example() {
/// pikake::select! {}
/// # }
/// ```
///
/// `else` is the last branch:
///
/// ```compile_fail
/// # async fn example() {
/// pikake::select! {
///     else => {}
///     _ = pikake::yield_now() => {}
/// }
/// # }
/// ```
///
/// A branch waits for a future:
///
/// ```compile_fail,E0277
/// # async fn example() {
/// pikake::select! {
///     number = 7 => println!("{number}"),
/// }
/// # }
/// ```
#[macro_export]
macro_rules! select {
    ($($branches:tt)*) => {
        $crate::__macros::select!([$crate] $($branches)*)
    };
}
