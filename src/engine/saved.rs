//! Converts the state of a run to the files of a checkpoint and back, for `train` and for models of other programs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kiln_system::file::TEXT;
use kiln_system::{Error, Result, printable, shown};
use parking_lot::Mutex;

use crate::checkpoint::{Best, Content, Keep, Loaded, Lock, Progress, RunState, Snapshot, Store, Which, run_dir};
use crate::exact::Exact;
use crate::parallel::{
    Counts, DataParallel, EpochReport, HostBackend, Observer, Plan, Position, StartingPoint, StepReport, Task,
    TrainingState, Write,
};
use crate::state::{Metadata, StateDict, from_safetensors};

/// The description of a run in its checkpoints, except the position.
pub struct Identity {
    pub seed: u64,
    pub world_size: usize,
    pub fingerprint: String,
    pub elapsed_seconds: f64,
}

/// The files of `state`; `metadata` goes into the files of weights.
pub fn snapshot(state: TrainingState, identity: Identity, metadata: &[(String, String)]) -> Snapshot {
    let TrainingState { position, weights, optimizer, average, score, .. } = state;
    let run = run_state(&position, identity).to_json();
    let place = [("step", position.global_step), ("epoch", position.epoch)];
    let mut metadata = metadata.to_vec();
    metadata.extend(place.map(|(key, value)| (key.to_string(), value.to_string())));
    let average = average.map(|weights| ("average", weights, metadata.clone()));
    let tensors = [("model", weights, metadata), ("optimizer", optimizer, Metadata::new())].into_iter().chain(average);
    let file = |(name, tensors, metadata)| (format!("{name}.safetensors"), Content::Tensors(tensors, metadata));
    let files = tensors.map(file).chain([("state.json".to_string(), run.into())]).collect();
    Snapshot { step: position.global_step, epoch: position.epoch, accuracy: score, files }
}

fn run_state(position: &Position, identity: Identity) -> RunState {
    let counted = position.running.counted;
    let correct = counted[0] as u64;
    RunState {
        global_step: position.global_step,
        epoch: position.epoch,
        step_in_epoch: position.step_in_epoch,
        samples_seen: position.samples_seen,
        best: position.best.map(|(metric, step)| Best { metric, step }),
        elapsed_seconds: identity.elapsed_seconds,
        seed: identity.seed,
        world_size: identity.world_size,
        data_fingerprint: identity.fingerprint,
        loss_scale: position.loss_scale,
        plateau: position.plateau,
        progress: Progress {
            loss_sum: position.running.loss,
            correct,
            samples: position.running.samples as u64,
            counted: (counted != [correct as f64, 0.0]).then(|| counted.map(Exact)),
        },
    }
}

pub fn run_state_of(checkpoint: &Loaded) -> Result<RunState> {
    RunState::from_json(document(checkpoint, "state.json")?, &checkpoint.path.join("state.json"))
}

/// The state in a checkpoint; with `averaging`, including the averaged model.
pub fn state(checkpoint: &Loaded, position: Position, averaging: bool) -> Result<TrainingState> {
    let averaging = averaging && checkpoint.files.contains_key("average.safetensors");
    Ok(TrainingState {
        position,
        weights: tensors(checkpoint, "model.safetensors")?,
        optimizer: tensors(checkpoint, "optimizer.safetensors")?,
        average: averaging.then(|| tensors(checkpoint, "average.safetensors")).transpose()?,
        is_best: false,
        score: None,
    })
}

/// With `--force-config` the batch size may change. The permutation of an epoch does not depend on it, so the run
/// continues at the last step boundary up to which all samples were seen, and counts steps of the new size.
pub fn position(state: &RunState, plan: &Plan) -> Position {
    let step_in_epoch = plan.sampler.steps_within(state.progress.samples as usize);
    Position {
        global_step: state.epoch * plan.sampler.steps_per_epoch() + step_in_epoch,
        epoch: state.epoch,
        step_in_epoch,
        samples_seen: state.samples_seen,
        running: Counts {
            loss: state.progress.loss_sum,
            samples: state.progress.samples as usize,
            counted: match state.progress.counted {
                Some(counted) => counted.map(|Exact(count)| count),
                None => [state.progress.correct as f64, 0.0],
            },
        },
        best: state.best.map(|best| (best.metric, best.step)),
        loss_scale: state.loss_scale,
        plateau: state.plateau,
    }
}

/// The bytes of a document of a checkpoint, with a limit, since parsing takes a multiple of them in memory.
pub fn document<'a>(checkpoint: &'a Loaded, name: &str) -> Result<&'a [u8]> {
    let bytes = file(checkpoint, name)?;
    if bytes.len() as u64 > TEXT {
        let path = checkpoint.path.join(name);
        let rule = "which Kiln never writes; use another checkpoint";
        return Err(Error::Checkpoint(format!("'{}' has {} bytes, {rule}", shown(&path), bytes.len())));
    }
    Ok(bytes)
}

