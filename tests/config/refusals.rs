//! What is refused, and in which words.

use kiln::config::schema;
use kiln::config::{Request, resolve};
use kiln_system::Error;
use proptest::prelude::*;

use super::{complaint, complaints, config, refusals, request, write};

#[test]
fn every_complaint_comes_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[optim]\nlearning_rte = 0.1\n\n[parallel]\nworld_size = \"many\"\nbatch_size = 0\n";
    let file = write(dir.path(), "bad.toml", text);
    let file = file.to_str().unwrap();
    let mut bad = request(&["--config", file, "--epochs", "abc", "optim=sdg", "optim.momentum=1", "nonsense"]);
    bad.environment.push(("TRAIN__MODEL__STEM".into(), "vgg".into()));
    let lines = refusals(&bad);
    for expected in [
        format!("unknown key 'optim.learning_rte' ({file}:2); did you mean 'optim.learning_rate'?"),
        format!("got 'many' (parallel.world_size in {file}:5)"),
        format!("got '0' (parallel.batch_size in {file}:6); for example --batch-size 32"),
        "epochs must be a whole number, at least 1".into(),
        "no 'sdg' in the group 'optim'".into(),
        "momentum must be at least 0 and below 1, got '1' (argument 'optim.momentum=1')".into(),
        "unknown argument 'nonsense'".into(),
        "stem must be one of cifar or imagenet, got 'vgg' (environment TRAIN__MODEL__STEM)".into(),
    ] {
        assert!(lines.iter().any(|line| line.contains(&expected)), "'{expected}' is missing in {lines:#?}");
    }
    assert_eq!(lines.len(), 8, "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains('\n') && !line.ends_with('.')), "{lines:#?}");
}

#[test]
fn a_number_in_quotes_is_shown_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "quoted.toml", "[run]\nepochs = \"3\"\n\n[optim]\nnesterov = 'true'\n");
    let lines = complaints(&["--config", file.to_str().unwrap()]);
    assert!(lines[0].contains("epochs must be a whole number") && lines[0].contains("got '\"3\"'"), "{lines:?}");
    assert!(lines[0].ends_with("did you mean '3', as in --epochs 3?"), "{lines:?}");
    assert!(lines[1].contains("must be true or false, got ''true''"), "{lines:?}");
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "broken.toml", "[run]\nseed = = 1\nepochs = 2\nthreads = 1 2\n");
    let lines = complaints(&["--config", file.to_str().unwrap()]);
    assert!(lines[0].starts_with(&format!("{}:2 is not TOML", file.display())), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(":4 is not TOML")), "{lines:?}");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("latin.toml"), b"# caf\xe9\n").unwrap();
    for (name, reason) in [("nowhere.toml", "there is no such file"), ("latin.toml", "not UTF-8"), ("", "directory")] {
        let path = dir.path().join(name);
        let line = complaint(&["--config", path.to_str().unwrap()]);
        assert!(line.contains(path.to_str().unwrap()) && line.contains(reason), "{line}");
    }
}

#[test]
fn a_key_that_does_not_exist_is_met_with_the_one_that_was_meant() {
    for (argument, meant) in [
        ("batch-size=abc", "did you mean 'parallel.batch_size=abc' or '--batch-size abc'?"),
        ("batch_size=8", "did you mean 'parallel.batch_size=8' or '--batch-size 8'?"),
        ("learning_rat=0.1", "did you mean 'optim.learning_rate=0.1' or '--learning-rate 0.1'?"),
        ("epoch=3", "did you mean 'run.epochs=3' or '--epochs 3'?"),
        ("cutout=8", "did you mean 'data.cutout=8'?"),
        ("trainers=ddp", "did you mean 'trainer=ddp'?"),
        ("trainer=dpd", "did you mean 'trainer=ddp'?"),
        ("trainer=horovod", "available: cpu, ddp, ddp_sim, dp, gpu and single; --config-dir DIR adds"),
        ("optim=adam", "available: adamw, lars and sgd; the setting alone is optim.optimizer=adam"),
        ("trainer.epochs=3", "did you mean 'run.epochs'?"),
        ("optim.max_epochs=3", "did you mean 'run.epochs'?"),
        ("optim.momentm=0.9", "did you mean 'optim.momentum'?"),
        ("model.stem=imagnet", "did you mean 'imagenet', as in --stem imagenet?"),
        ("qwerty.uiop=1", "'train config' prints every key"),
        ("evalute", "did you mean 'train evaluate'?"),
        ("fnd", "did you mean 'train find'?"),
        ("eval", "did you mean 'train evaluate'? a command comes before options"),
        ("test", "did you mean 'train evaluate'?"),
        ("fit", "did you mean 'train --epochs N'?"),
        ("resume", "did you mean 'train --resume'?"),
        ("help", "did you mean 'train --help'?"),
        ("model=resnet18", "did you mean '--model resnet18'?"),
    ] {
        let line = complaint(&[argument]);
        assert!(line.contains(meant), "{argument}: {line}");
    }
}

