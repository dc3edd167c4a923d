//! `train plan` and `--stages auto` as commands.

use crate::command::{Workplace, errors, succeeded};

const TRAINING: [&str; 6] =
    ["data=synthetic", "data.train_size=60", "--width=4", "--stem=imagenet", "--batch-size=4", "--backend=flex"];

#[test]
#[cfg(feature = "flex")]
fn a_plan_lists_placements_and_measures_the_best() {
    let place = Workplace::new();
    let arguments = [&["plan", "--run", "--"], &TRAINING[..], &["--gpu-ids=0,1", "--accumulation-steps=2"]].concat();
    let output = succeeded(&place.bare(&arguments).output().unwrap());
    let rows = |output: &str| output.lines().filter(|line| line.ends_with(" MiB")).count();
    assert_eq!(rows(&output), 3, "one device, two stages, two replicas: {output}");
    for words in ["choice      ", "why         ", "use         --world-size ", "predicted / measured"] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let measured: Vec<&str> = output.split("measured    ").nth(1).unwrap().lines().skip(2).collect();
    assert_eq!(measured.len(), 5, "three measured, the choice and its flags: {output}");
    let rate = |row: &&&str| row.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap();
    let fastest = measured[..3].iter().max_by(|one, other| rate(one).total_cmp(&rate(other))).unwrap();
    let [replicas, stages] = [0, 1].map(|column| fastest.split_whitespace().nth(column).unwrap());
    assert!(measured[3].starts_with(&format!("choice      {replicas} replica")), "{output}");
    assert!(measured[4].contains(&format!("--world-size {replicas} ")), "{output}");
    assert!(measured[4].contains(&format!("--stages {stages}")), "{output}");
    assert!(!place.path("runs").exists());
    // A link is that of machines, of which there is one here.
    let apart = [&["plan", "--nproc=2", "--"], &TRAINING[..], &["--link=10", "--accumulation-steps=4"]].concat();
    let output = succeeded(&place.bare(&apart).output().unwrap());
    assert_eq!(rows(&output), 3, "{output}");
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let place = Workplace::new();
    for (arguments, rule) in [
        (&["--", "--stages=2"][..], "train plan sets --stages itself"),
        (&["--nproc=2", "--", "--gpu-ids=0"], "train plan sets --gpu-ids itself"),
        (&["--", "--link=10"], "--link cannot be combined with --run or one process"),
        (&["--run", "--nproc=2", "--", "--link=10"], "--link cannot be combined with --run or one process"),
        (&["--", "--split-points=3"], "train plan sets --split-points itself"),
    ] {
        let output = place.bare(&[&["plan"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(errors(&output).iter().any(|line| line.contains(rule)), "{arguments:?}: {:?}", errors(&output));
    }
}

/// The flags that a run of `--stages auto` stands for, from its configuration.
#[cfg(feature = "flex")]
fn decided(place: &Workplace, run: &str) -> Vec<String> {
    let saved: toml::Table = std::fs::read_to_string(place.path(run).join("config.toml")).unwrap().parse().unwrap();
    let parallel = saved["parallel"].as_table().unwrap();
    let numbers =
        |key: &str| -> Vec<String> { parallel[key].as_array().unwrap().iter().map(ToString::to_string).collect() };
    let mut flags =
        vec![format!("--stages={}", parallel["stages"]), format!("--gpu-ids={}", numbers("gpu_ids").join(","))];
    if parallel["stages"].as_integer() > Some(1) {
        flags.push(format!("--split-points={}", numbers("split_points").join(",")));
    }
    flags
}

#[test]
#[cfg(feature = "flex")]
fn planned_stages_are_those_of_the_flags_that_they_stand_for() {
    let place = Workplace::new();
    let common = ["--backend=flex", "--threads=2", "--accumulation-steps=2", "--epochs=1"];
    for (replicas, devices) in [(1, "0,1,2"), (2, "0,1,2,3"), (2, "0,1")] {
        let own = [
            format!("--world-size={replicas}"),
            format!("--batch-size={}", 4 / replicas),
            format!("--gpu-ids={devices}"),
        ];
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let name = format!("{replicas}-{}", devices.len());
        let output = place.train(&name, &[&common[..], &own[..], &["--stages=auto"]].concat());
        assert!(output.contains("\nstages      "), "{output}");
        let flags = decided(&place, &name);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let explicit = format!("{name} by hand");
        place.train(&explicit, &[&common[..], &own[..2], &flags[..]].concat());
        place.run(&name).equals(&place.run(&explicit), 1);
    }
    assert_eq!(decided(&place, "2-3")[0], "--stages=1", "every device has a replica");
}

#[test]
#[cfg(all(feature = "flex", feature = "gloo"))]
fn processes_plan_the_same_stages() {
    let place = Workplace::new();
    let common = ["--backend=flex", "--deterministic", "--threads=1", "--accumulation-steps=2", "--epochs=1"];
    let common = [&common[..], &["--world-size=1", "--batch-size=4"]].concat();
    place.train("whole", &common);
    for (name, more) in [("planned", &["--stages=auto"][..]), ("linked", &["--stages=auto", "--link=100"])] {
        let output = succeeded(&place.launch(3, name, &[&common[..], more].concat()).output().unwrap());
        assert!(output.contains("stages      3 of units "), "{output}");
        assert_eq!(decided(&place, name)[0], "--stages=3");
        place.run(name).equals(&place.run("whole"), 1);
    }
    let odd = [&common[..], &["--stages=auto", "--world-size=2"]].concat();
    let output = place.launch(3, "odd", &odd).output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    let rule = "got '3' devices for a world size of '2'";
    assert!(errors(&output).iter().any(|line| line.contains(rule)), "{:?}", errors(&output));
}
