//! The page of a run that may be running: one for all viewers, made again when somebody asks and files have changed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_system::Result;

use super::run::Run;
use super::{evaluation, page};

/// The shortest and the longest time between two pages.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// Within these bounds one part in so many of the time goes into pages: those of long runs cost more, and the first one
/// of a run reads all of its log.
const PARTS: u32 = 20;

#[derive(Debug)]
pub struct Followed {
    run: Run,
    has_buttons: bool,
    page: Arc<String>,
    /// What the files were like when the page was made, and when they were last looked at.
    shown: u64,
    seen: u64,
    /// When they may be looked at again.
    next: Instant,
}

impl Followed {
    /// # Errors
    /// [`kiln_system::Error::Data`] if `directory` holds no file of a run or is not a directory.
    pub fn new(directory: &Path, has_buttons: bool) -> Result<Self> {
        let mut run = Run::of(directory)?;
        run.is_followed = true;
        Ok(Self { run, has_buttons, page: Arc::default(), shown: 0, seen: 0, next: Instant::now() })
    }

    /// A number that is another one when the files are: of their names, lengths and times.
    pub fn state(&mut self) -> u64 {
        if Instant::now() >= self.next {
            let mut hasher = DefaultHasher::new();
            for directory in [self.run.directory.clone(), self.run.directory.join(evaluation::DIRECTORY)] {
                for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                    let about = entry.metadata().ok().map(|it| (it.len(), it.modified().ok()));
                    (entry.file_name(), about).hash(&mut hasher);
                }
            }
            (self.seen, self.next) = (hasher.finish(), Instant::now() + PAUSE[0]);
        }
        self.seen
    }

    /// The page with what the files held when they were last looked at.
    pub fn page(&mut self) -> Arc<String> {
        if self.state() != self.shown {
            let begin = Instant::now();
            self.run.refresh();
            self.page = Arc::new(page::live(&self.run, self.has_buttons));
            self.shown = self.seen;
            self.next = Instant::now() + (PARTS * begin.elapsed()).clamp(PAUSE[0], PAUSE[1]);
        }
        self.page.clone()
    }

    /// Looks at the files again, however short the time.
    pub fn hurry(&mut self) {
        self.next = Instant::now();
    }
}
