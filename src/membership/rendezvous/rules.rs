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

    pub(super) fn read(configuration: &BTreeMap<String, String>) -> Result<Self, Refusal> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_an_elastic_job_are_those_of_its_first_member() {
        let mut configuration: BTreeMap<String, String> = [
            ("parallel.world_size", "4"),
            ("parallel.stages", "2"),
            ("parallel.elastic", "2:"),
            ("parallel.heartbeat", "0.5"),
            ("parallel.lost_after", "2.5"),
            ("parallel.elastic_timeout", "1e300"),
            ("parallel.timeout", "30"),
        ]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
        let rules = Rules::read(&configuration).expect("all keys are there");
        assert_eq!((rules.min, rules.max, rules.world, rules.strict), (2, 8, 8, false));
        assert_eq!((rules.beat, rules.lost_after), (Duration::from_millis(500), Duration::from_millis(2500)));
        assert_eq!((rules.settle, rules.ready_timeout), (SETTLE, Duration::from_secs(300)));
        // Endless, and yet several of them can be added up.
        assert!(rules.elastic_timeout > Duration::from_secs(1 << 50) && rules.elastic_timeout < Duration::MAX / 50);
        configuration.insert("parallel.elastic".into(), "off".into());
        assert!(Rules::read(&configuration).expect_err("it is fixed").reason.contains("serves elastic jobs"));
        configuration.remove("parallel.heartbeat");
        configuration.insert("parallel.elastic".into(), "2:3".into());
        assert!(
            Rules::read(&configuration).expect_err("a key is missing").reason.contains("no usable parallel.heartbeat")
        );
    }
}
