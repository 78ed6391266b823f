// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of a server.
//!
//! Requests are few and small; a connection that does not go on can hurt such a server. So a connection has a limit on
//! the time until its headers are there and one on the time in which nothing moves in either direction. The number of
//! connections has a limit, in all and for each client, so that one client does not take those of the others.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum_server::Server;
use axum_server::accept::Accept;
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until the headers of a request are there, also of the next one on the same connection.
    pub headers: Duration,
    /// Until a connection is encrypted.
    pub handshake: Duration,
    /// In which nothing is read or written.
    pub silence: Duration,
    /// Connections at a time; who comes then is turned away.
    pub connections: usize,
    /// The same of one address.
    pub connections_of_a_client: usize,
}

/// Holds a server to limits.
pub fn limited<A>(
    server: Server<SocketAddr, A>,
    limits: Limits,
) -> Server<SocketAddr, LimitedAcceptor<A>> {
    let connections = Arc::new(Semaphore::new(limits.connections));
    let mut server = server
        .map(|inner| LimitedAcceptor {
            inner,
            connections,
            clients: Clients::default(),
            limits,
        })
        // Only one version: a server with two would wait without a limit to learn which one the client uses.
        .http1_only();
    // Silent connections are closed after a while.
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers);
    server
}

/// Accepts so many connections, each of which ends when nothing moves.
#[derive(Clone, Debug)]
pub struct LimitedAcceptor<A> {
    inner: A,
    connections: Arc<Semaphore>,
    clients: Clients,
    limits: Limits,
}

/// The number of connections of each address.
#[derive(Clone, Debug, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Clients {
    /// One more of this address; none if it has `most`.
    fn enter(&self, address: IpAddr, most: usize) -> Option<Client> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Client {
            address,
            all: self.clone(),
        })
    }
}

/// A connection of an address, until it is dropped.
#[derive(Debug)]
struct Client {
    address: IpAddr,
    all: Clients,
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

impl<S, A> Accept<TcpStream, S> for LimitedAcceptor<A>
where
    A: Accept<TcpStream, S> + Clone + Send + 'static,
    A::Future: Send,
    S: Send + 'static,
{
    type Stream = LimitedStream<A::Stream>;
    type Service = A::Service;
    type Future =
        Pin<Box<dyn Future<Output = io::Result<(Self::Stream, Self::Service)>> + Send + 'static>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self {
            inner,
            connections,
            clients,
            limits,
        } = self.clone();
        Box::pin(async move {
            let address = stream.peer_addr()?.ip();
            let client = clients.enter(address, limits.connections_of_a_client);
            let client = client.ok_or_else(|| io::Error::other("too many of one client"))?;
            let permit = Arc::clone(&connections)
                .try_acquire_owned()
                .map_err(io::Error::other)?;
            // A TLS connection may be silent before it is one.
            let accepted = inner.accept(stream, service);
            let accepted = tokio::time::timeout(limits.handshake, accepted).await;
            let (inner, service) = accepted.map_err(io::Error::other)??;
            let stream = LimitedStream {
                inner,
                silence: limits.silence,
                until: Box::pin(tokio::time::sleep(limits.silence)),
                _held: (permit, client),
            };
            Ok((stream, service))
        })
    }
}

/// A connection that fails after some time in which nothing was read or written.
#[derive(Debug)]
pub struct LimitedStream<T> {
    inner: T,
    silence: Duration,
    until: Pin<Box<Sleep>>,
    _held: (OwnedSemaphorePermit, Client),
}

impl<T: Unpin> LimitedStream<T> {
    fn limit<R>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let polled = poll(Pin::new(&mut self.inner), context);
        if polled.is_ready() {
            let until = Instant::now() + self.silence;
            self.until.as_mut().reset(until);
            return polled;
        }
        // The timer wakes its latest user, which may be the reader or the writer; they are one task.
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LimitedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.limit(context, |inner, context| inner.poll_read(context, buffer))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LimitedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.limit(context, |inner, context| inner.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limit(context, AsyncWrite::poll_shutdown)
    }
}
