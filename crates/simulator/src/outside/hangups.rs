//! Clients that hang up at random points of a stream, and the comparison of both stories of every request afterwards.
//!
//! What each client does follows from the seed. Requests carry their own id as `Idempotency-Key` (so it is the reservation's
//! id) and as `user` (so the upstream knows it too).
//!
//! # Invariants
//! - Every request is judged by [`books::verdict`], and the account's balance must fall by the sum of the charges: a charge
//!   that no request explains is found as well.

use super::OutsideError;
use super::books::{self, Booked, Ending, Fault};
use super::tariff::Tariff;
use super::wire::{Client, authority};
use crate::rng::Rng;
use crate::upstream::{Call, Calls, Progress};
use holdfast_domain::CreditUnit;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long the gateway has to end every request after the last client is gone.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// How often it is asked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// No client waits longer for a byte.
const BYTE_WITHIN: Duration = Duration::from_secs(30);

/// Whom to call, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The gateway's `http://ADDRESS`.
    pub base_url: String,
    /// The upstream's.
    pub upstream_url: String,
    /// A key of the account.
    pub api_key: String,
    /// What is asked for.
    pub model: String,
    /// Its prices.
    pub tariff: Tariff,
    /// How many requests.
    pub requests: u64,
    /// How many at the same time.
    pub clients: usize,
    /// What everything random follows from.
    pub seed: u64,
}

/// Where a client hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// Within its own request.
    MidRequest,
    /// After its request, before an answer.
    BeforeHeaders,
    /// With the answer's head.
    AfterHeaders,
    /// After some bytes of the answer's body, most often within an event.
    MidEvent,
    /// With the last byte.
    AfterLastByte,
}

impl fmt::Display for Point {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::MidRequest => "within the request",
            Self::BeforeHeaders => "before the headers",
            Self::AfterHeaders => "after the headers",
            Self::MidEvent => "within an event",
            Self::AfterLastByte => "after the last byte",
        })
    }
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    /// In good order.
    Finish,
    /// As a crashed machine's: the other side gets a reset.
    Reset,
}

/// What one client does.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    id: String,
    point: Point,
    /// Of its request or of the body, whichever is cut.
    bytes: usize,
    words: u64,
    close: Close,
}

fn plans(seed: u64, requests: u64) -> Vec<Plan> {
    let mut rng = Rng::new(seed);
    let points = [Point::MidRequest, Point::BeforeHeaders, Point::AfterHeaders, Point::MidEvent, Point::AfterLastByte];
    let plan = |number| Plan {
        id: format!("hangup-{seed}-{number}"),
        point: points[rng.weighted(&[1, 3, 3, 8, 3])],
        bytes: usize::try_from(rng.between(1, 3_000)).unwrap_or(1),
        words: rng.between(1, 40),
        close: if rng.one_in(2) { Close::Reset } else { Close::Finish },
    };
    (0..requests).map(plan).collect()
}

/// What became of one request.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Its id.
    pub id: String,
    /// Where its client hung up.
    pub point: Point,
    /// How its reservation ended; none if there was none.
    pub ending: Option<Ending>,
    /// What was charged.
    pub charged: CreditUnit,
    /// What is wrong with it.
    pub fault: Option<Fault>,
}

/// All requests, and the account.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Every request.
    pub judged: Vec<Judged>,
    /// What the account had before.
    pub before: CreditUnit,
    /// And after.
    pub after: CreditUnit,
}

