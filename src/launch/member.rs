//! This process at the rendezvous, as the engine asks for it: which process is lost, and whether a generation goes on.

use std::sync::Arc;

use kiln_engine::parallel::engine::{Judge, Symptom};
use kiln_engine::parallel::{Broken, Generation};
use kiln_membership::rendezvous::Client;

pub(super) struct Member(pub(super) Arc<Client>);

impl Generation for Member {
    fn confirm(&self) -> Result<(), Broken> {
        self.0.confirm().map_err(|verdict| Broken::Peer(verdict.0))
    }

    fn is_ending(&self) -> bool {
        self.0.is_ending()
    }
}

/// The rendezvous decides which process caused an error.
impl Judge for Member {
    fn doing(&self, activity: &str) {
        self.0.doing(activity);
    }

    fn verdict(&self, symptom: &Symptom) -> String {
        self.0.trouble(&symptom.0).0
    }
}
