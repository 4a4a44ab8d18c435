//! Reads the tables of error codes and of event kinds in the sources of `contracts`.

/// The folder of the tables.
pub const FOLDER: &str = "crates/contracts/src/";

/// The files of the tables, each with the type of its rows.
pub const TABLES: [(&str, &str); 2] =
    [("code.rs", "ErrorCode"), ("event_kind.rs", "AuditEventKind")];

/// The file that lists the reserved rows.
pub const RESERVED: &str = "reserved.rs";

/// A row of a table: `    Name "written" …`, after its comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'t> {
    pub name: &'t str,
    pub written: &'t str,
    pub meaning: String,
}

/// Returns the rows of the table in a file.
pub fn rows(text: &str) -> Vec<Row<'_>> {
    let (mut rows, mut meaning) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("    /// ") {
            meaning.push(comment);
            continue;
        }
        let comment = std::mem::take(&mut meaning);
        let Some((name, rest)) = line.strip_prefix("    ").and_then(|line| line.split_once(' '))
        else {
            continue;
        };
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase());
        let written = rest.strip_prefix('"').and_then(|rest| rest.split('"').next());
        if let (true, Some(written)) = (is_name, written) {
            rows.push(Row { name, written, meaning: comment.join(" ") });
        }
    }
    rows
}

/// Whether a text contains a whole path such as `Kind::Name`.
pub fn names_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let after = text.get(at + path.len()..).and_then(|rest| rest.chars().next());
        let before = text.get(..at).and_then(|head| head.chars().next_back());
        let part = |c: char| c.is_alphanumeric() || c == '_';
        !after.is_some_and(part) && !before.is_some_and(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read() {
        let text =
            "    /// A tool\n    /// ran.\n    ToolExecuted \"TOOL_EXECUTED\";\n    fn x() {}\n";
        let row =
            Row { name: "ToolExecuted", written: "TOOL_EXECUTED", meaning: "A tool ran.".into() };
        assert_eq!(rows(text), [row]);
    }
}
