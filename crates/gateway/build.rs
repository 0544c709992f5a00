//! Makes the tables of the tokenizers, so that the program has them at its start and needs no memory of its own for them: the
//! vocabularies, from the crate that carries them, and the kinds of characters, from the tables of the regular expressions
//! that OpenAI cuts texts with. They are read where they are in the program's file, and only as much as is used.

#[path = "src/tokens/vocabulary/place.rs"]
mod place;

use place::{BUCKET_BITS, Entry, LENGTH_BITS, RANK_BITS, START_BITS, bucket, hash, tag};
use regex_syntax::hir::{Class, HirKind};
use std::path::Path;
use std::{env, fs, io};
use tiktoken::CoreBpe;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/tokens/vocabulary/place.rs");
    let out = env::var_os("OUT_DIR").expect("cargo names a directory");
    let out = Path::new(&out);
    // Three quarters of the places are taken.
    for (name, place_bits) in [("o200k_base", 18), ("cl100k_base", 17)] {
        let encoding = tiktoken::get_encoding(name).expect("the crate carries it");
        let table = Table::of(encoding, place_bits);
        fs::write(out.join(format!("{name}.displacements")), table.displacements)?;
        fs::write(out.join(format!("{name}.entries")), table.entries)?;
        fs::write(out.join(format!("{name}.bytes")), table.bytes)?;
    }
    let (blocks, kinds) = kinds_of_characters();
    fs::write(out.join("characters.blocks"), blocks)?;
    fs::write(out.join("characters.kinds"), kinds)
}

/// A vocabulary as the program reads it.
struct Table {
    displacements: Vec<u8>,
    entries: Vec<u8>,
    bytes: Vec<u8>,
}

impl Table {
    fn of(encoding: &CoreBpe, place_bits: u32) -> Self {
        let mut bytes = Vec::new();
        let mut buckets: Vec<Vec<(u64, Entry)>> = vec![Vec::new(); 1 << BUCKET_BITS];
        for rank in 0..u32::try_from(encoding.vocab_size()).expect("ranks are numbers of 32 bits") {
            let token = encoding.decode(&[rank]);
            assert!(!token.is_empty(), "ranks have no gaps");
            let hash = hash(&token);
            let entry = Entry { rank, start: bytes.len(), length: token.len(), tag: tag(hash) };
            assert_eq!(Entry::unpack(pack(entry)), entry, "an entry holds every token");
            buckets[bucket(hash)].push((hash, entry));
            bytes.extend(token);
        }
        let mut order: Vec<usize> = (0..buckets.len()).collect();
        // The full ones first, while there is room.
        order.sort_by_key(|at| usize::MAX - buckets[*at].len());
        let mut displacements = vec![0_u16; buckets.len()];
        let mut entries = vec![0_u64; 1 << place_bits];
        for at in order {
            displacements[at] = settle(&buckets[at], &mut entries, place_bits);
        }
        let displacements = displacements.into_iter().flat_map(u16::to_le_bytes).collect();
        Self { displacements, entries: entries.into_iter().flat_map(u64::to_le_bytes).collect(), bytes }
    }
}

/// An entry as eight bytes; one that does not fit is not read back as it was.
const fn pack(entry: Entry) -> u64 {
    let Entry { rank, start, length, tag } = entry;
    rank as u64
        | (start as u64) << RANK_BITS
        | (length as u64) << (RANK_BITS + START_BITS)
        | tag << (RANK_BITS + START_BITS + LENGTH_BITS)
}

/// Finds a displacement that sends each token of a bucket to a place that is free, and puts them there.
fn settle(bucket: &[(u64, Entry)], entries: &mut [u64], place_bits: u32) -> u16 {
    for displacement in 0..=u16::MAX {
        let mut places: Vec<usize> =
            bucket.iter().map(|(hash, _)| place::place(*hash, displacement, place_bits)).collect();
        if places.iter().any(|place| entries[*place] != 0) {
            continue;
        }
        for (place, (_, entry)) in places.iter().zip(bucket) {
            entries[*place] = pack(*entry);
        }
        places.sort_unstable();
        places.dedup();
        if places.len() == bucket.len() {
            return displacement;
        }
        places.iter().for_each(|place| entries[*place] = 0);
    }
    unreachable!("one of 65,536 displacements fits, as long as a quarter of the places is free")
}

/// In the order of `characters::Kind`; what is none of these is a sign.
const KINDS: [&str; 6] = [r"[\p{Lu}\p{Lt}]", r"\p{Ll}", r"[\p{Lm}\p{Lo}]", r"\p{M}", r"\p{N}", r"\s"];
const BLOCK: usize = 256;

/// For each block of 256 characters the number of its kinds, and those kinds; blocks that are alike share theirs.
fn kinds_of_characters() -> (Vec<u8>, Vec<u8>) {
    let mut all = vec![0_u8; char::MAX as usize + 1];
    for (kind, pattern) in (1..).zip(KINDS) {
        let parsed = regex_syntax::parse(pattern).expect("the pattern is sound");
        let HirKind::Class(Class::Unicode(class)) = parsed.kind() else { unreachable!("{pattern} is a class") };
        for range in class.iter() {
            let characters = &mut all[range.start() as usize..=range.end() as usize];
            assert!(characters.iter().all(|taken| *taken == 0), "a character is of one kind");
            characters.fill(kind);
        }
    }
    let (mut blocks, mut kinds) = (Vec::new(), Vec::<u8>::new());
    for block in all.chunks(BLOCK) {
        let known = kinds.chunks(BLOCK).position(|like| like == block);
        let number = known.unwrap_or(kinds.len() / BLOCK);
        if known.is_none() {
            kinds.extend(block);
        }
        blocks.push(u8::try_from(number).expect("most blocks are alike"));
    }
    (blocks, kinds)
}
