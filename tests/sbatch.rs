//! Batch scripts for SLURM: what they ask for, and what they start, with stand-ins for SLURM's programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::command::Workplace;
use crate::command::train;

const TWELVE: [&str; 16] = [
    "slurm",
    "--nodes",
    "12",
    "--gpus-per-node",
    "8",
    "--time",
    "2:00:00",
    "--sbatch",
    "partition=gpu",
    "--sbatch=--array=0-3",
    "--module=cuda/12",
    "--interface=eth0",
    "--",
    "--epochs=50",
    "data.dir=my data",
    "run.seed=${oc.env:SLURM_ARRAY_TASK_ID,0}",
];

/// A program of this name in `bin`.
fn stand_in(place: &Workplace, name: &str, script: &str) {
    let path = place.path("bin").join(name);
    std::fs::create_dir_all(place.path("bin")).unwrap();
    std::fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_stand_ins(place: &Workplace, command: &mut Command) -> Output {
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).output().unwrap()
}

fn script(place: &Workplace) -> String {
    let output = place.bare(&TWELVE).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_script_asks_for_a_process_per_gpu() {
    let script = script(&Workplace::new());
    let directives: Vec<&str> = script.lines().filter(|line| line.starts_with("#SBATCH")).collect();
    for directive in
        ["nodes=12", "ntasks-per-node=8", "gpus-per-node=8", "time=2:00:00", "partition=gpu", "array=0-3", "requeue"]
    {
        let name = directive.split('=').next().unwrap();
        let said: Vec<_> = directives.iter().filter(|line| line.starts_with(&format!("#SBATCH --{name}"))).collect();
        assert_eq!(said, [&format!("#SBATCH --{directive}").as_str()], "each is said once: {directives:#?}");
    }
    assert!(script.starts_with("#!/bin/bash\n#SBATCH "), "directives come before any command");
}

#[test]
fn a_script_starts_the_training_with_its_arguments_as_they_are() {
    let place = Workplace::new();
    std::fs::write(place.path("job.sh"), script(&place)).unwrap();
    stand_in(&place, "srun", "printf '%s\\n' \"$@\"");
    let mut job = Command::new("bash");
    // `module` is a function of the shell where it exists.
    job.args(["-c", "module() { echo \"module $*\"; }; export -f module; bash job.sh"]);
    job.current_dir(place.path("")).env("SLURM_JOB_ID", "7").env("TRAIN", "train");
    let said = String::from_utf8(with_stand_ins(&place, &mut job).stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "module load cuda/12", "{said}");
    let train = lines.iter().position(|line| *line == "train").unwrap();
    assert_eq!(
        lines[train + 1..train + 6],
        ["--epochs=50", "data.dir=my data", "run.seed=${oc.env:SLURM_ARRAY_TASK_ID,0}", "--dist-interface", "eth0"]
    );
    assert!(Path::new(&place.path("runs/slurm-7/secret")).exists());
}

#[test]
fn a_script_is_submitted_or_the_refusal_is_passed_on() {
    let place = Workplace::new();
    let submit = |place: &Workplace| {
        let mut command = Command::new(train());
        command.current_dir(place.path("")).args(["slurm", "--nodes=2", "--submit", "--", "--epochs=1"]);
        with_stand_ins(place, &mut command)
    };
    stand_in(&place, "sbatch", "cat >seen; echo Submitted batch job 5");
    let output = submit(&place);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Submitted batch job 5\n");
    assert!(std::fs::read_to_string(place.path("seen")).unwrap().contains("#SBATCH --nodes=2"));

    stand_in(&place, "sbatch", "echo 'sbatch: error: no such partition' >&2; exit 1");
    let output = submit(&place);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "train: sbatch refuses the job: sbatch: error: no such partition; add the missing directive with --sbatch NAME=VALUE\n"
    );
}

#[test]
fn what_a_script_would_train_is_checked_first() {
    let output = Workplace::new().bare(&["slurm", "--", "--epochs=0", "--wolrd-size=2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("did you mean '--world-size 2'?"));
    assert!(output.stdout.is_empty());
}
