//! Loss and accuracy as Burn metrics, for its terminal interface.
//!
//! Replicas have added up their numbers before Burn sees them, so these metrics only divide and show.

use std::sync::Arc;

use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Adaptor, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::model::Tally;

impl Adaptor<Tally> for Tally {
    fn adapt(&self) -> Tally {
        *self
    }
}

/// A number drawn from the losses and hits of a step or of a validation.
#[derive(Clone)]
pub struct TallyMetric {
    name: MetricName,
    attributes: NumericAttributes,
    value: fn(&Tally) -> f64,
    state: NumericMetricState,
}

impl TallyMetric {
    /// Mean loss per sample.
    pub fn loss() -> Self {
        let attributes = NumericAttributes { unit: None, higher_is_better: false };
        Self::new("Loss", attributes, Tally::mean_loss)
    }

    /// Top-1 accuracy in percent.
    pub fn accuracy() -> Self {
        let attributes = NumericAttributes { unit: Some("%".into()), higher_is_better: true };
        Self::new("Accuracy", attributes, |tally| 100.0 * tally.accuracy())
    }

    fn new(name: &str, attributes: NumericAttributes, value: fn(&Tally) -> f64) -> Self {
        Self { name: Arc::new(name.into()), attributes, value, state: NumericMetricState::new() }
    }
}

impl Metric for TallyMetric {
    type Input = Tally;

    fn update(&mut self, tally: &Tally, _metadata: &MetricMetadata) -> SerializedEntry {
        let format = FormatOptions::new(self.name()).precision(3);
        let format = match &self.attributes.unit {
            Some(unit) => format.unit(unit),
            None => format,
        };
        self.state.update((self.value)(tally), tally.samples, format)
    }

    fn clear(&mut self) {
        self.state.reset();
    }

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        self.attributes.clone().into()
    }
}

impl Numeric for TallyMetric {
    fn value(&self) -> NumericEntry {
        self.state.current_value()
    }

    fn running_value(&self) -> NumericEntry {
        self.state.running_value()
    }
}
