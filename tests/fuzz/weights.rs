//! Weights and checkpoints: PyTorch's files, safetensors, manifests, the positions of runs.

use std::fs;
use std::path::Path;

use kiln::weights::pth::from_bytes;
use kiln::weights::{Description, to_pth};
use kiln_data::{Exif, Interpolation, Normalization};
use kiln_engine::checkpoint::content::Entry;
use kiln_engine::checkpoint::manifest::Manifest;
use kiln_engine::checkpoint::{Best, Progress, RunState, Snapshot, Store, Which};
use kiln_engine::exact::Exact;
use kiln_engine::optim::{LossScale, Plateau};
use kiln_engine::state::{HostTensor, StateDict, from_safetensors, to_safetensors};
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use super::damage::Random;
use super::files;
use super::target::{Bound, accepted, fuzz};

const BOUND: Bound = Bound { factor: 256, mib: 0, inputs: 2000 };

/// Fails if tensors are not what they say, or have more elements than their file has bytes.
fn check(tensors: &StateDict, length: usize) {
    assert!(tensors.values().map(HostTensor::len).sum::<usize>() <= length);
    for tensor in tensors.values() {
        assert_eq!(tensor.shape().iter().product::<usize>(), tensor.len());
    }
}

#[test]
fn pth() {
    let names = ["state.pth", "legacy.pth", "module.pth", "wrapped.pth", "wrapped_legacy.pth"];
    let mut corpus = names.map(|name| fs::read(files::file("tests/fixtures/weights").join(name)).unwrap()).to_vec();
    let description = Description {
        classes: vec!["cat".into(), "dog".into()],
        normalization: Normalization::IMAGENET,
        size: 32,
        center_crop: 0.875,
        exif: Exif::Apply,
        interpolation: Interpolation::Bicubic,
    };
    corpus.push(to_pth(&state_dict(), Some(&description)).unwrap());
    fuzz(BOUND, |random| {
        let bytes = random.damaged(&corpus);
        let read = from_bytes(&bytes, Path::new("it.pth"));
        let _ = read.as_ref().map(|(tensors, _)| check(tensors, bytes.len()));
        (bytes.len(), accepted(&read))
    });
}

fn state_dict() -> StateDict {
    let weights = HostTensor::F32 { shape: vec![2, 3], data: vec![0.5; 6] };
    let count = HostTensor::I64 { shape: vec![], data: vec![7] };
    StateDict::from([("conv.weight".into(), weights), ("bn.count".into(), count)])
}

fn tensors() -> Vec<u8> {
    to_safetensors(&state_dict(), &[("step".into(), "3".into())])
}

#[test]
fn safetensors() {
    let corpus = [tensors()];
    fuzz(BOUND, |random| {
        let mut bytes = random.damaged(&corpus);
        if random.chance(50) && bytes.len() > 8 {
            // The header that there is.
            let end = bytes.iter().rposition(|byte| *byte == b'}').unwrap_or(8).max(8);
            bytes[..8].copy_from_slice(&(end as u64 - 7).to_le_bytes());
        }
        let read = from_safetensors(&bytes, Path::new("it.safetensors"));
        let _ = read.as_ref().map(|(tensors, _)| check(tensors, bytes.len()));
        (bytes.len(), accepted(&read))
    });
}

fn state() -> RunState {
    RunState {
        global_step: 12,
        epoch: 1,
        step_in_epoch: 4,
        samples_seen: 96,
        best: Some(Best { metric: 0.75, step: 8 }),
        elapsed_seconds: 1.5,
        seed: 3,
        world_size: 2,
        data_fingerprint: "0123456789abcdef".into(),
        progress: Progress { loss_sum: 2.5, correct: 9, samples: 32, counted: None },
        loss_scale: LossScale::default(),
        plateau: Plateau { best: Some(Exact(0.75)), bad: 1, cooldown: 2, reductions: 3 },
    }
}

#[test]
fn position() {
    let corpus = [state().to_json()];
    fuzz(BOUND, |random| {
        let bytes = random.damaged(&corpus);
        (bytes.len(), accepted(&RunState::from_json(&bytes, Path::new("state.json"))))
    });
}

/// Gives a manifest the checksum of what is in it now.
fn sum(text: &mut Vec<u8>) {
    let key = b"\"sha256\": \"";
    let Some(at) = text.windows(key.len()).rposition(|it| it == key).map(|at| at + key.len()) else { return };
    let Some(end) = text[at..].iter().position(|byte| *byte == b'"') else { return };
    text.drain(at..at + end);
    let sum = format!("{:x}", Sha256::digest(&text));
    text.splice(at..at, sum.into_bytes());
}

#[test]
fn checkpoint() {
    let dir = tempdir().unwrap();
    let files = [("state.json", state().to_json()), ("model.safetensors", tensors())];
    let snapshot = Snapshot {
        step: 12,
        epoch: 1,
        accuracy: Some(0.75),
        files: files.iter().map(|(name, bytes)| (name.to_string(), bytes.clone().into())).collect(),
    };
    let saved =
        Store::open(dir.path()).unwrap().save(&snapshot, true, kiln_engine::checkpoint::Keep { last: 1, best: 1 });
    let (saved, manifest) = (saved.unwrap(), dir.path().join("checkpoints/latest/manifest.json"));
    let (listed, contents) = ([fs::read(&manifest).unwrap()], files.clone().map(|(_, bytes)| bytes));
    fuzz(BOUND, |random| {
        let [mut text, first, second] = [random.damaged(&listed), contents[0].clone(), contents[1].clone()];
        let mut written = [first, second];
        match random.below(3) {
            0 => sum(&mut text),
            1 => text = listed[0].clone(),
            _ => {}
        }
        if random.chance(40) {
            written = [random.damaged(&contents[..1]), random.damaged(&contents[1..])];
            let entries = files.iter().zip(&written).map(|((name, _), bytes)| (name.to_string(), Entry::of(bytes)));
            text = Manifest::of(&snapshot, entries.collect()).to_json().into_bytes();
        }
        fs::write(&manifest, &text).unwrap();
        files.iter().zip(&written).for_each(|((name, _), bytes)| fs::write(saved.join(name), bytes).unwrap());
        let length = text.len() + written.iter().map(Vec::len).sum::<usize>();
        (length, restored(dir.path(), random))
    });
}

/// Whether the checkpoint and all in it can be read.
fn restored(run: &Path, random: &mut Random) -> bool {
    let which = if random.chance(50) { Which::Latest } else { Which::Best };
    let loaded = Store::at(run).load(which, &mut |_| ());
    accepted(&loaded)
        && loaded.unwrap().files.iter().all(|(name, bytes)| match name.as_str() {
            "state.json" => accepted(&RunState::from_json(bytes, Path::new(name))),
            _ => accepted(&from_safetensors(bytes, Path::new(name))),
        })
}
