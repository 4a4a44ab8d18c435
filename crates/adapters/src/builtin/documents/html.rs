//! Reads the text of HTML as a person sees it: blocks on lines of their own, white space as one blank, `pre` as it is.

use ego_tree::NodeRef;
use ego_tree::iter::Edge;
use scraper::Node;

use super::{Parsed, heading};

/// Elements whose text is not shown.
const SKIPPED: [&str; 6] = ["script", "style", "noscript", "template", "head", "svg"];
/// Elements on lines of their own.
const BLOCKS: [&str; 26] = [
    "p",
    "div",
    "br",
    "li",
    "ul",
    "ol",
    "dl",
    "table",
    "tr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "section",
    "article",
    "header",
    "footer",
    "main",
    "nav",
    "pre",
    "blockquote",
    "dt",
    "dd",
    "hr",
];
/// Elements beside each other in one line.
const CELLS: [&str; 2] = ["td", "th"];

/// Text that grows by pieces.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Adds a piece in which runs of white space are one blank.
    fn add(&mut self, piece: &str) {
        for character in piece.chars() {
            match character.is_whitespace() {
                true => self.blank(),
                false => self.0.push(character),
            }
        }
    }

    fn blank(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with(['\n', ' ']) {
            self.0.push(' ');
        }
    }

    fn line(&mut self) {
        if self.0.ends_with(' ') {
            self.0.pop();
        }
        if !self.0.ends_with('\n') {
            self.0.push('\n');
        }
    }
}

pub(super) fn parsed(source: &str) -> Parsed {
    let document = scraper::Html::parse_document(source);
    let (mut text, mut skipped, mut verbatim) = (Text::default(), 0_usize, 0_usize);
    let (mut headings, mut title) = (Vec::new(), None);
    for edge in document.tree.root().traverse() {
        let (node, opens) = match edge {
            Edge::Open(node) => (node, true),
            Edge::Close(node) => (node, false),
        };
        match node.value() {
            Node::Element(element) => {
                let name = element.name();
                if name == "title" && opens && title.is_none() && !is_within(node, "svg") {
                    title = Some(words(node));
                }
                if let Some(level) = level(name).filter(|_| opens && skipped == 0) {
                    headings.push(heading(level, &words(node)));
                }
                let count = |count: usize| if opens { count + 1 } else { count.saturating_sub(1) };
                if SKIPPED.contains(&name) {
                    skipped = count(skipped);
                }
                if name == "pre" {
                    verbatim = count(verbatim);
                }
                if BLOCKS.contains(&name) {
                    text.line();
                } else if CELLS.contains(&name) {
                    text.blank();
                }
            }
            Node::Text(piece) if opens && skipped == 0 => match verbatim {
                0 => text.add(piece),
                _ => text.0.push_str(piece),
            },
            _ => (),
        }
    }
    let parsed = Parsed { headings, ..Parsed::text(text.0.trim().to_owned()) };
    match title.filter(|title| !title.is_empty()) {
        Some(title) => parsed.with("title", title),
        None => parsed,
    }
}

/// Returns the level of a heading.
fn level(name: &str) -> Option<usize> {
    let level = name.strip_prefix('h')?.parse().ok()?;
    (1..=6).contains(&level).then_some(level)
}

/// Whether an element of this name is above a node.
fn is_within(node: NodeRef<'_, Node>, name: &str) -> bool {
    let mut above = node.ancestors().filter_map(|above| above.value().as_element());
    above.any(|element| element.name() == name)
}

/// Returns the text beneath a node in one line; breaks of lines separate words.
fn words(node: NodeRef<'_, Node>) -> String {
    let mut text = Text::default();
    for below in node.descendants() {
        match below.value() {
            Node::Text(piece) => text.add(piece),
            Node::Element(element) if element.name() == "br" => text.blank(),
            _ => (),
        }
    }
    text.0.trim().to_owned()
}
