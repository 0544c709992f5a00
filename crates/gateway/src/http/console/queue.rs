//! The performance queue on the operator's page: how many items there are, who is next, how the last ones ended, and the
//! escrows that no item has, with a form to give each back.

use super::forms::{Act, act, back};
use super::html::Plain;
use super::page::{between, cell, number, row, table, time_of};
use super::session::Operator;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::queue::{Glance, Orphans};
use crate::wallet::EscrowSeen;
use crate::wire::queue::QueueBody;
use axum::extract::{Request, State};
use axum::response::Response;
use holdfast_domain::Timestamp;
use holdfast_domain::queue::{End, Item, Stage, Verdict};
use std::time::Duration;

/// The rows of each table.
const ROWS: usize = 10;
/// A queue that takes longer is not waited for: the rest of the page is worth seeing.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// On a phone a row becomes some lines.
const STACK: &str = " class=\"stack\"";

/// What the page can say about the queue.
pub(super) enum Seen {
    /// There is none here.
    Off,
    /// It does not answer, or not in time.
    Unknown(String),
    Known(Box<Glance>),
}

/// Looks at the queue.
pub(super) async fn look(state: &AppState) -> Seen {
    let Some(queue) = state.service.queue() else { return Seen::Off };
    match tokio::time::timeout(LOOK_MAX, queue.glance(ROWS)).await {
        Ok(Ok(glance)) => Seen::Known(Box::new(glance)),
        Ok(Err(error)) => Seen::Unknown(error.to_string()),
        Err(_too_late) => Seen::Unknown("the queue does not answer in time".to_owned()),
    }
}

impl Seen {
    /// What an operator must not overlook.
    pub(super) fn notice(&self) -> Option<String> {
        match self {
            Self::Off => None,
            Self::Unknown(why) => Some(format!("How the queue is, is not known: {why}.")),
            Self::Known(glance) => match &glance.orphans {
                Err(error) => Some(format!("Whether an escrow has no queue item is not known: {error}.")),
                Ok(Orphans { orphans, next }) => notice(orphans.len(), next.is_none()),
            },
        }
    }

    /// The section of the page.
    pub(super) fn section(&self, now: Timestamp) -> String {
        let body = match self {
            Self::Off => "<p class=\"none\">The queue is not in this process.</p>".to_owned(),
            Self::Unknown(why) => format!("<p class=\"none\">{}</p>", Plain(why)),
            Self::Known(glance) => known(glance, now),
        };
        format!("<section id=\"queue\"><h2>Queue</h2>{body}</section>")
    }
}

fn notice(many: usize, is_all: bool) -> Option<String> {
    match (many, is_all) {
        (0, _) => None,
        (1, true) => Some("1 escrow is held, and no queue item has it. See Queue.".to_owned()),
        (many, true) => Some(format!("{many} escrows are held, and no queue item has them. See Queue.")),
        (many, false) => Some(format!("{many} escrows or more are held, and no queue item has them. See Queue.")),
    }
}

fn known(glance: &Glance, now: Timestamp) -> String {
    let Glance { counts, open, ended, orphans } = glance;
    let oldest = counts.oldest.map(|since| format!(", the oldest for {}", between(since, now))).unwrap_or_default();
    let open_head = [
        ("Item", ""),
        ("Payee", ""),
        ("User", "extra"),
        ("Amount", "n"),
        ("Priority", "n extra"),
        ("State", ""),
        ("Age", "n"),
        ("Given up in", "n extra"),
    ];
    let ended_head = [
        ("Item", ""),
        ("Payee", "extra"),
        ("User", "extra"),
        ("State", ""),
        ("Reason", ""),
        ("Money", ""),
        ("Ended (UTC)", "extra"),
    ];
    format!(
        "<p class=\"note\">{} queued, {} in progress{}</p><h3>Escrows without an item</h3>{}\
         <h3>Open items, the next first</h3>{}<h3>The last to end</h3>{}",
        Plain(counts.queued),
        Plain(counts.in_progress),
        Plain(oldest),
        match orphans {
            Ok(orphans) => without_item(&orphans.orphans, now),
            Err(error) => format!("<p class=\"none\">{}</p>", Plain(error)),
        },
        table(&open_head, open.iter().map(|item| waiting(item, now)).collect(), STACK, "Nothing waits."),
        table(&ended_head, ended.iter().map(over).collect(), STACK, "None yet."),
    )
}