impl Outcome {
    /// What is wrong, one line each; nothing if all is right.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let faults = self.judged.iter().filter_map(|judged| {
            let fault = judged.fault.as_ref()?;
            Some(format!("{} (hung up {}): {fault}", judged.id, judged.point))
        });
        let charged = self.judged.iter().try_fold(CreditUnit::ZERO, |sum, judged| sum.checked_add(judged.charged));
        let left = charged.and_then(|charged| self.before.checked_sub(charged));
        let balance = match left {
            Ok(left) if left == self.after => None,
            Ok(left) => Some(format!("the balance is {}, and by the charges it is {left}", self.after)),
            Err(_) => Some(format!("the charges are more than the {} that was there", self.before)),
        };
        faults.chain(balance).collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: BTreeMap<(Point, &str), u64> = BTreeMap::new();
        for judged in &self.judged {
            let ending = match judged.ending {
                None => "not booked",
                Some(Ending::Held) => "still held",
                Some(Ending::Committed) => "committed",
                Some(Ending::Released) => "released",
            };
            *counts.entry((judged.point, ending)).or_default() += 1;
        }
        counts.iter().try_for_each(|((point, ending), count)| writeln!(out, "{point:<20} {ending:<11} {count:>7}"))
    }
}

/// Hangs up on every request, waits until all is settled, and judges.
///
/// # Errors
/// If something cannot be asked at all; what is wrong with requests is in the outcome.
pub async fn run(options: &Options) -> Result<Outcome, OutsideError> {
    let mut books = Client::new(&options.base_url);
    let before = books::balance(&mut books, &options.api_key).await?;
    let plans: Arc<[Plan]> = plans(options.seed, options.requests).into();
    hang_up_all(options, &plans).await?;
    let judged = settle(options, &mut books, &plans).await?;
    let after = books::balance(&mut books, &options.api_key).await?;
    Ok(Outcome { judged, before, after })
}

