//! The life of a charge, as the billing specification tells it.

use super::{AMOUNT_MAX, Draft, Life, Model, Moves, No, invalid_amount, unit, units};
use holdfast_domain::CreditUnit;
use holdfast_domain::charge::{
    Actual, Command, Event as ChargeEvent, Finality, OnExpiry, Overrun, Reserve, State, Taken, Terms,
};
use holdfast_domain::{ChargeId, Event, OwnerId, Price, Span, Timestamp};
use holdfast_engine::Refusal;

/// A charge, open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChargeRow {
    pub(crate) owner: OwnerId,
    pub(crate) state: State,
    pub(crate) held: i128,
    pub(crate) charged: i128,
    pub(crate) uncollected: i128,
    /// What came back when the hold ended.
    pub(crate) returned: i128,
    /// What was charged after the hold had ended.
    pub(crate) late: i128,
    /// What was noted as delivered costs.
    pub(crate) noted: i128,
    pub(crate) in_flight: bool,
    /// Whether it ended by running out, so that late results are still charged.
    pub(crate) takes_late: bool,
    pub(crate) terms: Terms,
    pub(crate) expires_at: u64,
    /// Its newest entry.
    pub(crate) last: u64,
}

impl ChargeRow {
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Held)
    }
}

const YEAR_MS: u64 = 366 * 24 * 60 * 60 * 1_000;

fn ends_at(now: u64, ttl: Span) -> Result<u64, No> {
    if (1..=YEAR_MS).contains(&ttl.millis()) {
        Ok(now.saturating_add(ttl.millis()))
    } else {
        Err(Refusal::InvalidTtl.into())
    }
}

/// The cost in millionths of a credit, rounded down. A price per request is paid with the final usage.
fn cost(terms: &Terms, actual: Actual, finality: Finality) -> Result<i128, No> {
    let usage = match actual {
        Actual::Credits(amount) => return Ok(units(amount)),
        Actual::Usage(usage) => usage,
    };
    let rates = terms.rates.ok_or(Refusal::NoFrozenRates)?;
    let times =
        |tokens: u64, own: Option<Price>, usual: Price| i128::from(tokens) * i128::from(own.unwrap_or(usual).get());
    let mut pico_usd = times(usage.input, None, rates.input)
        + times(usage.cached_input, rates.cached_input, rates.input)
        + times(usage.cache_write, rates.cache_write, rates.input)
        + times(usage.output, None, rates.output)
        + times(usage.reasoning, rates.reasoning, rates.output);
    if let (Finality::Final, Some(price)) = (finality, rates.per_request) {
        pico_usd += i128::from(price.get()) * 1_000_000;
    }
    let cost = pico_usd * i128::from(rates.credits_per_usd.get()) / 1_000_000;
    if cost > AMOUNT_MAX { Err(invalid_amount().into()) } else { Ok(cost) }
}

/// What one commit takes from where.
struct Take {
    from_hold: i128,
    from_available: i128,
    returned: i128,
    uncollected: i128,
}

impl Take {
    fn event(&self, finality: Finality) -> ChargeEvent {
        let taken = Taken {
            from_hold: unit(self.from_hold),
            from_available: unit(self.from_available),
            returned: unit(self.returned),
            uncollected: unit(self.uncollected),
        };
        ChargeEvent::Committed { taken, finality }
    }

    fn moves(&self) -> Moves {
        Moves {
            held: -(self.from_hold + self.returned),
            revenue: self.from_hold + self.from_available,
            available: self.returned - self.from_available,
            ..Moves::default()
        }
    }

    /// The charge after it, if all of its sums stay in range.
    fn after(&self, row: ChargeRow) -> Result<ChargeRow, No> {
        let charged = row.charged + self.from_hold + self.from_available;
        let uncollected = row.uncollected + self.uncollected;
        let held = row.held - self.from_hold - self.returned;
        if charged + held > AMOUNT_MAX || uncollected > AMOUNT_MAX {
            return Err(invalid_amount().into());
        }
        Ok(ChargeRow { charged, uncollected, held, ..row })
    }
}

