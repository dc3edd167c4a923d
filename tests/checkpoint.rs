//! The checkpoint room: nothing damaged passes, nothing complete is lost.

mod together;

use std::fs;
use std::path::{Path, PathBuf};

use kiln_engine::checkpoint::{
    Best, Content, Keep, Loaded, Progress, RunState, Snapshot, Store, Which, differences, read, retain, run_dir,
    write_atomic,
};
use kiln_engine::exact::Exact;
use kiln_engine::optim::{LossScale, Plateau};
use kiln_system::Error;
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

fn snapshot(step: usize) -> Snapshot {
    let model = format!("the weights after step {step}").into_bytes();
    let files = [("model.safetensors", model), ("state.json", b"{}".to_vec()), ("config.toml", Vec::new())];
    Snapshot {
        step,
        epoch: step / 10,
        accuracy: None,
        files: files.map(|(name, bytes)| (name.to_string(), bytes.into())).into(),
    }
}

/// A run with these steps saved in this order; the first one is the best.
pub fn run_with(steps: &[usize]) -> (TempDir, Store) {
    let run = tempdir().unwrap();
    let mut store = Store::open(run.path()).unwrap();
    for step in steps {
        store.save(&snapshot(*step), step == &steps[0], Keep { last: 3, best: 1 }).unwrap();
    }
    (run, store)
}

fn sorted(files: Vec<(String, Content)>) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = files.into_iter().map(|(name, content)| (name, content.into_bytes())).collect();
    files.sort();
    files
}

fn dir_of(run: &TempDir, step: usize) -> PathBuf {
    run.path().join(format!("checkpoints/step-{step:08}"))
}

pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn flip(path: &Path, position: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[position] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

pub fn no_warning(warning: String) {
    panic!("{warning}");
}

fn load(store: &Store, which: Which) -> (Result<Loaded, Error>, Vec<String>) {
    let mut warnings = Vec::new();
    let loaded = store.load(which, &mut |warning| warnings.push(warning));
    (loaded, warnings)
}

proptest! {
    #[test]
    fn retention_keeps_the_newest_and_the_best_and_nothing_else(
        steps in prop::collection::btree_set(0..50usize, 0..20), best in prop::option::of(0..50usize),
        keep in 0..8usize,
    ) {
        let sorted: Vec<_> = steps.iter().copied().collect();
        let known: Vec<_> = sorted.iter().map(|step| (*step, None)).collect();
        let deleted = retain(&known, best, Keep { last: keep, best: 1 });
        for (age, step) in sorted.iter().rev().enumerate() {
            let stays = age < keep.max(1) || Some(*step) == best;
            prop_assert_eq!(!deleted.contains(step), stays);
        }
        let shuffled: Vec<_> = known.iter().rev().copied().collect();
        prop_assert_eq!(retain(&shuffled, best, Keep { last: keep, best: 1 }), deleted);
    }

    #[test]
    fn the_state_of_a_run_comes_back_exactly(sum in any::<u64>(), metric in any::<f64>(), seen in 0..=1_u64 << 53) {
        let state = RunState {
            global_step: 7, epoch: 1, step_in_epoch: 2, samples_seen: seen, best: Some(Best { metric, step: 5 }),
            elapsed_seconds: 0.1 + 0.2, seed: u64::MAX, world_size: 4, data_fingerprint: "ab\"c".into(),
            progress: Progress { loss_sum: f64::from_bits(sum), correct: 3, samples: 4, counted: None },
            loss_scale: LossScale { scale: 0.5, good_steps: 3, skipped: 1 },
            plateau: Plateau { best: Some(Exact(metric)), bad: 1, cooldown: 2, reductions: 3 },
        };
        let back = RunState::from_json(&state.to_json(), Path::new("state.json")).unwrap();
        // NaN differs from itself, but its text does not.
        prop_assert_eq!(back.to_json(), state.to_json());
        prop_assert!(back == state || state.progress.loss_sum.is_nan());
    }
}

#[test]
fn what_was_saved_is_loaded_and_the_pointers_are_relative() {
    let (run, store) = run_with(&[5, 10]);
    let (latest, warnings) = load(&store, Which::Latest);
    let latest = latest.unwrap();
    assert_eq!((latest.step, latest.epoch, latest.path), (10, 1, dir_of(&run, 10)));
    assert_eq!(latest.files.into_iter().collect::<Vec<_>>(), sorted(snapshot(10).files));
    assert_eq!(load(&store, Which::Best).0.unwrap().step, 5);
    assert!(warnings.is_empty());
    let link = fs::read_link(run.path().join("checkpoints/latest")).unwrap();
    assert_eq!(link, Path::new("step-00000010"));
    let through_link = read(&run.path().join("checkpoints/best")).unwrap();
    assert_eq!(through_link.files["model.safetensors"], b"the weights after step 5");
}

#[test]
fn a_flipped_bit_in_any_byte_of_a_checkpoint_is_detected() {
    let (run, _) = run_with(&[1]);
    for name in ["model.safetensors", "state.json", "manifest.json"] {
        let path = dir_of(&run, 1).join(name);
        for position in 0..fs::metadata(&path).unwrap().len() as usize {
            let bit = (position % 8) as u8;
            flip(&path, position, bit);
            let error = read(&dir_of(&run, 1)).expect_err(&format!("{name}, byte {position}, bit {bit}"));
            assert!(error.to_string().contains("step-00000001"), "{error}");
            flip(&path, position, bit);
        }
    }
    read(&dir_of(&run, 1)).unwrap();
}

#[test]
fn a_missing_cut_or_grown_file_is_detected_and_named() {
    for name in ["model.safetensors", "manifest.json"] {
        for damage in [None, Some(&b"the"[..]), Some(&[b'x'; 9_999][..])] {
            let (run, _) = run_with(&[1]);
            let path = dir_of(&run, 1).join(name);
            damage.map_or_else(|| fs::remove_file(&path), |bytes| fs::write(&path, bytes)).unwrap();
            let error = read(&dir_of(&run, 1)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("give the directory of a checkpoint"), "{error}");
        }
    }
}

#[test]
fn a_damaged_latest_falls_back_to_the_one_before_and_says_so() {
    let (run, store) = run_with(&[10, 20, 30]);
    flip(&dir_of(&run, 30).join("state.json"), 0, 0);
    fs::remove_file(dir_of(&run, 20).join("manifest.json")).unwrap();
    let (loaded, warnings) = load(&store, Which::Latest);
    assert_eq!(loaded.unwrap().step, 10);
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("step-00000030/state.json' is damaged: its SHA-256"), "{warnings:?}");
    assert!(warnings[1].contains("step-00000020' holds no manifest.json"), "{warnings:?}");
}

