//! Environments as launchers really set them, and ones that contradict themselves.

use kiln_membership::environment::{Identity, Launcher, identify};
use kiln_membership::slurm::hosts;
use proptest::prelude::*;

/// Reads `A=1 B=2`.
fn variables(text: &str) -> Vec<(String, String)> {
    text.split_whitespace().filter_map(|word| word.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
}

fn identity(text: &str) -> Identity {
    identify(&variables(text)).unwrap().unwrap()
}

fn complaints(text: &str) -> String {
    identify(&variables(text)).unwrap_err().to_string()
}

/// `tcp://host:port` and the variable that said so.
fn address(text: &str) -> Option<(String, String)> {
    identity(text).address.map(|said| (said.value, said.source))
}

fn said(value: &str, source: &str) -> Option<(String, String)> {
    Some((value.into(), source.into()))
}

const TORCHRUN: &str = "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 \
    TORCHELASTIC_RUN_ID=night";
const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=1 PMIX_NAMESPACE=1483145217 \
    OMPI_MCA_orte_hnp_uri=1483145216.0;tcp://10.77.0.1:58071";
const SRUN: &str = "SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 \
    SLURM_JOB_ID=2 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=node[1-2] SLURM_STEP_NODELIST=node[1-2]";
const BATCH: &str = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9 SLURM_JOB_NODELIST=node[1-2]";

#[test]
fn without_a_launcher_there_is_no_identity() {
    assert_eq!(identify(&variables("HOME=/root MASTER_PORT=1 PMIX_NAMESPACE=7")).unwrap(), None);
}

#[test]
fn torchrun_tells_everything() {
    let identity = identity(TORCHRUN);
    assert_eq!(identity.launcher, Launcher::Torchrun);
    assert_eq!((identity.rank.value, identity.rank.source.as_str()), (3, "RANK"));
    assert_eq!((identity.processes.value, identity.processes.source.as_str()), (4, "WORLD_SIZE"));
    assert_eq!(identity.local_rank.unwrap().value, 1);
    assert_eq!(identity.job_id.unwrap().value, "night");
    assert_eq!(address(TORCHRUN), said("tcp://10.0.0.1:29500", "MASTER_ADDR"));
}

/// `TF_CONFIG` as TensorFlow documents it.
fn tf_config(task: &str) -> String {
    format!(r#"TF_CONFIG={{"cluster":{{"chief":["n0:1"],"worker":["n1:2","n2:3"]}},"task":{{{task}}}}}"#)
}

#[test]
fn tensorflow_counts_the_chief_before_the_workers() {
    for (task, rank) in [(r#""type":"chief","index":0"#, 0), (r#""type":"worker","index":1"#, 2)] {
        let identity = identity(&tf_config(task));
        assert_eq!((identity.launcher, identity.rank.value, identity.processes.value), (Launcher::TensorFlow, rank, 3));
        assert_eq!(identity.address.unwrap().value, "tcp://n0:1");
    }
    assert_eq!(identity(&format!("{TORCHRUN} {}", tf_config(""))).launcher, Launcher::Torchrun, "ranks win");
}

#[test]
fn a_cluster_that_does_not_have_the_task_is_refused() {
    for (text, why) in [
        (tf_config(r#""type":"worker","index":2"#), "TF_CONFIG has no worker 2 in its cluster"),
        (tf_config(r#""type":"ps","index":0"#), "TF_CONFIG names a task 'ps'"),
        ("TF_CONFIG={}".into(), "TF_CONFIG is not a cluster and a task: missing field `cluster`"),
        ("TF_CONFIG=x".into(), "it looks like {\"cluster\""),
        (r#"TF_CONFIG={"cluster":{},"task":{"type":"worker","index":0}}"#.into(), "TF_CONFIG has no worker 0"),
    ] {
        let complaint = complaints(&text);
        assert!(complaint.contains(why), "{text}: {complaint}");
    }
}

#[test]
fn torchrun_without_a_job_id_says_none_which_is_no_id() {
    let identity = identity("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=none");
    assert_eq!(identity.job_id, None);
}

#[test]
fn a_bare_rank_and_world_size_leave_the_address_open() {
    assert_eq!(address("RANK=0 WORLD_SIZE=2"), None);
}

#[test]
fn an_ipv6_master_is_put_in_brackets() {
    assert_eq!(
        address("RANK=0 WORLD_SIZE=2 MASTER_ADDR=fd00::1 MASTER_PORT=5"),
        said("tcp://[fd00::1]:5", "MASTER_ADDR")
    );
}

#[test]
fn open_mpi_on_one_host_meets_on_loopback_at_a_port_of_its_own() {
    let identity = identity(MPIRUN);
    assert_eq!((identity.launcher, identity.rank.value, identity.processes.value), (Launcher::OpenMpi, 1, 4));
    assert_eq!(identity.job_id.unwrap().source, "PMIX_NAMESPACE");
    let (here, source) = address(MPIRUN).unwrap();
    assert_eq!(source, "OMPI_COMM_WORLD_LOCAL_SIZE");
    let port: u16 = here.strip_prefix("tcp://127.0.0.1:").unwrap().parse().unwrap();
    assert!((20_000..32_000).contains(&port), "{port}");
    assert_ne!(address(&MPIRUN.replace("1483145217", "1483145218")).unwrap().0, here);
}

#[test]
fn open_mpi_on_several_hosts_does_not_tell_where_rank_0_is_unless_given() {
    let spread = MPIRUN.replace("LOCAL_SIZE=4", "LOCAL_SIZE=2");
    assert_eq!(address(&spread), None);
    assert_eq!(address(&format!("{spread} MASTER_ADDR=a MASTER_PORT=7")), said("tcp://a:7", "MASTER_ADDR"));
    let derived = address(&format!("{spread} MASTER_ADDR=a")).unwrap().0;
    assert_eq!(derived.replace("//a:", "//127.0.0.1:"), address(MPIRUN).unwrap().0);
    assert!(complaints(&format!("{spread} MASTER_PORT=7")).contains("MASTER_ADDR is not"));
}

#[test]
fn open_mpi_without_a_namespace_is_known_by_the_number_of_mpirun() {
    let old = MPIRUN.replace("PMIX_NAMESPACE=1483145217", "");
    let job = identity(&old).job_id.unwrap();
    assert_eq!((job.value.as_str(), job.source.as_str()), ("1483145216", "OMPI_MCA_orte_hnp_uri"));
}

#[test]
fn mpich_speaks_pmi() {
    let identity = identity("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_PORT=7");
    assert_eq!((identity.launcher, identity.rank.value, identity.local_rank.unwrap().value), (Launcher::Mpich, 1, 1));
    assert_eq!(identity.address.unwrap().value, "tcp://127.0.0.1:7");
}

#[test]
fn a_slurm_task_meets_on_the_first_host_of_its_step() {
    let identity = identity(SRUN);
    assert_eq!((identity.launcher, identity.rank.value, identity.processes.value), (Launcher::Slurm, 2, 3));
    assert_eq!(identity.processes.source, "SLURM_STEP_NUM_TASKS");
    assert_eq!(identity.job_id.unwrap().value, "2.0");
    assert_eq!(address(SRUN), said("tcp://node1:20002", "SLURM_STEP_NODELIST"));
    let elsewhere = SRUN.replace("STEP_NODELIST=node[1-2]", "STEP_NODELIST=node[07-08]");
    assert_eq!(address(&elsewhere), said("tcp://node07:20002", "SLURM_STEP_NODELIST"));
    let without_step_list = SRUN.replace("SLURM_STEP_NODELIST=node[1-2]", "");
    assert_eq!(address(&without_step_list), said("tcp://node1:20002", "SLURM_JOB_NODELIST"));
    let alone = SRUN.replace("node[1-2]", "node2");
    assert_eq!(address(&alone), said("tcp://127.0.0.1:20002", "SLURM_STEP_NODELIST"));
}

#[test]
fn two_steps_and_two_jobs_have_different_ports() {
    let ports: Vec<_> = [("2", "0"), ("2", "1"), ("3", "0"), ("3", "1"), ("2", "4294967290")]
        .map(|(job, step)| {
            SRUN.replace("JOB_ID=2", &format!("JOB_ID={job}")).replace("STEP_ID=0", &format!("STEP_ID={step}"))
        })
        .map(|text| address(&text).unwrap().0)
        .into();
    assert!(ports.iter().enumerate().all(|(at, port)| !ports[..at].contains(port)), "{ports:?}");
}

#[test]
fn a_step_has_its_own_number_of_tasks() {
    assert_eq!(identity(&SRUN.replace("SLURM_NTASKS=3", "SLURM_NTASKS=8")).processes.value, 3);
}

#[test]
fn the_batch_script_of_slurm_is_no_task() {
    assert_eq!(identify(&variables(BATCH)).unwrap(), None);
}

#[test]
fn mpirun_in_a_slurm_job_is_believed_before_slurm() {
    assert_eq!(identity(&format!("{BATCH} {MPIRUN}")).launcher, Launcher::OpenMpi);
    assert_eq!(identity(&format!("{SRUN} {MPIRUN}")).launcher, Launcher::OpenMpi);
}

#[test]
fn hydra_in_a_slurm_step_is_believed_but_the_pmi_of_srun_is_slurm() {
    let pmi = "PMI_RANK=5 PMI_SIZE=8";
    assert_eq!(identity(&format!("{SRUN} PMI_RANK=2 PMI_SIZE=3")).launcher, Launcher::Slurm);
    assert_eq!(identity(&format!("{SRUN} {pmi} MPI_LOCALRANKID=1")).rank.value, 5);
}

#[test]
fn torchrun_variables_go_before_all_others() {
    let identity = identity(&format!("{SRUN} {MPIRUN} {TORCHRUN}"));
    assert_eq!((identity.launcher, identity.rank.source.as_str()), (Launcher::Torchrun, "RANK"));
}

#[test]
fn half_a_set_names_both_halves() {
    for (half, rank, size) in [
        ("RANK=1", "RANK is '1'", "WORLD_SIZE is not set"),
        ("RANK=1 WORLD_SIZE=", "RANK is '1'", "WORLD_SIZE is not set"),
        ("WORLD_SIZE=2", "RANK is not set", "WORLD_SIZE is '2'"),
        ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_RANK is '0'", "OMPI_COMM_WORLD_SIZE is not set"),
        ("PMI_RANK=0", "PMI_RANK is '0'", "PMI_SIZE is not set"),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0", "SLURM_PROCID", "neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_ADDR", "MASTER_PORT is not"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_PORT", "MASTER_ADDR is not"),
    ] {
        let message = complaints(half);
        assert!(message.contains(rank) && message.contains(size), "{half}: {message}");
        assert_eq!(message.lines().count(), 1, "{half}: {message}");
    }
}

#[test]
fn a_world_size_exported_by_a_job_script_must_agree_with_the_launcher() {
    assert_eq!(identity(&format!("{SRUN} WORLD_SIZE=3")).processes.value, 3);
    let message = complaints(&format!("{SRUN} WORLD_SIZE=4"));
    assert!(message.contains("WORLD_SIZE is '4'") && message.contains("SLURM_STEP_NUM_TASKS is '3'"), "{message}");
}

#[test]
fn every_wrong_value_is_named_in_a_line_of_its_own() {
    let message = complaints("RANK=one WORLD_SIZE=2 LOCAL_RANK=-1");
    assert_eq!(message.lines().count(), 2, "{message}");
    assert!(message.contains("RANK is 'one'") && message.contains("LOCAL_RANK is '-1'"), "{message}");
    assert!(complaints("RANK=2 WORLD_SIZE=2").contains("RANK is '2', but must be below WORLD_SIZE '2'"));
    assert!(complaints("RANK=0 WORLD_SIZE=0").contains("WORLD_SIZE"));
    assert!(complaints("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=70000").contains("MASTER_PORT is '70000'"));
    assert!(complaints(&SRUN.replace("STEP_NODELIST=node[1-2]", "STEP_NODELIST=node[1-")).contains("'node[1-'"));
}

#[test]
fn host_lists_expand_as_scontrol_does() {
    for (list, expanded) in [
        ("node7", "node7"),
        ("node[1-3,07]", "node1 node2 node3 node07"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[9-11]", "node9 node10 node11"),
        ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
        ("rack[1-2]-n[01,05].site", "rack1-n01.site rack1-n05.site rack2-n01.site rack2-n05.site"),
        ("x,y[1],z[2,4]", "x y1 z2 z4"),
    ] {
        assert_eq!(hosts(list).unwrap().join(" "), expanded);
    }
}

#[test]
fn host_lists_that_are_none_are_refused() {
    for (list, why) in [
        ("", "empty name"),
        ("a,,b", "empty name"),
        ("a[1-2", "brackets"),
        ("a]1[", "brackets"),
        ("a[[1]]", "brackets"),
        ("a[]", "not a number"),
        ("a[1-]", "not a number"),
        ("a[+1]", "not a number"),
        ("a[99999999999999999999]", "not a number"),
        ("a[3-1]", "backwards"),
        ("a[1-999999999]", "more than"),
        ("a[0-18446744073709551615]", "more than"),
        ("a[1-60000][1-60000]", "more than"),
    ] {
        let reason = hosts(list).unwrap_err();
        assert!(reason.contains(why), "{list}: {reason}");
    }
}

proptest! {
    #[test]
    fn no_host_list_makes_the_reader_panic(list in "[a-c0-9\\[\\],-]{0,24}") {
        if let Ok(hosts) = hosts(&list) {
            prop_assert!(hosts.iter().all(|host| !host.contains(['[', ']', ','])));
        }
    }

    #[test]
    fn no_environment_makes_the_reader_panic(values in proptest::collection::vec("|[0-9]{1,3}|[a-z\\[\\]:.;,-]{1,9}", 12)) {
        let names = [
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_orte_hnp_uri", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS",
            "SLURM_STEP_NODELIST",
        ];
        let environment: Vec<_> = names.iter().map(|name| name.to_string()).zip(values).collect();
        if let Ok(Some(identity)) = identify(&environment) {
            prop_assert!(identity.rank.value < identity.processes.value);
        }
    }
}
