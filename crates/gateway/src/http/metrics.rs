//! What is counted, in Prometheus' text form. Labels are route templates, methods, statuses and codes: never an id, an
//! address or anything that a caller chose.

use crate::books::Health;
use crate::service::Service;
use crate::wallet::Checks;
use axum::http::StatusCode;
use holdfast_engine::Totals;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Seconds, from a memory's answer to a request's longest time.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Timed {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    code: &'static str,
}

/// The server's numbers.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Timed, Histogram, fn() -> Histogram>,
    refused: Family<Refused, Counter>,
    connections: Gauge,
    durable: Gauge,
    applied: Gauge,
    waiting: Gauge,
    failed: Gauge,
    open_reservations: Gauge,
    open_escrows: Gauge,
    accounts: Gauge,
    uptime: Gauge,
}

impl Metrics {
    pub(crate) fn new(service: &Service, checks: &Checks) -> Self {
        let mut registry = Registry::with_prefix("holdfast");
        if let Some(settling) = service.settlement() {
            settling.numbers.register(&mut registry);
        }
        if let Some(queue) = service.queue() {
            queue.numbers.register(&mut registry);
        }
        checks.register(&mut registry);
        let metrics = Self {
            registry,
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            refused: Family::default(),
            connections: Gauge::default(),
            durable: Gauge::default(),
            applied: Gauge::default(),
            waiting: Gauge::default(),
            failed: Gauge::default(),
            open_reservations: Gauge::default(),
            open_escrows: Gauge::default(),
            accounts: Gauge::default(),
            uptime: Gauge::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("http_requests", "Answers, by method, route and status", self.requests.clone());
        registry.register("http_request_seconds", "Time to the head of the answer", self.seconds.clone());
        registry.register("auth_refused", "Credentials refused, by code", self.refused.clone());
        for (name, help, gauge) in [
            ("http_connections", "Open connections", &self.connections),
            ("journal_durable_offset", "The last durable entry", &self.durable),
            ("read_model_applied_offset", "The last entry that the read model has applied", &self.applied),
            ("engine_waiting", "Requests that wait for the engine", &self.waiting),
            ("engine_failed", "1 when the journal has failed", &self.failed),
            ("open_reservations", "Reservations that hold credits", &self.open_reservations),
            ("open_escrows", "Escrows that hold credits", &self.open_escrows),
            ("accounts", "Accounts", &self.accounts),
            ("uptime_seconds", "Seconds since the start", &self.uptime),
        ] {
            registry.register(name, help, gauge.clone());
        }
        self
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, method: &'static str, route: &str, status: StatusCode, took: Duration) {
        let route = route.to_owned();
        self.seconds.get_or_create(&Timed { route: route.clone() }).observe(took.as_secs_f64());
        self.requests.get_or_create(&Answered { method, route, status: status.as_u16() }).inc();
    }

    /// Counts a refused credential.
    pub(crate) fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&Refused { code }).inc();
    }

    /// Notes how many connections there are.
    pub(crate) fn connected(&self, connections: usize) {
        self.connections.set(whole(connections));
    }

    /// Everything, as text. The books' sums stay as they were if they are not known.
    pub(crate) fn text(&self, health: &Health, totals: Option<Totals>, uptime: Duration) -> String {
        self.durable.set(health.durable.cast_signed());
        self.applied.set(health.applied.cast_signed());
        self.waiting.set(whole(health.waiting));
        self.failed.set(i64::from(health.failed.is_some()));
        self.uptime.set(uptime.as_secs().cast_signed());
        if let Some(totals) = totals {
            self.open_reservations.set(whole(totals.open_charges));
            self.open_escrows.set(whole(totals.open_escrows));
            self.accounts.set(whole(totals.owners));
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
