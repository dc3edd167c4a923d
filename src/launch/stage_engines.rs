//! Connects the processes that host the same stage, which exchange the gradients of its replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kiln_engine::parallel::engine::{Engine, Symptom};
use kiln_engine::parallel::gloo::{Gloo, Interface};
use kiln_engine::parallel::{StageEngine, World};
use kiln_membership::rendezvous::Client;

use super::member::EngineStore;

/// An engine for each stage of `world` that several processes host, this one among them; none without stages.
/// `store` gives the store for keys with a prefix, `connect` limits a connection between two processes.
pub(super) fn stage_engines(
    world: &World,
    interface: &Interface,
    store: impl Fn(&str) -> EngineStore,
    connect: Duration,
) -> Result<Vec<Option<StageEngine>>, Symptom> {
    let connected = |stage: usize| {
        let Some(world) = world.of_stage(stage).filter(|world| world.processes() > 1) else { return Ok(None) };
        let store = Box::new(store(&format!("stage {stage}/")));
        let gloo = Gloo::connect(world.rank, world.processes(), interface, store, connect)?;
        Ok(Some((Arc::new(gloo) as Arc<dyn Engine>, world.blocks)))
    };
    let count = if world.stages > 1 { world.stages } else { 0 };
    (0..count).map(connected).collect()
}

/// Ends every wait in `all`, which connects all processes, and in `stages` once the generation of `member`, or its
/// fixed job, is over; returns whether that has happened.
pub(super) fn close_when_over(
    member: &Client,
    all: Arc<dyn Engine>,
    stages: &[Option<StageEngine>],
) -> Arc<AtomicBool> {
    let engines: Vec<_> = stages.iter().flatten().map(|(engine, _)| engine.clone()).chain([all]).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    member.when_over(move || {
        over.store(true, Ordering::Release);
        engines.iter().for_each(|engine| engine.close());
    });
    is_over
}
