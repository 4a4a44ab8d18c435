//! Exports events as Parquet, partitioned by day, for large queries on old logs.
//!
//! Doc: records.md#exports

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use serde_json::Value;
use toolbooth_audit::export::{Exporter, Line};
use toolbooth_proxy::Operations;

use super::records::unreadable;
use crate::failure::Failure;

/// The number of rows in a row group.
const GROUP: usize = 10_000;
/// The maximum number of open files; further days begin further files.
const OPEN_MAX: usize = 64;

/// The columns. Text columns are members of the event.
const SCHEMA: &str = "message event {
    REQUIRED BYTE_ARRAY writer (UTF8);
    REQUIRED INT64 seq;
    REQUIRED BYTE_ARRAY time (UTF8);
    REQUIRED BYTE_ARRAY event (UTF8);
    OPTIONAL BYTE_ARRAY toolName (UTF8);
    OPTIONAL BYTE_ARRAY agentId (UTF8);
    OPTIONAL INT64 turnIndex;
    OPTIONAL BYTE_ARRAY caller (UTF8);
    OPTIONAL BYTE_ARRAY callId (UTF8);
    OPTIONAL BYTE_ARRAY receiptId (UTF8);
    OPTIONAL BYTE_ARRAY status (UTF8);
    OPTIONAL BYTE_ARRAY errorCode (UTF8);
    OPTIONAL BYTE_ARRAY effect (UTF8);
    OPTIONAL DOUBLE durationMs;
    OPTIONAL BYTE_ARRAY policyVersion (UTF8);
    OPTIONAL BYTE_ARRAY argsDigest (UTF8);
    OPTIONAL BYTE_ARRAY resultDigest (UTF8);
    OPTIONAL BYTE_ARRAY error (UTF8);
    REQUIRED BYTE_ARRAY body (UTF8);
}";

/// The file of one day, and its pending rows.
struct Day {
    writer: SerializedFileWriter<File>,
    rows: Vec<Value>,
}

struct Partitions {
    folder: PathBuf,
    schema: Arc<Type>,
    open: BTreeMap<String, Day>,
    /// The number of files of each day.
    parts: BTreeMap<String, usize>,
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::store(format!("the export cannot be written: {error}"))
}

impl Partitions {
    fn new(folder: &Path) -> Result<Self, Failure> {
        let wrong = |message: String| Failure::usage(message).at(folder.display().to_string());
        if folder.exists() {
            return Err(wrong("there is something with this name already".to_owned()));
        }
        std::fs::create_dir_all(folder).map_err(|error| wrong(error.to_string()))?;
        let schema = parse_message_type(SCHEMA).map_err(|error| failed(&error))?;
        Ok(Self {
            folder: folder.to_owned(),
            schema: Arc::new(schema),
            open: BTreeMap::new(),
            parts: BTreeMap::new(),
        })
    }

