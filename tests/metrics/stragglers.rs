//! Which replica others wait for, in made-up time.

use kiln::metrics::stragglers::Stragglers;
use kiln::metrics::{Cause, ReplicaRecord};
use kiln_engine::parallel::Work;

/// Seconds of work of each worker, and those of them that its loader took.
type Step<'a> = &'a [[f64; 2]];

struct Job {
    stragglers: Stragglers,
    now: f64,
    step: usize,
    found: Vec<usize>,
    records: Vec<ReplicaRecord>,
    /// Seconds of a step in which the last worker's data is on the way.
    sending: f64,
}

impl Job {
    fn new(replicas: usize) -> Self {
        let stragglers = Stragglers::new(replicas);
        Self { stragglers, now: 1000.0, step: 0, found: Vec::new(), records: Vec::new(), sending: 0.0 }
    }

    /// Steps of a second each, a look after every one.
    fn work(&mut self, seconds: usize, step: Step<'_>) {
        let of = |(device, [seconds, loading]): (usize, &[f64; 2])| {
            let sending = if device + 1 == step.len() { self.sending } else { 0.0 };
            Work { seconds: *seconds, loading: *loading, sending, device }
        };
        let work: Vec<Work> = step.iter().enumerate().map(of).collect();
        for _ in 0..seconds {
            (self.now, self.step) = (self.now + 1.0, self.step + 1);
            self.stragglers.mark(self.now, self.step, &work);
            let (records, found) = self.stragglers.look(self.now);
            self.records = records;
            self.found.extend(found.into_iter().map(|(worker, _)| worker));
        }
    }
}

fn near(value: f64, other: f64) -> bool {
    (value - other).abs() < 1e-9
}

const EVEN: Step<'_> = &[[0.5, 0.0], [0.5, 0.1], [0.4, 0.0], [0.5, 0.0]];

#[test]
fn whoever_is_slow_for_a_minute_is_found_once_and_nobody_else() {
    for (own, cause) in [([0.9, 0.4], Cause::Loader), ([0.9, 0.1], Cause::Device)] {
        let mut job = Job::new(4);
        let uneven = [EVEN[0], EVEN[1], EVEN[2], own];
        job.work(50, &uneven);
        assert!(job.found.is_empty() && job.records.iter().all(|it| it.slow.is_none()));
        job.work(100, &uneven);
        assert_eq!(job.found, [3]);
        let slow: Vec<_> = job.records.iter().map(|it| it.slow).collect();
        assert_eq!(slow, [None, None, None, Some(cause)]);
        let record = &job.records[3];
        assert_eq!((record.replica, record.stage, record.device), (3, 0, 3));
        // Longer than the median, 0.5 s.
        assert!(near(record.waited, 150.0 * 0.4), "{record:?}");
        assert!(record.waited_minute >= 0.4 * 54.0 && record.waited_minute <= 0.4 * 61.0, "{record:?}");
        assert!(near(record.work_seconds, own[0]) && near(record.loading_seconds, own[1]), "{record:?}");
        assert!(job.records[..3].iter().all(|it| near(it.waited, 0.0)), "{:?}", job.records);
        job.work(70, EVEN);
        assert_eq!(job.records[3].slow, None);
        assert!(near(job.records[3].waited_minute, 0.0) && near(job.records[3].waited, 150.0 * 0.4));
        job.work(70, &uneven);
        assert_eq!(job.found, [3, 3], "it was slow again");
    }
}

#[test]
fn a_moment_is_not_a_minute_and_a_trifle_is_nothing() {
    let mut job = Job::new(4);
    job.work(30, EVEN);
    job.work(1, &[EVEN[0], EVEN[1], EVEN[2], [90.0, 0.0]]);
    job.work(80, EVEN);
    // In mean more than twice as long.
    assert!(job.found.is_empty() && near(job.records[3].waited, 89.5), "{:?}", job.records);
    // Twice as long, of a step of a second.
    job.work(200, &[[0.001, 0.0], [0.001, 0.0], [0.001, 0.0], [0.002, 0.0]]);
    assert!(job.found.is_empty());
}

#[test]
fn of_two_the_slower_one_is_found_and_stages_are_not_compared() {
    let mut pair = Job::new(2);
    pair.work(70, &[[0.8, 0.0], [0.4, 0.0]]);
    assert_eq!(pair.found, [0]);
    let mut stages = Job::new(2);
    stages.work(70, &[[0.2, 0.0], [0.2, 0.0], [0.8, 0.0], [0.8, 0.0]]);
    assert!(stages.found.is_empty() && stages.records.iter().all(|it| near(it.waited, 0.0)));
    stages.work(70, &[[0.2, 0.0], [0.2, 0.0], [0.4, 0.0], [0.8, 0.0]]);
    assert_eq!(stages.found, [3]);
    assert_eq!(stages.records[3].name(), "stage 1 of replica 1");
}

#[test]
fn a_replica_whose_data_is_long_on_the_way_waits_for_its_network() {
    let mut job = Job::new(4);
    job.sending = 0.5;
    job.work(70, EVEN);
    assert_eq!((&job.found[..], job.records[3].slow), (&[3][..], Some(Cause::Network)));
    assert!(near(job.records[3].waited, 70.0 * (1.0 - 0.5)), "{:?}", job.records);
    assert!(near(job.records[3].sending_seconds, 0.5) && near(job.records[0].sending_seconds, 0.0));
    // Slower by its device still than by its network.
    job.work(70, &[EVEN[0], EVEN[1], EVEN[2], [1.5, 0.0]]);
    assert_eq!(job.records[3].slow, Some(Cause::Device));
}

#[test]
fn a_measured_step_stands_for_those_before_it() {
    let mut job = Job::new(2);
    for _ in 0..10 {
        job.step += 31;
        job.work(1, &[[0.1, 0.0], [0.2, 0.0]]);
    }
    // The first one for itself.
    assert!(near(job.records[1].waited, (9.0 * 32.0 + 1.0) * 0.1), "{:?}", job.records);
    assert!(near(job.records[1].work_seconds, 0.2));
}
