//! What a page refuses, and the addresses that it cannot have.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::{ENDLESS, Served, next};
use crate::command::{Workplace, refused, signal};

#[test]
fn every_bad_request_gets_a_status_and_one_line_and_the_run_goes_on() {
    let place = Workplace::new();
    let served = Served::start(place.small("run", &ENDLESS));
    let (host, token) = (served.place().to_string(), served.token().to_string());
    let head = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\n{headers}\r\n\r\n");
    let own = format!("Host: {host}");
    let (wrong, near) = ("?token=0123456789abcdef0123456789abcdef", &token[..token.len() - 1]);
    let port = host.rsplit_once(':').unwrap().1;
    let long = format!("{own}\r\nX: {}", "x".repeat(100_000));
    let many = format!("{own}{}", "\r\nX: x".repeat(100));
    let elsewhere = format!("{own}\r\nOrigin: http://elsewhere.example");
    let here = format!("{own}\r\nOrigin: http://{host}");
    let cases: Vec<(String, u16)> = vec![
        (head("GET /", &own), 200),
        (head("GET /", &format!("Host: localhost:{port}")), 200),
        (head("GET /", &format!("Host: [::1]:{port}")), 200),
        (head("GET /", &format!("Host: elsewhere.example:{port}")), 403),
        (head("GET /", "Host: 10.0.0.1"), 403),
        (head("GET /", "Accept: */*"), 403),
        (head("GET /events", "Host: elsewhere.example"), 403),
        // Whoever has the token may have come through another name of this machine.
        (head(&format!("GET /{token}"), "Host: elsewhere.example"), 200),
        (head("POST /stop", &own), 403),
        (head(&format!("POST /stop{wrong}"), &own), 403),
        (head(&format!("POST /stop{near}"), &own), 403),
        (head("POST /stop?token=", &own), 403),
        (head(&format!("POST /stop{token}"), &elsewhere), 403),
        (head(&format!("GET /stop{token}"), &here), 405),
        (head(&format!("POST /{token}"), &here), 405),
        (head("PUT /", &own), 405),
        (head("GET /favicon.ico", &own), 404),
        (head("GET /../../etc/passwd", &own), 404),
        (head("GET /metrics.jsonl", &own), 404),
        (head("GET /%2e%2e/config.toml", &own), 404),
        (head("GET //", &own), 404),
        (head("GET /", &long), 431),
        (head("GET /", &many), 431),
        ("no request at all\r\n\r\n".into(), 400),
        ("GET / HTTP/9.9\r\n\r\n".into(), 400),
        ("\u{16}\u{3}\u{1} a greeting of TLS".into(), 400),
        // Nothing more comes.
        (format!("GET / HTTP/1.1\r\n{own}\r\n"), 408),
        (String::new(), 408),
    ];
    std::thread::scope(|scope| {
        for (request, status) in &cases {
            let served = &served;
            scope.spawn(move || {
                let mut stream = served.connect();
                // What is too much is not taken to its end.
                let _ = stream.write_all(request.as_bytes());
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                let start = &request[..request.len().min(60)];
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{start:?}: {answer:?}");
                let (_, body) = answer.split_once("\r\n\r\n").unwrap();
                assert!(*status == 200 || body.lines().count() == 1, "{start:?}: {answer:?}");
            });
        }
    });
    let headers = served.page();
    for header in ["Content-Security-Policy: frame-ancestors 'none'", "Referrer-Policy: no-referrer", "no-store"] {
        assert!(headers.split("\r\n\r\n").next().unwrap().contains(header), "{header}");
    }
    next(&mut served.events(), |line| line == "data: page\n");
    signal(&served.child, "TERM");
    let (code, _, wrong) = served.end();
    assert_eq!((code, wrong), (Some(143), vec![]));
}

#[test]
fn an_address_that_others_reach_needs_the_token_for_everything() {
    let place = Workplace::new();
    let mut command = place.small("run", &ENDLESS);
    command.arg("--serve=0.0.0.0:0").env("KILN_SERVE_TOKEN", "a-token-of-this-test");
    let mut served = Served::start(command);
    assert!(served.url.ends_with("/?token=a-token-of-this-test"), "{}", served.url);
    let port = served.place().rsplit_once(':').unwrap().1.to_string();
    served.url = format!("http://127.0.0.1:{port}/?token=a-token-of-this-test");
    for target in ["/", "/events", "/nothing"] {
        let answer = served.ask("GET", target);
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{target}: {answer}");
        assert!(!answer.contains("run"), "{answer}");
    }
    let page = served.ask("GET", &format!("/{}", served.token()));
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"));
    signal(&served.child, "TERM");
    served.end();
}

#[test]
fn what_cannot_be_served_is_one_line_with_the_remedy() {
    let place = Workplace::new();
    place.train("run", &["--epochs=1"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let bind = |arguments: &[&str]| place.bare(arguments).output().unwrap();
    let train = |arguments: &[&str]| place.small("other", arguments).output().unwrap();

    let line = refused(&train(&[&format!("--serve={address}")]), 2);
    assert!(line.contains(&format!("cannot serve the page at {address}: Address already in use")), "{line}");
    assert!(line.ends_with("as in --serve=127.0.0.1:0 for any free port") && !place.path("other").exists(), "{line}");
    let line = refused(&bind(&["serve", "run", &format!("--bind={address}")]), 2);
    assert!(line.ends_with("as in --bind 127.0.0.1:0 for any free port"), "{line}");

    let line = refused(&train(&["--serve=here"]), 2);
    assert!(
        line.contains("serve must be an address and a port, got 'here' (--serve); as in --serve=127.0.0.1:8484"),
        "{line}"
    );
    let line = refused(&bind(&["serve", "run", "--bind=8484"]), 2);
    assert!(line.contains("must be an address and a port, as in 127.0.0.1:8484"), "{line}");
    for arguments in [&["--serve=127.0.0.1:0"][..], &["--serve=127.0.0.1:0", "--elastic"]] {
        let mut command = place.small("other", arguments);
        let line = refused(&command.env("KILN_SERVE_TOKEN", "short").output().unwrap(), 2);
        assert!(line.contains("KILN_SERVE_TOKEN must have at least 16 letters"), "{line}");
    }

    let line = refused(&bind(&["serve", "nowhere", "--bind=127.0.0.1:0"]), 1);
    assert!(line.contains("'nowhere': it is not a directory") && line.contains("as in runs/0001"), "{line}");
    let line = refused(&bind(&["serve", ".", "--bind=127.0.0.1:0"]), 1);
    assert!(line.contains("it holds no run"), "{line}");
}
