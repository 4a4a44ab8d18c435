//! Reads values of a document as text.
//!
//! Doc: contract.md#json-safe

use std::sync::Arc;

use super::read::{Measured, Reader};
use super::{JsonFault, JsonText};

impl Reader<'_> {
    /// Reads any value as text.
    ///
    /// # Errors
    /// The first fault, also of a tolerant reader.
    pub fn json(&mut self) -> Result<JsonText, JsonFault> {
        Ok(self.json_of(|reader| reader.skip())?.1)
    }

    /// Reads one value by `read`, and returns the result of `read` and the text of the value.
    ///
    /// # Errors
    /// As [`Reader::json`].
    pub fn json_of<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, JsonFault>,
    ) -> Result<(T, JsonText), JsonFault> {
        let faults = self.soft.as_ref().map_or(0, Vec::len);
        let (made, Measured { range, depth, blanks }) = self.measured(read)?;
        if let Some(fault) = self.soft.as_ref().and_then(|soft| soft.get(faults)) {
            return Err(fault.clone());
        }
        let text = match self.source {
            Some(source) => JsonText::part(source, range, depth, blanks),
            None => {
                let text = self.text.get(range).unwrap_or_default().to_owned();
                let range = 0..text.len();
                JsonText::part(&Arc::new(text), range, depth, blanks)
            }
        };
        Ok((made, text))
    }
}