#[test]
fn a_damaged_best_prefers_an_older_one_and_takes_a_newer_one_if_there_is_none() {
    let (run, mut store) = run_with(&[10, 20]);
    flip(&dir_of(&run, 10).join("model.safetensors"), 3, 3);
    assert_eq!(load(&store, Which::Best).0.unwrap().step, 20);
    store.save(&snapshot(30), true, Keep { last: 9, best: 1 }).unwrap();
    flip(&dir_of(&run, 30).join("model.safetensors"), 3, 3);
    assert_eq!(load(&store, Which::Best).0.unwrap().step, 20);
}

#[test]
fn without_an_intact_checkpoint_there_is_an_error_with_the_remedies() {
    let (run, store) = run_with(&[1]);
    flip(&dir_of(&run, 1).join("model.safetensors"), 0, 0);
    let error = load(&store, Which::Latest).0.unwrap_err().to_string();
    assert!(error.contains("holds no intact checkpoint; give another one with --resume PATH"), "{error}");
    let empty = tempdir().unwrap();
    let (none, warnings) = load(&Store::open(empty.path()).unwrap(), Which::Best);
    assert!(none.is_err() && warnings.is_empty());
}

#[test]
fn a_missing_or_dangling_pointer_is_replaced_by_the_newest_intact_checkpoint() {
    let (run, store) = run_with(&[1, 2]);
    fs::remove_file(run.path().join("checkpoints/latest")).unwrap();
    let (loaded, warnings) = load(&store, Which::Latest);
    assert_eq!(loaded.unwrap().step, 2);
    assert!(warnings[0].contains("checkpoints/latest' points to no checkpoint"), "{warnings:?}");
    fs::remove_dir_all(dir_of(&run, 1)).unwrap();
    assert_eq!(load(&store, Which::Best).0.unwrap().step, 2);
}

#[test]
fn a_damaged_checkpoint_named_by_the_user_is_refused_with_an_intact_one_to_use() {
    let (run, _) = run_with(&[1, 2, 3]);
    flip(&dir_of(&run, 3).join("state.json"), 1, 1);
    let error = read(&dir_of(&run, 3)).unwrap_err().to_string();
    assert!(error.contains("step-00000003/state.json' is damaged"), "{error}");
    assert!(error.contains("step-00000002' instead, which is intact"), "{error}");
}

#[test]
fn the_store_keeps_the_newest_and_the_best_and_leaves_no_temporary_name() {
    let (run, _) = run_with(&[1, 2, 3, 4, 5, 6]);
    let kept = ["best", "latest", "step-00000001", "step-00000004", "step-00000005", "step-00000006"];
    assert_eq!(names(&run.path().join("checkpoints")), kept);
}

