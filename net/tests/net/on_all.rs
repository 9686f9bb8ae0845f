//! One server on several kernels.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pikake::net::tls::TlsStream;
use pikake::net::{
    Closing, Ended, Farewell, ListenerFailed, Patience, Replicas, TcpListener, TcpStream,
    interruption, serve_on_all, serve_until,
};
use pikake::{Kernels, spawn, yield_now};

use crate::tls::certificates::{Authority, SERVER};

/// So many that all of them with one listener of three is as good as impossible.
const CONNECTIONS: usize = 200;

type Addresses = mpsc::Sender<SocketAddr>;

/// A server that greets each client, and first tells its address.
async fn serve(
    listener: TcpListener,
    bound: Addresses,
) -> Result<Farewell<SocketAddr>, ListenerFailed<SocketAddr>> {
    bound.send(listener.local_addr().unwrap()).unwrap();
    let greet = async |stream: TcpStream, _| drop(stream.write_all(b"hello").await);
    serve_until(listener, 1000, Closing::new(), Patience::default(), greet).await
}

/// Waits until this many kernels listen, and returns their common address.
async fn listening(count: usize, bound: &mpsc::Receiver<SocketAddr>) -> SocketAddr {
    let mut addresses = Vec::new();
    while addresses.len() < count {
        addresses.extend(bound.try_iter());
        yield_now().await.unwrap();
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    addresses[0]
}

#[pikake::test]
async fn interrupted_server_reports_each_kernel() {
    let kernels = Kernels::start(2).unwrap();
    let (sender, bound) = mpsc::channel();
    let others = kernels.handles();
    let server = spawn(async move {
        serve_on_all("127.0.0.1:0", &others, |listener| serve(listener, sender)).await
    });
    let address = listening(3, &bound).await;
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.read_exact(&mut [0; 5]).await.unwrap();
    }
    server.request_cancel("a signal");
    let reports = server.await.unwrap().unwrap();
    assert_eq!(reports.len(), 3);
    let mut handled = 0;
    for report in reports {
        let report = report.unwrap();
        let Ended::Interrupted(why) = &report.why else { panic!("{report}") };
        assert!(report.is_clean() && report.handled > 0 && why.reason() == Some("a signal"));
        handled += report.handled;
    }
    assert_eq!(handled, CONNECTIONS as u64);
}

/// The failure of one kernel's server ends the others, gracefully.
#[pikake::test]
async fn one_failed_kernel_ends_the_server() {
    let kernels = Kernels::start(1).unwrap();
    let (sender, bound) = mpsc::channel();
    let is_serving = Arc::new(AtomicBool::new(false));
    let reports = serve_on_all("127.0.0.1:0", &kernels.handles(), |listener| async move {
        if std::thread::current().name() == Some("pikake-1") {
            while !is_serving.load(Ordering::SeqCst) {
                yield_now().await.unwrap();
            }
            panic!("the second kernel's server fails");
        }
        is_serving.store(true, Ordering::SeqCst);
        serve(listener, sender).await
    });
    let reports = reports.await.unwrap();
    drop(bound);
    assert!(matches!(reports[0].as_ref().unwrap().why, Ended::Interrupted(_)), "{reports:?}");
    let error = reports[1].as_ref().unwrap_err();
    assert!(error.to_string().contains("the second kernel's server fails"), "{error}");
}

#[pikake::test]
async fn used_address_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, _bound) = mpsc::channel();
    let ended = serve_on_all(address, &[], |listener| serve(listener, sender)).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::AddrInUse);
}

/// An acceptor is cloned into each kernel.
#[pikake::test]
async fn tls_is_served_on_all_kernels() {
    let authority = Authority::new();
    let acceptor = authority.acceptor();
    let kernels = Kernels::start(1).unwrap();
    let (sender, bound) = mpsc::channel();
    let others = kernels.handles();
    let serving = move |listener: TcpListener| async move {
        sender.send(listener.local_addr().unwrap()).unwrap();
        let greet = async |stream: TlsStream<TcpStream>, _| {
            let greeting = async {
                stream.write_all(b"hello").await?;
                stream.finish().await
            };
            greeting.await.unwrap();
        };
        let listener = acceptor.listen(listener);
        serve_until(listener, 1000, Closing::new(), Patience::default(), greet).await
    };
    let server = spawn(async move { serve_on_all("127.0.0.1:0", &others, serving).await });
    let address = listening(2, &bound).await;
    for _ in 0..30 {
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = authority.connector().connect(SERVER, stream).await.unwrap();
        stream.read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    }
    let since = pikake::time::now();
    server.request_cancel("enough");
    let reports: io::Result<Vec<_>> = server.await.unwrap().unwrap().into_iter().collect();
    assert_eq!(reports.unwrap().iter().map(|report| report.handled).sum::<u64>(), 30);
    assert!(pikake::time::elapsed_since(since) < Duration::from_secs(10));
}

/// An interruption before the address is bound is an error.
#[pikake::test]
async fn interruption_while_binding_is_an_error() {
    let (sender, _bound) = mpsc::channel();
    let server = spawn(async move {
        pikake::current().request_cancel("early");
        serve_on_all("localhost:0", &[], |listener| serve(listener, sender)).await
    });
    assert!(interruption(&server.await.unwrap().unwrap_err()).is_some());
}

/// The guard of a value removes this value alone, also where one kernel has two.
#[pikake::test]
async fn replica_leaves_with_its_own_guard() {
    let replicas = Replicas::default();
    let first = replicas.enter("first");
    let second = replicas.enter("second");
    assert_eq!(replicas.here(), Some("first"));
    drop(first);
    assert_eq!(replicas.here(), Some("second"));
    let third = replicas.enter("third");
    drop(third);
    assert_eq!(replicas.here(), Some("second"));
    drop(second);
    assert_eq!(replicas.here::<&str>(), None);
}
