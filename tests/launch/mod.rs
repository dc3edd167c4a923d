//! Launchers: who a process is by its environment, and several processes as one command.

mod course;
mod environment;
mod output;
mod processes;
