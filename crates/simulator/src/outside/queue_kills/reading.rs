//! Everything read back once the kills are over: items and escrows over HTTP, money from the journal; then judged.

use super::super::OutsideError;
use super::caller::{Asker, end};
use super::joined;
use super::judge::{Entry, ItemShown, judge, parts};
use super::site::{MINTED, Site};
use super::story::{Fate, Plan, Story};
use super::tally::Report;
use holdfast_domain::CreditUnit;
use holdfast_domain::queue::{Cause, Verdict};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many read at the same time.
const READERS: usize = 6;
const DROPPED_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PAGE: usize = 100;

/// What the journal has, by escrow and by account.
#[derive(Default)]
struct Books {
    lives: BTreeMap<String, Vec<Entry>>,
    balances: BTreeMap<String, i128>,
}

/// What is shown of one piece of work.
struct Shown {
    item: Option<ItemShown>,
    escrow: Option<String>,
}

impl Site {
    /// Judges all stories; then ends what is open, and judges again.
    pub(super) async fn judge(&self, stories: &mut [Story], report: &mut Report) -> Result<(), OutsideError> {
        let last = self.look_all(stories).await?;
        self.judge_all(stories, &last, report)?;
        let open = |shown: &&Shown| shown.item.as_ref().is_some_and(|item| item.verdict.is_none());
        let items = last.iter().filter(open).filter_map(|shown| shown.item.as_ref());
        let (items, escrows): (BTreeSet<_>, BTreeSet<_>) =
            items.map(|item| (item.id.clone(), item.about[2].clone())).unzip();
        report.open = items.len() as u64;
        self.compare_lists(&items, &escrows, report).await?;
        self.end_open(stories).await?;
        let last = self.look_all(stories).await?;
        self.judge_all(stories, &last, report)?;
        self.compare_lists(&BTreeSet::new(), &BTreeSet::new(), report).await?;
        self.compare_wallets(stories, &last, report).await?;
        count(stories, &last, report);
        Ok(())
    }

    /// What nobody has ended is ended now: after all the kills it must still go.
    async fn end_open(&self, stories: &mut [Story]) -> Result<(), OutsideError> {
        let mut queue = Asker::new(&self.doors.queue);
        for story in stories {
            let verdict = match story.plan.fate {
                Fate::Waiting => Verdict::Abandon { cause: Cause::AdminCancelled },
                Fate::Working => Verdict::Finish,
                Fate::Ended(_) | Fate::GivenUp(_) | Fate::Dropped => continue,
            };
            // One that is lost is found by the judge.
            if let Ok(told) = end(&mut queue, &story.item, verdict).await {
                story.told.push((verdict, told));
                story.plan.fate = Fate::Ended(vec![verdict]);
            }
        }
        Ok(())
    }

    fn judge_all(&self, stories: &[Story], shown: &[Shown], report: &mut Report) -> Result<(), OutsideError> {
        let books = self.books()?;
        for (story, Shown { item, escrow }) in stories.iter().zip(shown) {
            let life = books.lives.get(&story.escrow).map_or(&[][..], Vec::as_slice);
            let wrong = judge(story, item.as_ref(), escrow.as_deref(), life);
            let told = |wrong| format!("{} ({}, {:?}): {wrong}", story.plan.name, story.item, story.plan.fate);
            report.faults.extend(wrong.into_iter().map(told));
        }
        let known: BTreeSet<&str> = stories.iter().map(|story| story.escrow.as_str()).collect();
        let twice = stories.len() - known.len();
        if twice > 0 {
            report.faults.push(format!("{twice} pieces of work were given an escrow that another has"));
        }
        let unknown = books.lives.keys().filter(|escrow| !known.contains(escrow.as_str()));
        report
            .faults
            .extend(unknown.map(|escrow| format!("the journal has an escrow that nobody was told of: {escrow}")));
        let expected = balances(stories, shown);
        report.faults.extend(differences("the journal", &expected, &books.balances));
        Ok(())
    }

    /// The journal's own lines, added up.
    fn books(&self) -> Result<Books, OutsideError> {
        let mut books = Books::default();
        self.journal()?.each_entry(|line| {
            let entry: Line = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
            entry.add_to(&mut books)
        })?;
        Ok(books)
    }

