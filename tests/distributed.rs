//! Runs of several processes: the same experiment as in one process, however it was started, and what becomes of it
//! when a process is lost, stopped, signalled or wrong.

use std::process::{Child, Command, Output, Stdio};

use crate::command::{Run, Workplace, errors, free_port, photographs, refused, succeeded, until, wait};

mod launchers;
mod losses;

/// Four replicas with sums in the order of the tree.
const FOUR: [&str; 3] = ["--world-size=4", "--batch-size=2", "--deterministic"];

fn launched(place: &Workplace, processes: usize, run: &str, arguments: &[&str]) -> String {
    succeeded(&place.launch(processes, run, arguments).output().unwrap())
}

/// One process of a small training, as a launcher would start it.
fn process(place: &Workplace, rank: usize, port: u16, run: &str, arguments: &[&str]) -> Command {
    let mut command = place.small(run, arguments);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}

/// Starts commands side by side and waits for all.
fn together(commands: Vec<Command>) -> Vec<Output> {
    let start = |mut command: Command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children: Vec<Child> = commands.into_iter().map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

#[test]
fn processes_change_no_bit_of_an_experiment() {
    let place = Workplace::new();
    let arguments = [&FOUR[..], &["--epochs=2"]].concat();
    place.train("one", &arguments);
    for processes in [2, 3, 4] {
        let name = processes.to_string();
        let output = launched(&place, processes, &name, &arguments);
        assert!(output.lines().all(|line| line.starts_with("[0] ")), "only the first process speaks: {output}");
        assert!(output.contains(&format!("4 replicas in {processes} processes, ddp")), "{output}");
        place.run(&name).equals(&place.run("one"), 2);
        let logs = (1..processes).filter(|rank| place.path(&format!("{name}/rank-{rank}.jsonl")).exists());
        assert_eq!(logs.count(), processes - 1, "every process logs");
    }
    for (name, counts) in [("uneven", "3,1"), ("timed", "auto")] {
        let counts = format!("--replicas-per-device={counts}");
        let output = launched(&place, 2, name, &[&arguments[..], &[&counts]].concat());
        assert!(name != "uneven" || output.contains("replicas 0, 1, 2\n"), "{output}");
        assert_eq!(output.contains(" on devices that take "), name == "timed", "{output}");
        place.run(name).equals(&place.run("one"), 2);
    }
}

#[test]
fn fast_sums_stay_near_and_can_travel_in_half_the_bytes() {
    let place = Workplace::new();
    let arguments = [&FOUR[..2], &["--max-steps=4"]].concat();
    place.train("one", &arguments);
    let near = |name: &str, limit: f64| {
        let pairs = place.run(name).steps().into_iter().zip(place.run("one").steps());
        assert!(
            pairs.clone().count() == 4 && pairs.into_iter().all(|(a, b)| (a.1 / b.1 - 1.0).abs() < limit),
            "{name}"
        );
    };
    launched(&place, 4, "fast", &arguments);
    near("fast", 1e-5);
    launched(&place, 4, "half", &[&arguments[..], &["--reduce-precision=bf16"]].concat());
    near("half", 5e-2);
    // Rounded shares have one sum, too.
    let ordered = [&arguments[..], &["--reduce-precision=bf16", "--deterministic"]].concat();
    launched(&place, 2, "two", &ordered);
    place.train("alone", &ordered);
    assert_eq!(place.run("two").tensors(), place.run("alone").tensors());
}

#[test]
fn a_run_goes_on_with_another_number_of_processes() {
    let place = Workplace::new();
    place.train("calm", &[&FOUR[..], &["--epochs=3"]].concat());
    let part = |steps: &'static str| [&FOUR[..], &["--epochs=3", "--resume", steps]].concat();
    launched(&place, 2, "run", &[&FOUR[..], &["--epochs=3", "--max-steps=3"]].concat());
    launched(&place, 4, "run", &part("--max-steps=7"));
    place.train("run", &part("--max-steps=10"));
    launched(&place, 3, "run", &part("--max-steps=0"));
    place.run("run").equals(&place.run("calm"), 3);
}

/// Every process, and the launcher before them, reads what the run was begun with; none of its settings is said again.
#[test]
fn a_launch_goes_on_as_it_was_begun() {
    let place = Workplace::new();
    let line = [&FOUR[..], &["--epochs=3"]].concat();
    place.train("calm", &line);
    launched(&place, 2, "run", &[&line[..], &["--max-steps=5"]].concat());
    let again = ["launch", "--nproc=2", "--", "--resume", "--output-dir=run", "--replicas-per-device=3,1"];
    succeeded(&place.bare(&again).output().unwrap());
    place.run("run").equals(&place.run("calm"), 3);
}

#[test]
fn processes_started_by_hand_meet_at_the_address() {
    let place = Workplace::new();
    let url = format!("--dist-url=tcp://127.0.0.1:{}", free_port());
    let node = |rank: &str| {
        let line = ["--gpu-ids=0,1", "--world-size=4", "--batch-size=2", "--max-steps=3", "--deterministic", &url];
        place.small("run", &[&line[..], &[&format!("--rank={rank}")]].concat())
    };
    let [first, second] = &together(vec![node("0"), node("1")])[..] else { panic!("two processes") };
    succeeded(first);
    // On a terminal of its own it is not silent.
    let said = "rank 1 of 2  takes part; rank 0 shows the progress\nrank 1 of 2  done\n";
    assert_eq!(succeeded(second), said);
    place.train("calm", &[&FOUR[..], &["--max-steps=3"]].concat());
    assert_eq!(place.run("run").tensors(), place.run("calm").tensors());
}

#[test]
fn another_configuration_is_refused_with_the_key_that_differs() {
    let place = Workplace::new();
    let port = free_port();
    let first = process(&place, 0, port, "run", &["--timeout=2"]);
    let other = process(&place, 1, port, "run", &["--timeout=2", "--batch-size=3"]);
    let outputs = together(vec![first, other]);
    let lines: Vec<String> = outputs.iter().flat_map(errors).collect();
    assert!(outputs.iter().all(|output| output.status.code() != Some(0)), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("batch_size")), "{lines:?}");
    assert!(!place.run("run").has_checkpoint());
}

