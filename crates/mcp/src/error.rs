//! The errors of this crate.

/// Why the annotations of an input schema cannot be followed (MCP 2026-07-28, SEP-2243).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// One stands where no property is reached by `properties` alone.
    #[error("`x-mcp-header` stands where no property is reached by `properties` alone")]
    OffChain,
    /// One is no text.
    #[error("`x-mcp-header` of property `{0}` is no text")]
    NoText(String),
    /// One is no name of a header.
    #[error("`x-mcp-header` of property `{0}` is no name of a header")]
    NoName(String),
    /// Two properties have the same.
    #[error("`x-mcp-header` of property `{0}` is another property's too")]
    Taken(String),
    /// There are more than a request can have headers, or one lies too deep.
    #[error(
        "`x-mcp-header` stands on more than {headers} properties, or deeper than {levels} levels"
    )]
    TooMany {
        /// The most headers.
        headers: usize,
        /// The most levels.
        levels: usize,
    },
    /// Its property is no string, integer or boolean.
    #[error("`x-mcp-header` of property `{0}`, which is no string, integer or boolean")]
    Kind(String),
}
