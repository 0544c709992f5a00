//! `holdfast journal …`: the journal's files as they lie, read without the lock, beside a server or without one.

use super::args::Journal;
use super::door;
use super::output::Field;
use super::{Ended, Session};
use crate::books::{Entry, Frame};
use crate::failure::Failure;
use crate::journal_files::{JournalFiles, ReadFrame, Walk, check_not_behind};
use crate::node;
use crate::scratch_disk::ScratchDisk;
use crate::terminal::{self, Bar};
use crate::wire::entry::EntryBody;
use crate::wire::step::StepBody;
use holdfast_engine::Record;
use holdfast_engine::recovery::{self, StartError};
use holdfast_journal::{LocalDisk, Location, OpenError, verify};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

const BUFFER_BYTES: usize = 1_024 * 1_024;

pub(super) fn run(session: &Session<'_>, command: &Journal) -> Result<(), Ended> {
    let data = session.cli.global.data.as_path();
    if !data.join("journal").is_dir() {
        return Err(Failure::NoData(data.to_owned()).into());
    }
    let disk = LocalDisk::at(data).map_err(Failure::io(format!("open {}", data.display())))?;
    let source = Source { disk, until: durable(data)? };
    match command {
        Journal::Cat { from, limit, queue } => cat(&source, *from, *limit, *queue),
        Journal::Stat => stat(session, &source),
        Journal::Verify => check(session, &source),
        Journal::Export { file } => export(session, &source, file),
    }
}

/// What is read, and how far.
struct Source {
    disk: LocalDisk,
    /// Where the journal is durable up to, if a server is writing.
    until: Option<Location>,
}

/// Where the journal is durable up to, as the server says; `None` if none writes it.
fn durable(data: &Path) -> Result<Option<Location>, Failure> {
    let Some(stream) = door::connect(data)? else { return Ok(None) };
    let answer = door::ask_server(&mut io::BufReader::new(stream), r#"{"op":"health"}"#);
    let answer: Value = answer.ok().and_then(|line| serde_json::from_str(&line).ok()).ok_or(Failure::ServerGone)?;
    // One that has its books in a database writes no journal, and what lies here is all there is.
    answer.get("durable").ok_or(Failure::ServerGone)?;
    Ok(answer.get("journal_end").and_then(Value::as_u64).map(Location::unpack))
}

impl Source {
    fn files(&self) -> Result<JournalFiles, Failure> {
        Ok(JournalFiles::open(&self.disk, self.until)?)
    }

    /// Checks every frame and the chain of hashes, without replaying.
    fn check_frames(&self) -> Result<(), Failure> {
        let (_directory, disk) = self.scratch()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        verify(&disk, threads, &|_, _| {})?.ok_or(OpenError::Missing { segment: 1 })?;
        Ok(())
    }

    /// The journal with a scratch directory for what a check derives from it.
    fn scratch(&self) -> Result<(tempfile::TempDir, ScratchDisk), Failure> {
        let cannot = || Failure::io("make a scratch directory");
        let directory = tempfile::Builder::new().prefix("holdfast-check-").tempdir().map_err(cannot())?;
        let scratch = LocalDisk::at(directory.path()).map_err(cannot())?;
        let disk = ScratchDisk::new(&self.disk, scratch, self.until);
        Ok((directory, disk))
    }
}

/// Says what stands after the last entry and is none.
fn note_torn(walk: &Walk<'_>) {
    if let Some(cut) = walk.torn() {
        terminal::note(&format!(
            "{} bytes at {} are no whole frame; `holdfast journal verify` tells a torn tail from damage",
            cut.bytes, cut.location
        ));
    }
}

fn write_entries(frame: Frame, records: Vec<Record>, from: u64, to: &mut impl Write) -> io::Result<u64> {
    let mut written = 0;
    for record in records.into_iter().filter(|record| record.offset >= from) {
        write_line(&EntryBody::from(Entry::from(record).within(frame)), to)?;
        written += 1;
    }
    Ok(written)
}

fn write_line(body: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *to, body)?;
    to.write_all(b"\n")
}

