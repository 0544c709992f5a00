//! Signing keys in a data directory: one file per key in `DATA/identity`.
//!
//! A file's name says when the key was made and what it is called: `MILLISECONDS-KID.p8`, PKCS#8.
//!
//! # Invariants
//! - A key is durable before anything is signed with it, and only its owner may read it.

use super::freshness::Version;
use super::signing_keys::{NewKey, SigningStore, Stored, valid};
use super::{IdentityError, durable, now};
use holdfast_domain::{Span, Timestamp};
use std::fs;
use std::path::{Path, PathBuf};

const EXTENSION: &str = "p8";

/// The files of a data directory, whose lock the one who adds holds.
pub(super) struct SigningFiles {
    dir: PathBuf,
}

impl SigningFiles {
    pub(super) fn of(data: &Path) -> Self {
        Self { dir: data.join("identity") }
    }

    fn paths(&self) -> Result<Vec<PathBuf>, IdentityError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(IdentityError::io(format!("read {}", self.dir.display())))?,
        };
        let paths = entries.flatten().map(|entry| entry.path());
        Ok(paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)).collect())
    }
}

impl SigningStore for SigningFiles {
    fn load(&self) -> Result<(Version, Vec<Stored>), IdentityError> {
        let mut keys = self.paths()?.into_iter().map(load_one).collect::<Result<Vec<_>, _>>()?;
        keys.sort_by(|a, b| (b.made_at, &b.place).cmp(&(a.made_at, &a.place)));
        Ok((Version::ONLY, keys))
    }

    fn add(&self, new: &NewKey, grace: Span) -> Result<(), IdentityError> {
        durable::make_dir(&self.dir)?;
        // Also when the clock has gone back, the new key is the newest.
        let newest = self.load()?.1.first().map(|key| key.made_at.after(Span::from_millis(1)));
        let made_at = newest.map_or_else(now, |newest| newest.max(now()));
        let name = format!("{:013}-{}.{EXTENSION}", made_at.millis(), new.kid);
        durable::write(&self.dir.join(name), &new.document)?;
        let keys = self.load()?.1;
        let made: Vec<Timestamp> = keys.iter().map(|key| key.made_at).collect();
        for old in keys.iter().skip(valid(&made, grace, now())) {
            fs::remove_file(&old.place).map_err(IdentityError::io(format!("remove {}", old.place)))?;
        }
        Ok(())
    }

    fn add_first(&self, new: &NewKey, grace: Span) -> Result<(), IdentityError> {
        if self.paths()?.is_empty() { self.add(new, grace) } else { Ok(()) }
    }
}

fn load_one(path: PathBuf) -> Result<Stored, IdentityError> {
    let document = durable::read(&path)?;
    let name = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.split_once('-'));
    let made_at = name.and_then(|(millis, _)| millis.parse().ok()).map(Timestamp::from_millis);
    let place = path.display().to_string();
    match made_at {
        Some(made_at) => Ok(Stored { place, made_at, document }),
        None => Err(IdentityError::NotAKey(place)),
    }
}