#[test]
fn a_step_that_is_saved_again_is_replaced_even_if_it_was_damaged() {
    let (run, mut store) = run_with(&[1, 2]);
    let mut again = snapshot(2);
    again.files[0].1 = b"other weights".to_vec().into();
    for _ in 0..2 {
        store.save(&again, true, Keep { last: 3, best: 1 }).unwrap();
        assert_eq!(load(&store, Which::Best).0.unwrap().files["model.safetensors"], b"other weights");
        fs::remove_file(dir_of(&run, 2).join("manifest.json")).unwrap();
    }
    assert_eq!(names(&run.path().join("checkpoints")), ["best", "latest", "step-00000001", "step-00000002"]);
}

#[test]
fn a_run_resumed_from_an_earlier_step_does_not_lose_its_newest_checkpoint_to_later_ones() {
    let (run, mut store) = run_with(&[10, 20, 30]);
    store.save(&snapshot(15), false, Keep { last: 1, best: 1 }).unwrap();
    assert_eq!(load(&store, Which::Latest).0.unwrap().step, 15);
    flip(&dir_of(&run, 15).join("state.json"), 0, 0);
    assert_eq!(load(&store, Which::Latest).0.unwrap().step, 10);
    store.save(&snapshot(35), false, Keep { last: 1, best: 1 }).unwrap();
    let kept = ["best", "latest", "step-00000010", "step-00000035"];
    assert_eq!(names(&run.path().join("checkpoints")), kept);
}

#[test]
fn whatever_moment_a_run_is_killed_at_the_next_one_finds_a_complete_checkpoint() {
    let half_written = |dir: &Path| fs::create_dir(dir).and_then(|()| fs::write(dir.join("state.json"), "{")).unwrap();
    // Steps 1 and 5 of the save: a temporary directory, a checkpoint half deleted, a pointer not renamed yet.
    let (run, _) = run_with(&[1, 2]);
    let checkpoints = run.path().join("checkpoints");
    half_written(&checkpoints.join("step-00000003.tmp"));
    std::os::unix::fs::symlink("step-00000003", checkpoints.join(".latest.tmp")).unwrap();
    // Somebody else's.
    fs::write(checkpoints.join("notes.tmp"), "").unwrap();
    assert_eq!(load(&Store::open(run.path()).unwrap(), Which::Latest).0.unwrap().step, 2);
    assert_eq!(names(&checkpoints), ["best", "latest", "notes.tmp", "step-00000001", "step-00000002"]);
    fs::remove_file(checkpoints.join("notes.tmp")).unwrap();
    // Step 2: the old checkpoint of the same step is renamed away, the new one not yet in its place.
    fs::rename(dir_of(&run, 2), checkpoints.join("step-00000002.old")).unwrap();
    half_written(&checkpoints.join("step-00000002.tmp"));
    let (loaded, warnings) = load(&Store::open(run.path()).unwrap(), Which::Latest);
    assert_eq!((loaded.unwrap().step, warnings), (2, vec![]));
    // Step 3: the new one is in its place, the old one half deleted.
    half_written(&checkpoints.join("step-00000002.old"));
    assert_eq!(load(&Store::open(run.path()).unwrap(), Which::Latest).0.unwrap().step, 2);
    assert_eq!(names(&checkpoints), ["best", "latest", "step-00000001", "step-00000002"]);
    // Step 4: the checkpoint is there, but no pointer to it yet.
    fs::remove_file(checkpoints.join("latest")).unwrap();
    std::os::unix::fs::symlink("step-00000001", checkpoints.join("latest")).unwrap();
    assert_eq!(load(&Store::open(run.path()).unwrap(), Which::Latest).0.unwrap().step, 1);
}

#[test]
fn a_run_killed_during_its_first_save_has_begun_as_soon_as_the_checkpoint_is_there() {
    let (run, _) = run_with(&[1]);
    let begun = || (run_dir::is_begun(run.path()), run_dir::claim(run.path(), false, &mut drop).is_err());
    for pointer in ["best", "latest"] {
        fs::remove_file(run.path().join("checkpoints").join(pointer)).unwrap();
    }
    assert_eq!(begun(), (true, true), "neither pointer is set");
    fs::rename(dir_of(&run, 1), run.path().join("checkpoints/step-00000001.old")).unwrap();
    assert_eq!(begun(), (true, true), "the checkpoint is being replaced");
    fs::rename(run.path().join("checkpoints/step-00000001.old"), dir_of(&run, 1).with_extension("tmp")).unwrap();
    assert_eq!(begun(), (false, false), "nothing is complete");
}

