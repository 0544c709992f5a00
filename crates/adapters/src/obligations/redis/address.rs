//! Where a Redis is: a plain server, one that Sentinels know, or a cluster.
//!
//! ```text
//! redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]                         rediss:// with TLS; also unix:///PATH
//! redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/MASTER[/DATABASE]       rediss+sentinel://
//! redis+cluster://[USER:PASSWORD@]HOST[:PORT],…                          rediss+cluster://
//! ```
//!
//! User and password are those of the data servers; Sentinels are asked without. In a cluster a script may only touch keys of
//! one slot, so that the prefix becomes a hash tag: all obligations are on one of the cluster's servers. TLS goes by the one
//! provider of the program and trusts the system's certificates.
//!
//! # Invariants
//! - What is shown of an address, in an error or by `Debug`, has no password.

use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsMode};
use std::fmt;
use std::time::Duration;

const SENTINEL_PORT: u16 = 26_379;
const REDIS_PORT: u16 = 6_379;

/// Where a Redis is.
#[derive(Clone)]
pub struct Address {
    route: Route,
    login: RedisConnectionInfo,
}

#[derive(Clone)]
enum Route {
    Plain(ConnectionInfo),
    Sentinel { sentinels: Vec<ConnectionAddr>, master: String, tls: bool },
    Cluster(Vec<ConnectionInfo>),
}

/// Why a text is not the address of a Redis. It does not repeat the text, which may have a password in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the URL of a Redis: {0}; write redis://HOST:PORT, redis+sentinel://HOST:PORT,…/MASTER or redis+cluster://HOST:PORT,…"
)]
pub struct NotAnAddress(&'static str);

impl NotAnAddress {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "REDIS_URL_INVALID"
    }
}

/// How a connection is opened.
pub(super) enum Door {
    Plain(Box<Client>),
    Sentinel(Box<SentinelClient>),
    Cluster(Box<ClusterClient>),
}

impl Address {
    /// Reads a URL.
    ///
    /// # Errors
    /// If it is none of the forms above.
    pub fn parse(url: &str) -> Result<Self, NotAnAddress> {
        let (scheme, rest) = url.split_once("://").ok_or(NotAnAddress("it has no scheme"))?;
        match scheme {
            "redis+sentinel" | "rediss+sentinel" => Self::sentinel(rest, scheme.starts_with("rediss")),
            "redis+cluster" | "rediss+cluster" => Self::cluster(rest, scheme.starts_with("rediss")),
            _ => {
                let info = read(url)?;
                Ok(Self { login: info.redis_settings().clone(), route: Route::Plain(info) })
            }
        }
    }

