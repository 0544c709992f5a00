//! The page itself, written on the server: it says everything without its script, which only adds what comes later.

use super::html::Plain;
use super::{Beside, SCRIPT, STYLE, chart, queue};
use crate::books::{Health, OpenHold, Overview, TailRow};
use crate::wire::answer::stage_name;
use crate::wire::time::Moment;
use holdfast_domain::{Change, Timestamp};
use std::fmt::Display;

/// The page.
pub(super) fn render(overview: &Overview, beside: &Beside, subject: &str, health: &Health) -> String {
    let Overview { at, through, .. } = overview;
    let sections = [
        totals(overview),
        revenue(overview, beside),
        balances(overview),
        holds(overview),
        beside.queue.section(*at),
        beside.settlement.section(*at),
        journal(overview),
    ];
    let as_of = format!("As of <time>{}</time> UTC, entry <b>{through}</b> · amounts in credits", Plain(time_of(*at)));
    whole(&as_of, subject, &notices(overview, beside, health), &sections.concat())
}

/// The page of a process that has the queue only.
pub(super) fn render_queue(queue: &queue::Seen, subject: &str, now: Timestamp) -> String {
    let as_of = format!("As of <time>{}</time> UTC · amounts in credits", Plain(time_of(now)));
    whole(&as_of, subject, &notice(queue.notice()), &queue.section(now))
}

fn whole(as_of: &str, subject: &str, notices: &str, sections: &str) -> String {
    let title = format!("Holdfast <small>{}</small>", Plain(env!("CARGO_PKG_VERSION")));
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Console · Holdfast</title>\
         <style>{STYLE}</style></head><body><header><div><h1>{title}</h1><p>{as_of}</p></div>\
         <form method=\"post\" action=\"/console/logout\"><span>{}</span> <button>Log out</button></form></header>\
         <main>{notices}{sections}</main><script>{SCRIPT}</script></body></html>",
        Plain(subject),
    )
}

fn notice(said: impl IntoIterator<Item = String>) -> String {
    let shown = |text: String| format!("<p class=\"notice\" role=\"alert\">{}</p>", Plain(text));
    said.into_iter().map(shown).collect()
}

/// What an operator must not overlook.
fn notices(overview: &Overview, beside: &Beside, health: &Health) -> String {
    let mut said = Vec::new();
    if health.failed.is_some() {
        said.push("The journal has failed: nothing more is taken. The log says why.".to_owned());
    }
    if overview.totals.imbalance != 0 {
        said.push(format!("The books do not balance: off by {} millionths.", overview.totals.imbalance));
    }
    said.extend(beside.queue.notice());
    said.extend(beside.settlement.notice());
    notice(said)
}

fn totals(overview: &Overview) -> String {
    let Overview { totals, standing, .. } = overview;
    let card = |name: &str, value: &dyn Display, note: String| {
        format!("<div><dt>{name}</dt><dd>{}</dd><dd class=\"note\">{}</dd></div>", Plain(value), Plain(note))
    };
    let minted = totals.treasury.negated().unwrap_or(totals.treasury);
    let cards = [
        card("Accounts", &totals.owners, format!("{} payees", totals.payees)),
        card("Available", &standing.available, format!("of {minted} credited")),
        card("Held", &standing.held, format!("{} open holds", totals.open_charges)),
        card("Revenue", &totals.revenue, format!("{} open escrows", totals.open_escrows)),
    ];
    format!("<section class=\"bare\" aria-label=\"Totals\"><dl class=\"cards\">{}</dl></section>", cards.concat())
}

fn revenue(overview: &Overview, beside: &Beside) -> String {
    let most = overview.by_owner.first().map_or(Change::ZERO, |(_, earned)| *earned);
    let rows = overview.by_owner.iter().map(|(owner, earned)| {
        row(&[cell(owner), number(earned), format!("<td class=\"wide\">{}</td>", chart::bar(*earned, most))])
    });
    let since = match overview.since {
        None => "since the first entry".to_owned(),
        Some(at) => format!("since {} UTC, in the newest entries", time_of(at)),
    };
    let head = [("Account", ""), ("Revenue", "n"), ("Share of the largest", "wide")];
    format!(
        "<div class=\"two\"><section><h2>Revenue by day and model</h2>{}</section><section><h2>Revenue by account</h2>\
         <p class=\"note\">The largest, {}</p>{}</section></div>",
        chart::by_day(&overview.by_day, &beside.by_model),
        Plain(since),
        table(&head, rows.collect(), "", "No revenue yet."),
    )
}

fn balances(overview: &Overview) -> String {
    let largest = &overview.standing.largest;
    let rows = largest.iter().map(|(owner, balance)| {
        row(&[
            cell(owner),
            number(balance.available),
            number(balance.held),
            format!("<td class=\"n extra\">{}</td>", Plain(balance.open_holds)),
            format!("<td class=\"n extra\">{}</td>", Plain(balance.entries)),
        ])
    });
    let head = [("Account", ""), ("Available", "n"), ("Held", "n"), ("Open holds", "n extra"), ("Entries", "n extra")];
    let (shown, all) = (largest.len(), overview.totals.owners);
    format!(
        "<section><h2>Largest balances</h2><p class=\"note\">{shown} of {all}</p>{}</section>",
        table(&head, rows.collect(), "", "No accounts yet."),
    )
}

