//! What all sessions of the service share, and how the judge's actions reach them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::Terms;
use super::judge::{Action, Event, Judge};
use super::store::Store;
use super::wire::{FromService, Layout, Person, Refusal};

/// What the job has come to; each session passes the latest on to its member.
#[derive(Debug, Clone)]
pub(super) enum News {
    /// These ranks are missing yet.
    Waiting(String),
    /// Everybody is there.
    Layout(Layout),
    /// The job is over.
    Verdict(String),
}

impl From<News> for FromService {
    fn from(news: News) -> Self {
        match news {
            News::Waiting(missing) => Self::Waiting(missing),
            News::Layout(layout) => Self::Layout(layout),
            News::Verdict(verdict) => Self::Verdict(verdict),
        }
    }
}

pub(super) struct State {
    pub terms: Terms,
    pub store: Arc<Store>,
    pub news: watch::Sender<News>,
    /// Turns true when the service is about to end.
    pub closing: watch::Sender<bool>,
    judge: Mutex<Judge>,
}

impl State {
    pub fn new(terms: Terms) -> Self {
        let judge = Mutex::new(Judge::new(&terms, Instant::now()));
        let (news, closing) = (watch::Sender::new(News::Waiting(String::new())), watch::Sender::new(false));
        Self { terms, store: Arc::default(), news, closing, judge }
    }

    /// Tells the judge, and performs what follows. Only a newcomer is ever refused.
    pub fn tell(&self, event: Event) -> Result<(), Refusal> {
        // News are published under the lock, so that they come in the order in which they were decided.
        let mut judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        judge.handle(event, Instant::now()).into_iter().try_for_each(|action| self.perform(action))
    }

    fn perform(&self, action: Action) -> Result<(), Refusal> {
        let news = match action {
            Action::Refuse(refusal) => return Err(refusal),
            Action::Welcome => return Ok(()),
            Action::Await(missing) => News::Waiting(missing),
            Action::Begin(members) => {
                let bare = |it| Person { configuration: Default::default(), ..Person::from(it) };
                News::Layout(Layout { members: members.iter().map(bare).collect() })
            }
            Action::Decide(verdict) => {
                // Every process prints it as its error.
                tracing::info!("{verdict}");
                News::Verdict(verdict)
            }
        };
        self.news.send_replace(news);
        Ok(())
    }

    /// Whether sessions still have something to do while the service ends: a job that runs may yet finish.
    pub fn at_work(&self) -> bool {
        matches!(*self.news.borrow(), News::Layout(_))
    }
}
