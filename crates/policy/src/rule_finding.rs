//! Findings about rules and their cases: code, location, message and correction.
//!
//! Doc: policy.md#findings

use std::fmt;

/// A location in a file of rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The name of the file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Location {
    /// Returns the location of a byte in a text.
    #[must_use]
    pub fn of(file: &str, text: &str, offset: usize) -> Self {
        let mut end = offset.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = text.get(..end).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { file: file.to_owned(), line, column }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The kind of a finding about a rule or a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RuleCode {
    /// The text is not in the Cedar language.
    Syntax,
    /// A rule has no `@id`, or the id of another rule, or an annotation that does not hold.
    Annotation,
    /// A rule does not fit the tools, callers and arguments that it names.
    Type,
    /// A rule names a caller or a group that cannot be, or a word that its attribute never has.
    ImpossibleName,
    /// A case is not written as specified.
    CaseSyntax,
    /// A case has another outcome than it states.
    Case,
    /// A rule names a tool, or a group of tools, that is not known yet (warning).
    UnboundRule,
    /// A window counts no known tool, or cannot sum the calls of one (warning).
    UnboundWindow,
    /// The tool of a case is not known yet (warning).
    UnboundCase,
    /// A permit depends on a claim of the agent (warning).
    ClaimedContext,
    /// A rule never applies (warning).
    ImpossibleRule,
    /// A permit asks for an approval, and another permits the same call without (warning).
    ApprovalBypassed,
    /// No rule permits anything (warning).
    NoPermit,
    /// Rules cannot read some arguments of a tool whose arguments they read (note).
    UnreadableArgument,
    /// A rule reads a number as a decimal, which not every number is (note).
    DecimalArgument,
}

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleSeverity {
    /// The set is refused.
    Error,
    /// The set is probably not what is meant.
    Warning,
    /// What to know about the rules.
    Note,
}

impl RuleSeverity {
    /// Returns the severity as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl RuleCode {
    /// Returns the code as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syntax => "invalid-rule",
            Self::Annotation => "invalid-annotation",
            Self::Type => "mistyped-rule",
            Self::ImpossibleName => "impossible-name",
            Self::CaseSyntax => "invalid-case",
            Self::Case => "failed-case",
            Self::UnboundRule => "unbound-rule",
            Self::UnboundWindow => "unbound-window",
            Self::UnboundCase => "unbound-case",
            Self::ClaimedContext => "claimed-context",
            Self::ImpossibleRule => "impossible-rule",
            Self::ApprovalBypassed => "approval-bypassed",
            Self::NoPermit => "no-permit",
            Self::UnreadableArgument => "unreadable-argument",
            Self::DecimalArgument => "decimal-argument",
        }
    }

    /// Returns how much such a finding matters.
    #[must_use]
    pub fn severity(self) -> RuleSeverity {
        match self {
            Self::Syntax
            | Self::Annotation
            | Self::Type
            | Self::ImpossibleName
            | Self::CaseSyntax
            | Self::Case => RuleSeverity::Error,
            Self::UnboundRule
            | Self::UnboundWindow
            | Self::UnboundCase
            | Self::ClaimedContext
            | Self::ImpossibleRule
            | Self::ApprovalBypassed
            | Self::NoPermit => RuleSeverity::Warning,
            Self::UnreadableArgument | Self::DecimalArgument => RuleSeverity::Note,
        }
    }

    /// Whether a set with such a finding is refused.
    #[must_use]
    pub fn is_error(self) -> bool {
        self.severity() == RuleSeverity::Error
    }
}

/// One finding about a rule or a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFinding {
    /// The code.
    pub code: RuleCode,
    /// The place.
    pub location: Location,
    /// The tool to which the finding is confined, if it is to one.
    pub tool: Option<String>,
    /// The finding, in one sentence.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl RuleFinding {
    /// Creates a finding about no single tool, without a correction.
    pub fn new(code: RuleCode, location: Location, message: impl Into<String>) -> Self {
        Self { code, location, tool: None, message: message.into(), hint: None }
    }

    /// Returns the finding about a tool.
    #[must_use]
    pub fn of_tool(self, tool: &str) -> Self {
        Self { tool: Some(tool.to_owned()), ..self }
    }

    /// Returns the finding with its correction.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for RuleFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}
