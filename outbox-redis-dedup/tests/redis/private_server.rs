//! A redis-server of one test, on a port and in a folder of its own.
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox_redis_dedup::redis::{self, Client, Connection, ErrorKind, RedisResult, ServerErrorKind};
use uuid::Uuid;

pub(crate) struct PrivateServer {
    pub(crate) port: u16,
    folder: PathBuf,
    options: Vec<String>,
    process: Child,
}

impl PrivateServer {
    /// With options as on the command line. Persists nothing unless they say so.
    pub(crate) fn start(options: &[&str]) -> Self {
        let folder = new_folder();
        let port = free_port();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let process = spawn(port, &folder, &options);
        let server = Self { port, folder, options, process };
        server.wait();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn raw(&self) -> Connection {
        Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    pub(crate) fn run(&self, words: &[&str]) {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut self.raw()).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.port, &self.folder, &self.options);
        self.wait();
    }

    /// Any answer will do, also one that asks for a password or for TLS.
    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Err(error) = self.ping() {
            let loading = error.kind() == ErrorKind::Server(ServerErrorKind::BusyLoading);
            if !error.is_io_error() && !loading {
                return;
            }
            assert!(Instant::now() < deadline, "redis-server does not start: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn ping(&self) -> RedisResult<()> {
        let second = Duration::from_secs(1);
        redis::cmd("PING").exec(&mut Client::open(self.url())?.get_connection_with_timeout(second)?)
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn new_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("outbox-redis-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn spawn(port: u16, folder: &PathBuf, options: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
        .arg(folder)
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is not installed")
}
