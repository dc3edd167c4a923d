//! One request to the service of an elastic job, without joining.

use std::time::{Duration, Instant};

use kiln_system::{Error, Result};
use tokio::runtime::Builder;

use super::connection::{DialError, Dialer, NO_LEADER};
use super::membership::MembershipView;
use super::wire::{FromService, Purpose, encode};
use super::{HANDSHAKE, Terms};

/// How long a service is asked again that does not answer in full, as when others hold its connections.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(100);

/// Sends `purpose`, other than [`Purpose::Join`], to the service at `address`, or to the one of several addresses that
/// leads; returns the view, `None` if no process has joined yet.
///
/// # Errors
/// A usage error for a refusal, [`Error::PeerLost`] if there is no service.
pub fn query(address: &str, terms: &Terms, purpose: &Purpose) -> Result<Option<MembershipView>> {
    let failed = |error| Error::PeerLost(format!("cannot start a thread: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let unreached = |why: String| Error::PeerLost(format!("there is no rendezvous at '{address}': {why}"));
    let began = Instant::now();
    runtime.block_on(async {
        loop {
            let (mut last, mut answers) = (String::new(), false);
            for dialer in Dialer::all(address, terms)? {
                match ask(&dialer, purpose).await {
                    Ok(FromService::View(view)) => return Ok(Some(view)),
                    Ok(FromService::Elsewhere) => last = NO_LEADER.into(),
                    Ok(_) => return Ok(None),
                    Err(DialError::Transient(why)) => (last, answers) = (why, true),
                    Err(DialError::Absent(why)) => last = why,
                    Err(DialError::Unproven(why)) => return Err(Error::usage(why)),
                    Err(DialError::OtherJob(error) | DialError::Final(error)) => return Err(error),
                }
            }
            if !answers || began.elapsed() > PATIENCE {
                return Err(unreached(last));
            }
            tokio::time::sleep(RETRY).await;
        }
    })
}

/// The answer of the service of `dialer` to `purpose`.
pub(super) async fn ask(dialer: &Dialer, purpose: &Purpose) -> std::result::Result<FromService, DialError> {
    let mut session = dialer.dial(encode(purpose), "this visitor", HANDSHAKE).await?;
    match session.next().await.map_err(DialError::Transient)? {
        FromService::Refusal(refusal) => Err(dialer.refused("this visitor", refusal)),
        answer => Ok(answer),
    }
}