#[test]
fn a_process_that_does_not_come_is_named() {
    let place = Workplace::new();
    let output = process(&place, 0, free_port(), "run", &["--timeout=0.2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(errors(&output)[0].contains("rank 1"), "{:?}", errors(&output));
    let output = process(&place, 1, free_port(), "run", &["--timeout=0.2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{:?}", errors(&output));
}

#[test]
fn a_network_needs_a_secret() {
    let place = Workplace::new();
    let line = ["--rank=0", "--dist-url=tcp://192.0.2.1:23456"];
    let output = place.small("run", &line).env_remove("KILN_JOB_SECRET").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output)[0].contains("--job-secret-file"), "{:?}", errors(&output));
}

#[test]
fn an_address_that_a_launch_does_not_use_is_refused_without_blame_for_a_variable() {
    let place = Workplace::new();
    let url = "--dist-url=tcp://127.0.0.1:29501";
    let several = ["--nnodes=2", "--master-addr=127.0.0.1"];
    for (own, parts) in [
        (&[][..], ["a free port of this machine", "use --nnodes N --master-addr HOST before the --"]),
        (&several, ["tcp://127.0.0.1:29500", "or give the same with --master-addr and --master-port"]),
    ] {
        let arguments = [&["launch", "--nproc=2"], own, &["--", "data=synthetic", url]].concat();
        let line = refused(&place.bare(&arguments).output().unwrap(), 2);
        assert!(parts.iter().all(|part| line.contains(part)) && line.contains("remove --dist-url"), "{line}");
        assert!(!line.contains("MASTER_ADDR"), "{line}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn an_interface_that_is_not_there_is_wrong_usage_and_the_others_are_named() {
    let place = Workplace::new();
    let line = ["--dist-interface=nope0", "--max-steps=1"];
    let elastic = [&line[..], &["--elastic=1:2", "--dist-url=tcp://127.0.0.1:1"]].concat();
    let commands =
        [place.launch(2, "run", &line), process(&place, 0, free_port(), "run", &line), place.small("run", &elastic)];
    for mut command in commands {
        let line = refused(&command.output().unwrap(), 2);
        let parts = ["no network interface 'nope0', this machine has ", "lo", "--dist-interface"];
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
}

#[test]
fn a_launch_takes_the_secret_that_it_is_given() {
    let place = Workplace::new();
    succeeded(&place.bare(&["secret", "secret"]).output().unwrap());
    launched(&place, 2, "run", &["--max-steps=2", "--job-secret-file=secret"]);
}

#[test]
fn eight_jobs_start_at_once_on_one_machine() {
    let place = Workplace::new();
    let names: Vec<String> = (0..8).map(|job| format!("job{job}")).collect();
    let job = |name: &String| place.launch(2, name, &["--max-steps=2", "--deterministic"]);
    for output in together(names.iter().map(job).collect()) {
        succeeded(&output);
    }
    let all: Vec<_> = names.iter().map(|name| place.run(name).tensors()).collect();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

over_nccl! { processes_started_by_hand_meet_at_the_address }
