//! The record against the journal: nothing lost, nothing invented, nothing twice, nothing out of order, nothing unbalanced.

use super::amount::Micro;
use super::books::Books;
use super::entry::Entry;
use super::history::{Fate, History, Sent};
use super::order;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// The most findings of one audit: more of them say no more.
const FINDINGS_MAX: usize = 8;

/// What is wrong, as sentences; nothing if all is well. `told` are the balances that the server tells.
pub(crate) fn audit(history: &History, entries: &[Entry], told: &BTreeMap<String, Micro>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut done_by: HashMap<String, u64> = HashMap::new();
    let orders: HashMap<String, &Sent> = history.sent.iter().map(|sent| (sent.order.identity(), sent)).collect();
    let mut books = Books::default();
    for (expected, entry) in (1..).zip(entries) {
        if entry.offset != expected {
            findings.push(format!("entry {expected} is missing: the journal goes on with {}", entry.offset));
            break;
        }
        let identity = order::identity(&entry.kind, entry.key.as_deref(), entry.subject.as_deref());
        let sent = orders.get(&identity).copied();
        if let Some(earlier) = done_by.insert(identity.clone(), entry.offset) {
            findings.push(format!("{identity} was done twice, by entries {earlier} and {expected}"));
        }
        findings.extend(sent.and_then(|sent| disagreement(sent, entry)));
        if let Err(what) = books.apply(entry, sent.map(|sent| &sent.order)) {
            findings.push(format!("entry {expected} ({identity}, {}): {what}", entry.kind));
            break;
        }
        if findings.len() >= FINDINGS_MAX {
            break;
        }
    }
    let lost = history.receipts().into_iter().filter(|(sent, ..)| !done_by.contains_key(&sent.order.identity()));
    findings.extend(lost.map(|(sent, receipt, _)| {
        format!("acknowledged at offset {} and not in the journal: {}", receipt.offset, sent.order.line())
    }));
    findings.extend(out_of_order(history));
    if findings.is_empty() {
        findings.extend(books.differences(told));
    }
    findings.truncate(FINDINGS_MAX);
    findings
}

/// Where an entry and what its sender was told differ.
fn disagreement(sent: &Sent, entry: &Entry) -> Option<String> {
    match &sent.fate {
        Fate::Refused { code } => {
            Some(format!("refused with {code}, and yet entry {}: {}", entry.offset, sent.order.line()))
        }
        Fate::Done { receipt, .. } if receipt.offset != entry.offset => {
            let line = sent.order.line();
            Some(format!("acknowledged at offset {}, and stands at {}: {line}", receipt.offset, entry.offset))
        }
        Fate::Unknown | Fate::Done { .. } => None,
    }
}

/// Requests that were sent after another had been acknowledged, and stand before it.
fn out_of_order(history: &History) -> Option<String> {
    let receipts = history.receipts();
    let mut latest: Option<(&Sent, u64, Instant)> = None;
    for (sent, receipt, at) in &receipts {
        if let Some((earlier, offset, sent_at)) = latest
            && *at < sent_at
        {
            return Some(format!(
                "{} at {offset} was sent after {} at {} had been acknowledged",
                earlier.order.identity(),
                sent.order.identity(),
                receipt.offset
            ));
        }
        if latest.is_none_or(|(_, _, sent_at)| sent.sent_at > sent_at) {
            latest = Some((sent, receipt.offset, sent.sent_at));
        }
    }
    None
}

#[cfg(test)]
mod tests;
