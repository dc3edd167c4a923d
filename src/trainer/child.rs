//! This program once more, as a process of its own. (placeholder)

use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// A run in a process of its own.
pub(super) struct Child {
    arguments: Vec<String>,
}

impl Child {
    pub(super) fn new(arguments: Vec<String>) -> Self {
        Self { arguments }
    }

    /// Waits for its end and returns the exit code.
    pub(super) fn run(&self, quiet: bool) -> Result<u8> {
        let program = std::env::current_exe().map_err(Error::io("find", "train"))?;
        let mut command = Command::new(&program);
        command.args(&self.arguments).stdin(Stdio::null());
        if quiet {
            command.stdout(Stdio::null());
        }
        let status = command.status().map_err(Error::io("start", &program))?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}
