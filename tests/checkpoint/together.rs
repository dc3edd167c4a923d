//! The checkpoints of a run while several processes save or read them.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::*;

#[test]
fn processes_that_save_at_the_same_time_damage_nothing() {
    let (run, _store) = run_with(&[1]);
    std::thread::scope(|scope| {
        for step in [7, 8, 7, 8] {
            let run = run.path();
            scope.spawn(move || Store::save_beside_others(run, &snapshot(step)).unwrap());
        }
    });
    [1, 7, 8].iter().for_each(|step| assert_eq!(read(&dir_of(&run, *step)).unwrap().step, *step));
    let latest = || fs::read_link(run.path().join("checkpoints/latest")).unwrap();
    Store::save_beside_others(run.path(), &snapshot(9)).unwrap();
    Store::save_beside_others(run.path(), &snapshot(5)).unwrap();
    assert_eq!(latest(), Path::new("step-00000009"), "the newest state is the one to go on from");
    assert_eq!(names(&run.path().join("checkpoints")).len(), 7, "best, latest and five checkpoints");
}

/// The same step, with files of other lengths.
fn saved_again(step: usize) -> Snapshot {
    let longer = |(name, content): (String, Content)| (name, [content.into_bytes(), b"more".to_vec()].concat().into());
    let files = snapshot(step).files.into_iter().map(longer).collect();
    Snapshot { files, ..snapshot(step) }
}

#[test]
fn the_checkpoints_of_a_run_that_goes_on_are_read_whole() {
    let (run, mut store) = run_with(&[1]);
    let latest = run.path().join("checkpoints/latest");
    let (saved, reader) = (AtomicBool::new(false), Store::at(run.path()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 2..400 {
                // At the end of an epoch its last step is saved again.
                for state in [snapshot(step), saved_again(step)] {
                    store.save(&state, true, Keep { last: 1, best: 1 }).unwrap();
                }
            }
            saved.store(true, SeqCst);
        });
        while !saved.load(SeqCst) {
            for loaded in [read(&latest), reader.load(Which::Best, &mut no_warning)] {
                let Loaded { step, files, .. } = loaded.unwrap();
                let files: Vec<_> = files.into_iter().collect();
                assert!([snapshot(step), saved_again(step)].into_iter().any(|it| files == sorted(it.files)), "{step}");
            }
        }
    });
}
