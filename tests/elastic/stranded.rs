//! Processes that lost the rendezvous for good: what they hold is saved, whatever ends them.

use super::*;

/// How the process that holds the rendezvous goes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Killed,
    Stopped,
}

/// A run of three whose rendezvous goes with its first process, and the other two.
fn stranded(job: &Job, way: Way, directories: [&str; 2]) -> (Child, [Child; 2]) {
    let mut holder = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let others = directories.map(|directory| job.start_elsewhere(&[&format!("--output-dir={directory}")]));
    job.has_members(3);
    job.steps(3);
    match way {
        Way::Killed => kill(&mut holder),
        Way::Stopped => signal(&holder, "STOP"),
    }
    (holder, others)
}

/// The step and the path that a process named when it ended.
#[track_caller]
fn saved(text: &str) -> (usize, String) {
    let words = "the state after step ";
    let line = text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("nothing is saved: {text}"));
    let (_, rest) = line.split_once(words).unwrap();
    let (step, path) = rest.split_once(" is saved; continue with --resume=").unwrap();
    (step.parse().unwrap(), path.to_string())
}

/// Goes on from the state that was saved last, which must be the one of a calm run.
fn goes_on(job: &Job, texts: &[String]) {
    let (step, path) = texts.iter().map(|text| saved(text)).max().unwrap();
    assert!(step >= job.run().steps().len(), "a step that is in the log was not saved");
    let more = format!("--max-steps={}", step + 6);
    let line: Vec<&str> = job.line.iter().map(String::as_str).chain([more.as_str()]).collect();
    job.place.train("resumed", &[&line[..], &[&format!("--resume={path}")]].concat());
    job.place.train("calm", &line);
    assert_eq!(job.place.run("resumed").latest_step(), step + 6);
    assert_eq!(job.place.run("resumed").tensors(), job.place.run("calm").tensors());
}

fn output(child: Child, code: i32) -> String {
    let output = child.wait_with_output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    out + &err
}

fn a_signal_saves(way: Way, directories: [&str; 2]) {
    let job = Job::new("1:4", &["--epochs=5000", "--checkpoint-every=never"]);
    let (mut holder, others) = stranded(&job, way, directories);
    others.iter().for_each(|child| signal(child, "TERM"));
    let texts = others.map(|child| output(child, 143));
    goes_on(&job, &texts);
    for directory in directories {
        let checkpoints = job.place.path(directory).join("checkpoints");
        let names = std::fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "half a checkpoint is left");
        assert!(checkpoints.join("latest").exists());
    }
    kill(&mut holder);
}

#[test]
fn processes_whose_rendezvous_was_killed_save_the_run_at_a_signal() {
    a_signal_saves(Way::Killed, ["run", "run"]);
}

#[test]
fn processes_whose_rendezvous_was_stopped_save_the_run_at_a_signal() {
    a_signal_saves(Way::Stopped, ["own", "another"]);
}

#[test]
fn processes_that_give_up_save_the_run_first() {
    let job = Job::new("1:4", &["--epochs=5000", "--checkpoint-every=never", "--elastic-timeout=1"]);
    let (_, others) = stranded(&job, Way::Killed, ["run", "run"]);
    let texts = others.map(|child| output(child, 75));
    goes_on(&job, &texts);
}

#[test]
fn who_was_asked_to_leave_goes_on_with_a_rendezvous_that_answers() {
    let job = Job::new("1:4", &ENDLESS);
    let mut rendezvous = job.rendezvous();
    let first = job.start_elsewhere(&[]);
    until("the run begins", || !job.run().steps().is_empty());
    let second = job.start_elsewhere(&[]);
    job.has_members(2);
    // By then the second one takes part.
    job.steps(3);
    signal(&second, "TERM");
    let text = output(second, 143);
    assert!(text.contains("the other processes continue the run"), "{text}");
    job.steps(3);
    job.stops([first]);
    kill(&mut rendezvous);
}
