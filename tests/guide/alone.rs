//! Commands of one process.

use super::*;

#[test]
fn trainings() {
    let place = workplace();
    #[cfg_attr(not(feature = "remote"), allow(unused_mut, reason = "shards on a server are added"))]
    let mut replaced = vec![("torchvision", "published.pth"), ("~/cifar", "cifar"), ("--serve", "--serve=127.0.0.1:0")];
    #[cfg(feature = "remote")]
    let server = crate::remote::Server::new(&place.path(""));
    #[cfg(feature = "remote")]
    let url = format!("{}/shards/{{train-{{0..1}},val-0}}.tar", server.url);
    #[cfg(feature = "remote")]
    let bucket = format!("{}/bucket", server.url);
    #[cfg(feature = "remote")]
    replaced.push(("s3://bucket", &bucket));
    #[cfg(feature = "remote")]
    replaced.push(("https://host/set/{train-{000..127},val-000}.tar", &url));
    for line in lines(Kind::Training) {
        if line.text.contains("--data parquet") && cfg!(not(feature = "parquet")) {
            crate::skipped::skip(&format!("'{}' needs the feature parquet", line.text));
            continue;
        }
        if line.text.contains("://") && cfg!(not(feature = "remote")) {
            crate::skipped::skip(&format!("'{}' needs the feature remote", line.text));
            continue;
        }
        let mut added = SHORT.to_vec();
        if line.text.contains("--resume") {
            // There is a step left to do.
            succeeded(&place.bare(&SHORT).output().unwrap());
            added.push("--max-steps=2");
        }
        if line.text.contains("experiment=transfer") {
            added.extend(["--pretrained=published.pth", "--batch-size=4"]);
            added.extend((!line.text.contains("--data-dir")).then_some("--data-dir=cifar"));
        }
        let mut command = line.command(&place, &replaced, &added);
        let output = succeeded(&command.env("XDG_CACHE_HOME", place.path("cache")).output().unwrap());
        let expected = if line.text.contains("--dry-run") { "schedule  " } else { "checkpoint  " };
        assert!(output.contains(expected), "'{}': {output}", line.text);
    }
}

#[test]
fn mistakes_are_refused_in_the_words_of_the_guide() {
    let text = text();
    for line in lines(Kind::Mistake) {
        let behind = text.split(&line.text).nth(1).unwrap().lines().skip(1);
        let expected: Vec<&str> = behind.map_while(|line| line.strip_prefix("train: ")).collect();
        assert!(!expected.is_empty());
        let output = line.command(&Workplace::new(), &[], &[]).output().unwrap();
        let said = errors(&output);
        for (said, expected) in said.iter().zip(&expected) {
            assert_eq!(said.strip_prefix("train: "), Some(*expected));
        }
        assert!(said.len() >= expected.len() && output.status.code() == Some(2), "{said:?}");
    }
}

#[test]
fn questions_about_runs_and_models() {
    let place = workplace();
    for line in lines(Kind::About) {
        let output = line.command(&place, &[], &[]).output().unwrap();
        assert!(output.status.code() == Some(0), "'{}': {:?}", line.text, errors(&output));
    }
    for file in ["report/report.html", "model.safetensors", "model.pth", "model.onnx", "runs/last/confusion.svg"] {
        assert!(place.path(file).is_file(), "{file}");
    }
}

#[test]
fn studies_of_several_trainings() {
    let place = workplace();
    for line in lines(Kind::Study) {
        if line.text.contains("--processes") && cfg!(not(feature = "gloo")) {
            crate::skipped::skip(&format!("'{}' needs the feature gloo", line.text));
            continue;
        }
        // Before the dashes belongs to the study, behind them to its trainings.
        let own: (&str, &[&str]) = match line.words()[..2] {
            ["find", "lr"] => (" --steps=20 -- ", &[]),
            ["find", _] => (" --largest=8 -- ", &[]),
            ["scaling", _] => (" --steps=2 --warmup-steps=1 -- ", &["data.train_size=64"]),
            ["plan", _] => (" -- ", &["--width=2", "data=synthetic", "data.train_size=64", "--backend=flex"]),
            _ => (" -- ", &SHORT),
        };
        let line = Line { text: line.text.replacen(" -- ", own.0, 1).replace("--width 16", "--width 2") };
        let output = line.command(&place, &[], own.1).output().unwrap();
        // Whether a tiny network suggests a rate is not for this test to say.
        let codes: &[i32] = if line.text.contains("find lr") { &[0, 1] } else { &[0] };
        assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{}: {:?}", line.text, errors(&output));
    }
    for kind in ["csv", "html"] {
        assert!(!found(&place, kind).is_empty(), "{kind}");
    }
}

/// The files of a kind below the place.
fn found(place: &Workplace, kind: &str) -> Vec<PathBuf> {
    place.snapshot().into_keys().filter(|path| path.extension().is_some_and(|it| it == kind)).collect()
}