fn cat(source: &Source, from: u64, limit: Option<u64>, queue: bool) -> Result<(), Ended> {
    let files = source.files()?;
    let mut walk = files.walk(from);
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    let mut left = limit.unwrap_or(u64::MAX);
    while left > 0
        && let Some(mut read) = walk.next().map_err(Failure::from)?
    {
        let frame = Frame { location: read.location, hash: read.hash };
        let skipped = read.records.iter().take_while(|record| record.offset < from).count();
        read.records.truncate(skipped.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
        left -= write_entries(frame, read.records, from, &mut out)?;
        let is_after = from <= 1 || read.next_offset > from;
        for note in read.notes.iter().filter(|_| queue && is_after).take(usize::try_from(left).unwrap_or(usize::MAX)) {
            write_line(&StepBody::of(note, frame), &mut out)?;
            left -= 1;
        }
    }
    out.flush()?;
    note_torn(&walk);
    Ok(())
}

fn stat(session: &Session<'_>, source: &Source) -> Result<(), Ended> {
    let files = source.files()?;
    let mut walk = files.walk(1);
    let (mut entries, mut notes, mut frames, mut seals, mut used) = (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
    while let Some(frame) = walk.next().map_err(Failure::from)? {
        frames += 1;
        seals += u64::from(frame.records.is_empty() && frame.notes.is_empty());
        notes += frame.notes.len() as u64;
        used += frame.bytes;
        entries += frame.records.len() as u64;
        for record in &frame.records {
            *kinds.entry(record.event.kind().name()).or_default() += 1;
        }
    }
    let file_bytes: u64 = files.segments().iter().map(|segment| segment.bytes).sum();
    let by_kind: Map<String, Value> = kinds.iter().map(|(kind, count)| ((*kind).to_owned(), json!(count))).collect();
    let stat = json!({
        "ok": true,
        "journal": files.id().to_string(),
        "segments": files.segments().len(),
        "file_bytes": file_bytes,
        "entries": entries,
        "notes": notes,
        "frames": frames,
        "seals": seals,
        "used_bytes": used,
        "bytes_per_entry": used.checked_div(entries).unwrap_or(0),
        "torn_bytes": walk.torn().map_or(0, |cut| cut.bytes),
        "kinds": by_kind,
    });
    if session.output.is_json() {
        return Ok(session.output.line(&stat.to_string())?);
    }
    let fields: [Field; 10] = [
        ("journal", "journal"),
        ("segments", "segments"),
        ("file bytes", "file_bytes"),
        ("entries", "entries"),
        ("notes", "notes"),
        ("frames", "frames"),
        ("seals", "seals"),
        ("used bytes", "used_bytes"),
        ("bytes per entry", "bytes_per_entry"),
        ("torn bytes", "torn_bytes"),
    ];
    session.output.object(&stat, &fields)?;
    let rows: Vec<Value> = kinds.iter().map(|(kind, count)| json!({ "kind": kind, "entries": count })).collect();
    session.output.line("")?;
    session.output.rows(&rows, &[("kind", "kind"), ("entries", "entries")])?;
    note_torn(&walk);
    Ok(())
}

/// Checks everything: frames, chain, and that every entry follows from those before it and leads to its balances.
fn check(session: &Session<'_>, source: &Source) -> Result<(), Ended> {
    let (_directory, disk) = source.scratch()?;
    let bar = Bar::entries("verifying");
    let opened = recovery::open(disk, &node::config(&session.settings)?, &mut |progress| bar.set(progress));
    bar.finish();
    let found = opened.map_err(Failure::from)?.report.recovered.verified;
    let entries = found.end.next_offset - 1;
    if source.until.is_none() {
        check_not_behind(&source.disk, entries).map_err(Failure::from)?;
    }
    let result = json!({
        "ok": true,
        "journal": found.id.to_string(),
        "entries": entries,
        "frames": found.frames,
        "segments": found.segments,
        "chain": found.end.chain.to_string(),
        "torn_bytes": found.tail.map_or(0, |cut| cut.bytes),
    });
    if session.output.is_json() {
        return Ok(session.output.line(&result.to_string())?);
    }
    let fields: [Field; 6] = [
        ("journal", "journal"),
        ("entries", "entries"),
        ("frames", "frames"),
        ("segments", "segments"),
        ("chain", "chain"),
        ("torn bytes", "torn_bytes"),
    ];
    session.output.object(&result, &fields)?;
    if let Some(cut) = found.tail {
        let line = format!(
            "a torn tail of {} bytes at {} was never acknowledged; the next start cuts it",
            cut.bytes, cut.location
        );
        session.output.line(&line)?;
    }
    Ok(session.output.line("sound: every frame, every link of the chain, and every balance")?)
}

fn export(session: &Session<'_>, source: &Source, file: &Path) -> Result<(), Ended> {
    // What leaves the house is checked first.
    source.check_frames()?;
    let files = source.files()?;
    if file == Path::new("-") {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
        write_export(&files, &mut out)?;
        return Ok(out.flush()?);
    }
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(".tmp");
    let cannot = || Failure::io(format!("write {}", file.display()));
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, File::create(&temporary).map_err(cannot())?);
    let trailer = write_export(&files, &mut out)?;
    out.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all()).map_err(cannot())?;
    fs::rename(&temporary, file).map_err(cannot())?;
    let trailer =
        json!({ "ok": true, "file": file.display().to_string(), "entries": trailer.entries, "blake3": trailer.blake3 });
    if session.output.is_json() {
        return Ok(session.output.line(&trailer.to_string())?);
    }
    Ok(session.output.object(&trailer, &[("file", "file"), ("entries", "entries"), ("blake3", "blake3")])?)
}

/// What the last line of an export says of the lines before it.
#[derive(serde::Serialize)]
struct Trailer {
    trailer: &'static str,
    journal: String,
    entries: u64,
    chain: String,
    blake3: String,
}

/// Writes every entry, and a last line with the hash of all bytes before it.
fn write_export(files: &JournalFiles, out: &mut impl Write) -> Result<Trailer, Ended> {
    let mut walk = files.walk(1);
    let mut out = Hashing { out, hasher: blake3::Hasher::new() };
    let (mut entries, mut chain) = (0, holdfast_journal::GENESIS);
    while let Some(frame) = walk.next().map_err(|error: StartError| Failure::from(error))? {
        chain = frame.hash;
        let ReadFrame { location, hash, records, .. } = frame;
        entries += write_entries(Frame { location, hash }, records, 1, &mut out)?;
    }
    let blake3 = out.hasher.finalize().to_hex().to_string();
    let journal = files.id().to_string();
    let trailer = Trailer { trailer: "holdfast export", journal, entries, chain: chain.to_string(), blake3 };
    let line = serde_json::to_string(&trailer).map_err(io::Error::from)?;
    writeln!(out.out, "{line}")?;
    Ok(trailer)
}

/// Hashes what passes through.
struct Hashing<'a, W> {
    out: &'a mut W,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Hashing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
