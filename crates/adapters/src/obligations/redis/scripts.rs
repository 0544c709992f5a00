//! The scripts, one file for each operation, and what they are called with. The text of a script never depends on data.

use redis::{Cmd, Script, ToRedisArgs};

/// A script: its text, and its hash.
pub(super) struct LuaScript {
    code: &'static str,
    script: Script,
}

impl LuaScript {
    fn new(code: &'static str) -> Self {
        Self { code, script: Script::new(code) }
    }

    pub(super) fn hash(&self) -> &str {
        self.script.get_hash()
    }

    pub(super) const fn code(&self) -> &'static str {
        self.code
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {
        /// All of them.
        pub(super) struct Scripts {
            $(pub(super) $name: LuaScript,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($name: LuaScript::new(concat!(
                    include_str!("lua/common.lua"),
                    include_str!(concat!("lua/", stringify!($name), ".lua")),
                )),)* }
            }
        }
    };
}

scripts! { put claim complete repair stats get list resolve replay }

/// The keys: the four orders, which every script is given, and the prefix of the others.
pub(super) struct Keys {
    orders: [String; 4],
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let orders = ["schedule", "leased", "pending", "dead"].map(|order| format!("{prefix}:{order}"));
        Self { orders, prefix: format!("{prefix}:") }
    }

    /// A key that is where all are.
    pub(super) fn any(&self) -> &str {
        &self.orders[0]
    }

    /// What a script is called with, so far.
    pub(super) fn arguments(&self) -> Arguments<'_> {
        Arguments { keys: self, rest: Vec::new() }
    }
}

/// What a script is called with.
pub(super) struct Arguments<'a> {
    keys: &'a Keys,
    rest: Vec<Vec<u8>>,
}

impl Arguments<'_> {
    pub(super) fn with(mut self, argument: impl ToRedisArgs) -> Self {
        self.push(argument);
        self
    }

    pub(super) fn push(&mut self, argument: impl ToRedisArgs) {
        self.rest.extend(argument.to_redis_args());
    }

    pub(super) fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.orders.len()).arg(&self.keys.orders).arg(&self.keys.prefix).arg(&self.rest);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_that_are_documented() {
        let keys = Keys::new("finn:hounfour:dlq");
        assert_eq!(keys.any(), "finn:hounfour:dlq:schedule");
        assert_eq!(keys.prefix, "finn:hounfour:dlq:");
    }

    #[test]
    fn no_script_looks_through_all_keys_decodes_an_entry_or_lets_anything_expire() {
        let scripts = Scripts::new();
        let all = [
            &scripts.put,
            &scripts.claim,
            &scripts.complete,
            &scripts.repair,
            &scripts.stats,
            &scripts.get,
            &scripts.list,
            &scripts.resolve,
            &scripts.replay,
        ];
        for script in all {
            for word in ["'KEYS'", "SCAN", "cjson", "EXPIRE", "'EX'", "'PX'", "tonumber(body"] {
                assert!(!script.code().contains(word), "{word}");
            }
        }
    }
}
