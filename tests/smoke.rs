use pikake::{sleep, spawn, yield_now, timeout_after, TimedOut, traps, Kernel, future_wait};
use std::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn hello() {
    let text = String::from("hi");
    assert_eq!(pikake::run(async { sleep(Duration::from_millis(2)).await.unwrap(); text.len() }), 2);
}

#[pikake::test]
async fn order() {
    let log = Rc::new(RefCell::new(vec![]));
    let mut tasks = vec![];
    for i in 0..3 { let log = log.clone(); tasks.push(spawn(async move { for k in 0..3 { log.borrow_mut().push((i,k)); yield_now().await.unwrap(); } i })); }
    for t in tasks { t.await.unwrap(); }
    assert_eq!(*log.borrow(), vec![(0,0),(1,0),(2,0),(0,1),(1,1),(2,1),(0,2),(1,2),(2,2)]);
}

#[pikake::test]
async fn timeouts() {
    assert_eq!(timeout_after(Duration::from_millis(5), sleep(Duration::from_secs(50))).await.map(|_| ()), Err(TimedOut));
    assert_eq!(timeout_after(Duration::from_millis(5), std::future::pending::<()>()).await, Err(TimedOut));
    let inner = timeout_after(Duration::from_millis(5), async { let r = timeout_after(Duration::from_secs(9), sleep(Duration::from_secs(50))).await; assert!(matches!(&r, Ok(Err(e)) if e.is_timeout())); 5 }).await;
    assert_eq!(inner, Err(TimedOut));
    let r = timeout_after(Duration::from_secs(5), async { 7 }).await;
    assert_eq!(r, Ok(7));
    futures::join!(
        async { assert!(timeout_after(Duration::from_millis(5), sleep(Duration::from_secs(50))).await.is_err()) },
        async { assert!(timeout_after(Duration::from_millis(50), sleep(Duration::from_millis(10))).await.is_ok()) });
}

#[pikake::test]
async fn cancel() {
    let t = spawn(async { match sleep(Duration::from_secs(60)).await { Err(e) => { yield_now().await.unwrap(); format!("{e}") }, Ok(()) => panic!() } });
    yield_now().await.unwrap();
    t.request_cancel("enough");
    t.cancel().await.unwrap();
    assert_eq!(t.await.unwrap(), "cancelled: enough");
    let t = spawn(async { 1 });
    t.cancel().await.unwrap();
    assert!(t.await.unwrap_err().is_cancelled());
    let t = spawn(std::future::pending::<()>());
    yield_now().await.unwrap();
    t.cancel().await.unwrap();
    assert!(t.await.unwrap_err().is_cancelled());
    let t = spawn(async { panic!("boom") as () });
    assert_eq!(t.await.unwrap_err().panic_message(), Some("boom"));
    assert_eq!(traps::blocking(|| 5).await.unwrap(), 5);
    assert!(traps::lookup("localhost", 80).await.unwrap().len() > 0);
}
#[test]
fn threads() {
    let k = Kernel::new().unwrap();
    let h = k.handle();
    let (tx, rx) = futures::channel::oneshot::channel();
    std::thread::spawn(move || { std::thread::sleep(Duration::from_millis(20)); h.spawn(move || async move { let _ = tx.send(9); }).unwrap(); });
    assert_eq!(k.run(async { future_wait(rx).await.unwrap() }), Ok(9));
}
