//! A node whose agent serves metrics, and one scrape of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::identity::Identity;
use crate::node::{Node, Setup};
use crate::plan::TestPlan;
use crate::trainer::{MICROBATCHES, STAGES, Training};

/// How long a connection may say nothing before a test gives up.
const SILENCE: Duration = Duration::from_secs(60);

/// A node whose agent serves metrics on an address and on a socket, and writes them every second.
pub struct MetricsNode {
    /// The node.
    pub node: Node,
    /// Where Prometheus can scrape it.
    pub address: SocketAddr,
}

impl MetricsNode {
    /// The job that [`train`](Self::train) trains.
    pub const JOB: &str = "job";

    /// The clocks of its plan, which changes them with each instruction.
    pub const CLOCKS_MHZ: [u32; 2] = [900, 1200];

    /// A node that serves.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&Setup::default())
    }

    /// A node that serves, and is set up like this.
    #[must_use]
    pub fn start_with(setup: &Setup) -> Self {
        let mut started = Self { node: Node::create(setup), address: free_address() };
        let mut config = File::options().append(true).open(started.node.agent_config()).unwrap();
        let Self { node, address } = &started;
        write!(
            config,
            "[metrics]\nlisten = \"{address}\"\nsocket = {:?}\ntextfile = {:?}\n\
             textfile_every_s = 1\n",
            node.directory().join("metrics.sock"),
            started.textfile(),
        )
        .unwrap();
        started.node.start_daemon();
        started.start_agent();
        started
    }

    /// Starts the agent, and waits until it serves.
    pub fn start_agent(&mut self) {
        self.node.start_agent();
        self.node.until("metrics are served", || {
            TcpStream::connect(self.address).map(drop).map_err(|error| error.to_string())
        });
    }

    /// The file for the node exporter.
    #[must_use]
    pub fn textfile(&self) -> PathBuf {
        self.node.directory().join("pfo.prom")
    }

    /// A connection to the address.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream
    }

    /// A connection to the socket.
    #[must_use]
    pub fn connect_to_socket(&self) -> UnixStream {
        UnixStream::connect(self.node.directory().join("metrics.sock")).unwrap()
    }

    /// A scrape that must succeed.
    #[must_use]
    pub fn page(&self) -> String {
        let answer = ask(self.connect(), "GET /metrics", "").unwrap();
        let (head, page) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        page.to_owned()
    }

    /// Waits until a page has a line.
    pub fn until_page_has(&self, line: &str) {
        self.node.until(line, || {
            let page = self.page();
            if page.contains(&format!("\n{line}\n")) { Ok(()) } else { Err(page) }
        });
    }

    /// A training that runs a plan, of which every rank has run some, as the page says.
    #[must_use]
    pub fn train(&self) -> Training {
        let options = &["--time-scale", "0.1"];
        let training = Training::start(&self.node, Self::JOB, &Identity::own(), options);
        training.until_leased(&self.node);
        let clock = |_, place| Self::CLOCKS_MHZ[place % 2];
        self.node.take_up(Self::JOB, &TestPlan::new(STAGES, MICROBATCHES, clock));
        training.until_step(&self.node, 6);
        // A page may be a second old.
        self.node.until("the page has the ranks under the plan", || {
            let page = self.page();
            let has_run = |(series, value): &(String, f64)| {
                *value > 0.0
                    && ["pfo_rank_instructions_total", "pfo_job_energy_joules_total"]
                        .iter()
                        .any(|name| series.starts_with(name))
            };
            let ranks = samples(&page).into_iter().filter(has_run).count();
            if ranks == 2 * STAGES as usize { Ok(()) } else { Err(page) }
        });
        training
    }
}

/// An address of this machine that nobody listens on.
#[must_use]
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Sends a request and reads to the end of the connection.
///
/// # Errors
/// If the connection breaks.
pub fn ask(mut stream: impl Read + Write, what: &str, headers: &str) -> io::Result<String> {
    stream.write_all(format!("{what} HTTP/1.1\r\nHost: node\r\n{headers}\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Every series of a page with its value.
#[must_use]
pub fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}
