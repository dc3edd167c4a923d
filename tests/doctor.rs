//! What `train doctor` says of this build.

use crate::command::{Workplace, succeeded};

#[test]
fn the_doctor_names_every_backend_and_how_to_get_what_is_missing() {
    let output = Workplace::new().bare(&["doctor"]).output().unwrap();
    let said = succeeded(&output);
    for (backend, is_built) in [
        ("flex", cfg!(feature = "flex")),
        ("tch", cfg!(feature = "tch")),
        ("cuda", cfg!(feature = "cuda")),
        ("wgpu", cfg!(feature = "wgpu")),
    ] {
        let line = said.lines().find(|line| line.starts_with(backend)).unwrap_or_else(|| panic!("{backend}: {said}"));
        assert_eq!(line.contains("not in this build; "), !is_built, "{line}");
        assert_eq!(line.contains(&format!("--features {backend}")), !is_built, "{line}");
    }
    for (feature, is_built) in [("parquet", cfg!(feature = "parquet")), ("remote", cfg!(feature = "remote"))] {
        let line = said.lines().find(|line| line.starts_with(feature)).unwrap_or_else(|| panic!("{feature}: {said}"));
        assert_eq!(line.contains(&format!("not in this build; add --features {feature}")), !is_built, "{line}");
    }
    assert!(said.contains("processor ") && said.contains("processes "), "{said}");
}

/// One variable for the kernels of Kiln and of oneDNN.
#[test]
#[cfg(target_arch = "x86_64")]
fn instructions_are_within_those_of_onednns_variable() {
    use kiln_kernels::{MatrixUnit, Set};
    let said = |most: &str| {
        let output = Workplace::new().bare(&["doctor"]).env("ONEDNN_MAX_CPU_ISA", most).output().unwrap();
        let said = succeeded(&output);
        said.lines().find(|line| line.starts_with("processor ")).unwrap().to_string()
    };
    assert!(said("SSE41").contains("neither AVX-512 nor AVX2"), "{}", said("SSE41"));
    let has = |set| Set::available().contains(&set);
    assert_eq!(said("AVX2_VNNI").contains(", AVX2"), has(Set::Avx2));
    assert_eq!(said("AVX512_CORE_BF16").contains(", AVX-512"), has(Set::Avx512));
    assert_eq!(said("DEFAULT").contains(", AVX-512"), has(Set::Avx512));
    assert!(!said("AVX512_CORE_BF16").contains("AMX"));
    assert_eq!(said("DEFAULT").contains("AMX"), MatrixUnit::of_machine().is_some());
}