#[test]
fn a_value_that_a_key_cannot_hold_is_refused_with_the_rule_and_a_remedy() {
    for (line, rule) in [
        (["--world-size", "0"], "world size must be at least 1 and at most 1024, got '0' (--world-size)"),
        (["--world-size", "-1"], "world size must be a whole number, at least 1 and at most 1024, got '-1'"),
        (["--batch-size", "abc"], "batch size must be a whole number, at least 1"),
        (["--batch-size", "0"], "batch size must be at least 1"),
        (["--epochs", "0"], "epochs must be at least 1"),
        (["--epochs", "1.5"], "epochs must be a whole number"),
        (["--epochs", "1e3"], "at most 1000000, got '1e3' (--epochs); did you mean '1000', as in --epochs 1000?"),
        (["--epochs", "3.0"], "got '3.0' (--epochs); did you mean '3', as in --epochs 3?"),
        (
            ["--seed", "18446744073709551615"],
            "seed must be a whole number, at most 9223372036854775807, got '18446744073709551615' (--seed)",
        ),
        (["--epochs", "99999999999999999999999"], "epochs must be a whole number"),
        (["--accumulation-steps", "0"], "accumulation steps must be at least 1"),
        (
            ["--lr-warmup-decay", "0"],
            "--lr-warmup-decay must be a fraction above 0, got '0'; 0.01 is torchvision's default",
        ),
        (["--seed", "-3"], "seed must be a whole number, at least 0, got '-3'"),
        (["--width", "0"], "width must be at least 1"),
        (["--learning-rate", "0"], "learning rate must be above 0 and finite, got '0'"),
        (["--learning-rate", "nan"], "learning rate must be above 0 and finite, got 'NaN'"),
        (["--lr", "inf"], "learning rate must be above 0 and finite, got 'inf' (--learning-rate)"),
        (["--momentum", "1"], "momentum must be at least 0 and below 1"),
        (["--weight-decay", "-1e-4"], "weight decay must be at least 0"),
        (["--label-smoothing", "1"], "label smoothing must be at least 0 and below 1"),
        (["--ema-decay", "1.0"], "ema decay must be at least 0 and below 1"),
        (["--clip-grad-norm", "-1"], "clip grad norm must be at least 0"),
        (["--warmup-epochs", "-1"], "warmup epochs must be at least 0"),
        (["--timeout", "0"], "timeout must be above 0"),
        (["--timeout", "1e300"], "timeout must be above 0 and at most 1000000"),
        (["--keep-last", "0"], "keep last must be at least 1"),
        (["--checkpoint-every", "0steps"], "such as 1epochs or 500steps, or never, got '0steps'"),
        (["--max-time", "soon"], "must be a time, as in 90s, 45m, 2h30m or 1d"),
        (["--progress", "fancy"], "progress must be one of auto, tui, bar, plain, json or none, got 'fancy'"),
        (["--gpu-ids", "0,x"], "gpu ids must be a list of whole numbers, as in 0,1, got '0,x'"),
        (["--gpu-ids", ""], "gpu ids must name a device, got '[]'"),
        (["--gpu-ids", "0,0"], "gpu ids must be different, got '0' twice (--gpu-ids)"),
        (["--gpu-ids", "0,1"], "use --world-size 2 or fewer --gpu-ids"),
        (["--rank", "1"], "rank must be below the number of processes '1', got '1' (--rank)"),
        (["optim.beta1=1", "optim.beta2=0"], "beta1 must be at least 0 and below 1"),
        (["optim.beta2=-0.1", "run.seed=1"], "beta2 must be at least 0 and below 1"),
        (["optim.eps=0", "run.seed=1"], "eps must be above 0"),
        (["schedule.gamma=101", "run.seed=1"], "gamma must be above 0 and at most 100"),
        (["schedule.gamma=1.5", "--schedule=step"], "gamma must be at most 1 for the step schedule"),
        (["schedule.gamma=1.5", "--schedule=plateau"], "gamma must be at most 1 for the plateau schedule"),
        (["data.augment=2", "run.seed=1"], "augment must be true or false, got '2'"),
        (["data.auto_augment=ra", "run.seed=1"], "auto augment must be ta_wide, imagenet, cifar10, augmix, augmix-s1"),
        (["data.erasing_count=0", "run.seed=1"], "erasing count must be at least 1 and at most 100, got '0'"),
        (["data.erasing_fill=const", "run.seed=1"], "erasing fill must be one of mean, rand or pixel, got 'const'"),
        (["data.interpolation=area", "run.seed=1"], "interpolation must be one of bilinear, bicubic or nearest"),
        (["model.num_classes=1", "run.seed=1"], "num classes must be 0 (one per class of the data) or at least 2"),
    ] {
        let complaint = complaint(&line);
        assert!(complaint.contains(rule), "{line:?}: {complaint}");
        assert!(complaint.contains("; "), "no remedy: {complaint}");
    }
}

