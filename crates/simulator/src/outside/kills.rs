//! The real gateway, killed at every step of a paid request, and its books afterwards.
//!
//! One data directory lives through all rounds. In each, clients ask until a failpoint has killed the gateway; it is started
//! again, and then every request is judged ([`judge`]) and asked once more under the same idempotency key. Each failpoint is
//! tried at every door ([`door`]) and in conversations ([`talk`]). The last row kills it from outside, right after the last of
//! many answers was read.
//!
//! # Invariants
//! - After every round the account has what was minted less the charges of all rounds, and no open hold; the journal is sound.
//! - What is asked follows from the seed; what happens at the same time does not.

mod ask;
mod door;
mod judge;
mod talk;
mod tally;

pub use tally::{Row, Table};

use super::OutsideError;
use super::books::{self, Booked};
use super::gateway::{Gateway, Launch};
use super::hangups::calls;
use super::operator::Operator;
use super::tariff::Tariff;
use super::wire::Client;
use crate::rng::Rng;
use crate::upstream::{self, Call, Progress, Running};
use ask::{Asked, Desk, Kind, Plan, Seen, ask_all, plans, script};
use door::{CLAUDE, Door, MODEL};
use holdfast_domain::{CreditUnit, CreditsPerUsd};
use holdfast_journal::failpoint;
use judge::{Repeat, audit, judge, judge_repeat, lives};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use talk::{MISSING, Told, prompts, talk_all};

const ACCOUNT: &str = "kills";
/// Dollars per million tokens: a token costs a hundredth of a credit, or two.
const PRICES: [&str; 2] = ["100", "200"];
const MINTED: &str = "1000000";
/// How many are asked before it is looked whether the gateway still lives.
const BATCH: usize = 8;
/// After so many the failpoint is not reached at all.
const BATCHES_MAX: usize = 40;
/// How many answers are read before the kill from outside.
const ANSWERS: usize = 100;
const WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What is killed, and how often.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program.
    pub holdfast: PathBuf,
    /// How often at each failpoint.
    pub rounds: u64,
    /// What everything random follows from.
    pub seed: u64,
    /// An empty directory.
    pub directory: PathBuf,
}

