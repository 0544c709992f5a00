//! The queue of a running node, as its role has it.

use super::{Parts, Purse, Queue, QueueSettings, RemoteWallet, Store};
use crate::failure::Failure;
use crate::identity::Identity;
use crate::node::Node;
use crate::role::Role;
use crate::terminal;
use crate::wallet::{Secrets, Wallet};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Opens the queue, if the role has one, and has its items follow their escrows.
pub(crate) fn open(
    node: &Node,
    (role, settings): (Role, QueueSettings),
    (wallet, secrets): (&Arc<Wallet>, Arc<Secrets>),
    identity: Arc<Identity>,
    runtime: &Runtime,
) -> Result<Option<Arc<Queue>>, Failure> {
    if !role.has_queue() {
        return Ok(None);
    }
    let purse = match role.wallet_elsewhere(&settings)? {
        Some(url) => Purse::There(RemoteWallet::at(url, &settings.wallet_audience, identity)?),
        None => Purse::Here(Arc::clone(wallet)),
    };
    let store = Store::open(node, runtime)?;
    let queue = Queue::new(Parts { store, purse, secrets, clock: Arc::clone(&node.clock), settings });
    if let Err(error) = runtime.block_on(queue.converge_at_start()) {
        // Each item is compared again before anything is decided about it.
        terminal::note(&format!("queue items are not compared with their escrows: {error}"));
    }
    Ok(Some(queue))
}