fn without_item(orphans: &[EscrowSeen], now: Timestamp) -> String {
    let head = [("Escrow", ""), ("User", ""), ("Amount", "n"), ("For", "extra"), ("Held for", "n"), ("", "")];
    let rows = orphans.iter().map(|orphan| orphaned(orphan, now)).collect();
    table(&head, rows, STACK, "None: every escrow that has been held for some time has its item.")
}

fn orphaned(orphan: &EscrowSeen, now: Timestamp) -> String {
    let EscrowSeen { id, owner, escrowed, .. } = orphan;
    let (id, owner, amount) = (Plain(id), Plain(owner), Plain(escrowed.amount));
    // Two steps, since it cannot be undone, and without a script.
    let form = format!(
        "<td class=\"acts\"><details><summary>Refund …</summary><form method=\"post\" action=\"/console/escrows/refund\">\
         <input type=\"hidden\" name=\"id\" value=\"{id}\"><button>Give {amount} back to {owner}</button></form>\
         </details></td>"
    );
    row(&[
        format!("<td class=\"id\">{id}</td>"),
        format!("<td>{owner}</td>"),
        format!("<td class=\"n\">{amount}</td>"),
        format!("<td class=\"extra\">{}</td>", Plain(escrowed.feature)),
        format!(
            "<td class=\"n\" title=\"{}\">{}</td>",
            Plain(time_of(escrowed.held_at)),
            Plain(between(escrowed.held_at, now))
        ),
        form,
    ])
}

fn waiting(item: &Item, now: Timestamp) -> String {
    let intake = &item.intake;
    let drop_at = match item.stage {
        Stage::Queued { drop_at } => drop_at,
        Stage::InProgress { .. } | Stage::Ended(_) => None,
    };
    let dropped = drop_at.map(|at| if at <= now { "now".to_owned() } else { between(now, at) });
    row(&[
        format!("<td class=\"id\">{}</td>", Plain(intake.id)),
        cell(intake.payee),
        format!("<td class=\"extra\">{}</td>", Plain(intake.user)),
        number(intake.amount),
        format!("<td class=\"n extra\">{}</td>", Plain(intake.priority)),
        cell(words(item.state().name())),
        format!(
            "<td class=\"n\" title=\"{}\">{}</td>",
            Plain(time_of(item.queued_at)),
            Plain(between(item.queued_at, now))
        ),
        format!("<td class=\"n extra\">{}</td>", Plain(dropped.unwrap_or_default())),
    ])
}

fn over(item: &Item) -> String {
    let Stage::Ended(End { verdict, ended_at, .. }) = item.stage else { return String::new() };
    let intake = &item.intake;
    // In words, since a phone shows no heads of columns.
    let money = match verdict {
        Verdict::Finish => format!("{} paid out", intake.amount),
        Verdict::Abandon { .. } => format!("{} given back", intake.amount),
        Verdict::Partial { settle, refund, .. } => format!("{settle} paid out, {refund} given back"),
    };
    row(&[
        format!("<td class=\"id\">{}</td>", Plain(intake.id)),
        format!("<td class=\"extra\">{}</td>", Plain(intake.payee)),
        format!("<td class=\"extra\">{}</td>", Plain(intake.user)),
        cell(words(verdict.state().name())),
        cell(words(verdict.cause().name())),
        cell(money),
        format!("<td class=\"extra\">{}</td>", Plain(time_of(ended_at))),
    ])
}

