//! The rules of a job. Those of an elastic one come from the configuration of its first member, since a service that
//! was started alone does not know them.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use crate::{Elastic, PATIENCE};

use super::Terms;
use super::membership::Rules;
use super::refusal::Refusal;

/// How long to wait for more members after one has joined.
const SETTLE: Duration = Duration::from_millis(200);

impl Rules {
    /// The rules of a job of fixed membership.
    pub fn strict(terms: &Terms) -> Self {
        let Terms { size, beat, timeout, .. } = *terms;
        let (settle, never) = (Duration::ZERO, Duration::MAX);
        let (elastic_timeout, ready_timeout) = (never, never);
        Self {
            min: size,
            max: size,
            world: size,
            beat,
            lost_after: timeout,
            elastic_timeout,
            settle,
            ready_timeout,
            strict: true,
        }
    }

    /// The rules in the `configuration` of the first member of an elastic job.
    ///
    /// # Errors
    /// If it lacks a key, or the job is not elastic.
    pub fn read(configuration: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let read = Reader(configuration);
        // Members host workers: a stage of a replica each.
        let (size, stages): (usize, usize) = (read.value("parallel.world_size")?, read.value("parallel.stages")?);
        let world = size.saturating_mul(stages);
        let Elastic::Between { min, max } = read.value("parallel.elastic")? else {
            return Err(Refusal::permanent("the rendezvous serves elastic jobs; give every process --elastic MIN:MAX"));
        };
        Ok(Self {
            min,
            max: max.unwrap_or(world),
            world,
            beat: read.seconds("parallel.heartbeat")?,
            lost_after: read.seconds("parallel.lost_after")?,
            elastic_timeout: read.seconds("parallel.elastic_timeout")?,
            settle: SETTLE,
            ready_timeout: read.seconds("parallel.timeout")?.saturating_mul(PATIENCE),
            strict: false,
        })
    }
}

struct Reader<'a>(&'a BTreeMap<String, String>);

impl Reader<'_> {
    fn value<T: FromStr>(&self, key: &str) -> Result<T, Refusal> {
        let value = self.0.get(key).and_then(|text| text.parse().ok());
        value.ok_or_else(|| {
            Refusal::permanent(format!("this process brought no usable {key}; start it from the same build"))
        })
    }

    fn seconds(&self, key: &str) -> Result<Duration, Refusal> {
        let seconds = Duration::try_from_secs_f64(self.value(key)?);
        Ok(seconds.unwrap_or(Duration::MAX / 100))
    }
}
