//! h2 on pikake, without hyper: a server and a client of HTTP/2.
//!
//! ```text
//! 200 OK: hello
//! ```

use std::error::Error;

use http::{Request, Response};
use pikake::net::{TcpListener, TcpStream};
use pikake::{future_wait, spawn};

async fn serve(stream: TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (_, mut reply) = accepted?;
        reply.send_response(Response::new(()), false)?.send_data("hello".into(), true)?;
    }
    Ok(())
}

pub(crate) async fn demo() -> Result<Vec<String>, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    let server = spawn(serve(listener.accept().await?.0));
    let (mut client, connection) = future_wait(h2::client::handshake(stream)).await??;
    spawn(connection).detach();
    let request = Request::get("http://localhost/").body(())?;
    let (head, mut body) = future_wait(client.send_request(request, true)?.0).await??.into_parts();
    let text = future_wait(body.data()).await?.ok_or("no body")??;
    drop((client, body));
    server.await??;
    Ok(vec![format!("{}: {}", head.status, str::from_utf8(&text)?)])
}

#[pikake::main]
async fn main() -> Result<(), Box<dyn Error>> {
    demo().await.map(|lines| println!("{}", lines.join("\n")))
}
