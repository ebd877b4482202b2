//! Postgres with `synchronous_commit = on` and `fsync = on`: a commit returns
//! when its part of the write-ahead log is synced. Backends that commit at once
//! share a sync: Postgres has group commit.
//!
//! - `wal_sync_method = fdatasync`, and no `commit_delay`: `open_datasync` and
//!   delays of 100 and 300 µs made no difference that could be told.
//! - `wal_level = minimal`, no replication: the least log.
//! - Room for the log and an hour between checkpoints, so that none falls into a
//!   cell.
//! - A fill factor that lets a completion stay in its claim's page, without a new
//!   index entry.
//! - A Unix socket; each thread has the connection that a pool would give it, and
//!   prepared statements. Each call is one statement, which is one transaction.
//!
//! It is stopped at once, without a checkpoint, before its answers are counted:
//! what was acknowledged must then come back out of the log.

use super::server::{last_lines, program, socket_folder, wait_until_ready};
use super::{Caller, Engine, Store, Writer};
use crate::work::{Answer, Key};
use anyhow::{Context, Result, ensure};
use postgres::{Client, Config, NoTls, Statement};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

const USER: &str = "peers";

const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "wal_sync_method=fdatasync",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=8GB",
    "checkpoint_timeout=1h",
    "shared_buffers=256MB",
];

pub(crate) struct Postgres {
    programs: Option<PathBuf>,
}

impl Postgres {
    pub(crate) fn find() -> Self {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let folders: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
        let has_all = |folder: &PathBuf| {
            ["postgres", "initdb", "pg_ctl"].iter().all(|name| folder.join(name).is_file())
        };
        let on_path = program("initdb", &[]).and_then(|path| path.parent().map(Path::to_owned));
        Self { programs: on_path.into_iter().chain(folders).find(has_all) }
    }
}

impl Engine for Postgres {
    fn name(&self) -> &'static str {
        "Postgres"
    }

    fn missing(&self) -> Option<String> {
        self.programs.is_none().then(|| "not installed: postgres, initdb, pg_ctl".into())
    }

    fn open(&self, folder: &Path, callers: usize) -> Result<Box<dyn Store>> {
        let programs = self.programs.clone().context("Postgres is not installed")?;
        let account = Account::for_server()?;
        let data = folder.join("data");
        let sockets = socket_folder()?;
        account.give(folder)?;
        account.give(sockets.path())?;
        if !data.exists() {
            let made = account
                .command(&programs.join("initdb"))
                .args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", USER, "-D"])
                .arg(&data)
                .output()?;
            ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        let log = folder.join("server.log");
        let mut server = account.command(&programs.join("postgres"));
        server.arg("-D").arg(&data).arg("-k").arg(sockets.path());
        for setting in SETTINGS {
            server.args(["-c", setting]);
        }
        server.args(["-c", &format!("max_connections={}", callers + 16)]);
        let child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        let mut config = Config::new();
        config.host_path(sockets.path()).user(USER).dbname("postgres");
        let open = Open { programs, data, log, account, config, child: Mutex::new(child), _sockets: sockets };
        wait_until_ready(
            "postgres",
            &open.log,
            || Ok(open.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()?.is_some()),
            || open.connect().is_ok(),
        )?;
        open.prepare()?;
        Ok(Box::new(open))
    }
}

struct Open {
    programs: PathBuf,
    data: PathBuf,
    log: PathBuf,
    account: Account,
    config: Config,
    child: Mutex<Child>,
    _sockets: TempDir,
}

impl Open {
    fn connect(&self) -> Result<Client> {
        Ok(self.config.connect(NoTls)?)
    }

    fn prepare(&self) -> Result<()> {
        let mut client = self.connect()?;
        for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
            let value: String = client.query_one(&format!("SHOW {setting}"), &[])?.get(0);
            ensure!(value == "on", "{setting} is {value}");
        }
        client.batch_execute(
            "CREATE TABLE IF NOT EXISTS keys (key text COLLATE \"C\" PRIMARY KEY, answer bytea)
             WITH (fillfactor = 50)",
        )?;
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        let stopped = self
            .account
            .command(&self.programs.join("pg_ctl"))
            .args(["stop", "-m", "immediate", "-D"])
            .arg(&self.data)
            .output()?;
        ensure!(stopped.status.success(), "pg_ctl stop failed:\n{}", last_lines(&self.log));
        child.wait()?;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.stop(); // a second time does nothing
    }
}

impl Store for Open {
    fn caller(&self) -> Result<Box<dyn Caller + '_>> {
        let mut client = self.connect()?;
        let claim = client.prepare("INSERT INTO keys (key) VALUES ($1) ON CONFLICT DO NOTHING")?;
        let complete = client.prepare("UPDATE keys SET answer = $2 WHERE key = $1 AND answer IS NULL")?;
        Ok(Box::new(Thread { client, claim, complete }))
    }

    fn completed(&self) -> Result<u64> {
        let row = self.connect()?.query_one("SELECT count(answer) FROM keys", &[])?;
        Ok(u64::try_from(row.get::<_, i64>(0))?)
    }

    fn answers(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut client = self.connect()?;
        let select = client.prepare(
            "SELECT keys.answer FROM unnest($1::text[]) WITH ORDINALITY AS asked (key, place)
             LEFT JOIN keys ON keys.key = asked.key COLLATE \"C\" ORDER BY asked.place",
        )?;
        let mut answers = Vec::with_capacity(keys.len());
        for some in keys.chunks(1000) {
            let names: Vec<_> = some.iter().map(Key::as_str).collect();
            answers.extend(client.query(&select, &[&names])?.into_iter().map(|row| row.get(0)));
        }
        Ok(answers)
    }

    fn writer(&self) -> Writer {
        Writer::Many
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.stop()
    }
}

struct Thread {
    client: Client,
    claim: Statement,
    complete: Statement,
}

impl Caller for Thread {
    fn cycle(&mut self, key: &Key, answer: &Answer) -> Result<()> {
        let claimed = self.client.execute(&self.claim, &[&key.as_str()])?;
        ensure!(claimed == 1, "{key} is not new");
        let completed = self.client.execute(&self.complete, &[&key.as_str(), &answer.as_slice()])?;
        ensure!(completed == 1, "{key} is not claimed");
        Ok(())
    }
}

/// Whose processes the server's are: Postgres does not run as root.
struct Account(Option<(u32, u32)>);

impl Account {
    /// One's own, or that of the user `postgres` for root.
    fn for_server() -> Result<Self> {
        if fs::metadata("/proc/self")?.uid() != 0 {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd")?;
        let user = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = user.into_iter().find(|fields| fields.len() > 3 && fields[0] == "postgres");
        let user = user.context("Postgres does not run as root, and there is no user `postgres`")?;
        Ok(Self(Some((user[2].parse()?, user[3].parse()?))))
    }

    /// Lets the server work in the folder.
    fn give(&self, folder: &Path) -> Result<()> {
        if let Some((user, group)) = self.0 {
            chown(folder, Some(user), Some(group))?;
            fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").stdin(Stdio::null());
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        command
    }
}
