//! What the errors of waits say, as `unwrap` and `expect` print them, and what they convert into.

use std::io;

use pikake::net::interruption;
use pikake::task::run_in_thread;
use pikake::{
    Flatten, Interrupted, TaskError, TimedOut, ignore_after, sleep, spawn, timed, timeout_after,
};

use crate::support::{ms, run};

/// This file, for the places that errors name.
const HERE: &str = file!();

#[test]
fn a_passed_deadline_names_the_call_that_set_it() {
    run(async {
        let mut told: Vec<Interrupted> = Vec::new();
        let first_line = line!() + 1;
        let outcome = timeout_after(ms(1), async { told.extend(sleep(ms(9)).await.err()) }).await;
        assert_eq!(outcome, Err(TimedOut));
        timed(ms(1), async { told.extend(sleep(ms(9)).await.err()) }).await;
        ignore_after(ms(1), async { told.extend(sleep(ms(9)).await.err()) }).await;
        for (told, line) in told.iter().zip([first_line, first_line + 2, first_line + 3]) {
            let shown = format!("{told:?}");
            let expected = format!("Interrupted(a deadline passed, set at {HERE}:{line}:");
            assert!(shown.starts_with(&expected) && shown.ends_with(')'), "{shown}");
            assert_eq!(told.to_string(), "a deadline passed");
        }
        assert_eq!(told.len(), 3);
    });
}

#[test]
fn a_cancel_names_its_reason() {
    run(async {
        let task = spawn(async { sleep(ms(9)).await });
        sleep(ms(1)).await.unwrap();
        task.request_cancel("the client went away");
        let told = task.await.unwrap().unwrap_err();
        assert_eq!(format!("{told:?}"), "Interrupted(cancelled: the client went away)");

        let task = spawn(async {});
        task.request_cancel("too late");
        let error = task.await.unwrap_err();
        assert_eq!(format!("{error:?}"), "Cancelled(cancelled: too late)");
        assert_eq!(error.to_string(), "the task ended by a cancel (cancelled: too late)");
    });
}

#[test]
fn an_interrupted_join_names_its_interruption() {
    run(async {
        let mut task = spawn(sleep(ms(9)));
        let mut told: Option<TaskError> = None;
        let join = async { told = (&mut task).await.err() };
        assert_eq!(timeout_after(ms(1), join).await, Err(TimedOut));
        let shown = format!("{told:?}");
        assert!(shown.starts_with("Some(Interrupted(a deadline passed, set at "), "{shown}");
        task.await.unwrap().unwrap();
    });
}

/// All errors of waits convert into that of an operation on a file or a socket.
async fn number(text: &'static str) -> io::Result<u32> {
    let parse = || text.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    sleep(ms(1)).await?;
    let number: u32 = timeout_after(ms(5), spawn(async move { parse() })).await.flatten()?;
    let again = run_in_thread(move || text.parse::<u32>().map_err(io::Error::other)).await;
    assert_eq!(number, again.flatten()?);
    timeout_after(ms(5), async { sleep(ms(1)).await }).await??;
    Ok(number)
}

/// The first error from the outside, as the innermost one.
#[test]
fn results_in_results_become_one() {
    run(async {
        let slow = async || {
            sleep(ms(9)).await?;
            io::Result::Ok(1)
        };
        assert_eq!(timeout_after(ms(10), slow()).await.flatten().unwrap(), 1);
        let late = timeout_after(ms(5), slow()).await.flatten().unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(interruption(&late).is_none(), "the deadline was this task's own");
        let cancelled = spawn(slow());
        cancelled.request_cancel("enough");
        let joined = timeout_after(ms(5), cancelled).await.flatten().unwrap_err();
        assert!(joined.get_ref().is_some_and(|error| error.is::<TaskError>()));
        let failed = spawn(async { Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)) });
        let failed = timeout_after(ms(5), failed).await.flatten().unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn errors_of_waits_convert_into_io_errors() {
    run(async {
        assert_eq!(number("7").await.unwrap(), 7);
        assert_eq!(number("seven").await.unwrap_err().kind(), io::ErrorKind::InvalidData);

        let ended = spawn(async {});
        ended.request_cancel("enough");
        let error = io::Error::from(ended.await.unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::Other);
        let inside = error.get_ref().and_then(|error| error.downcast_ref::<TaskError>());
        assert!(inside.is_some_and(TaskError::is_cancelled));
        assert!(interruption(&error).is_none(), "the other task was cancelled, and not this one");

        let mut task = spawn(sleep(ms(9)));
        let mut told = None;
        let join = async { told = (&mut task).await.err() };
        timeout_after(ms(1), join).await.unwrap_err();
        let error = io::Error::from(told.unwrap());
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(interruption(&error).is_some());
        task.await.unwrap().unwrap();
    });
}
