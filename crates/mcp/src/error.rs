//! The errors of this crate.

/// An invalid `x-mcp-header` annotation of an input schema (MCP 2026-07-28, SEP-2243).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// An annotation is not on a property that is reached by `properties` alone.
    #[error("`x-mcp-header` stands where no property is reached by `properties` alone")]
    OffChain,
    /// An annotation is not text.
    #[error("`x-mcp-header` of property `{0}` is no text")]
    NoText(String),
    /// An annotation is not a header name.
    #[error("`x-mcp-header` of property `{0}` is no name of a header")]
    NoName(String),
    /// Two properties have the same annotation.
    #[error("`x-mcp-header` of property `{0}` is another property's too")]
    Taken(String),
    /// There are more annotations than a request can have headers, or one is too deep.
    #[error(
        "`x-mcp-header` stands on more than {headers} properties, or deeper than {levels} levels"
    )]
    TooMany {
        /// Maximum number of headers.
        headers: usize,
        /// Maximum number of levels.
        levels: usize,
    },
    /// The annotated property is not a string, integer or boolean.
    #[error("`x-mcp-header` of property `{0}`, which is no string, integer or boolean")]
    Kind(String),
}
