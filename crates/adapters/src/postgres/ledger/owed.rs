//! What the peer is owed of charges, worked out from their lives.

use super::entry::part_id;
use super::{PostgresLedger, Settles};
use holdfast_domain::charge::State;
use holdfast_domain::delivery::{Duty, Obligation, Sum, owed};
use holdfast_domain::{ChargeId, Event};
use holdfast_engine::part::Wanted;
use holdfast_engine::{LifeState, Record, Refusal};
use std::collections::HashMap;

/// A charge as the peer is concerned with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    /// Where it stands.
    pub state: State,
    /// All that was ever to be told of it, in order: most often one.
    pub parts: Vec<Obligation>,
}

impl PostgresLedger {
    /// What is owed of each of these charges; of one that is not in the books, nothing is said.
    pub async fn owed(&self, charges: Vec<ChargeId>) -> Result<HashMap<ChargeId, Owed>, Refusal> {
        let ledger = self.session().await?.ledger();
        let wanted = Wanted { charges, ..Wanted::default() }.in_order();
        let lives = |view: &holdfast_engine::View<'_>| {
            let life = |id: &ChargeId| Ok::<_, Refusal>((*id, view.life(*id)?));
            wanted.charges.iter().map(life).collect::<Result<Vec<_>, _>>()
        };
        let mut found = HashMap::new();
        for (id, life) in self.look(&wanted, lives).await?? {
            if let Some(owed) = of_life(&life, ledger)? {
                found.insert(id, owed);
            }
        }
        Ok(found)
    }

    /// Waits until something that was committed here is owed.
    pub async fn owes(&self) {
        self.shared.owes.notified().await;
    }

    /// Whether there is a peer.
    #[must_use]
    pub fn settles(&self) -> Settles {
        self.shared.rules.settles
    }
}

fn of_life(life: &[Record], ledger: [u8; 16]) -> Result<Option<Owed>, Refusal> {
    let (mut sum, mut parts, mut last): (Option<Sum>, _, _) = (None, Vec::new(), None);
    for record in life {
        let (Event::Charge { id, owner, event }, LifeState::Charge(state)) = (&record.event, record.state) else {
            continue;
        };
        let (duty, after) = owed(sum, event, state)?;
        (sum, last) = (after, Some(state));
        if let Duty::Tell { part, cost, .. } = duty {
            let obligation = part_id(part, *id, record.offset, ledger);
            parts.push(Obligation { id: obligation, charge: *id, owner: *owner, cost, created_at: record.at });
        }
    }
    Ok(last.map(|state| Owed { state, parts }))
}
