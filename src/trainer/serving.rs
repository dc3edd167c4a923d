//! The page of a run, served by the training itself.

use std::net::SocketAddr;
use std::path::Path;

use kiln_system::Result;
use kiln_system::stop::{Reason, Stop};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;

use super::terminal::{say, warn};
use crate::config::Config;
use crate::metrics::screen;
use crate::serve::{Action, Place, Server};

/// How another address is given.
const OTHER: &str = "--serve=127.0.0.1:0 for any free port";

/// Takes the address of `--serve`, in the first process of a run.
pub(super) fn place(config: &Config) -> Result<Option<Place>> {
    address(config).map(|address| Place::take(address, OTHER)).transpose()
}

fn address(config: &Config) -> Option<SocketAddr> {
    // What is no address was refused.
    config.run.serve.parse().ok().filter(|_| config.parallel.rank == 0)
}

/// Serves the page of this training and prints its address.
pub(super) fn begin(place: Place, config: &Config, directory: &Path, stop: &Stop) -> Result<Server> {
    let say = if config.run.progress.is_text() { say } else { warn };
    let line = format!("page        {}", place.url(true));
    say(&line);
    screen::show_again(&line);
    let stop = stop.clone();
    let is_elastic = config.parallel.elastic.is_on();
    let act = move |action| match action {
        // A signal would make this process leave, not end the run.
        Action::Stop if is_elastic => stop.request(Reason::Signal(SIGTERM)),
        Action::Stop => drop(raise(SIGTERM)),
        Action::Save => stop.request_save(),
    };
    place.serve(directory, Some(Box::new(act)), is_elastic)
}

/// The page of an elastic run, served by the process that writes the run's files.
#[derive(Default)]
pub(super) struct MovingPage {
    server: Option<Server>,
    has_warned: bool,
}

impl MovingPage {
    /// # Errors
    /// A usage error if this process could not serve the page, even if nobody did so before.
    pub(super) fn check(config: &Config) -> Result<()> {
        let any_port = |address: SocketAddr| SocketAddr::new(address.ip(), 0);
        address(config).map_or(Ok(()), |address| Place::take(any_port(address), OTHER).map(drop))
    }

    /// Serves it from now on, if `config` asks for it. The process that did so before may still have the address: then
    /// the next call tries again.
    pub(super) fn serve(&mut self, config: &Config, directory: &Path, stop: &Stop) {
        if self.server.is_some() {
            return;
        }
        match place(config).and_then(|place| place.map(|place| begin(place, config, directory, stop)).transpose()) {
            Ok(server) => self.server = server,
            Err(error) if !std::mem::replace(&mut self.has_warned, true) => {
                warn(&format!("warning: {error}; this process tries again every few seconds"));
            }
            Err(_) => {}
        }
    }

    /// Another process serves it from now on.
    pub(super) fn leave(&mut self) {
        self.server = None;
    }
}
