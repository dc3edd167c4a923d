//! Runs of several processes whose tensors go over the stand-in.

use std::process::Output;

use super::*;

/// Four replicas of a small training.
const FOUR: [&str; 3] = ["--world-size=4", "--batch-size=2", "--backend=flex"];

/// `train launch` of a small training over the stand-in.
fn launch(place: &Workplace, processes: usize, run: &str, fault: &str, arguments: &[&str]) -> Option<Command> {
    over(place.launch(processes, run, &[&FOUR[..], arguments].concat()), fault)
}

fn launched(place: &Workplace, processes: usize, run: &str, fault: &str, arguments: &[&str]) -> Option<String> {
    Some(succeeded(&launch(place, processes, run, fault, arguments)?.output().unwrap()))
}

#[test]
fn pauses_and_small_pieces_change_no_bit_of_an_experiment() {
    let place = Workplace::new();
    let arguments = ["--deterministic", "--epochs=2"];
    place.train("one", &[&FOUR[..], &arguments].concat());
    let Some(output) = launched(&place, 3, "slow", "slow", &arguments) else { return };
    assert!(output.contains("tensors over NCCL 2.27.5 (as asked), the rest over Gloo"), "{output}");
    place.run("slow").equals(&place.run("one"), 2);
}

/// Two processes have one sum in any order; halves have one over any number of processes.
#[test]
fn fast_sums_are_those_of_gloo() {
    let place = Workplace::new();
    for (processes, precision, backend) in [(2, "f32", "flex"), (4, "bf16", "tch")] {
        if backend == "tch" && cfg!(not(feature = "tch")) {
            skip("flex does not round to the nearest bf16");
            continue;
        }
        let [precision_flag, backend] = [format!("--reduce-precision={precision}"), format!("--backend={backend}")];
        let arguments = ["--max-steps=4", &precision_flag, &backend, "--accumulation-steps=2", "--threads=1"];
        let Some(_) = launched(&place, processes, &format!("nccl-{precision}"), "", &arguments) else { return };
        let line = [&FOUR[..], &arguments, &["--dist-backend=gloo"]].concat();
        succeeded(&place.launch(processes, &format!("gloo-{precision}"), &line).output().unwrap());
        let [nccl, gloo] = ["nccl", "gloo"].map(|engine| place.run(&format!("{engine}-{precision}")));
        assert_eq!(nccl.tensors(), gloo.tensors(), "{precision}");
        assert_eq!(nccl.steps(), gloo.steps(), "{precision}");
    }
}

/// Sums within each stage, and what neighbours hand on, of stages that one process hosts and that two share.
#[test]
fn stages_change_no_bit_of_an_experiment() {
    let place = Workplace::new();
    let arguments = ["--deterministic", "--world-size=2", "--accumulation-steps=2", "--threads=1", "--epochs=2"];
    place.train("whole", &[&FOUR[1..], &arguments].concat());
    for (stages, processes) in [(2, 2), (3, 4)] {
        let (name, cut) = (stages.to_string(), format!("--stages={stages}"));
        let arguments = [&arguments[..], &[&cut]].concat();
        let Some(output) = launched(&place, processes, &name, "slow", &arguments) else { return };
        assert!(output.contains("tensors over NCCL"), "{output}");
        place.run(&name).equals(&place.run("whole"), 2);
    }
}

/// Three devices of one process, and two for each of two stages; not only where `--deterministic` asks for it.
#[test]
fn devices_of_one_process_change_no_bit_of_an_experiment() {
    let place = Workplace::new();
    let arguments = ["--epochs=2", "--threads=1"];
    place.train("memory", &[&FOUR[..], &arguments, &["--gpu-ids=0,1,2"]].concat());
    for (run, more) in [("nccl", &["--gpu-ids=0,1,2"][..]), ("stages", &["--gpu-ids=0,1,2,3", "--stages=2"])] {
        let line = [&FOUR[..], &arguments, more].concat();
        let Some(mut command) = over(place.small(run, &line), "slow") else { return };
        let output = succeeded(&command.output().unwrap());
        assert!(output.contains("tensors over NCCL 2.27.5 (as asked), the rest in memory"), "{output}");
        place.run(run).equals(&place.run("memory"), 2);
    }
}