    fn sentinel(rest: &str, tls: bool) -> Result<Self, NotAnAddress> {
        let (login, hosts, path) = parts(rest);
        let (master, database) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(NotAnAddress("the name of the master is missing"));
        }
        let sentinels = infos(hosts, "", tls, SENTINEL_PORT)?.iter().map(|info| info.addr().clone()).collect();
        let login = read(&format!("redis://{login}host/{database}"))?.redis_settings().clone();
        Ok(Self { route: Route::Sentinel { sentinels, master: master.to_owned(), tls }, login })
    }

    fn cluster(rest: &str, tls: bool) -> Result<Self, NotAnAddress> {
        let (login, hosts, path) = parts(rest);
        if !matches!(path, "" | "0") {
            return Err(NotAnAddress("a cluster has only the database 0"));
        }
        let nodes = infos(hosts, login, tls, REDIS_PORT)?;
        let login = nodes.first().ok_or(NotAnAddress("no host is named"))?.redis_settings().clone();
        Ok(Self { route: Route::Cluster(nodes), login })
    }

    /// The prefix as this kind of Redis needs it.
    pub(super) fn prefix(&self, prefix: &str) -> String {
        match self.route {
            Route::Cluster(_) if !has_hash_tag(prefix) => format!("{{{prefix}}}"),
            Route::Cluster(_) | Route::Plain(_) | Route::Sentinel { .. } => prefix.to_owned(),
        }
    }

    pub(super) fn door(&self, reply_within: Duration) -> Result<Door, redis::RedisError> {
        match &self.route {
            Route::Plain(info) => Client::open(info.clone()).map(|client| Door::Plain(Box::new(client))),
            Route::Cluster(nodes) => {
                let builder = ClusterClient::builder(nodes.clone())
                    .connection_timeout(reply_within)
                    .response_timeout(reply_within)
                    .overall_response_timeout(Some(reply_within));
                builder.build().map(|client| Door::Cluster(Box::new(client)))
            }
            Route::Sentinel { sentinels, master, tls } => {
                let mut builder = SentinelClientBuilder::new(sentinels.clone(), master, SentinelServerType::Master)?
                    .set_client_to_redis_db(self.login.db());
                if let Some(user) = self.login.username() {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = self.login.password() {
                    builder = builder.set_client_to_redis_password(password);
                }
                if *tls {
                    builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                }
                builder.build().map(|client| Door::Sentinel(Box::new(client)))
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |addresses: Vec<String>| addresses.join(",");
        match &self.route {
            Route::Plain(info) => write!(f, "redis at {}", info.addr()),
            Route::Sentinel { sentinels, master, .. } => {
                write!(f, "redis {master} of {}", list(sentinels.iter().map(ToString::to_string).collect()))
            }
            Route::Cluster(nodes) => {
                write!(f, "redis cluster at {}", list(nodes.iter().map(|node| node.addr().to_string()).collect()))
            }
        }
    }
}

/// `USER:PASSWORD@` or nothing, the hosts, and the path without its slash.
fn parts(rest: &str) -> (&str, &str, &str) {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    (login, hosts, path.trim_end_matches('/'))
}

fn infos(hosts: &str, login: &str, tls: bool, port: u16) -> Result<Vec<ConnectionInfo>, NotAnAddress> {
    let scheme = if tls { "rediss" } else { "redis" };
    let named = |host: &str| {
        // The port of `[::1]:6379` comes after the bracket.
        let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        if has_port { host.to_owned() } else { format!("{host}:{port}") }
    };
    hosts.split(',').map(|host| read(&format!("{scheme}://{login}{}", named(host)))).collect()
}

fn read(url: &str) -> Result<ConnectionInfo, NotAnAddress> {
    url.into_connection_info().map_err(|_| NotAnAddress("a host, port, user or database in it cannot be read"))
}

/// Whether a cluster takes only a part of the key for its slot: what is between the first braces, if that is not empty.
fn has_hash_tag(prefix: &str) -> bool {
    let inside = prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    inside.is_some_and(|(tag, _)| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Address::parse(url).map_or_else(|error| error.to_string(), |address| format!("{address:?}"))
    }

    #[test]
    fn each_kind_of_url_is_read_and_shown_without_its_password() {
        assert_eq!(shown("redis://me:secret@host:7/3"), "redis at host:7");
        assert_eq!(shown("rediss://host"), "redis at host:6379");
        assert_eq!(shown("redis+sentinel://me:secret@a,b:7/main/3"), "redis main of a:26379,b:7");
        assert_eq!(shown("redis+cluster://me:secret@a,b:7"), "redis cluster at a:6379,b:7");
        assert!(Address::parse("rediss+cluster://[::1],[::1]:7/0").is_ok());
    }

    #[test]
    fn a_login_reaches_the_data_servers() {
        for url in ["redis://me:s%40y@a/3", "redis+sentinel://me:s%40y@a,b/main/3"] {
            let login = Address::parse(url).unwrap().login;
            assert_eq!((login.username(), login.password(), login.db()), (Some("me"), Some("s@y"), 3), "{url}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_without_repeating_it() {
        for url in [
            "",
            "secret",
            "http://secret@a",
            "redis+sentinel://me:secret@a",
            "redis+sentinel://me:secret@a/",
            "redis+cluster://me:secret@a/3",
            "redis://me:secret@a/x",
            "redis+cluster://me:secret@a:x",
        ] {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_clusters_prefix_is_a_hash_tag_and_one_that_is_there_stays() {
        let cluster = Address::parse("redis+cluster://a").unwrap();
        assert_eq!(cluster.prefix("finn:dlq"), "{finn:dlq}");
        assert_eq!(cluster.prefix("finn:{7}:dlq"), "finn:{7}:dlq");
        assert_eq!(cluster.prefix("finn:{}:dlq"), "{finn:{}:dlq}");
        assert_eq!(Address::parse("redis://a").unwrap().prefix("finn:dlq"), "finn:dlq");
    }
}
