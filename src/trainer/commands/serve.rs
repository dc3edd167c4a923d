//! `train serve`: the page of a run, beside it or afterwards.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kiln_system::stop::Stop;
use kiln_system::{Error, Result};

use crate::serve::Place;
use crate::trainer::phases::listen;
use crate::trainer::terminal::say;

/// Serves the page of the run in `directory` until a signal comes; returns the exit code.
pub fn serve(directory: &Path, address: SocketAddr) -> Result<u8> {
    listen(false);
    let stop = Stop::new();
    stop.begin();
    stop.listen_to_signals(|_| {}).map_err(Error::io("listen to signals of", "this process"))?;
    let place = Place::take(address, "--bind 127.0.0.1:0 for any free port")?;
    let url = place.url(false);
    let _server = place.serve(directory, None, false)?;
    say(&format!("page        {url}"));
    loop {
        match stop.reason() {
            Some(reason) => return Ok(reason.exit_code()),
            None => thread::sleep(Duration::from_millis(100)),
        }
    }
}
