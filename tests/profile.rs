//! `--profile`: a table that names the phases of a step, and a trace that a browser can show.

#[cfg(feature = "wgpu")]
use std::collections::BTreeMap;
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
    assert!(!kiln_ops::is_timed());
    tracing::subscriber::with_default(Profiler::default().subscriber(), || assert!(kiln_ops::is_timed()));
    assert!(!kiln_ops::is_timed());
}

#[test]
fn without_the_flag_there_is_no_profile() {
    let place = Workplace::new();
    let output = place.train("run", &["--max-steps=1", "--epochs=1"]);
    assert!(!output.contains("all-reduce"));
    assert!(!place.path("run/trace.json").exists());
}

/// Of a step of replicas on one device only losses, counts and norm come to the host, and nobody waits for them, except
/// in f16, where the update depends on them. Bytes of pixels, areas, labels and constants go there.
#[cfg(feature = "wgpu")]
fn steps_stay_on_the_device(world: usize, precision: &str, reads: usize) {
    let (place, steps, share) = (Workplace::new(), 3, 4);
    let arguments = [
        format!("--world-size={world}"),
        format!("--precision={precision}"),
        format!("--max-steps={steps}"),
        "--backend=wgpu".into(),
        "--gpu-ids=0".into(),
        "--epochs=1".into(),
        "--profile".into(),
        "--checkpoint-every=1steps".into(),
        "data.train_size=60".into(),
    ];
    let output = place.train("run", &arguments.each_ref().map(String::as_str));
    let listed = output.lines().find(|line| line.starts_with("copies ")).unwrap_or_else(|| panic!("{output}"));
    let waits: f64 = listed.rsplit(", ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
    // Another replica's read may come behind the first one's step, but none before it.
    assert!(waits <= (reads * world) as f64 && (world > 1 || waits == reads as f64), "{listed}");
    let trace: Value = serde_json::from_slice(&std::fs::read(place.path("run/trace.json")).unwrap()).unwrap();
    let threads = Thread::of(&trace, "replica");
    assert_eq!(threads.len(), world);
    for thread in &threads {
        let steps_of = thread.steps();
        // Behind a step, before the checkpoint: weights and, from the first update on, velocities.
        let compared = thread.named("checksum");
        for span in &compared {
            assert!((1..=2).contains(&thread.within(span.start..span.end, "copy to host").count()));
        }
        assert_eq!(steps_of.len(), steps);
        let in_steps = |name: &str| -> Vec<u64> {
            let spans = steps_of.iter().flat_map(|step| thread.within(step.clone(), name));
            spans.filter(|span| !compared.iter().any(|it| it.around(span))).map(|span| span.bytes).collect()
        };
        assert_eq!(in_steps("copy to host").len(), reads * steps);
        // Burn's own, at least one for each read, counted by Kiln or not.
        assert_eq!(in_steps("float_into_data").is_empty(), reads == 0);
        let number = size_of::<f32>() as u64;
        let up = [share * 3 * 32 * 32, share * 24, 6 * number, share * number];
        assert_eq!(in_steps("copy to device"), up.repeat(steps));
        let late = thread.named("late copy to host").into_iter().map(|span| span.bytes);
        let down: Vec<u64> = in_steps("copy to host").into_iter().chain(late).collect();
        assert_eq!(down.len(), steps);
        assert!(down.iter().all(|bytes| *bytes <= 64), "{down:?}");
        for validation in thread.named("validation") {
            assert_eq!(thread.within(validation.start..validation.end, "copy to host").count(), 1);
        }
        // Weights, counts of batches and, behind the first update, velocities.
        for state in thread.named("state to the host") {
            assert!((2..=3).contains(&thread.within(state.start..state.end, "copy to host").count()));
        }
    }
    // The first step tries kernels out. A checkpoint, which waits for the device, is at the end of each.
    let ends: Vec<f64> = threads[0].named("state to the host").iter().map(|span| span.end).collect();
    let mut copies: BTreeMap<String, usize> = BTreeMap::new();
    for thread in Thread::of(&trace, "") {
        for copy in thread.within(ends[0]..ends[1], "layout copy") {
            *copies.entry(thread.operation_of(copy)).or_default() += 1;
        }
    }
    // Between two layers nothing is copied: what a convolution reads and writes is what batch-norm does. In 16 bits
    // Burn's cast changes the layout of the pixels, so that the first convolution copies them.
    let of_pixels = if precision == "f32" { None } else { Some(world) };
    assert_eq!(copies.get("convolution").copied(), of_pixels, "{copies:?}");
    for operation in ["sum of gradients", "relu gradient"] {
        assert!(!copies.contains_key(operation), "{copies:?}");
    }
    assert!(!copies.keys().any(|operation| operation.starts_with("batch-norm")), "{copies:?}");
    if world == 1 {
        // Kernels, their gradients behind the last operation, and operands of gradients, which Burn computes on a
        // device without matrix units as convolutions with other axes exchanged.
        let expected = [("input gradient", 13), ("none", 20), ("rows of weights", 21), ("weight gradient", 42)];
        assert_eq!(copies, expected.map(|(name, count)| (name.to_string(), count)).into());
    }
    let lines = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let counted: Vec<&Value> = lines.iter().filter(|line| line["bytes_to_device"].is_u64()).collect();
    assert_eq!(counted.len(), steps, "{lines:?}");
    let most = (reads * world) as u64;
    assert!(counted.iter().all(|line| line["blocking_reads"].as_u64().unwrap() <= most), "{counted:?}");
}

/// The spans of a thread.
#[cfg(feature = "wgpu")]
struct Thread(Vec<Span>);

#[cfg(feature = "wgpu")]
#[derive(Clone)]
struct Span {
    name: String,
    bytes: u64,
    start: f64,
    end: f64,
}

#[cfg(feature = "wgpu")]
impl Thread {
    /// Those of the threads with a name of this begin.
    fn of(trace: &Value, begin: &str) -> Vec<Self> {
        let events = trace["traceEvents"].as_array().unwrap();
        let is_meant = |event: &&Value| event["args"]["name"].as_str().is_some_and(|name| name.starts_with(begin));
        let spans = |thread: &Value| {
            let own = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == thread["tid"]);
            own.map(Span::of).collect()
        };
        events.iter().filter(is_meant).map(|thread| Self(spans(thread))).collect()
    }

    /// From a step's begin to what follows it.
    fn steps(&self) -> Vec<std::ops::Range<f64>> {
        let begins = self.named("wait for data");
        let mut bounds = [&begins[..], &self.named("state to the host"), &self.named("validation")].concat();
        bounds.sort_by(|a, b| a.start.total_cmp(&b.start));
        let end = |begin: f64| bounds.iter().map(|span| span.start).find(|start| *start > begin);
        begins.iter().map(|begin| begin.start..end(begin.start).unwrap()).collect()
    }

    fn named(&self, name: &str) -> Vec<Span> {
        self.0.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// The innermost of Kiln's operations that a span is in.
    fn operation_of(&self, span: &Span) -> String {
        let innermost =
            self.0.iter().filter(|it| it.around(span)).min_by(|a, b| (a.end - a.start).total_cmp(&(b.end - b.start)));
        innermost.map_or_else(|| "none".into(), |span| span.name.clone())
    }

    /// Those that begin in a range of time.
    fn within(&self, time: std::ops::Range<f64>, name: &str) -> impl Iterator<Item = &Span> {
        self.0.iter().filter(move |span| span.name == name && time.contains(&span.start))
    }
}

#[cfg(feature = "wgpu")]
impl Span {
    fn of(event: &Value) -> Self {
        let [start, length] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
        let name = event["name"].as_str().unwrap().to_string();
        Self { name, bytes: event["args"]["bytes"].as_u64().unwrap_or_default(), start, end: start + length }
    }

    fn around(&self, other: &Self) -> bool {
        self.start < other.start && other.end <= self.end
    }
}

#[cfg(feature = "wgpu")]
on_backend! {
    "wgpu" wgpu burn::backend::Wgpu<f32, i32>:
    of_a_step_of_one_replica_only_its_outcome_leaves_the_device => || steps_stay_on_the_device(1, "f32", 0);
    of_a_step_of_two_replicas_only_its_outcome_leaves_the_device => || steps_stay_on_the_device(2, "f32", 0);
    of_a_step_of_four_replicas_only_its_outcome_leaves_the_device => || steps_stay_on_the_device(4, "f32", 0);
    in_f16_a_step_waits_once_for_the_device => || steps_stay_on_the_device(2, "f16", 1);
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
