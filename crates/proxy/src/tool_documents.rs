//! The documents of tools in listings, written once for each set of tools of a world.
//!
//! Callers who see the same tools share them.
//!
//! Doc: front-doors.md#listings

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use toolbooth_contracts::Caller;

/// Maximum number of sets of tools with documents.
const SETS_MAX: usize = 32;
/// Bytes of documents above which those of the oldest sets are dropped.
const BYTES_MAX: usize = 64 << 20;
/// Maximum number of views, a caller at a door each, of which the set of tools is remembered.
const VIEWS_MAX: usize = 1_024;

/// How documents are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentForm {
    /// For clients that accept every output schema.
    Modern,
    /// For clients that accept output schemas of objects only.
    Legacy,
}

/// The documents of tools, in the order of their ids.
#[derive(Debug)]
pub struct ToolDocuments {
    /// The documents, with a comma between two of them.
    text: Bytes,
    /// The id of each tool, and where its document ends.
    tools: Vec<(Box<str>, usize)>,
}

impl ToolDocuments {
    /// Returns the documents of tools, which are given by their ids and sorted by them.
    pub(crate) fn new(documents: impl Iterator<Item = (Box<str>, String)>) -> Self {
        let (mut text, mut tools) = (String::new(), Vec::new());
        for (id, document) in documents {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&document);
            tools.push((id, text.len()));
        }
        Self { text: text.into(), tools }
    }

    /// Returns the documents after the id `after`, with commas between them: as many as have together at most
    /// `bytes_max` bytes, but one at least. If more follow, also returns the id to continue from.
    #[must_use]
    pub fn page(&self, after: Option<&str>, bytes_max: usize) -> (Bytes, Option<&str>) {
        let first = after.map_or(0, |after| self.tools.partition_point(|(id, _)| **id <= *after));
        let (before, rest) = self.tools.split_at(first);
        let begin = before.last().map_or(0, |(_, end)| end + 1);
        let fitting = rest.partition_point(|(_, end)| end - begin <= bytes_max);
        let Some((last, end)) = rest.get(fitting.saturating_sub(1)) else {
            return (Bytes::new(), None);
        };
        let more = fitting.max(1) < rest.len();
        (self.text.slice(begin..*end), more.then_some(&**last))
    }
}

/// The documents of one set of tools, in each form that was asked for.
#[derive(Debug, Default)]
struct Written([OnceLock<Arc<ToolDocuments>>; 2]);

impl Written {
    fn form(&self, form: DocumentForm) -> &OnceLock<Arc<ToolDocuments>> {
        let [modern, legacy] = &self.0;
        match form {
            DocumentForm::Modern => modern,
            DocumentForm::Legacy => legacy,
        }
    }

    fn bytes(&self) -> usize {
        self.0.iter().filter_map(OnceLock::get).map(|documents| documents.text.len()).sum()
    }
}

/// A set of tools of a world: a bit for each, in the order of their ids.
pub(crate) type ToolBits = Box<[u64]>;

#[derive(Debug, Default)]
struct Remembered {
    of_views: HashMap<(Caller, Option<Arc<str>>), Arc<Written>>,
    /// The oldest first.
    of_sets: VecDeque<(ToolBits, Arc<Written>)>,
}

impl Remembered {
    /// Returns the documents of a set of tools. If there are too many sets, those of the oldest are dropped.
    fn of_set(&mut self, tools: ToolBits) -> Arc<Written> {
        if let Some((_, known)) = self.of_sets.iter().find(|(own, _)| *own == tools) {
            return Arc::clone(known);
        }
        while self.of_sets.len() >= SETS_MAX {
            self.drop_set(0);
        }
        let written = Arc::<Written>::default();
        self.of_sets.push_back((tools, Arc::clone(&written)));
        written
    }

    /// Drops the documents of the oldest sets, except those of `kept`, until at most [`BYTES_MAX`] bytes are left.
    fn trim(&mut self, kept: &Arc<Written>) {
        while self.of_sets.iter().map(|(_, written)| written.bytes()).sum::<usize>() > BYTES_MAX {
            let oldest = self.of_sets.iter().position(|(_, own)| !Arc::ptr_eq(own, kept));
            let Some(oldest) = oldest else { break };
            self.drop_set(oldest);
        }
    }

    fn drop_set(&mut self, at: usize) {
        if let Some((_, dropped)) = self.of_sets.remove(at) {
            self.of_views.retain(|_, own| !Arc::ptr_eq(own, &dropped));
        }
    }
}

/// The documents of one world.
#[derive(Debug, Default)]
pub(crate) struct DocumentCache(Mutex<Remembered>);