#[test]
fn a_save_that_fails_half_way_leaves_what_was_there_before() {
    let (run, mut store) = run_with(&[1]);
    // The system refuses this name after the first files are written.
    let mut snapshot = snapshot(2);
    snapshot.files.push(("x".repeat(300), vec![1].into()));
    let error = store.save(&snapshot, true, Keep { last: 1, best: 1 }).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.starts_with(run.path())), "{error}");
    assert_eq!(names(&run.path().join("checkpoints")), ["best", "latest", "step-00000001"]);
    assert_eq!(load(&store, Which::Latest).0.unwrap().step, 1);
}

#[test]
fn a_file_name_that_would_leave_the_checkpoint_is_refused() {
    let (run, mut store) = run_with(&[1]);
    for name in ["../escape", "a/b", "/tmp/x", "..", "", "manifest.json", "state.json/"] {
        let files = vec![(name.to_string(), vec![].into())];
        let error = store
            .save(&Snapshot { step: 2, epoch: 0, accuracy: None, files }, false, Keep { last: 1, best: 1 })
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("'{name}'")), "{error}");
    }
    assert_eq!(names(&run.path().join("checkpoints")), ["best", "latest", "step-00000001"]);
}

#[test]
fn an_atomic_write_makes_its_directories_and_replaces_the_old_content() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a/b/best.safetensors");
    write_atomic(&path, b"long old content").unwrap();
    write_atomic(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(path.parent().unwrap()), ["best.safetensors"]);
}

#[test]
fn the_state_of_another_version_or_of_no_run_is_refused_by_name() {
    for (text, reason) in [("{\"version\": 2}", "version '2'"), ("{", "not the state"), ("[]", "version 'null'")] {
        let error = RunState::from_json(text.as_bytes(), Path::new("a/state.json")).unwrap_err().to_string();
        assert!(error.starts_with("'a/state.json'") && error.contains(reason), "{error}");
    }
    let error = RunState::from_json(br#"{"version": 1, "state": {"seed": 1}}"#, Path::new("s")).unwrap_err();
    assert!(error.to_string().contains("missing field"), "{error}");
}

#[test]
fn a_state_of_a_longer_run_than_there_is_is_refused() {
    let text = |key: &str, value: u64| {
        let progress = r#""progress":{"loss_sum":"0","correct":0,"samples":0}"#;
        let state = format!(
            r#"{{"version":1,"state":{{"global_step":1,"epoch":1,"step_in_epoch":1,"samples_seen":1,"best":null,
            "elapsed_seconds":"1","seed":1,"world_size":1,"data_fingerprint":"",{progress}}}}}"#
        );
        let old = ["0", "1"].map(|number| format!("\"{key}\":{number}"));
        old.iter().fold(state, |state, old| state.replacen(old, &format!("\"{key}\":{value}"), 1))
    };
    let most = [("epoch", 1 << 20), ("global_step", 1 << 53), ("step_in_epoch", 1 << 53), ("samples_seen", 1 << 53)];
    for (key, most) in most.into_iter().chain([("correct", 1 << 53), ("samples", 1 << 53)]) {
        let read = |value| RunState::from_json(text(key, value).as_bytes(), Path::new("state.json"));
        assert!(read(most).is_ok(), "{key}");
        assert!(read(most + 1).unwrap_err().to_string().contains("larger than those of any run"), "{key}");
    }
}

#[test]
fn only_binding_keys_count_as_differences() {
    let saved =
        "[run]\nseed = 0\nepochs = 5\n[data]\nsource = 'cifar10'\n[model]\nwidth = 64\nold = 1\n[model.x]\na = 1";
    let current =
        "[run]\nseed = 0\nepochs = 9\n[data]\nsource = 'folder'\n[model]\nwidth = 16\nstem = 'cifar'\n[model.x]\na = 1";
    assert_eq!(
        differences(saved, current, &["run.seed", "data.source", "model", "optim.none"]),
        [
            "data.source: saved \"cifar10\", now \"folder\"",
            "model.old: saved 1, now absent",
            "model.width: saved 64, now 16",
            "model.stem: saved absent, now \"cifar\"",
        ]
    );
    assert!(differences(saved, saved, &["run", "data", "model"]).is_empty());
    assert!(differences("= 1", current, &["run"])[0].starts_with("the saved configuration is not TOML"));
}

#[test]
fn the_most_accurate_checkpoints_stay_as_well() {
    let directory = tempdir().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let accuracies = [(10, Some(0.5)), (20, Some(0.9)), (30, None), (40, Some(0.7)), (50, Some(0.7)), (60, Some(0.1))];
    for (step, accuracy) in accuracies {
        let kept = Keep { last: 1, best: 2 };
        store.save(&Snapshot { accuracy, ..snapshot(step) }, step == 20, kept).unwrap();
    }
    let mut left = names(&directory.path().join("checkpoints"));
    left.retain(|name| name.starts_with("step-"));
    assert_eq!(left, ["step-00000020", "step-00000040", "step-00000060"], "of equals the earlier one");
}
