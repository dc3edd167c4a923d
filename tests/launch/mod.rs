//! Launchers: who a process is by its environment, and several processes as one command.

mod environment;
mod exit_policy;
mod output;
mod processes;
mod sbatch;
