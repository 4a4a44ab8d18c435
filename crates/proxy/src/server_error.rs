//! Selects the data of a server's error that can be shown.
//!
//! Path: 8. Doc: call-path.md#the-result

use serde_json::Value;
use toolbooth_contracts::json::{WRAPPED_DEPTH_MAX, check_value, is_within};
use toolbooth_contracts::secret::SecretShapes;

/// Maximum bytes of the data in a server's error.
const DATA_BYTES_MAX: usize = 4 << 10;

/// Returns the data of a server's error, redacted, or nothing if it cannot be shown.
pub(crate) fn shown_data(data: Option<&Value>, shapes: &SecretShapes) -> Option<Value> {
    let fits = |data: &&Value| {
        bytes(data) <= DATA_BYTES_MAX
            && check_value(data).is_ok()
            && is_within(data, WRAPPED_DEPTH_MAX)
    };
    data.filter(fits).map(|data| redact_text(data, shapes))
}

/// Bytes of a value, as JSON.
pub(crate) fn bytes<T: serde::Serialize + ?Sized>(value: &T) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting never fails.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Replaces secret-shaped parts of the texts in a value.
fn redact_text(value: &Value, shapes: &SecretShapes) -> Value {
    match value {
        Value::String(text) => Value::String(shapes.redact(text).into_owned()),
        Value::Array(items) => items.iter().map(|item| redact_text(item, shapes)).collect(),
        Value::Object(members) => {
            members.iter().map(|(key, member)| (key.clone(), redact_text(member, shapes))).collect()
        }
        other => other.clone(),
    }
}