    fn add(&mut self, mut event: Value, bytes: &str) -> Result<(), Failure> {
        let time = event.get("time").and_then(Value::as_str).unwrap_or_default();
        let day = match time.get(..10) {
            Some(day) if day.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {
                day.to_owned()
            }
            _ => "unknown".to_owned(),
        };
        if let Some(members) = event.as_object_mut() {
            members.insert("body".to_owned(), Value::String(bytes.to_owned()));
        }
        if !self.open.contains_key(&day) {
            if self.open.len() >= OPEN_MAX {
                self.close()?;
            }
            let fresh = self.begin(&day)?;
            self.open.insert(day.clone(), fresh);
        }
        if let Some(own) = self.open.get_mut(&day) {
            own.rows.push(event);
            if own.rows.len() >= GROUP {
                write_group(own).map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, day: &str) -> Result<Day, Failure> {
        let part = self.parts.entry(day.to_owned()).or_default();
        let folder = self.folder.join(format!("day={day}"));
        std::fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
        let file = File::create_new(folder.join(format!("events-{part:04}.parquet")))
            .map_err(|error| failed(&error))?;
        *part += 1;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let writer =
            SerializedFileWriter::new(file, Arc::clone(&self.schema), Arc::new(properties))
                .map_err(|error| failed(&error))?;
        Ok(Day { writer, rows: Vec::new() })
    }

    fn close(&mut self) -> Result<(), Failure> {
        for (_, mut day) in std::mem::take(&mut self.open) {
            write_group(&mut day)
                .and_then(|()| day.writer.close().map(drop))
                .map_err(|error| failed(&error))?;
        }
        Ok(())
    }
}

fn write_group(day: &mut Day) -> Result<(), ParquetError> {
    let rows = std::mem::take(&mut day.rows);
    if rows.is_empty() {
        return Ok(());
    }
    let mut group = day.writer.next_row_group()?;
    let fields: Vec<(String, bool)> = parse_message_type(SCHEMA)?
        .get_fields()
        .iter()
        .map(|field| (field.name().to_owned(), field.is_optional()))
        .collect();
    for (name, optional) in fields {
        let Some(mut column) = group.next_column()? else { break };
        let found: Vec<Option<&Value>> =
            rows.iter().map(|row| row.get(&name).filter(|value| !value.is_null())).collect();
        let levels: Vec<i16> = found.iter().map(|value| i16::from(value.is_some())).collect();
        let levels = optional.then_some(levels.as_slice());
        match name.as_str() {
            "seq" | "turnIndex" => {
                let values: Vec<i64> = found
                    .iter()
                    .flatten()
                    .map(|value| value.as_i64().unwrap_or(i64::MAX))
                    .collect();
                column.typed::<Int64Type>().write_batch(&values, levels, None)?;
            }
            "durationMs" => {
                let values: Vec<f64> = found
                    .iter()
                    .flatten()
                    .map(|value| value.as_f64().unwrap_or_default())
                    .collect();
                column.typed::<DoubleType>().write_batch(&values, levels, None)?;
            }
            _ => {
                let values: Vec<ByteArray> = found
                    .iter()
                    .flatten()
                    .map(|value| ByteArray::from(value.as_str().unwrap_or_default()))
                    .collect();
                // A missing required member would shift its column.
                let values = if optional || values.len() == rows.len() {
                    values
                } else {
                    let text = |value: &Option<&Value>| {
                        value.and_then(Value::as_str).unwrap_or_default().to_owned()
                    };
                    found.iter().map(|value| ByteArray::from(text(value).as_str())).collect()
                };
                column.typed::<ByteArrayType>().write_batch(&values, levels, None)?;
            }
        }
        column.close()?;
    }
    group.close().map(drop)
}

/// Writes all events into a new folder, one partition per day.
pub(super) async fn export(
    operations: &Operations,
    (since, until): (Option<String>, Option<String>),
    out: Option<&Path>,
) -> Result<bool, Failure> {
    let Some(folder) = out else {
        return Err(Failure::usage("Parquet is written into a folder").at("--out"));
    };
    let mut exporter = Exporter::begin(operations.reads()).await.map_err(unreadable)?;
    let mut partitions = Partitions::new(folder)?;
    while let Some(page) = exporter.page().await.map_err(unreadable)? {
        for line in &page {
            let Line::Event(entry) = line else { continue };
            // `verify` reports unreadable events.
            let Ok(event) = serde_json::from_str::<Value>(&entry.bytes) else { continue };
            let time = event.get("time").and_then(Value::as_str).unwrap_or_default();
            let within = since.as_deref().is_none_or(|since| time >= since)
                && until.as_deref().is_none_or(|until| time < until);
            if within {
                partitions.add(event, &entry.bytes)?;
            }
        }
    }
    partitions.close()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_read_back_by_day() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("log");
        let mut partitions = Partitions::new(&target).unwrap();
        for n in 0..100 {
            let day = n % 70 % 28 + 1;
            let month = n % 70 / 28 + 1;
            let mut event = json!({
                "writer": "w", "seq": n, "event": "TOOL_EXECUTED",
                "time": format!("2026-{month:02}-{day:02}T00:00:00.000Z"), "durationMs": 1.5
            });
            if n % 2 == 0 {
                event["toolName"] = json!("tool.one");
            }
            partitions.add(event.clone(), &event.to_string()).unwrap();
        }
        partitions.close().unwrap();
        assert!(Partitions::new(&target).is_err(), "nothing is written over");
        let (mut rows, mut named) = (0, 0);
        for day in std::fs::read_dir(&target).unwrap() {
            for file in std::fs::read_dir(day.unwrap().path()).unwrap() {
                let file = File::open(file.unwrap().path()).unwrap();
                let reader = SerializedFileReader::new(file).unwrap();
                for row in reader.get_row_iter(None).unwrap() {
                    let row = row.unwrap();
                    assert_eq!(row.get_string(0).unwrap(), "w");
                    assert!((row.get_double(13).unwrap() - 1.5).abs() < f64::EPSILON);
                    named += usize::from(row.get_string(4).is_ok_and(|tool| tool == "tool.one"));
                    rows += 1;
                }
            }
        }
        assert_eq!((rows, named), (100, 50));
    }
}
