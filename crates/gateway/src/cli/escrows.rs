//! `holdfast escrows`: credits that wait until somebody has earned them, and those that no work has.

use super::args::{Escrows, Refund};
use super::door::{IfMissing, connect};
use super::requests::{self, Asking};
use super::show::Show;
use super::{Ended, Session, queue, show};
use crate::terminal;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};

/// Runs the command.
pub(super) fn run(session: &Session<'_>, escrows: &Escrows) -> Result<(), Ended> {
    if let Escrows::Refund(words) = escrows {
        if !words.yes && !is_meant(&words.id)? {
            terminal::note("nothing was done");
            return Err(Ended::Told(1));
        }
        if let Some(answered) = by_the_queue(session, words)? {
            return session.show_answer(answered, queue::ended);
        }
    }
    match requests::escrows(escrows)? {
        Asking::Change(request) => session.change(request, IfMissing::Refuse),
        Asking::Look(request) => session.look(&request, shown(escrows)),
    }
}

/// How the answers of what changes nothing are shown.
fn shown(escrows: &Escrows) -> Show {
    match escrows {
        Escrows::Orphans { .. } => show::orphans,
        Escrows::Hold { .. }
        | Escrows::Settle { .. }
        | Escrows::Refund(_)
        | Escrows::Partial { .. }
        | Escrows::Show { .. } => show::escrow,
    }
}

/// Has a server's queue give the escrow back, by the signed word that every other end has: so nobody can take it in meanwhile.
/// `None` if there is no queue, or if a key was said, which is the ledger's.
fn by_the_queue(session: &Session<'_>, words: &Refund) -> Result<Option<(String, Value)>, Ended> {
    if words.key.is_some() || connect(&session.cli.global.data)?.is_none() {
        return Ok(None);
    }
    let request = requests::request("escrow_orphan_refund", [("escrow_id", json!(words.id))]);
    let (line, answer) = session.answer(&request, IfMissing::Refuse)?;
    let is_off = answer.pointer("/error/code").is_some_and(|code| code == "QUEUE_OFF");
    Ok(if is_off { None } else { Some((line, answer)) })
}

/// Asks whoever sits at a terminal. Nobody else is there to be asked.
fn is_meant(escrow: &str) -> io::Result<bool> {
    let (stdin, mut stderr) = (io::stdin(), io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        return Ok(true);
    }
    write!(stderr, "give all of escrow {escrow} back to its owner? It cannot be undone. [y/N] ")?;
    stderr.flush()?;
    let mut said = String::new();
    stdin.read_line(&mut said)?;
    Ok(matches!(said.trim(), "y" | "Y" | "yes"))
}