impl DocumentCache {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the documents of the tools that a caller sees at a door. At the first use `tools` determines the tools,
    /// and `write` writes their documents in that form.
    pub(crate) fn of(
        &self,
        (caller, toolset): (&Caller, Option<&Arc<str>>),
        form: DocumentForm,
        tools: impl FnOnce() -> ToolBits,
        write: impl FnOnce() -> ToolDocuments,
    ) -> Arc<ToolDocuments> {
        let set = self.of_view(caller, toolset, tools);
        let mut is_new = false;
        let documents = set.form(form).get_or_init(|| {
            is_new = true;
            Arc::new(write())
        });
        if is_new {
            self.lock().trim(&set);
        }
        Arc::clone(documents)
    }

    fn of_view(
        &self,
        caller: &Caller,
        toolset: Option<&Arc<str>>,
        tools: impl FnOnce() -> ToolBits,
    ) -> Arc<Written> {
        let key = (caller.clone(), toolset.cloned());
        if let Some(known) = self.lock().of_views.get(&key) {
            return Arc::clone(known);
        }
        let tools = tools();
        let mut remembered = self.lock();
        let written = remembered.of_set(tools);
        if remembered.of_views.len() >= VIEWS_MAX {
            remembered.of_views.clear();
        }
        remembered.of_views.insert(key, Arc::clone(&written));
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(sizes: &[(&str, usize)]) -> ToolDocuments {
        ToolDocuments::new(sizes.iter().map(|(id, size)| ((*id).into(), id.repeat(*size))))
    }

    #[test]
    fn pages_hold_what_fits_and_one_document_at_least() {
        let own = documents(&[("a", 3), ("b", 3), ("c", 9), ("d", 1)]);
        let page = |after, most| {
            let (text, next) = own.page(after, most);
            (String::from_utf8(text.to_vec()).unwrap(), next.map(str::to_owned))
        };
        let of = |text: &str, next: Option<&str>| (text.to_owned(), next.map(str::to_owned));
        assert_eq!(page(None, 100), of("aaa,bbb,ccccccccc,d", None));
        assert_eq!(page(None, 7), of("aaa,bbb", Some("b")));
        assert_eq!(page(None, 6), of("aaa", Some("a")));
        assert_eq!(page(None, 0), of("aaa", Some("a")));
        assert_eq!(page(Some("b"), 5), of("ccccccccc", Some("c")), "it is too large for any page");
        assert_eq!(page(Some("c"), 5), of("d", None));
        // A tool that is gone continues at the next one.
        assert_eq!(page(Some("bb"), 11), of("ccccccccc,d", None));
        assert_eq!(page(Some("d"), 5), of("", None));
        assert_eq!(documents(&[]).page(None, 5), (Bytes::new(), None));
    }

    #[test]
    fn views_of_the_same_tools_share_their_documents() {
        let cache = DocumentCache::default();
        let caller = Caller::operator();
        let bits = |bits: u64| move || vec![bits].into_boxed_slice();
        let first = cache.of_view(&caller, None, bits(1));
        assert!(Arc::ptr_eq(&first, &cache.of_view(&caller, Some(&"same".into()), bits(1))));
        assert!(!Arc::ptr_eq(&first, &cache.of_view(&caller, Some(&"other".into()), bits(3))));
        assert!(Arc::ptr_eq(&first, &cache.of_view(&caller, None, || panic!("they are known"))));
        for set in 0..2 * SETS_MAX as u64 {
            drop(cache.of_view(&caller, Some(&format!("set{set}").into()), bits(set + 10)));
            let remembered = cache.lock();
            let (sets, views) = (remembered.of_sets.len(), remembered.of_views.len());
            // Two of the views share their set.
            assert!(sets <= SETS_MAX && views <= sets + 1, "{sets} and {views}");
        }
        assert!(!Arc::ptr_eq(&first, &cache.of_view(&caller, None, bits(1))), "it was dropped");
    }

    #[test]
    fn the_oldest_documents_are_dropped_where_all_are_too_large() {
        let cache = DocumentCache::default();
        let caller = Caller::operator();
        let of = |set: u64, form, share: usize| {
            let (toolset, mut is_new) = (set.to_string().into(), false);
            let write = || {
                is_new = true;
                documents(&[("x", BYTES_MAX / share)])
            };
            drop(cache.of((&caller, Some(&toolset)), form, || vec![set].into(), write));
            is_new
        };
        let sets = || -> Vec<u64> { cache.lock().of_sets.iter().map(|(set, _)| set[0]).collect() };
        assert!(of(1, DocumentForm::Modern, 2) && of(2, DocumentForm::Modern, 4));
        assert!(!of(1, DocumentForm::Modern, 2), "it is known");
        assert_eq!(sets(), [1, 2]);
        // The second form counts too.
        assert!(of(2, DocumentForm::Legacy, 3));
        assert_eq!(sets(), [2]);
        // Those that are read at present are kept, however large they are.
        assert!(of(1, DocumentForm::Modern, 1) && of(1, DocumentForm::Legacy, 1));
        assert_eq!(sets(), [1]);
        assert!(of(3, DocumentForm::Modern, 100));
        assert_eq!(sets(), [3]);
        let remembered = cache.lock();
        assert_eq!(remembered.of_views.len(), 1);
    }
}
