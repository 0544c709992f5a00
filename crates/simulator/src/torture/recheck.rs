//! The record against a restarted server: what was acknowledged is answered as before, what was not is done at most once.

use super::amount::Micro;
use super::audit::audit;
use super::client::{Connection, NoAnswer};
use super::entry::{self, Entry};
use super::history::{Answer, Fate, Outcome, Receipt};
use super::server::Server;
use super::site::{Context, Site};
use super::tally::Tally;
use holdfast_simulator::rng::Rng;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// How many requests are under way at once.
const CHUNK: usize = 200;
/// How many of the entries that were confirmed by an earlier server are asked for again.
const OLDER: usize = 100;
/// At how many moments the read model is asked for balances.
const MOMENTS: usize = 6;
/// How often the books are read until they stood still meanwhile: a hold may expire at any time.
const READS_MAX: usize = 20;
/// The most findings of one check: more of them say no more.
const FINDINGS_MAX: usize = 8;

/// What is wrong, as sentences; nothing if all is well.
pub(crate) fn recheck(site: &mut Site, server: &Server<'_>, rng: &mut Rng, tally: &mut Tally) -> Vec<String> {
    let mut findings = Vec::new();
    if let Err(broken) = try_recheck(site, server, rng, tally, &mut findings) {
        findings.push(format!("during the check after the restart {broken}"));
    }
    findings.truncate(FINDINGS_MAX);
    findings
}