/// A name of the wire as people read it.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// Gives an escrow back that no item has.
pub(in crate::http) async fn refund(
    State(state): State<AppState>,
    operator: Operator,
    request: Request,
) -> Result<Response, ApiError> {
    let Act { id, .. } = act(request).await?;
    state.service.queue_line(QueueBody::EscrowOrphanRefund { escrow_id: id }, operator.subject).await?;
    Ok(back("/console#queue"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::QueueError;
    use holdfast_domain::Span;
    use holdfast_domain::escrow::Escrowed;
    use holdfast_domain::queue::{Cause, Intake};
    use holdfast_engine::queue::Counts;

    const NOW: Timestamp = Timestamp::from_millis(10_000_000);
    const A_MINUTE_AGO: Timestamp = Timestamp::from_millis(10_000_000 - 61_000);

    fn item(id: &str, stage: Stage) -> Item {
        let intake = Intake {
            id: id.parse().unwrap(),
            user: "alice".parse().unwrap(),
            payee: "mia".parse().unwrap(),
            escrow: "esc_1".parse().unwrap(),
            amount: "10.5".parse().unwrap(),
            feature: "solo".parse().unwrap(),
            priority: -7,
            metadata: Some("{\"a\":\"<script>\"}".into()),
        };
        Item { intake, queued_at: A_MINUTE_AGO, stage }
    }

    fn ended(id: &str, verdict: Verdict) -> Item {
        item(id, Stage::Ended(End { verdict, started_at: None, ended_at: NOW }))
    }

    fn orphan(id: &str) -> EscrowSeen {
        EscrowSeen {
            id: id.parse().unwrap(),
            owner: "bob".parse().unwrap(),
            escrowed: Escrowed {
                amount: "3.25".parse().unwrap(),
                feature: "group".parse().unwrap(),
                held_at: A_MINUTE_AGO,
            },
            end: None,
            metadata: None,
        }
    }

    fn glance(orphans: Result<Orphans, QueueError>) -> Seen {
        let (settle, refund) = ("6".parse().unwrap(), "4.5".parse().unwrap());
        Seen::Known(Box::new(Glance {
            counts: Counts { queued: 1, in_progress: 1, oldest: Some(A_MINUTE_AGO) },
            open: vec![
                item("qi_1", Stage::Queued { drop_at: Some(NOW.after(Span::from_secs(5))) }),
                item("qi_2", Stage::InProgress { started_at: NOW }),
            ],
            ended: vec![
                ended("qi_3", Verdict::Finish),
                ended("qi_4", Verdict::Abandon { cause: Cause::RopeDropTimeout }),
                ended("qi_5", Verdict::Partial { settle, refund, cause: Cause::QualityIssue }),
            ],
            orphans,
        }))
    }

    #[test]
    fn the_section_says_who_waits_who_ended_how_and_what_nobody_has() {
        let seen = glance(Ok(Orphans { orphans: vec![orphan("esc_7")], next: None }));
        let shown = seen.section(NOW);
        assert!(shown.contains("1 queued, 1 in progress, the oldest for 1 min 1 s"), "{shown}");
        assert!(shown.contains("<td class=\"id\">qi_1</td><td>mia</td>") && shown.contains(">5 s</td>"), "{shown}");
        assert!(shown.contains("<td>queued</td>") && shown.contains("<td>in progress</td>"), "{shown}");
        for (state, reason, money) in [
            ("finished", "performance completed", "10.5 paid out"),
            ("abandoned", "rope drop timeout", "10.5 given back"),
            ("partial", "quality issue", "6 paid out, 4.5 given back"),
        ] {
            let cells = format!("<td>{state}</td><td>{reason}</td><td>{money}</td>");
            assert!(shown.contains(&cells), "{cells}: {shown}");
        }
        assert!(shown.contains("action=\"/console/escrows/refund\"") && shown.contains("value=\"esc_7\""), "{shown}");
        assert!(shown.contains("<button>Give 3.25 back to bob</button>"), "{shown}");
        assert!(!shown.contains("<script"), "what callers say is not shown");
    }

    #[test]
    fn orphans_are_told_of_at_the_top() {
        let notice = |orphans: Vec<EscrowSeen>, next: Option<&str>| {
            glance(Ok(Orphans { orphans, next: next.map(|id| id.parse().unwrap()) })).notice()
        };
        assert_eq!(notice(vec![], None), None);
        assert!(notice(vec![orphan("a")], None).unwrap().starts_with("1 escrow is held"));
        assert!(notice(vec![orphan("a"), orphan("b")], None).unwrap().starts_with("2 escrows are held"));
        assert!(notice(vec![orphan("a")], Some("a")).unwrap().starts_with("1 escrows or more"));
        let away = glance(Err(QueueError::Store("no <answer>".to_owned())));
        assert!(away.notice().unwrap().contains("is not known"));
        let shown = away.section(NOW);
        assert!(shown.contains("no &lt;answer&gt;") && shown.contains("<td>in progress</td>"), "{shown}");
    }

    #[test]
    fn without_a_queue_or_an_answer_the_section_says_so() {
        assert!(Seen::Off.section(NOW).contains("not in this process") && Seen::Off.notice().is_none());
        let unknown = Seen::Unknown("no <answer>".to_owned());
        assert!(unknown.section(NOW).contains("no &lt;answer&gt;") && unknown.notice().is_some());
    }
}
