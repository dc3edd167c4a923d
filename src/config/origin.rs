//! Applies what a command line means where it comes from (`--as ORIGIN`), and says so.
//!
//! The defaults of the origin's script are a layer; see `layers.rs`. What depends on several settings is computed here
//! from the merged configuration: the batch of a replica, the number of replicas, the learning rate.

use kiln_engine::optim::{LrScaling, OptimizerKind};
use kiln_membership::environment::Identity;

use super::alias;
use super::alias::origins::{Batch, ORIGINS, Origin, Rate};
use super::layers::Layers;
use super::merged::Merged;
use super::request::{Request, pair};
use super::schema::enumerate;
use super::{Config, flag};

const BATCH: &str = "parallel.batch_size";
const DEVICES: &str = "parallel.gpu_ids";
const RATE: &str = "optim.learning_rate";
const SCALING: &str = "schedule.lr_scaling";
const WORLD: &str = "parallel.world_size";

/// Images for which a rate is given by [`Rate::Of256`].
const IMAGES: f64 = 256.0;

/// The origin that `request` names.
///
/// # Errors
/// The complaint about a name that no origin has.
pub(super) fn of(request: &Request) -> Result<Option<&'static Origin>, String> {
    let find = |name: &String| {
        let names: Vec<_> = ORIGINS.iter().map(|origin| origin.name).collect();
        let rule = format!("must be {}", enumerate(&names, "or"));
        alias::origins::find(name).ok_or(format!("--as {rule}, got '{name}'; without it, options mean Kiln's own"))
    };
    request.origin.as_ref().map(find).transpose()
}

/// Turns the batch, the world size and the learning rate from the meaning at `origin` into Kiln's; returns a line for
/// each. What a resumed run has saved is Kiln's already.
pub(super) fn settle(
    origin: &Origin,
    layers: &Layers,
    identity: Option<&Identity>,
    config: &mut Config,
) -> Vec<String> {
    let is_new = |key: &str| !layers.is_saved(key);
    let mut lines = Vec::new();
    let local = identity.and_then(|identity| identity.local_processes);
    let devices = layers.typed(DEVICES).and_then(|(ids, _)| ids.as_array()).map(Vec::len).or(local).unwrap_or(1);
    let per_machine = (devices / config.parallel.stages.max(1)).max(1);
    if origin.counts_machines && identity.is_none() && is_new(WORLD) {
        let machines = config.parallel.world_size;
        config.parallel.world_size = machines.saturating_mul(per_machine);
        if machines > 1 && layers.chosen("parallel.nnodes").is_none() {
            config.parallel.nnodes = machines;
        }
        if per_machine > 1 {
            let world = config.parallel.world_size;
            lines.push(format!(
                "the world size {machines} counts machines, of {per_machine} replicas each: --world-size {world}"
            ));
        }
    }
    let of_data = layers.chosen(BATCH).is_some_and(|(_, place)| alias::word_of_data_module(place).is_some());
    let (sharers, whose) = match origin.batch {
        _ if of_data || !is_new(BATCH) => (1, ""),
        Batch::OfReplica => (1, ""),
        Batch::OfMachine => (per_machine, "replicas of a machine"),
        Batch::OfAll => (config.parallel.world_size.max(1), "replicas"),
    };
    if sharers > 1 {
        let whole = config.parallel.batch_size;
        config.parallel.batch_size = whole / sharers;
        let each = config.parallel.batch_size;
        lines.push(format!("the {sharers} {whose} share a batch of {whole} images: --batch-size {each}"));
    }
    let of_average = layers.chosen("optim.ema_decay").map_or("", |(_, place)| place);
    if origin.scales_average && of_average.starts_with("--model-ema") {
        let optim = &mut config.optim;
        let [replicas, batch, every] =
            [config.parallel.world_size, config.parallel.batch_size, optim.ema_every].map(|count| count as f64);
        let share = (1.0 - optim.ema_decay) * replicas * batch * every / config.run.epochs.max(1) as f64;
        optim.ema_decay = 1.0 - share.min(1.0);
        lines.push(format!(
            "the decay of the averaged weights follows batch and epochs: --ema-decay {}",
            optim.ema_decay
        ));
    }
    if origin.decouples_decay && config.optim.weight_decay > 0.0 && is_new("optim.weight_decay") {
        // With momentum m a step adds up to 1 / (1 - m) times what one gradient does.
        let optim = &mut config.optim;
        optim.weight_decay *= (1.0 - optim.momentum) / optim.learning_rate;
        lines.push(format!("the decoupled weight decay becomes --weight-decay {}", optim.weight_decay));
    }
    if is_new(RATE) && layers.typed(SCALING).is_none_or(|(_, place)| place == "--lr-base-scale") {
        lines.extend(settle_rate(origin, layers, config));
    }
    lines
}