    /// Every item and its escrow, as they are shown.
    async fn look_all(&self, stories: &[Story]) -> Result<Vec<Shown>, OutsideError> {
        let mut readers = JoinSet::new();
        let size = stories.len().div_ceil(READERS).max(1);
        for (number, chunk) in stories.chunks(size).enumerate() {
            let (mut wallet, mut queue) = (Asker::new(&self.doors.wallet), Asker::new(&self.doors.queue));
            let asked: Vec<_> =
                chunk.iter().map(|story| (story.escrow.clone(), story.item.clone(), story.plan.fate.clone())).collect();
            readers.spawn(async move {
                let mut shown = Vec::new();
                for (escrow, item, fate) in asked {
                    // The item first: whoever asks for it has it converge with its escrow.
                    let item = look_item(&mut queue, &item, &fate).await?;
                    let found = wallet.ask("GET", &format!("/api/v1/escrows/{escrow}"), None, &Value::Null).await?;
                    let escrow = found.json()["status"].as_str().map(str::to_owned);
                    shown.push(Shown { item, escrow });
                }
                Ok::<_, OutsideError>((number, shown))
            });
        }
        let mut chunks = BTreeMap::new();
        while let Some(read) = readers.join_next().await {
            let (number, shown) = joined(read)??;
            chunks.insert(number, shown);
        }
        Ok(chunks.into_values().flatten().collect())
    }

    /// What is listed as open is exactly what is open.
    async fn compare_lists(
        &self,
        items: &BTreeSet<String>,
        escrows: &BTreeSet<String>,
        report: &mut Report,
    ) -> Result<(), OutsideError> {
        let mut queue = Asker::new(&self.doors.queue);
        let listed = list(&mut queue, "/api/v1/queue/items?", "items", "queueItemId").await?;
        report.faults.extend(listing("items", items, &listed));
        let mut wallet = Asker::new(&self.doors.wallet);
        let listed = list(&mut wallet, "/api/v1/escrows?status=held&", "escrows", "escrowId").await?;
        report.faults.extend(listing("escrows", escrows, &listed));
        Ok(())
    }

    /// What the wallet shows users and payees is what they have.
    async fn compare_wallets(
        &self,
        stories: &[Story],
        shown: &[Shown],
        report: &mut Report,
    ) -> Result<(), OutsideError> {
        let expected = balances(stories, shown);
        let users = Plan::users().map(|user| (format!("user:{user}:available"), user, "available"));
        let payees = Plan::payees().map(|payee| (format!("payee:{payee}:available"), payee, "earned"));
        let mut wallet = Asker::new(&self.doors.wallet);
        for (account, who, field) in users.chain(payees) {
            let expected = expected.get(&account).copied().unwrap_or(0);
            let answer = wallet.ask("GET", &format!("/api/v1/wallets/{who}"), None, &Value::Null).await?.json();
            let has = answer[field].as_str().and_then(|text| text.parse::<CreditUnit>().ok());
            // Who was never paid is not known at all.
            if has.map_or(0, units) != expected {
                report.faults.push(format!("the wallet of {who} is shown as {answer}, and must have {expected}"));
            }
        }
        Ok(())
    }
}

