//! What the plan says of the engine, and the one line about an NCCL that will not do.

use super::*;

/// The plan of one of two processes with these variables, or its errors.
fn plan(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, Vec<String>) {
    let place = Workplace::new();
    let line = [&["launch", "--nproc=2", "--"][..], arguments, &["--dry-run"]].concat();
    let mut command = place.bare(&line);
    command.args(crate::command::SMALL).env_remove("KILN_NCCL").envs(variables.iter().copied());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap(), errors(&output))
}

const CPU: &str = "CUDA_VISIBLE_DEVICES";

#[test]
fn the_plan_names_the_engine_and_the_reason() {
    let Some(library) = stand_in() else { return };
    let nccl = ("KILN_NCCL", library.to_str().unwrap());
    for (asked, words) in [
        ("nccl", "engine      tensors over NCCL 2.27.5 (as asked), the rest over Gloo"),
        ("gloo", "engine      Gloo (as asked)"),
        ("auto", "engine      Gloo (tensors are in the host's memory)"),
    ] {
        let (code, plan, lines) = plan(&["--backend=flex", &format!("--dist-backend={asked}")], &[nccl]);
        assert_eq!(code, Some(0), "{lines:?}");
        assert!(plan.contains(words), "{asked}: {plan}");
    }
}

#[test]
fn a_library_that_will_not_do_is_refused_with_the_remedy() {
    let Some(library) = stand_in() else { return };
    let library = library.to_str().unwrap();
    let refused = |variables: &[(&str, &str)], parts: &[&str]| {
        let variables = [variables, &[(CPU, "-1")]].concat();
        let (code, _, lines) = plan(&["--backend=flex", "--dist-backend=nccl"], &variables);
        assert_eq!(code, Some(2), "{lines:?}");
        let said = lines.iter().find(|line| line.contains("train: the dist backend nccl cannot run: ")).unwrap();
        for part in [&["use --dist-backend gloo"][..], parts].concat() {
            assert!(said.contains(part), "'{part}' is not in {lines:?}");
        }
    };
    refused(&[("KILN_NCCL", library), ("KILN_STAND_IN", "old")], &["NCCL 2.13.4 is too old", "2.14.0 is the oldest"]);
    refused(&[("KILN_NCCL", "/nowhere/libnccl.so.2")], &["KILN_NCCL names '/nowhere/libnccl.so.2'", "does not load"]);
    let place = tempfile::tempdir().unwrap();
    let foreign = place.path().join("libnccl.so.2");
    if crate::compiled::compiled("nvml.c", &foreign) {
        refused(&[("KILN_NCCL", foreign.to_str().unwrap())], &["it is not NCCL", "ncclGetVersion"]);
    }
    // Found by its name, as the machine's would be.
    let there = PathBuf::from(library).parent().unwrap().to_path_buf();
    let path = crate::compiled::before_others(&there);
    let (_, plan, _) = plan(&["--backend=flex", "--dist-backend=nccl"], &[("LD_LIBRARY_PATH", path.to_str().unwrap())]);
    assert!(plan.contains("tensors over NCCL 2.27.5"), "{plan}");
}

/// NVIDIA's own library, where PyTorch's wheel is installed: it loads without a driver, and is not for the CPU.
#[test]
fn the_real_library_is_refused_on_the_cpu() {
    let wheel = std::env::var_os("KILN_VENV").and_then(|venv| {
        let mut found = std::fs::read_dir(PathBuf::from(venv).join("lib")).ok()?.flatten();
        let library = |place: PathBuf| place.join("site-packages/nvidia/nccl/lib/libnccl.so.2");
        found.find_map(|entry| Some(library(entry.path())).filter(|path| path.exists()))
    });
    let Some(wheel) = wheel else { return skip("there is no NCCL of PyTorch's wheels") };
    let library = Library::load(&wheel.clone().into()).unwrap();
    assert!(library.version().to_string().starts_with("2."), "{}", library.version());
    // Without a driver its errors are read, and end the attempt.
    if std::env::var_os(CPU).is_none() && !std::path::Path::new("/dev/nvidiactl").exists() {
        let lone = Nccl::connect(&library, [0, 1], &[None], (&Store::default(), "lone"), &Arc::default(), LIMIT);
        let symptom = lone.err().unwrap().0;
        assert!(symptom.starts_with("NCCL: unhandled cuda error"), "{symptom}");
    }
    let variables = [("KILN_NCCL", wheel.to_str().unwrap()), (CPU, "-1")];
    let (code, _, lines) = plan(&["--backend=flex", "--dist-backend=nccl"], &variables);
    assert_eq!(code, Some(2), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("this run computes on the CPU")), "{lines:?}");
}
