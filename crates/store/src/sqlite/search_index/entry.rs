//! Reads the fields of an event that the search index stores.
//!
//! Doc: records.md#reading

use std::borrow::Cow;

use serde::Deserialize;
use toolbooth_contracts::event::EventBody;

use super::blocks::{COLUMNS, Id};

/// The members of an event that are indexed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IndexedFields {
    time: String,
    tool_name: Option<String>,
    agent_id: Option<String>,
    caller: Option<String>,
    error_code: Option<String>,
    status: Option<String>,
    call_id: Option<String>,
    receipt_id: Option<String>,
    log_digest: Option<String>,
}

/// The indexed members of one event, with its names as text.
#[derive(Debug)]
pub(in crate::sqlite) struct Found {
    pub(super) place: i64,
    pub(super) time: i64,
    /// In the order of [`super::blocks::Column`].
    pub(super) names: [Option<Cow<'static, str>>; COLUMNS],
    pub(super) call: Option<Id>,
    pub(super) receipt: Option<Id>,
    pub(super) has_log: bool,
}

impl Found {
    /// Returns the indexed members of an event that was written at `place`.
    pub(in crate::sqlite) fn of(place: i64, body: &EventBody) -> Self {
        let own = |name: &Option<String>| name.clone().map(Cow::from);
        Self {
            place,
            time: time_number(&body.time),
            names: [
                own(&body.tool_name),
                own(&body.agent_id),
                own(&body.caller),
                body.error_code.map(|code| code.as_str().into()),
                body.status.map(|status| status.as_str().into()),
            ],
            call: body.call_id.as_deref().map(Id::of),
            receipt: body.receipt_id.as_deref().map(Id::of),
            has_log: body.log_digest.is_some(),
        }
    }

    pub(super) fn read(place: i64, fields: IndexedFields) -> Self {
        let names =
            [fields.tool_name, fields.agent_id, fields.caller, fields.error_code, fields.status];
        Self {
            place,
            time: time_number(&fields.time),
            names: names.map(|name| name.map(Cow::from)),
            call: fields.call_id.as_deref().map(Id::of),
            receipt: fields.receipt_id.as_deref().map(Id::of),
            has_log: fields.log_digest.is_some(),
        }
    }
}

/// Converts the digits of a time, down to milliseconds, to a number that sorts like the time.
pub(super) fn time_number(time: &str) -> i64 {
    const DIGITS: usize = "20260101000000000".len();
    let digits = time.bytes().filter(u8::is_ascii_digit).chain(std::iter::repeat(b'0'));
    digits.take(DIGITS).fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}
