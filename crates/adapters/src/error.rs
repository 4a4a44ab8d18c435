//! Defines the errors of the adapters. The code that turns them into outcomes decides which text an
//! agent sees, and which only operators see.
//!
//! Path: 7. Doc: execution.md#processes

#[cfg(feature = "net-guard")]
use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "mcp")]
use toolbooth_contracts::causes::with_causes;

/// Why a command was not run. It has had no effect.
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
    /// The missing primitive, the reason, and the remedy.
    pub what: String,
}

/// Why a handler has no worker.
#[cfg(feature = "handlers")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// No runtime serves the domain.
    #[error("no `[runtimes.NAME]` serves the domain `{0}`")]
    Unserved(String),
    /// The name is not a valid domain.
    #[error("`{0}` is not a domain")]
    NoDomain(String),
    /// The handler file does not exist.
    #[error("the handler file `{0}` is not there")]
    NoFile(String),
    /// The handler file cannot be resolved.
    #[error("{0}")]
    Unreadable(#[source] std::io::Error),
    /// The gateway accepts no further calls.
    #[error("the gateway is ending")]
    Ending,
    /// The interpreter cannot be started.
    #[error("`{program}` cannot be started: {source}")]
    Unstarted {
        /// The interpreter.
        program: String,
        /// The cause.
        source: Box<StartError>,
    },
    /// The gateway has no pipes to the worker.
    #[error("the worker has no pipes")]
    NoPipes,
    /// The worker ended before it was ready.
    #[error("the worker did not start: {reason}\n{output}")]
    Ended {
        /// How it ended.
        reason: String,
        /// Its output.
        output: String,
    },
    /// The worker was not ready in time.
    #[error("the worker did not start in time\n{output}")]
    Late {
        /// Its output.
        output: String,
    },
    /// The first message of the worker is not valid JSON.
    #[error("the worker said no JSON: {0}")]
    NoJson(#[source] toolbooth_contracts::json::JsonFault),
    /// The interpreter cannot load the file.
    #[error("`{path}` cannot be loaded\n{output}")]
    Unloadable {
        /// The file.
        path: String,
        /// The output of the worker.
        output: String,
    },
}

/// Why a response to `initialize` cannot be used.
#[cfg(feature = "mcp")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("the server names no protocol version")]
    NoVersion,
    #[error("the server speaks version `{0}`, which is not known here")]
    Version(String),
}

/// Why there is no connection to an MCP server. The text may contain secrets that the server was
/// given.
#[cfg(feature = "mcp")]
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the gateway is shutting down")]
    Closing,
    #[error("no connection within {} ms{}", .0.as_millis(), .1)]
    Late(std::time::Duration, String),
    /// The server's greeting does not follow the protocol; with its output.
    #[error("{0}{1}")]
    Greeting(String, String),
    #[error("`{program}`: {source}")]
    Start { program: String, source: StartError },
    #[error(transparent)]
    Setting(#[from] SecretError),
    #[error("{0}")]
    HeaderName(#[source] http::header::InvalidHeaderName),
    #[error("`{0}` is the gateway itself; take the server out of the configuration")]
    Door(std::net::SocketAddr),
    #[error("header `{0}` is the protocol's own")]
    ReservedHeader(http::HeaderName),
    #[error("the value of header `{0}` is not valid")]
    HeaderValue(http::HeaderName),
    #[error("{}", with_causes(.0))]
    Client(#[source] reqwest::Error),
}

/// A [`ConnectError`] as text without secrets, for all callers that wait for the connection.
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

/// Why a document was not posted.
#[cfg(feature = "webhook")]
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The signing key has no bytes, or is not in base64 after `whsec_`.
    #[error("the signing key is empty, or not base64 after `whsec_`")]
    Key,
    /// There is no answer.
    #[error("the URL does not answer")]
    Client(#[source] reqwest::Error),
    /// The answer is no success.
    #[error("the URL answers with status {0}")]
    Status(u16),
}

/// Why a setting cannot be resolved. Never contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{location}` cannot be used: {reason}")]
pub struct SecretError {
    /// The reference.
    pub location: String,
    /// The reason.
    pub reason: String,
}

/// Why a secret cannot be read from its location. Never contains a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretFault {
    /// Reading the file, or the thread that reads the key ring, failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is a folder, a pipe, or a device.
    #[error("it is not an ordinary file")]
    NotOrdinary,
    /// The mode of the file allows others to read it.
    #[error("others can read the file; make its mode 0600")]
    ReadByOthers,
    /// The file belongs to another user.
    #[error("the file belongs to user {uid}; it must be this user's ({own}) or root's")]
    OtherOwner {
        /// The owner of the file.
        uid: u32,
        /// The user of this process.
        own: u32,
    },
    /// The build has no key ring.
    #[error("this build has no key ring (feature `keyring`); use `env:` or `file:`")]
    NoKeyring,
    /// The key ring did not return the secret. The library's message names the searched entry,
    /// never the found value.
    #[error("{0}")]
    Keyring(String),
    /// The key ring waits for the user, or does not respond.
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
    whose(path, secret)
)]
pub struct LeadsToSecret {
    /// The kind of the path: its folder, an argument, a path of its profile.
    pub what: &'static str,
    /// The path.
    pub path: std::path::PathBuf,
    /// The secret place that contains the path or is the path.
    pub secret: std::path::PathBuf,
}

