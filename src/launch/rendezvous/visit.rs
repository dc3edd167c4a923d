//! A visit to the service of an elastic job: one question, one answer.

use tokio::runtime::Builder;

use super::Terms;
use super::bulletin::Bulletin;
use super::connection::{Caller, Obstacle};
use super::wire::{FromService, Purpose, encode};
use crate::error::{Error, Result};

/// Goes to the service at `address` for a purpose other than to join; answers with who is there, or nothing if nobody ever was.
///
/// # Errors
/// A usage error for a refusal, [`Error::PeerLost`] if there is no service.
pub fn visit(address: &str, terms: &Terms, purpose: &Purpose) -> Result<Option<Bulletin>> {
    let failed = |error| Error::PeerLost(format!("cannot start a thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let unreached = |why: String| Error::PeerLost(format!("there is no rendezvous at '{address}': {why}"));
    runtime.block_on(async {
        let caller = Caller::new(address, terms)?;
        let call = caller.call(encode(purpose), "this visitor").await;
        let ended = |obstacle| match obstacle {
            Obstacle::Passing(why) => unreached(why),
            Obstacle::Unproven(why) => Error::usage(why),
            Obstacle::Elsewhere(error) | Obstacle::Final(error) => error,
        };
        let mut session = call.map_err(ended)?;
        match session.next().await.map_err(unreached)? {
            FromService::Bulletin(bulletin) => Ok(Some(bulletin)),
            FromService::Refusal(refusal) => Err(ended(caller.refused("this visitor", refusal))),
            _ => Ok(None),
        }
    })
}
