//! The cards of a machine, as CUDA's variables and NVML name them: with a stand-in for NVML that knows two.

use std::path::Path;
use std::process::Command;

use kiln::metrics::{Card, Utilization};
use tempfile::tempdir;

use crate::command::succeeded;
use crate::compiled::{before_others, compiled};

/// Says to the test that it is the process that was started with the stand-in.
const INSIDE: &str = "KILN_TEST_CARD";

/// What a process with these variables calls its device 1, or nothing.
fn device_1(place: &Path, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cards::visible_devices_and_nvml_name_the_same_card", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", before_others(place)).env(INSIDE, "1");
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_DEVICE_ORDER");
    let text = succeeded(&command.envs(variables.iter().copied()).output().unwrap());
    text.lines().find_map(|line| line.split_once("card: ")).map_or_else(String::new, |(_, card)| card.into())
}

/// In a process that was started with the stand-in.
fn say_device_1() {
    if let Some(card) = Card::of(1) {
        let load = Utilization::of(&[1]).unwrap().look();
        println!("\ncard: {card}; {} % busy", load[0].percent);
    }
}

#[test]
fn visible_devices_and_nvml_name_the_same_card() {
    if std::env::var_os(INSIDE).is_some() {
        return say_device_1();
    }
    let place = tempdir().unwrap();
    if !compiled("nvml.c", &place.path().join("libnvidia-ml.so.1")) {
        return;
    }
    let [visible, order] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
    let large = "Stand-in Large, 80.0 GiB, compute capability 9.0: computes in bf16, f16 and TF32; driver 550.54.15 for \
                 CUDA 12.4; 50 % busy";
    let small = "Stand-in Small, 16.0 GiB, compute capability 7.5: computes in f16, not in bf16 or TF32; driver \
                 550.54.15 for CUDA 12.4; 25 % busy";
    let by_bus = (order, "PCI_BUS_ID");
    assert_eq!(device_1(place.path(), &[by_bus]), small);
    assert_eq!(device_1(place.path(), &[by_bus, (visible, "1,0")]), large);
    assert_eq!(device_1(place.path(), &[(visible, "GPU-bbbb,GPU-aaaa")]), large);
    // CUDA's own order is by speed, which NVML does not know.
    assert_eq!(device_1(place.path(), &[]), "");
    assert_eq!(device_1(place.path(), &[by_bus, (visible, "1")]), "", "only one device is visible");
}
