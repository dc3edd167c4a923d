//! Prints warnings of rooms without access to the terminal, such as the rendezvous.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// A layer that passes every warning of this crate to `print`.
pub(crate) fn warnings<S: Subscriber + for<'a> LookupSpan<'a>>(print: fn(&str)) -> impl Layer<S> {
    let ours = |metadata: &Metadata<'_>| {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("kiln")
    };
    Warnings(print).with_filter(filter_fn(ours))
}

struct Warnings(fn(&str));

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut message = Message(String::from("warning: "));
        event.record(&mut message);
        (self.0)(&message.0);
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("writing to a string cannot fail");
        }
    }
}
