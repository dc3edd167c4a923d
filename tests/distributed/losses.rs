//! What the others do when one process is lost or told to stop.

use super::*;

/// A launch of three processes that trains.
struct Launch {
    launcher: Child,
    place: Workplace,
}

impl Launch {
    fn of(arguments: &[&str]) -> Self {
        let place = Workplace::new();
        let line = ["--world-size=3", "--batch-size=2", "--epochs=500", "--checkpoint-every=3steps", "--timeout=2"];
        let mut command = place.launch(3, "run", &[&line[..], &["--deterministic"], arguments].concat());
        let launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { launcher, place }
    }

    /// The process of a rank, once so many steps are done.
    fn process_at(&self, step: usize, rank: usize) -> u32 {
        until("steps are done", || self.run().steps().len() >= step);
        ranks(self.launcher.id()).into_iter().find(|(own, _)| *own == rank).unwrap().1
    }

    fn run(&self) -> Run {
        self.place.run("run")
    }

    /// The launcher's exit code, and every line of standard error.
    fn end(mut self) -> (Option<i32>, Vec<String>, Workplace) {
        let all: Vec<u32> = ranks(self.launcher.id()).into_iter().map(|(_, process)| process).collect();
        let code = wait(&mut self.launcher);
        let alive = all.iter().filter(|process| is_train(**process)).count();
        assert_eq!(alive, 0, "an orphan");
        let lines = errors(&self.launcher.wait_with_output().unwrap());
        (code, lines, self.place)
    }
}

fn is_train(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "train")
}

/// Rank and process id of the children of a launcher.
fn ranks(launcher: u32) -> Vec<(usize, u32)> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        status.contains(&format!("PPid:\t{launcher}\n")).then_some(process)
    });
    let rank = |process: u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0).filter_map(|it| std::str::from_utf8(it).ok());
        let rank = variables.find_map(|variable| variable.strip_prefix("RANK="))?.parse().ok()?;
        Some((rank, process))
    };
    processes.filter_map(rank).collect()
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

/// The lines of the survivors, without their ranks.
fn verdicts(lines: &[String]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.split_once("] train: ")).map(|(_, verdict)| verdict).collect()
}

#[test]
fn a_killed_process_ends_the_others_with_one_verdict() {
    for (rank, step) in [(1, 2), (2, 9), (0, 5)] {
        let job = Launch::of(&[]);
        signal(job.process_at(step, rank), "KILL");
        let (code, lines, place) = job.end();
        assert_eq!(code, Some(137), "{lines:?}");
        let verdicts = verdicts(&lines);
        assert_eq!(verdicts.len(), 2, "{lines:?}");
        assert_eq!(verdicts[0], verdicts[1], "all survivors hear the same");
        for part in [&format!("rank {rank} (host "), "was lost at ", " of step ", "its connection closed"] {
            assert!(verdicts[0].contains(part), "{part}: {verdicts:?}");
        }
        assert!(lines.last().unwrap().contains(&format!("rank {rank} failed first (killed by SIGKILL)")), "{lines:?}");
        // What was saved before is whole.
        if place.run("run").has_checkpoint() {
            place.train("run", &["--world-size=3", "--batch-size=2", "--resume", "--epochs=500", "--max-steps=20"]);
        }
    }
}

#[test]
fn a_killed_process_with_a_stage_ends_the_others_with_one_verdict() {
    for rank in [0, 1, 2] {
        let job = Launch::of(&["--world-size=1", "--stages=3", "--accumulation-steps=2"]);
        signal(job.process_at(3, rank), "KILL");
        let (code, lines, _) = job.end();
        assert_eq!(code, Some(137), "{lines:?}");
        let verdicts = verdicts(&lines);
        assert!(verdicts.len() == 2 && verdicts[0] == verdicts[1], "{lines:?}");
        assert!(verdicts[0].contains(&format!("rank {rank} (host ")), "{lines:?}");
    }
}