/// One item as it is shown; one whose rope has dropped is waited for.
async fn look_item(queue: &mut Asker, item: &str, fate: &Fate) -> Result<Option<ItemShown>, OutsideError> {
    let began = Instant::now();
    loop {
        let answer = queue.ask("GET", &format!("/api/v1/queue/items/{item}"), None, &Value::Null).await?;
        let shown = ItemShown::read(&answer.json());
        let waits = *fate == Fate::Dropped && shown.as_ref().is_some_and(|shown| shown.verdict.is_none());
        if !waits || began.elapsed() > DROPPED_WITHIN {
            return Ok(shown);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// All names on all pages.
async fn list(asker: &mut Asker, path: &str, field: &str, name: &str) -> Result<Vec<String>, OutsideError> {
    let mut all: Vec<String> = Vec::new();
    let mut after = String::new();
    loop {
        let body = asker.ask("GET", &format!("{path}limit={PAGE}{after}"), None, &Value::Null).await?.good(path)?;
        let page = body[field].as_array().ok_or_else(|| OutsideError::answered(path, body.to_string()))?;
        all.extend(page.iter().filter_map(|one| one[name].as_str().map(str::to_owned)));
        match body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return Ok(all),
        }
    }
}

fn listing(what: &str, expected: &BTreeSet<String>, listed: &[String]) -> Vec<String> {
    let found: BTreeSet<String> = listed.iter().cloned().collect();
    let missing = expected.difference(&found).map(|id| format!("{id} is open, and not listed among the {what}"));
    let further = found.difference(expected).map(|id| format!("{id} is listed among the open {what}, and is not"));
    let twice = (found.len() < listed.len()).then(|| format!("{what} are listed more than once"));
    missing.chain(further).chain(twice).collect()
}

/// What every account must have, in millionths, by what the items say.
fn balances(stories: &[Story], shown: &[Shown]) -> BTreeMap<String, i128> {
    let minted = MINTED.parse().map_or(0, units);
    let mut all: BTreeMap<String, i128> =
        Plan::users().map(|user| (format!("user:{user}:available"), minted)).collect();
    for (Story { plan, escrow, .. }, Shown { item, .. }) in stories.iter().zip(shown) {
        let verdict = item.as_ref().and_then(|item| item.verdict);
        let (settled, returned, held) = match verdict {
            Some(verdict) => {
                let (settled, returned) = parts(verdict, plan.amount);
                (settled, returned, CreditUnit::ZERO)
            }
            None => (CreditUnit::ZERO, CreditUnit::ZERO, plan.amount),
        };
        *all.entry(format!("user:{}:available", plan.user)).or_insert(0) += units(returned) - units(plan.amount);
        *all.entry(format!("payee:{}:available", plan.payee)).or_insert(0) += units(settled);
        *all.entry(format!("escrow:{escrow}")).or_insert(0) += units(held);
    }
    all
}

fn differences(who: &str, expected: &BTreeMap<String, i128>, found: &BTreeMap<String, i128>) -> Vec<String> {
    let is_of_run = |account: &&String| !account.starts_with("treasury:");
    let accounts: BTreeSet<&String> = expected.keys().chain(found.keys()).filter(is_of_run).collect();
    let differ = |account: &String| {
        let [must, has] = [expected, found].map(|balances| balances.get(account).copied().unwrap_or(0));
        (must != has).then(|| format!("{account} has {has} millionths by {who}, and must have {must}"))
    };
    accounts.into_iter().filter_map(differ).collect()
}

fn count(stories: &[Story], shown: &[Shown], report: &mut Report) {
    report.items = stories.len() as u64;
    for verdict in shown.iter().filter_map(|shown| shown.item.as_ref()?.verdict) {
        let place = match verdict {
            Verdict::Finish => 0,
            Verdict::Abandon { .. } => 1,
            Verdict::Partial { .. } => 2,
        };
        report.ended[place] += 1;
    }
    for (_, told) in stories.iter().flat_map(|story| &story.told) {
        report.told[usize::from(matches!(told, super::story::Told::Not(_)))] += 1;
    }
}

fn units(amount: CreditUnit) -> i128 {
    i128::from(amount.units())
}

/// What of a line of the journal the judge needs.
#[derive(Deserialize)]
struct Line {
    kind: String,
    key: Option<String>,
    correlation_id: String,
    account: String,
    payee: Option<String>,
    amount_cu: Option<CreditText>,
    settled_cu: Option<CreditText>,
    returned_cu: Option<CreditText>,
    postings: Vec<Posting>,
}

#[derive(Deserialize)]
struct Posting {
    account: String,
    change_cu: String,
}

#[derive(Deserialize)]
struct CreditText(String);

impl CreditText {
    fn read(&self) -> Result<CreditUnit, String> {
        self.0.parse().map_err(|_| format!("{} is no amount", self.0))
    }
}

impl Line {
    fn add_to(self, books: &mut Books) -> Result<(), String> {
        for Posting { account, change_cu } in &self.postings {
            let (sign, text) = change_cu.strip_prefix('-').map_or((1, change_cu.as_str()), |text| (-1, text));
            let amount: CreditUnit = text.parse().map_err(|_| format!("{change_cu} is no change"))?;
            *books.balances.entry(account.clone()).or_insert(0) += sign * units(amount);
        }
        if !self.kind.starts_with("escrow_") {
            return Ok(());
        }
        let amount = |text: Option<&CreditText>| text.map(CreditText::read).transpose();
        let entry = Entry {
            amount: amount(self.amount_cu.as_ref())?,
            settled: amount(self.settled_cu.as_ref())?.unwrap_or(CreditUnit::ZERO),
            returned: amount(self.returned_cu.as_ref())?.unwrap_or(CreditUnit::ZERO),
            kind: self.kind,
            key: self.key,
            user: self.account,
            payee: self.payee,
        };
        books.lives.entry(self.correlation_id).or_default().push(entry);
        Ok(())
    }
}
