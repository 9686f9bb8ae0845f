//! A server of lines, as it is written for each runtime.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::PATIENCE;

/// The lines of one client.
fn each(clients: usize, count: usize) -> usize {
    count.div_ceil(clients)
}

pub(crate) async fn on_pikake(clients: usize, count: usize) {
    use pikake::net::{BufReader, TcpListener, TcpStream};
    use pikake::sync::mpsc;

    async fn serve(stream: TcpStream, all: mpsc::Sender<(String, mpsc::Sender<String>)>) {
        let reader = BufReader::new(&stream);
        let (to_me, mut mine) = mpsc::channel(16);
        loop {
            pikake::select! {
                line = pikake::timeout_after(PATIENCE, reader.next_line()) => {
                    match line {
                        Ok(Ok(Some(line))) => all.send((line, to_me.clone())).await.unwrap(),
                        _ => return,
                    }
                }
                answer = mine.recv() => {
                    let Ok(Some(answer)) = answer else { return };
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        }
    }

    async fn ask(stream: TcpStream, count: usize) {
        let mut answer = [0; 6];
        for _ in 0..count {
            stream.write_all(b"hello\n").await.unwrap();
            stream.read_exact(&mut answer).await.unwrap();
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (all, mut lines) = mpsc::channel::<(String, mpsc::Sender<String>)>(64);
    pikake::spawn(async move {
        while let Ok(Some((mut line, to))) = lines.recv().await {
            line.push('\n');
            to.send(line).await.unwrap();
        }
    })
    .detach();
    let mut asking = Vec::new();
    for _ in 0..clients {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        pikake::spawn(serve(server, all.clone())).detach();
        asking.push(pikake::spawn(ask(client, each(clients, count))));
    }
    for task in asking {
        task.await.unwrap();
    }
}

pub(crate) async fn on_tokio(clients: usize, count: usize) {
    use tokio::io::BufReader;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::spawn_local;

    async fn serve(mut stream: TcpStream, all: mpsc::Sender<(String, mpsc::Sender<String>)>) {
        let (read, mut write) = stream.split();
        let mut lines = BufReader::new(read).lines();
        let (to_me, mut mine) = mpsc::channel(16);
        loop {
            tokio::select! {
                line = tokio::time::timeout(PATIENCE, lines.next_line()) => {
                    match line {
                        Ok(Ok(Some(line))) => all.send((line, to_me.clone())).await.unwrap(),
                        _ => return,
                    }
                }
                answer = mine.recv() => {
                    write.write_all(answer.unwrap().as_bytes()).await.unwrap();
                }
            }
        }
    }

    async fn ask(mut stream: TcpStream, count: usize) {
        let mut answer = [0; 6];
        for _ in 0..count {
            stream.write_all(b"hello\n").await.unwrap();
            stream.read_exact(&mut answer).await.unwrap();
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (all, mut lines) = mpsc::channel::<(String, mpsc::Sender<String>)>(64);
    spawn_local(async move {
        while let Some((mut line, to)) = lines.recv().await {
            line.push('\n');
            to.send(line).await.unwrap();
        }
    });
    let mut asking = Vec::new();
    for _ in 0..clients {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        spawn_local(serve(server, all.clone()));
        asking.push(spawn_local(ask(client, each(clients, count))));
    }
    for task in asking {
        task.await.unwrap();
    }
}