#[test]
fn a_stopped_process_is_lost_after_the_timeout() {
    let job = Launch::of(&[]);
    signal(job.process_at(4, 2), "STOP");
    let (code, lines, _) = job.end();
    assert_eq!(code, Some(75), "{lines:?}");
    let verdicts = verdicts(&lines);
    assert_eq!(verdicts[..1], verdicts[1..2]);
    assert!(verdicts[0].contains("rank 2 (host ") && verdicts[0].contains("no sign of life for"), "{lines:?}");
}

/// Whichever process hears a signal: all end after the same step, and one checkpoint has it.
#[test]
fn a_signal_at_any_rank_saves_once_for_all() {
    for (rank, name, code) in [(1, "TERM", 143), (2, "USR1", 138), (0, "INT", 130)] {
        let job = Launch::of(&["--checkpoint-every=never"]);
        signal(job.process_at(3, rank), name);
        let (ended, lines, place) = job.end();
        assert_eq!(ended, Some(code), "{lines:?}");
        assert!(lines.is_empty(), "{lines:?}");
        let run = place.run("run");
        let reached = run.latest_step();
        assert_eq!(run.steps().len(), reached, "saved after the last step");
        let line = ["--world-size=3", "--batch-size=2", "--epochs=500", "--deterministic"];
        let more = format!("--max-steps={}", reached + 5);
        launched(&place, 2, "run", &[&line[..], &["--resume", &more]].concat());
        place.train("calm", &[&line[..], &[&more]].concat());
        assert_eq!(place.run("run").tensors(), place.run("calm").tensors());
        assert_eq!(place.run("run").steps(), place.run("calm").steps());
    }
}

/// An image that only one process cannot read ends all; the others say whose fault it is.
#[test]
fn a_failure_of_one_process_is_heard_by_all() {
    let place = Workplace::new();
    ["good", "bad"].iter().for_each(|folder| photographs(&place.path(folder), 8));
    let victim = place.path("bad/train/dog/one.png");
    let length = std::fs::read(&victim).unwrap().len();
    std::fs::write(&victim, vec![0; length]).unwrap();
    let port = free_port();
    let line = ["data.source=folder", "--cache-mb=0", "--batch-size=1", "--epochs=3", "data.image_size=8"];
    let start = |rank: usize, dir: &str| {
        process(&place, rank, port, "run", &[&line[..], &[&format!("--data-dir={dir}")]].concat())
    };
    let outputs = together(vec![start(0, "good"), start(1, "bad")]);
    assert_eq!(outputs[1].status.code(), Some(1), "{:?}", errors(&outputs[1]));
    assert!(errors(&outputs[1])[0].contains("dog/one.png"), "{:?}", errors(&outputs[1]));
    assert_eq!(outputs[0].status.code(), Some(75), "{:?}", errors(&outputs[0]));
    let verdict = errors(&outputs[0]).concat();
    assert!(verdict.contains("rank 1 (host ") && verdict.contains("dog/one.png"), "{verdict}");
}

/// Other images are another experiment.
#[test]
fn processes_with_other_images_do_not_begin() {
    let place = Workplace::new();
    for (dir, count) in [("four", 4), ("five", 5)] {
        for image in 0..count {
            for split in ["train", "val"] {
                let path = place.path(&format!("{dir}/{split}/class{}/{image}.png", image % 2));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                image::RgbImage::from_pixel(8, 8, image::Rgb([image, 8, 9])).save(path).unwrap();
            }
        }
    }
    let port = free_port();
    let start = |rank: usize, dir: &str| {
        let line = ["data.source=folder", "--batch-size=1", "--epochs=3", "data.image_size=8"];
        process(&place, rank, port, "run", &[&line[..], &[&format!("--data-dir={dir}")]].concat())
    };
    let outputs = together(vec![start(0, "four"), start(1, "five")]);
    let lines: Vec<String> = outputs.iter().flat_map(errors).collect();
    assert!(outputs.iter().all(|output| output.status.code() != Some(0)));
    assert!(lines.iter().any(|line| line.contains("processes must have the same images")), "{lines:?}");
    assert!(!place.path("run").exists(), "nothing was begun");
}

over_nccl! { a_killed_process_ends_the_others_with_one_verdict a_stopped_process_is_lost_after_the_timeout }
