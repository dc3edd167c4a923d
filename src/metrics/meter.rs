//! Rates, curves, durations and memory. The caller passes the time, so that tests need not wait.

use std::collections::VecDeque;

/// Seconds over which the remaining time of a run is estimated.
pub const ETA_WINDOW: f64 = 60.0;

/// Seconds from the start of a task to its first line in a log.
const FIRST_LINE: f64 = 2.0;

/// Seconds between two lines in a log.
const LINE_INTERVAL: f64 = 10.0;

/// A rate over a sliding window of time.
#[derive(Debug, Clone)]
pub struct Throughput {
    window: f64,
    marks: VecDeque<(f64, u64)>,
}

impl Throughput {
    pub fn new(window: f64) -> Self {
        Self { window, marks: VecDeque::new() }
    }

    /// Records that `total` items are finished at the time `now`, in seconds of a monotonic clock.
    ///
    /// Only differences count, so a resumed run may start with any total.
    pub fn mark(&mut self, now: f64, total: u64) {
        self.marks.push_back((now, total));
        // Two marks always stay, so that a step longer than the window has a rate.
        while self.marks.len() > 2 && self.marks.front().is_some_and(|(time, _)| now - time > self.window) {
            self.marks.pop_front();
        }
    }

    /// Items per second; `None` if no time has passed.
    pub fn rate(&self) -> Option<f64> {
        let ((start, before), (end, after)) = (self.marks.front()?, self.marks.back()?);
        (end > start).then(|| after.saturating_sub(*before) as f64 / (end - start))
    }

    /// Seconds until `remaining` more items are finished at this rate; `None` without a rate.
    pub fn eta(&self, remaining: usize) -> Option<f64> {
        self.rate().filter(|rate| *rate > 0.0).map(|rate| remaining as f64 / rate)
    }
}

/// The lines in a log about work under way: the first after two seconds, so that quick work has none.
#[derive(Debug)]
pub struct LogLines {
    pace: Throughput,
    /// Seconds from the start of the task to the next line.
    next: f64,
}

impl Default for LogLines {
    fn default() -> Self {
        Self { pace: Throughput::new(ETA_WINDOW), next: FIRST_LINE }
    }
}

impl LogLines {
    /// The line to print `seconds` after the start, if it is time: `512 of 2048, eta 12s`.
    pub fn after(&mut self, seconds: f64, done: u64, total: u64) -> Option<String> {
        self.pace.mark(seconds, done);
        if seconds < self.next || done >= total {
            return None;
        }
        self.next = seconds + LINE_INTERVAL;
        let eta = self.pace.eta((total - done) as usize).map(|eta| format!(", eta {}", format_duration(eta)));
        Some(format!("{done} of {total}{}", eta.unwrap_or_default()))
    }
}

/// A curve with a bounded number of points: each is the mean of the same number of consecutive values.
#[derive(Debug, Clone)]
pub struct Curve {
    most: usize,
    per_point: usize,
    points: Vec<(f64, f64)>,
    /// The values of the next point.
    next: Vec<f64>,
}

impl Curve {
    pub fn new(most: usize) -> Self {
        Self { most, per_point: 1, points: Vec::new(), next: Vec::new() }
    }

    /// Adds a value at `x`, which increases from call to call. Values that are not finite are ignored.
    pub fn add(&mut self, x: f64, value: f64) {
        if value.is_finite() {
            self.next.push(value);
        }
        if self.next.len() == self.per_point {
            self.points.push((x, self.next.drain(..).sum::<f64>() / self.per_point as f64));
        }
        if self.points.len() > self.most {
            let pair = |pair: &[(f64, f64)]| {
                (pair[pair.len() - 1].0, pair.iter().map(|it| it.1).sum::<f64>() / pair.len() as f64)
            };
            self.points = self.points.chunks(2).map(pair).collect();
            self.per_point *= 2;
        }
    }

    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// A duration with its two largest units: `42s`, `3m07s`, `1h02m`, `2d03h`; `?` if it is not finite.
pub fn format_duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "?".into();
    }
    let whole = seconds.max(0.0).round() as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match whole {
        ..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m{:02}s", whole % 60),
        3_600..86_400 => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

/// Bytes as `1.23 GiB`.
pub fn gibibytes(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / (1u64 << 30) as f64)
}

/// Resident memory of this process now, in bytes; `None` without `/proc`.
pub fn resident_memory() -> Option<u64> {
    in_status("VmRSS:")
}

fn in_status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Peak resident memory of this process, in bytes; `None` if the system does not report it.
pub fn peak_memory() -> Option<u64> {
    // What `getrusage` says on Linux includes the program that has started this one.
    if cfg!(target_os = "linux") {
        return in_status("VmHWM:");
    }
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for writes of one `rusage`.
    let status = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if status != 0 {
        return None;
    }
    // SAFETY: it was zeroed, which is a valid `rusage`, and the call has filled it in.
    let peak = u64::try_from(unsafe { usage.assume_init() }.ru_maxrss).ok()?;
    // macOS counts in bytes, others in KiB.
    Some(if cfg!(target_os = "macos") { peak } else { peak * 1024 })
}
