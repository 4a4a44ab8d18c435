//! Makes a gateway's socket in the data folder, and finds those of running gateways.
//!
//! Doc: front-doors.md#operator-socket

use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use toolbooth_proxy::{Catalogue, ToolProxy};
use toolbooth_registry::lock::LockFile;
use toolbooth_server::operator_socket::{self, Answer};

/// The most bytes of a socket's path: 107 on Linux (unix(7)), 103 on others.
const PATH_BYTES_MAX: usize = 103;
/// The most sockets of a data folder that are looked at.
const SOCKETS_MAX: usize = 1_000;
/// The time in which one of the gateways must answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 32;
/// The age from which a socket without a listener is that of a dead gateway.
const YOUNG: Duration = Duration::from_secs(10);

/// The socket of one gateway. Its file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct OperatorSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl OperatorSocket {
    /// Makes the socket of a writer in a data folder, and removes those of gateways that have died.
    ///
    /// # Errors
    /// Those of the file system, for example where it has no sockets.
    pub(crate) async fn bind(folder: &Path, writer: &str) -> io::Result<Self> {
        remove_dead(folder).await;
        let name = name_of(writer);
        let socket = UnixSocket::new_stream()?;
        // The file gets the mode of the socket, as far as the umask allows it.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        socket.bind(SocketPath::of(folder, &name)?.path)?;
        let path = folder.join(name);
        match socket.listen(BACKLOG) {
            Ok(listener) => Ok(Self { listener, path }),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Serves decisions and definitions until this future is dropped.
    pub(crate) async fn serve(self, proxy: ToolProxy, catalogue: Arc<Catalogue>) {
        operator_socket::serve(&self.listener, proxy, catalogue).await;
    }
}

impl Drop for OperatorSocket {
    fn drop(&mut self) {
        // One that stays is removed by the next gateway.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the sockets of dead gateways.
async fn remove_dead(folder: &Path) {
    for name in names_in(folder) {
        let path = folder.join(&name);
        // Another gateway may be between making its socket and listening at it.
        let is_young = std::fs::symlink_metadata(&path)
            .and_then(|file| file.modified())
            .is_ok_and(|made| made.elapsed().is_ok_and(|age| age < YOUNG));
        if is_young {
            continue;
        }
        let Ok(socket_path) = SocketPath::of(folder, &name) else { continue };
        // It never waits: where too many connections wait already, it fails with another error.
        let refused = UnixStream::connect(&socket_path.path).await.err();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Asks the gateways of a data folder, the last one started first, to decide as the operator.
pub(crate) async fn decide(folder: &Path, id: &str, grants: bool, reason: Option<&str>) -> Answer {
    let asking = ask_each(folder, id, grants, reason);
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or(Answer::Unknown)
}

async fn ask_each(folder: &Path, id: &str, grants: bool, reason: Option<&str>) -> Answer {
    let mut is_unknown = false;
    for name in names_in(folder) {
        let Some(stream) = connect(folder, &name).await else { continue };
        match operator_socket::decide(stream, id, grants, reason).await {
            Answer::Unknown => is_unknown = true,
            // If an earlier gateway may have decided, a refusal proves nothing.
            Answer::Refused(code, reason) if !is_unknown => return Answer::Refused(code, reason),
            Answer::Decided(approval) => return Answer::Decided(approval),
            Answer::Refused(..) | Answer::None => (),
        }
    }
    if is_unknown { Answer::Unknown } else { Answer::None }
}

/// Asks the gateways of a data folder, the last one started first, for the definitions that their servers list.
pub(crate) async fn definitions(folder: &Path) -> Vec<LockFile> {
    let mut found = Vec::new();
    let asking = async {
        for name in names_in(folder) {
            let Some(stream) = connect(folder, &name).await else { continue };
            // A gateway of a version before has no such path.
            let Some(text) = operator_socket::definitions(stream).await else { continue };
            found.extend(LockFile::parse(&text));
        }
    };
    let _ = tokio::time::timeout(PATIENCE, asking).await;
    found
}

/// Connects to a gateway of the owner of the data folder, if one runs at this socket.
async fn connect(folder: &Path, name: &str) -> Option<UnixStream> {
    let socket_path = SocketPath::of(folder, name).ok()?;
    let stream = UnixStream::connect(&socket_path.path).await.ok()?;
    is_of_owner(&stream, folder).then_some(stream)
}

/// Whether the program at the other end runs as the owner of the data folder, or as the own user. Another one
/// could claim that it has decided.
fn is_of_owner(stream: &UnixStream, folder: &Path) -> bool {
    let (Ok(peer), Ok(folder)) = (stream.peer_cred(), folder.metadata()) else { return false };
    peer.uid() == folder.uid() || peer.uid() == rustix::process::geteuid().as_raw()
}

/// Returns the name of a writer's socket in the data folder.
fn name_of(writer: &str) -> String {
    format!("gateway-{writer}.sock")
}

/// Returns the names of the sockets in a data folder, the newest first, also those of gateways that have died.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // A link could lead to the socket of another program.
    let is_socket = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
    let mut names: Vec<String> = entries
        .filter(is_socket)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("gateway-") && name.ends_with(".sock"))
        .collect();
    // They have the time in which the gateway began (UUIDv7, RFC 9562).
    names.sort_unstable_by(|a, b| b.cmp(a));
    names.truncate(SOCKETS_MAX);
    names
}

/// The path of a socket that fits into a socket's address, however long its folder's path is.
struct SocketPath {
    path: PathBuf,
    /// Keeps the descriptor open that the path leads through.
    _folder: Option<File>,
}

impl SocketPath {
    fn of(folder: &Path, name: &str) -> io::Result<Self> {
        let path = folder.join(name);
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self { path, _folder: None });
        }
        let folder = File::open(folder)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}