#[test]
fn values_that_cannot_run_together_are_refused() {
    for (line, rule) in [
        ("--strategy single --world-size 2", "use --strategy ddp or --world-size 1"),
        ("--groups 32", "groups needs the bottlenecks of a deeper network, got depth '18' (--groups); use --depth 50,"),
        (
            "--depth 34 --width-per-group 128",
            "width per group needs the bottlenecks of a deeper network, got depth '34'",
        ),
        ("--depth 50 --width 8 --groups 32 --width-per-group 4", "must be a multiple of 64, got '32'"),
        ("--depth 20 --seed 0", "depth must be one of 18, 34, 50, 101, 152, got '20' (--depth)"),
        ("--nesterov --momentum 0", "nesterov needs a momentum above 0"),
        ("--nesterov --optimizer adamw", "nesterov works with optimizer 'sgd' only"),
        ("--download --data synthetic", "download works with data cifar10 or cifar100 only, got 'synthetic'"),
        ("--world-size 2 --gpu-ids 0,1,2", "got '3' devices for a world size of '2' (--gpu-ids)"),
        (
            "--rand-augment-ops 2 data.auto_augment=ta_wide",
            "rand augment ops cannot be combined with auto augment 'ta_wide' (argument 'data.auto_augment=ta_wide')",
        ),
        ("run.log_units=true --world-size 2 --elastic 1:2", "remove run.log_units, or train in one process"),
    ] {
        let line: Vec<_> = line.split(' ').collect();
        let complaint = complaint(&line);
        assert!(complaint.contains(rule), "{line:?}: {complaint}");
    }
    config(&["--world-size", "4", "--gpu-ids", "0"]);
    config(&["--download", "--nesterov", "--strategy", "dp", "--world-size", "2"]);
}

#[test]
fn a_value_that_is_refused_is_not_judged_together_with_others() {
    let line = complaint(&["--world-size", "many", "--gpu-ids", "0,1"]);
    assert!(line.starts_with("world size must be a whole number"), "{line}");
}

proptest! {
    #[test]
    fn no_argument_whatever_makes_the_resolver_panic(argument in ".*", key in 0_usize..60) {
        let keys: Vec<_> = schema::keys().collect();
        let arguments = vec![argument.clone(), format!("{}={argument}", keys[key % keys.len()])];
        if let Err(Error::Usage(lines)) = resolve(&Request { arguments, ..Request::default() }) {
            prop_assert!(lines.iter().all(|line| !line.contains('\n')));
        }
    }
}
