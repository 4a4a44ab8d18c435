//! The errors of the ways to reach tools. What an agent may see of them, and what only operators, is
//! decided where they become outcomes.
//!
//! Path: 7. Doc: execution.md#processes

#[cfg(feature = "net-guard")]
use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "mcp")]
use toolbooth_contracts::causes::with_causes;

/// Why a command was not run: nothing has happened.
#[cfg(feature = "process")]
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The sandbox that is required is not available.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The command cannot be started.
    #[error("it cannot be started: {0}")]
    Io(#[from] std::io::Error),
    /// No launcher received the whole order.
    #[error("{0}")]
    Launcher(std::io::Error),
}

#[cfg(feature = "process")]
impl From<toolbooth_launcher::StartError> for StartError {
    fn from(error: toolbooth_launcher::StartError) -> Self {
        match error {
            toolbooth_launcher::StartError::Io(error) => Self::Io(error),
            toolbooth_launcher::StartError::Launcher(error) => Self::Launcher(error),
        }
    }
}

/// A primitive that a required profile needs is missing.
#[cfg(feature = "process")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox is required, and {what}")]
pub struct Unavailable {
    /// What is missing, why, and what helps.
    pub what: String,
}

/// Why no worker serves a handler.
#[cfg(feature = "handlers")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// No runtime serves the domain.
    #[error("no `[runtimes.NAME]` serves the domain `{0}`")]
    Unserved(String),
    /// A name cannot be a domain.
    #[error("`{0}` is no domain")]
    NoDomain(String),
    /// There is no file of handlers.
    #[error("the handler file `{0}` is not there")]
    NoFile(String),
    /// The file cannot be found.
    #[error("{0}")]
    Unreadable(#[source] std::io::Error),
    /// The gateway takes no more calls.
    #[error("the gateway is ending")]
    Ending,
    /// The interpreter cannot be started.
    #[error("`{program}` cannot be started: {source}")]
    Unstarted {
        /// The interpreter.
        program: String,
        /// Why.
        source: Box<StartError>,
    },
    /// The worker cannot be spoken to.
    #[error("the worker has no pipes")]
    NoPipes,
    /// The worker ended before it was ready.
    #[error("the worker did not start: {reason}\n{output}")]
    Ended {
        /// How.
        reason: String,
        /// What it printed.
        output: String,
    },
    /// The worker was not ready in time.
    #[error("the worker did not start in time\n{output}")]
    Late {
        /// What it printed.
        output: String,
    },
    /// The worker said something else than that it is ready.
    #[error("the worker said no JSON: {0}")]
    NoJson(#[source] toolbooth_contracts::json::JsonFault),
    /// The interpreter cannot load the file.
    #[error("`{path}` cannot be loaded\n{output}")]
    Unloadable {
        /// The file.
        path: String,
        /// What was printed.
        output: String,
    },
}

/// Why an answer to `initialize` is none that can be followed.
#[cfg(feature = "mcp")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("the server names no protocol version")]
    NoVersion,
    #[error("the server speaks version `{0}`, which is not known here")]
    Version(String),
}