#[cfg(feature = "process")]
fn whose(path: &std::path::Path, secret: &std::path::Path) -> String {
    match path == secret {
        true => String::new(),
        false => format!(" lies in `{}`, which", secret.display()),
    }
}

/// Why a template of a command or of a request cannot be parsed.
#[cfg(any(feature = "command", feature = "endpoint"))]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A brace does not belong to a placeholder.
    #[error("`{0}` has a brace that stands alone; `{{{{` and `}}}}` are braces")]
    LoneBrace(String),
    /// A placeholder has no name.
    #[error("`{0}` has a placeholder without a name")]
    NamelessPlaceholder(String),
    /// A command line has no words.
    #[error("it names no program")]
    NoProgram,
    /// The program of a command line is a placeholder.
    #[error("the program must not come from an argument")]
    ProgramFromArgument,
    /// A text cannot be split into POSIX words.
    #[cfg(feature = "command")]
    #[error(transparent)]
    Words(#[from] shell_words::ParseError),
    /// A method is not an HTTP method.
    #[error("`{0}` is no method")]
    Method(String),
    /// A URL begins with a placeholder.
    #[error("the URL must begin with its host")]
    HostFirst,
    /// The scheme of a URL is not `http` or `https`.
    #[error("the URL must begin with `https://` or `http://`")]
    Scheme,
    /// A URL has no host.
    #[error("the URL names no host")]
    NoHost,
    /// A placeholder for an optional argument is in a URL.
    #[error("an argument that may be missing cannot be part of the URL; say it in `query`")]
    OptionalInUrl,
    /// A placeholder is in the host of a URL.
    #[error("an argument must not be part of the URL's host; end the host with `/`")]
    PlaceholderInHost,
}

/// Why arguments do not fit the target of a tool. Agents see the sentences too, so they name
/// arguments but contain no values.
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
    /// An argument cannot be written as text.
    #[error("`{0}` is no text, number or truth value")]
    NoText(String),
    /// An argument cannot be written as a parameter.
    #[error("`{0}` cannot be written as a parameter")]
    NoParameter(String),
    /// A list has too many items.
    #[error("`{0}` has too many items")]
    TooMany(String),
    /// The arguments are longer than a command line can be.
    #[error(
        "the arguments are too long for a command line; the command can read them from standard input"
    )]
    TooLong,
    /// An argument contains a NUL.
    #[error("`{0}` holds a NUL, which no command line can")]
    Nul(String),
    /// The command would read an argument as an option.
    #[error("`{0}` begins with `-`, which the command would read as an option")]
    AsOption(String),
    /// The command would read the tool's name as an option.
    #[error("the tool's name would be read as an option")]
    NameAsOption,
    /// An argument cannot be a path segment.
    #[error("`{0}` is not a segment of a path")]
    NoSegment(String),
    /// A part of the operation's path has no declared parameter.
    #[error("the document has no parameter for a part of the operation's path")]
    UndeclaredPart,
    /// The filled template is not a URL.
    #[cfg(feature = "endpoint")]
    #[error("the URL is not valid: {0}")]
    Url(#[from] url::ParseError),
    /// A text of a body is not a valid template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Why an OpenAPI document cannot be used.
#[cfg(feature = "endpoint")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenApiError {
    /// It is not an OpenAPI document of version 3.
    #[error("it is not an OpenAPI document of version 3 (member `openapi`)")]
    Version,
    /// It contains no URL of a server.
    #[error("the document names no server by a whole URL; say `url` beside `openapi`")]
    NoServer,
    /// A variable of a server has no default.
    #[error("a variable of the server `{0}` has no default; say `url` beside `openapi`")]
    ServerVariable(String),
    /// A path does not begin with `/`, so that it could change the host.
    #[error("the path `{0}` does not begin with `/`")]
    Path(String),
    /// It has no paths.
    #[error("the document has no `paths`")]
    NoPaths,
    /// A method is not an HTTP method.
    #[error("`{0}` is no method")]
    Method(String),
}