impl Model {
    pub(super) fn reserve(&self, id: ChargeId, reserve: &Reserve, now: u64) -> Result<Draft, No> {
        if let Some(row) = self.charges.get(&id) {
            return Err(No::WrongState { last: row.last, refusal: Refusal::KeyReused });
        }
        let owner = self.owners.get(&reserve.owner).ok_or(Refusal::UnknownAccount)?;
        if owner.open >= self.open_holds_max {
            return Err(Refusal::TooManyOpenHolds { open: owner.open }.into());
        }
        if reserve.amount.is_zero() {
            return Err(invalid_amount().into());
        }
        let expires_at = ends_at(now, reserve.ttl)?;
        self.check_limits(reserve.budgets.as_slice(), reserve.amount, now)?;
        let amount = units(reserve.amount);
        let row = ChargeRow {
            owner: reserve.owner,
            state: State::Held,
            held: amount,
            charged: 0,
            uncollected: 0,
            returned: 0,
            late: 0,
            noted: 0,
            in_flight: false,
            takes_late: false,
            terms: reserve.terms,
            expires_at,
            last: 0,
        };
        let event = ChargeEvent::Reserved {
            amount: reserve.amount,
            terms: reserve.terms,
            expires_at: Timestamp::from_millis(expires_at),
            budgets: reserve.budgets.clone(),
        };
        Ok(draft(id, row, event, Moves { available: -amount, held: amount, ..Moves::default() }))
    }

    pub(super) fn move_charge(&self, id: ChargeId, command: &Command, now: u64) -> Result<Draft, No> {
        let row = *self.charges.get(&id).ok_or(Refusal::UnknownCharge)?;
        let available = self.owners.get(&row.owner).map_or(0, |owner| owner.available);
        let wrong = || No::WrongState { last: row.last, refusal: Refusal::InvalidState(row.state) };
        match row.state {
            State::Held => {
                let draft = held(id, row, command, now, available).unwrap_or_else(|| Err(wrong()))?;
                if let Command::Increase { amount } = command {
                    self.check_limits(self.limits_of(id).0, *amount, now)?;
                }
                Ok(draft)
            }
            State::Committed | State::Acked | State::Failed | State::Voided | State::Released | State::AutoReleased => {
                closed(id, row, command, available).unwrap_or_else(|| Err(wrong()))
            }
        }
    }

    /// The open hold that ends next, and when. Of several that end together, any.
    #[must_use]
    pub fn next_due(&self) -> Option<(u64, ChargeId)> {
        let open = self.charges.iter().filter(|(_, row)| row.is_open());
        open.map(|(id, row)| (row.expires_at, *id)).min()
    }

    /// When an open hold ends.
    #[must_use]
    pub fn ends_at(&self, id: ChargeId) -> Option<u64> {
        self.charges.get(&id).filter(|row| row.is_open()).map(|row| row.expires_at)
    }

    /// What is held for a charge, and what was charged for it.
    #[must_use]
    pub fn held_and_charged(&self, id: ChargeId) -> Option<(i128, i128)> {
        self.charges.get(&id).map(|row| (row.held, row.charged))
    }

    /// Every charge with its state.
    pub fn charges(&self) -> impl Iterator<Item = (ChargeId, State)> {
        self.charges.iter().map(|(id, row)| (*id, row.state))
    }

    /// How many holds are open.
    #[must_use]
    pub fn open_charges(&self) -> usize {
        self.charges.values().filter(|row| row.is_open()).count()
    }
}

fn draft(id: ChargeId, row: ChargeRow, event: ChargeEvent, moves: Moves) -> Draft {
    let owner = row.owner;
    Draft { owner, event: Event::Charge { id, owner, event }, life: Life::Charge(id, row), moves }
}

