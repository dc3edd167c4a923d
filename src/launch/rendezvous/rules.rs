//! What a job asks for. That of an elastic one is read off the configuration that its members bring: a service that was
//! started alone knows nothing of a job before.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::Terms;
use super::bulletin::Rules;
use super::refusal::Refusal;
use crate::parallel::{Elastic, PATIENCE};

/// How long after an arrival to wait for more of them.
const SETTLE: Duration = Duration::from_millis(200);

impl Rules {
    /// Those of a job whose membership is fixed.
    pub fn strict(terms: &Terms) -> Self {
        let Terms { size, beat, timeout, .. } = *terms;
        let (settle, never) = (Duration::ZERO, Duration::MAX);
        let (elastic_timeout, patience) = (never, never);
        Self {
            min: size,
            max: size,
            world: size,
            beat,
            lost_after: timeout,
            elastic_timeout,
            settle,
            patience,
            strict: true,
        }
    }

    /// The rules of the job that is configured so.
    pub(super) fn read(configuration: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let read = Reader(configuration);
        let world = read.value("parallel.world_size")?;
        let Elastic::Between { min, max } = read.value("parallel.elastic")? else {
            return Err(Refusal::lasting("the service serves elastic jobs; give every process --elastic MIN:MAX"));
        };
        Ok(Self {
            min,
            max: max.unwrap_or(world),
            world,
            beat: read.seconds("parallel.heartbeat")?,
            lost_after: read.seconds("parallel.lost_after")?,
            elastic_timeout: read.seconds("parallel.elastic_timeout")?,
            settle: SETTLE,
            patience: read.seconds("parallel.timeout")?.saturating_mul(PATIENCE),
            strict: false,
        })
    }
}

struct Reader<'a>(&'a BTreeMap<String, String>);

impl Reader<'_> {
    fn value<T: FromStr>(&self, key: &str) -> Result<T, Refusal> {
        let value = self.0.get(key).and_then(|text| text.parse().ok());
        value.ok_or_else(|| {
            Refusal::lasting(format!("this process brought no usable {key}; start it from the same build"))
        })
    }

    fn seconds(&self, key: &str) -> Result<Duration, Refusal> {
        let seconds = Duration::try_from_secs_f64(self.value(key)?);
        Ok(seconds.unwrap_or(Duration::MAX / 100))
    }
}
