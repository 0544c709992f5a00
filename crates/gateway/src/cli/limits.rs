//! `holdfast accounts limit`, `teams limit`, `organisations limit` and `limits`: how much may be spent in whose name.

use super::door::IfMissing;
use super::output::{Field, Output};
use super::{Ended, Session, requests};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io;

/// The fields of a limit, in the order in which people see them.
pub(super) const LIMIT: [Field; 9] = [
    ("of", "of"),
    ("name", "id"),
    ("a day", "per_day_cu"),
    ("used today", "used_today_cu"),
    ("in total", "in_total_cu"),
    ("used in total", "used_in_total_cu"),
    ("team", "team"),
    ("organisation", "organisation"),
    ("set", "set_at"),
];

const EXAMPLES: &str = "\
Examples:
  holdfast accounts limit alice --per-day 5     at most 5 credits a day (UTC)
  holdfast accounts limit alice --team red      count against the team's limit too
  holdfast accounts limit alice --per-day none  no limit a day any more; the others stay
  holdfast accounts limit alice                 the limit, and what is used of it

A limit holds for every reservation from now on, whatever credential it comes with, and is
checked in the same decision as the balance. It counts what is held and charged from when it
was first set. What is not said stays as it is.";

#[derive(Debug, Args)]
pub(super) struct Amounts {
    /// The most on one day (UTC), such as 12.5; none takes the limit away
    #[arg(long, value_name = "CU", allow_hyphen_values = true)]
    per_day: Option<String>,
    /// The most ever, from now on; none takes the limit away
    #[arg(long, value_name = "CU", allow_hyphen_values = true)]
    in_total: Option<String>,
    /// No limit at all: the same as --per-day none --in-total none
    #[arg(long, conflicts_with_all = ["per_day", "in_total"])]
    none: bool,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AccountLimit {
    /// Whose
    account: String,
    #[command(flatten)]
    amounts: Amounts,
    /// The team that it belongs to; none takes it out
    #[arg(long, value_name = "NAME")]
    team: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Teams {
    /// Limit what the accounts of a team may spend together, or show it
    Limit {
        /// Which
        team: String,
        #[command(flatten)]
        amounts: Amounts,
        /// The organisation that it belongs to; none takes it out
        #[arg(long, value_name = "NAME")]
        organisation: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Organisations {
    /// Limit what the teams of an organisation may spend together, or show it
    Limit {
        /// Which
        organisation: String,
        #[command(flatten)]
        amounts: Amounts,
    },
}

#[derive(Debug, Args)]
pub(super) struct Limits {
    /// Those after this one, such as account:alice
    #[arg(long, value_name = "LIMIT")]
    after: Option<String>,
    /// At most so many
    #[arg(long)]
    limit: Option<u64>,
}

/// Shows or changes the limit of an account.
pub(super) fn account(session: &Session<'_>, words: &AccountLimit) -> Result<(), Ended> {
    one(session, ("account", &words.account), &words.amounts, ("team", words.team.as_deref()))
}

/// Shows or changes the limit of a team.
pub(super) fn team(session: &Session<'_>, words: &Teams) -> Result<(), Ended> {
    let Teams::Limit { team, amounts, organisation } = words;
    one(session, ("team", team), amounts, ("organisation", organisation.as_deref()))
}

/// Shows or changes the limit of an organisation.
pub(super) fn organisation(session: &Session<'_>, words: &Organisations) -> Result<(), Ended> {
    let Organisations::Limit { organisation, amounts } = words;
    one(session, ("organisation", organisation), amounts, ("organisation", None))
}

/// Shows every limit.
pub(super) fn list(session: &Session<'_>, words: &Limits) -> Result<(), Ended> {
    let fields = [("after", json!(words.after)), ("limit", json!(words.limit))];
    session.show(&requests::request("limits", fields), IfMissing::Refuse, rows)
}

fn one(
    session: &Session<'_>,
    (of, id): (&str, &str),
    amounts: &Amounts,
    (above, within): (&str, Option<&str>),
) -> Result<(), Ended> {
    let whose = [("of", json!(of)), ("id", json!(id))];
    let Amounts { per_day, in_total, none } = amounts;
    if per_day.is_none() && in_total.is_none() && within.is_none() && !none {
        return session.show(&requests::request("limit", whose), IfMissing::Refuse, shown);
    }
    let amount = |said: &Option<String>| if *none { json!("none") } else { json!(said) };
    let [of, id] = whose;
    let fields = [of, id, ("per_day_cu", amount(per_day)), ("in_total_cu", amount(in_total)), (above, json!(within))];
    session.show(&requests::request("limit_set", fields), IfMissing::Make, shown)
}

fn shown(output: &Output, answer: &Value) -> io::Result<()> {
    output.object(answer, &LIMIT)
}

fn rows(output: &Output, answer: &Value) -> io::Result<()> {
    output.rows(answer.get("limits").and_then(Value::as_array).map_or(&[], Vec::as_slice), &LIMIT)?;
    match answer.get("next").and_then(Value::as_str) {
        Some(next) => output.line(&format!("more: --after {next}")),
        None => Ok(()),
    }
}
