//! What the user, a launcher and Lightning's words say about processes and devices, and what comes of it.

use kiln::config::ParallelConfig;
use kiln::config::removed;

use super::*;

/// The command line in the environment of a launcher, `NAME=VALUE` separated by spaces.
fn under(variables: &str, line: &[&str]) -> Request {
    let variable = |text: &str| text.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()));
    Request { environment: variables.split(' ').filter_map(variable).collect(), ..request(line) }
}

fn parallel(variables: &str, line: &[&str]) -> ParallelConfig {
    resolve(&under(variables, line)).unwrap().config.parallel
}

const TORCHRUN: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500";
const NODES: &str = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500";

#[test]
fn two_machines_with_two_devices_are_two_processes() {
    let line = ["--gpu-ids", "0,1", "--world-size", "4", "--rank", "1", "--dist-url", "tcp://192.168.1.1:23456"];
    let parallel = config(&line).parallel;
    assert_eq!((parallel.processes(), parallel.rank), (2, 1));
    assert_eq!(parallel.rendezvous(), Some(vec![("192.168.1.1", 23456)]));
    let first = config(&["--gpu-ids=0,1", "--world-size=4", "--rank=0", "--dist-url=tcp://192.168.1.1:23456"]);
    assert_eq!(first.parallel.processes(), 2);
    assert_eq!(config(&["--gpu-ids=0,1", "--world-size=4"]).parallel.processes(), 1);
    let uneven = ["--replicas-per-device=3,1", "--world-size=4", "--gpu-ids=0", "--dist-url=tcp://n:1"];
    assert_eq!(config(&uneven).parallel.processes(), 2);
}

#[test]
fn a_file_may_have_numbers_where_the_command_line_has_text() {
    let dir = tempfile::tempdir().unwrap();
    for (written, read) in [("[3, 1]", "3,1"), ("4", "4"), ("\"3,1\"", "3,1")] {
        let text = format!("[parallel]\nworld_size = 4\nreplicas_per_device = {written}\n");
        let path = write(dir.path(), "counts.toml", &text);
        let devices = if read == "4" { "0" } else { "0,1" };
        let parallel = config(&["--config", path.to_str().unwrap(), "--gpu-ids", devices]).parallel;
        assert_eq!(parallel.replicas_per_device.to_string(), read);
    }
}

#[test]
fn a_launcher_fills_in_what_nobody_chose() {
    let parallel = parallel(TORCHRUN, &[]);
    assert_eq!((parallel.rank, parallel.processes(), parallel.world_size), (3, 4, 4));
    assert_eq!((parallel.dist_url.as_str(), parallel.gpu_ids), ("tcp://node1:29500", vec![1]));
}

#[test]
fn processes_of_one_machine_share_the_devices_that_were_named() {
    assert_eq!(parallel(TORCHRUN, &["--gpu-ids", "4,5,6,7", "--world-size", "8"]).gpu_ids, [6, 7]);
    assert_eq!(parallel(TORCHRUN, &["--gpu-ids", "0", "--world-size", "8"]).gpu_ids, [0]);
    let unknown = parallel(NODES, &["--gpu-ids", "0,1"]);
    assert_eq!((unknown.gpu_ids, unknown.world_size), (vec![0, 1], 4));
}

#[test]
fn contradictions_show_both_sources() {
    for (line, parts) in [
        (["--rank", "0"], ["parallel.rank is '0' (--rank)", "'3' (RANK, set by torchrun)"]),
        (["--nnodes", "2"], ["parallel.nnodes is '2' (--nnodes)", "'4' (WORLD_SIZE, set by torchrun)"]),
        (["--dist-url", "tcp://node2:1"], ["'tcp://node2:1' (--dist-url)", "'tcp://node1:29500' (MASTER_ADDR"]),
    ] {
        let lines = refusals(&under(TORCHRUN, &[&line[..], &["--world-size", "8"]].concat()));
        for part in parts {
            assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:?}");
        }
    }
    assert_eq!(parallel(TORCHRUN, &["--rank", "3"]).rank, 3);
    let lines = refusals(&under("RANK=1", &[]));
    assert!(lines[0].contains("RANK is '1', but WORLD_SIZE is not set"), "{lines:?}");
}

#[test]
fn an_address_that_follows_from_a_job_gives_way_to_one_that_was_typed() {
    let slurm = "SLURM_STEP_ID=0 SLURM_JOB_ID=7 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 \
                 SLURM_STEP_NODELIST=n[1-2]";
    assert_eq!(parallel(slurm, &[]).dist_url, "tcp://n1:20007");
    assert_eq!(parallel(slurm, &["--dist-url", "tcp://n9:5"]).dist_url, "tcp://n9:5");
    assert_eq!(parallel(slurm, &[]).job_id, "7.0");
}

