//! Limits of accounts, teams and organisations on the wire.

use super::Shown;
use super::error::{Problem, WireError};
use super::parse;
use super::question::page;
use super::time::Moment;
use crate::identity::limits::{Change, Level, LimitRecord, NewLimit, Spender};
use holdfast_domain::budget::Used;
use holdfast_domain::{CreditUnit, Day, Label};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What takes a part of a limit away.
const NONE: &str = "none";

/// Everything about limits that can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum LimitsBody {
    /// What is not said stays as it is; `none` takes it away.
    LimitSet {
        of: LevelBody,
        id: String,
        per_day_cu: Option<Value>,
        in_total_cu: Option<Value>,
        team: Option<String>,
        organisation: Option<String>,
    },
    Limit {
        of: LevelBody,
        id: String,
    },
    Limits {
        after: Option<String>,
        limit: Option<u64>,
    },
}

/// Whose limit.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LevelBody {
    Account,
    Team,
    Organisation,
}

impl From<LevelBody> for Level {
    fn from(level: LevelBody) -> Self {
        match level {
            LevelBody::Account => Self::Account,
            LevelBody::Team => Self::Team,
            LevelBody::Organisation => Self::Organisation,
        }
    }
}

/// What is to be done with limits, well formed.
pub(crate) enum LimitsTask {
    Set(Spender, NewLimit),
    Show(Spender),
    List { after: Option<Spender>, at_most: usize },
}

impl LimitsBody {
    /// The task, if every word of this is well formed.
    pub(crate) fn into_task(self) -> Result<LimitsTask, Problem> {
        Ok(match self {
            Self::LimitSet { of, id, per_day_cu, in_total_cu, team, organisation } => {
                let spender = spender(of, &id)?;
                let new = NewLimit {
                    per_day: amount("per_day_cu", per_day_cu)?,
                    in_total: amount("in_total_cu", in_total_cu)?,
                    within: within(spender.level, team.as_deref(), organisation.as_deref())?,
                };
                if new.per_day.is_keep() && new.in_total.is_keep() && new.within.is_keep() {
                    return Err(WireError::Malformed(
                        "say what is to change: `per_day_cu`, `in_total_cu`, or whom they belong to".to_owned(),
                    )
                    .into());
                }
                LimitsTask::Set(spender, new)
            }
            Self::Limit { of, id } => LimitsTask::Show(spender(of, &id)?),
            Self::Limits { after, limit } => {
                let wrong = || WireError::Malformed("`after` must be the `next` of the page before".to_owned());
                let after = after.map(|after| after.parse().map_err(|_| wrong())).transpose()?;
                LimitsTask::List { after, at_most: page(limit)? }
            }
        })
    }
}

fn spender(of: LevelBody, id: &str) -> Result<Spender, WireError> {
    Ok(Spender { level: of.into(), name: parse::id("id", id)? })
}

fn amount(field: &'static str, value: Option<Value>) -> Result<Change<CreditUnit>, WireError> {
    match value {
        None => Ok(Change::Keep),
        Some(value) if value.as_str() == Some(NONE) => Ok(Change::Remove),
        Some(value) => parse::amount(field, &value).map(Change::Set),
    }
}

fn within(level: Level, team: Option<&str>, organisation: Option<&str>) -> Result<Change<Label>, WireError> {
    let (said, other, field) = match level {
        Level::Account => (team, organisation, "team"),
        Level::Team => (organisation, team, "organisation"),
        Level::Organisation => (None, team.or(organisation), "organisation"),
    };
    if other.is_some() {
        let why = "an account can be in a team, a team in an organisation, and nothing else in anything".to_owned();
        return Err(WireError::Malformed(why));
    }
    match said {
        None => Ok(Change::Keep),
        Some(NONE) => Ok(Change::Remove),
        Some(name) => parse::id(field, name).map(Change::Set),
    }
}

/// What was done with limits.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum LimitsAnswer {
    One(Box<LimitBody>),
    Many {
        limits: Vec<LimitBody>,
        /// What to ask for `after` to get the next page; null on the last.
        next: Option<String>,
    },
}

/// A limit as it is shown, with what is used of it.
#[derive(Serialize)]
pub(crate) struct LimitBody {
    of: &'static str,
    id: Shown<Label>,
    per_day_cu: Option<Shown<CreditUnit>>,
    used_today_cu: Shown<CreditUnit>,
    in_total_cu: Option<Shown<CreditUnit>>,
    used_in_total_cu: Shown<CreditUnit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<Shown<Label>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    organisation: Option<Shown<Label>>,
    set_at: Option<Moment>,
}

impl LimitBody {
    pub(crate) fn new(spender: Spender, record: Option<LimitRecord>, used: &Used, today: Day) -> Self {
        let within = |level| record.and_then(|record| record.within).filter(|_| spender.level.above() == Some(level));
        Self {
            of: spender.level.name(),
            id: Shown(spender.name),
            per_day_cu: record.and_then(|record| record.per_day).map(Shown),
            used_today_cu: Shown(used.on(today)),
            in_total_cu: record.and_then(|record| record.in_total).map(Shown),
            used_in_total_cu: Shown(used.total),
            team: within(Level::Team).map(Shown),
            organisation: within(Level::Organisation).map(Shown),
            set_at: record.map(|record| Moment(record.set_at)),
        }
    }
}