fn try_recheck(
    site: &mut Site,
    server: &Server<'_>,
    rng: &mut Rng,
    tally: &mut Tally,
    findings: &mut Vec<String>,
) -> Result<(), NoAnswer> {
    let mut connection = Connection::open(&server.socket())?;
    let health = connection.ask(r#"{"op":"health"}"#)?;
    let durable = health.get("durable").and_then(Value::as_u64).unwrap_or(0);
    if durable < site.seen() {
        findings.push(format!("offset {} was told, and the journal now ends at {durable}", site.seen()));
    }
    let mut known = site.history.indices(|sent| sent.is_done() && !sent.verified);
    let older = site.history.indices(|sent| sent.is_done() && sent.verified);
    tally.verified += known.len() as u64;
    known.extend((0..OLDER).filter_map(|_| rng.pick(&older)));
    for index in &known {
        site.history.sent[*index].verified = true;
    }
    confirm(site, &mut connection, &known, findings)?;
    let unknown = site.history.indices(super::history::Sent::is_unknown);
    retry(site, &mut connection, &unknown, tally, findings)
}

/// Repeats acknowledged requests: each must be answered as it was.
fn confirm(
    site: &Site,
    connection: &mut Connection,
    indices: &[usize],
    findings: &mut Vec<String>,
) -> Result<(), NoAnswer> {
    repeat(site, connection, indices, |index, answer| {
        let sent = &site.history.sent[index];
        let Fate::Done { receipt: before, .. } = &sent.fate else { return };
        if !matches!(&answer, Answer::Done { outcome: Outcome::Replayed, receipt } if receipt == before) {
            findings
                .push(format!("{} was acknowledged as {before:?}, and is repeated as {answer:?}", sent.order.line()));
        }
    })
}

/// Sends requests of unknown outcome again. What is then done or was done before must be answered so once more.
fn retry(
    site: &mut Site,
    connection: &mut Connection,
    indices: &[usize],
    tally: &mut Tally,
    findings: &mut Vec<String>,
) -> Result<(), NoAnswer> {
    let mut answers: Vec<(usize, Answer)> = Vec::new();
    repeat(site, connection, indices, |index, answer| answers.push((index, answer)))?;
    let mut done: Vec<usize> = Vec::new();
    for (index, answer) in answers {
        match &answer {
            Answer::Done { outcome: Outcome::Replayed, .. } => tally.unacknowledged_done += 1,
            Answer::Done { outcome: Outcome::Applied, .. } | Answer::Refused { .. } => {
                tally.unacknowledged_not_done += 1
            }
        }
        let sent = &mut site.history.sent[index];
        sent.fate = answer.fate();
        if let Fate::Done { receipt: Receipt { offset, .. }, .. } = sent.fate {
            site.history.seen = site.history.seen.max(offset);
            done.push(index);
            tally.acknowledged += 1;
        }
        site.mix().learn(&site.history.sent[index]);
    }
    confirm(site, connection, &done, findings)
}

/// Sends requests again, many at a time, and gives each answer to `take`.
fn repeat(
    site: &Site,
    connection: &mut Connection,
    indices: &[usize],
    mut take: impl FnMut(usize, Answer),
) -> Result<(), NoAnswer> {
    for chunk in indices.chunks(CHUNK) {
        let lines: String = chunk.iter().map(|index| site.history.sent[*index].order.line() + "\n").collect();
        connection.send(&lines)?;
        for index in chunk {
            take(*index, Answer::read(connection.receive()?).map_err(NoAnswer::Garbled)?);
        }
    }
    Ok(())
}

/// Everything against everything: the whole journal, the record, the balances that the server tells, and those of earlier
/// moments that its read model tells.
pub(crate) fn full_audit(
    context: &Context,
    site: &Site,
    server: &Server<'_>,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Vec<String> {
    tally.audits += 1;
    let audited = read_books(context, site, server).and_then(|(entries, told)| {
        tally.audited_entries += entries.len() as u64;
        let findings = audit(&site.history, &entries, &told);
        if findings.is_empty() { read_model(server, &entries, rng) } else { Ok(findings) }
    });
    audited.unwrap_or_else(|finding| vec![finding])
}

/// Where balances as of some moments differ from what the entries up to them lead to.
fn read_model(server: &Server<'_>, entries: &[Entry], rng: &mut Rng) -> Result<Vec<String>, String> {
    let mut connection = Connection::open(&server.socket()).map_err(broken)?;
    let mut findings = Vec::new();
    for round in 0..MOMENTS {
        let end = if round == 0 { entries.len() } else { 1 + rng.index(entries.len()) };
        let Some(entry) = end.checked_sub(1).and_then(|last| entries.get(last)) else { break };
        for (name, _) in
            entry.postings.iter().filter(|(name, _)| name.starts_with("user:") || name.starts_with("payee:"))
        {
            let line = format!(r#"{{"op":"balance_as_of","account":"{name}","offset":{}}}"#, entry.offset);
            let answer = connection.ask(&line).map_err(broken)?;
            let told = entry::amount(&answer, "balance_cu");
            let before = entries.iter().take(end).flat_map(|entry| &entry.postings);
            let sum: Micro = before.filter(|(account, _)| account == name).map(|(_, change)| *change).sum();
            if told != Some(sum) {
                let offset = entry.offset;
                findings.push(format!("{name} was {sum} after entry {offset}, and the read model tells {answer}"));
            }
        }
    }
    Ok(findings)
}

type Balances = BTreeMap<String, Micro>;

/// The journal's entries and the balances of all accounts in them at one moment.
fn read_books(context: &Context, site: &Site, server: &Server<'_>) -> Result<(Vec<Entry>, Balances), String> {
    let mut connection = Connection::open(&server.socket()).map_err(broken)?;
    holdfast(context, site, &["journal", "verify"])?;
    for _ in 0..READS_MAX {
        let before = owners(&mut connection)?;
        let entries = Entry::read_all(&holdfast(context, site, &["journal", "cat"])?)?;
        let others = others(&mut connection, &entries)?;
        if owners(&mut connection)? == before {
            return Ok((entries, before.into_iter().chain(others).collect()));
        }
    }
    Err("the balances did not stand still though nobody asked for anything".to_owned())
}

fn broken(broken: NoAnswer) -> String {
    format!("during the audit {broken}")
}

/// Runs another command of the program on the site's data.
fn holdfast(context: &Context, site: &Site, command: &[&str]) -> Result<String, String> {
    let run = Command::new(&context.holdfast).args(command).arg("--data").arg(site.data()).output();
    let run = run.map_err(|error| format!("`holdfast {}` cannot be run: {error}", command.join(" ")))?;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        return Err(format!("`holdfast {}` ended with {}: {said}", command.join(" "), run.status));
    }
    String::from_utf8(run.stdout).map_err(|_| format!("`holdfast {}` printed no text", command.join(" ")))
}

/// The balances of all owners, as the server tells them. There are few, so one page has them all.
fn owners(connection: &mut Connection) -> Result<Balances, String> {
    let answer = connection.ask(r#"{"op":"accounts","limit":1000}"#).map_err(broken)?;
    let read = |answer: &Value| -> Option<Balances> {
        let mut balances = Balances::new();
        for account in answer.get("accounts")?.as_array()? {
            let name = account.get("account")?.as_str()?;
            balances.insert(format!("user:{name}:available"), entry::amount(account, "available_cu")?);
            balances.insert(format!("user:{name}:held"), entry::amount(account, "held_cu")?);
        }
        Some(balances)
    };
    read(&answer).ok_or_else(|| format!("the accounts cannot be read: {answer}"))
}

/// The balances of all accounts in the entries that are not an owner's. One that is closed has none any more.
fn others(connection: &mut Connection, entries: &[Entry]) -> Result<Balances, String> {
    let names = entries.iter().flat_map(|entry| &entry.postings).map(|(account, _)| account);
    let names: BTreeSet<&String> = names.filter(|name| !name.starts_with("user:")).collect();
    let names: Vec<&String> = names.into_iter().collect();
    let mut balances = Balances::new();
    for chunk in names.chunks(CHUNK) {
        let ask = |name: &&String| format!("{{\"op\":\"balance\",\"account\":\"{name}\"}}\n");
        connection.send(&chunk.iter().map(ask).collect::<String>()).map_err(broken)?;
        for name in chunk {
            let answer = connection.receive().map_err(broken)?;
            let balance = entry::amount(&answer, "balance_cu");
            let closed = answer.pointer("/error/code").is_some_and(|code| code == "ACCOUNT_NOT_FOUND");
            let balance = balance.or_else(|| closed.then_some(Micro::ZERO));
            let balance = balance.ok_or_else(|| format!("the balance of {name} cannot be read: {answer}"))?;
            balances.insert((*name).clone(), balance);
        }
    }
    Ok(balances)
}