#[test]
fn lightnings_words_count_devices_and_machines() {
    let eight = config(&["trainer=ddp", "trainer.devices=8"]).parallel;
    assert_eq!((eight.world_size, eight.gpu_ids, eight.nnodes), (8, (0..8).collect(), 0));
    let line = ["trainer.devices=8", "trainer.num_nodes=2", "--rank", "1", "--dist-url", "tcp://n:1"];
    let sixteen = config(&line).parallel;
    assert_eq!((sixteen.world_size, sixteen.processes(), sixteen.gpu_ids.len()), (16, 2, 8));
    for wrong in ["trainer.devices=0", "trainer.devices=auto", "trainer.num_nodes=x"] {
        let line = complaint(&[wrong]);
        assert!(line.contains("must be a whole number, 1 to 1024") && line.contains(wrong), "{line}");
    }
}

#[test]
fn dp_is_another_name_of_ddp() {
    let line = ["trainer=dp", "--nnodes", "2", "--dist-url", "tcp://n:1", "--gpu-ids", "0"];
    assert_eq!(resolved(&line).config.parallel.strategy(), StrategyKind::Ddp);
    assert_eq!(config(&["--world-size=4", "--strategy=dp"]), config(&["--world-size=4", "--strategy=ddp"]));
}

#[test]
fn one_process_says_which_settings_it_has_no_use_for() {
    let notes = resolved(&["--insecure", "--dist-interface", "eth0"]).notes;
    for key in ["parallel.insecure", "parallel.dist_interface"] {
        assert!(notes.contains(&format!("{key} has no effect in one process")), "{notes:?}");
    }
    let line = ["--insecure", "--world-size", "2", "--dist-url", "tcp://n:1"];
    assert!(resolved(&line).notes.iter().all(|note| !note.contains("no effect")));
    let says = |line: &[&str], words: &str| {
        let notes = resolved(line).notes;
        assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
    };
    says(&["--gpu-ids=0", "--dist-backend=nccl"], "nccl is not used on one device");
    #[cfg(feature = "gloo")]
    says(&["--gpu-ids=0,1", "--world-size=2", "--dist-backend=gloo"], "gloo is not used in one process");
    for engine in ["local", "nccl"] {
        let notes = resolved(&["--gpu-ids=0,1", "--world-size=2", &format!("--dist-backend={engine}")]).notes;
        assert!(notes.iter().all(|note| !note.contains("is not used")), "{notes:?}");
    }
}

#[test]
fn one_process_that_is_given_an_address_says_that_it_needs_none() {
    let line = ["--gpu_ids", "0,1", "--world_size", "2", "--rank", "0", "--dist_url", "tcp://127.0.0.1:23456"];
    let resolved = resolved(&line);
    assert_eq!((resolved.config.parallel.processes(), resolved.config.parallel.world_size), (1, 2));
    assert!(
        resolved.notes.iter().any(|note| note.contains("'tcp://127.0.0.1:23456' is not used")),
        "{:?}",
        resolved.notes
    );
}

#[test]
fn stages_have_devices_and_processes_of_their_own() {
    let processes = |line: &[&str]| resolved(line).config.parallel.processes();
    assert_eq!(processes(&["--stages", "2", "--dist-url", "tcp://n:1"]), 2);
    assert_eq!(processes(&["--stages", "2", "--world-size", "2", "--gpu-ids", "0,1", "--dist-url", "tcp://n:1"]), 2);
    // A launcher's processes are those of the stages, too.
    for (stages, replicas) in [("1", 4), ("2", 2), ("4", 1)] {
        let placed = parallel(TORCHRUN, &["--stages", stages]);
        assert_eq!((placed.processes(), placed.world_size), (4, replicas), "{stages} stages");
    }
    let resolved_of =
        |accumulated: &str| resolved(&["--stages", "2", "--gpu-ids", "0,1", "--accumulation-steps", accumulated]);
    assert_eq!(resolved_of("4").config.parallel.workers(), 2);
    let takes_turns = |accumulated: &str| resolved_of(accumulated).notes.iter().any(|note| note.contains("take turns"));
    assert_eq!([takes_turns("1"), takes_turns("4")], [true, false]);
    // The planner's are not known before, so one replica has all of a launcher's processes.
    let planned = parallel(TORCHRUN, &["--stages", "auto"]);
    assert_eq!((planned.processes(), planned.world_size, planned.stages), (4, 1, 0));
    let given = parallel(TORCHRUN, &["--stages", "auto", "--world-size", "2", "--gpu-ids", "0,1"]);
    assert_eq!((given.world_size, given.plans_stages(), given.stages_on(8)), (2, true, 4));
}