/// Why there is no connection to a server of tools; its text may hold what the server was given in
/// confidence.
#[cfg(feature = "mcp")]
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the gateway is shutting down")]
    Closing,
    #[error("no connection within {} ms{}", .0.as_millis(), .1)]
    Late(std::time::Duration, String),
    /// The server does not greet as the protocol has it; with what it printed.
    #[error("{0}{1}")]
    Greeting(String, String),
    #[error("`{program}`: {source}")]
    Start { program: String, source: StartError },
    #[error(transparent)]
    Setting(#[from] SecretError),
    #[error("{0}")]
    HeaderName(#[source] http::header::InvalidHeaderName),
    #[error("header `{0}` is the protocol's own")]
    ReservedHeader(http::HeaderName),
    #[error("the value of header `{0}` is not valid")]
    HeaderValue(http::HeaderName),
    #[error("{}", with_causes(.0))]
    Client(#[source] reqwest::Error),
}

/// As [`ConnectError`], in words without secrets, for all who wait for the connection.
#[cfg(feature = "mcp")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unconnected(String);

#[cfg(feature = "mcp")]
impl Unconnected {
    pub(crate) fn of(error: &ConnectError, conceal: impl Fn(&str) -> String) -> Self {
        Self(conceal(&error.to_string()))
    }
}

/// Why a setting cannot be resolved; never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{location}` cannot be used: {reason}")]
pub struct SecretError {
    /// The reference.
    pub location: String,
    /// Why.
    pub reason: String,
}

/// Why a secret cannot be read where it is kept; never a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretFault {
    /// The file, or the thread that asks the key ring.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is a folder, a pipe, or a device.
    #[error("it is no ordinary file")]
    NotOrdinary,
    /// The mode of the file lets others read it.
    #[error("others can read the file; make its mode 0600")]
    ReadByOthers,
    /// The file is somebody else's.
    #[error("the file belongs to user {uid}; it must be this user's ({own}) or root's")]
    OtherOwner {
        /// Whose it is.
        uid: u32,
        /// Who this is.
        own: u32,
    },
    /// The build has no key ring.
    #[error("this build has no key ring (feature `keyring`); use `env:` or `file:`")]
    NoKeyring,
    /// The key ring did not give it. The library's message names what was looked for, never what was
    /// found.
    #[error("{0}")]
    Keyring(String),
    /// The key ring asks somebody, or hangs.
    #[error("the key ring did not answer within {0} s")]
    KeyringLate(u64),
}

/// Why a contained program would be led to secrets.
#[cfg(feature = "process")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} `{}`{} holds secrets: a contained program is not given it; where it is meant, name it in \
     `fs.read` of its sandbox",
    path.display(),
    whose(path, place)
)]
pub struct LeadsToSecret {
    /// What leads there: its folder, an argument, a path of its profile.
    pub what: &'static str,
    /// The path.
    pub path: std::path::PathBuf,
    /// The secret place that the path is, or lies in.
    pub place: std::path::PathBuf,
}

#[cfg(feature = "process")]
fn whose(path: &std::path::Path, place: &std::path::Path) -> String {
    match path == place {
        true => String::new(),
        false => format!(" lies in `{}`, which", place.display()),
    }
}

/// Why a template of a command or of a request cannot be read.
#[cfg(any(feature = "command", feature = "endpoint"))]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A brace begins or ends no place.
    #[error("`{0}` has a brace that stands alone; `{{{{` and `}}}}` are braces")]
    LoneBrace(String),
    /// A place has no name.
    #[error("`{0}` has a place without a name")]
    NamelessPlace(String),
    /// A command line has no words.
    #[error("it names no program")]
    NoProgram,
    /// The program of a command line is a place.
    #[error("the program must not come from an argument")]
    ProgramFromArgument,
    /// A text cannot be split into POSIX words.
    #[cfg(feature = "command")]
    #[error(transparent)]
    Words(#[from] shell_words::ParseError),
    /// A method is none of HTTP.
    #[error("`{0}` is no method")]
    Method(String),
    /// A URL begins with a place.
    #[error("the URL must begin with its host")]
    HostFirst,
    /// A URL is none of HTTP.
    #[error("the URL must begin with `https://` or `http://`")]
    Scheme,
    /// A URL has no host.
    #[error("the URL names no host")]
    NoHost,
    /// A place in a URL may be missing.
    #[error("an argument that may be missing cannot be part of the URL; say it in `query`")]
    OptionalInUrl,
    /// A place is in the host of a URL.
    #[error("an argument must not be part of the URL's host; end the host with `/`")]
    PlaceInHost,
}

