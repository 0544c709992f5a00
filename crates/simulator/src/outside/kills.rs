//! The real gateway, killed at every step of a paid request, and its books afterwards.
//!
//! One data directory lives through all rounds. In each, clients ask until a failpoint has killed the gateway; it is started
//! again, and then every request is judged ([`judge`]) and asked once more under the same idempotency key. The last row kills
//! it from outside, right after the last of many answers was read.
//!
//! # Invariants
//! - After every round the account has what was minted less the charges of all rounds, and no open hold; the journal is sound.
//! - What is asked follows from the seed; what happens at the same time does not.

mod ask;
mod judge;
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
use holdfast_domain::{CreditUnit, CreditsPerUsd};
use holdfast_journal::failpoint;
use judge::{Repeat, audit, judge, judge_repeat};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ACCOUNT: &str = "kills";
const MODEL: &str = "mock";
/// Dollars per million tokens: a token costs a hundredth of a credit, or two.
const PRICES: [&str; 2] = ["100", "200"];
const MINTED: &str = "1000000";
/// How many are asked before it is looked whether the gateway still lives.
const BATCH: usize = 8;
/// After so many the failpoint is not reached at all.
const BATCHES_MAX: usize = 40;
/// How many answers are read before the kill from outside.
const ANSWERS: usize = 100;
const ANSWERS_ROUNDS: u64 = 3;
/// Long streams take seconds, so there are few.
const NOTED_ROUNDS: u64 = 3;
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
    /// At a random passing.
    Failpoint(&'static str),
    /// In streams so long that the gateway has noted what it delivered.
    Noted,
    /// From outside, when all answers have been read.
    AfterAnswers,
}

impl Blow {
    fn name(self) -> String {
        match self {
            Self::Failpoint(name) => name.to_owned(),
            Self::Noted => "inference.mid_stream, noted".to_owned(),
            Self::AfterAnswers => format!("kill -9 after {ANSWERS} answers"),
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
    let failpoints = failpoint::INFERENCE.iter().map(|name| (Blow::Failpoint(name), options.rounds));
    let others =
        [(Blow::Noted, options.rounds.min(NOTED_ROUNDS)), (Blow::AfterAnswers, options.rounds.min(ANSWERS_ROUNDS))];
    for (blow, rounds) in failpoints.chain(others) {
        let mut row = Row::new(blow.name());
        for number in 0..rounds {
            let prefix = format!("{}-{}-{number}", options.seed, table.rows.len());
            site.round(blow, &prefix, &mut row).await?;
        }
        table.rows.push(row);
    }
    table.whole.extend(site.audit()?);
    Ok(table)
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
        let operator = Operator { program: options.holdfast.clone(), data: data.clone() };
        let stderr = options.directory.join("stderr.txt");
        let launch = Launch { program: options.holdfast.clone(), data, config, stderr, failpoint: None };
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
            Blow::Failpoint(name) => self.until_killed(name, prefix).await?,
            Blow::Noted => self.noted(prefix).await?,
            Blow::AfterAnswers => self.after_answers(prefix, row).await?,
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
        self.check_account(&mut client, before.values(), row).await?;

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
        self.check_account(&mut client, after.values(), row).await?;
        self.charged = sum(self.charged, after.values())?;
        self.operator.verify()?;
        row.rounds += 1;
        Ok(())
    }
    /// Asks until a failpoint has killed the gateway.
    async fn until_killed(&mut self, name: &str, prefix: &str) -> Result<Vec<Asked>, OutsideError> {
        let (most, weights) = match name {
            "inference.mid_stream" => (30, [1, 2, 2, 1, 1]),
            "inference.before_release" => (6, [1, 1, 1, 4, 1]),
            _ => (6, [3, 2, 2, 1, 1]),
        };
        let passing = self.rng.between(1, most);
        let mut gateway = self.start_armed(name, passing)?;
        let mut all = Vec::new();
        for number in 0..BATCHES_MAX {
            let plans = plans(&mut self.rng, &format!("{prefix}-{number}"), BATCH, weights);
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
    async fn noted(&mut self, prefix: &str) -> Result<Vec<Asked>, OutsideError> {
        const STREAMS: u64 = 4;
        // A note is made after 3 s, which is 25 of 40 pieces.
        let mut gateway = self.start_armed("inference.mid_stream", STREAMS * 35)?;
        let plan = |number| Plan { key: format!("{prefix}-{number}"), kind: Kind::Slow, words: 40 };
        let plans: Vec<Plan> = (0..STREAMS).map(plan).collect();
        self.control("POST", "/__script", &script(&plans)).await?;
        let asked = ask_all(&self.desk(&gateway), plans, BATCH).await?;
        gateway.wait_killed(WITHIN).map(|()| asked)
    }

    /// Kills the gateway when the last of its answers has been read.
    async fn after_answers(&mut self, prefix: &str, row: &mut Row) -> Result<Vec<Asked>, OutsideError> {
        const WIDTH: usize = 10;
        let mut gateway = self.launch.start()?;
        let mut plans = plans(&mut self.rng, prefix, ANSWERS, [1, 0, 0, 0, 0]);
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
        Desk { url: gateway.url.clone(), api_key: self.api_key.clone(), model: MODEL.to_owned() }
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
    async fn check_account<'a>(
        &self,
        client: &mut Client,
        of_round: impl Iterator<Item = &'a Booked>,
        row: &mut Row,
    ) -> Result<(), OutsideError> {
        let charged = sum(self.charged, of_round)?;
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
    let prices = format!("[models.\"{MODEL}\"]\ninput = \"{input}\"\noutput = \"{output}\"\n");
    let config = format!(
        "prices = \"prices.toml\"\n\n[providers.upstream]\nkind = \"openai\"\nbase_url = \"{upstream_url}/v1\"\n\
         key_env = \"UPSTREAM_KEY\"\n\n[[models]]\nname = \"{MODEL}\"\n\
         targets = [{{ provider = \"upstream\", model = \"{MODEL}\" }}]\n"
    );
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