fn settle_rate(origin: &Origin, layers: &Layers, config: &mut Config) -> Option<String> {
    let rate = config.optim.learning_rate;
    let is_default = layers.typed(RATE).is_none();
    let options = match origin.rate {
        Rate::OfReplica => return None,
        Rate::Final => &[],
        Rate::Of256(options) => options,
    };
    let place = layers.chosen(RATE).map_or("", |(_, place)| place);
    let is_of_256 = options.contains(&place) || (is_default && matches!(origin.rate, Rate::Of256(_)));
    if !is_of_256 {
        config.schedule.lr_scaling = LrScaling::None;
        return Some(format!("the learning rate {rate} is for the global batch: --lr-scaling none"));
    }
    // timm's rule for optimizers with "ada" or "lamb" in their names.
    let is_adaptive =
        !matches!(config.optim.optimizer, OptimizerKind::Sgd | OptimizerKind::RmsProp | OptimizerKind::Lars);
    if layers.typed(SCALING).is_none() {
        config.schedule.lr_scaling = if is_adaptive { LrScaling::Sqrt } else { LrScaling::Linear };
    }
    let ratio = config.parallel.batch_size as f64 / IMAGES;
    let ratio = if config.schedule.lr_scaling == LrScaling::Sqrt { ratio.sqrt() } else { ratio };
    config.optim.learning_rate = rate * ratio;
    config.schedule.scale_accumulation = true;
    let ours = flag::setting(RATE, &config.optim.learning_rate.to_string());
    Some(format!("the learning rate {rate} is for {IMAGES} images: {ours} for a replica's batch"))
}

/// A line for a rate that Kiln scales in another way than the origin whose words `request` has, if its words are those
/// of one alone.
pub(super) fn hint(request: &Request, layers: &Layers, config: &Config) -> Option<String> {
    let arguments = request.arguments.iter().filter_map(|argument| Some(alias::find(pair(argument)?.0)?.0));
    let words: Vec<_> = request.flags.iter().map(|flag| flag.key.as_str()).chain(arguments).collect();
    let known = ORIGINS.iter().filter_map(|origin| {
        let word = words.iter().find(|word| origin.signature.split(' ').any(|own| own == **word))?;
        Some((origin, *word))
    });
    let (Origin { name, rate, .. }, word) = known.clone().next().filter(|_| known.count() == 1)?;
    let growth = config.schedule.growth(config.parallel.world_size, config.run.accumulation_steps);
    let is_chosen = layers.typed(RATE).is_none() || layers.typed(SCALING).is_some();
    if *rate == Rate::OfReplica || growth == 1.0 || is_chosen {
        return None;
    }
    Some(format!(
        "the learning rate is multiplied by {growth} (--lr-scaling linear), which {name} does not do; the line has its \
         word {word}: add --as {name} for all of its meaning, or --lr-scaling none"
    ))
}

/// The complaint about an alias for the batch size that some data modules define per replica and others globally: with
/// several replicas it is ambiguous.
pub(super) fn ambiguous_batch(merged: &Merged) -> Option<String> {
    let parallel = &merged.config.parallel;
    let (place, world, batch) = (merged.place(BATCH), parallel.world_size, parallel.batch_size);
    let word = alias::word_of_data_module(place)?;
    let (each, part) =
        (flag::setting(BATCH, &batch.to_string()), flag::setting(BATCH, &(batch / world.max(1)).to_string()));
    (world > 1).then(|| {
        format!(
            "{word} is ambiguous with a world size of '{world}' ({place}); use {each} for a batch per replica, or \
             {part} for a global batch"
        )
    })
}
