//! One connection: calls, one after the other, until one of the two goes.

use super::answer::{self, After, Said};
use super::book::{Again, Book, Entered, Row};
use super::call::{Call, Finalize, Wrong};
use super::manner::{Manner, Mix, of_id};
use super::{FINALIZE, Plant, State};
use crate::rng::Rng;
use std::sync::{Arc, MutexGuard, PoisonError};
use tokio::io::BufReader;
use tokio::net::TcpStream;

/// Apart from what is chosen per call: which ids are refused, lost or misread.
const FATE_SEED: u64 = 0x7065_6572;

impl State {
    pub(super) fn books(&self) -> MutexGuard<'_, super::book::Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mix(&self) -> Mix {
        self.mix.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_one_in(&self, id: &str, many: u64) -> bool {
        of_id(self.options.seed ^ FATE_SEED, id).one_in(many)
    }

    /// The book as it is shown.
    pub(super) fn shown(&self) -> Book {
        let mut book = self.books().book.clone();
        book.rows.iter_mut().for_each(|(id, row)| self.misread(id, row));
        book
    }

    /// What is shown of one id.
    pub(super) fn shown_row(&self, id: &str) -> Option<Row> {
        let mut row = self.books().book.rows.get(id).cloned()?;
        self.misread(id, &mut row);
        Some(row)
    }

    /// Another cost here and there, if that is the bug.
    fn misread(&self, id: &str, row: &mut Row) {
        if let Some(Plant::Misreads(many)) = self.options.plant
            && self.is_one_in(id, many)
        {
            row.cost.push('0');
        }
    }

    /// Takes a call, and says how it is answered.
    fn take(&self, call: &Call) -> (Manner, Said, Rng) {
        let honest = |said| (Manner::Honest, said, Rng::new(self.options.seed));
        match self.told(call) {
            Ok(told) => self.answer(&told).unwrap_or_else(|status| honest(Said::Refused(status))),
            Err((status, complaint)) => {
                self.books().complain(complaint);
                honest(Said::Refused(status))
            }
        }
    }

    fn told(&self, call: &Call) -> Result<Finalize, Wrong> {
        if call.path != FINALIZE {
            return Err((404, format!("{} {}, which nobody was told of", call.method, call.path)));
        }
        if call.method != "POST" {
            return Err((405, format!("{} {}", call.method, call.path)));
        }
        call.finalize()
    }

    fn answer(&self, told: &Finalize) -> Result<(Manner, Said, Rng), u16> {
        let Finalize { id, .. } = told;
        let mix = self.mix();
        let mut books = self.books();
        let asked = books.asked(told).ok_or(422_u16)?;
        let is_refused = self.options.refuses_one_in.is_some_and(|many| self.is_one_in(id, many));
        if is_refused && !*self.relented.borrow() {
            return Err(422);
        }
        let (chosen, rng) = mix.choose(self.options.seed, id, asked);
        let manner = if asked > self.options.fair_after { Manner::Honest } else { chosen };
        if !manner.takes() {
            return Ok((manner, Said::Nothing, rng));
        }
        if let Some(Plant::Loses(many)) = self.options.plant
            && self.is_one_in(id, many)
        {
            return Ok((manner, Said::Taken, rng));
        }
        let again = if self.options.plant == Some(Plant::AppliesAgain) { Again::Planted } else { Again::Never };
        let was_new = books.book.rows.get(id).is_some_and(|row| row.applied == 0);
        let entered = books.apply(id, again);
        drop(books);
        if was_new {
            self.applied.send_modify(|applied| *applied += 1);
        }
        let said = if entered == Entered::Applied { Said::Taken } else { Said::Known };
        Ok((manner, said, rng))
    }
}

/// Serves a connection until its end.
pub(super) async fn serve(stream: TcpStream, state: Arc<State>, called: impl Fn()) {
    // Without this an answer in pieces waits 40 ms for the other side's acknowledgement.
    let _without_it_only_slower = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    // A caller that speaks no HTTP, or goes away, ends its connection.
    while let Ok(Some(call)) = Call::read(&mut stream).await {
        let (manner, said, rng) = state.take(&call);
        let answered = answer::write(&mut stream, manner, said, rng).await;
        called();
        if !matches!(answered, Ok(After::NextCall)) {
            break;
        }
    }
}
