//! Where the time of a run goes: from the first phase that is listened to, to the table at its end.

use std::path::Path;
use std::time::Duration;

use tracing::subscriber::set_global_default;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use super::recorder::Course;
use super::terminal::{say, warn};
use crate::checkpoint::write_atomic;
use crate::error::Result;
use crate::metrics::{Profiler, warnings};

/// Prints warnings, and times phases if they are asked for.
pub(super) fn listen(profile: bool) -> Option<Profiler> {
    if !profile {
        // A test that runs in this process may listen already.
        drop(set_global_default(registry().with(warnings(warn))));
        return None;
    }
    let profiler = Profiler::start(warn);
    if profiler.is_none() {
        warn("warning: --profile shows nothing: something else in this process listens to its phases already");
    }
    profiler
}

/// Writes the trace and prints the table, which was asked for even where progress is not shown.
pub(super) fn report(profiler: &Profiler, trace: &Path, course: &Course) -> Result<()> {
    write_atomic(trace, &profiler.trace())?;
    say(&format!("\n{}", profiler.table(Duration::from_secs_f64(course.training_seconds))));
    say(&format!("trace       {}", trace.display()));
    Ok(())
}
