//! An update in parts, each by another replica, gives the weights, momentum and averages of an update by all.

use crate::command::{Workplace, succeeded};

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
fn sharding_changes_no_bit(optimizer: &str) {
    let place = Workplace::new();
    let line = [&EXPERIMENT, &[optimizer][..]].concat();
    let run = |name: &str, processes: usize, more: &[&str]| {
        succeeded(&place.launch(processes, name, &[&line[..], more].concat()).output().unwrap());
    };
    run("whole", 4, &[]);
    place.train("in-memory", &line);
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

#[test]
fn sharded_momentum_changes_no_bit_of_an_experiment() {
    sharding_changes_no_bit("--optimizer=sgd");
}

#[test]
fn sharded_adamw_changes_no_bit_of_an_experiment() {
    sharding_changes_no_bit("--optimizer=adamw");
}

over_nccl! { sharded_adamw_changes_no_bit_of_an_experiment }
