//! What is said where there is no driver of a GPU.

use std::process::Command;

#[test]
fn without_a_driver_wgpu_says_what_to_install() {
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["pool::wgpu::", "--nocapture"]).env("VK_DRIVER_FILES", "/nowhere").env("VK_ICD_FILENAMES", "/nowhere");
    tests.env_remove("KILN_TEST_SKIPPED");
    let output = tests.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let rule = "skipped: the wgpu backend cannot run: there is no driver for Vulkan, Metal or DirectX 12; install";
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with(rule)), "{said}");
}
