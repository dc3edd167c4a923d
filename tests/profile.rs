//! `--profile`: a table that names the phases of a step, and a trace that a browser can show.

use std::collections::BTreeSet;

use kiln::metrics::Profiler;
use serde_json::Value;

use crate::command::Workplace;

#[test]
fn a_profile_shows_the_phases_of_every_replica() {
    let place = Workplace::new();
    let output = place.train("run", &["--max-steps=3", "--epochs=1", "--profile"]);
    for phase in ["wait for data", "forward", "backward", "all-reduce", "optimizer", "validation", "checkpoint"] {
        assert!(output.contains(phase), "'{phase}' is not in {output}");
    }
    let trace: Value = serde_json::from_slice(&std::fs::read(place.path("run/trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let threads: BTreeSet<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert!(threads.is_superset(&BTreeSet::from(["main", "replica-0", "replica-1"])), "{threads:?}");
    let forwards = events.iter().filter(|event| event["name"] == "forward").count();
    assert_eq!(forwards, 2 * 3, "two replicas, three steps");
    assert!(events.iter().filter(|event| event["ph"] == "X").all(|event| event["dur"].as_f64().unwrap() > 0.0));
}

#[test]
fn devices_are_waited_for_only_while_somebody_takes_the_time() {
    assert!(!kiln::ops::is_timed());
    tracing::subscriber::with_default(Profiler::new().subscriber(), || assert!(kiln::ops::is_timed()));
    assert!(!kiln::ops::is_timed());
}

#[test]
fn without_the_flag_there_is_no_profile() {
    let place = Workplace::new();
    let output = place.train("run", &["--max-steps=1", "--epochs=1"]);
    assert!(!output.contains("all-reduce"));
    assert!(!place.path("run/trace.json").exists());
}

/// Of two replicas on one device.
#[cfg(feature = "wgpu")]
fn gradients_stay_on_the_device() {
    let place = Workplace::new();
    let arguments = ["--backend=wgpu", "--gpu-ids=0", "--max-steps=2", "--epochs=1", "--profile"];
    place.train("run", &arguments);
    let trace: Value = serde_json::from_slice(&std::fs::read(place.path("run/trace.json")).unwrap()).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let named = |name: &str| spans.clone().filter(|span| span["name"] == name).collect::<Vec<_>>();
    let at = |span: &Value, key: &str| span[key].as_f64().unwrap();
    let reductions = named("all-reduce");
    assert_eq!(reductions.len(), 2 * 2, "two replicas, two steps");
    for copy in [named("copy to host"), named("copy to device")].concat() {
        let within = reductions.iter().any(|reduction| {
            let (start, end) = (at(reduction, "ts"), at(reduction, "ts") + at(reduction, "dur"));
            copy["tid"] == reduction["tid"] && (start..end).contains(&at(copy, "ts"))
        });
        assert!(!within, "{copy}");
    }
}

#[cfg(feature = "wgpu")]
on_backend! {
    "wgpu" wgpu burn::backend::Wgpu<f32, i32>:
    replicas_of_one_device_add_their_gradients_there => gradients_stay_on_the_device;
}

#[test]
fn a_profile_counts_what_a_step_copies_between_host_and_device() {
    let place = Workplace::new();
    let output = place.train("run", &["--max-steps=3", "--epochs=1", "--profile"]);
    let trace: Value = serde_json::from_slice(&std::fs::read(place.path("run/trace.json")).unwrap()).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let copies = |name: &str| -> Vec<u64> {
        spans.clone().filter(|span| span["name"] == name).map(|span| span["args"]["bytes"].as_u64().unwrap()).collect()
    };
    let of_pixels = (4 * 3 * 32 * 32) * size_of::<f32>() as u64;
    let uploads = copies("copy to device").into_iter().filter(|bytes| *bytes == of_pixels).count();
    // Three steps and two batches of validation on each of two replicas, and what their loaders made ahead.
    let used = 2 * 3 + 2 * 2;
    assert!((used..=used + 2 * 4).contains(&uploads), "{uploads} copies");
    let down = copies("copy to host");
    // Synchronised batch-norm asks for the sums of 20 layers forward and backward.
    assert!(down.len() > 2 * 3 * 2 * 20, "{} copies", down.len());
    let megabytes = |row: &str| row.split_whitespace().last().unwrap().parse::<f64>().unwrap();
    let listed = output.lines().filter(|row| row.trim_start().starts_with("copy to host")).map(megabytes);
    assert!((listed.sum::<f64>() - down.iter().sum::<u64>() as f64 / 1e6).abs() < 0.1, "{output}");
}