/// How a gateway is killed, and what is asked of it before.
#[derive(Debug, Clone, Copy)]
enum Blow {
    /// At a random passing, by what is asked at one door.
    Failpoint(&'static str, Door),
    /// At a random passing, by conversations.
    Talking(&'static str),
    /// In streams so long that the gateway has noted what it delivered.
    Noted(Door),
    /// From outside, when all answers have been read.
    AfterAnswers(Door),
}

impl Blow {
    fn name(self) -> String {
        match self {
            Self::Failpoint(name, door) => format!("{name}, {door}"),
            Self::Talking(name) => format!("{name}, talking"),
            Self::Noted(door) => format!("inference.mid_stream, noted, {door}"),
            Self::AfterAnswers(door) => format!("kill -9 after {ANSWERS} answers, {door}"),
        }
    }
}

/// Kills the gateway in every way, as often as it is said.
///
/// # Errors
/// If something could not be tried at all; what is wrong with the books is in the table.
pub async fn run(options: &Options) -> Result<Table, OutsideError> {
    let mut site = Site::new(options).await?;
    let mut table = Table::default();
    for (blow, rounds) in blows(options.rounds) {
        let mut row = Row::new(blow.name());
        for number in 0..rounds {
            let prefix = format!("{}-{}-{number}", options.seed, table.rows.len());
            match blow {
                Blow::Talking(name) => site.round_of_talk(name, &mut row).await?,
                Blow::Failpoint(..) | Blow::Noted(_) | Blow::AfterAnswers(_) => {
                    site.round(blow, &prefix, &mut row).await?;
                }
            }
        }
        table.rows.push(row);
    }
    table.whole.extend(site.audit()?);
    Ok(table)
}

/// Every way to kill, and how often: so many rounds at each failpoint, shared by the ways to come there.
fn blows(rounds: u64) -> Vec<(Blow, u64)> {
    let ways = Door::ALL.len() as u64 + 1;
    let share = rounds.div_ceil(ways);
    let mut blows = Vec::new();
    for name in failpoint::INFERENCE {
        blows.extend(Door::ALL.map(|door| (Blow::Failpoint(name, door), share)));
        blows.push((Blow::Talking(name), share));
    }
    // Long streams take seconds, so there are few.
    blows.extend(Door::ALL.map(|door| (Blow::Noted(door), rounds.min(1))));
    blows.extend(Door::ALL.map(|door| (Blow::AfterAnswers(door), rounds.min(1))));
    blows
}

/// The data directory, the upstream, and what is known of them.
struct Site {
    launch: Launch,
    operator: Operator,
    upstream: Running,
    api_key: String,
    tariff: Tariff,
    minted: CreditUnit,
    charged: CreditUnit,
    rng: Rng,
}

impl Site {
    async fn new(options: &Options) -> Result<Self, OutsideError> {
        let running = Running::start(upstream::Options::for_test()).await;
        let upstream = running.map_err(OutsideError::io("start the upstream"))?;
        let config = configure(&options.directory, &upstream.url)?;
        let data = options.directory.join("data");
        let operator = Operator::of(options.holdfast.clone(), data.clone());
        let stderr = options.directory.join("stderr.txt");
        let launch = Launch::new(options.holdfast.clone(), data, config, stderr);
        let [input, output] = PRICES.map(str::parse);
        let unpriced = |_| OutsideError::answered("the tariff", "a price that is none");
        let tariff = Tariff {
            input: input.map_err(unpriced)?,
            output: output.map_err(unpriced)?,
            credits_per_usd: CreditsPerUsd::DEFAULT,
        };
        let minted = MINTED.parse().map_err(|_| OutsideError::answered("the mint", "an amount that is none"))?;
        let gateway = launch.start()?;
        operator.mint(ACCOUNT, minted)?;
        let api_key = operator.new_key(ACCOUNT)?;
        drop(gateway);
        let (charged, rng) = (CreditUnit::ZERO, Rng::new(options.seed));
        Ok(Self { launch, operator, upstream, api_key, tariff, minted, charged, rng })
    }

    /// One kill, one restart, and all that is checked then.
    async fn round(&mut self, blow: Blow, prefix: &str, row: &mut Row) -> Result<(), OutsideError> {
        self.control("DELETE", "/__calls", "").await?;
        let asked = match blow {
            Blow::Failpoint(name, door) => self.until_killed(name, door, prefix).await?,
            Blow::Noted(door) => self.noted(door, prefix).await?,
            Blow::AfterAnswers(door) => self.after_answers(door, prefix, row).await?,
            Blow::Talking(_) => return Ok(()),
        };
        self.control("DELETE", "/__script", "").await?;
        let gateway = self.launch.start()?;
        let desk = self.desk(&gateway);
        let mut client = Client::new(&gateway.url);
        let first = self.calls_ended().await?;
        let calls_by_tag = by_tag(&first);
        let before = self.look_all(&mut client, &asked).await?;
        for asked in &asked {
            let key = asked.plan.key.as_str();
            let wrong = judge(asked, before.get(key), of(&calls_by_tag, key), &self.tariff);
            row.count(before.get(key));
            row.faults.extend(wrong.map(|wrong| format!("{key} ({:?}, {:?}): {wrong}", asked.plan.kind, asked.seen)));
        }
        self.check_account(&mut client, sum(self.charged, before.values())?, row).await?;

        self.control("DELETE", "/__calls", "").await?;
        let again = ask_all(&desk, asked.into_iter().map(|asked| asked.plan).collect(), BATCH).await?;
        let second = self.calls_ended().await?;
        let calls_by_tag = by_tag(&second);
        let after = self.look_all(&mut client, &again).await?;
        for asked in &again {
            let key = asked.plan.key.as_str();
            let repeat = Repeat { was: before.get(key), is: after.get(key), asked, calls: of(&calls_by_tag, key) };
            let wrong = judge_repeat(&repeat, &self.tariff);
            row.faults.extend(wrong.map(|wrong| format!("{key}, again: {wrong}")));
        }
        self.charged = sum(self.charged, after.values())?;
        self.check_account(&mut client, self.charged, row).await?;
        self.operator.verify()?;
        row.rounds += 1;
        Ok(())
    }

    /// One kill in conversations, one restart, conversations that all come to their end, and all that is checked then.
    async fn round_of_talk(&mut self, name: &str, row: &mut Row) -> Result<(), OutsideError> {
        self.control("DELETE", "/__calls", "").await?;
        let known = self.operator.journal()?.len();
        let mut told = self.talk_until_killed(name).await?;
        let gateway = self.launch.start()?;
        let again = talk_all(&self.desk(&gateway), prompts(&mut self.rng, 2, 2, 0)).await?;
        let ended = again.iter().filter(|told| matches!(told, Told::Ended { .. })).count();
        if ended < again.len() {
            row.faults.push(format!("{name}: after the restart {ended} of {} prompts were answered", again.len()));
        }
        told.extend(again);
        row.requests += told.len() as u64;
        let calls = self.calls_ended().await?;
        let entries = self.operator.journal()?;
        let (lives, faults) = lives(entries.get(known..).unwrap_or_default());
        row.faults.extend(faults);
        row.faults.extend(talk::judge(&told, &calls, &lives, &self.tariff));
        for life in lives.values() {
            row.count_life(life.charged, life.commits);
        }
        let charged = lives.values().try_fold(self.charged, |sum, life| sum.checked_add(life.charged));
        self.charged = charged.map_err(|_| OutsideError::answered("the books", "charges that cannot be added up"))?;
        let mut client = Client::new(&gateway.url);
        self.check_account(&mut client, self.charged, row).await?;
        self.operator.verify()?;
        row.rounds += 1;
        Ok(())
    }

    /// Talks until a failpoint has killed the gateway.
    async fn talk_until_killed(&mut self, name: &str) -> Result<Vec<Told>, OutsideError> {
        let (most, failing) = match name {
            "inference.mid_stream" => (60, 10),
            "inference.before_release" => (6, 50),
            _ => (6, 10),
        };
        let passing = self.rng.between(1, most);
        let mut gateway = self.start_armed(name, passing)?;
        let mut all = Vec::new();
        for _ in 0..BATCHES_MAX {
            let callers = self.rng.pick(&[1, 2, 4]).unwrap_or(1);
            let conversations = prompts(&mut self.rng, callers, BATCH / callers, failing);
            let told = talk_all(&self.desk(&gateway), conversations).await?;
            let is_over = told.contains(&Told::Cut);
            all.extend(told);
            if is_over {
                return gateway.wait_killed(WITHIN).map(|()| all);
            }
        }
        Err(OutsideError::answered("the gateway", format!("was not killed by {name} within {} prompts", all.len())))
    }

    /// Asks until a failpoint has killed the gateway.
    async fn until_killed(&mut self, name: &str, door: Door, prefix: &str) -> Result<Vec<Asked>, OutsideError> {
        let (most, weights) = match name {
            "inference.mid_stream" => (30, [1, 2, 2, 1, 1]),
            "inference.before_release" => (6, [1, 1, 1, 4, 1]),
            _ => (6, [3, 2, 2, 1, 1]),
        };
        let passing = self.rng.between(1, most);
        let mut gateway = self.start_armed(name, passing)?;
        let mut all = Vec::new();
        for number in 0..BATCHES_MAX {
            let plans = plans(&mut self.rng, door, &format!("{prefix}-{number}"), BATCH, weights);
            let width = self.rng.pick(&[1, 2, 4, BATCH]).unwrap_or(1);
            self.control("POST", "/__script", &script(&plans)).await?;
            let asked = ask_all(&self.desk(&gateway), plans, width).await?;
            // Every failpoint comes before the end of an answer, so a kill is seen by somebody.
            let is_over = asked.len() < BATCH || asked.iter().any(|asked| asked.is_cut());
            all.extend(asked);
            if is_over || gateway.ended().is_some() {
                return gateway.wait_killed(WITHIN).map(|()| all);
            }
        }
        let said = format!("was not killed by {name} within {} requests", all.len());
        Err(OutsideError::answered("the gateway", said))
    }

    /// Has the gateway killed in long streams.
    async fn noted(&mut self, door: Door, prefix: &str) -> Result<Vec<Asked>, OutsideError> {
        const STREAMS: u64 = 4;
        // A note is made after 3 s, which is 25 of 40 pieces.
        let mut gateway = self.start_armed("inference.mid_stream", STREAMS * 35)?;
        let plan = |number| Plan { key: format!("{prefix}-{number}"), door, kind: Kind::Slow, words: 40 };
        let plans: Vec<Plan> = (0..STREAMS).map(plan).collect();
        self.control("POST", "/__script", &script(&plans)).await?;
        let asked = ask_all(&self.desk(&gateway), plans, BATCH).await?;
        gateway.wait_killed(WITHIN).map(|()| asked)
    }

    /// Kills the gateway when the last of its answers has been read.
    async fn after_answers(&mut self, door: Door, prefix: &str, row: &mut Row) -> Result<Vec<Asked>, OutsideError> {
        const WIDTH: usize = 10;
        let mut gateway = self.launch.start()?;
        let mut plans = plans(&mut self.rng, door, prefix, ANSWERS, [1, 0, 0, 0, 0]);
        for plan in plans.iter_mut().step_by(2) {
            plan.kind = Kind::Stream;
        }
        let asked = ask_all(&self.desk(&gateway), plans, WIDTH).await?;
        gateway.kill();
        let complete = asked.iter().filter(|asked| matches!(asked.seen, Seen::Complete { .. })).count();
        if complete != ANSWERS {
            row.faults.push(format!("{prefix}: {complete} of {ANSWERS} answered, and nothing was wrong yet"));
        }
        Ok(asked)
    }

    fn start_armed(&self, name: &str, passing: u64) -> Result<Gateway, OutsideError> {
        Launch { failpoint: Some(format!("{name}:{passing}")), ..self.launch.clone() }.start()
    }

    fn desk(&self, gateway: &Gateway) -> Desk {
        Desk { url: gateway.url.clone(), api_key: self.api_key.clone() }
    }

    async fn control(&self, method: &str, path: &str, body: &str) -> Result<(), OutsideError> {
        Client::new(&self.upstream.url).send(method, path, &[], body).await?.good("the upstream").map(drop)
    }

    /// What the upstream did, once it is over.
    async fn calls_ended(&self) -> Result<Vec<Call>, OutsideError> {
        let mut client = Client::new(&self.upstream.url);
        let began = Instant::now();
        loop {
            let calls = calls(&mut client).await?.calls;
            if calls.iter().all(|call| call.progress != Progress::Running) {
                return Ok(calls);
            }
            if began.elapsed() > WITHIN {
                let what = "the end of the upstream's calls".to_owned();
                return Err(OutsideError::TooLate { what, seconds: WITHIN.as_secs() });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look_all(&self, client: &mut Client, asked: &[Asked]) -> Result<BTreeMap<String, Booked>, OutsideError> {
        let mut found = BTreeMap::new();
        for Asked { plan, .. } in asked {
            let booked = books::look(client, &self.api_key, &plan.key).await?;
            found.extend(booked.map(|booked| (plan.key.clone(), booked)));
        }
        Ok(found)
    }

    /// The balance is what was minted less all charges, and nothing is held.
    async fn check_account(&self, client: &mut Client, charged: CreditUnit, row: &mut Row) -> Result<(), OutsideError> {
        let expected = self.minted.checked_sub(charged);
        let expected = expected.map_err(|_| OutsideError::answered("the books", "more charged than minted"))?;
        let over_http = books::balance(client, &self.api_key).await?;
        let (open_holds, available) = self.operator.account(ACCOUNT)?;
        if (over_http, available, open_holds) != (expected, expected, 0) {
            row.faults.push(format!(
                "{over_http} over HTTP, {available} and {open_holds} open holds by the command line, and by the charges \
                 it is {expected}"
            ));
        }
        Ok(())
    }

    /// The whole journal, added up from its entries.
    fn audit(&self) -> Result<Vec<String>, OutsideError> {
        let (charged, mut faults) = audit(&self.operator.journal()?);
        if charged != self.charged {
            faults.push(format!("the journal charges {charged}, and the requests come to {}", self.charged));
        }
        Ok(faults)
    }
}

/// Writes the configuration and the prices.
fn configure(directory: &Path, upstream_url: &str) -> Result<PathBuf, OutsideError> {
    let [input, output] = PRICES;
    let models = [(MODEL, "upstream", MODEL), (MISSING, "upstream", "no-such-model"), (CLAUDE, "claude", CLAUDE)];
    let price = |name: &str| format!("[models.\"{name}\"]\ninput = \"{input}\"\noutput = \"{output}\"\n");
    let prices = models.map(|(name, ..)| price(name)).concat();
    let providers = format!(
        "prices = \"prices.toml\"\n\n[providers.upstream]\nkind = \"openai\"\nbase_url = \"{upstream_url}/v1\"\n\
         key_env = \"UPSTREAM_KEY\"\nresponses = \"native\"\n\n[providers.claude]\nkind = \"anthropic\"\n\
         base_url = \"{upstream_url}\"\nkey_env = \"UPSTREAM_KEY\"\n\n"
    );
    let model = |(name, provider, target): (&str, &str, &str)| {
        format!("[[models]]\nname = \"{name}\"\ntargets = [{{ provider = \"{provider}\", model = \"{target}\" }}]\n")
    };
    let config = providers + &models.map(model).concat();
    let path = directory.join("holdfast.toml");
    let written = fs::write(directory.join("prices.toml"), prices).and_then(|()| fs::write(&path, config));
    written.map_err(OutsideError::io("write the configuration"))?;
    Ok(path)
}

fn sum<'a>(start: CreditUnit, booked: impl Iterator<Item = &'a Booked>) -> Result<CreditUnit, OutsideError> {
    let mut booked = booked;
    let sum = booked.try_fold(start, |sum, booked| sum.checked_add(booked.charged));
    sum.map_err(|_| OutsideError::answered("the books", "charges that cannot be added up"))
}

fn by_tag(calls: &[Call]) -> BTreeMap<&str, Vec<&Call>> {
    let mut by_tag: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        by_tag.entry(call.tag.as_deref().unwrap_or_default()).or_default().push(call);
    }
    by_tag
}

fn of<'a, 'b>(by_tag: &'b BTreeMap<&str, Vec<&'a Call>>, key: &str) -> &'b [&'a Call] {
    by_tag.get(key).map_or(&[], Vec::as_slice)
}
