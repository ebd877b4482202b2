//! Redis (or Valkey) with `appendonly yes` and `appendfsync always`: it writes
//! and syncs its file before it answers, once for all the commands that it read
//! in one turn of its loop, which is its group commit.
//!
//! - No snapshots (`save ""`) and no rewrites of the file, which would only cost.
//! - A Unix socket, and a connection for each thread.
//! - `SET key value NX` and `SET key value XX`: one command each. A script would
//!   only add to them.
//!
//! It is killed, not asked to stop, before its answers are counted: what was
//! acknowledged must then be in the file already.

use super::server::{program, socket_folder, wait_until_ready};
use super::{Caller, Engine, Store, Writer};
use crate::work::{Answer, Key};
use anyhow::{Context, Result, ensure};
use redis::{Client, Commands, Connection};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

const CLAIMED: &str = "c";

pub(crate) struct Redis {
    server: Option<PathBuf>,
}

impl Redis {
    pub(crate) fn find() -> Self {
        Self { server: program("redis-server", &[]).or_else(|| program("valkey-server", &[])) }
    }
}

impl Engine for Redis {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn missing(&self) -> Option<String> {
        self.server.is_none().then(|| "not installed: redis-server, valkey-server".into())
    }

    fn open(&self, folder: &Path, callers: usize) -> Result<Box<dyn Store>> {
        let server = self.server.as_ref().context("Redis is not installed")?;
        let sockets = socket_folder()?;
        let socket = sockets.path().join("redis");
        let log = folder.join("server.log");
        let child = Command::new(server)
            .current_dir(folder)
            .args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"])
            .args(["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"])
            .args(["--maxclients", &(callers + 16).to_string(), "--unixsocket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{} does not start", server.display()))?;
        let client = Client::open(format!("unix://{}", socket.display()))?;
        let open = Open { child: Mutex::new(child), client, _sockets: sockets };
        wait_until_ready(
            server,
            &log,
            || Ok(open.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()?.is_some()),
            || open.connect().is_ok_and(|mut connection| connection.ping::<String>().is_ok()),
        )?;
        let mut connection = open.connect()?;
        let setting: Vec<String> =
            redis::cmd("CONFIG").arg("GET").arg("appendfsync").query(&mut connection)?;
        ensure!(setting.get(1).is_some_and(|value| value == "always"), "appendfsync is {setting:?}");
        Ok(Box::new(open))
    }
}

struct Open {
    child: Mutex<Child>,
    client: Client,
    _sockets: TempDir,
}

impl Open {
    fn connect(&self) -> Result<Connection> {
        Ok(self.client.get_connection()?)
    }

    fn kill(&self) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.kill(); // a second time does nothing
    }
}

impl Store for Open {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        Ok(Box::new(Thread(self.connect()?)))
    }

    fn completed(&self) -> Result<u64> {
        Ok(redis::cmd("DBSIZE").query(&mut self.connect()?)?)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut connection = self.connect()?;
        let mut answers = Vec::with_capacity(keys.len());
        for some in keys.chunks(1000) {
            let names: Vec<_> = some.iter().map(Key::as_str).collect();
            let found: Vec<Option<Vec<u8>>> = redis::cmd("MGET").arg(names).query(&mut connection)?;
            answers.extend(found);
        }
        Ok(answers)
    }

    fn writer(&self) -> Writer {
        Writer::Process(self.child.lock().unwrap_or_else(PoisonError::into_inner).id())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.kill()
    }
}

struct Thread(Connection);

impl Thread {
    fn set(&mut self, key: &Key, value: &[u8], only: &str) -> Result<()> {
        let done: Option<String> =
            redis::cmd("SET").arg(key.as_str()).arg(value).arg(only).query(&mut self.0)?;
        ensure!(done.is_some(), "{key} is in another state");
        Ok(())
    }
}

impl Caller for Thread {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        self.set(key, CLAIMED.as_bytes(), "NX")?;
        self.set(key, answer, "XX")
    }
}
