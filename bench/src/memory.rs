//! Memory that the machine really has.
//!
//! A virtual machine is given a page of its memory when it touches it for the first time, and its host may take pages back that lie
//! idle. Such a touch takes ten times as long as using the page, so whoever runs first, or writes most, would be measured by its
//! host: the same program was seen at half of its speed. So before anybody is measured, as much is touched as the greediest
//! subject will use, and given back to the system, which hands it out again.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What is touched at a time.
const PIECE_BYTES: usize = 64 * 1_024 * 1_024;

/// Touches `bytes` of memory, but at most half of what is free, and says in words how much that was and how long it took.
#[must_use]
pub fn touch(bytes: u64) -> String {
    let touched = bytes.min(available() / 2);
    let began = Instant::now();
    let pieces: Vec<Vec<u8>> = (0..touched / PIECE_BYTES as u64).map(|_| black_box(vec![1; PIECE_BYTES])).collect();
    drop(pieces);
    in_words(touched, began.elapsed())
}

fn in_words(bytes: u64, took: Duration) -> String {
    format!("{:.1} GB touched before in {:.1} s", bytes as f64 / 1e9, took.as_secs_f64())
}

/// What the system could give to a program; nothing if it does not say.
fn available() -> u64 {
    kilobytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or(0) * 1_024
}

fn kilobytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_is_read_from_its_line() {
        assert_eq!(kilobytes("MemTotal:  9 kB\nMemAvailable:   20872192 kB\n"), Some(20_872_192));
        assert_eq!(kilobytes("MemTotal:  9 kB\n"), None);
        assert!(touch(PIECE_BYTES as u64).contains("GB touched before in"));
    }
}
