//! Runs a PostgreSQL server for a test, on a free port and in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::{is_root, skip};

/// A running server. Dropping it ends it and removes its folder.
pub struct Postgres {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub port: u16,
    databases: AtomicUsize,
}

/// Returns the folder with the server's programs, if they are installed.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").is_file())
        .collect();
    found.sort();
    found.pop()
}

/// Returns the command of a program. As root it uses the user `postgres`, because PostgreSQL refuses to run
/// as root.
fn as_user(program: &Path) -> Command {
    if !is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]).arg(program);
        return command;
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "QUIT", "--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .arg(program);
    command
}

impl Postgres {
    /// Starts a server. If none is installed, prints a notice and returns `None`.
    ///
    /// # Panics
    /// In CI, if none is installed.
    pub fn start() -> Option<Self> {
        let Some(bin) = programs() else {
            skip("a PostgreSQL server; run `cargo xtask test`");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        if is_root() {
            let owned = Command::new("chown").arg("postgres").arg(folder.path()).status();
            assert!(owned.is_ok_and(|status| status.success()), "the folder has its owner");
        }
        let data = folder.path().join("data");
        let made = as_user(&bin.join("initdb"))
            .args(["--no-sync", "--auth=trust", "--username=toolbooth", "--encoding=UTF8"])
            .args(["--locale=C", "-D"])
            .arg(&data)
            .current_dir("/")
            .stdout(Stdio::null())
            .status()
            .expect("initdb runs");
        assert!(made.success(), "initdb ended with {made}");
        let mut server = Self {
            folder,
            child: None,
            port: crate::ports::free(),
            databases: AtomicUsize::new(0),
        };
        server.resume();
        Some(server)
    }

    /// Starts the server again after [`Postgres::stop`].
    pub fn resume(&mut self) {
        let bin = programs().expect("it was there");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("a log");
        let child = as_user(&bin.join("postgres"))
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string(), "-h", "127.0.0.1", "-k"])
            .arg(self.folder.path())
            .args(["-c", "max_connections=200", "-c", "shared_buffers=32MB"])
            .args(["-c", "log_min_messages=warning"])
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the server starts");
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.try_sql("postgres", "SELECT 1") {
            assert!(Instant::now() < until, "the server answers: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends the server immediately, like a crash.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }

    /// Runs a statement; returns whether it succeeded.
    pub fn try_sql(&self, database: &str, sql: &str) -> bool {
        self.psql(database, sql).is_some()
    }

    fn psql(&self, database: &str, sql: &str) -> Option<String> {
        let output = Command::new(programs()?.join("psql"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "toolbooth"])
            .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Returns the output of a statement; panics if it fails.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.psql(database, sql).unwrap_or_else(|| panic!("{sql}: {}", self.log()))
    }

    /// Creates a database and returns its name.
    pub fn database(&self) -> String {
        let name = format!("t{}", self.databases.fetch_add(1, Ordering::SeqCst));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://toolbooth@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}
