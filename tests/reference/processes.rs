//! The reference trajectory of four replicas, hosted by one, two and four processes.

use kiln_engine::parallel::{HostBackend, StartingPoint, World};
use kiln_engine::state::sha256;
use kiln_training::Stem;

use super::fixture::name_of;
use super::run::{Recorded, plan, run_with};
use super::{Reference, Variant, normalization, ordered_images, setup};
use crate::engines::connected;

const REPLICAS: usize = 4;

/// What the first process reports.
fn trajectory<B: HostBackend>(reference: &Reference, stem: Stem, processes: usize, ordered: bool) -> Recorded {
    let variant = Variant::Sync(REPLICAS);
    let images = ordered_images(reference, variant, &reference.batches(), 0);
    let weights = reference.tensors(name_of(stem));
    let process = |rank: usize, others| {
        let mut experiment = plan(&setup(reference, variant, None), images.clone(), normalization(reference, 0));
        // LibTorch adds up in another order on another number of threads.
        experiment.plan.threads = 1;
        experiment.plan.world = World::staged([REPLICAS, 1], rank, vec![1; processes], vec![0]);
        let (config, classes) = (reference.model(stem), reference.count("num_classes"));
        run_with::<B>(experiment, &config, classes, &weights, StartingPoint::default(), others).unwrap()
    };
    if processes == 1 {
        return process(0, None);
    }
    let others = connected(&World::staged([REPLICAS, 1], 0, vec![1; processes], vec![0]), ordered);
    std::thread::scope(|scope| {
        let process = &process;
        let ranks = others.into_iter().enumerate();
        let threads: Vec<_> = ranks.map(|(rank, others)| scope.spawn(move || process(rank, Some(others)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>().swap_remove(0)
    })
}

/// The weights bit for bit with sums in the order of the tree, the losses to 1e-5 in the engine's own order.
pub fn are_one_experiment<B: HostBackend>(stem: Stem) {
    let reference = Reference::load();
    let alone = trajectory::<B>(&reference, stem, 1, true);
    let outcome = |done: &Recorded| sha256(&done.states.last().unwrap().weights);
    for processes in [2, 4] {
        let ordered = trajectory::<B>(&reference, stem, processes, true);
        assert_eq!(outcome(&ordered), outcome(&alone), "{processes} processes in order");
        let fast = trajectory::<B>(&reference, stem, processes, false);
        for (ours, theirs) in fast.steps.iter().zip(&alone.steps) {
            let distance = (ours.counts.mean_loss() / theirs.counts.mean_loss() - 1.0).abs();
            assert!(distance < 1e-5, "{processes} processes, step {}: {distance:.1e}", ours.step);
        }
    }
}
