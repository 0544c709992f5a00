//! The peer that misbehaves, seen from the other end of the wire.

use holdfast_simulator::peer::{FINALIZE, Manner, Mix, Options, Peer, Plant, Presence};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Everything that comes back for one call, which is nothing if nobody listens.
fn call(peer: &Peer, id: &str, cost: &str) -> Vec<u8> {
    send(peer, FINALIZE, "Bearer a.b.c", &body(id, cost))
}

fn body(id: &str, cost: &str) -> String {
    format!(r#"{{"reservation_id":"{id}","tenant_id":"alice","actual_cost_micro":"{cost}","trace_id":"t"}}"#)
}

fn send(peer: &Peer, path: &str, authorization: &str, body: &str) -> Vec<u8> {
    let Ok(mut stream) = TcpStream::connect(peer.url.strip_prefix("http://").unwrap()) else { return Vec::new() };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: peer\r\nauthorization: {authorization}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    // The peer closes after this answer; who hangs is told that nobody waits.
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // A connection that is reset has said what it had to say.
    let _reset = stream.read_to_end(&mut answer);
    answer
}

fn status(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

fn with(mix: Mix) -> Options {
    Options { mix, ..Options::honest() }
}

#[test]
fn an_honest_peer_applies_each_charge_once_and_knows_it_again() {
    let peer = Peer::start(Options::honest()).unwrap();
    assert_eq!(status(&call(&peer, "r1", "12")), Some(200));
    assert_eq!(status(&call(&peer, "r1", "12")), Some(409));
    assert_eq!(status(&call(&peer, "r2", "0")), Some(200));
    let row = peer.row("r1").unwrap();
    assert_eq!((row.cost.as_str(), row.tenant.as_str(), row.asked, row.applied), ("12", "alice", 2, 1));
    assert_eq!(peer.applied(), 2);
    assert_eq!(peer.book().complaints, [""; 0]);
}

#[test]
fn what_a_caller_may_not_do_is_refused_and_remembered() {
    let peer = Peer::start(Options::honest()).unwrap();
    assert_eq!(status(&call(&peer, "r1", "12")), Some(200));
    assert_eq!(status(&call(&peer, "r1", "13")), Some(422), "another cost for the same id");
    assert_eq!(status(&send(&peer, FINALIZE, "", &body("r2", "1"))), Some(401));
    assert_eq!(status(&send(&peer, FINALIZE, "Bearer a.b.c", "{}")), Some(400));
    assert_eq!(status(&send(&peer, "/elsewhere", "Bearer a.b.c", &body("r2", "1"))), Some(404));
    assert_eq!((peer.book().complaints.len(), peer.applied()), (4, 1));
}

#[test]
fn every_manner_is_what_it_is_called() {
    for manner in Manner::all() {
        let peer = Peer::start(with(Mix::of(&[manner]))).unwrap();
        let answer = call(&peer, "r1", "12");
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(peer.row("r1").unwrap().applied, u64::from(manner.takes()), "{manner:?}");
        let statuses: &[Option<u16>] = match manner {
            Manner::Honest | Manner::Takes200 | Manner::TakesSlowly | Manner::TakesInChunks => &[Some(200)],
            Manner::TakesAndCutsBody | Manner::TakesAndFloods | Manner::FloodsHead => &[Some(200)],
            Manner::TakesInforming => &[Some(103)],
            Manner::TakesAndFails | Manner::FailsAndFloods => &[Some(500)],
            Manner::Fails => &[Some(500), Some(502), Some(504), Some(408), Some(425)],
            Manner::Unavailable => &[Some(503)],
            Manner::TooManySeconds | Manner::TooManyDate | Manner::TooManyNonsense => &[Some(429)],
            Manner::Redirects => &[Some(301), Some(302), Some(303), Some(307), Some(308)],
            Manner::TakesAndDrops | Manner::Drops | Manner::TakesAndHangs | Manner::Hangs => &[None],
            Manner::TakesAndCutsHead => {
                assert!(!text.contains("\r\n\r\n"), "{text}");
                continue;
            }
            Manner::TakesAndGarbles | Manner::Garbles => {
                assert!(!text.starts_with("HTTP/1.1 "), "{text}");
                continue;
            }
        };
        assert!(statuses.contains(&status(&answer)), "{manner:?}: {text:.100}");
        let is_flood = matches!(manner, Manner::TakesAndFloods | Manner::FailsAndFloods | Manner::FloodsHead);
        assert_eq!(answer.len() > 4_000_000, is_flood, "{manner:?}");
        assert_eq!(text.contains("retry-after: "), text.contains(" 429 "));
        assert_eq!(peer.row("r1").unwrap().applied, u64::from(manner.takes()));
    }
}

#[test]
fn whoever_goes_on_asking_gets_through() {
    let mix = Mix::of(&[Manner::Fails, Manner::Drops, Manner::Garbles]);
    let peer = Peer::start(Options { fair_after: 3, ..with(mix) }).unwrap();
    let answers: Vec<bool> = (0..5).map(|_| matches!(status(&call(&peer, "r1", "1")), Some(200 | 409))).collect();
    assert_eq!(answers, [false, false, false, true, true]);
    assert_eq!(peer.row("r1").unwrap().applied, 1);
}

#[test]
fn a_peer_that_comes_and_goes_is_back_with_its_book() {
    let presence = Presence::ComesAndGoes { calls: 4, away: Duration::from_millis(30) };
    let peer = Peer::start(Options { presence, ..Options::honest() }).unwrap();
    let mut unheard = 0;
    for number in 0..100 {
        while !matches!(status(&call(&peer, &format!("r{number}"), "1")), Some(200 | 409)) {
            unheard += 1;
        }
    }
    let book = peer.book();
    assert!(book.absences > 0 && unheard > 0, "{} absences, {unheard} calls unheard", book.absences);
    assert_eq!((peer.applied(), book.complaints.len()), (100, 0));
    assert!(book.rows.values().all(|row| row.applied == 1));
}

#[test]
fn refused_ones_are_refused_until_the_peer_relents() {
    let peer = Peer::start(Options { refuses_one_in: Some(3), ..Options::honest() }).unwrap();
    let ids: Vec<String> = (0..60).map(|number| format!("r{number}")).collect();
    let asked = || ids.iter().map(|id| status(&call(&peer, id, "1")).unwrap()).collect::<Vec<_>>();
    let (first, second) = (asked(), asked());
    assert!(first.contains(&422) && first.contains(&200));
    let is_refused = |statuses: &[u16]| statuses.iter().map(|status| *status == 422).collect::<Vec<_>>();
    assert_eq!(is_refused(&first), is_refused(&second), "always the same ones");
    peer.relent();
    assert!(!asked().contains(&422));
    assert_eq!(peer.applied(), 60);
}

#[test]
fn planted_bugs_are_in_the_book() {
    let planted = |plant| {
        let peer = Peer::start(Options { plant: Some(plant), ..Options::honest() }).unwrap();
        for _ in 0..2 {
            call(&peer, "r1", "12");
        }
        peer.row("r1").unwrap()
    };
    assert_eq!(planted(Plant::AppliesAgain).applied, 2);
    assert_eq!(planted(Plant::Loses(1)).applied, 0);
    assert_eq!(planted(Plant::Misreads(1)).cost, "120");
}
