//! HTTP, one request for each connection. A client is given little memory, little time and no more than
//! its turn: when too many connections are open, the oldest one that has asked nothing ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use pfo_protocol::Gid;
use pfo_service::{ListenError, bind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::config::MetricsConfig;
use super::page::Format;
use super::pages::Pages;
use super::textfile;
use crate::front::Services;

/// Connections that may be open at once on one socket.
const MOST_OPEN: usize = 64;

/// Bytes of a request.
const REQUEST_BYTES: usize = 16 * 1024;

/// Headers of a request.
const REQUEST_HEADERS: usize = 64;

/// How long a client may take for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may take as a whole.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause after an error that does not pass at once, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pause after a connection that took the place of another: who opens one after the other must not
/// keep a core busy, and a request takes less than as many pauses as there are places.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The pause before another attempt to listen.
const LISTEN_PAUSE: Duration = Duration::from_secs(5);

/// Binds the Unix socket of the configuration, if it names one. Call it on the runtime, before there are
/// other threads.
pub(crate) fn bind_socket(config: &MetricsConfig, group: Option<Gid>) -> Option<UnixListener> {
    let path = config.socket.as_ref()?;
    let refused = |error: &ListenError| {
        tracing::error!(
            "{error}: no metrics are served there. Under systemd, leave metrics.socket of agent.toml \
             empty and use /usr/share/pfo/pfo-agent-metrics.socket"
        );
    };
    bind(path, group).inspect_err(refused).ok()
}

/// Serves and writes what the configuration names, for as long as the agent runs.
pub(crate) async fn serve(services: Arc<Services>, socket: Option<UnixListener>) {
    let config = services.settings.now().config.metrics.clone();
    let pages = Arc::new(Pages::new(services));
    let on_socket = async {
        if let Some(listener) = socket {
            admit(&listener, &pages).await;
        }
    };
    let on_address = async {
        if let Some(address) = config.listen {
            let listener = listen(address).await;
            admit(&listener, &pages).await;
        }
    };
    let in_file = async {
        if let Some(path) = config.textfile {
            let every = Duration::from_secs(config.textfile_every_s.get().into());
            textfile::keep(path, every, &pages).await;
        }
    };
    tokio::join!(on_socket, on_address, in_file);
}

/// Listens on an address, as soon as that is possible.
async fn listen(address: SocketAddr) -> TcpListener {
    let mut failing = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::info!("metrics are served on http://{address}/metrics");
                return listener;
            }
            Err(error) if !std::mem::replace(&mut failing, true) => tracing::error!(
                "cannot serve metrics on {address}: {error}; the agent retries. `systemctl edit \
                 pfo-agent` gives the unit a network, see [metrics] in pfo-agent.toml(5)"
            ),
            Err(_) => {}
        }
        sleep(LISTEN_PAUSE).await;
    }
}

/// What connections come from.
trait Listener: Sync {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

/// Accepts connections and answers each.
async fn admit(listener: &impl Listener, pages: &Arc<Pages>) {
    let mut guests = Guests::default();
    loop {
        let Ok(stream) = listener.next().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let has_asked = Arc::new(AtomicBool::default());
        let talking = talk(stream, Arc::clone(pages), Arc::clone(&has_asked));
        if guests.enter(talking, has_asked) {
            sleep(FULL_PAUSE).await;
        }
    }
}

/// The open connections, which end with this.
#[derive(Default)]
struct Guests {
    talking: JoinSet<()>,
    /// Oldest first.
    open: VecDeque<Guest>,
}

struct Guest {
    end: AbortHandle,
    has_asked: Arc<AtomicBool>,
}

impl Guests {
    /// Lets a connection in. Returns whether another had to go.
    fn enter(
        &mut self,
        talking: impl Future<Output = ()> + Send + 'static,
        has_asked: Arc<AtomicBool>,
    ) -> bool {
        while self.talking.try_join_next().is_some() {}
        self.open.retain(|guest| !guest.end.is_finished());
        let is_full = self.open.len() >= MOST_OPEN;
        if is_full {
            let idle = self.open.iter().position(|guest| !guest.has_asked.load(Relaxed));
            if let Some(gone) = self.open.remove(idle.unwrap_or(0)) {
                gone.end.abort();
            }
        }
        let in_time = async move {
            let _ = timeout(CONNECTION_TIMEOUT, talking).await;
        };
        self.open.push_back(Guest { end: self.talking.spawn(in_time), has_asked });
        is_full
    }
}

/// Answers the request of one connection.
async fn talk<S>(stream: S, pages: Arc<Pages>, has_asked: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answering = service_fn(|request: Request<Incoming>| {
        has_asked.store(true, Relaxed);
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&request, &pages).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .keep_alive(false)
        .max_headers(REQUEST_HEADERS)
        .max_buf_size(REQUEST_BYTES);
    // What is wrong is the client's, and the answer says it.
    let _ = http.serve_connection(TokioIo::new(stream), answering).await;
}

async fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    let (mut status, mut media_type) = (StatusCode::OK, Format::Classic.media_type());
    let body = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let format = format_of(request);
            media_type = format.media_type();
            pages.now(format).await
        }
        (&Method::GET | &Method::HEAD, _) => {
            status = StatusCode::NOT_FOUND;
            Bytes::from_static(b"the metrics are at /metrics\n")
        }
        _ => {
            status = StatusCode::METHOD_NOT_ALLOWED;
            Bytes::from_static(b"the metrics are at /metrics, with GET\n")
        }
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// The format that a client prefers.
fn format_of(request: &Request<Incoming>) -> Format {
    let mut accepted = request.headers().get_all(ACCEPT).iter();
    let names = |value: &HeaderValue| {
        value.to_str().is_ok_and(|value| value.contains("application/openmetrics-text"))
    };
    if accepted.any(names) { Format::OpenMetrics } else { Format::Classic }
}
