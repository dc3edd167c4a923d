//! Commands that only show: the configuration, a report, this machine, completions and the manual.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use kiln_system::{Result, shown};

use super::Cli;
use super::options::Options;
use crate::config::{Resolved, resolve};
use crate::report::write_for_user;
use crate::serve::USUAL;
use crate::trainer::{completed, doctor, say, serve};

#[derive(Debug, Args)]
pub struct Config {
    #[command(flatten)]
    pub(super) options: Options<true>,
}

impl Config {
    pub(super) fn run(self) -> Result<u8> {
        let request = completed(self.options.request)?;
        let Resolved { config, notes, .. } = resolve(&request)?;
        let notes = notes.iter().filter(|_| request.origin.is_some());
        say(&notes.map(|note| format!("# {note}\n")).chain([config.to_toml()]).collect::<String>());
        Ok(0)
    }
}

#[derive(Debug, Args)]
pub struct Report {
    /// Directories of runs.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// File to write, with curves.svg in the same directory; without it, report.html in the run's directory, or in
    /// report/ for several runs.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Report {
    pub(super) fn run(self) -> Result<u8> {
        let page = write_for_user(&self.runs, self.output)?;
        say(&format!("report      {}, with curves.svg in the same directory", shown(page)));
        Ok(0)
    }
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Directory of a run.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Address to listen on. Other machines need the token in the address that is printed.
    #[arg(long, value_name = "HOST:PORT", default_value = USUAL, value_parser = address)]
    bind: SocketAddr,
}

impl Serve {
    pub(super) fn run(self) -> Result<u8> {
        serve(&self.run, self.bind)
    }
}

fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("an address and a port, as in {USUAL}"))
}

#[derive(Debug, Args)]
pub struct Doctor;

impl Doctor {
    pub(super) fn run(self) -> Result<u8> {
        doctor();
        Ok(0)
    }
}

#[derive(Debug, Args)]
pub struct Completions {
    /// Shell to complete in.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<u8> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "train", &mut text);
        say(&String::from_utf8_lossy(&text));
        Ok(0)
    }
}

#[derive(Debug, Args)]
pub struct Man;

impl Man {
    pub(super) fn run(self) -> Result<u8> {
        let mut text = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut text).expect("writing to memory does not fail");
        say(&String::from_utf8_lossy(&text));
        Ok(0)
    }
}

/// The help or the version, as clap prints it.
#[derive(Debug)]
pub struct Help(pub clap::Error);

impl Help {
    pub(super) fn run(self) -> Result<u8> {
        // Like clap's own exit, ignore a closed pipe.
        let _ = self.0.print();
        Ok(0)
    }
}
