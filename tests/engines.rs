//! Engines between processes that are threads of the test.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use kiln_engine::parallel::engine::{Engine, Judge, Symptom};
use kiln_engine::parallel::gloo::{Gloo, Interface, KeyStore};
use kiln_engine::parallel::{Processes, World};

const LIMIT: Duration = Duration::from_secs(20);

/// Gives connected processes engines for tensors, too.
pub type Extend = fn(Vec<Processes>, &World) -> Vec<Processes>;

thread_local! {
    /// What the processes of this test have beside Gloo.
    pub static EXTENDED: Cell<Option<Extend>> = Cell::new(crate::stand_in::asked_for());
}

#[derive(Default)]
struct Values {
    by_key: Mutex<HashMap<String, Vec<u8>>>,
    came: Condvar,
}

/// A store in memory, which all processes see.
#[derive(Default, Clone)]
pub struct Store(Arc<Values>);

impl KeyStore for Store {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.0.by_key.lock().unwrap().insert(key.into(), value.into());
        self.0.came.notify_all();
        Ok(())
    }

    fn get(&self, keys: &[String]) -> Result<Vec<Vec<u8>>, String> {
        let absent = |values: &mut HashMap<String, Vec<u8>>| !keys.iter().all(|key| values.contains_key(key));
        let values = self.0.by_key.lock().unwrap();
        let (values, wait) = self.0.came.wait_timeout_while(values, LIMIT, absent).unwrap();
        if wait.timed_out() {
            return Err(format!("not all of {keys:?}"));
        }
        Ok(keys.iter().map(|key| values[key].clone()).collect())
    }
}

/// Finds nobody guilty, and passes the symptom on.
struct Lenient;

impl Judge for Lenient {
    fn doing(&self, _activity: &str) {}

    fn verdict(&self, symptom: &Symptom) -> String {
        symptom.to_string()
    }
}

/// The processes of a world, connected over Gloo, in the order of their ranks.
pub fn connected(world: &World, ordered: bool) -> Vec<Processes> {
    connected_by(world, ordered, |engine| Arc::new(engine))
}

/// As [`connected`], each by what `wrap` makes of its engine.
pub fn connected_by(world: &World, ordered: bool, wrap: impl Fn(Gloo) -> Arc<dyn Engine>) -> Vec<Processes> {
    let (store, size) = (Store::default(), world.processes());
    let interface = Interface::At("127.0.0.1".into());
    let connect = |rank: usize| Gloo::connect(rank, size, &interface, Box::new(store.clone()), LIMIT).unwrap();
    let engines: Vec<Gloo> = std::thread::scope(|scope| {
        let connect = &connect;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || connect(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let blocks = world.blocks.clone();
    let processes = |engine| Processes::new(wrap(engine), Arc::new(Lenient), blocks.clone(), ordered);
    let processes: Vec<Processes> = engines.into_iter().map(processes).collect();
    match EXTENDED.get() {
        Some(extend) => extend(processes, world),
        None => processes,
    }
}
