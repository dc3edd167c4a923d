//! `train slurm`: a batch script for SLURM with one process per GPU, and its submission.
//!
//! The script is `config/launch/slurm.sbatch` with other directives and with the training's arguments in it.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Stdio};

use kiln_system::{Error, Result};

use crate::config::shell_word;

const TEMPLATE: &str = include_str!("../../config/launch/slurm.sbatch");
/// Directives of the template that a job sets itself.
const SET: [&str; 4] = ["--job-name=", "--nodes=", "--ntasks-per-node=", "--time="];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sbatch {
    pub job_name: String,
    pub nodes: u16,
    /// GPUs of each, which have a process each; 0 for one process on the processor.
    pub gpus_per_node: u16,
    /// Time limit, as SLURM reads it.
    pub time: String,
    /// Further directives, as in `partition=gpu` or `array=0-3`.
    pub directives: Vec<String>,
    pub modules: Vec<String>,
    /// Network interface between the machines, if not the default route's.
    pub interface: Option<String>,
    pub arguments: Vec<OsString>,
}

impl Sbatch {
    pub fn script(&self) -> String {
        let is_set =
            |line: &str| line.strip_prefix("#SBATCH ").is_some_and(|rest| SET.iter().any(|set| rest.starts_with(set)));
        let (head, body) = TEMPLATE.split_once("\n#SBATCH ").expect("the template has directives");
        let shebang = head.lines().next().unwrap_or_default();
        let body = format!("#SBATCH {body}");
        let mut lines = vec![shebang.to_string()];
        lines.extend(self.directives().into_iter().map(|directive| format!("#SBATCH --{directive}")));
        for line in body.lines().filter(|line| !is_set(line)) {
            lines.push(line.into());
            if line == "set -u" {
                lines.extend(self.preparation());
            }
        }
        lines.join("\n") + "\n"
    }

    fn directives(&self) -> Vec<String> {
        let tasks = self.gpus_per_node.max(1);
        let mut directives = vec![
            format!("job-name={}", self.job_name),
            format!("nodes={}", self.nodes),
            format!("ntasks-per-node={tasks}"),
            format!("time={}", self.time),
        ];
        directives.extend((self.gpus_per_node > 0).then(|| format!("gpus-per-node={}", self.gpus_per_node)));
        directives.extend(self.directives.iter().map(|directive| directive.trim_start_matches("--").to_string()));
        directives
    }

    /// The lines before the training.
    fn preparation(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.modules.iter().map(|module| format!("module load {}", shell_word(module))).collect();
        let interface = self.interface.iter().flat_map(|name| ["--dist-interface".into(), name.into()]);
        let arguments = self.arguments.iter().cloned().chain(interface);
        let quoted: Vec<String> = arguments.map(|argument| shell_word(&argument.to_string_lossy())).collect();
        lines.push(format!("set -- {} \"$@\"", quoted.join(" ")));
        lines
    }
}

/// Gives a script to `sbatch`; returns what that says.
///
/// # Errors
/// [`Error::Usage`] if there is no `sbatch`, or if it refuses the script.
pub fn submit(script: &str) -> Result<String> {
    let missing =
        |reason| Error::usage(format!("cannot start 'sbatch': {reason}; remove --submit to print the script"));
    let mut sbatch = Command::new("sbatch")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    let mut input = sbatch.stdin.take().expect("it is piped");
    // A script that sbatch does not read to its end is refused below.
    drop(input.write_all(script.as_bytes()));
    drop(input);
    let output = sbatch.wait_with_output().map_err(missing)?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', ", ");
    if output.status.success() {
        return Ok(said(&output.stdout));
    }
    Err(Error::usage(format!(
        "sbatch refuses the job: {}; add the missing directive with --sbatch NAME=VALUE",
        said(&output.stderr)
    )))
}
