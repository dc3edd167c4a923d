//! Rules about the devices of a process, and the replicas on them.

use std::collections::BTreeSet;

use super::Rules;
use crate::config::ReplicasPerDevice;

impl Rules<'_> {
    pub(super) fn devices(&mut self) {
        const KEY: &str = "parallel.gpu_ids";
        let parallel = &self.merged.config.parallel;
        let (devices, workers) = (parallel.gpu_ids.len(), parallel.workers());
        self.require(devices > 0, &[KEY], "gpu ids must name a device, got '[]'", "the default is --gpu-ids 0");

        let mut seen = BTreeSet::new();
        let twice = parallel.gpu_ids.iter().find(|id| !seen.insert(**id));
        let broken = format!("gpu ids must be different, got '{}' twice", twice.copied().unwrap_or_default());
        let remedy = "name each device once; more replicas than devices share them, as in --world-size 2 --gpu-ids 0";
        self.require(twice.is_none(), &[KEY], broken, remedy);

        let of = parallel.capacity();
        let broken = format!("every device must have a replica, got '{devices}' devices for {of}");
        let remedy = format!("use --world-size {} or fewer --gpu-ids", devices.div_ceil(parallel.stages.max(1)));
        let enough = devices <= workers || twice.is_some() || parallel.plans_stages();
        self.require(enough, &[KEY, "parallel.world_size"], broken, &remedy);
    }

    pub(super) fn replicas_per_device(&mut self) {
        let parallel = &self.merged.config.parallel;
        let (counts, world) = (&parallel.replicas_per_device, parallel.world_size);
        const KEY: &str = "parallel.replicas_per_device";
        let sum = match counts {
            ReplicasPerDevice::Given(counts) => counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count)),
            _ => world,
        };
        let broken = format!("replicas per device must add up to the world size '{world}', got '{counts}'");
        self.require(sum == world, &[KEY, "parallel.world_size"], broken, &format!("use --world-size {sum}"));
        let (is_even, is_cut) = (*counts == ReplicasPerDevice::Even, parallel.stages != 1);
        let broken = "stages are placed by their own times, not by replicas per device";
        let remedy = "remove --replicas-per-device or --stages";
        self.require(is_even || !is_cut, &[KEY, "parallel.stages"], broken, remedy);
        let broken = format!("replicas per device must be even or auto in an elastic run, got '{counts}'");
        let holds = !parallel.elastic.is_on() || !matches!(counts, ReplicasPerDevice::Given(_));
        let remedy = "use --replicas-per-device auto, or remove --elastic";
        self.require(holds, &[KEY, "parallel.elastic"], broken, remedy);
    }
}