#[test]
fn processes_that_cannot_run_are_refused() {
    for (line, rule) in [
        ("--nnodes 2 --world-size 2", "'2' processes need a rendezvous address ("),
        ("--rank 2 --world-size 2 --dist-url tcp://n:1", "rank must be below the number of processes '2', got '2'"),
        ("--nnodes 3 --world-size 2 --dist-url tcp://n:1", "every process must have a replica, got '3'"),
        ("--world-size 2 --dist-url n:1", "dist url must be tcp://HOST:PORT, got 'n:1'"),
        ("--world-size 2 --dist-url tcp://n:0", "dist url must be tcp://HOST:PORT, got 'tcp://n:0'"),
        ("--world-size 2 --dist-url tcp://n:1 --dist-backend local", "dist backend 'local' works in one process only"),
        (
            "--elastic --world-size 2 --gpu-ids 0,1 --dist-backend nccl",
            "dist backend 'nccl' needs several processes in an elastic run",
        ),
        (
            "--replicas-per-device 3,2 --world-size 4 --gpu-ids 0,1",
            "replicas per device must add up to the world size '4', got '3,2'",
        ),
        (
            "--replicas-per-device 18446744073709551615,5 --world-size 4 --gpu-ids 0,1",
            "must add up to the world size '4'",
        ),
        ("--replicas-per-device 0,4 --world-size 4", "a number from 1 for each device, as in 3,1"),
        ("--replicas-per-device fast --world-size 4", "even, auto, or a number from 1"),
        ("--replicas-per-device auto --stages 2", "stages are placed by their own times"),
        (
            "--replicas-per-device 2 --world-size 2 --elastic --dist-url tcp://n:1",
            "must be even or auto in an elastic run",
        ),
        ("--tls-cert a.pem", "the job's secret encrypts the rendezvous: use --job-secret-file"),
        ("parallel.tls_key=a.pem", "the job's secret encrypts the rendezvous: use --job-secret-file"),
        ("--stages 2 --nnodes 3 --dist-url tcp://n:1", "got '3' for a world size of '1' in '2' stages"),
        (
            "--stages 2 --gpu-ids 0,1,2",
            "every device must have a replica, got '3' devices for a world size of '1' in '2'",
        ),
        #[cfg(feature = "gloo")]
        (
            "--stages 2 --elastic --dist-url tcp://n:1",
            "an elastic run with stages needs an output dir, from which lost stages are restored",
        ),
        ("--stages=-1", "stages must be"),
        ("--stages automatic", "stages must be"),
        ("--stages auto --split-points 3", "got '1' for 'auto' stages"),
        ("--stages 2 --link 100", "link is only for the planner, got '100' for '2' stages"),
        ("--stages auto --elastic --dist-url tcp://n:1", "an elastic run changes them"),
        #[cfg(feature = "gloo")]
        (
            "--stages 2 --elastic 1:5 --world-size 2 --dist-url tcp://n:1 --output-dir run",
            "got up to '5' for a world size of '2' in '2'",
        ),
        ("--stages 2 --split-points 3,7", "got '2' for '2' stages"),
        ("--split-points 3", "use --stages 2, or remove --split-points"),
    ] {
        let line: Vec<_> = line.split(' ').collect();
        let complaint = complaint(&line);
        assert!(complaint.contains(rule), "{line:?}: {complaint}");
    }
}

#[test]
fn what_a_launch_starts_are_arguments_for_training() {
    let parse = |line: &[&str]| Cli::try_parse_from([&["train", "launch"], line].concat());
    let command = parse(&["--nproc", "2", "--", "--epochs", "2", "data=synthetic"]).unwrap();
    let Command::Launch(launch) = command else { panic!("{command:?}") };
    let (arguments, request) = (launch.training.arguments, launch.training.request);
    assert_eq!((launch.nproc, arguments.len(), request.arguments), (2, 3, vec!["data=synthetic".to_string()]));
    assert!(parse(&["--nproc", "0", "--", "--epochs", "2"]).is_err());
    for (line, part) in [(&["config"][..], "not another command"), (&["--epoch", "2"], "did you mean '--epochs 2'?")] {
        let mut command = parse(&[&["--nproc", "2", "--"], line].concat()).unwrap();
        assert!(refusals(command.request().unwrap())[0].contains(part), "{line:?}");
    }
}

#[test]
fn keys_that_are_gone_are_not_read_from_saved_settings() {
    let saved = "[parallel]\ntls_cert = \"a.pem\"\njob_id = \"a\"\n\n[run]\ntls_cert = 1\n";
    assert_eq!(removed::without(saved), "[parallel]\n\njob_id = \"a\"\n\n[run]\ntls_cert = 1\n");
}
