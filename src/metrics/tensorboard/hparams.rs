//! Messages for the HPARAMS tab: hyperparameters, metrics, start and end of a run.
//!
//! Names and field numbers are those of the plugin's `api.proto` and `plugin_data.proto`. The metrics are ordinary
//! scalars.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

use super::event::Value;

/// The tag of the final validation accuracy, as a fraction.
pub const VAL_ACCURACY: &str = "hparam/val_accuracy";
/// The tag of the final mean validation loss.
pub const VAL_LOSS: &str = "hparam/val_loss";

/// The value of a hyperparameter.
#[derive(Clone, PartialEq, Oneof)]
pub enum Hparam {
    /// A number; one that is not finite is written as text, since the tab would leave it out.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "3")]
    Text(String),
    /// Yes or no.
    #[prost(bool, tag = "4")]
    Bool(bool),
}

impl Hparam {
    fn data_type(&self) -> DataType {
        match self {
            Self::Text(_) => DataType::String,
            Self::Bool(_) => DataType::Bool,
            Self::Number(_) => DataType::Float64,
        }
    }

    fn showable(&self) -> Self {
        match self {
            Self::Number(number) if !number.is_finite() => Self::Text(number.to_string()),
            value => value.clone(),
        }
    }
}

/// The columns of the table, and the row of a run that started at `now`, in seconds since 1970.
pub fn session_start(hparams: &BTreeMap<String, Hparam>, now: f64) -> [Value; 2] {
    let hparams: BTreeMap<_, _> = hparams.iter().map(|(name, value)| (name.clone(), value.showable())).collect();
    let infos = hparams.iter().map(|(name, value)| HparamInfo { name: name.clone(), r#type: value.data_type().into() });
    let metric = |tag: &str| MetricInfo { name: Some(MetricName { tag: tag.into() }) };
    let experiment = Experiment {
        time_created_secs: now,
        hparam_infos: infos.collect(),
        metric_infos: vec![metric(VAL_ACCURACY), metric(VAL_LOSS)],
    };
    let values = hparams.into_iter().map(|(name, value)| (name, HparamValue { kind: Some(value) })).collect();
    let start = SessionStartInfo { hparams: values, start_time_secs: now };
    [
        message("_hparams_/experiment", Data::Experiment(experiment)),
        message("_hparams_/session_start_info", Data::SessionStartInfo(start)),
    ]
}

/// The successful end of a run at `now`, in seconds since 1970.
pub fn session_end(now: f64) -> Value {
    let end = SessionEndInfo { status: Status::Success.into(), end_time_secs: now };
    message("_hparams_/session_end_info", Data::SessionEndInfo(end))
}

fn message(tag: &str, data: Data) -> Value {
    Value::plugin(tag, "hparams", HparamsPluginData { data: Some(data) }.encode_to_vec())
}

/// A message to the plugin, of its version 0.
#[derive(Clone, PartialEq, Message)]
struct HparamsPluginData {
    #[prost(oneof = "Data", tags = "2, 3, 4")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "2")]
    Experiment(Experiment),
    #[prost(message, tag = "3")]
    SessionStartInfo(SessionStartInfo),
    #[prost(message, tag = "4")]
    SessionEndInfo(SessionEndInfo),
}

#[derive(Clone, PartialEq, Message)]
struct Experiment {
    #[prost(double, tag = "3")]
    time_created_secs: f64,
    #[prost(message, repeated, tag = "4")]
    hparam_infos: Vec<HparamInfo>,
    #[prost(message, repeated, tag = "5")]
    metric_infos: Vec<MetricInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct HparamInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(enumeration = "DataType", tag = "4")]
    r#type: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
enum DataType {
    Unset = 0,
    String = 1,
    Bool = 2,
    Float64 = 3,
}

#[derive(Clone, PartialEq, Message)]
struct MetricInfo {
    #[prost(message, optional, tag = "1")]
    name: Option<MetricName>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricName {
    #[prost(string, tag = "2")]
    tag: String,
}

#[derive(Clone, PartialEq, Message)]
struct SessionStartInfo {
    #[prost(btree_map = "string, message", tag = "1")]
    hparams: BTreeMap<String, HparamValue>,
    #[prost(double, tag = "5")]
    start_time_secs: f64,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
struct HparamValue {
    #[prost(oneof = "Hparam", tags = "2, 3, 4")]
    kind: Option<Hparam>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionEndInfo {
    #[prost(enumeration = "Status", tag = "1")]
    status: i32,
    #[prost(double, tag = "2")]
    end_time_secs: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
enum Status {
    Unknown = 0,
    Success = 1,
}
