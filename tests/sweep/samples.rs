//! Points drawn at random.

use super::{names, parsed, refused};

/// The values of the first key in so many draws.
fn drawn(setting: &str, samples: usize, seed: u64) -> Vec<f64> {
    let (samples, seed) = (format!("--samples={samples}"), format!("--sample-seed={seed}"));
    let points = parsed(&[&samples, &seed, setting]).unwrap().1;
    points.iter().map(|point| point.settings[0].1.parse().unwrap()).collect()
}

#[test]
fn more_draws_of_a_seed_begin_with_the_same_ones() {
    let line = ["optim.learning_rate=tag(log,interval(0.01,1))", "optim=sgd,adamw", "run.epochs=3"];
    let few = names(&[&["--samples", "4"], &line[..]].concat());
    let many = names(&[&["--samples", "9"], &line[..]].concat());
    assert_eq!((few.len(), &few[..]), (4, &many[..4]));
    assert_ne!(many, names(&[&["--samples=9", "--sample-seed=1"], &line[..]].concat()));
    assert!(many[0].starts_with("learning_rate=0.") && many[0].contains(",optim="), "{}", many[0]);
    // A key has its own draws, whatever stands beside it.
    assert_eq!(drawn(line[0], 4, 0), few.iter().map(|name| rate(name)).collect::<Vec<_>>());
}

fn rate(name: &str) -> f64 {
    name.split(['=', ',']).nth(1).unwrap().parse().unwrap()
}

#[test]
fn values_fill_their_interval_evenly_on_its_scale() {
    for (setting, [low, middle, high]) in [
        ("optim.learning_rate=tag(log,interval(0.01,1))", [0.01, 0.1, 1.0]),
        ("optim.momentum=interval(0.5,0.9)", [0.5, 0.7, 0.9]),
        ("data.train_size=int(interval(1000,1999))", [1000.0, 1500.0, 1999.0]),
        ("data.train_size=int(tag(log,interval(100,9999)))", [100.0, 1000.0, 9999.0]),
    ] {
        let values = drawn(setting, 400, 7);
        assert!(values.iter().all(|value| (low..=high).contains(value)), "{setting}");
        let below = values.iter().filter(|value| **value < middle).count();
        // Four standard deviations of the binomial distribution.
        assert!((160..=240).contains(&below), "{setting}: {below} of 400 below {middle}");
    }
    assert!(drawn("data.train_size=int(interval(1.5,4.5))", 3, 0).iter().all(|value| [2.0, 3.0, 4.0].contains(value)));
}

#[test]
fn every_value_of_a_list_is_drawn() {
    let mut names = names(&["--samples=3", "optim=choice(sgd,adamw,lars)"]);
    names.sort();
    assert_eq!(names, ["optim=adamw", "optim=lars", "optim=sgd"]);
}

#[test]
fn an_interval_that_cannot_be_drawn_from_is_refused() {
    refused(
        &["optim.momentum=interval(0.5,0.9)"],
        "'optim.momentum' has an interval; give the number of points with --samples N",
    );
    for wrong in [
        "interval(1,0.5)",
        "interval(1)",
        "interval(a,b)",
        "interval(0,inf)",
        "tag(log,interval(0,1))",
        "int(0.5)",
        "tag(x,y)",
    ] {
        refused(&["--samples=2", &format!("optim.momentum={wrong}")], "must be interval(LOW,HIGH) with LOW below HIGH");
    }
    refused(&["--samples=9", "run.seed=1,2"], "--samples is '9', but 2 different points were found");
    refused(&["--sample-seed=1", "run.seed=1,2"], "required arguments were not provided: --samples <N>");
    for (option, rule) in [
        ("--samples=0", "'0' for '--samples <N>': must be a whole number, 1 to 10000"),
        ("--halving=1", "'1' for '--halving <N>': must be a whole number, 2 to 100"),
        ("--jobs=0", "'0' for '--jobs <N>': must be a whole number, 1 to 1024"),
        ("--gpu-ids=x", "'x' for '--gpu-ids <N,N>': must be a whole number, 0 to 1023"),
    ] {
        refused(&[option, "run.seed=1,2"], rule);
    }
}
