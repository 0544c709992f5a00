//! What the peer is still to be told, on the operator's page: counts, dead letters with what to do about each, and the forms'
//! other end.

use super::forms::{Act, act, back};
use super::html::Plain;
use super::page::{between, cell, number, row, table, time_of};
use super::session::Operator;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::service::Outstanding;
use crate::wire::obligations::{ObligationsBody, state_name};
use axum::extract::{Request, State};
use axum::response::Response;
use holdfast_domain::Timestamp;
use holdfast_engine::obligations::{Standing, Stored};
use std::time::Duration;

/// The rows of each table.
const ROWS: usize = 10;
/// A store that takes longer is not waited for: the rest of the page is worth seeing.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// What the page can say about settlement.
pub(super) enum Seen {
    /// Nothing is delivered here.
    Off,
    /// The store does not answer, or not in time.
    Unknown(String),
    Known(Outstanding),
}

/// Looks at the store.
pub(super) async fn look(state: &AppState) -> Seen {
    match tokio::time::timeout(LOOK_MAX, state.service.outstanding(ROWS)).await {
        Ok(Ok(Some(outstanding))) => Seen::Known(outstanding),
        Ok(Ok(None)) => Seen::Off,
        Ok(Err(problem)) => Seen::Unknown(problem.to_string()),
        Err(_too_late) => Seen::Unknown("the store of obligations does not answer in time".to_owned()),
    }
}

impl Seen {
    /// What an operator must not overlook.
    pub(super) fn notice(&self) -> Option<String> {
        match self {
            Self::Off => None,
            Self::Unknown(why) => Some(format!("What the peer is owed is not known: {why}.")),
            Self::Known(Outstanding { count, .. }) => match count.dead {
                0 => None,
                1 => Some("1 charge was given up: the peer does not know of it. See Settlement.".to_owned()),
                dead => Some(format!("{dead} charges were given up: the peer does not know of them. See Settlement.")),
            },
        }
    }

    /// The section of the page.
    pub(super) fn section(&self, now: Timestamp) -> String {
        let body = match self {
            Self::Off => "<p class=\"none\">No peer is configured: charges are told to nobody.</p>".to_owned(),
            Self::Unknown(why) => format!("<p class=\"none\">{}</p>", Plain(why)),
            Self::Known(outstanding) => known(outstanding, now),
        };
        format!("<section id=\"settlement\"><h2>Settlement</h2>{body}</section>")
    }
}

fn known(outstanding: &Outstanding, now: Timestamp) -> String {
    let Outstanding { count, pending, dead } = outstanding;
    let waiting = pending.iter().map(|stored| waiting(stored, now));
    let head = [
        ("Obligation", ""),
        ("Account", ""),
        ("Amount", "n"),
        ("Age", "n extra"),
        ("Attempts", "n"),
        ("State", "extra"),
        ("Last word", "extra"),
    ];
    let given_up = dead.iter().map(|stored| given_up(stored, now));
    let dead_head =
        [("Obligation", ""), ("Account", ""), ("Amount", "n"), ("Age", "n extra"), ("Last word", ""), ("", "")];
    format!(
        "<p class=\"note\">{} to be told to the peer, {} given up</p><h3>Dead letters</h3>{}<h3>Pending, the oldest</h3>{}",
        Plain(count.pending),
        Plain(count.dead),
        table(
            &dead_head,
            given_up.collect(),
            " class=\"stack\"",
            "None: the peer knows of every charge, or is still being told."
        ),
        table(&head, waiting.collect(), "", "Nothing: the peer knows of every charge."),
    )
}

fn waiting(stored: &Stored, now: Timestamp) -> String {
    let obligation = &stored.obligation;
    let state = match &stored.standing {
        Standing::Due { at } if *at > now => format!("due in {}", between(now, *at)),
        standing @ (Standing::Due { .. } | Standing::Leased { .. } | Standing::Dead) => state_name(standing).to_owned(),
    };
    row(&[
        format!("<td class=\"id\">{}</td>", Plain(obligation.id)),
        cell(obligation.owner),
        number(obligation.cost),
        format!("<td class=\"n extra\">{}</td>", Plain(between(obligation.created_at, now))),
        number(stored.attempts),
        format!("<td class=\"extra\">{}</td>", Plain(state.replace('_', " "))),
        format!("<td class=\"extra words\">{}</td>", Plain(word(stored))),
    ])
}

