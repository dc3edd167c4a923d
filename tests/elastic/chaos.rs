//! Processes die, stop, leave and come at random moments; nothing of it shows in the numbers.
//!
//! `KILN_CHAOS=SEED,SEED` runs other seeds, `KILN_CHAOS_STEPS=200` longer runs.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;

/// How a process goes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Killed,
    Stopped,
    Asked,
}

/// A run and its processes, some of which are stopped.
struct Chaos {
    job: Job,
    dice: ChaCha8Rng,
    members: Vec<Child>,
    stopped: Vec<Child>,
}

impl Chaos {
    fn below(&mut self, bound: usize) -> usize {
        self.dice.next_u32() as usize % bound
    }

    fn way(&mut self) -> Way {
        [Way::Killed, Way::Stopped, Way::Asked][self.below(3)]
    }

    /// Lets the run go on for some steps, and stops somewhere within one.
    fn wait(&mut self, steps: usize) {
        let steps = 1 + self.below(steps);
        self.job.steps(steps);
        std::thread::sleep(Duration::from_millis(self.below(60) as u64));
    }

    fn take(&mut self, way: Way) {
        let victim = self.below(self.members.len());
        let mut child = self.members.swap_remove(victim);
        match way {
            Way::Killed => kill(&mut child),
            Way::Stopped => {
                signal(&child, "STOP");
                self.stopped.push(child);
            }
            Way::Asked => {
                signal(&child, "TERM");
                ends(child, Some(143));
            }
        }
    }

    /// Brings the run to so many processes, one after the other.
    fn resize(&mut self, count: usize, steps: usize) {
        while self.members.len() != count {
            self.wait(steps);
            match self.members.len() < count {
                true => self.members.push(self.job.start()),
                false => {
                    let way = self.way();
                    self.take(way);
                }
            }
        }
        until("the run has its new size", || {
            self.job.generations().last().is_some_and(|generation| generation.members == count)
        });
    }

    fn finish(mut self, epochs: usize) {
        for child in self.members {
            let mut lines = ends(child, Some(0));
            lines.retain(|line| !TRUE_AT_TIMES.iter().any(|warning| line.contains(warning)));
            assert!(lines.is_empty(), "{lines:?}");
        }
        // They wake up, find that the run goes on or is over without them, and end.
        self.stopped.iter_mut().for_each(kill);
        let calm = self.job.calm(&[]);
        self.job.run().equals(&calm, epochs);
        let numbers: Vec<u64> = self.job.generations().iter().map(|it| it.generation).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
}

/// Warnings of a run that goes well: whoever has none of a lost stage says that the run goes back, a machine that has
/// more to do may be slow, and few processors have instructions for f16.
const TRUE_AT_TIMES: [&str; 4] = [
    "warning: all processes of a stage were lost",
    "warning: waiting to take part: ",
    "warning: here f16 is slow",
    "for the previous checkpoint, because the disk is slow",
];

/// What else a run may have on its mind when membership changes; the seed chooses.
const FLAVOURS: [&[&str]; 3] = [
    &["--accumulation-steps=2", "--reduce-precision=bf16"],
    &["--ema-decay=0.9"],
    &["--precision=f16", "--width=8", "--learning-rate=0.002"],
];

fn disturb(seed: u64, epochs: usize, more: &[&str]) {
    let line = format!("--epochs={epochs}");
    let flavour = FLAVOURS[seed as usize % FLAVOURS.len()];
    let job = Job::new("1:4", &[&[line.as_str(), "--width=16", "--backend=auto"], flavour, more].concat());
    // One that is stopped would keep its address, so no member holds the rendezvous.
    let rendezvous = job.rendezvous();
    let members = vec![job.start()];
    let mut chaos = Chaos { job, dice: ChaCha8Rng::seed_from_u64(seed), members, stopped: Vec::new() };
    until("the run begins", || !chaos.job.run().steps().is_empty());
    let steps = epochs * 4 / 40;
    for count in [4, 3, 2, 4, 1, 3] {
        chaos.resize(count, steps.max(1));
    }
    chaos.finish(epochs);
    ends(rendezvous, Some(0));
}

/// By the seeds and of the length that were asked for.
fn disturb_all(more: &[&str]) {
    let seeds = std::env::var("KILN_CHAOS").unwrap_or("1".into());
    let steps: usize = std::env::var("KILN_CHAOS_STEPS").map_or(160, |text| text.parse().unwrap());
    for seed in seeds.split(',') {
        eprintln!("seed {seed}");
        disturb(seed.parse().unwrap(), steps / 4, more);
    }
}

#[test]
fn whoever_comes_and_goes_the_run_ends_as_a_calm_one() {
    disturb_all(&[]);
}

#[test]
fn whoever_comes_and_goes_with_a_stage_the_run_ends_as_a_calm_one() {
    disturb_all(&["--stages=2"]);
}

over_nccl! { whoever_comes_and_goes_the_run_ends_as_a_calm_one }
