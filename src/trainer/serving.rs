//! The page of a run, served by the training itself or, beside it or afterwards, by `train serve`.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kiln_system::stop::Stop;
use kiln_system::{Error, Result};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;

use super::phases::listen;
use super::terminal::{say, warn};
use crate::config::Config;
use crate::metrics::screen;
use crate::serve::{Action, Place, Server};

/// Takes the address of `--serve`, in the first process of a run.
pub(super) fn place(config: &Config) -> Result<Option<Place>> {
    // What is no address was refused.
    let address = config.run.serve.parse().ok().filter(|_| config.parallel.rank == 0);
    address.map(|address| Place::take(address, "--serve=127.0.0.1:0 for any free port")).transpose()
}

/// Serves the page of this training and prints its address.
pub(super) fn begin(place: Place, config: &Config, directory: &Path, stop: &Stop) -> Result<Server> {
    let say = if config.run.progress.is_text() { say } else { warn };
    let line = format!("page        {}", place.url(true));
    say(&line);
    screen::show_again(&line);
    let stop = stop.clone();
    let act = move |action| match action {
        Action::Stop => drop(raise(SIGTERM)),
        Action::Save => stop.request_save(),
    };
    place.serve(directory, Some(Box::new(act)))
}

/// Serves the page of the run in `directory` until a signal comes; returns the exit code.
pub fn serve(directory: &Path, address: SocketAddr) -> Result<u8> {
    listen(false);
    let stop = Stop::new();
    stop.begin();
    stop.listen_to_signals(|_| {}).map_err(Error::io("listen to signals of", "this process"))?;
    let place = Place::take(address, "--bind 127.0.0.1:0 for any free port")?;
    let url = place.url(false);
    let _server = place.serve(directory, None)?;
    say(&format!("page        {url}"));
    loop {
        match stop.reason() {
            Some(reason) => return Ok(reason.exit_code()),
            None => thread::sleep(Duration::from_millis(100)),
        }
    }
}