fn given_up(stored: &Stored, now: Timestamp) -> String {
    let obligation = &stored.obligation;
    let id = Plain(obligation.id);
    let forms = format!(
        "<td class=\"acts\"><form method=\"post\" action=\"/console/obligations/replay\">\
         <input type=\"hidden\" name=\"id\" value=\"{id}\"><button>Replay</button></form>\
         <form method=\"post\" action=\"/console/obligations/resolve\">\
         <input type=\"hidden\" name=\"id\" value=\"{id}\">\
         <input name=\"note\" required maxlength=\"200\" placeholder=\"how it was settled\" \
         aria-label=\"How {id} was settled by hand\"><button>Resolve</button></form></td>"
    );
    row(&[
        format!("<td class=\"id\">{id}</td>"),
        cell(obligation.owner),
        number(obligation.cost),
        format!(
            "<td class=\"n extra\" title=\"{}\">{}</td>",
            Plain(time_of(obligation.created_at)),
            Plain(between(obligation.created_at, now))
        ),
        format!("<td class=\"words\">{}</td>", Plain(word(stored))),
        forms,
    ])
}

fn word(stored: &Stored) -> &str {
    stored.reason.as_ref().map_or("", |reason| reason.as_str())
}

/// Has the peer told of a dead letter now.
pub(in crate::http) async fn replay(
    State(state): State<AppState>,
    operator: Operator,
    request: Request,
) -> Result<Response, ApiError> {
    let Act { id, .. } = act(request).await?;
    state.service.obligations(ObligationsBody::ObligationReplay { id }, operator.subject).await?;
    Ok(back("/console#settlement"))
}

/// Takes a dead letter out for good.
pub(in crate::http) async fn resolve(
    State(state): State<AppState>,
    operator: Operator,
    request: Request,
) -> Result<Response, ApiError> {
    let Act { id, note } = act(request).await?;
    let note = note.unwrap_or_default();
    state.service.obligations(ObligationsBody::ObligationResolve { id, note }, operator.subject).await?;
    Ok(back("/console#settlement"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_domain::delivery::Obligation;
    use holdfast_domain::{CreditUnit, Span};
    use holdfast_engine::obligations::Count;

    const NOW: Timestamp = Timestamp::from_millis(10_000_000);

    fn stored(standing: Standing, reason: &str) -> Stored {
        let obligation = Obligation {
            id: "late_1".parse().unwrap(),
            charge: "chg_1".parse().unwrap(),
            owner: "alice".parse().unwrap(),
            cost: CreditUnit::new(12_500_000).unwrap(),
            created_at: Timestamp::from_millis(10_000_000 - 61_000),
        };
        Stored { obligation, attempts: 3, reason: reason.parse().ok(), standing }
    }

    #[test]
    fn the_section_says_what_is_owed_and_nothing_in_it_becomes_markup() {
        let evil = "<script>alert(1)</script>";
        let due = Standing::Due { at: NOW.after(Span::from_secs(5)) };
        let (pending, dead) = (vec![stored(due, evil)], vec![stored(Standing::Dead, evil)]);
        let seen = Seen::Known(Outstanding { count: Count { pending: 1, dead: 1 }, pending, dead });
        let shown = seen.section(NOW);
        assert!(shown.contains("1 to be told to the peer, 1 given up") && shown.contains("due in 5 s"), "{shown}");
        assert!(shown.contains("<td class=\"n\">12.5</td>") && shown.contains("1 min 1 s"), "{shown}");
        assert!(shown.contains("action=\"/console/obligations/replay\"") && shown.contains("value=\"late_1\""));
        assert!(!shown.contains("<script") && shown.matches("&lt;script&gt;").count() == 2, "{shown}");
        assert!(seen.notice().unwrap().starts_with("1 charge was given up"));
    }

    #[test]
    fn without_a_peer_or_a_store_the_section_says_so() {
        assert!(Seen::Off.section(NOW).contains("No peer is configured") && Seen::Off.notice().is_none());
        let unknown = Seen::Unknown("no <answer>".to_owned());
        assert!(unknown.section(NOW).contains("no &lt;answer&gt;") && unknown.notice().is_some());
    }
}
