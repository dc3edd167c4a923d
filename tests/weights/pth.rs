//! Files of real PyTorch: every element is the one that PyTorch itself reads.

use std::fs;

use kiln::weights::pth;
use kiln_engine::state::{HostTensor, StateDict, to_safetensors};
use serde_json::Value;
use tempfile::tempdir;

use super::{fixture, read, state, tensor};

/// What PyTorch read, as `make.py` wrote it down: floats there are f64, and every integer is an i64.
fn expected(name: &str) -> StateDict {
    let all: Value = serde_json::from_slice(&fs::read(fixture("expected.json")).unwrap()).unwrap();
    let host = |tensor: &Value| {
        let shape = tensor["shape"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as usize).collect();
        let data = tensor["data"].as_array().unwrap();
        match data.iter().map(Value::as_i64).collect::<Option<Vec<_>>>() {
            Some(data) if !data.is_empty() => HostTensor::I64 { shape, data },
            _ => HostTensor::F32 { shape, data: data.iter().map(|it| it.as_f64().unwrap() as f32).collect() },
        }
    };
    all[name].as_object().unwrap().iter().map(|(name, tensor)| (name.clone(), host(tensor))).collect()
}

#[test]
fn every_type_and_every_view_is_read_as_pytorch_reads_it() {
    let found = read(&fixture("state.pth")).unwrap();
    assert_eq!(found, expected("state.pth"));
    // Not by PyTorch's word alone: base[row][column] is (6 row + column) / 8.
    let transposed = (0..24).map(|it| ((it % 4) * 6 + it / 4) as f32 / 8.0).collect::<Vec<_>>();
    assert_eq!(found["transposed"].as_f32().unwrap(), transposed);
    assert_eq!(found["shared.columns"].as_f32().unwrap(), [1.0, 1.125, 1.75, 1.875, 2.5, 2.625]);
    assert_eq!(found["brain"].as_f32().unwrap()[..3], [1.0, -3.0, 0.15625]);
    assert_eq!(found["bn.num_batches_tracked"].as_i64().unwrap(), [12_345_678_901]);
    assert_eq!(found["empty"].shape(), [0, 3]);
}

#[test]
fn the_format_before_pytorch_1_6_holds_the_same() {
    assert_eq!(read(&fixture("legacy.pth")).unwrap(), read(&fixture("state.pth")).unwrap());
}

#[test]
fn a_modules_state_dict_is_read_with_its_buffers() {
    let found = read(&fixture("module.pth")).unwrap();
    assert_eq!(found, expected("module.pth"));
    assert_eq!(found.len(), 7);
    assert_eq!(found["1.num_batches_tracked"].as_i64().unwrap(), [0]);
}

#[test]
fn a_state_dict_is_found_among_the_rest_of_a_checkpoint() {
    let named = ["wrapped_model.pth", "wrapped_msd.pth", "wrapped_net.pth", "wrapped_params.pth", "wrapped_sole.pth"];
    // Among objects of any kind, which are skipped: PyTorch's own, numpy's, paths, times, an argparse.Namespace.
    let beside = ["wrapped.pth", "wrapped_legacy.pth", "beside.pth", "beside_legacy.pth"];
    for name in named.into_iter().chain(beside) {
        let found = read(&fixture(name)).unwrap();
        assert_eq!((&found, found.len()), (&expected(name), 7), "{name}");
    }
}

#[test]
fn what_a_file_is_shows_in_its_content() {
    let dir = tempdir().unwrap();
    let weights = state([("fc.weight", tensor(&[2, 3], 0.5))]);
    let path = dir.path().join("safetensors.pth");
    fs::write(&path, to_safetensors(&weights, &[])).unwrap();
    assert_eq!(read(&path).unwrap(), weights);
    let path = dir.path().join("pytorch.safetensors");
    fs::copy(fixture("state.pth"), &path).unwrap();
    assert_eq!(read(&path).unwrap(), pth::from_bytes(&fs::read(fixture("state.pth")).unwrap(), &path).unwrap().0);
}