async fn hang_up_all(options: &Options, plans: &Arc<[Plan]>) -> Result<(), OutsideError> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..options.clients {
        let (options, plans, next) = (options.clone(), Arc::clone(plans), Arc::clone(&next));
        clients.spawn(async move {
            while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                hang_up(&options, plan).await?;
            }
            Ok::<(), OutsideError>(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.map_err(|error| OutsideError::answered("a client", error.to_string()))??;
    }
    Ok(())
}

async fn hang_up(options: &Options, plan: &Plan) -> Result<(), OutsideError> {
    let address = authority(&options.base_url);
    let mut stream = TcpStream::connect(address).await.map_err(OutsideError::io(format!("connect to {address}")))?;
    let request = request(options, plan);
    let sent = match plan.point {
        Point::MidRequest => plan.bytes.min(request.len().saturating_sub(1)),
        Point::BeforeHeaders | Point::AfterHeaders | Point::MidEvent | Point::AfterLastByte => request.len(),
    };
    stream.write_all(&request.as_bytes()[..sent]).await.map_err(OutsideError::io("send a request"))?;
    read_until(&mut stream, plan).await?;
    if plan.close == Close::Reset {
        stream.set_zero_linger().map_err(OutsideError::io("set SO_LINGER"))?;
    }
    Ok(())
}

fn request(options: &Options, plan: &Plan) -> String {
    let text = (1..=plan.words).map(|number| format!("word{number}")).collect::<Vec<_>>().join(" ");
    let body = serde_json::json!({
        "model": options.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 64,
        "stream": true,
        "stream_options": {"include_usage": true},
        "user": plan.id,
    })
    .to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nidempotency-key: {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        authority(&options.base_url),
        options.api_key,
        plan.id,
        body.len(),
    )
}

/// Reads as far as the plan says, or to the end of what comes.
async fn read_until(stream: &mut TcpStream, plan: &Plan) -> Result<(), OutsideError> {
    let mut read: Vec<u8> = Vec::new();
    while !is_far_enough(&read, plan) {
        let late = || OutsideError::TooLate { what: format!("a byte for {}", plan.id), seconds: BYTE_WITHIN.as_secs() };
        let byte = tokio::time::timeout(BYTE_WITHIN, stream.read_buf(&mut read)).await.map_err(|_| late())?;
        if byte.map_err(OutsideError::io("read an answer"))? == 0 {
            break;
        }
    }
    Ok(())
}

fn is_far_enough(read: &[u8], plan: &Plan) -> bool {
    let head = read.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
    match (plan.point, head) {
        (Point::MidRequest | Point::BeforeHeaders, _) => true,
        (Point::AfterHeaders, head) => head.is_some(),
        (Point::MidEvent | Point::AfterLastByte, None) => false,
        (Point::MidEvent, Some(head)) => read.len() >= head + plan.bytes || is_whole(read, head),
        (Point::AfterLastByte, Some(head)) => is_whole(read, head),
    }
}

/// A stream's last chunk has no bytes; a refusal says how long it is.
fn is_whole(read: &[u8], head: usize) -> bool {
    let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.map_or_else(|| read.ends_with(b"\r\n0\r\n\r\n"), |length| read.len() >= head + length)
}

/// Asks both sides until no request is on its way any more, or until the time is over; then judges.
async fn settle(options: &Options, books: &mut Client, plans: &[Plan]) -> Result<Vec<Judged>, OutsideError> {
    let mut upstream = Client::new(&options.upstream_url);
    let began = Instant::now();
    let mut booked: BTreeMap<&str, Booked> = BTreeMap::new();
    loop {
        let calls = calls(&mut upstream).await?;
        let by_tag = by_tag(&calls);
        let mut is_settled = true;
        for plan in plans {
            let of_request = by_tag.get(plan.id.as_str()).map_or(&[][..], Vec::as_slice);
            let has_ended = booked.get(plan.id.as_str()).is_some_and(|booked| booked.ending != Ending::Held);
            if !has_ended {
                let found = books::look(books, &options.api_key, &plan.id).await?;
                booked.extend(found.map(|found| (plan.id.as_str(), found)));
            }
            is_settled &= is_over(booked.get(plan.id.as_str()), of_request);
        }
        if is_settled || began.elapsed() > SETTLED_WITHIN {
            return Ok(plans.iter().map(|plan| judge(plan, &booked, &by_tag, &options.tariff)).collect());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn is_over(booked: Option<&Booked>, calls: &[&Call]) -> bool {
    let is_running = calls.iter().any(|call| call.progress == Progress::Running);
    let is_held = booked.is_some_and(|booked| booked.ending == Ending::Held);
    !is_running && !is_held && (booked.is_some() || calls.is_empty())
}

fn judge(plan: &Plan, booked: &BTreeMap<&str, Booked>, calls: &BTreeMap<&str, Vec<&Call>>, tariff: &Tariff) -> Judged {
    let booked = booked.get(plan.id.as_str());
    let calls = calls.get(plan.id.as_str()).map_or(&[][..], Vec::as_slice);
    Judged {
        id: plan.id.clone(),
        point: plan.point,
        ending: booked.map(|booked| booked.ending),
        charged: booked.map_or(CreditUnit::ZERO, |booked| booked.charged),
        fault: books::verdict(booked, calls, tariff),
    }
}

/// What the upstream remembers.
///
/// # Errors
/// If it does not say.
pub async fn calls(upstream: &mut Client) -> Result<Calls, OutsideError> {
    let answer = upstream.send("GET", "/__calls", &[], "").await?.good("the upstream")?;
    serde_json::from_value(answer).map_err(|error| OutsideError::answered("the upstream", error.to_string()))
}

fn by_tag(calls: &Calls) -> BTreeMap<&str, Vec<&Call>> {
    let mut by_tag: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &calls.calls {
        if let Some(tag) = &call.tag {
            by_tag.entry(tag).or_default().push(call);
        }
    }
    by_tag
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Options as UpstreamOptions, Running};
    use holdfast_domain::CreditsPerUsd;
    use tokio::runtime::Builder;

    fn options(url: &str, requests: u64) -> Options {
        let [input, output] = ["1", "2"].map(|price| price.parse().unwrap());
        Options {
            base_url: url.to_owned(),
            upstream_url: url.to_owned(),
            api_key: "k".to_owned(),
            model: "mock".to_owned(),
            tariff: Tariff { input, output, credits_per_usd: CreditsPerUsd::DEFAULT },
            requests,
            clients: 8,
            seed: 7,
        }
    }

    #[test]
    fn a_seed_is_a_run_and_every_point_is_in_it() {
        let all = plans(7, 500);
        assert_eq!(all, plans(7, 500));
        assert_ne!(all, plans(8, 500));
        for point in
            [Point::MidRequest, Point::BeforeHeaders, Point::AfterHeaders, Point::MidEvent, Point::AfterLastByte]
        {
            assert!(all.iter().any(|plan| plan.point == point), "{point}");
        }
    }

    #[test]
    fn clients_hang_up_where_they_say_and_the_upstream_notices() {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let upstream = Running::start(UpstreamOptions {
                // Slow enough that a stream still runs when its client goes.
                chunk_delay: Duration::from_millis(2),
                ..UpstreamOptions::for_test()
            });
            let upstream = upstream.await.unwrap();
            let options = options(&upstream.url, 60);
            let plans: Arc<[Plan]> = plans(options.seed, options.requests).into();
            hang_up_all(&options, &plans).await.unwrap();
            let mut client = Client::new(&upstream.url);
            let ended = loop {
                let calls = calls(&mut client).await.unwrap();
                if calls.calls.iter().all(|call| call.progress != Progress::Running) {
                    break calls;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            };
            let by_tag = by_tag(&ended);
            for plan in plans.iter() {
                let progress = by_tag.get(plan.id.as_str()).map(|calls| calls[0].progress);
                match plan.point {
                    Point::MidRequest => assert_eq!(progress, None, "{plan:?}"),
                    Point::AfterLastByte => assert_eq!(progress, Some(Progress::Finished), "{plan:?}"),
                    Point::BeforeHeaders | Point::AfterHeaders | Point::MidEvent => {}
                }
            }
            assert!(ended.calls.iter().any(|call| call.progress == Progress::HungUp));
        });
    }

    #[test]
    fn the_end_of_an_answer_is_seen_in_a_stream_and_in_a_refusal() {
        let plan = |point| Plan { point, bytes: 5, ..plans(1, 1).remove(0) };
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let check = |text: String, point, expected| {
            assert_eq!(is_far_enough(text.as_bytes(), &plan(point)), expected, "{text:?}");
        };
        check(head[..20].to_owned(), Point::AfterHeaders, false);
        check(head.to_owned(), Point::AfterHeaders, true);
        check(format!("{head}3\r\nab"), Point::MidEvent, true);
        check(format!("{head}3\r\n"), Point::MidEvent, false);
        check(format!("{head}3\r\nabc\r\n"), Point::AfterLastByte, false);
        check(format!("{head}3\r\nabc\r\n0\r\n\r\n"), Point::AfterLastByte, true);
        check("HTTP/1.1 402 x\r\nContent-Length: 2\r\n\r\n{}".to_owned(), Point::AfterLastByte, true);
    }

    #[test]
    fn a_charge_that_no_request_explains_is_found_in_the_balance() {
        let judged = |fault| Judged {
            id: "r".to_owned(),
            point: Point::MidEvent,
            ending: Some(Ending::Committed),
            charged: "2".parse().unwrap(),
            fault,
        };
        let outcome = |after: &str, fault| Outcome {
            judged: vec![judged(fault)],
            before: "10".parse().unwrap(),
            after: after.parse().unwrap(),
        };
        assert_eq!(outcome("8", None).faults(), Vec::<String>::new());
        assert_eq!(outcome("7.5", None).faults(), ["the balance is 7.5, and by the charges it is 8"]);
        assert_eq!(
            outcome("8", Some(Fault::StillHeld)).faults(),
            ["r (hung up within an event): the hold never ended"]
        );
    }
}
