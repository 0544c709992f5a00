//! What callers ask of the engine, and what they are told.

use crate::error::Refusal;
use crate::keys::KeyHash;
use crate::record::further_prices;
use holdfast_domain::charge::{self, Actual, Finality, Reserve, Terms};
use holdfast_domain::escrow::{self, Ruling};
use holdfast_domain::{ChargeId, CreditUnit, EscrowId, Event, Key, Label, OwnerId, Reason, Span, Timestamp, Usage};

/// The most requests in one batch.
pub const BATCH_MAX: usize = 8_190;

/// A command, who gives it, and the key that makes it happen once.
///
/// Without a key, a command is named by what it acts on: a reserve by its charge, a final commit, release, void or
/// acknowledgement by the charge that can have only one. Commands that can be meant twice (a mint, an increase, an extension, a
/// partial commit) are refused without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The caller's idempotency key.
    pub key: Option<Key>,
    /// Who gives it, for the record.
    pub actor: Label,
    /// What to do.
    pub command: Command,
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Credit an account.
    Mint {
        /// Whose.
        owner: OwnerId,
        /// How much.
        amount: CreditUnit,
        /// Why.
        reason: Reason,
    },
    /// Set money aside for work to come.
    Reserve {
        /// The charge that begins with it.
        charge: ChargeId,
        /// Whose, how much, on what terms.
        reserve: Reserve,
    },
    /// Move a charge on.
    Charge {
        /// Which.
        charge: ChargeId,
        /// How.
        command: charge::Command,
    },
    /// Set money aside in escrow.
    Hold {
        /// The escrow that begins with it. Not part of the body: a retry may come with a fresh one.
        escrow: EscrowId,
        /// Whose, how much, what for.
        hold: escrow::Hold,
    },
    /// Move an escrow on.
    Escrow {
        /// Which.
        escrow: EscrowId,
        /// How.
        command: escrow::Command,
        /// On whose word, if the queue's.
        ruling: Option<Ruling>,
    },
}

impl Command {
    /// Whether the command can only be told from its repetition by a key.
    #[must_use]
    pub const fn needs_key(&self) -> bool {
        match self {
            Self::Mint { .. } | Self::Hold { .. } => true,
            Self::Reserve { .. } | Self::Escrow { .. } => false,
            Self::Charge { command, .. } => match command {
                charge::Command::Increase { .. } | charge::Command::Extend { .. } => true,
                charge::Command::Commit { finality, .. } => matches!(finality, Finality::Partial),
                charge::Command::Start
                | charge::Command::Note { .. }
                | charge::Command::Abandon
                | charge::Command::Release
                | charge::Command::Expire
                | charge::Command::Void { .. }
                | charge::Command::Ack { .. }
                | charge::Command::Fail { .. } => false,
            },
        }
    }
}

/// What an accepted request did. The same request again gets an equal receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The entry's place in the journal's order. Everything up to it is durable.
    pub offset: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// What happened. Boxed, because an answer changes hands several times and an event is long.
    pub event: Box<Event>,
    /// The state that it left the charge or escrow in.
    pub state: LifeState,
    /// What the owner could spend after it.
    pub available: CreditUnit,
    /// What the owner's open reservations held after it.
    pub held: CreditUnit,
}

/// The state of whatever an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeState {
    /// A mint has no life.
    None,
    /// Of a charge.
    Charge(charge::State),
    /// Of an escrow.
    Escrow(escrow::State),
}

impl LifeState {
    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "done",
            Self::Charge(state) => state.name(),
            Self::Escrow(state) => state.name(),
        }
    }

    /// Whether the hold has ended.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        match self {
            Self::None => false,
            Self::Charge(state) => !matches!(state, charge::State::Held),
            Self::Escrow(state) => !matches!(state, escrow::State::Held),
        }
    }
}

/// Whether this request did it, or an earlier one with the same key and body.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This request did it.
    Applied(Receipt),
    /// An earlier request did it; nothing was written now.
    Replayed(Receipt),
}

impl Outcome {
    /// What was done, by whichever request.
    #[must_use]
    pub const fn receipt(&self) -> &Receipt {
        match self {
            Self::Applied(receipt) | Self::Replayed(receipt) => receipt,
        }
    }
}

/// The answer to one request.
pub type Answer = Result<Outcome, Refusal>;

/// What a request is known by: hashes of its body, its key, and the charge or escrow that it is about. They are worked out
/// where the request comes from, so that the writer need not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hashes {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) key: Option<KeyHash>,
    /// Of the charge or escrow; of nothing, for a mint.
    pub(crate) life: KeyHash,
}

impl Hashes {
    /// The hashes of a request. `memory` is to write its body to.
    pub(crate) fn of(request: &Request, memory: &mut Vec<u8>) -> Self {
        let life = match &request.command {
            Command::Mint { .. } => KeyHash(0),
            Command::Reserve { charge, .. } | Command::Charge { charge, .. } => KeyHash::of_charge(*charge),
            Command::Hold { escrow, .. } | Command::Escrow { escrow, .. } => KeyHash::of_escrow(*escrow),
        };
        let key = request.key.as_ref().map(KeyHash::of_key);
        Self { fingerprint: fingerprint(&request.command, memory), key, life }
    }
}

