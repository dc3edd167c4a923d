//! The loader: the same batches as without it, in order, and a thread that goes when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kiln_data::synthetic::{NORMALIZATION, Split, draw};
use kiln_data::{Augment, DataConfig, HostBatch, ImageSet};
use kiln_engine::parallel::{Loader, Shard};

use super::assemble;

const SEED: u64 = 11;

fn images() -> Arc<ImageSet> {
    Arc::new(draw(Split::Train, 40).expect("forty images"))
}

fn augment() -> Augment {
    Augment::new(&DataConfig { cutout: 6, ..DataConfig::default() }, NORMALIZATION)
}

fn loader(requests: impl Iterator<Item = Shard> + Send + 'static) -> Loader<HostBatch> {
    let (images, augment) = (images(), augment());
    Loader::new(requests, move |shard| assemble(&images, &augment, SEED, &shard, None), 2).expect("a thread")
}

fn load(requests: Vec<Shard>) -> Vec<HostBatch> {
    loader(requests.into_iter()).map(Result::unwrap).collect()
}

/// The pixels of one sample, wherever in the batches it is.
fn sample(batches: &[HostBatch], id: u32) -> Vec<f32> {
    let found = batches.iter().find_map(|batch| {
        let position = batch.ids.iter().position(|&other| other == id)?;
        Some(batch.images.on_host()[position * 3072..][..3072].to_vec())
    });
    found.expect("the sample is in one of the batches")
}

#[test]
fn a_loader_delivers_what_is_assembled_by_hand_in_order() {
    let requests: Vec<Shard> = (0..4)
        .flat_map(|epoch| [vec![3, 1, 2], vec![], vec![39]].map(|ids| Shard { epoch, ids, ..Shard::default() }))
        .collect();
    let expected: Vec<_> = requests.iter().map(|it| assemble(&images(), &augment(), SEED, it, None).unwrap()).collect();
    assert_eq!(expected[0].labels, [3, 1, 2]);
    assert_eq!(expected[0].images.on_host().len(), 3 * 3072);
    assert!(expected[1].ids.is_empty() && expected[1].images.on_host().is_empty());
    assert_eq!(load(requests), expected);
}

#[test]
fn a_sample_looks_the_same_whichever_replica_order_or_thread_prepares_it() {
    let one = load(vec![Shard { epoch: 2, ids: (0..40).collect(), ..Shard::default() }]);
    let evens = load(vec![Shard { epoch: 2, ids: (0..40).step_by(2).collect(), ..Shard::default() }]);
    let odds = std::thread::spawn(|| {
        load(vec![Shard { epoch: 2, ids: (0..40).rev().step_by(2).collect(), ..Shard::default() }])
    });
    let two = [evens, odds.join().expect("no panic")].concat();
    for id in 0..40 {
        assert_eq!(sample(&one, id), sample(&two, id), "sample {id}");
    }
    let later = load(vec![Shard { epoch: 3, ids: (0..40).collect(), ..Shard::default() }]);
    assert_ne!(one[0].images, later[0].images, "another epoch shows the samples differently");
}

#[test]
fn dropping_a_loader_in_the_middle_of_an_endless_run_ends_its_thread() {
    let asked = Arc::new(AtomicUsize::new(0));
    let guard = asked.clone();
    let endless = std::iter::repeat_with(move || {
        guard.fetch_add(1, Ordering::SeqCst);
        Shard { epoch: 0, ids: vec![0; 8], ..Shard::default() }
    });
    let mut loader = loader(endless);
    assert_eq!(loader.next().map(|batch| batch.unwrap().ids.len()), Some(8));
    drop(loader);
    // The thread owned the other reference; it is gone because the thread is.
    assert_eq!(Arc::strong_count(&asked), 1);
    assert!(asked.load(Ordering::SeqCst) <= 5, "it worked no further ahead than asked");
}

#[test]
fn a_panic_of_the_thread_reaches_the_consumer() {
    let outcome = std::panic::catch_unwind(|| {
        let broken = |()| -> kiln_system::Result<()> { panic!("a thread ends") };
        Loader::new(std::iter::once(()), broken, 2).expect("a thread").next()
    });
    assert!(outcome.is_err(), "what ends a thread must not end the run as if it were over");
}

#[test]
fn a_sample_that_there_is_not_is_named() {
    let error = kiln_engine::parallel::fetch(images().as_ref(), &[3, 40]).expect_err("forty images").to_string();
    super::assert_names(&error, &["no sample 40", "40 of the data set"]);
}

#[test]
fn a_panic_over_a_batch_that_nobody_takes_ends_nothing() {
    let second_breaks = |request: u32| if request == 0 { Ok(request) } else { panic!("no memory left") };
    let mut loader = Loader::new(0..2_u32, second_breaks, 2).expect("a thread");
    assert_eq!(loader.next().map(Result::unwrap), Some(0));
    drop(loader);
}
