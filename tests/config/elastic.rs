//! `--elastic` as it is read, and what it goes with.

use kiln_engine::parallel::StrategyKind;
use kiln_membership::Elastic;

use super::*;

fn elastic(line: &[&str]) -> Elastic {
    resolved(&[&["--world-size", "8"], line].concat()).config.parallel.elastic
}

#[test]
fn the_limits_are_read_in_every_spelling() {
    assert_eq!(elastic(&[]), Elastic::Off);
    let between = |min, max| Elastic::Between { min, max };
    for (line, limits) in [
        (&["--elastic"][..], between(1, None)),
        (&["--elastic", "1:4", "--dist-url", "tcp://n:1"], between(1, Some(4))),
        (&["--elastic=2:", "--dist-url", "tcp://n:1"], between(2, None)),
        (&["--elastic", "3", "--dist-url", "tcp://n:1"], between(3, Some(3))),
        (&["--elastic", "experiment=quickstart"], between(1, None)),
        (&["parallel.elastic=1:2"], between(1, Some(2))),
    ] {
        assert_eq!(elastic(line), limits, "{line:?}");
        assert_eq!(limits.to_string().parse(), Ok(limits), "what is printed is read back");
    }
    for text in ["", ":", "0:2", "4:2", "1:2:3", "many"] {
        assert!(text.parse::<Elastic>().is_err(), "{text}");
    }
}

#[test]
fn elastic_runs_use_ddp_and_begin_with_one_process() {
    let resolved = resolved(&["--elastic", "--strategy=ddp", "--world-size=4", "--dist-url=tcp://n:1"]);
    assert_eq!(resolved.config.parallel.strategy(), StrategyKind::Ddp);
    assert_eq!(resolved.config.parallel.processes(), 1);
    let places = "--dist-url=tcp://a:1,b:2,c:3";
    let several = self::resolved(&["--elastic", "--world-size=4", places]).config.parallel;
    assert_eq!(several.rendezvous(), Some(vec![("a", 1), ("b", 2), ("c", 3)]));
    assert!(resolved.notes.iter().all(|note| !note.contains("no effect")), "{:?}", resolved.notes);
}

#[test]
fn elastic_runs_that_cannot_be_are_refused() {
    for (line, rule) in [
        (&["--elastic=1:9", "--dist-url=tcp://n:1"][..], "every process must have a replica"),
        (&["--elastic=2:4"], "need a rendezvous address"),
        (&["--elastic=1:4", "--dist-url=tcp://n:1", "--rank=1"], "assigns ranks itself"),
        (&["--elastic=1:4", "--dist-url=tcp://n:1", "--nnodes=2"], "assigns ranks itself"),
        (&["--elastic", "--no-sync-bn"], "synchronised batch-norm"),
        (&["--elastic", "--requeue"], "requeue cannot be combined with"),
        (&["--elastic", "--shard-optimizer"], "remove --shard-optimizer or --elastic"),
        (&["--elastic", "--lost-after=2"], "at least three heartbeats"),
        (&["--elastic", "--heartbeat=0"], "heartbeat must be"),
        (&["--elastic=sometimes"], "such as 1:4"),
        (&["--elastic", "--dist-url=tcp://a:1,b:1"], "one, three or five addresses, got '2'"),
        (&["--elastic", "--dist-url=tcp://a:1,b:1,c:1,d:1,e:1,f:1"], "one, three or five addresses, got '6'"),
        (&["--elastic", "--dist-url=tcp://a:1,b:1,a:1"], "dist url names 'a:1' twice"),
        (&["--elastic", "--dist-url=tcp://a:1,b,c:1"], "dist url must be tcp://HOST:PORT"),
        (
            &["--gpu-ids=0", "--nnodes=2", "--dist-url=tcp://a:1,b:1,c:1"],
            "only an elastic run can have several addresses",
        ),
    ] {
        let line = [&["--world-size=8"], line].concat();
        let lines = complaints(&line);
        assert!(lines.iter().any(|complaint| complaint.contains(rule)), "{line:?}: {lines:?}");
    }
    for part in [&["--output-dir=x"][..], &["--elastic"], &["--elastic", "--output-dir=x", "--check-every=0"]] {
        let lines = complaints(&[&["--world-size=8", "--roll-back"], part].concat());
        assert!(lines.iter().any(|line| line.contains("--output-dir and --check-every")), "{part:?}: {lines:?}");
    }
    assert!(resolve(&request(&["--world-size=8", "--roll-back", "--elastic", "--output-dir=x"])).is_ok());
    assert!(resolve(&request(&["--elastic", "--no-sync-bn"])).is_ok(), "one replica is always synchronised");
}

#[test]
fn a_launcher_gives_an_elastic_process_its_device_and_the_address_but_no_rank() {
    let mut request = request(&["--elastic=1:4", "--world-size=4"]);
    let variables =
        [("RANK", "2"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "2"), ("MASTER_ADDR", "n"), ("MASTER_PORT", "7")];
    request.environment = variables.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let parallel = resolve(&request).unwrap().config.parallel;
    assert_eq!((parallel.rank, parallel.nnodes, &parallel.gpu_ids[..]), (0, 0, &[2][..]));
    assert_eq!(parallel.dist_url, "tcp://n:7");
}