fn holds(overview: &Overview) -> String {
    let rows = overview.holds.iter().map(|open| hold(open, overview.at));
    let head = [
        ("Reservation", ""),
        ("Account", ""),
        ("Held", "n"),
        ("Charged so far", "n extra"),
        ("Stage", "extra"),
        ("Age", "n"),
        ("Ends in", "n"),
    ];
    let (shown, all) = (overview.holds.len(), overview.totals.open_charges);
    format!(
        "<section><h2>Open holds</h2><p class=\"note\">{shown} of {all}, those that end first</p>{}</section>",
        table(&head, rows.collect(), "", "Nothing is held."),
    )
}

fn hold(open: &OpenHold, now: Timestamp) -> String {
    let OpenHold { id, owner, hold, reserved_at } = open;
    let age = reserved_at.map_or_else(|| "longer than was looked".to_owned(), |since| between(since, now));
    let ends = if hold.expires_at <= now { "now".to_owned() } else { between(now, hold.expires_at) };
    row(&[
        format!("<td class=\"id\">{}</td>", Plain(id)),
        cell(owner),
        number(hold.held),
        format!("<td class=\"n extra\">{}</td>", Plain(hold.charged)),
        format!("<td class=\"extra\">{}</td>", Plain(stage_name(hold.stage))),
        number(age),
        number(ends),
    ])
}

fn journal(overview: &Overview) -> String {
    let rows = overview.tail.iter().rev().map(entry);
    let head = [
        ("Entry", "n"),
        ("Time (UTC)", ""),
        ("Kind", ""),
        ("Account", ""),
        ("Change", "n"),
        ("Held", "n"),
        ("Balance", "n"),
        ("About", "extra"),
        ("Actor", "extra"),
    ];
    let attributes = format!(" id=\"tail\" data-after=\"{}\"", overview.through);
    format!(
        "<section><h2>Journal</h2><p class=\"note\" id=\"live\" role=\"status\">The newest entries; load the page again \
         for newer ones</p>{}</section>",
        table(&head, rows.collect(), &attributes, ""),
    )
}

fn entry(entry: &TailRow) -> String {
    row(&[
        number(entry.offset),
        cell(time_of(entry.at)),
        cell(&entry.kind),
        cell(&entry.owner),
        number(signed(entry.change)),
        number(signed(entry.held_change)),
        number(entry.balance),
        format!("<td class=\"id extra\">{}</td>", Plain(&entry.correlation)),
        format!("<td class=\"id extra\">{}</td>", Plain(&entry.actor)),
    ])
}

/// A table with a head. `attributes` go to its body; without rows it says `nothing`.
pub(super) fn table(head: &[(&str, &str)], rows: String, attributes: &str, nothing: &str) -> String {
    if rows.is_empty() && !nothing.is_empty() {
        return format!("<p class=\"none\">{nothing}</p>");
    }
    let head = head.iter().map(|(name, class)| format!("<th scope=\"col\" class=\"{class}\">{name}</th>"));
    format!(
        "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>{}</tr></thead><tbody{attributes}>{rows}</tbody></table></div>",
        head.collect::<String>()
    )
}

pub(super) fn row(cells: &[String]) -> String {
    format!("<tr>{}</tr>", cells.concat())
}

pub(super) fn cell(text: impl Display) -> String {
    format!("<td>{}</td>", Plain(text))
}

pub(super) fn number(number: impl Display) -> String {
    format!("<td class=\"n\">{}</td>", Plain(number))
}

/// A change with its sign; nothing for none.
pub(super) fn signed(change: Change) -> String {
    match change.units() {
        0 => String::new(),
        1.. => format!("+{change}"),
        _ => format!("\u{2212}{}", change.to_string().trim_start_matches('-')),
    }
}

/// A moment to the second, as people read it.
pub(super) fn time_of(at: Timestamp) -> String {
    Moment(at).to_string().get(..19).unwrap_or_default().replace('T', " ")
}

/// How long it is from one moment to another, in the two largest units.
pub(super) fn between(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.millis().saturating_sub(from.millis()) / 1_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_written_as_people_read_them() {
        let change = Change::from_units;
        assert_eq!(signed(change(0)), "");
        assert_eq!((signed(change(1_500_000)).as_str(), signed(change(-250_000)).as_str()), ("+1.5", "−0.25"));
        let at = Timestamp::from_millis;
        assert_eq!(time_of(at(1_704_067_261_999)), "2024-01-01 00:01:01");
        for (millis, text) in
            [(999, "0 s"), (61_000, "1 min 1 s"), (3_660_000, "1 h 1 min"), (2 * 86_400_000 + 3_600_000, "2 d 1 h")]
        {
            assert_eq!(between(at(0), at(millis)), text);
        }
        assert_eq!(between(at(5_000), at(0)), "0 s");
    }

    #[test]
    fn what_is_in_the_books_cannot_become_markup() {
        let evil = "<script>alert(1)</script>".to_owned();
        let row = TailRow {
            offset: 1,
            at: Timestamp::EPOCH,
            kind: evil.clone(),
            owner: evil.clone(),
            correlation: evil.clone(),
            state: evil.clone(),
            actor: evil,
            change: Change::ZERO,
            held_change: Change::ZERO,
            balance: Change::ZERO,
        };
        let shown = entry(&row);
        assert!(!shown.contains("<script") && shown.matches("&lt;script&gt;").count() == 4, "{shown}");
    }
}