/// Why arguments do not fit what a tool's target asks for. The sentences are for agents too: they name
/// arguments, and repeat no value.
#[cfg(any(feature = "command", feature = "endpoint"))]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// An argument is missing.
    #[error("the tool's target needs the argument `{0}`")]
    Missing(String),
    /// An argument of an operation is missing.
    #[error("the operation needs the argument `{0}`")]
    MissingInOperation(String),
    /// An argument has no text.
    #[error("`{0}` is no text, number or truth value")]
    NoText(String),
    /// An argument cannot be written as a parameter.
    #[error("`{0}` holds what no parameter can say")]
    NoParameter(String),
    /// A list has too many items.
    #[error("`{0}` has too many items")]
    TooMany(String),
    /// An argument holds a NUL.
    #[error("`{0}` holds a NUL, which no command line can")]
    Nul(String),
    /// An argument would be an option.
    #[error("`{0}` begins with `-`, which the command would read as an option")]
    AsOption(String),
    /// The tool's name would be an option.
    #[error("the tool's name would be read as an option")]
    NameAsOption,
    /// An argument cannot be a segment of a path.
    #[error("`{0}` is no segment of a path")]
    NoSegment(String),
    /// The path of an operation has a part that no parameter stands for.
    #[error("the document has no parameter for a part of the operation's path")]
    UndeclaredPart,
    /// What came out is no URL.
    #[cfg(feature = "endpoint")]
    #[error("the URL is none: {0}")]
    Url(#[from] url::ParseError),
    /// A text of a body is no template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Why a document is no OpenAPI document that can be used.
#[cfg(feature = "endpoint")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenApiError {
    /// It is of another version, or none.
    #[error("it is no OpenAPI document of version 3 (member `openapi`)")]
    Version,
    /// It says nowhere where the service is.
    #[error("the document names no server by a whole URL; say `url` beside `openapi`")]
    NoServer,
    /// It has no paths.
    #[error("the document has no `paths`")]
    NoPaths,
    /// A method is none of HTTP.
    #[error("`{0}` is no method")]
    Method(String),
}

/// Why a redirect is not followed (RFC 9110, 15.4).
#[cfg(feature = "endpoint")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// It says not where to.
    #[error("status {0} without a `location`")]
    NoLocation(http::StatusCode),
    /// It leads to no URL.
    #[error("the redirect names no URL")]
    NoUrl(#[source] url::ParseError),
    /// It leads to another protocol.
    #[error("the redirect leads to `{0}:`")]
    Scheme(String),
    /// It leads away from TLS.
    #[error("the redirect leads from https to http")]
    Downgrade,
    /// The arguments would go to another origin.
    #[error("the redirect would send the arguments to another origin")]
    OtherOrigin,
}

/// Why an address is not reached.
#[cfg(feature = "net-guard")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The gateway itself listens there.
    #[error("`{0}` is where this gateway listens, which no tool of it reaches")]
    Door(SocketAddr),
    /// It is of a kind that endpoints do not reach.
    #[error("`{address}` is {what}, which is not reached from here")]
    Kind {
        /// The address.
        address: IpAddr,
        /// What it is.
        what: &'static str,
    },
    /// It is of a kind that contained programs do not reach.
    #[error("`{address}` is {what}; `[sandbox] allow_addresses` lets it pass")]
    NotAllowed {
        /// The address.
        address: IpAddr,
        /// What it is.
        what: &'static str,
    },
    /// A name leads there.
    #[error("`{name}`: {reason}")]
    OfName {
        /// The name.
        name: String,
        /// What is wrong with one of its addresses.
        #[source]
        reason: Box<Self>,
    },
    /// A URL has no host.
    #[error("the URL names no host")]
    NoHost,
    /// The gateway itself listens there, as a contained program is told.
    #[error("the gateway itself listens there")]
    OwnDoor,
    /// No profile names the host, as it would be named.
    #[error(
        "it is not among the hosts that this tool may reach; `net = {{ hosts = [\"{0}\"] }}` in its \
         sandbox profile names it"
    )]
    Unlisted(String),
    /// A host that a contained program names is not reached.
    #[error("toolbooth refused `{host}:{port}`: {reason}")]
    OfProgram {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        #[source]
        reason: Box<Self>,
    },
}

/// Why a list of hosts or of addresses cannot be read.
#[cfg(feature = "process")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkRuleError {
    /// An entry is no host with a port.
    #[error("`{0}` is no host; hosts are written as `api.example.com:443`")]
    NoHost(String),
    /// An entry names every public host, and no port.
    #[error("`{0}` names no port; write one, such as `*:80`")]
    NoPort(String),
    /// An entry is no address and no range.
    #[error("`{}` is no address and no range", .0.escape_debug())]
    NoAddress(String),
}

#[cfg(feature = "net-guard")]
impl AddressError {
    /// The same of an address that a name leads to.
    pub(crate) fn of_name(self, name: &str) -> Self {
        Self::OfName { name: name.to_owned(), reason: Box::new(self) }
    }
}