/// Hashes a request's body, so that a key used again with another one is noticed. `body` is memory to write it to.
fn fingerprint(command: &Command, body: &mut Vec<u8>) -> Fingerprint {
    body.clear();
    match command {
        Command::Mint { owner, amount, reason } => {
            put(body, 0, &[owner.as_bytes(), reason.as_str().as_bytes()], &[amount.units()]);
        }
        Command::Reserve { charge, reserve } => {
            let Reserve { owner, amount, terms, ttl, budgets: _ } = reserve;
            put(body, 1, &[charge.as_bytes(), owner.as_bytes()], &[amount.units(), ttl.millis()]);
            put_terms(body, terms);
        }
        Command::Charge { charge, command } => put_charge(body, *charge, command),
        Command::Hold { hold, .. } => {
            let texts = [hold.owner.as_bytes(), hold.feature.as_bytes()];
            put(body, 3, &texts, &[hold.amount.units()]);
        }
        Command::Escrow { escrow, command, ruling } => {
            put_escrow(body, *escrow, *command);
            // Without a ruling it keeps the hash that it had before there were any.
            if let Some(Ruling { item, cause }) = ruling {
                put(body, 1, &[item.as_bytes(), cause.name().as_bytes()], &[]);
            }
        }
    }
    let hash = blake3::hash(body);
    Fingerprint(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// The hash of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 16]);

/// Appends a tag, texts with their lengths, and numbers: no two different bodies give the same bytes.
fn put(body: &mut Vec<u8>, tag: u8, texts: &[&[u8]], numbers: &[u64]) {
    body.push(tag);
    for text in texts {
        body.push(u8::try_from(text.len()).expect("ids and reasons are at most 200 bytes"));
        body.extend_from_slice(text);
    }
    for number in numbers {
        body.extend_from_slice(&number.to_le_bytes());
    }
}

fn put_terms(body: &mut Vec<u8>, terms: &Terms) {
    let policy = match terms.overrun {
        charge::Overrun::Cap => 0,
        charge::Overrun::Available => 1,
        charge::Overrun::Refuse => 2,
    };
    let expiry = match terms.on_expiry {
        charge::OnExpiry::Release => 0,
        charge::OnExpiry::ChargeEstimate => 1,
    };
    put(body, policy, &[], &[]);
    put(body, expiry, &[], &[]);
    if let Some(rates) = terms.rates {
        put(body, 1, &[], &[rates.input.get(), rates.output.get(), rates.credits_per_usd.get()]);
        // Rates without further prices keep the hash that they had before there were any.
        let further = further_prices(&rates);
        if further != [0; 4] {
            put(body, 2, &[], &further);
        }
    }
}

fn put_charge(body: &mut Vec<u8>, charge: ChargeId, command: &charge::Command) {
    let id = charge.as_bytes();
    match command {
        charge::Command::Start => put(body, 10, &[id], &[]),
        charge::Command::Increase { amount } => put(body, 11, &[id], &[amount.units()]),
        charge::Command::Extend { ttl } => put(body, 12, &[id], &[ttl.millis()]),
        charge::Command::Commit { actual, finality } => {
            let finality = match finality {
                Finality::Final => 13,
                Finality::Partial => 14,
            };
            put_actual(body, finality, id, actual);
        }
        charge::Command::Note { actual } => put_actual(body, 23, id, actual),
        charge::Command::Abandon => put(body, 24, &[id], &[]),
        charge::Command::Release => put(body, 15, &[id], &[]),
        charge::Command::Expire => put(body, 16, &[id], &[]),
        charge::Command::Void { reason } => put(body, 17, &[id, reason.as_str().as_bytes()], &[]),
        charge::Command::Ack { charged } => put(body, 18, &[id], told(charged).as_slice()),
        charge::Command::Fail { reason, charged } => {
            put(body, 19, &[id, reason.as_str().as_bytes()], told(charged).as_slice());
        }
    }
}

/// What the peer was told in all, if that was said. Without it, the hash is as it was before it could be.
fn told(charged: &Option<CreditUnit>) -> Option<u64> {
    charged.map(CreditUnit::units)
}

fn put_actual(body: &mut Vec<u8>, tag: u8, id: &[u8], actual: &Actual) {
    match actual {
        Actual::Credits(amount) => put(body, tag, &[id], &[0, amount.units()]),
        // Usage without further counts keeps the hash that it had before there were any.
        Actual::Usage(Usage { input, output, cached_input: 0, cache_write: 0, reasoning: 0 }) => {
            put(body, tag, &[id], &[1, *input, *output]);
        }
        Actual::Usage(Usage { input, output, cached_input, cache_write, reasoning }) => {
            put(body, tag, &[id], &[2, *input, *output, *cached_input, *cache_write, *reasoning]);
        }
    }
}

fn put_escrow(body: &mut Vec<u8>, escrow: EscrowId, command: escrow::Command) {
    let id = escrow.as_bytes();
    match command {
        escrow::Command::Settle { payee } => put(body, 20, &[id, payee.as_bytes()], &[]),
        escrow::Command::Refund => put(body, 21, &[id], &[]),
        escrow::Command::PartialSettle { payee, settle, refund } => {
            put(body, 22, &[id, payee.as_bytes()], &[settle.units(), refund.units()]);
        }
    }
}

/// The default life of a hold.
pub const TTL_DEFAULT: Span = Span::DAY;

// Thousands of answers change hands at once: a longer one is felt.
const _: () = assert!(size_of::<Answer>() <= 56);
