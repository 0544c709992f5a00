//! A process that is killed again and again: at a failpoint, or from outside at any moment.

use super::super::OutsideError;
use super::super::gateway::{Gateway, Launch, Started};
use super::tally::Row;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// A failpoint that is not passed within so long, under load, is not on the way at all.
const REACHED_WITHIN: Duration = Duration::from_secs(20);
/// From outside it is killed up to so many milliseconds after it serves.
const OUTSIDE_MS: u64 = 120;
/// The failpoint kills at one of the first so many passings.
const PASSINGS: u64 = 12;
/// What a kill from outside is called.
pub(super) const OUTSIDE: &str = "kill -9 at any moment";

/// How a process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    /// At the n-th passing.
    Failpoint(&'static str, u64),
    /// So long after it serves.
    Outside(Duration),
}

impl Blow {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Failpoint(name, _) => name,
            Self::Outside(_) => OUTSIDE,
        }
    }

    /// So many blows that each failpoint comes as often as any other; every fifth falls from outside.
    pub(super) fn plan(failpoints: &[&'static str], count: u64, rng: &mut Rng) -> Vec<Self> {
        let mut named = failpoints.iter().cycle();
        let one = |number: u64| {
            // A failpoint whose turn it is keeps its turn while a blow falls from outside.
            let name = if (number + 1).is_multiple_of(5) { None } else { named.next() };
            match name {
                Some(name) => Self::Failpoint(name, rng.between(1, PASSINGS)),
                None => Self::Outside(Duration::from_millis(rng.below(OUTSIDE_MS))),
            }
        };
        (0..count).map(one).collect()
    }
}

/// One process, and what is to become of it.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) launch: Launch,
    pub(super) blows: Vec<Blow>,
}

impl Side {
    /// Has all blows fall, and leaves the process running.
    pub(super) fn suffer(self, first: Gateway) -> Result<(Gateway, Vec<Row>), OutsideError> {
        let mut rows: BTreeMap<&'static str, Row> = BTreeMap::new();
        drop(first);
        for blow in &self.blows {
            let row = rows.entry(blow.name()).or_insert_with(|| Row::new(self.name, blow.name()));
            row.kills += 1;
            match *blow {
                Blow::Failpoint(name, passing) => {
                    let failpoint = Some(format!("{name}:{passing}"));
                    let launch = Launch { failpoint, ..self.launch.clone() };
                    match launch.try_start()? {
                        Started::Killed => row.at_start += 1,
                        Started::Serving(mut gateway) => gateway.wait_killed(REACHED_WITHIN).map_err(|error| {
                            OutsideError::answered(format!("{}, which waits for {name}", self.name), error.to_string())
                        })?,
                    }
                }
                Blow::Outside(after) => {
                    let mut gateway = self.launch.start()?;
                    thread::sleep(after);
                    gateway.kill();
                }
            }
        }
        Ok((self.launch.start()?, rows.into_values().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failpoint_comes_about_as_often_and_every_fifth_blow_from_outside() {
        let blows = Blow::plan(&["one", "two", "three"], 100, &mut Rng::new(1));
        let count = |name: &str| blows.iter().filter(|blow| blow.name() == name).count();
        assert_eq!((blows.len(), count(OUTSIDE)), (100, 20));
        assert!(["one", "two", "three"].into_iter().all(|name| (26..=27).contains(&count(name))), "{blows:?}");
        assert!(Blow::plan(&[], 3, &mut Rng::new(1)).iter().all(|blow| matches!(blow, Blow::Outside(_))));
    }
}
