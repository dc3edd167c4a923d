//! What NCCL's work waits for on a device, by a stand-in for CUDA's driver, which lists the calls that set the order.

use burn::tensor::DType;
use kiln_engine::parallel::engine::DeviceEngine;
use kiln_ops::Memory;
use tempfile::tempdir;

use super::*;
use crate::compiled::{before_others, compiled};

/// Set for the process that loads the stand-in: whether all streams are marked.
const ALL_STREAMS: &str = "KILN_TEST_ALL_STREAMS";

#[test]
#[cfg(target_os = "linux")]
fn work_comes_after_the_default_stream_or_all_of_them() {
    if let Ok(all_streams) = std::env::var(ALL_STREAMS) {
        return adds_up(all_streams == "true");
    }
    let place = tempdir().unwrap();
    if stand_in().is_none() || !compiled("driver.c", &place.path().join("libcuda.so.1")) {
        return;
    }
    let calls = |all_streams: bool, fault: &str| {
        let name = "nccl::streams::work_comes_after_the_default_stream_or_all_of_them";
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", name, "--nocapture"]).env(ALL_STREAMS, all_streams.to_string());
        let output = inside.env("LD_LIBRARY_PATH", before_others(place.path())).env("KILN_STAND_IN", fault).output();
        let (said, is_order) = (output.unwrap().stdout, |line: &&str| line.contains(" after "));
        String::from_utf8(said).unwrap().lines().filter(is_order).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(calls(false, "nothing"), ["event 3 after stream 0", "stream 2 after event 3"]);
    assert_eq!(calls(true, "nothing"), ["event 3 after all streams", "stream 2 after event 3"]);
    assert_eq!(calls(true, "unmarked"), ["no event after all streams"]);
}

/// A sum over one rank, whose memory is the host's but whose streams are those of a device.
fn adds_up(all_streams: bool) {
    let library = Library::load(&stand_in().unwrap().into()).unwrap();
    let engine = joined(&library, 1, Some).swap_remove(0);
    let Some(mark) = engine.mark(all_streams).unwrap() else { return println!("no event after all streams") };
    let (mut own, mut sum) = ([1.0f32, 2.0], [0.0f32; 2]);
    let [from, to] = [&mut own, &mut sum].map(|values| Memory {
        pointer: values.as_mut_ptr().cast(),
        length: values.len(),
        dtype: DType::F32,
    });
    engine.all_reduce(from, to, &mark, LIMIT).unwrap();
    assert_eq!(sum, own);
}