pub fn file<'a>(checkpoint: &'a Loaded, name: &str) -> Result<&'a [u8]> {
    checkpoint.files.get(name).map(Vec::as_slice).ok_or_else(|| {
        Error::Checkpoint(format!(
            "the checkpoint '{}' has no '{name}'; use another checkpoint",
            shown(&checkpoint.path)
        ))
    })
}

pub fn tensors(checkpoint: &Loaded, name: &str) -> Result<StateDict> {
    Ok(tensors_and_metadata(checkpoint, name)?.0)
}

pub fn tensors_and_metadata(checkpoint: &Loaded, name: &str) -> Result<(StateDict, Metadata)> {
    from_safetensors(file(checkpoint, name)?, &checkpoint.path.join(name))
}

/// The checkpoints of any task, in their own directory: an observer that writes them, and the state to continue from.
#[derive(Debug)]
pub struct Checkpoints {
    directory: PathBuf,
    store: Arc<Mutex<Store>>,
    plan: Plan,
    // Held against other processes.
    _lock: Lock,
}

impl Checkpoints {
    /// The checkpoints of the run of `plan` in `directory`, which is created.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process writes there, [`Error::Io`] naming the path.
    pub fn open(directory: &Path, plan: &Plan) -> Result<Self> {
        let lock = run_dir::claim(directory, true, &mut |_| ())?;
        let store = Arc::new(Mutex::new(Store::open(directory)?));
        Ok(Self { directory: directory.into(), store, plan: plan.clone(), _lock: lock })
    }

    /// The last saved state; `None` in a directory without one.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if no checkpoint is intact, or if they belong to another world or seed.
    pub fn latest(&self) -> Result<Option<TrainingState>> {
        if !run_dir::is_begun(&self.directory) {
            return Ok(None);
        }
        let checkpoint = self.store.lock().load(Which::Latest, &mut |_| ())?;
        let run = run_state_of(&checkpoint)?;
        let (seed, world) = (self.plan.seed, self.plan.world.size);
        if (run.seed, run.world_size) != (seed, world) {
            return Err(Error::Checkpoint(format!(
                "'{}' was written by {} replicas with seed {}, but this run has {world} and {seed}",
                shown(&checkpoint.path),
                run.world_size,
                run.seed
            )));
        }
        state(&checkpoint, position(&run, &self.plan), self.plan.optim.ema_decay > 0.0).map(Some)
    }
}

fn say(text: &str) {
    // The reader of the output may have gone.
    drop(writeln!(std::io::stdout(), "{}", printable(text)));
}

pub type Resumed<B, T> = (<T as Task<B>>::Model, DataParallel<B, T>);

/// A strategy that trains `model` on `task` by `plan`, and the model it starts from. It continues from the last
/// checkpoint in `directory`, if there is one, and saves there.
///
/// # Errors
/// Those of [`Checkpoints`], and if the checkpoint is of another model.
pub fn resumed<B: HostBackend, T: Task<B>>(
    directory: &Path,
    task: T,
    model: T::Model,
    plan: Plan,
) -> Result<Resumed<B, T>> {
    /// How long replicas wait for each other at most.
    const LIMIT: Duration = Duration::from_secs(60);
    let checkpoints = Checkpoints::open(directory, &plan)?;
    let (model, start) = match checkpoints.latest()? {
        Some(state) => {
            say(&format!("resumed     step {} in '{}'", state.position.global_step, shown(directory)));
            StartingPoint::restore::<B, _>(model, &state, "the last checkpoint")?
        }
        None => (model, StartingPoint::default()),
    };
    Ok((model, DataParallel::new(Arc::new(task), Arc::new(plan), start, LIMIT, Box::new(checkpoints))))
}

impl Observer for Checkpoints {
    fn step(&mut self, _report: &StepReport) -> Result<()> {
        Ok(())
    }

    fn epoch(&mut self, report: &EpochReport) -> Result<()> {
        let EpochReport { epoch, step, training, validation, .. } = report;
        let measured =
            if validation.samples > 0 { format!("  val {:.4}", validation.mean_loss()) } else { String::new() };
        let of = self.plan.epochs;
        say(&format!("epoch {}/{of}  step {step}  train {:.4}{measured}", epoch + 1, training.mean_loss()));
        Ok(())
    }

    fn checkpoint(&mut self, state: TrainingState) -> Result<Write> {
        let (seed, world_size) = (self.plan.seed, self.plan.world.size);
        let (store, is_best) = (self.store.clone(), state.is_best);
        let identity = Identity { seed, world_size, fingerprint: String::new(), elapsed_seconds: 0.0 };
        Ok(Box::new(move || {
            let mut store = store.lock();
            store.save(&snapshot(state, identity, &[]), is_best, Keep { last: 2, best: 1 }).map(drop)
        }))
    }
}
