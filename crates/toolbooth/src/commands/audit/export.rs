//! `audit export`: writes the records as lines or rows, to a file or to standard output.
//!
//! Doc: records.md#exports

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use toolbooth_audit::export::{Exporter, Line, ocsf};
use toolbooth_contracts::event::AuditEvent;

use super::events::{csv_cells, csv_headings, csv_line};
use crate::cli::ExportFormat;
use crate::commands::records::{need, unreadable};
use crate::config::Loaded;
use crate::failure::Failure;
use crate::output;

/// The target of an export: standard output, or a file that is renamed to its final name when it is complete.
pub(super) struct Target {
    out: Box<dyn Write>,
    /// Whether a person reads it, whose terminal would interpret control characters.
    is_terminal: bool,
    /// The path of the draft and the final path.
    file: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            let out = std::io::stdout();
            let is_terminal = out.is_terminal();
            let out = Box::new(std::io::BufWriter::new(out));
            return Ok(Self { out, is_terminal, file: None });
        };
        let wrong = |message: String| Failure::usage(message).at(path.display().to_string());
        if path.exists() {
            return Err(wrong("there is something with this name already".to_owned()));
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.draft", uuid::Uuid::now_v7().simple()));
        let draft = PathBuf::from(draft);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&draft)
            .map_err(|error| wrong(format!("the file cannot be written: {error}")))?;
        let out = Box::new(std::io::BufWriter::new(file));
        Ok(Self { out, is_terminal: false, file: Some((draft, path.to_owned())) })
    }

    /// Writes a line, with its end; `false` if the reader is closed.
    fn write(&mut self, text: &[u8]) -> Result<bool, Failure> {
        let written = match self.is_terminal {
            true => {
                let lines = output::for_terminal(&String::from_utf8_lossy(text));
                self.out.write_all(lines.as_bytes())
            }
            false => self.out.write_all(text),
        };
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::store(format!("the export cannot be written: {error}"))),
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let done = self.out.flush().and_then(|()| match &self.file {
            Some((draft, path)) => std::fs::rename(draft, path),
            None => Ok(()),
        });
        match done {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::store(format!("the export cannot be written: {error}")))
            }
            _ => Ok(()),
        }
    }
}

pub(super) async fn export(
    loaded: &Loaded,
    format: ExportFormat,
    (since, until): (Option<String>, Option<String>),
    out: Option<&Path>,
) -> Result<bool, Failure> {
    let operations = need(loaded).await?;
    #[cfg(feature = "parquet")]
    if format == ExportFormat::Parquet {
        return crate::commands::parquet::export(&operations, (since, until), out).await;
    }
    let part = since.is_some() || until.is_some();
    let mut target = Target::open(out)?;
    let mut exporter = Exporter::begin(operations.reads()).await.map_err(unreadable)?;
    let total = exporter.total();
    let mut written = 0u64;
    if format == ExportFormat::Csv {
        target.write(&csv_line(&csv_headings())?)?;
    }
    while let Some(page) = exporter.page().await.map_err(unreadable)? {
        for line in &page {
            let entry = match line {
                Line::Event(entry) => entry,
                Line::Pruned(line) if format == ExportFormat::Jsonl && !part => {
                    if !target.write(format!("{line}\n").as_bytes())? {
                        return Ok(true);
                    }
                    continue;
                }
                Line::Pruned(_) => continue,
            };
            let event: Option<AuditEvent> = serde_json::from_str(&entry.bytes).ok();
            let within = event.as_ref().is_none_or(|event| {
                since.as_ref().is_none_or(|since| event.body.time >= *since)
                    && until.as_ref().is_none_or(|until| event.body.time < *until)
            });
            if !within {
                continue;
            }
            let line = match (format, event) {
                (ExportFormat::Jsonl, _) => format!("{}\n", entry.bytes).into_bytes(),
                (ExportFormat::Csv, Some(event)) => csv_line(&csv_cells(&event))?,
                (_, Some(event)) => format!("{}\n", ocsf(&event, epoch_ms(&event))).into_bytes(),
                // `verify` reports unreadable events. The JSON Lines export contains them unchanged.
                (_, None) => continue,
            };
            if !target.write(&line)? {
                return Ok(true);
            }
            written += 1;
        }
        progress(written, total);
    }
    if format == ExportFormat::Jsonl {
        if part {
            crate::notice("a part of the log: `verify` needs all of it");
            target.write(format!("{}\n", Exporter::part()).as_bytes())?;
        } else {
            target.write(format!("{}\n", exporter.trailer()).as_bytes())?;
        }
    }
    target.finish()?;
    Ok(true)
}

/// Prints the progress of a long operation if standard error is a terminal.
pub(super) fn progress(done: u64, total: u64) {
    if total > 100_000 && std::io::stderr().is_terminal() {
        crate::notice(&format!("{done} of {total} event(s)"));
    }
}

fn epoch_ms(event: &AuditEvent) -> i64 {
    let at: Option<jiff::Timestamp> = event.body.time.parse().ok();
    at.map_or(0, jiff::Timestamp::as_millisecond)
}
