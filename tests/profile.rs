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

/// Of a step of two replicas on one device only losses, counts and norm come to the host, and nobody waits for them.
#[cfg(feature = "wgpu")]
fn steps_stay_on_the_device() {
    let (place, steps, share) = (Workplace::new(), 3, 4);
    let steps_argument = format!("--max-steps={steps}");
    place.train("run", &["--backend=wgpu", "--gpu-ids=0", &steps_argument, "--epochs=1", "--profile"]);
    let trace: Value = serde_json::from_slice(&std::fs::read(place.path("run/trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let threads =
        events.iter().filter(|event| event["args"]["name"].as_str().is_some_and(|name| name.starts_with("replica")));
    let threads: Vec<&Value> = threads.map(|event| &event["tid"]).collect();
    assert_eq!(threads.len(), 2, "{threads:?}");
    for thread in threads {
        let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == *thread).collect();
        let named = |name: &str| spans.iter().filter(|span| span["name"] == name).copied().collect::<Vec<_>>();
        let at = |span: &Value, key: &str| span[key].as_f64().unwrap();
        let (begins, ends) = (named("wait for data"), named("optimizer"));
        assert_eq!((begins.len(), ends.len()), (steps, steps));
        let within = begins.iter().zip(&ends).map(|(begin, end)| at(begin, "ts")..at(end, "ts") + at(end, "dur"));
        let within: Vec<_> = within.collect();
        let in_steps = |name: &str| {
            let is_in = |span: &&Value| within.iter().any(|step| step.contains(&at(span, "ts")));
            spans.iter().filter(|span| span["name"].as_str().unwrap().ends_with(name)).copied().filter(is_in).collect()
        };
        let bytes =
            |spans: Vec<&Value>| spans.iter().map(|span| span["args"]["bytes"].as_u64().unwrap()).collect::<Vec<_>>();
        // The second ones are Burn's.
        for read in ["copy to host", "into_data"] {
            let found: Vec<&Value> = in_steps(read);
            let waits: Vec<_> = found.iter().filter(|span| span["name"] != "late copy to host").collect();
            assert!(waits.is_empty(), "{waits:?}");
        }
        let pixels_and_labels = [share * 3 * 32 * 32 * size_of::<f32>() as u64, share * size_of::<i32>() as u64];
        assert_eq!(bytes(in_steps("copy to device")), pixels_and_labels.repeat(steps));
        let late = bytes(named("late copy to host"));
        assert_eq!(late.len(), steps);
        assert!(late.iter().all(|size| *size <= 64), "{late:?}");
    }
}

#[cfg(feature = "wgpu")]
on_backend! {
    "wgpu" wgpu burn::backend::Wgpu<f32, i32>:
    of_a_step_only_its_outcome_leaves_the_device => steps_stay_on_the_device;
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
