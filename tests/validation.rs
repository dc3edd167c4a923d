//! Every validation image counts once, for every number of replicas, and no replica waits for another while it does.

use kiln_engine::parallel::{Counts, HostBackend};
use kiln_training::{Prediction, TOP1, TOP5};

use crate::small::{images, plan_of, setup, train};

/// One step on the same 24 images, then `count` images over shards that no number of replicas but one divides evenly.
fn validated<B: HostBackend>(replicas: usize, count: usize) -> (Counts, Vec<Prediction>) {
    let experiment = plan_of(&setup(replicas, 24 / replicas, 0.05), 0..24).validated_on(images(1000..1000 + count));
    let report = train::<B>(experiment).epochs.swap_remove(0);
    (report.validation, Prediction::from_values(&report.answers))
}

pub fn every_image_counts_once<B: HostBackend>() {
    let (one, predictions) = validated::<B>(1, 1001);
    let hits = predictions.iter().enumerate().filter(|(i, it)| it.class as usize == (1000 + i) % 10).count();
    assert_eq!((predictions.len(), hits as f64), (1001, one.counted[TOP1]), "in the order of the images");
    assert_eq!(one.samples, 1001);
    let [top1, top5] = [TOP1, TOP5].map(|place| one.counted[place]);
    assert!((1.0..1001.0).contains(&top1) && top1 < top5, "a count that can be wrong: {one:?}");
    for replicas in [2, 3, 4] {
        let (many, theirs) = validated::<B>(replicas, 1001);
        let same = predictions.iter().zip(&theirs).filter(|(one, many)| one.class == many.class).count();
        assert!(same > 990 && theirs.len() == 1001, "{replicas} replicas: {same} images are taken for the same");
        assert_eq!((many.samples, many.counted), (one.samples, one.counted), "{replicas} replicas");
        assert!((many.loss / one.loss - 1.0).abs() < 1e-5, "{replicas} replicas: loss {} not {}", many.loss, one.loss);
    }
}

/// A collective inside the model would wait for ever: the second replica has nothing to validate.
pub fn a_replica_without_images<B: HostBackend>() {
    let counts = validated::<B>(2, 1).0;
    assert_eq!(counts.samples, 1);
    assert!(counts.loss.is_finite());
}

on_every_backend! {
    the_same_images_are_right_for_every_number_of_replicas => || every_image_counts_once::<TestBackend>();
    a_replica_without_images_holds_up_nobody => || a_replica_without_images::<TestBackend>();
}
