//! The process that writes is stopped while it saves, for so long that it is lost: another one takes over, and removes
//! what it had begun to write.

use super::*;

/// A checkpoint that is just written.
fn unfinished(job: &Job) -> Option<PathBuf> {
    let entries = std::fs::read_dir(job.run().path().join("checkpoints")).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("step-") && name.ends_with(".tmp") && name.matches('.').count() == 2
    };
    paths.into_iter().find(is_one)
}

#[test]
fn a_writer_that_wakes_after_another_one_took_over_takes_part_again() {
    let job = Job::new("1:4", &["--epochs=5000", "--width=32", "--checkpoint-every=2steps"]);
    let mut rendezvous = job.rendezvous();
    let writer = job.start();
    until("the run begins", || !job.run().steps().is_empty());
    let other = job.join();
    until("the writer is stopped while it saves", || {
        if unfinished(&job).is_none() {
            return false;
        }
        signal(&writer, "STOP");
        // It may have ended in between.
        let is_within = unfinished(&job).is_some();
        if !is_within {
            signal(&writer, "CONT");
        }
        is_within
    });
    job.has_members(1);
    let reached = job.run().steps().len();
    until("the other one saves", || job.run().latest_step() > reached);
    signal(&writer, "CONT");
    job.has_members(2);
    job.steps(3);
    signal(&writer, "TERM");
    let lines = ends(writer, Some(143));
    assert!(lines.iter().any(|line| line.contains("was not saved here")), "{lines:?}");
    signal(&other, "TERM");
    ends(other, Some(143));
    kill(&mut rendezvous);
    let reached = format!("--max-steps={}", job.run().latest_step());
    let line: Vec<&str> = job.line.iter().map(String::as_str).collect();
    job.place.train("calm", &[&line[..], &[&reached]].concat());
    assert_eq!(job.run().tensors(), job.place.run("calm").tensors());
    assert_eq!(job.run().steps(), job.place.run("calm").steps());
}
