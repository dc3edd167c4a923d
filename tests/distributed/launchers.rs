//! Launchers that people use, for real and by the guide's lines, where they are installed: `make setup-dist` installs
//! them.

use super::*;
use crate::files::file;
use crate::guide::launcher;
use crate::skipped::skip;

/// Whether a program is there; says so where a test is skipped for the lack of it.
fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
        || std::path::Path::new("/usr/sbin").join(program).is_file();
    if !found {
        skip(&format!("'{program}' is not installed; make setup-dist installs it"));
    }
    found
}

#[test]
fn open_mpi_starts_processes() {
    if !has("mpirun") {
        return;
    }
    let place = Workplace::new();
    let arguments = ["--world-size=2", "--max-steps=5", "--deterministic"];
    let train = place.small("run", &arguments);
    let line = launcher("mpirun");
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    crate::stand_in::tell(&mut command);
    command.args(&line.front()[1..]).arg(train.get_program());
    command.args(train.get_args()).current_dir(place.path("")).stdin(Stdio::null());
    succeeded(&command.output().unwrap());
    place.train("calm", &arguments);
    assert_eq!(place.run("run").tensors(), place.run("calm").tensors());
    assert!(place.path("run/rank-1.jsonl").exists());
}

/// Two pretended nodes on this machine; needs the rights of root.
struct Slurm {
    place: Workplace,
}

impl Slurm {
    fn script(&self) -> Command {
        let mut command = Command::new("bash");
        command.arg(file("tests/fixtures/slurm.sh")).current_dir(self.place.path(""));
        command
    }

    /// None, with the reason, where there is no SLURM to be had.
    fn up() -> Option<Self> {
        if !["slurmctld", "slurmd", "srun", "munged"].iter().all(|program| has(program)) {
            return None;
        }
        let slurm = Self { place: Workplace::new() };
        let up = slurm.script().arg("up").output().unwrap();
        if !up.status.success() {
            skip(&format!("SLURM does not start here: {}", String::from_utf8_lossy(&up.stderr)));
            return None;
        }
        Some(slurm)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.place.path("slurm/slurm.conf")).env("KILN_JOB_SECRET", "0123456789abcdef0123");
        // The names of pretended nodes have no addresses.
        command.env("MASTER_ADDR", "127.0.0.1");
        command.current_dir(self.place.path("")).stdin(Stdio::null());
        command
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        drop(self.script().arg("down").output());
    }
}

/// `srun` on two nodes; then a job that is signalled before its end, saves, is requeued and ends as if nothing was.
#[test]
fn slurm_starts_processes_and_gets_a_signalled_job_back() {
    let Some(slurm) = Slurm::up() else { return };
    let line = ["--world-size=2", "--max-steps=5", "--deterministic"];
    let train = slurm.place.small("run", &line);
    let mut srun = slurm.command("srun");
    srun.env("SLURM_OVERCOMMIT", "1").args(&launcher("srun").front()[1..]);
    srun.arg(train.get_program()).args(train.get_args());
    succeeded(&srun.output().unwrap());
    slurm.place.train("calm", &line);
    assert_eq!(slurm.place.run("run").tensors(), slurm.place.run("calm").tensors());

    let line = ["--world-size=2", "--epochs=30", "--deterministic"];
    let train = slurm.place.small("job", &line);
    let mut sbatch = slurm.command("sbatch");
    sbatch.args(["--parsable", "--output=job.out"]).env("TRAIN", train.get_program()).env("OUTPUT", "job");
    sbatch.arg(file("config/launch/slurm.sbatch")).args(train.get_args());
    let job = succeeded(&sbatch.output().unwrap());
    until("the job trains", || slurm.place.run("job").steps().len() >= 3);
    succeeded(&slurm.command("scancel").args(["--batch", "--signal=USR1", job.trim()]).output().unwrap());
    let log = || std::fs::read_to_string(slurm.place.path("job.out")).unwrap_or_default();
    until("the job is requeued", || log().contains("requeued    job"));
    // What it prints last: a checkpoint must not be read while the next one takes its place.
    until("the job comes to its end", || log().contains("trained     30 epochs") && log().ends_with("report.html\n"));
    slurm.place.train("whole", &line);
    slurm.place.run("job").equals(&slurm.place.run("whole"), 30);
}

over_nccl! { open_mpi_starts_processes }
