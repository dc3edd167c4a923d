//! Profile of a run: its phases as a table, and as a trace for `chrome://tracing` or ui.perfetto.dev.
//!
//! Phases are the crate's `tracing` spans, Burn's for reads from a GPU, and CubeCL's for kernels; they are recorded
//! only if there is a [`Profiler`]. Nested phases are listed below the outer one. A phase that copies between the host
//! and a device has the field `bytes`; one with the field `operation` is called by that.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use super::warnings::warnings;

/// Most spans in the trace, about 100 bytes each in its file; the table counts all.
pub(crate) const TRACED: usize = 500_000;

/// What the table calls a phase.
type Name = Cow<'static, str>;

#[derive(Debug, Clone)]
pub struct Profiler {
    record: Arc<Mutex<Record>>,
    start: Instant,
    /// The same moment by the machine's clock, which traces of several processes share.
    clock: SystemTime,
}

#[derive(Debug, Default)]
struct Record {
    /// Totals by thread and path (names from the outermost phase inwards), in the order of first appearance.
    totals: Vec<((String, Vec<Name>), Total)>,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Total {
    count: usize,
    bytes: u64,
    time: Duration,
}

#[derive(Debug)]
struct Span {
    name: Name,
    bytes: u64,
    thread: String,
    start: Duration,
    length: Duration,
}

impl Profiler {
    /// Installs the profiler for the life of the process, and passes warnings to `print`. `None` if there is already a
    /// global subscriber.
    pub fn start(print: fn(&str)) -> Option<Self> {
        let profiler = Self::default();
        let subscriber = profiler.subscriber().with(warnings(print));
        tracing::subscriber::set_global_default(subscriber).ok().map(|()| profiler)
    }

    /// A subscriber that passes the crate's spans to this profiler.
    pub fn subscriber(&self) -> impl Subscriber + for<'a> LookupSpan<'a> + Send + Sync + use<> {
        let shown = |metadata: &Metadata<'_>| {
            let is_of = |target: &str, name: &str| metadata.target().starts_with(target) && metadata.name() == name;
            let is_foreign = is_of("burn_fusion", "float_into_data") || is_of("cubecl_runtime", LAUNCH);
            metadata.is_span() && (is_foreign || metadata.target().starts_with("kiln"))
        };
        tracing_subscriber::registry().with(Listener(self.clone()).with_filter(filter_fn(shown)))
    }

    /// The phases of each thread with their time, calls and share of `of`, the time of all steps.
    pub fn table(&self, of: Duration) -> String {
        let record = self.record.lock();
        let mut text =
            format!("{:<34} {:>9} {:>8} {:>9} {:>7} {:>8}", "phase", "total", "calls", "each", "steps", "MB");
        let mut threads: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for ((thread, path), total) in &record.totals {
            threads.entry(thread).or_default().push((path, total));
        }
        for (thread, mut phases) in threads {
            // An outer phase is recorded after its inner ones.
            let outermost: Vec<&Name> = phases.iter().map(|(path, _)| &path[0]).collect();
            phases.sort_by_key(|(path, _)| (outermost.iter().position(|name| **name == path[0]), path.len()));
            write!(text, "\n{thread}").expect("writing to a string cannot fail");
            for (path, Total { count, bytes, time }) in phases {
                let name = format!("{}{}", "  ".repeat(path.len()), path[path.len() - 1]);
                let (seconds, share) = (time.as_secs_f64(), time.as_secs_f64() / of.as_secs_f64().max(1e-9));
                let each = 1e3 * seconds / (*count).max(1) as f64;
                let moved = if *bytes > 0 { format!(" {:>8.2}", *bytes as f64 / 1e6) } else { String::new() };
                write!(text, "\n{name:<34} {seconds:>7.2} s {count:>8} {each:>6.2} ms {:>5.1} %{moved}", 100.0 * share)
                    .expect("writing to a string cannot fail");
            }
        }
        text
    }

    /// The recorded spans in the Trace Event Format (Google, 2016), times in microseconds; `otherData.start` is
    /// when they begin, since 1970.
    pub fn trace(&self) -> Vec<u8> {
        let record = self.record.lock();
        let mut threads: Vec<&str> = record.spans.iter().map(|span| span.thread.as_str()).collect();
        threads.sort_unstable();
        threads.dedup();
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let names = threads.iter().enumerate().map(
            |(tid, name)| json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": { "name": name } }),
        );
        let spans = record.spans.iter().map(|span| {
            let tid = threads.binary_search(&span.thread.as_str()).unwrap_or_default();
            let (start, length) = (micros(span.start), micros(span.length));
            let mut event = json!({ "name": span.name, "ph": "X", "pid": 1, "tid": tid, "ts": start, "dur": length });
            if span.bytes > 0 {
                event["args"] = json!({ "bytes": span.bytes });
            }
            event
        });
        let origin = json!({ "start": micros(self.clock.duration_since(UNIX_EPOCH).unwrap_or_default()) });
        json!({ "otherData": origin, "traceEvents": names.chain(spans).collect::<Vec<_>>() }).to_string().into_bytes()
    }
}

/// A profiler without a subscriber.
impl Default for Profiler {
    fn default() -> Self {
        Self { record: Arc::default(), start: Instant::now(), clock: SystemTime::now() }
    }
}

struct Listener(Profiler);

/// CubeCL's name for the launch of a kernel.
const LAUNCH: &str = "launch_inner";

/// What a phase's fields say.
#[derive(Debug, Default)]
struct Fields {
    /// Bytes that it copies between host and device.
    bytes: u64,
    /// Its name, if that is not the span's.
    name: Option<Name>,
}

impl Visit for Fields {
    fn record_u64(&mut self, _bytes: &Field, value: u64) {
        self.bytes = value;
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "operation" {
            self.name = Some(value.to_string().into());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "kernel.name" {
            let is_copy = format!("{value:?}").contains("contiguous");
            self.name = Some(if is_copy { "layout copy" } else { "kernel" }.into());
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(Instant::now());
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let Some(began) = span.extensions_mut().remove::<Instant>() else { return };
        let length = began.elapsed();
        let bytes = span.extensions().get::<Fields>().map_or(0, |fields| fields.bytes);
        let path: Vec<Name> = span.scope().from_root().map(|span| name(&span)).collect();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_string();
        let mut record = self.0.record.lock();
        if record.spans.len() < TRACED {
            let start = began.duration_since(self.0.start);
            record.spans.push(Span { name: name(&span), bytes, thread: thread.clone(), start, length });
        }
        let key = (thread, path);
        let at = record.totals.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            record.totals.push((key, Total::default()));
            record.totals.len() - 1
        });
        let total = &mut record.totals[at].1;
        *total = Total { count: total.count + 1, bytes: total.bytes + bytes, time: total.time + length };
    }
}

fn name<'a, R: LookupSpan<'a>>(span: &SpanRef<'a, R>) -> Name {
    span.extensions().get::<Fields>().and_then(|fields| fields.name.clone()).unwrap_or(span.name().into())
}
