//! Libraries that need tokio, awaited in tasks of pikake.

use std::time::Duration;

use pikake_kernel::Kernel;
use pikake_net::TcpListener;
use pikake_tokio::{in_tokio, with_tokio};
use pikake_traps::{sleep, spawn, timeout_after};

const MOMENT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn reqwest_gets_a_page_from_a_pikake_server() {
    let kernel = Kernel::new().unwrap();
    let page = kernel.run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        // In the same thread: the client's task waits, and lets the server's run.
        let server = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut buffer = [0; 1024];
                let length = stream.read(&mut buffer).await.unwrap();
                request.extend_from_slice(&buffer[..length]);
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
            stream.write_all(answer).await.unwrap();
        });
        let client = with_tokio(reqwest::Client::new);
        let asking = in_tokio(async { client.get(url).send().await?.text().await });
        let page = asking.await.unwrap().unwrap();
        server.await.unwrap();
        page
    });
    assert_eq!(page, "hello");
}

#[test]
fn timeout_interrupts_a_tokio_future() {
    Kernel::new().unwrap().run(async {
        let outcome = timeout_after(MOMENT, async {
            in_tokio(async { tokio::time::sleep(LONG).await }).await.unwrap_err();
            sleep(MOMENT).await.unwrap(); // cleanup may await
        });
        assert!(outcome.await.is_err());
    });
}

#[test]
fn tasks_of_tokio_run_on_its_thread() {
    Kernel::new().unwrap().run(async {
        let here = std::thread::current().id();
        let there =
            in_tokio(async { tokio::spawn(async { std::thread::current().id() }).await.unwrap() });
        assert_ne!(there.await.unwrap(), here);
    });
}

/// Says whether it was dropped where a runtime of tokio can be found.
struct Needy(std::rc::Rc<std::cell::Cell<Option<bool>>>);

impl Drop for Needy {
    fn drop(&mut self) {
        self.0.set(Some(tokio::runtime::Handle::try_current().is_ok()));
    }
}

#[test]
fn only_destructors_of_the_future_find_the_runtime() {
    let found = std::rc::Rc::default();
    Kernel::new().unwrap().run(async {
        let needy = Needy(std::rc::Rc::clone(&found));
        let waiting = in_tokio(async move {
            let _needy = needy;
            tokio::time::sleep(LONG).await;
        });
        assert!(timeout_after(MOMENT, waiting).await.is_err());
        assert!(tokio::runtime::Handle::try_current().is_err());
    });
    assert_eq!(found.get(), Some(true));
}

/// tokio's words name no way out; a search for them finds the guide.
#[test]
fn panic_without_a_runtime_is_in_the_guide() {
    let calls: [fn(); 2] = [|| drop(tokio::spawn(async {})), || drop(tokio::time::sleep(LONG))];
    for call in calls {
        let words =
            Kernel::new().unwrap().run(async { std::panic::catch_unwind(call).unwrap_err() });
        let words = words
            .downcast_ref::<String>()
            .map_or_else(|| (*words.downcast_ref::<&str>().unwrap()).to_owned(), String::clone);
        let guide = include_str!("../../../docs/tokio.md");
        assert!(guide.contains(&format!("\n{words}\n")), "{words}");
    }
}
