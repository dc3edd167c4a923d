//! References between settings.

use super::{Config, Request, config, refusals, resolve, write};

/// A command line with a file of this text, in an environment with one variable.
fn of_file<T>(text: &str, line: &[&str], read: impl Fn(&Request) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "mine.toml", text);
    let request = super::request(&[&["--config", file.to_str().unwrap()], line].concat());
    read(&Request { environment: vec![("SCRATCH".into(), "/scratch".into())], ..request })
}

fn value(text: &str, line: &[&str]) -> Config {
    of_file(text, line, |request| resolve(request).unwrap().config)
}

#[test]
fn a_setting_takes_the_value_that_another_one_has_at_the_end() {
    let file = "[run]\nseed = 3\noutput_dir = \"${oc.env:SCRATCH}/${model.width}-${run.seed}\"\n";
    assert_eq!(value(file, &[]).run.output_dir.to_str(), Some("/scratch/64-3"));
    assert_eq!(value(file, &["--seed", "4", "model.width=16"]).run.output_dir.to_str(), Some("/scratch/16-4"));
    assert_eq!(value(file, &["--output-dir", "here"]).run.output_dir.to_str(), Some("here"), "a stronger layer wins");
}

#[test]
fn the_value_is_of_the_type_of_its_key_and_may_refer_further() {
    let file = "[run]\nepochs = \"${schedule.step_epochs}\"\n[schedule]\nstep_epochs = \"${run.seed}\"\n";
    assert_eq!(value(file, &["--seed", "7"]).run.epochs, 7);
    assert_eq!(config(&["run.epochs=${oc.env:KILN_NO_SUCH_VARIABLE,9}"]).run.epochs, 9);
    assert_eq!(
        value("[parallel]\nworld_size = 2\ngpu_ids = \"[0,${run.seed}]\"\n", &["--seed=1"]).parallel.gpu_ids,
        [0, 1]
    );
}

#[test]
fn a_reference_without_a_value_is_refused_with_its_place() {
    for (setting, why) in [
        ("seed = \"${run.epochs}x\"", "seed must be a whole number"),
        ("seed = \"${run.epoch}\"", "there is no key 'run.epoch'; did you mean 'run.epochs'?"),
        ("seed = \"${oc.env:NOWHERE}\"", "the environment has no 'NOWHERE'; set it, or give a default"),
        ("seed = \"${run.seed}\"", "it refers to itself"),
        ("seed = \"${run.epochs\"", "a reference ends with '}'"),
        ("seed = \"${run.epochs}\"\nepochs = \"${run.seed}\"", "it refers to itself"),
    ] {
        let lines = of_file(&format!("[run]\n{setting}\n"), &[], refusals);
        assert!(lines[0].contains(why) && lines[0].contains("mine.toml:"), "{setting}: {lines:?}");
    }
}
