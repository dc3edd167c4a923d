//! Configurations: TOML files, `KEY=VALUE`, the environment, whole command lines.

use std::fs;

use kiln::cli::Cli;
use kiln::config::grid::Grid;
use kiln::config::{Request, Resolved, resolve};
use tempfile::tempdir;

use super::damage::Random;
use super::files;
use super::target::{Bound, accepted, fuzz};

const BOUND: Bound = Bound { factor: 4096, mib: 16, inputs: 500 };

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Whether the request is good; what is resolved can be written, and read again.
fn is_good(request: &Request) -> bool {
    let resolved = resolve(request);
    if let Ok(Resolved { config, .. }) = &resolved {
        assert_eq!(*config, toml::from_str(&config.to_toml()).unwrap());
    }
    accepted(&resolved)
}

#[test]
fn toml_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("it.toml");
    let mut corpus: Vec<_> = ["default", "experiment/imagenet", "optim/lars"]
        .map(|name| fs::read(files::file(format!("config/{name}.toml"))).unwrap())
        .into();
    corpus.extend(texts(&[
        "[run]\nseed = 3\nepochs = 2\n[data]\nsource = \"synthetic\"\n",
        "run.seed = '${run.epochs}'\nparallel.gpu_ids = [0, 1]\noptim.learning_rate = 1e-3\n",
        "a = [[[[{ b = [1, { c.d = 1979-05-27T07:32:00Z }] }]]]]\n",
    ]));
    fuzz(BOUND, |random| {
        let bytes = random.damaged(&corpus);
        fs::write(&path, &bytes).unwrap();
        let request = Request { files: vec![path.clone()], ..Request::default() };
        (bytes.len(), is_good(&request))
    });
}

/// Some of the words, damaged or not.
fn words(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<String> {
    let count = random.below(6);
    let word = |_| {
        let bytes = if random.chance(50) { random.damaged(corpus) } else { random.pick(corpus).clone() };
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (0..count).map(word).collect()
}

fn overrides() -> Vec<Vec<u8>> {
    texts(&[
        "run.epochs=3",
        "optim.learning_rate=0.05",
        "parallel.gpu_ids=[0,1]",
        "+data.dir=/tmp",
        "optim=sgd",
        "parallel.elastic=1:4",
        "run.max_time=00:10:00:00",
        "data.dir=${oc.env:HOME,there}",
        "run.seed=${run.epochs}",
        "run.epochs=${run.seed}",
        "parallel.world_size=4",
        "checkpoint.every=2epochs",
        "model.split_points=layer1,layer3",
        "batch_size=64",
        "parallel.dist_url=tcp://127.0.0.1:29500",
        "trainer.max_epochs=3",
    ])
}

#[test]
fn arguments() {
    let corpus = overrides();
    fuzz(BOUND, |random| {
        let arguments = words(random, &corpus);
        let of = |name: &str, value: String| (name.to_string(), value);
        let mut environment: Vec<_> =
            arguments.iter().filter_map(|it| it.split_once('=')).map(|(key, value)| of(key, value.into())).collect();
        environment.retain(|_| random.chance(10));
        environment.iter_mut().for_each(|(name, _)| *name = format!("TRAIN__{}", name.replace('.', "__")));
        let launcher = texts(&["0", "1", "4", "10.0.0.1", "n[1-3,7]", "2(x3),1"]);
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODELIST", "TF_CONFIG"]
        {
            if random.chance(10) {
                environment.push(of(name, words(random, &launcher).concat()));
            }
        }
        let length = arguments.iter().map(String::len).sum();
        (length, is_good(&Request { arguments, environment, ..Request::default() }))
    });
}

#[test]
fn command_line() {
    let mut corpus = overrides();
    corpus.extend(texts(&[
        "sweep",
        "plan",
        "find",
        "lr",
        "launch",
        "--",
        "--epochs",
        "3",
        "--gpu-ids",
        "0,1",
        "--lr=0.1",
        "--nproc",
        "4",
        "--world-size",
        "--elastic",
        "--samples",
        "--halving",
        "run.seed=1,2",
        "--machines",
        "report",
        "config",
        "optim.learning_rate=tag(log,interval(0.01,1))",
        "run.seed=int(interval(1,9))",
        "--time=10:00",
        "verify",
    ]));
    fuzz(BOUND, |random| {
        let words = words(random, &corpus);
        let length = words.iter().map(String::len).sum();
        if let Ok(grid) = Grid::read(&words) {
            let _ = grid.drawn(9, 1).or_else(|_| grid.points());
        }
        let accepted = match Cli::try_parse_from(["train".to_string()].into_iter().chain(words)) {
            Ok(mut command) => command.request().is_none_or(|request| is_good(request)),
            Err(error) => accepted::<()>(&Err(error)),
        };
        (length, accepted)
    });
}