/// The planner may leave devices idle.
#[test]
fn planned_stages_of_one_process_change_no_bit_of_an_experiment() {
    let place = Workplace::new();
    let line =
        ["--world-size=2", "--batch-size=4", "--backend=flex", "--epochs=2", "--threads=1", "--accumulation-steps=2"];
    place.train("memory", &line);
    let planned = [&line[..], &["--gpu-ids=0,1,2,3", "--stages=auto"]].concat();
    let Some(mut command) = over(place.small("planned", &planned), "") else { return };
    succeeded(&command.output().unwrap());
    place.run("planned").equals(&place.run("memory"), 2);
}

#[test]
fn a_hang_between_devices_of_one_process_ends_in_one_line_after_the_limit() {
    let place = Workplace::new();
    let line = [&FOUR[..], &["--gpu-ids=0,1", "--timeout=1", "--epochs=50", "--deterministic"]].concat();
    let Some(mut command) = over(place.small("run", &line), "hang:1:100") else { return };
    let line = refused(&command.output().unwrap(), 75);
    for part in ["the devices of this process failed in the ", "Timed out waiting 1000ms", "with --dist-backend local"]
    {
        assert!(line.contains(part), "'{part}' is not in {line}");
    }
}

/// Every process ends with the same line and with exit code 75, within the limit.
fn fails_with_one_verdict(fault: &str, more: &[&str], parts: &[&str]) {
    let place = Workplace::new();
    let arguments = [&["--timeout=1", "--epochs=50", "--deterministic"], more].concat();
    let Some(mut command) = launch(&place, 2, "run", fault, &arguments) else { return };
    let output: Output = command.output().unwrap();
    let lines = errors(&output);
    assert_eq!(output.status.code(), Some(75), "{fault}: {lines:?}");
    let verdicts: Vec<&str> = lines.iter().filter_map(|line| Some(line.split_once("] train: ")?.1)).collect();
    assert_eq!(verdicts.len(), 2, "{fault}: {lines:?}");
    assert_eq!(verdicts[0], verdicts[1], "{fault}");
    parts.iter().for_each(|part| assert!(verdicts[0].contains(part), "{fault}: '{part}' is not in {verdicts:?}"));
}

#[test]
fn a_call_that_hangs_ends_with_one_verdict_after_the_limit() {
    fails_with_one_verdict("hang:1:100", &[], &["forward statistics of batch-norm layer", "Timed out waiting 1000ms"]);
}

/// Of the communicators of a process, the first one takes activations to the second stage. It is missed there, and the
/// gradient in the first stage: whoever notices first is heard.
#[test]
fn a_hang_between_two_stages_ends_with_one_verdict() {
    let stages = ["--world-size=1", "--stages=2", "--accumulation-steps=2"];
    fails_with_one_verdict("hang:1:9:0", &stages, &[" for worker ", " of step 5", "Timed out waiting 1000ms"]);
}

#[test]
fn a_call_that_fails_ends_with_one_verdict() {
    fails_with_one_verdict("error:0:125", &[], &[" of step ", "NCCL: "]);
}

#[test]
fn a_connection_that_breaks_ends_with_one_verdict() {
    fails_with_one_verdict("cut:1:130", &[], &[" of step ", "NCCL: remote process exited"]);
}

#[test]
fn a_communicator_that_cannot_be_made_ends_with_one_verdict() {
    fails_with_one_verdict("init:1", &[], &["connecting the processes", "NCCL: "]);
}

/// NCCL's variables reach it, its lines have the rank before them, and `--dist-interface` is its interface.
#[test]
fn what_nccl_says_comes_out_with_the_rank() {
    let place = Workplace::new();
    let arguments = ["--max-steps=1", "--dist-interface=lo"];
    let spoken = |own: Option<&str>| {
        let mut command = launch(&place, 2, own.unwrap_or("run"), "", &arguments)?;
        command.env("NCCL_DEBUG", "INFO").env_remove("NCCL_SOCKET_IFNAME");
        own.map(|own| command.env("NCCL_SOCKET_IFNAME", own));
        Some(succeeded(&command.output().unwrap()))
    };
    let Some(output) = spoken(None) else { return };
    for rank in 0..2 {
        let of_rank =
            |part: &str| output.lines().any(|line| line.starts_with(&format!("[{rank}] ")) && line.contains(part));
        assert!(of_rank("NCCL INFO NCCL version 2.27.5"), "{output}");
        assert!(of_rank("NCCL_SOCKET_IFNAME set by environment to =lo"), "{output}");
    }
    let output = spoken(Some("eth7")).unwrap();
    assert!(output.contains("NCCL_SOCKET_IFNAME set by environment to eth7"), "{output}");
}
