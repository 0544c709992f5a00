//! The server itself: its limits, its pages, its manners, and how it stops.

use crate::http_world::{Site, read};
use crate::world::World;
use reqwest::Method;
use reqwest::blocking::Client;
use rustix::process::Signal;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const RESERVATIONS: &str = "/api/v1/reservations";

#[test]
fn bodies_are_bounded_strict_json_and_nothing_is_written_for_others() {
    let site = Site::open();
    let send = |kind: &str, body: Vec<u8>| {
        let request = site.bare(Method::POST, RESERVATIONS).bearer_auth(&site.service).header("content-type", kind);
        site.send(request.body(body))
    };
    let text = |body: &str| send("application/json", body.as_bytes().to_vec());
    for (body, says) in [
        (r#"{"account_id":"alice","account_id":"bob","amount_cu":"1"}"#, "duplicate field"),
        (r#"{"account_id":"alice","account":"bob","amount_cu":"1"}"#, "duplicate field"),
        (r#"{"account_id":"alice","amount_cu":"1","note":"x"}"#, "unknown field `note`"),
        (r#"{"account_id":5,"amount_cu":"1"}"#, "expected a string"),
        (r#"["alice","1"]"#, "expected a JSON object"),
        ("null", "expected a JSON object"),
        ("{", "EOF"),
        (r#"{"account_id":"alice","amount_cu":"1"}{}"#, "trailing characters"),
        ("{}", "missing field `account_id`"),
    ] {
        let answer = text(body);
        assert_eq!((answer.status, answer.code()), (400, "INVALID_REQUEST"), "{body} {answer:?}");
        assert!(answer.body["error"]["message"].as_str().unwrap().contains(says), "{body} {answer:?}");
    }
    let deep = format!(r#"{{"account_id":"alice","amount_cu":{}{}}}"#, "[".repeat(40), "]".repeat(40));
    assert!(text(&deep).body["error"]["message"].as_str().unwrap().contains("deeper than 32"));
    assert_eq!(send("application/json", b"{\"account_id\":\"\xff\"}".to_vec()).code(), "INVALID_REQUEST");
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"] {
        let answer = send(kind, b"{}".to_vec());
        assert_eq!((answer.status, answer.code()), (415, "UNSUPPORTED_MEDIA_TYPE"), "{kind}");
    }
    let long = format!(r#"{{"account_id":"{}"}}"#, "a".repeat(1 << 20));
    let answer = text(&long);
    assert_eq!((answer.status, answer.code()), (413, "REQUEST_TOO_LARGE"));
    // The same without saying how long it is.
    let chunked = reqwest::blocking::Body::new(std::io::Cursor::new(long.into_bytes()));
    let request = site.bare(Method::POST, RESERVATIONS).bearer_auth(&site.service);
    let answer = site.send(request.header("content-type", "application/json").body(chunked));
    assert_eq!((answer.status, answer.code()), (413, "REQUEST_TOO_LARGE"));
    assert_eq!(site.world.entries(), 1);
}

#[test]
fn whoever_is_refused_early_can_finish_and_read_why() {
    let site = Site::open();
    let body = vec![b'x'; 8 << 20];
    let token = format!("authorization: Bearer {}\r\n", site.service);
    for (path, credential, answered) in
        [(RESERVATIONS, token.as_str(), "413"), (RESERVATIONS, "", "401"), ("/nowhere", "", "404")]
    {
        let mut stream = connect(&site);
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\n{credential}content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        for piece in body.chunks(64 << 10) {
            stream.write_all(piece).unwrap();
        }
        // The connection is still good.
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        assert!(answers.starts_with(&format!("HTTP/1.1 {answered} ")), "{path} {answers}");
        assert!(answers.contains("HTTP/1.1 200 "), "{path} {answers}");
    }
    // Without a bound somebody could keep a connection busy for nothing.
    let mut stream = connect(&site);
    let head = format!("POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", 1_u64 << 40);
    stream.write_all(head.as_bytes()).unwrap();
    while stream.write_all(&body).is_ok() {}
}

#[test]
fn every_documented_operation_is_there_and_every_page_says_how_it_is() {
    let site = Site::open();
    let description = site.send(site.bare(Method::GET, "/openapi.json")).body;
    assert_eq!(description["openapi"], "3.1.0");
    let mut operations = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let answer = site.send(site.bare(method.clone(), &path.replace("{id}", "x").replace("{offset}", "1")));
            let open = operation["security"].as_array().unwrap().is_empty();
            assert_eq!(answer.status, if open { 200 } else { 401 }, "{method} {path} {answer:?}");
            assert!(operation["responses"].get("401").is_some() != open, "{method} {path}");
        }
    }
    assert!(operations >= 20, "{operations}");
    let docs = site.send(site.bare(Method::GET, "/docs"));
    let page = docs.body.as_str().unwrap();
    assert!(
        page.contains("/api/v1/reservations/{id}/commit") && !page.contains("<script") && !page.contains("http://")
    );
    assert!(docs.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    assert!(docs.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
}

#[test]
fn health_readiness_and_metrics_tell_how_the_server_is_and_no_secret() {
    let site = Site::open();
    site.hold("job-1", "30");
    let health = site.send(site.bare(Method::GET, "/health"));
    assert_eq!((health.status, &health.body["status"], &health.body["durable"]), (200, &json!("ok"), &json!(2)));
    assert_eq!(health.body["engine"], "embedded");
    assert!(health.body["read_model_lag"].is_u64() && health.body["uptime_s"].is_u64());
    let ready = site.send(site.bare(Method::GET, "/ready"));
    assert_eq!((ready.status, &ready.body["ready"]), (200, &json!(true)));
    site.get("/api/v1/reservations/job-1");
    site.send(site.bare(Method::GET, "/secret-path"));
    let metrics = site.send(site.bare(Method::GET, "/metrics"));
    let text = metrics.body.as_str().unwrap();
    for line in [
        r#"holdfast_http_requests_total{method="POST",route="/api/v1/reservations",status="201"} 1"#,
        r#"holdfast_http_requests_total{method="GET",route="/api/v1/reservations/{id}",status="200"} 1"#,
        r#"holdfast_http_requests_total{method="GET",route="unmatched",status="404"} 1"#,
        "holdfast_journal_durable_offset 2",
        "holdfast_open_reservations 1",
        "holdfast_engine_waiting ",
        "holdfast_http_request_seconds_bucket",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    for secret in ["job-1", "alice", "secret-path", "tester"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
    for header in ["x-content-type-options", "x-frame-options", "content-security-policy", "referrer-policy"] {
        assert!(health.headers.contains_key(header), "{header}");
    }
}

#[test]
fn too_many_requests_are_told_when_to_come_again() {
    let site = Site::with_settings(&[("HOLDFAST_RATE_PER_CREDENTIAL", "1"), ("HOLDFAST_RATE_FAILURES", "1")]);
    let limited =
        (0..10).map(|_| site.get("/api/v1/accounts/alice/balance")).find(|answer| answer.status == 429).unwrap();
    assert_eq!(limited.code(), "RATE_LIMITED");
    for header in ["retry-after", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"] {
        assert!(limited.headers[header].to_str().unwrap().parse::<u64>().is_ok(), "{header}");
    }
    // Another credential is not held up by it.
    assert_eq!(site.admin(Method::GET, "/api/v1/admin/keys", None).status, 200);
    let bad = || site.send(site.bare(Method::GET, "/api/v1/admin/keys").bearer_auth("x.y.z"));
    assert!((0..10).any(|_| bad().status == 429));
    assert_eq!(site.send(site.bare(Method::GET, "/health")).status, 200);
    let site = Site::with_settings(&[("HOLDFAST_RATE_PER_ADDRESS", "1")]);
    assert!((0..10).any(|_| site.send(site.bare(Method::GET, "/docs")).status == 429));
    assert!((0..10).all(|_| site.send(site.bare(Method::GET, "/health")).status == 200));
}

#[test]
fn http_2_without_tls_is_spoken_too() {
    let site = Site::open();
    let client = Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let body = json!({ "account_id": "alice", "amount_cu": "1" });
    let response = client.post(site.url(RESERVATIONS)).bearer_auth(&site.service).json(&body).send().unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (reqwest::Version::HTTP_2, 201));
    assert_eq!(read(response).body["balance_cu"], "99");
    site.server.stop();
}

/// What a raw request is answered with, up to the end of the connection.
fn raw(site: &Site, request: &[u8]) -> String {
    let mut stream = connect(site);
    // A server that refuses early may close before it has read all.
    let _refused_early = stream.write_all(request);
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn connect(site: &Site) -> TcpStream {
    let stream = TcpStream::connect(site.server.url().trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

#[test]
fn heads_are_bounded() {
    let site = Site::open();
    let many: String = (0..100).map(|number| format!("x-{number}: y\r\n")).collect();
    let answer = raw(&site, format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let long = "y".repeat(200_000);
    let answer = raw(&site, format!("GET /health HTTP/1.1\r\nhost: x\r\nx-long: {long}\r\n\r\n").as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let answer = raw(&site, b"GET /health HTTP/9.9\r\n\r\n");
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 505"), "{answer}");
    assert_eq!(site.send(site.bare(Method::GET, "/health")).status, 200);
}

#[test]
fn a_stop_finishes_the_running_request_and_refuses_new_connections() {
    for signal in [Signal::TERM, Signal::INT] {
        let site = Site::open();
        let body = json!({ "account_id": "alice", "amount_cu": "5", "request_id": "last" }).to_string();
        let mut stream = connect(&site);
        let head = format!(
            "POST {RESERVATIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nexpect: 100-continue\r\n\r\n",
            site.service,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The request is taken when the server asks for its body.
        const GO_ON: &str = "HTTP/1.1 100 Continue\r\n\r\n";
        let mut go_on = [0; GO_ON.len()];
        stream.read_exact(&mut go_on).unwrap();
        assert_eq!(String::from_utf8_lossy(&go_on), GO_ON);
        let mut idle = connect(&site);
        site.server.signal(signal);
        // New connections are refused from some moment on; the running request has its time.
        while TcpStream::connect(site.server.url().trim_start_matches("http://")).is_ok() {
            std::thread::yield_now();
        }
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
        let mut nothing = Vec::new();
        assert_eq!(idle.read_to_end(&mut nothing).unwrap_or(0), 0);
        let Site { world, server, .. } = site;
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert_eq!(world.entries(), 2);
        assert_eq!(world.run(&["journal", "verify"]).code, Some(0));
    }
}

#[test]
fn a_taken_address_and_a_bad_peer_set_are_named() {
    let site = Site::open();
    let other = World::new();
    let address = site.server.url().trim_start_matches("http://").to_owned();
    assert_eq!(other.refused(&["serve", "--listen", &address]), "LISTEN_FAILED");
    assert_eq!(other.refused(&["serve", "--listen", "nonsense"]), "LISTEN_FAILED");
    for bad in ["/no/such/file", "http://example.com/jwks.json"] {
        let output = other.command(&["serve"]).env("HOLDFAST_JWKS", bad).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("error[INVALID_JWKS]: "), "{said}");
    }
    let output = other.command(&["serve"]).env("HOLDFAST_RATE_PER_ADDRESS", "0").output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error[INVALID_SETTING]: HOLDFAST_RATE_PER_ADDRESS"));
}