/// Why a redirect is not followed (RFC 9110, 15.4).
#[cfg(feature = "endpoint")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// It has no `location`.
    #[error("status {0} without a `location`")]
    NoLocation(http::StatusCode),
    /// Its `location` is not a URL.
    #[error("the redirect names no URL")]
    NoUrl(#[source] url::ParseError),
    /// It leads to a scheme other than HTTP.
    #[error("the redirect leads to `{0}:`")]
    Scheme(String),
    /// It leads from `https` to `http`.
    #[error("the redirect leads from https to http")]
    Downgrade,
    /// It would send the arguments to another origin.
    #[error("the redirect would send the arguments to another origin")]
    OtherOrigin,
}

/// Why an address cannot be reached.
#[cfg(feature = "net-guard")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The gateway itself listens there.
    #[error("`{0}` is where this gateway listens, which no tool of it reaches")]
    Door(SocketAddr),
    /// Endpoints cannot reach addresses of this kind.
    #[error("`{address}` is {what}, which is not reached from here")]
    Kind {
        /// The address.
        address: IpAddr,
        /// The kind.
        what: &'static str,
    },
    /// Contained programs cannot reach addresses of this kind.
    #[error("`{address}` is {what}; `[sandbox] allow_addresses` lets it pass")]
    NotAllowed {
        /// The address.
        address: IpAddr,
        /// The kind.
        what: &'static str,
    },
    /// A name resolves to an address that cannot be reached.
    #[error("`{name}`: {reason}")]
    OfName {
        /// The name.
        name: String,
        /// The reason for one of its addresses.
        #[source]
        reason: Box<Self>,
    },
    /// A URL has no host.
    #[error("the URL names no host")]
    NoHost,
    /// The gateway itself listens there. This text is for the contained program.
    #[error("the gateway itself listens there")]
    OwnDoor,
    /// No profile names this host. Contains the host in the form that a profile uses.
    #[error(
        "it is not among the hosts that this tool may reach; `net = {{ hosts = [\"{0}\"] }}` in its \
         sandbox profile names it"
    )]
    Unlisted(String),
    /// A host that a contained program named cannot be reached.
    #[error("toolbooth refused `{host}:{port}`: {reason}")]
    OfProgram {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The reason.
        #[source]
        reason: Box<Self>,
    },
}

/// Why a list of hosts or of addresses cannot be read.
#[cfg(feature = "process")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkRuleError {
    /// An entry is not a host with a port.
    #[error("`{0}` is no host; hosts are written as `api.example.com:443`")]
    NoHost(String),
    /// An entry for every public host has no port.
    #[error("`{0}` names no port; write one, such as `*:80`")]
    NoPort(String),
    /// An entry is not an address or a range.
    #[error("`{}` is neither an address nor a range", .0.escape_debug())]
    NoAddress(String),
}

#[cfg(feature = "net-guard")]
impl AddressError {
    /// Returns the same error for an address of a name.
    pub(crate) fn of_name(self, name: &str) -> Self {
        Self::OfName { name: name.to_owned(), reason: Box::new(self) }
    }
}

/// Why a name cannot be used.
#[cfg(feature = "net-guard")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// It has an address that requests cannot reach.
    #[error(transparent)]
    Refused(AddressError),
    /// It has no address, or none was found in time.
    #[error("{0}")]
    Unresolved(String),
}

/// The error of a function. The agent sees its text as the tool's own error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FunctionError(pub String);

impl From<String> for FunctionError {
    fn from(sentence: String) -> Self {
        Self(sentence)
    }
}

impl From<&str> for FunctionError {
    fn from(sentence: &str) -> Self {
        Self(sentence.to_owned())
    }
}
