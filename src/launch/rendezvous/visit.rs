//! A visit to the service of an elastic job: one question, one answer.

use prost::Message;
use tokio::runtime::Builder;

use super::Terms;
use super::bulletin::Bulletin;
use super::connection::{Caller, Obstacle};
use super::elastic_wire::{Purpose, Visit};
use super::wire::FromService;
use crate::error::{Error, Result};

/// What a visitor wants.
#[derive(Debug, Clone, Copy)]
pub enum Errand {
    /// To see who is there.
    Look,
    /// To have the member of this rank leave.
    Drain(usize),
    /// To hold the rendezvous in its place.
    Replace,
}

/// Goes to the service at `address` for an errand; answers with who is there, or nothing if nobody ever was.
///
/// # Errors
/// A usage error for a refusal, [`Error::PeerLost`] if there is no service.
pub fn visit(address: &str, terms: &Terms, errand: Errand) -> Result<Option<Bulletin>> {
    let failed = |error| Error::PeerLost(format!("cannot start a thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let unreached = |why: String| Error::PeerLost(format!("there is no rendezvous at '{address}': {why}"));
    runtime.block_on(async {
        let caller = Caller::new(address, terms)?;
        let purpose = match errand {
            Errand::Look => Purpose::Look(true),
            Errand::Drain(rank) => Purpose::Drain(rank as u64),
            Errand::Replace => Purpose::Replace(true),
        };
        let call = caller.call(Visit { purpose: Some(purpose) }.encode_to_vec(), "this visitor").await;
        let ended = |obstacle| match obstacle {
            Obstacle::Passing(why) => unreached(why),
            Obstacle::Unproven(why) => Error::usage(why),
            Obstacle::Elsewhere(error) | Obstacle::Final(error) => error,
        };
        let mut session = call.map_err(ended)?;
        match session.next().await.map_err(unreached)? {
            Some(FromService::Bulletin(bulletin)) => Ok(Some(bulletin.into())),
            Some(FromService::Refusal(refusal)) => Err(ended(caller.refused("this visitor", refusal))),
            _ => Ok(None),
        }
    })
}