/// What a command does to an open hold; `None` if it is not for one.
fn held(id: ChargeId, row: ChargeRow, command: &Command, now: u64, available: i128) -> Option<Result<Draft, No>> {
    Some(match command {
        Command::Start if !row.in_flight => {
            Ok(draft(id, ChargeRow { in_flight: true, ..row }, ChargeEvent::Started, Moves::default()))
        }
        Command::Note { actual } => cost(&row.terms, *actual, Finality::Final).map(|cost| {
            let noted = cost.max(row.noted);
            draft(id, ChargeRow { noted, ..row }, ChargeEvent::Noted { cost: unit(noted) }, Moves::default())
        }),
        // Nobody is left to be refused: what cannot be taken from the hold is as the terms say, but for a refusal.
        Command::Abandon => match (row.noted - row.charged - row.uncollected).max(0) {
            0 => Ok(give_back(id, row, GaveBack::Release)),
            rest => {
                let rest = if row.terms.overrun == Overrun::Refuse { rest.min(row.held) } else { rest };
                commit(id, row, Actual::Credits(unit(rest)), Finality::Final, available)
            }
        },
        Command::Increase { amount } => {
            let (by, amount) = (units(*amount), *amount);
            if by == 0 || row.held + row.charged + by > AMOUNT_MAX {
                return Some(Err(invalid_amount().into()));
            }
            let moves = Moves { available: -by, held: by, ..Moves::default() };
            Ok(draft(id, ChargeRow { held: row.held + by, ..row }, ChargeEvent::Increased { amount }, moves))
        }
        Command::Extend { ttl } => ends_at(now, *ttl).map(|ends| {
            let expires_at = ends.max(row.expires_at);
            let event = ChargeEvent::Extended { expires_at: Timestamp::from_millis(expires_at) };
            draft(id, ChargeRow { expires_at, ..row }, event, Moves::default())
        }),
        Command::Commit { actual, finality } => commit(id, row, *actual, *finality, available),
        Command::Release => Ok(give_back(id, row, GaveBack::Release)),
        Command::Expire if row.expires_at <= now => match (row.in_flight, row.terms.on_expiry) {
            (true, OnExpiry::ChargeEstimate) => {
                let take = Take { from_hold: row.held, from_available: 0, returned: 0, uncollected: 0 };
                take.after(row).map(|after| {
                    let after = ChargeRow { state: State::Committed, ..after };
                    draft(id, after, take.event(Finality::Final), take.moves())
                })
            }
            (true, OnExpiry::Release) | (false, OnExpiry::Release | OnExpiry::ChargeEstimate) => {
                Ok(give_back(id, row, GaveBack::Expiry))
            }
        },
        Command::Start | Command::Expire | Command::Void { .. } | Command::Ack { .. } | Command::Fail { .. } => {
            return None;
        }
    })
}

