//! A future of the caller as a host's main task, and calls that a simulation refuses.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream};
use pikake::sim::{Cause, Sim};
use pikake::thread::{ThreadProxy, block_on, spawn_thread};
use pikake::{Interrupted, TaskError, sleep, spawn};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn borrowing_future_runs_as_a_client() {
    let mut heard = String::new();
    let mut sim = Sim::new(3);
    sim.host("server", || async {
        let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"hello").await.unwrap();
    });
    let ran = sim.run_here("client", async {
        sleep(SECOND).await.unwrap();
        let stream = TcpStream::connect("server:7").await.unwrap();
        let mut buffer = [0; 5];
        stream.read_exact(&mut buffer).await.unwrap();
        heard.push_str(std::str::from_utf8(&buffer).unwrap());
        buffer.len()
    });
    let ran = ran.unwrap();
    assert_eq!((ran.outcome.unwrap(), heard.as_str()), (5, "hello"));
    assert!(ran.report.time > SECOND && ran.report.seed == 3);
}

#[test]
fn other_tasks_are_cancelled_and_clean_up() {
    let (told, hears) = std::sync::mpsc::channel();
    let ran = Sim::new(1).run_here("main", async {
        spawn(async move {
            assert!(sleep(SECOND * 60).await.is_err());
            sleep(SECOND).await.unwrap();
            told.send("cleaned up").unwrap();
        })
        .detach();
        sleep(SECOND).await.unwrap();
    });
    assert_eq!(hears.try_recv(), Ok("cleaned up"));
    assert_eq!(ran.unwrap().report.time.as_secs(), 2);
}

#[test]
fn only_panics_of_other_tasks_are_failures() {
    let ran = Sim::new(1).run_here("main", async { panic!("this panic is part of the test") });
    let outcome: Result<(), _> = ran.unwrap().outcome;
    assert!(matches!(outcome, Err(TaskError::Panicked(_))));
    let failure = Sim::new(1).run_here("main", async {
        spawn(async { panic!("this panic is part of the test") }).detach();
        sleep(SECOND).await
    });
    assert!(matches!(failure.unwrap_err().cause, Cause::Panicked { .. }));
}

#[test]
fn stopped_run_drops_the_future() {
    let ran = Sim::new(1).stop_after(SECOND).run_here("main", sleep(SECOND * 2));
    assert!(matches!(ran.unwrap().outcome, Err(TaskError::Stopped)));
    let failure = Sim::new(1).run_here("main", std::future::pending::<()>()).unwrap_err();
    assert_eq!(failure.cause, Cause::Deadlock);
    assert!(failure.to_string().contains("task 1 `main`"), "{failure}");
}

#[test]
fn host_of_the_caller_cannot_crash() {
    let planned = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(1);
        sim.faults("1s kill main".parse().unwrap());
        drop(sim.run_here("main", sleep(SECOND)));
    }));
    let text = *planned.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("host `main` cannot be crashed, as planned (1s kill main)"), "{text}");
}

#[test]
fn a_thread_that_awaits_is_refused() {
    let ran = Sim::new(1).run_here("main", async {
        let task = spawn_thread(|| block_on(|| sleep(SECOND)));
        match task.await {
            Err(TaskError::Panicked(panic)) => panic.into_payload().downcast::<String>().unwrap(),
            other => panic!("it was not refused: {other:?}"),
        }
    });
    // A task that panics is a failure, which names it and the place where the thread was started.
    let failure = ran.unwrap_err();
    let Cause::Panicked { task, .. } = &failure.cause else { panic!("{failure}") };
    assert!(task.contains("pikake-thread"), "{failure}");
    let mut sim = Sim::new(1);
    let text = sim.tolerate_panics().run_here("main", async {
        let error = spawn_thread(|| ()).await.unwrap_err();
        let TaskError::Panicked(panic) = error else { panic!("{error}") };
        *panic.into_payload().downcast::<String>().unwrap()
    });
    let text = text.unwrap().outcome.unwrap();
    assert!(text.contains("a simulation has no threads that await"), "{text}");
}

#[test]
fn an_object_in_a_thread_is_refused() {
    let ran = Sim::new(1).run_here("main", async {
        assert_eq!(ThreadProxy::new(1).unwrap_err().kind(), ErrorKind::Unsupported);
        let error = ThreadProxy::open(|| Ok::<_, Interrupted>(1)).await.unwrap_err();
        error.to_string()
    });
    let text = ran.unwrap().outcome.unwrap();
    assert!(text.contains("nor threads for objects"), "{text}");
}
