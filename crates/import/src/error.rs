//! Errors of importing.

/// The reason why a client's file or an OpenAPI document cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A client's file is not TOML.
    #[error("the file is no TOML: {0}")]
    NoToml(String),
    /// A client's file is not JSON with comments.
    #[error("the file is no JSON")]
    NoJson(#[source] jsonc_parser::errors::ParseError),
    /// A client's file is not a JSON object.
    #[error("the client's file holds no object")]
    NoObject,
    /// A member of a client's file is not an object.
    #[error("`{0}` is no object")]
    NoMember(&'static str),
    /// The configuration that is extended is not TOML.
    #[error("the configuration is no TOML")]
    NoConfiguration,
    /// A member of the configuration that is extended is not a section.
    #[error("`{0}` is not a section")]
    NoSection(&'static str),
    /// An OpenAPI document is not JSON.
    #[error("the file is no JSON: {message}")]
    JsonAt {
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// The fault at that position.
        message: String,
    },
    /// An OpenAPI document is not UTF-8.
    #[error("the file is not UTF-8")]
    NoUtf8,
    /// An OpenAPI document is not YAML.
    #[error("the file is not valid YAML: {0}")]
    NoYaml(String),
    /// An OpenAPI document is of another version, or has none.
    #[error("it is not an OpenAPI document of version 3 (member `openapi`)")]
    OpenApiVersion,
    /// An OpenAPI document has no paths.
    #[error("the document has no `paths`")]
    NoPaths,
}

/// The reason why a message of a client is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// It is not JSON that both sides read in the same way.
    #[error("the message is no JSON: {0}")]
    NoJson(String),
    /// It is not an object.
    #[error("the message is no object")]
    NoObject,
    /// It is about another event.
    #[error("the message is about the event `{found}`; this hook is for `{expected}`")]
    OtherEvent {
        /// The text of the message.
        found: String,
        /// The event of the client's before-tool hooks.
        expected: &'static str,
    },
    /// A member is missing, or has another type.
    #[error("`{0}` of the message is missing, or of another type")]
    NoMember(&'static str),
}