fn commit(id: ChargeId, row: ChargeRow, actual: Actual, finality: Finality, available: i128) -> Result<Draft, No> {
    let cost = cost(&row.terms, actual, finality)?;
    if cost == 0 && finality == Finality::Partial {
        return Err(invalid_amount().into());
    }
    let from_hold = cost.min(row.held);
    let beyond = cost - from_hold;
    let from_available = match row.terms.overrun {
        Overrun::Refuse if beyond > 0 => return Err(Refusal::ExceedsHold { chargeable: unit(row.held) }.into()),
        Overrun::Refuse | Overrun::Cap => 0,
        Overrun::Available => beyond.min(available),
    };
    let returned = match finality {
        Finality::Final => row.held - from_hold,
        Finality::Partial => 0,
    };
    let take = Take { from_hold, from_available, returned, uncollected: beyond - from_available };
    let after = take.after(row)?;
    let after = match finality {
        Finality::Final => ChargeRow { state: State::Committed, returned, ..after },
        Finality::Partial => after,
    };
    Ok(draft(id, after, take.event(finality), take.moves()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GaveBack {
    Release,
    Expiry,
}

/// Ends a hold by giving back what is left of it. If a part was charged, the peer must still learn of that part.
fn give_back(id: ChargeId, row: ChargeRow, how: GaveBack) -> Draft {
    let returned = unit(row.held);
    let (event, uncharged) = match how {
        GaveBack::Release => (ChargeEvent::Released { returned }, State::Released),
        GaveBack::Expiry => (ChargeEvent::AutoReleased { returned }, State::AutoReleased),
    };
    let state = if row.charged == 0 { uncharged } else { State::Committed };
    let after = ChargeRow { state, held: 0, returned: row.held, takes_late: how == GaveBack::Expiry, ..row };
    draft(id, after, event, Moves { available: row.held, held: -row.held, ..Moves::default() })
}

/// Whether the peer was told of all that was charged, as far as is said.
fn is_still(row: &ChargeRow, charged: Option<CreditUnit>) -> bool {
    charged.is_none_or(|charged| charged == unit(row.charged))
}

/// What a command does to a charge whose hold has ended; `None` if it is not for one in that state.
fn closed(id: ChargeId, row: ChargeRow, command: &Command, available: i128) -> Option<Result<Draft, No>> {
    let paid = matches!(row.state, State::Committed | State::Acked | State::Failed);
    Some(match command {
        Command::Commit { actual, finality } if row.takes_late && (paid || row.state == State::AutoReleased) => {
            late(id, row, *actual, *finality, available)
        }
        Command::Ack { charged }
            if matches!(row.state, State::Committed | State::Failed) && is_still(&row, *charged) =>
        {
            Ok(draft(id, ChargeRow { state: State::Acked, ..row }, ChargeEvent::Acked, Moves::default()))
        }
        Command::Fail { reason, charged } if row.state == State::Committed && is_still(&row, *charged) => {
            let event = ChargeEvent::Failed { reason: reason.clone() };
            Ok(draft(id, ChargeRow { state: State::Failed, ..row }, event, Moves::default()))
        }
        Command::Void { reason } if paid || (row.state == State::AutoReleased && row.charged > 0) => {
            let event = ChargeEvent::Voided { returned: unit(row.charged), reason: reason.clone() };
            let moves = Moves { revenue: -row.charged, available: row.charged, ..Moves::default() };
            Ok(draft(id, ChargeRow { state: State::Voided, takes_late: false, ..row }, event, moves))
        }
        Command::Start
        | Command::Note { .. }
        | Command::Abandon
        | Command::Increase { .. }
        | Command::Extend { .. }
        | Command::Commit { .. }
        | Command::Release
        | Command::Expire
        | Command::Void { .. }
        | Command::Ack { .. }
        | Command::Fail { .. } => return None,
    })
}

/// A result that comes after the hold has run out is posted against what is available.
fn late(id: ChargeId, row: ChargeRow, actual: Actual, finality: Finality, available: i128) -> Result<Draft, No> {
    let cost = cost(&row.terms, actual, finality)?;
    if cost == 0 && finality == Finality::Partial {
        return Err(invalid_amount().into());
    }
    let chargeable = match row.terms.overrun {
        Overrun::Cap | Overrun::Refuse => (row.returned - row.late).max(0).min(available),
        Overrun::Available => available,
    };
    if row.terms.overrun == Overrun::Refuse && cost > chargeable {
        return Err(Refusal::ExceedsHold { chargeable: unit(chargeable) }.into());
    }
    let from_available = cost.min(chargeable);
    let take = Take { from_hold: 0, from_available, returned: 0, uncollected: cost - from_available };
    let after = take.after(row)?;
    let state = match (row.state, finality) {
        (State::AutoReleased, Finality::Partial) => State::AutoReleased,
        (_, Finality::Partial | Finality::Final) => State::Committed,
    };
    let late = row.late + from_available;
    let after = ChargeRow { state, late, takes_late: finality == Finality::Partial, ..after };
    Ok(draft(id, after, take.event(finality), take.moves()))
}
