//! One request to the service of an elastic job, without joining.

use tokio::runtime::Builder;

use super::Terms;
use super::bulletin::Bulletin;
use super::connection::{DialError, Dialer};
use super::wire::{FromService, Purpose, encode};
use crate::error::{Error, Result};

/// Sends `purpose`, other than [`Purpose::Join`], to the service at `address`; returns the bulletin, `None` if no
/// process has joined yet.
///
/// # Errors
/// A usage error for a refusal, [`Error::PeerLost`] if there is no service.
pub fn query(address: &str, terms: &Terms, purpose: &Purpose) -> Result<Option<Bulletin>> {
    let failed = |error| Error::PeerLost(format!("cannot start a thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let unreached = |why: String| Error::PeerLost(format!("there is no rendezvous at '{address}': {why}"));
    runtime.block_on(async {
        let dialer = Dialer::new(address, terms)?;
        let dialed = dialer.dial(encode(purpose), "this visitor").await;
        let failed = |error| match error {
            DialError::Transient(why) => unreached(why),
            DialError::Unproven(why) => Error::usage(why),
            DialError::OtherJob(error) | DialError::Final(error) => error,
        };
        let mut session = dialed.map_err(failed)?;
        match session.next().await.map_err(unreached)? {
            FromService::Bulletin(bulletin) => Ok(Some(bulletin)),
            FromService::Refusal(refusal) => Err(failed(dialer.refused("this visitor", refusal))),
            _ => Ok(None),
        }
    })
}
