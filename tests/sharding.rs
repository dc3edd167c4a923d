//! An update in parts, each by another replica, gives the weights, momentum and averages of an update by all.

#[cfg(feature = "gloo")]
use crate::command::succeeded;
use crate::command::{Workplace, errors};

#[cfg(feature = "gloo")]
const EXPERIMENT: [&str; 8] = [
    "--deterministic",
    "--threads=1",
    "--world-size=4",
    "--batch-size=2",
    "--epochs=2",
    "--clip-grad-norm=1",
    "optim.ema_decay=0.9",
    "--mixup=0.2",
];

/// Every replica updates all tensors where they do not share memory, unless they are asked to part the update. Replicas
/// of one process part it anyway.
#[cfg(feature = "gloo")]
#[test]
fn a_sharded_optimizer_changes_no_bit_of_an_experiment() {
    for optimizer in ["--optimizer=sgd", "--optimizer=adamw"] {
        let place = Workplace::new();
        let run = |name: &str, processes: usize, more: &[&str]| {
            let mut command = place.bare(&["launch", &format!("--nproc={processes}"), "--"]);
            command.args(place.small(name, &[&EXPERIMENT, &[optimizer][..], more].concat()).get_args());
            succeeded(&command.output().unwrap());
        };
        run("whole", 4, &[]);
        place.train("in-memory", &[&EXPERIMENT, &[optimizer][..]].concat());
        run("one-each", 4, &["--shard-optimizer"]);
        run("two-each", 2, &["--shard-optimizer"]);
        run("stages", 2, &["--shard-optimizer", "--stages=2"]);
        run("resumed", 2, &["--shard-optimizer", "--max-steps=3"]);
        run("resumed", 4, &["--max-steps=5", "--resume"]);
        run("resumed", 1, &["--max-steps=6", "--resume"]);
        run("resumed", 4, &["--shard-optimizer", "--resume"]);
        for name in ["in-memory", "one-each", "two-each", "stages", "resumed"] {
            place.run(name).equals(&place.run("whole"), 2);
        }
    }
}

#[test]
fn an_elastic_run_cannot_shard_its_optimizer() {
    let output =
        Workplace::new().small("run", &["--world-size=2", "--shard-optimizer", "--elastic=1:2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let lines = errors(&output);
    assert!(lines.iter().any(|line| line.contains("remove --shard-optimizer or --elastic")), "{lines:?}");
}

#[cfg(feature = "gloo")]
over_nccl! { a_sharded_optimizer_changes_no_bit_of_an_experiment }
