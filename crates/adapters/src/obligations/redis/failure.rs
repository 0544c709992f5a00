//! What went wrong with Redis, in words for whoever runs it. Nothing of the URL is in them.

use holdfast_engine::obligations::StoreFailed;
use redis::{ErrorKind, RedisError};

/// The most of the server's own words that is passed on, in characters.
const SAID_MAX: usize = 160;

/// The error for people.
pub(super) fn failed(error: &RedisError) -> StoreFailed {
    StoreFailed(words(error))
}

/// Whether the script is not known to the server: after its restart, a failover, or `SCRIPT FLUSH`.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether another connection may be better: this one is broken, hangs, or leads to a server that is no longer the master.
pub(super) fn is_worn_out(error: &RedisError) -> bool {
    let is_not_master = matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "NOAUTH"));
    is_not_master || error.is_timeout() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

fn words(error: &RedisError) -> String {
    if error.is_timeout() {
        return "redis did not answer in time; what was asked may or may not have been done".to_owned();
    }
    if error.is_connection_refusal() {
        return "redis refuses the connection: is it running, and is the address right?".to_owned();
    }
    if error.is_connection_dropped() {
        return "the connection to redis was lost; what was asked may or may not have been done".to_owned();
    }
    if error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
        return "no sentinel knows a master of that name that answers".to_owned();
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return "redis refuses the login: check user and password".to_owned();
    }
    if error.is_io_error() {
        // Such as a certificate that is not trusted.
        return format!("no connection to redis: {error}");
    }
    let Some(code) = error.code() else {
        return format!("redis: {}", error.category());
    };
    let meaning = match code {
        "READONLY" => "the server is a read-only replica; a failover may be under way",
        "OOM" => "the server is out of memory: give it more, what is stored stays",
        "LOADING" => "the server is loading its data after a start; it will answer soon",
        "NOSCRIPT" => "the server forgot a script and does not take it again",
        "MISCONF" => "the server cannot write to its disk and takes no writes",
        "NOREPLICAS" => "the server has too few replicas and takes no writes",
        "NOAUTH" | "WRONGPASS" => "the server refuses the login: check user and password",
        "NOPERM" => "the user may not run scripts or touch these keys: check its permissions",
        "CLUSTERDOWN" | "MASTERDOWN" => "the cluster or its master is down",
        "WRONGTYPE" => "a key under this prefix belongs to something else: choose another prefix",
        "BUSY" => "another script keeps the server busy",
        _ => "the server refuses",
    };
    let said: String = error.detail().unwrap_or("").chars().filter(|one| !one.is_control()).take(SAID_MAX).collect();
    format!("{meaning} ({code} {said})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn lost_late_and_refused_connections_are_told_apart() {
        let check = |kind: io::ErrorKind, text: &str| {
            let error = RedisError::from(io::Error::from(kind));
            assert!(words(&error).contains(text), "{}", words(&error));
            assert!(is_worn_out(&error));
        };
        check(io::ErrorKind::TimedOut, "in time");
        check(io::ErrorKind::ConnectionRefused, "is it running");
        check(io::ErrorKind::BrokenPipe, "was lost");
        check(io::ErrorKind::UnexpectedEof, "was lost");
        let untrusted = RedisError::from(io::Error::other("invalid peer certificate"));
        assert!(words(&untrusted).contains("invalid peer certificate"));
    }
}
