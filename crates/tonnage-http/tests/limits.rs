// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that go on, and those that do not.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use axum_server::Handle;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonnage_http::{Limits, limited};

/// More than the buffers of two sockets hold.
const LONG: usize = 64 << 20;

async fn served(limits: Limits) -> SocketAddr {
    let handle = Handle::new();
    let server = axum_server::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = limited(server.handle(handle.clone()), limits);
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/long", get(|| async { "x".repeat(LONG) }));
    tokio::spawn(server.serve(router.into_make_service()));
    handle.listening().await.unwrap()
}

const QUICK: Limits = Limits {
    headers: Duration::from_millis(200),
    handshake: Duration::from_millis(300),
    silence: Duration::from_millis(300),
    connections: 2,
    connections_of_a_client: 2,
};

#[tokio::test]
async fn who_says_nothing_is_not_waited_for() {
    let address = served(QUICK).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(b"GET / HT").await.unwrap();
    let mut said = Vec::new();
    let ended = async {
        (
            silent.read(&mut [0; 9]).await,
            half.read_to_end(&mut said).await,
        )
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    let (silent, _) = ended.expect("both are closed");
    assert!(matches!(silent, Ok(0) | Err(_)));
}

#[tokio::test]
async fn who_asks_and_does_not_read_is_not_waited_for() {
    let address = served(QUICK).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    tokio::time::sleep(QUICK.silence * 5).await;
    let mut read = Vec::new();
    let _ = slow.read_to_end(&mut read).await;
    assert!(read.starts_with(b"HTTP/1.1 200"));
    assert!(read.len() < LONG, "the rest was not waited for");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_turned_away_until_others_end() {
    let patient = Limits {
        headers: Duration::from_mins(1),
        silence: Duration::from_mins(1),
        ..QUICK
    };
    let address = served(patient).await;
    let first = TcpStream::connect(address).await.unwrap();
    let _second = TcpStream::connect(address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut third = TcpStream::connect(address).await.unwrap();
    assert!(matches!(third.read(&mut [0; 9]).await, Ok(0) | Err(_)));
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut next = TcpStream::connect(address).await.unwrap();
    next.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut read = String::new();
    next.read_to_string(&mut read).await.unwrap();
    assert!(read.ends_with("here"), "{read}");
}

#[tokio::test]
async fn a_client_does_not_take_the_connections_of_others() {
    let limits = Limits {
        headers: Duration::from_secs(20),
        silence: Duration::from_secs(20),
        connections: 10,
        connections_of_a_client: 3,
        ..QUICK
    };
    let address = served(limits).await;
    let connect = async |from: [u8; 4]| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(address).await.unwrap()
    };
    let answers = async |stream: &mut TcpStream| {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        matches!(stream.read(&mut [0; 9]).await, Ok(9))
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = connect([127, 0, 0, 2]).await;
        assert!(answers(&mut stream).await);
        held.push(stream);
    }
    assert!(!answers(&mut connect([127, 0, 0, 2]).await).await);
    assert!(answers(&mut connect([127, 0, 0, 3]).await).await);
    // One that has ended makes room.
    held.pop();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(answers(&mut connect([127, 0, 0, 2]).await).await);
}
